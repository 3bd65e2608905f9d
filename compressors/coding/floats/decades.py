"""Bytes of a sign, a decimal exponent of varying width and a fraction, rounded to nearest.

Codes and their source: `quantization/floats/dynamic_8bit.py`.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcsim.compressors.lazy_torch import Tensor
from gcsim.compressors.loops import array, in_tiles, loop, written_back
from gcsim.compressors.meter import counted_as, launch
from gcsim.compressors.on_device import primitive
from gcsim.compressors.segments import Column, Segments

DECADES = 7


@cache
def tree() -> NDArray[np.float64]:
    """The magnitudes of codes 0 … 127, ascending: float64 `[128]`."""
    values = [0.0]
    for i in range(DECADES):
        fractions = (np.arange(1 << i) + 0.5) / (1 << i)
        values += list(10.0 ** (i - DECADES + 1) * (0.1 + 0.9 * fractions))
    return np.array(values)


def _decades() -> tuple[tuple[np.float32, ...], ...]:
    """(least element, slope, offset) by decade: the cell f of y is floor(slope y + offset).

    A decade begins half way between its first value and the last one below.
    """
    values = tree()
    first = 1 << np.arange(DECADES)
    least = (values[first - 1] + values[first]) / 2
    slopes = first / (0.9 * 10.0 ** (np.arange(DECADES) - DECADES + 1))
    return tuple(tuple(np.float32(v) for v in row) for row in (least, slopes, -first / 9.0))


LEAST, SLOPES, OFFSETS = _decades()


@counted_as(
    lambda _, values, segments, *__: [
        launch("streaming", "dynamic_8bit.nearest_codes", segments.length, 5 * segments.length)
    ]
)
@primitive
def nearest_codes(
    values: Tensor, segments: Segments, largest: Tensor, out: Tensor, at: Column
) -> None:
    """Write codes of values / largest, 128 added for negative ones, a byte each.

    `values` is a flat float32, `largest` float32 `[tensors]`, zero for a tensor of zeros. Codes
    of a tensor begin at byte `at` of `out`.
    """
    with written_back(out) as codes:
        in_tiles(_nearest, segments.tiles, array(values), segments.table, array(largest), codes, at)


@loop
def _nearest(
    start: int, stop: int, tiles: Any, values: Any, table: Any, largest: Any, codes: Any, at: Any
) -> None:
    for tile in range(start, stop):
        t, first, last = tiles[tile]
        own = values[table[t, 0] + first : table[t, 0] + last]
        out = codes[at[t] + first : at[t] + last]
        unit = largest[t] if largest[t] != np.float32(0) else np.float32(1)
        for i in range(own.size):
            scaled = np.float32(own[i] / unit)
            size = abs(scaled)
            slope = offset = cells = np.float32(0)
            for k in range(DECADES):  # unrolled: choices between constants, no branch
                above = size >= LEAST[k]
                slope = SLOPES[k] if above else slope
                offset = OFFSETS[k] if above else offset
                cells = np.float32(1 << k) if above else cells
            last_cell = max(cells - np.float32(1), np.float32(0))
            cell = min(max(size * slope + offset, np.float32(0)), last_cell)
            sign = np.int32(128) if scaled < np.float32(0) else np.int32(0)
            out[i] = np.int32(cell) + np.int32(cells) + sign
