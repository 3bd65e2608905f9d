"""Messages with some elements as values and others as signs of one magnitude.

A tensor's body: the magnitude, float32; the number of values and the bytes of their indices, int32
each; the values, float32; the others' signs, one bit each; coded indices of values, then of signs.
The header's flags are the index coders: of values in the low four bits, of signs in the high ones.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gcsim.compressors.bucket import BucketLayout
from gcsim.compressors.coding.checksum import number_at
from gcsim.compressors.coding.frames import Codec, Frames, columns_of, frames, put, read_ahead, seal
from gcsim.compressors.coding.indices import index_coding
from gcsim.compressors.coding.integers.packing import damaged, packed_bytes
from gcsim.compressors.coding.one_bit.signs import put_sign_bits
from gcsim.compressors.demands import entered
from gcsim.compressors.kernels import KernelCost, spread
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.loops import array, in_tiles, loop, written_back
from gcsim.compressors.meter import counted_as, launch
from gcsim.compressors.on_device import primitive
from gcsim.compressors.segments import Column, Segments

HEAD = 12
COUNTS, CODES, SIGNS, SCALE = 1, 2, 4, 8
"""Faults of a body, one bit each."""
_FAULTS = {
    COUNTS: "a body is not as long as its numbers of elements ask for",
    CODES: "positions cannot be read, or do not ascend below the tensor's length",
    SIGNS: "bits are set behind the last",
    SCALE: "a scale is negative or not a finite number",
}


def apart_message(
    segments: Segments, places: Tensor, values: Tensor, k: Column, magnitudes: Tensor,
    coding: index_coding.IndexCoding,
) -> Tensor:  # fmt: skip
    """Encode the elements: uint8, one frame per tensor.

    Parameters
    ----------
    places, values : within the tensor, int64, and float32 `[sum of k]`: all tensors' elements that
        travel as values, then the others
    k : number of values, number of signs: `[2, tensors]`
    magnitudes : the others' magnitude, float32 `[tensors]`
    """
    if (exchange := entered()) is not None:
        exchange.plain = coding in ("raw", "packed")
    (a, b), both = k, segments.twice
    certain, others = values.tensor_split([int(a.sum())])
    coders = index_coding.chosen_coders(coding, both, k.ravel())
    code, sizes_of_code = index_coding.coded_positions(places, both, k.ravel(), coders)
    size_a, size_b = sizes_of_code.reshape(2, -1)
    flags_a, flags_b = coders.reshape(2, -1)
    signs = packed_bytes(b, 1)
    head, counts = HEAD + 4 * a, np.empty((len(a), 2), dtype=np.int32)
    sizes = head + signs + size_a + size_b
    counts[:, 0], counts[:, 1] = a, size_a
    parts = (
        (magnitudes, segments.column(4)),
        (torch.from_numpy(counts.reshape(-1)), segments.column(8)),
        (certain, 4 * a),
    )
    message, at = frames(
        values, Codec.VARIANCE_BOUNDED, segments, sizes, nonzero=a + b,
        flags=flags_a | flags_b << 4, parts=parts,
    )  # fmt: skip
    behind = at + head
    put_sign_bits(others, Segments.behind(b), message, behind)
    ends = behind + signs
    put(message, np.concatenate((ends, ends + size_a)), code, sizes_of_code)
    return seal(message, at, sizes)


def add_apart(message: Tensor, layout: BucketLayout, out: Tensor, weight: float) -> None:
    """Add weight * the elements to `out` in place; `InputError` if damaged or foreign."""
    found = read_ahead(message, layout, Codec.VARIANCE_BOUNDED, _demand_head)
    add_elements(out, Segments.of(layout), message, found, weight)


def _demand_head(found: Frames) -> None:
    if (found.size < HEAD).any():
        raise damaged(f"bodies of {found.size.tolist()} bytes")


def _launches(
    _: object, __: object, segments: Segments, message: Tensor, found: Frames | Tensor, ___: object
) -> Iterator[KernelCost]:
    columns, tensors = columns_of(found), len(segments.table)
    k, sizes, coders = _split(columns, message)
    a, b = k.reshape(2, -1)
    for n in (4 * tensors, 8 * tensors, int(4 * a.sum()), int(sizes.sum())):
        if n:
            yield launch("streaming", "aten.cat", n, 2 * n)
    yield launch("streaming", "signs.write_signs", b, 8 * b, packed_bytes(b, 1), 4 * (b > 0))
    yield launch("streaming", "aten.cat", k, 8 * k)
    for coder in np.unique(coders):
        own = coders == coder
        decoding = f"index_coding.decode_indices:coder_{coder}"
        places = (4 if coder == index_coding.Coder.RAW else 8) * k[own]
        if coder != index_coding.Coder.RAW:
            yield launch("streaming", decoding, k[own], sizes[own], places)
        reach = spread(segments.longest)
        yield launch("gather_scatter", f"sparse._add_checked:{reach}", k[own], 12 * k[own], places)


def _split(found: Frames, message: Tensor) -> tuple[Column, Column, Column]:
    """Return (numbers of elements, bytes of indices, coders), each for values, then for signs."""
    data = np.from_dlpack(message.cpu())
    counts = data[found.at[:, None] + np.arange(4, HEAD)].view("<i4").astype(np.int64)
    a, size_a = counts.T
    b = found.nonzero - a
    size_b = found.size - (HEAD + 4 * a + packed_bytes(b, 1) + size_a)
    k, sizes = np.concatenate((a, b)), np.concatenate((size_a, size_b))
    if (k < 0).any() or (sizes < 0).any():
        demand_whole(COUNTS)
    return k, sizes, np.concatenate((found.flags & 0xF, found.flags >> 4))


@counted_as(_launches)
@primitive
def add_elements(
    out: Tensor, segments: Segments, message: Tensor, found: Frames | Tensor, weight: float
) -> None:
    """Do `add_apart` for a message whose headers are read ahead; `out` is flat float32."""
    columns, faults = columns_of(found), np.zeros(len(segments.table), dtype=np.int64)
    with written_back(out) as target:
        in_tiles(
            _add, segments.whole.spans, segments.table, columns.at, columns.size, columns.nonzero,
            columns.flags, array(message), np.float32(weight), target, faults,
        )  # fmt: skip
    demand_whole(int(np.bitwise_or.reduce(faults)))


def demand_whole(faults: int) -> None:
    """Raise `InputError` if bodies have faults."""
    for fault, what in _FAULTS.items():
        if faults & fault:
            raise damaged(what)


@loop
def _add(start, stop, tensors, table, at, sizes, k, flags, message, weight, out, faults):
    for t in range(start, stop):
        own = out[table[t, 0] : table[t, 0] + table[t, 1]]
        begin, end = at[t], at[t] + sizes[t]
        a = np.int64(number_at(message, begin + 4, 4))
        size_a = np.int64(number_at(message, begin + 8, 4))
        b, signs = k[t] - a, begin + HEAD + 4 * a
        first = signs + (b + 7) // 8
        # the numbers read are unsigned; after this check all slices stay inside the body
        if b < 0 or first + size_a > end:
            faults[t] |= COUNTS
            continue
        numbers = np.empty(1 + a, dtype=np.float32)  # the magnitude, then the values
        # copied as bytes, since floats in a body are not aligned
        raw = numbers.view(np.uint8)
        raw[:4] = message[begin : begin + 4]
        raw[4:] = message[begin + HEAD : signs]
        scale = numbers[0]
        # negated, so that NaN also fails
        if not (scale >= np.float32(0) and scale < np.float32(np.inf)):
            faults[t] |= SCALE
        if b % 8 > 0 and message[signs + b // 8] >> np.uint8(b % 8) > 0:
            faults[t] |= SIGNS
        for side in range(2):
            positions = np.empty(b if side else a, dtype=np.int64)
            body = message[first + size_a : end] if side else message[first : first + size_a]
            coder = flags[t] >> 4 if side else flags[t] & 15
            if index_coding.get_positions(body, own.size, coder, positions) > 0:
                faults[t] |= CODES
                break
            for i in range(positions.size):
                if side == 0:
                    value = numbers[1 + i]
                else:
                    minus = (message[signs + i // 8] >> np.uint8(i % 8)) & np.uint8(1)
                    value = -scale if minus else scale
                own[positions[i]] += weight * value
