"""Momentum on the worker: the kernels of `coding/momentum.py`.

Torch's operators round after each operation, as the loops do (`add_` with a factor might not).
"""

from __future__ import annotations

import numpy as np
import triton
import triton.language as tl

from gcsim.compressors.coding import momentum as loops
from gcsim.compressors.coding.selecting.marks import Marks
from gcsim.compressors.gpu.parts import launch_parts, own_part, own_row
from gcsim.compressors.gpu.selecting.marks import limits_there, note_marked, parts_in_blocks
from gcsim.compressors.gpu.words import BLOCK
from gcsim.compressors.lazy_torch import Tensor
from gcsim.compressors.on_device import kernel_of
from gcsim.compressors.segments import Segments


@kernel_of(loops.fill_velocity)
def fill_velocity(
    v: Tensor, u: Tensor, gradient: Tensor, segments: Segments, m: float, nesterov: bool,
    marks: Marks,
) -> None:  # fmt: skip
    """Each program treats a block."""
    launch_parts(
        _accumulate, parts_in_blocks(v, segments), u, v, gradient.contiguous(),
        limits_there(v, marks), marks.counts, marks.totals, float(np.float32(m)),
        NESTEROV=nesterov, BLOCK=BLOCK,
    )  # fmt: skip


def _momentum(momentum: Tensor, gradient: Tensor, m: float) -> Tensor:
    """u = m u + g, in place."""
    return momentum.mul_(float(np.float32(m))).add_(gradient)


@kernel_of(loops.error_step)
def error_step(gradient: Tensor, momentum: Tensor, error: Tensor, m: float) -> Tensor:
    """By torch's operators."""
    direction = gradient + _momentum(momentum, gradient, m) * float(np.float32(m))
    error.add_(direction)
    return direction


@kernel_of(loops.local_step)
def local_step(gradient: Tensor, momentum: Tensor, applied: Tensor, m: float) -> Tensor:
    """By torch's operators."""
    direction = _momentum(momentum, gradient, m).clone()
    applied.add_(direction)
    return direction


@kernel_of(loops.last_step)
def last_step(
    gradient: Tensor, momentum: Tensor, applied: Tensor, error: Tensor, m: float
) -> Tensor:
    """By torch's operators."""
    error.add_(applied + _momentum(momentum, gradient, m))
    taken = -applied
    applied.zero_()
    return taken


# --- kernels --------------------------------------------------------------------------------------


@triton.jit
def _accumulate(
    u, v, gradient, limits, counts, totals, momentum, table, parts, NESTEROV: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    row = own_row(table, parts, tl.program_id(0))
    column, number, n = own_part(table, parts)
    within = number.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    here = within < n
    at = tl.load(column + 2 * parts) + within
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
    note_marked(velocity, here, tl.load(limits + row), row, parts, counts, totals)
