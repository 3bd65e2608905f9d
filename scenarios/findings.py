"""Estimates in addition to a run's rows: break-even rates, useful changes, parts of the time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

SLOWEST, FASTEST = 1e6, 6.4e12
"""Lowest and highest bits per second at which a break-even is searched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakEven:
    """Break-even of a method, in bits per second."""

    label: str
    rate: float | None
    """Rate below which the method is faster than uncompressed training, median over the drawn
    worlds; None if at most half of them have one between `SLOWEST` and `FASTEST`."""
    pays: bool
    """Whether a method without a break-even is faster at all rates."""
    above: bool = False
    """The method is faster above `rate`, not below."""
    low: float | None = None
    """10th percentile over the drawn worlds; None without draws."""
    high: float | None = None
    """90th percentile."""
    low_open: bool = False
    """Whether the 10th percentile may be below `low`, the slowest rate tried."""
    high_open: bool = False
    """Whether the 90th percentile may be above `high`, the fastest rate tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change of settings, and the time that it saves."""

    words: str
    overrides: tuple[str, ...]
    """Settings for `gcsim run --set`."""
    saves_s: Mapping[str, float]
    """Seconds saved per iteration by label, for the same number of samples."""
    note: str = ""
    """Effect on the training, if any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Parts of a method's iteration, in seconds, with the default inputs."""

    compute_s: float
    encode_s: float
    decode_s: float
    bytes_s: float
    """Part of the wait that a thousand times the slowest link's rate would save."""
    latency_s: float
    """Part that the slowest link without latency would save."""
    waits_s: float
    """Total wait for the network."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Result of one training, or of several similar ones."""

    steps_vs_dense: float
    """Steps to the goal over dense training's, at least 1 (fewer are chance on a small task);
    infinite if the method misses the goal."""
    words: str
    """Setting and result: "ResNet-50, ImageNet, 64 GPUs: 76.8 % (dense 76.2 %)"."""
    source: str
    """Citation, or the command that trains."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherCode:
    """The advised method in another implementation."""

    title: str
    implementation: str
    iteration_s: float
    """Median over the drawn worlds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Answer to an open question about the cluster."""

    words: str
    option: str
    """Option of the command that states the answer."""
    overrides: tuple[str, ...]
    """Settings for `gcsim run --set`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenAdvice:
    """Advice if an open question has this answer."""

    answer: Answer
    dense_s: float
    """Dense iteration, median over the drawn worlds."""
    use: str
    """Method to use."""
    speedup: float
    """Speedup over dense training, median over the drawn worlds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """Estimates for the advised methods."""

    break_even: tuple[BreakEven, ...] = ()
    """Break-evens of the advised and of well-known methods."""
    slowest: str = ""
    """The slowest link, whose rate breaks even, in words; empty where it is the only one."""
    no_break_even: str = ""
    """Reason for no break-even, in words."""
    changes: tuple[Change, ...] = ()
    """Changes that save time, those that save most of dense training's first."""
    limits: Mapping[str, Limits] = field(default_factory=dict)
    """Parts of the iteration of dense training and the advised methods, by label."""
    known: Mapping[str, Evidence] = field(default_factory=dict)
    """Evidence that models train with methods that are faster than the safe one, by label."""
    missed: Mapping[str, str] = field(default_factory=dict)
    """Evidence against such methods, by label: a published loss or a missed target, in words."""
    other_code: tuple[OtherCode, ...] = ()
    """The method to use in other implementations than the priced one, if any are known."""
    open: tuple[OpenAdvice, ...] = ()
    """Answers to open questions that would change the advice."""
