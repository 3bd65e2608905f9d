"""Momentum on the worker, on a GPU: the kernels of `coding/momentum.py`. Torch's operators round
after each operation, as the loops do (`add_` with a factor might not)."""

from __future__ import annotations

import numpy as np
import triton
import triton.language as tl

from gcsim.compressors.coding import momentum as loops
from gcsim.compressors.coding.selecting.marks import Marks
from gcsim.compressors.gpu.parts import launch_parts, own_block, own_row, parts_in_blocks
from gcsim.compressors.gpu.selecting.marks import limits_there, note_marked
from gcsim.compressors.gpu.words import BLOCK
from gcsim.compressors.lazy_torch import Tensor
from gcsim.compressors.on_device import kernel_of
from gcsim.compressors.segments import Segments


@kernel_of(loops.fill_velocity)
def fill_velocity(
    v: Tensor, u: Tensor, gradient: Tensor, segments: Segments, m: float, nesterov: bool,
    marks: Marks,
) -> None:  # fmt: skip
    """Run the pass with one program per block."""
    parts = parts_in_blocks(v, segments.length, segments.begin)
    launch_parts(
        _accumulate, parts, u, v, gradient.contiguous(), limits_there(v, marks), marks.counts,
        marks.totals, float(np.float32(m)), NESTEROV=nesterov, BLOCK=BLOCK,
    )  # fmt: skip


@kernel_of(loops.local_step)
def local_step(
    gradient: Tensor, momentum: Tensor, sums: Tensor, m: float, *, nesterov: bool = False,
    error: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Run the step in torch's operators."""
    factor = float(np.float32(m))
    u = momentum.mul_(factor).add_(gradient)
    if error is not None:
        error.add_(sums + u)
        taken = -sums
        sums.zero_()
        return taken
    direction = gradient + u * factor if nesterov else u.clone()
    sums.add_(direction)
    return direction


@triton.jit
def _accumulate(
    u, v, gradient, limits, counts, totals, momentum, table, parts, NESTEROV: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    row = own_row(table, parts, tl.program_id(0))
    column, number, at, here = own_block(table, parts, BLOCK)
    at += tl.load(column + 2 * parts)
    direction = tl.load(u + at, mask=here, other=0.0)
    added = tl.load(gradient + at, mask=here, other=0.0)
    if NESTEROV:
        direction = (direction + added) * momentum
        step = direction + added
    else:
        direction = direction * momentum + added
        step = direction
    velocity = tl.load(v + at, mask=here, other=0.0) + step
    tl.store(u + at, direction, mask=here)
    tl.store(v + at, velocity, mask=here)
    note_marked(velocity, here, number, tl.load(limits + row), row, parts, counts, totals)
