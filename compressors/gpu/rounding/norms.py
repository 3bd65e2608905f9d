"""Norms, sums and errors of cells on a GPU: the kernels of `coding/rounding/norms.py`, with sums in
another order than the loops."""

from __future__ import annotations

import numpy as np
import triton
import triton.language as tl
from numpy.typing import NDArray

from gcsim.compressors.coding.rounding import norms as loops
from gcsim.compressors.coding.rounding.norms import Norm
from gcsim.compressors.coding.rounding.truncated_normals import Numbers
from gcsim.compressors.gpu.parts import launch_parts, own_part, parts_in_blocks
from gcsim.compressors.gpu.rounding.levels import parts_of_cells
from gcsim.compressors.gpu.scans import MAGNITUDE, NORM, PLAIN, SQUARES, bucket_totals, joined
from gcsim.compressors.gpu.words import BLOCK, GROUPS, launch, places_of, there
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.on_device import kernel_of
from gcsim.compressors.segments import Cells, Segments


@kernel_of(loops.cell_norms)
def cell_norms(values: Tensor, cells: Cells, norm: Norm) -> Tensor:
    """Compute norms in one launch, plus one if cells are long."""
    if norm == "max":
        return bucket_totals(values, cells, MAGNITUDE).view(torch.float32)
    return bucket_totals(values, cells, NORM)


@kernel_of(loops.clipped_magnitudes)
def clipped_magnitudes(
    values: Tensor, segments: Segments, clip: float | None, at_bound: bool
) -> tuple[Tensor, Tensor]:
    """Find bounds and magnitudes in two launches."""
    parts = parts_in_blocks(values, segments.length, segments.begin)
    found = values.new_empty((3, parts.firsts[-1]), dtype=torch.float64)
    bounds, most = values.new_empty((2, parts.count))
    launch_parts(_moments, parts, values.contiguous(), found, parts.firsts[-1], BLOCK=BLOCK)
    cuts, length = there(parts.firsts, values.device), there(segments.length, values.device)
    factor = there([clip or 0.0], values.device, np.float64)  # a float argument would be float32
    launch(
        _join, parts.count, found, cuts, length, factor, bounds, most, parts.firsts[-1],
        AT_BOUND=at_bound, BLOCK=256,
    )  # fmt: skip
    return bounds, most


@kernel_of(loops.cell_sums)
def cell_sums(values: Tensor, cells: Cells) -> Tensor:
    """Compute sums and sums of squares, one launch each."""
    return torch.stack([bucket_totals(values, cells, what) for what in (PLAIN, SQUARES)], 1)


@kernel_of(loops.table_errors)
def table_errors(
    values: Tensor, cells: Cells, norms: Tensor, levels: NDArray[np.float32]
) -> Numbers:
    """Compute the errors; the host waits once."""
    parts = parts_of_cells(values, cells, cells.segments.begin)
    sums = values.new_empty(parts.firsts[-1], dtype=torch.float64)
    table, count = there(levels, values.device, np.float64), len(levels)
    launch_parts(
        _errors, parts, values.contiguous(), norms, table, sums, count, GROUPS=GROUPS,
        INDEX=parts.index,
    )  # fmt: skip
    return np.array(joined(sums, there(parts.firsts, values.device), SQUARES).tolist())


@triton.jit
def _moments(values, found, programs, table, parts, BLOCK: tl.constexpr):
    program = tl.program_id(0)
    column, number, n = own_part(table, parts)
    source = values + tl.load(column + 2 * parts)
    at = number * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(source + at, mask=at < n, other=0.0)
    # magnitudes order as integers, with NaN above all
    most = tl.max(v.to(tl.int32, bitcast=True) & 0x7FFFFFFF, axis=0)
    tl.store(found + program, most.to(tl.float32, bitcast=True).to(tl.float64))
    # about the first element, so that nearly equal values do not cancel
    distance = tl.where(at < n, v.to(tl.float64) - tl.load(source).to(tl.float64), 0.0)
    tl.store(found + programs + program, tl.sum(distance, axis=0))
    tl.store(found + 2 * programs + program, tl.sum(distance * distance, axis=0))


@triton.jit
def _join(
    found, cuts, lengths, factor, bounds, most, programs, AT_BOUND: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    part = tl.program_id(0)
    first = tl.load(cuts + part)
    last = tl.load(cuts + part + 1)
    n = tl.maximum(tl.load(lengths + part), 1).to(tl.float64)
    largest = tl.zeros([BLOCK], dtype=tl.float64)
    total = tl.zeros([BLOCK], dtype=tl.float64)
    squares = tl.zeros([BLOCK], dtype=tl.float64)
    for start in range(first, last, BLOCK):
        at = start + tl.arange(0, BLOCK)
        # rows of `found`, a number a program: largest magnitudes, sums, sums of squares
        each = tl.load(found + at, mask=at < last, other=0.0)
        largest = tl.where((each > largest) | (each != each), each, largest)  # noqa: PLR0124 - NaN
        total += tl.load(found + programs + at, mask=at < last, other=0.0)
        squares += tl.load(found + 2 * programs + at, mask=at < last, other=0.0)
    spoilt = tl.max((largest != largest).to(tl.int32), axis=0) > 0  # noqa: PLR0124 - NaN
    magnitude = tl.where(spoilt, float("nan"), tl.max(largest, axis=0)).to(tl.float32)
    mean = tl.sum(total, axis=0) / n
    deviation = tl.sqrt(tl.maximum(tl.sum(squares, axis=0) / n - mean * mean, 0.0))
    clip = tl.load(factor)
    bound = tl.minimum(clip * deviation, 3.4028234663852886e38).to(tl.float32)
    clipped = (clip > 0) & (deviation > 0)
    smaller = tl.where(bound < magnitude, bound, magnitude)
    tl.store(bounds + part, tl.where(clipped, bound, float("inf")))
    tl.store(most + part, tl.where(clipped, bound if AT_BOUND else smaller, magnitude))


@triton.jit
def _errors(
    values, norms, levels, sums, count, table, parts, GROUPS: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    column, number, n = own_part(table, parts)
    _, at = places_of(number, GROUPS, INDEX)
    here = at < n
    size = tl.load(column + 5 * parts).to(INDEX)
    v = tl.load(values + tl.load(column + 2 * parts) + at, mask=here, other=0.0).to(tl.float64)
    norm = tl.load(norms + tl.load(column + 3 * parts) + at // size, mask=here, other=0.0)
    norm = norm.to(tl.float64)
    # places past the last element have norm 0 and add nothing
    share = tl.where(norm > 0, v / tl.where(norm > 0, norm, 1.0), 0.0)
    low = tl.zeros([GROUPS, 8], dtype=tl.int32)
    for level in range(1, count - 1):  # the last level not above the share
        low += (tl.load(levels + level) <= share).to(tl.int32)
    below = share - tl.load(levels + low)
    error = tl.maximum(below * (tl.load(levels + low + 1) - share), 0.0)
    tl.store(sums + tl.program_id(0), tl.sum(tl.sum(norm * norm * error, axis=1), axis=0))
