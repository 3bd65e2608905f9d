"""Randomised Hadamard transform of a bucket's tensors: orthogonal, and its own inverse.

A tensor is divided into parts of 2^15 elements and smaller powers of two at its end, without
padding. Each part gets ten stages of butterflies (or all) over elements that are 32 apart, as in
the code published with THC (`quantization/rounding/thc.py`).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gcsim.compressors.lazy_torch import Tensor
from gcsim.compressors.loops import in_tiles, loop, written_back
from gcsim.compressors.meter import count_random, kernel
from gcsim.compressors.random import bits64
from gcsim.compressors.segments import Segments

LANES, STAGES = 32, 10
"""Distance between elements of a transform (so many run side by side), and number of stages."""


@kernel("streaming", updates=("values",), name="rotated.rotate")
def rotate(
    values: Tensor, segments: Segments, signs: NDArray[np.uint64], scales: NDArray[np.float64], *,
    back: bool = False,
) -> None:  # fmt: skip
    """Transform each tensor of a flat float32, times its scale, or undo the transform, in place.
    `signs` are the tensors' random keys (`random_key`)."""
    count_random(values.numel(), 1)
    with written_back(values) as target:
        factors = scales.astype(np.float32)
        in_tiles(_rotate, segments.tiles, segments.begin, signs, factors, back, target)


@loop
def _rotate(start, stop, tiles, begins, keys, scales, back, values):
    for tile in range(start, stop):
        t, first, last = tiles[tile]
        x = values[begins[t] + first : begins[t] + last]
        if not back:
            _flip(x, first, keys[t])
        # a tile holds whole parts, except at a tensor's end
        at, size = 0, LANES << STAGES
        while at < x.size:
            while size > x.size - at:
                size //= 2
            part, distance = x[at : at + size], max(1, size >> STAGES)
            # this factor makes the butterflies orthogonal
            part *= scales[t] * np.float32(1 / np.sqrt(size / distance))
            while distance < size:
                for base in range(0, size, 2 * distance):
                    a, b = part[base : base + distance], part[base + distance : base + 2 * distance]
                    for i in range(a.size):
                        a[i], b[i] = a[i] + b[i], a[i] - b[i]
                distance *= 2
            at += size
        if back:
            _flip(x, first, keys[t])


@loop
def _flip(x, first, key):
    """Flip the sign of every element whose random bit (from number `first` on) is set."""
    for at in range(0, x.size, 32):
        words = x[at : at + 32].view(np.uint32)
        # `first + at` is a multiple of 32, so half a word holds the bits of 32 elements
        bits = np.uint32(bits64(key, (first + at) >> 6) >> np.uint64((first + at) & 63))
        for i in range(words.size):
            words[i] ^= np.uint32(bits >> np.uint32(i)) << np.uint32(31)
