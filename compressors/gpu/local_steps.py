"""What does a worker's own step do to its momentum and its error, on a GPU?

Twins of the steps of `local_updates/cser.py` and `qsparse_local_sgd.py`, by torch's operators: each
rounds once, as the loops' operations do (`add_` with a factor might not).
"""

from __future__ import annotations

import numpy as np

from gcsim.compressors.lazy_torch import Tensor


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
