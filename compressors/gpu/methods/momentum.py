"""How does a worker bring its momentum on, on a GPU? DGC's velocity, and steps of a worker alone.

Twins of what stands in `dgc.py`, and in `local_updates/cser.py` and `qsparse_local_sgd.py` (and in
its messages). What is
done by torch's operators rounds after each, as the loops' operations do (`add_` with a factor might
not).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import triton
import triton.language as tl

from gcsim.compressors.coding.selecting.marks import Marks
from gcsim.compressors.gpu.parts import Parts, launch_parts, own_part
from gcsim.compressors.gpu.selecting.selection import inside, limited_parts, new_marks_of
from gcsim.compressors.gpu.words import BLOCK, blocks, looked_up
from gcsim.compressors.lazy_torch import Tensor
from gcsim.compressors.local_updates import qsparse_messages


def add_momentum(
    u: Tensor, v: Tensor, gradient: Tensor, momentum: float, nesterov: bool, threshold: float
) -> Marks:
    """See `dgc.add_momentum`."""
    marks = new_marks_of(v, blocks(v.numel()), threshold)
    parts = limited_parts(v, [v.numel()], [0], [marks.up])
    add_momentum_to(u, v, gradient.contiguous(), momentum, nesterov, marks.counts, parts)
    return marks


def add_momentum_to(
    u: Tensor, v: Tensor, gradient: Tensor, momentum: float, nesterov: bool, counts: Tensor,
    parts: Parts,
) -> None:  # fmt: skip
    """`add_momentum` of the tensors of `limited_parts`; how many each block has."""
    launch_parts(
        _accumulate, parts, u, v, gradient, counts, float(np.float32(momentum)), NESTEROV=nesterov,
        BLOCK=BLOCK,
    )  # fmt: skip


def _next_velocity(parts: Sequence[Tensor], momentum: float, nesterov: bool) -> Tensor:
    """See `dgc._next_velocity`."""
    u, v, gradient = parts
    m = float(np.float32(momentum))
    return v + ((u + gradient) * m + gradient if nesterov else u * m + gradient)


def _momentum(momentum: Tensor, gradient: Tensor, m: float) -> Tensor:
    """u = m u + g, in place."""
    return momentum.mul_(float(np.float32(m))).add_(gradient)


def error_step(gradient: Tensor, momentum: Tensor, error: Tensor, m: float) -> Tensor:
    """See `cser.local_step`."""
    direction = gradient + _momentum(momentum, gradient, m) * float(np.float32(m))
    error.add_(direction)
    return direction


def local_step(gradient: Tensor, momentum: Tensor, applied: Tensor, m: float) -> Tensor:
    """See `qsparse_local_sgd.local_step`."""
    direction = _momentum(momentum, gradient, m).clone()
    applied.add_(direction)
    return direction


def last_step(
    gradient: Tensor, momentum: Tensor, applied: Tensor, error: Tensor, m: float
) -> Tensor:
    """See `qsparse_local_sgd.last_step`."""
    error.add_(applied + _momentum(momentum, gradient, m))
    taken = -applied
    applied.zero_()
    return taken


def to_sign_magnitude(codes: Tensor) -> Tensor:
    """See `qsparse_messages.to_sign_magnitude`."""
    return looked_up(qsparse_messages.SIGN_MAGNITUDE, codes)


def from_sign_magnitude(stored: Tensor) -> Tensor:
    """See `qsparse_messages.from_sign_magnitude`."""
    return looked_up(qsparse_messages.CODES, stored)


# --- kernels --------------------------------------------------------------------------------------


@triton.jit
def _accumulate(
    u, v, gradient, counts, momentum, table, parts,
    LANES: tl.constexpr, NESTEROV: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    column, number, n = own_part(table, parts, LANES)
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
