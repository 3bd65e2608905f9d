"""INCEPTIONN: what if every value takes 0, 8, 16 or 32 bits, as its size and an error bound ask?

With the bound 2^-b, a tag of 2 bits says which of four forms a value v has:

    0   |v| < 2^-b             nothing: decodes to zero
    1   |v| < 2^-floor(b/2)    8 bits: sign and 7 bits of |v| behind the point from 2^-floor(b/2) on
    2   |v| < 1                16 bits: sign and 15 bits of |v| behind the point
    3   |v| >= 1               the float32 as it is

Bits are cut off, not rounded, so that an adder-free network interface can do it. The error of
every value is below 2^-b (2^-(7 + floor(b/2)) and 2^-15 in the forms 1 and 2), biased towards zero.
2 n + 8 n_1 + 16 n_2 + 32 n_3 bits: tags, then the values of each form together.

Assumes form 1 begins at the upper end of its range: with 7 bits from 1 downwards, as in public
code, the error would be up to 2^-7. The paper compresses each hop of a ring; here workers
all-gather and add up what they decode, so that errors do not pile up. `relative` takes the bound
as a fraction of the power of two above the tensor's largest magnitude, whose exponent travels in
the frame's header: an absolute 2^-10 loses all of a gradient whose elements are around 10^-4.

Source: Y. Li et al., "A Network-Centric Hardware/Algorithm Co-Design to Accelerate Distributed
Training of Deep Neural Networks", MICRO 2018, doi 10.1109/MICRO.2018.00023, Algorithms 2 and 3.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import Field

from gcsim.compressors.base import About, Compressor, CompressorParameters, Worker
from gcsim.compressors.bucket import Bucket, BucketLayout
from gcsim.compressors.coding.frame import Codec, Frame, pack_frame
from gcsim.compressors.coding.messages import frames_of
from gcsim.compressors.coding.packing import packed_bytes
from gcsim.compressors.laws import Laws
from gcsim.compressors.lazy_torch import torch
from gcsim.compressors.loops import array, in_parallel, loop, tensor, written_back
from gcsim.compressors.meter import kernel
from gcsim.compressors.quantization.fp8 import largest_magnitude
from gcsim.compressors.requests import Exchange, gather_variable
from gcsim.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

_BLOCK = 4096
"""Elements whose values are put together before they are written behind those of other blocks."""
_REGION = _BLOCK + 16
_ORIGINS = _REGION << 16 | 2 * _REGION << 32 | 3 * _REGION << 48
_EXPONENT_OFFSET = 256  # exponents -126 … 128 as frame parameters; 0 says that nothing is scaled
MAX_BOUND = 14
"""ceil(b / 2) must not be above the 7 bits of form 1."""


class InceptionnParameters(CompressorParameters):
    """Hyper-parameters of `Inceptionn`."""

    bound: int = Field(
        10, ge=1, le=MAX_BOUND, description="b: the error of every value is below 2^-b"
    )
    relative: bool = Field(
        False,
        description="bound relative to the power of two above each tensor's largest magnitude",
    )


class Inceptionn(Compressor):
    """Values cut to 0, 8, 16 or 32 bits under an error bound."""

    Parameters = InceptionnParameters
    about = About(
        title="INCEPTIONN",
        family="quantization",
        collective="all-gatherv",
        bits="2 + 8, 16 or 32 for each value, by its size",
        unbiased=False,
        state="none",
        paper="Li et al., MICRO 2018, doi 10.1109/MICRO.2018.00023",
    )

    def __init__(self, worker: Worker, parameters: CompressorParameters) -> None:
        super().__init__(worker, parameters)
        assert isinstance(parameters, InceptionnParameters)
        self.parameters = parameters

    @classmethod
    def laws(cls, parameters: CompressorParameters) -> Laws:
        """See `Compressor.laws`: the bound of each form, and of zero the value itself."""
        assert isinstance(parameters, InceptionnParameters)

        def bound(values: Tensor) -> float:
            b, unit = parameters.bound, 1.0
            if parameters.relative:
                unit = math.ldexp(1.0, exponent_above(largest_magnitude(values)))
            size = values.double().abs() / unit
            least = torch.where(size < 0.5**b, size, 0.5 ** (7 + b // 2))
            errors = least.masked_fill(size >= 0.5 ** (b // 2), 0.5**15).masked_fill(size >= 1, 0.0)
            return float(errors.square().sum()) * unit**2

        return Laws(error_bound=bound)

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        """See `Compressor.exchange`."""
        payloads = yield from gather_variable(self.encode(bucket.gradient, bucket.layout))
        update = torch.zeros_like(bucket.gradient)
        for payload in payloads:
            add_decoded(payload, bucket.layout, update, 1.0 / self.worker.count)
        return update

    def encode(self, vector: Tensor, layout: BucketLayout) -> Tensor:
        """Tags and values of each tensor of a float32 `[layout.numel]`: uint8, framed."""
        b, frames = self.parameters.bound, []
        for piece, values in layout.views(vector):
            exponent = 0
            if self.parameters.relative:
                exponent = exponent_above(largest_magnitude(values))
            body, sent = cut(values, b, math.ldexp(1.0, -exponent))
            frames.append(
                pack_frame(
                    Codec.INCEPTIONN,
                    body,
                    numel=piece.numel,
                    nonzero=sent,
                    flags=b,
                    params=exponent + _EXPONENT_OFFSET if self.parameters.relative else 0,
                )
            )
        return torch.cat(frames)


def exponent_above(largest: float) -> int:
    """e with largest < 2^e, at least -126; 0 for zero and for what is not finite."""
    return max(math.frexp(largest)[1], -126) if math.isfinite(largest) else 0


def add_decoded(message: Tensor, layout: BucketLayout, out: Tensor, weight: float) -> None:
    """out += weight * decoded message, in place; `out` is float32 `[layout.numel]`.

    Raises `InputError` when the message is damaged or of another layout.
    """
    for piece, frame in frames_of(message, layout, Codec.INCEPTIONN):
        exponent = frame.params - _EXPONENT_OFFSET if frame.params else 0
        if not 1 <= frame.flags <= MAX_BOUND or not -126 <= exponent <= 128:
            raise InputError(f"damaged payload: bound 2^-{frame.flags}, exponent {exponent}")
        _add_cut(
            out[piece.offset : piece.offset + piece.numel], frame, math.ldexp(weight, exponent)
        )


@kernel("gather_scatter")
def cut(values: Tensor, bound: int, factor: float) -> tuple[Tensor, int]:
    """(body of the frame of factor * values, number of values that are not zero in it).

    `values` is float32 `[n]`; the body is uint8.
    """
    numbers = array(values)
    n = numbers.size
    tags = np.empty(packed_bytes(n, 2), dtype=np.uint8)
    counts = np.zeros((-(-n // _BLOCK), 3), dtype=np.int64)
    unit = np.float32(factor)
    limits = np.array([127 - bound, 127 - bound // 2, 127], dtype=np.uint32) << np.uint32(23)
    in_parallel(_tag, n, numbers, unit, limits, tags, counts, grain=_BLOCK)
    totals = counts.sum(axis=0)
    starts = np.cumsum(counts, axis=0) - counts
    forms = [np.empty(t, dtype=d) for t, d in zip(totals, ("u1", "<u2", "<u4"), strict=True)]
    scale8 = np.float32(2.0 ** (7 + bound // 2))
    in_parallel(_write, n, numbers, unit, limits, scale8, starts, *forms, grain=_BLOCK)
    parts = [tags, *(form.view(np.uint8) for form in forms)]
    return tensor(np.concatenate(parts), values), int(totals.sum())


@kernel("gather_scatter", updates=("out",))
def _add_cut(out: Tensor, frame: Frame, weight: float) -> None:
    body, n = array(frame.body), frame.numel
    tag_bytes = packed_bytes(n, 2)
    tags = body[:tag_bytes]
    if body.size < tag_bytes or (n % 4 and int(tags[-1]) >> (2 * (n % 4))):
        raise InputError(f"damaged payload: {body.size} bytes, tags of {n} values expected")
    counts = np.zeros((-(-n // _BLOCK), 3), dtype=np.int64)
    in_parallel(_count, n, tags, counts, grain=_BLOCK)
    totals = counts.sum(axis=0)
    starts = np.cumsum(counts, axis=0) - counts
    widths = totals * (1, 2, 4)
    if int(widths.sum()) != body.size - tag_bytes or int(totals.sum()) != frame.nonzero:
        raise InputError(
            f"damaged payload: {body.size - tag_bytes} bytes of {frame.nonzero} values, "
            f"the tags ask for {totals.tolist()} of 1, 2 and 4 bytes"
        )
    forms = []
    at = tag_bytes
    for width, dtype in zip(widths, ("u1", "<u2", "<u4"), strict=True):
        forms.append(np.frombuffer(body[at : at + width].tobytes(), dtype=dtype))  # aligned
        at += int(width)
    scale8 = np.float32(weight * 0.5 ** (7 + frame.flags // 2))
    # 2^128 is only met where no value takes 32 bits
    scale16, scale32 = np.float32(weight * 0.5**15), np.float32(min(weight, 3e38))
    scales = np.array([scale8, scale16, scale32])
    with written_back(out) as target:
        in_parallel(_read, n, tags, starts, starts + counts, scales, *forms, target, grain=_BLOCK)


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
    start: int,
    stop: int,
    values: Any,
    factor: Any,
    limits: Any,
    scale8: Any,
    starts: Any,
    form8: Any,
    form16: Any,
    form32: Any,
) -> None:
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
    start: int,
    stop: int,
    tags: Any,
    starts: Any,
    ends: Any,
    scales: Any,
    form8: Any,
    form16: Any,
    form32: Any,
    out: Any,
) -> None:
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
