"""Estimates beside a run's rows: break-even rates, changes worth more, and parts of the time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

SLOWEST, FASTEST = 1e6, 1.6e12
"""Bits a second between which break-evens are looked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakEven:
    """Break-even of one method, in bits per second."""

    label: str
    rate: float | None
    """Below it the method is faster than uncompressed training, above it slower: median over the
    drawn worlds; None where they do not change places between `SLOWEST` and `FASTEST`."""
    pays: bool
    """Whether the method is the faster one at all rates, where there is no break-even."""
    low: float | None = None
    """10th percentile of the rate over the drawn worlds; None without draws. `SLOWEST` stands for
    that rate and any below."""
    high: float | None = None
    """90th percentile. `FASTEST` stands for that rate and any above."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Some settings, and what they save."""

    words: str
    overrides: tuple[str, ...]
    """Settings in the form of `gcsim run --set`."""
    saves_s: Mapping[str, float]
    """Seconds of an iteration saved by label, for as many samples as it has now."""
    note: str = ""
    """Effect on the training; "" where that stays the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Parts of a method's time, in seconds of its iteration with the default inputs."""

    compute_s: float
    encode_s: float
    decode_s: float
    bytes_s: float
    """Part of the wait for the network that a network a thousand times as fast would save."""
    latency_s: float
    """Part that a network without latency would save."""
    waits_s: float
    """Whole wait for the network."""
    hidden_s: float
    """Time of collectives behind the computation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """One training, or several alike."""

    steps_vs_dense: float
    """Steps to the goal over dense training's, at least 1: on a small task, fewer are luck."""
    words: str
    """Setting and result, e.g. "ResNet-50, ImageNet, 64 GPUs: 76.8 % (dense 76.2 %)"."""
    source: str
    """Citation, or the command that trains."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One answer to a question about the cluster that nobody has answered."""

    words: str
    option: str
    """Option of the command that gives it."""
    overrides: tuple[str, ...]
    """Settings in the form of `gcsim run --set`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Open:
    """Advice with one answer to an open question."""

    answer: Answer
    dense_s: float
    """Dense training's iteration, median over the drawn worlds."""
    use: str
    """Label of the method to use."""
    speedup: float
    """Its speed over dense training's, median over the drawn worlds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """Estimates for the methods that are advised."""

    break_even: tuple[BreakEven, ...] = ()
    """Break-evens of the advised methods, and of well-known ones, in bits per second."""
    changes: tuple[Change, ...] = ()
    """Changes that save time in the place of a compressor, most of dense training's first."""
    limits: Mapping[str, Limits] = field(default_factory=dict)
    """Parts of the time of dense training and of the advised methods, by label."""
    known: Mapping[str, Evidence] = field(default_factory=dict)
    """Evidence that a model trains with a method, by label, of those faster than the safe one."""
    open: tuple[Open, ...] = ()
    """Answers that nobody has given and that would change the advice."""
