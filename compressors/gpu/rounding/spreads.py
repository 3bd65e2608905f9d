"""Largest magnitudes and standard deviations: the kernel of `coding/rounding/spreads.py`."""

from __future__ import annotations

import numpy as np
import triton
import triton.language as tl
from numpy.typing import NDArray

from gcsim.compressors.coding.rounding import spreads as loops
from gcsim.compressors.gpu.parts import launch_parts, own_part, parts_of
from gcsim.compressors.gpu.scans import MAGNITUDE, SQUARES, joined
from gcsim.compressors.gpu.words import BLOCK, blocks, there
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.on_device import kernel_of
from gcsim.compressors.segments import Segments


@kernel_of(loops.magnitudes_and_spreads)
def magnitudes_and_spreads(values: Tensor, segments: Segments) -> NDArray[np.float64]:
    """The host waits once."""
    elements = segments.length.tolist()
    parts = parts_of(values, elements, [blocks(n) for n in elements], segments.begin.tolist())
    largest = values.new_empty(parts.firsts[-1], dtype=torch.int32)
    sums = values.new_empty((2, parts.firsts[-1]), dtype=torch.float64)
    launch_parts(_moments, parts, values.contiguous(), largest, sums, parts.firsts[-1], BLOCK=BLOCK)
    cuts = there(parts.firsts, values.device)
    top = joined(largest, cuts, MAGNITUDE).view(torch.float32).double()
    rows = torch.stack((top, joined(sums[0], cuts, SQUARES), joined(sums[1], cuts, SQUARES)))
    magnitude, total, squares = np.array(rows.tolist())
    n = np.maximum(1, segments.length)
    return np.stack((magnitude, np.sqrt(np.maximum(squares / n - (total / n) ** 2, 0.0))), axis=1)


# --- kernels --------------------------------------------------------------------------------------


@triton.jit
def _moments(values, found, sums, programs, table, parts, BLOCK: tl.constexpr):
    program = tl.program_id(0)
    column, number, n = own_part(table, parts)
    source = values + tl.load(column + 2 * parts)
    at = number * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(source + at, mask=at < n, other=0.0)
    tl.store(found + program, tl.max(v.to(tl.int32, bitcast=True) & 0x7FFFFFFF, axis=0))
    # about the first element, not about zero: nothing is lost when all are nearly equal
    distance = tl.where(at < n, v.to(tl.float64) - tl.load(source).to(tl.float64), 0.0)
    tl.store(sums + program, tl.sum(distance, axis=0))
    tl.store(sums + programs + program, tl.sum(distance * distance, axis=0))
