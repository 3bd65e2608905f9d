"""Largest magnitude and standard deviation of each tensor of a bucket, in one pass."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcsim.compressors.coding.scans import greatest_magnitude, moments
from gcsim.compressors.lazy_torch import Tensor
from gcsim.compressors.loops import SUM_BLOCK, array, in_tiles, loop
from gcsim.compressors.meter import counted_as, launch
from gcsim.compressors.on_device import primitive
from gcsim.compressors.segments import Segments, starts


@counted_as(
    lambda _, values, segments: [
        launch("reduction", "terngrad.magnitude_and_spread", segments.length, 4 * segments.length)
    ]
)
@primitive
def magnitudes_and_spreads(values: Tensor, segments: Segments) -> NDArray[np.float64]:
    """Largest |v| and population standard deviation of each tensor: float64 `[tensors, 2]`.

    Zeros for a tensor without elements. The deviation is exactly zero when all elements are equal;
    it is NaN when one is not finite.
    """
    blocks = -(-segments.length // SUM_BLOCK)
    first, total = starts(blocks), int(blocks.sum())
    largest, sums = np.zeros(total, dtype=np.uint32), np.zeros((2, total))
    data = np.ascontiguousarray(array(values))
    in_tiles(_moments, segments.tiles, data, segments.table, first, largest, sums)
    found = np.zeros((len(blocks), 2))
    for t in np.flatnonzero(blocks):
        own = slice(first[t], first[t] + blocks[t])
        mean, square = (float(each[own].sum()) / segments.length[t] for each in sums)
        spread = max(square - mean**2, 0.0) ** 0.5
        found[t] = largest[own].max().view(np.float32), spread
    return found


@loop
def _moments(
    start: int, stop: int, tiles: Any, values: Any, table: Any, blocks: Any, largest: Any, sums: Any
) -> None:
    """Spread of each block, about the tensor's first element: nearly equal values lose nothing."""
    for tile in range(start, stop):
        t, start_of, stop_of = tiles[tile]
        begin = table[t, 0]
        for first in range(start_of, stop_of, SUM_BLOCK):
            part = values[begin + first : begin + min(first + SUM_BLOCK, stop_of)]
            block = blocks[t] + first // SUM_BLOCK
            largest[block] = greatest_magnitude(part)
            sums[0, block], sums[1, block] = moments(part, np.float64(values[begin]))
