"""The Elias omega code of signed levels, most of which are zero.

Each element with q != 0 is coded as omega(gap), a sign bit (1: negative), and omega(|q|); gap is
the distance to the previous one, at first to element -1. Levels are codes q + s (`levels.py`). One
thread handles a tensor's bit-packed words, since a reader cannot find the middle.
"""

from __future__ import annotations

import numpy as np

from gcsim.compressors.coding.integers.elias import (
    check_end,
    get_omega,
    omega_bits,
    put_bits,
    put_omega,
)
from gcsim.compressors.coding.integers.packing import packed_bytes
from gcsim.compressors.kernels import KernelCost, spread
from gcsim.compressors.lazy_torch import Tensor
from gcsim.compressors.loops import array, in_tiles, loop, tensor
from gcsim.compressors.meter import counted_as, launch
from gcsim.compressors.on_device import primitive
from gcsim.compressors.segments import Column, Segments, starts

Coded = tuple[Tensor, Column, Column]


def _launches(name: str, lengths: Column, sizes: Column) -> list[KernelCost]:
    """Return the cost of a pass over codes, one byte each, and bodies."""
    reach = spread(int(np.maximum(lengths, sizes).max(initial=0)))
    return [launch("gather_scatter", f"{name}:{reach}", lengths, lengths, sizes)]


@counted_as(
    lambda coded, codes, segments, steps: _launches(
        "level_words.encode_sparse", segments.length, coded[1]
    )
)
@primitive
def coded_levels(codes: Tensor, segments: Segments, steps: int) -> Coded:
    """Encode codes q + s, uint8: (consecutive bodies, uint8; bytes of each; number of nonzero
    levels in each)."""
    data, spans = array(codes), Segments.behind(segments.length).whole.spans
    bits, sent = np.zeros((2, len(spans)), dtype=np.int64)
    in_tiles(_count, spans, data, steps, bits, sent)
    sizes = packed_bytes(bits, 1)
    out = np.zeros(int(sizes.sum()), dtype=np.uint8)
    in_tiles(_write, spans, data, steps, 8 * starts(sizes), out)
    return tensor(out, codes), sizes, sent


@counted_as(
    lambda _, body, sizes, segments, sent, steps: _launches(
        "level_words.decode_sparse", segments.length, sizes
    )
)
@primitive
def decoded_levels(
    body: Tensor, sizes: Column, segments: Segments, sent: Column, steps: int
) -> Tensor:
    """Undo `coded_levels`: return uint8. Raises `InputError` unless each body holds exactly its
    words, of levels up to s, padded with zeros to a whole byte."""
    data, spans = np.ascontiguousarray(array(body)), Segments.behind(segments.length).whole.spans
    codes, places = np.full(int(segments.length.sum()), steps, dtype=np.uint8), starts(sizes)
    ends = np.zeros(len(sizes), dtype=np.int64)
    in_tiles(_read, spans, data, places, sizes, sent, steps, codes, ends)
    for first, size, end in zip(places.tolist(), sizes.tolist(), ends.tolist(), strict=True):
        check_end(data[first : first + size], end)
    return tensor(codes, body)


@loop
def _count(start, stop, spans, codes, steps, bits, sent):
    for t in range(start, stop):
        part = codes[spans[t, 1] : spans[t, 2]]
        total = found = 0
        previous = -1  # a gap is at least 1: no word stands for 0
        for i in range(part.size):
            if part[i] != steps:
                total += omega_bits(i - previous) + 1 + omega_bits(abs(np.int64(part[i]) - steps))
                previous = i
                found += 1
        bits[t], sent[t] = total, found


@loop
def _write(start, stop, spans, codes, steps, places, out):
    for t in range(start, stop):
        # a tensor's bits begin at a whole byte, so threads do not share bytes
        part, position, previous = codes[spans[t, 1] : spans[t, 2]], places[t], -1
        for i in range(part.size):
            level = np.int64(part[i]) - steps
            if level != 0:
                position = put_omega(out, position, i - previous)
                position = put_bits(out, position, np.int64(level < 0), 1)
                position = put_omega(out, position, abs(level))
                previous = i


@loop
def _read(start, stop, spans, data, places, sizes, sent, steps, codes, ends):
    """Find the position after each tensor's last word; -1 for a level above s, a word without end,
    or an element past the last."""
    for t in range(start, stop):
        packed, own = data[places[t] : places[t] + sizes[t]], codes[spans[t, 1] : spans[t, 2]]
        limit, position, at = 8 * packed.size, np.int64(0), -1
        for _ in range(sent[t]):
            gap, position = get_omega(packed, position, limit)
            at += gap
            # a sign must follow the gap within the body
            if position < 0 or at >= own.size or position >= limit:
                position = np.int64(-1)
                break
            negative = (packed[position >> 3] >> (position & 7)) & 1
            level, position = get_omega(packed, position + 1, limit)
            if position < 0 or level > steps:
                position = np.int64(-1)
                break
            own[at] = np.uint8(steps - level if negative else steps + level)
        ends[t] = position
