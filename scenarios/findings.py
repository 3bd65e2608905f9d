"""Estimates beside a run's rows: break-even rates, changes worth more, parts of the time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

SLOWEST, FASTEST = 1e6, 6.4e12
"""Bits per second between which break-evens are searched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakEven:
    """Break-even of a method, in bits per second."""

    label: str
    rate: float | None
    """Below it the method is faster than uncompressed training: median over the drawn worlds; None
    where half of these do not change places between `SLOWEST` and `FASTEST`."""
    pays: bool
    """Whether a method without break-even is always the faster one."""
    above: bool = False
    """The method is faster above `rate`, not below."""
    low: float | None = None
    """10th percentile over the drawn worlds; None without draws."""
    high: float | None = None
    """90th percentile."""
    low_open: bool = False
    """The 10th percentile is `low`, the slowest rate tried, or below."""
    high_open: bool = False
    """The 90th percentile is `high`, the fastest rate tried, or above."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Settings and their saving."""

    words: str
    overrides: tuple[str, ...]
    """Settings for `gcsim run --set`."""
    saves_s: Mapping[str, float]
    """Seconds saved per iteration by label, for as many samples."""
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
    """Whole wait for the network."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """One training, or several alike."""

    steps_vs_dense: float
    """Steps to the goal over dense training's, at least 1: fewer are luck on a small task; infinite
    where the method does not reach it."""
    words: str
    """Setting and result: "ResNet-50, ImageNet, 64 GPUs: 76.8 % (dense 76.2 %)"."""
    source: str
    """Citation, or the command that trains."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherCode:
    """The advised method in other code."""

    title: str
    implementation: str
    iteration_s: float
    """Median over the drawn worlds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Answer to an open question about the cluster."""

    words: str
    option: str
    """Option of the command that gives it."""
    overrides: tuple[str, ...]
    """Settings for `gcsim run --set`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenAdvice:
    """Advice with one answer to an open question."""

    answer: Answer
    dense_s: float
    """Dense iteration, median over the drawn worlds."""
    use: str
    """Method to use."""
    speedup: float
    """Speed over dense training's, median over the drawn worlds."""


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
    """Changes that save time, most of dense training's first."""
    limits: Mapping[str, Limits] = field(default_factory=dict)
    """Limits of dense training and the advised methods, by label."""
    known: Mapping[str, Evidence] = field(default_factory=dict)
    """Evidence that a model trains with methods faster than the safe one, by label."""
    missed: Mapping[str, str] = field(default_factory=dict)
    """Evidence against such methods, by label: a published loss or a missed target, in words."""
    other_code: tuple[OtherCode, ...] = ()
    """The method to use in other code than the one that is priced, where some is known."""
    open: tuple[OpenAdvice, ...] = ()
    """Open answers that would change the advice."""
