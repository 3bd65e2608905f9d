"""A validation suite: measured points with their predictions, and bounds on the errors.

Each measurement is predicted twice: with factors fitted on a stated subset, which is never judged,
and with the catalogue alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from itertools import combinations
from typing import Literal

IN_ALL = "in all"

Statistic = Literal[
    "median", "p90", "decisions", "statements", "ordering", "regret", "alarms", "pairs"
]  # fmt: skip
Unit = Literal["s", "samples/s", "bytes", "x"]
"""Units of a measurement; less is better for times and bytes, more for rates and speedups."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A measurement and its predictions."""

    name: str  # unique in its suite, e.g. "all-reduce 16 MB, 4 ranks, 100 Mbit/s".
    series: str  # line of the report for similar points
    unit: Unit
    measured: float
    predicted: float  # prediction with the suite's fitted factors
    unfitted: float | None  # prediction with the catalogue alone, if it can
    fitted: bool = False  # whether it was used in the fit: shown, but not judged
    source: str  # citation: publication or data file, and the place in it
    workers: int
    nbytes: float = 0
    """Bytes of a message: of the reduced vector; in training of the piece of a worker's gradient or
    payload that is exchanged at once (mean if they differ, all of it if unknown); 0 if unknown."""
    setting: str = ""
    """Points of one setting (model, network, workers) are choices between methods; "" for none."""
    method: str = ""  # the compressor, or `DENSE`; "" if there is no choice
    panel: str = ""  # small multiple that shows it; "" for none
    curve: str = ""  # its curve in that panel
    x: float | None = None  # position along the curve, e.g. workers or bytes.
    worlds: tuple[float, ...] = ()
    """`unfitted` of a training step in drawn worlds, where the catalogue lacks this source's steps
    on the device; empty if the catalogue alone predicts nothing."""
    stated_worlds: tuple[float, ...] = ()  # the same with its own step stated; empty without one

    @property
    def error(self) -> float:
        """Relative error: (predicted - measured) / measured."""
        return self.predicted / self.measured - 1

    @property
    def unfitted_error(self) -> float | None:
        """Relative error of the prediction with the catalogue alone."""
        return None if self.unfitted is None else self.unfitted / self.measured - 1

    @property
    def less_is_better(self) -> bool:
        """Whether a smaller value wins."""
        return self.unit in {"s", "bytes"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """A number in a paper, and the right number."""

    name: str
    source: str
    unit: str
    stated: float
    digit: float  # value of one unit in the last printed digit
    computed: float  # computed with gcsim's units, link and collectives
    formula: float  # closed form of the paper's inputs, independent of the simulator
    wrong: bool = False  # whether we consider the paper's number wrong
    at_least: bool = False  # whether the paper states a lower bound, with which larger values agree
    note: str = ""

    @property
    def agrees(self) -> bool:
        """Whether the right number rounds or truncates to the paper's, or keeps its lower bound."""
        below = self.stated - self.computed
        if self.at_least:
            return below <= self.digit / 2 * (1 + 1e-9)
        return abs(below) <= self.digit / 2 * (1 + 1e-9) or -self.digit < below <= 0

    @property
    def exact(self) -> bool:
        """Whether simulator and closed form agree to a picosecond."""
        return abs(self.computed - self.formula) <= 1e-12 * max(1.0, abs(self.formula))


@dataclass(frozen=True, slots=True, kw_only=True)
class Ordering:
    """Order of methods' speeds in a source without numbers (figure, sentence), and in gcsim."""

    name: str
    source: str
    expected: tuple[tuple[str, ...], ...]
    """Best first; methods within a group are about equal and are not compared."""
    values: Mapping[str, float]  # numbers by method, e.g. speedups over dense; more is better.

    @property
    def pairs(self) -> tuple[tuple[str, str], ...]:
        """All pairs (better, worse) from different groups."""
        return tuple(
            (better, worse)
            for group, later in combinations(self.expected, 2)
            for better in group
            for worse in later
        )

    @property
    def wrong(self) -> tuple[tuple[str, str], ...]:
        """Pairs that are equal or reversed in gcsim."""
        return tuple(pair for pair in self.pairs if self.values[pair[0]] <= self.values[pair[1]])


@dataclass(frozen=True, slots=True)
class Factor:
    """A fitted value."""

    series: str  # series that it applies to
    name: str
    value: float
    unit: str
    points: int  # number of measurements behind it
    _: KW_ONLY
    catalogue: float | None = None  # the catalogue's value, for the prediction without fit
    given: bool = False
    """Whether a user states it for the own machine (`compute:`, a stage of the own hook), from a
    row with little else in it: shown as fitted, never judged. Never part of an exchange."""


@dataclass(frozen=True, slots=True)
class Excluded:
    """Measurements that are left out by a rule that does not look at predictions."""

    what: str
    count: int
    rule: str  # reason, in a sentence


@dataclass(frozen=True, slots=True, kw_only=True)
class Regret:
    """Time lost by choosing with a rule instead of taking the fastest measured method."""

    source: str  # a suite, or `IN_ALL`
    rule: str
    settings: int
    mean: float  # mean over the settings of chosen time / fastest time - 1
    worst: float
    where: str  # setting with the worst regret
    use: float  # mean regret of the rule Use in the same settings


Verdict = Literal["right", "reversed", "alike", "too short"]
"""Verdict on a pair: in the published order, in the reverse order, not separated by the seeds, or
trained for too few steps to tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two methods whose published figures in a setting differ, with the figures of a task."""

    setting: str  # one model, its data and workers
    field: str  # field of its model
    source: str  # citation
    better: str  # the method with the better published figure
    worse: str
    published: tuple[float, float]  # of better and worse, over dense training; more is better
    here: tuple[float, float]
    """The task's final measure less that of dense training, mean over seeds; more is better."""
    verdict: Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """Agreement of a task's training runs with published accuracies."""

    task: str  # name, optimizer and steps
    compared: str  # field and optimizer of the compared settings, or `IN_ALL`
    reported: int  # methods published to train as well as dense, for which the task can tell
    alarms: tuple[str, ...]  # labels of those that miss its target
    reported_short: int  # methods published so, for which its steps are too few
    pairs: tuple[Pair, ...]
    spanning: int  # settings of at least six methods, most pairs of which differ in print
    ranks: tuple[float, ...]
    """Spearman's rank correlations of the settings on whose order the seeds agree."""

    def count(self, verdict: Verdict) -> int:
        """Return the number of its pairs with this verdict."""
        return sum(pair.verdict == verdict for pair in self.pairs)


@dataclass(frozen=True, slots=True)
class Bound:
    """Bound on those of a suite's points that were not used in a fit."""

    name: str  # text for people, e.g. "collectives of 1 MB and more at 50 and 100 Mbit/s".
    series: tuple[str, ...] = ()  # series of the points; () for all
    _: KW_ONLY
    statistic: Statistic = "median"
    """median, p90: of the absolute relative errors, at most `limit`. decisions: share of right
    ones, at least `limit` (broken if there is none). statements: all exact, all verdicts as stated.
    ordering: share of right pairs in all orderings, at least `limit`. regret: mean over all of the
    rule in `series`, at most `limit`. alarms: share of false alarms among methods published to
    train as well as dense, at most `limit`. pairs: share of right ones among separated pairs, at
    least `limit`. The last two: in settings of the task's field and optimizer, or (`series`:
    `IN_ALL`) in all."""
    limit: float = 0.0
    target: float | None = None  # the aim while only `limit` is reached: shown, not required


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """Results of a suite: points and other comparisons."""

    points: tuple[Point, ...] = ()
    statements: tuple[Statement, ...] = ()
    orderings: tuple[Ordering, ...] = ()
    factors: tuple[Factor, ...] = ()
    excluded: tuple[Excluded, ...] = ()
    regrets: tuple[Regret, ...] = ()
    agreements: tuple[Agreement, ...] = ()
    cited: tuple[str, ...] = ()  # citations that no point has


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """Measurements, and a function that predicts them."""

    name: str  # name on the command line, e.g. "shaped-collectives".
    title: str
    about: str  # measurements, authors and machines, in a paragraph
    fitted_on: str  # subset on which factors are fitted, in words; "" without fit
    missing: str = ""  # causes of remaining errors: mechanisms that the model lacks
    bounds: tuple[Bound, ...]
    find: Callable[[], Findings] = field(repr=False)
    """Read the data and predict, within seconds."""
    figure_x: str = ""  # label of the small multiples' x axis, with unit
