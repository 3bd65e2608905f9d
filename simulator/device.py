"""What a device needs for a kernel and for a training step; every number with its source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gcsim.compressors.kernels import KernelClass


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelRate:
    """Coefficients of one kernel class: T = launches * launch + nbytes / bandwidth + flops / rate.

    A coefficient that does not apply is None.
    """

    launch: float
    """Seconds a launch."""
    bandwidth: float | None = None
    """Bytes per second, read plus written."""
    flop_rate: float | None = None
    """FLOP per second."""
    source: str
    estimate: bool = False
    """True when the figure was not measured on this device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRate:
    """Forward, backward and optimiser of one model: T(batch) = fixed + per_sample * batch."""

    model: str
    fixed: float
    """Seconds."""
    per_sample: float
    """Seconds a sample."""
    source: str
    estimate: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A device profile of the catalogue."""

    name: str
    title: str
    kernels: Mapping[KernelClass, KernelRate]
    training: Mapping[str, TrainingRate] = field(default_factory=dict)
    """By model name."""
    effective_flop_rate: float
    """FLOP per second of whole training steps, for models without a measured rate."""
    backward_over_forward: float = 2.033
    """Ratio of the two passes' times (median of 37 measurements, jcjohnson/cnn-benchmarks)."""
    source: str
