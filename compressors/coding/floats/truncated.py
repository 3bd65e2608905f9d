"""How do values of 0, 8, 16 and 32 bits become tags and three streams of bytes, and back?

Values are treated in blocks. Within a block each goes to the next place of its form's region in a
scratch, or comes from there; the four next places are 16-bit fields of one 64-bit word, to which
a value adds 1 in its own field. No branch depends on the values, whose forms nobody can predict.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcsim.compressors.coding.integers.packing import packed_bytes
from gcsim.compressors.lazy_torch import Tensor
from gcsim.compressors.loops import array, in_parallel, loop, tensor, written_back
from gcsim.compressors.meter import kernel
from gcsim.compressors.on_device import on_device
from gcsim.errors import InputError

WIDTHS = 1, 2, 4
"""Bytes of a value, by form."""
_BLOCK = 4096
"""Elements whose values are put together before they are written behind those of other blocks."""
_REGION = _BLOCK + 16
_ORIGINS = _REGION << 16 | 2 * _REGION << 32 | 3 * _REGION << 48


@kernel("gather_scatter")
@on_device("floats.truncated")
def cut(values: Tensor, bound: int, factor: float) -> tuple[Tensor, int]:
    """(body of the frame of factor * values, number of values that are not zero in it).

    `values` is float32 `[n]`; the body is uint8.
    """
    numbers = array(values)
    n = numbers.size
    tags = np.empty(packed_bytes(n, 2), dtype=np.uint8)
    counts = np.zeros((-(-n // _BLOCK), 3), dtype=np.int64)
    unit = np.float32(factor)
    limits = limits_of(bound)
    in_parallel(_tag, n, numbers, unit, limits, tags, counts, grain=_BLOCK)
    totals = counts.sum(axis=0)
    starts = np.cumsum(counts, axis=0) - counts
    forms = [np.empty(t, dtype=d) for t, d in zip(totals, ("u1", "<u2", "<u4"), strict=True)]
    scale8 = np.float32(2.0 ** (7 + bound // 2))
    in_parallel(_write, n, numbers, unit, limits, scale8, starts, *forms, grain=_BLOCK)
    parts = [tags, *(form.view(np.uint8) for form in forms)]
    return tensor(np.concatenate(parts), values), int(totals.sum())


@kernel("gather_scatter", updates=("out",))
@on_device("floats.truncated")
def add_cut(out: Tensor, message: Tensor, *, bound: int, sent: int, weight: float) -> None:
    """out += weight * what `cut` made the message of, in place; `out` is float32 `[n]`.

    Raises `InputError` when the message's length or `sent`, the number of its values, is not what
    its tags ask for.
    """
    body, n = array(message), out.numel()
    tag_bytes = packed_bytes(n, 2)
    tags = body[:tag_bytes]
    if body.size < tag_bytes or (n % 4 and int(tags[-1]) >> (2 * (n % 4))):
        raise no_tags(body.size, n)
    counts = np.zeros((-(-n // _BLOCK), 3), dtype=np.int64)
    in_parallel(_count, n, tags, counts, grain=_BLOCK)
    totals = counts.sum(axis=0)
    starts = np.cumsum(counts, axis=0) - counts
    demand_as_tagged(totals.tolist(), body.size - tag_bytes, sent)
    forms = []
    at = tag_bytes
    for width, dtype in zip(totals * WIDTHS, ("u1", "<u2", "<u4"), strict=True):
        forms.append(np.frombuffer(body[at : at + width].tobytes(), dtype=dtype))  # aligned
        at += int(width)
    scales = scales_of(bound, weight)
    with written_back(out) as target:
        in_parallel(_read, n, tags, starts, starts + counts, scales, *forms, target, grain=_BLOCK)


def no_tags(size: int, n: int) -> InputError:
    """Of a message that does not begin with the tags of n values."""
    return InputError(f"damaged payload: {size} bytes, tags of {n} values expected")


def demand_as_tagged(totals: list[int], size: int, sent: int) -> None:
    """Raise `InputError` unless `size` bytes hold `sent` values, so many of 1, 2 and 4 bytes."""
    if sum(n * width for n, width in zip(totals, WIDTHS, strict=True)) != size or (
        sum(totals) != sent
    ):
        raise InputError(
            f"damaged payload: {size} bytes of {sent} values, "
            f"the tags ask for {totals} of 1, 2 and 4 bytes"
        )


def limits_of(bound: int) -> NDArray[np.uint32]:
    """Bits of the magnitudes at which the forms 1, 2 and 3 begin."""
    return np.array([127 - bound, 127 - bound // 2, 127], dtype=np.uint32) << np.uint32(23)


def scales_of(bound: int, weight: float) -> NDArray[np.float32]:
    """What the integers and values of the forms 1, 2 and 3 are multiplied by."""
    # 2^128 is only met where no value takes 32 bits
    scales = weight * 0.5 ** (7 + bound // 2), weight * 0.5**15, min(weight, 3e38)
    return np.array(scales, dtype=np.float32)


@loop
def _tag(
    start: int, stop: int, values: Any, factor: Any, limits: Any, tags: Any, counts: Any
) -> None:
    """Tags, four a byte, and how many values of each form a block has."""
    for first in range(start, stop, _BLOCK):
        block = values[first : min(first + _BLOCK, stop)]
        out = tags[first // 4 : first // 4 + (block.size + 3) // 4]
        own = np.empty(_BLOCK + 4, dtype=np.uint8)
        for i in range(block.size):
            size = np.uint32(np.float32(block[i] * factor).view(np.uint32) & np.uint32(0x7FFFFFFF))
            tag = np.uint8(size >= limits[0])
            tag = np.uint8(2) if size >= limits[1] else tag
            own[i] = np.uint8(3) if size >= limits[2] else tag
        own[block.size : block.size + 4] = np.uint8(0)
        ones, twos, threes = np.int32(0), np.int32(0), np.int32(0)
        for i in range(block.size):
            ones += np.int32(own[i] == np.uint8(1))
            twos += np.int32(own[i] == np.uint8(2))
            threes += np.int32(own[i] == np.uint8(3))
        block_number = first // _BLOCK
        counts[block_number, 0], counts[block_number, 1] = ones, twos
        counts[block_number, 2] = threes
        for j in range(out.size):
            out[j] = own[4 * j] | own[4 * j + 1] << 2 | own[4 * j + 2] << 4 | own[4 * j + 3] << 6


@loop
def _write(
    start: int, stop: int, values: Any, factor: Any, limits: Any, scale8: Any, starts: Any,
    form8: Any, form16: Any, form32: Any,
) -> None:  # fmt: skip
    """The values of each form, in order.

    A block's values are sorted into four regions of a scratch; where the next one of each form
    goes is counted in four 16-bit fields of one word, so that nothing depends on a branch.
    """
    code = np.empty(_BLOCK, dtype=np.uint32)
    field = np.empty(_BLOCK, dtype=np.uint8)
    regions = np.empty(4 * _REGION, dtype=np.uint32)
    for first in range(start, stop, _BLOCK):
        block = values[first : min(first + _BLOCK, stop)]
        for i in range(block.size):
            word = np.float32(block[i] * factor).view(np.uint32)
            size = np.uint32(word & np.uint32(0x7FFFFFFF))
            sign = np.uint32(word >> np.uint32(31))
            small = min(np.uint32(size).view(np.float32), np.float32(1))
            low = np.uint32(np.int32(min(small * scale8, np.float32(127))))
            high = np.uint32(np.int32(min(small * np.float32(32768), np.float32(32767))))
            low = np.uint32(low | np.uint32(sign << np.uint32(7)))
            high = np.uint32(high | np.uint32(sign << np.uint32(15)))
            shift = np.uint8(16) if size >= limits[0] else np.uint8(0)
            shift = np.uint8(32) if size >= limits[1] else shift
            field[i] = np.uint8(48) if size >= limits[2] else shift
            low = high if size >= limits[1] else low
            code[i] = word if size >= limits[2] else low
        at = np.uint64(_ORIGINS)
        for i in range(block.size):
            place = np.uint64(field[i])
            regions[(at >> place) & np.uint64(0xFFFF)] = code[i]
            at += np.uint64(1) << place
        begin = starts[first // _BLOCK]
        for form in range(1, 4):
            length = np.int64((at >> np.uint64(16 * form)) & np.uint64(0xFFFF)) - form * _REGION
            found = regions[form * _REGION : form * _REGION + length]
            if form == 1:
                _copy(found, form8[begin[0] : begin[0] + length])
            elif form == 2:
                _copy(found, form16[begin[1] : begin[1] + length])
            else:
                _copy(found, form32[begin[2] : begin[2] + length])


@loop
def _copy(source: Any, target: Any) -> None:
    for j in range(target.size):
        target[j] = source[j]


@loop
def _count(start: int, stop: int, tags: Any, counts: Any) -> None:
    """How many values of each form each block has, from the tags."""
    for first in range(start, stop, _BLOCK):
        own = tags[first // 4 : (min(first + _BLOCK, stop) + 3) // 4]
        ones, twos, threes = np.int32(0), np.int32(0), np.int32(0)
        for j in range(own.size):
            low, high = own[j] & np.uint8(0x55), (own[j] >> np.uint8(1)) & np.uint8(0x55)
            both = low & high
            # sums of four bits that are two apart
            ones += _four(low ^ both)
            twos += _four(high ^ both)
            threes += _four(both)
        row = counts[first // _BLOCK]
        row[0], row[1], row[2] = ones, twos, threes


@loop
def _four(bits: Any) -> Any:
    """How many of the bits 0, 2, 4 and 6 are set."""
    pairs = np.int32(bits & np.uint8(0x11)) + np.int32((bits >> np.uint8(2)) & np.uint8(0x11))
    return np.int32(pairs & 0xF) + np.int32(pairs >> 4)


@loop
def _read(
    start: int, stop: int, tags: Any, starts: Any, ends: Any, scales: Any, form8: Any,
    form16: Any, form32: Any, out: Any,
) -> None:  # fmt: skip
    """out += scale of its form * value.

    A block's values become float32 first, in one region for each form; then they take their
    places, counted as in `_write`.
    """
    regions = np.zeros(4 * _REGION, dtype=np.float32)  # of form 0: zeros
    field = np.empty(_BLOCK, dtype=np.uint8)
    for first in range(start, stop, _BLOCK):
        part = out[first : min(first + _BLOCK, stop)]
        packed = tags[first // 4 : (first + part.size + 3) // 4]
        for j in range(packed.size):
            field[4 * j] = (packed[j] & np.uint8(3)) << np.uint8(4)
            field[4 * j + 1] = ((packed[j] >> np.uint8(2)) & np.uint8(3)) << np.uint8(4)
            field[4 * j + 2] = ((packed[j] >> np.uint8(4)) & np.uint8(3)) << np.uint8(4)
            field[4 * j + 3] = (packed[j] >> np.uint8(6)) << np.uint8(4)
        begin, end = starts[first // _BLOCK], ends[first // _BLOCK]
        codes8, region8 = form8[begin[0] : end[0]], regions[_REGION:]
        for j in range(codes8.size):
            size = np.float32(np.int32(codes8[j]) & np.int32(127)) * scales[0]
            region8[j] = -size if codes8[j] >= 128 else size
        codes16, region16 = form16[begin[1] : end[1]], regions[2 * _REGION :]
        for j in range(codes16.size):
            size = np.float32(np.int32(codes16[j]) & np.int32(32767)) * scales[1]
            region16[j] = -size if codes16[j] >= 32768 else size
        words, region32 = form32[begin[2] : end[2]], regions[3 * _REGION :]
        for j in range(words.size):
            region32[j] = np.uint32(words[j]).view(np.float32) * scales[2]
        at = np.uint64(_ORIGINS)
        for i in range(part.size):
            shift = np.uint64(field[i])
            part[i] += regions[(at >> shift) & np.uint64(0xFFFF)]
            at += np.uint64(1) << shift
