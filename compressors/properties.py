"""Properties that a compression method promises and the checker tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from gcsim.compressors.lazy_torch import Tensor

Replicas = Literal["identical", "meet", "differ"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Properties:
    unbiased: bool = False
    """The mean over the method's own randomness of the update is the mean gradient."""

    error_bound: Callable[[Tensor], float] | None = None
    """Bound on the mean of |Q(v) - v|^2 for a float32 v `[n]`, one worker without memory at its
    first settled step; as sharp as the theory that the method cites."""

    error_is_exact: bool = False
    """The mean of |Q(v) - v|^2 equals `error_bound(v)`."""

    conserves: bool = False
    """Nothing is lost: the undelivered part is held back (`Compressor.residual_of`)."""

    replicas: Replicas = "identical"
    """identical: after each step; meet: after each window; differ: never the same model."""

    scale_free: bool = False
    """The update does not depend on the gradient's scale: signs, Adam's direction."""

    exact: bool = False
    """Lossless: the update is the mean gradient, up to float32 rounding."""
