"""Momentum on the worker: the kernels of `coding/momentum.py`.

Torch's operators round after each operation, as the loops do (`add_` with a factor might not).
"""

from __future__ import annotations

import numpy as np
import triton
import triton.language as tl

from gcsim.compressors.coding import momentum as loops
from gcsim.compressors.coding.selecting.marks import Marks
from gcsim.compressors.gpu.parts import launch_parts, own_part
from gcsim.compressors.gpu.selecting.marks import inside, limited_parts, put_counts
from gcsim.compressors.gpu.words import BLOCK
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.on_device import kernel_of
from gcsim.compressors.segments import Segments


@kernel_of(loops.fill_velocity)
def fill_velocity(
    v: Tensor, u: Tensor, gradient: Tensor, segments: Segments, m: float, nesterov: bool,
    marks: Marks,
) -> None:  # fmt: skip
    """Each program treats a block."""
    parts = limited_parts(v, segments, marks)
    counts = v.new_empty(parts.firsts[-1], dtype=torch.int64)
    launch_parts(
        _accumulate, parts, u, v, gradient.contiguous(), counts, float(np.float32(m)),
        NESTEROV=nesterov, BLOCK=BLOCK,
    )  # fmt: skip
    put_counts(marks, counts, parts)


@kernel_of(loops.local_step)
def local_step(
    gradient: Tensor, momentum: Tensor, sums: Tensor, m: float, *, nesterov: bool = False,
    error: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """By torch's operators."""
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


# --- kernels --------------------------------------------------------------------------------------


@triton.jit
def _accumulate(
    u, v, gradient, counts, momentum, table, parts, NESTEROV: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
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
    hits = tl.where(here & (inside(velocity, column, parts) == 0), 1, 0)
    tl.store(counts + tl.program_id(0), tl.sum(hits, axis=0).to(tl.int64))
