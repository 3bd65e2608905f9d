"""A validation suite: measured points beside predictions of them, and bounds to keep.

Each measurement is predicted twice: with factors fitted on a stated subset, which is never judged,
and by the catalogue alone.
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
    unfitted: float | None  # prediction by the catalogue alone, if it can
    fitted: bool = False  # whether it served the fit: shown, not judged
    source: str  # citation: publication or data file, and the place in it
    workers: int
    nbytes: float = 0
    """Bytes of a message: of the reduced vector; in training of the piece of a worker's gradient or
    payload exchanged at once (the mean of differing ones, all of it if unknown); 0 if unknown."""
    setting: str = ""
    """Points of one setting (model, network, workers) are choices between methods; "" without."""
    method: str = ""  # the compressor, or `DENSE`; "" where no choice is made
    panel: str = ""  # small multiple with its curve; "" without
    curve: str = ""  # its curve in the panel
    x: float | None = None  # its place on the curve, e.g. workers or bytes.
    worlds: tuple[float, ...] = ()
    """`unfitted` of a training step in drawn worlds, without this source's steps of the device in
    the catalogue; empty if the catalogue alone predicts nothing."""
    stated_worlds: tuple[float, ...] = ()  # the same with its own step stated; empty without

    @property
    def error(self) -> float:
        """(predicted - measured) / measured."""
        return self.predicted / self.measured - 1

    @property
    def unfitted_error(self) -> float | None:
        """The same of the prediction without fit."""
        return None if self.unfitted is None else self.unfitted / self.measured - 1

    @property
    def less_is_better(self) -> bool:
        """Whether a smaller value wins."""
        return self.unit in {"s", "bytes"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """A paper's number, and the right one."""

    name: str
    source: str
    unit: str
    stated: float
    digit: float  # unit of the last digit printed
    computed: float  # computed with gcsim's units, link and collectives
    formula: float  # closed form of the paper's own inputs, independent of the simulator
    wrong: bool = False  # whether we call the paper's number wrong
    at_least: bool = False  # whether the paper states a lower bound: larger values agree
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
        """Whether simulator and closed form agree to the clock's picosecond."""
        return abs(self.computed - self.formula) <= 1e-12 * max(1.0, abs(self.formula))


@dataclass(frozen=True, slots=True, kw_only=True)
class Ordering:
    """Order of methods' speeds by a source without numbers (figure, sentence), and gcsim's."""

    name: str
    source: str
    expected: tuple[tuple[str, ...], ...]
    """Best first; methods of a group are about equal and not compared."""
    values: Mapping[str, float]  # numbers by method, e.g. speedups over dense; more is better.

    @property
    def pairs(self) -> tuple[tuple[str, str], ...]:
        """All pairs (better, worse) of different groups."""
        return tuple(
            (better, worse)
            for group, later in combinations(self.expected, 2)
            for better in group
            for worse in later
        )

    @property
    def wrong(self) -> tuple[tuple[str, str], ...]:
        """Pairs that gcsim has equal or the other way round."""
        return tuple(pair for pair in self.pairs if self.values[pair[0]] <= self.values[pair[1]])


@dataclass(frozen=True, slots=True)
class Factor:
    """A value that was fitted."""

    series: str  # name of the points it is for
    name: str
    value: float
    unit: str
    points: int  # measurements behind it
    _: KW_ONLY
    catalogue: float | None = None  # the catalogue's value for the prediction without fit
    given: bool = False
    """Stated by a user for the own machine (`compute:`, a stage of the own hook), from a row with
    next to nothing else in it: shown as fitted, never judged. Nothing of an exchange."""


def given_step(series: str, name: str, seconds: float, catalogue: float | None = None) -> Factor:
    """A step of the own machine, stated by its own row."""
    return Factor(series, name, seconds, "s", 1, catalogue=catalogue, given=True)


@dataclass(frozen=True, slots=True)
class Excluded:
    """Measurements left out by a rule that does not look at predictions."""

    what: str
    count: int
    rule: str  # reason, in a sentence


@dataclass(frozen=True, slots=True, kw_only=True)
class Regret:
    """Cost of choosing by a rule, against the fastest measured method."""

    source: str  # a suite, or `IN_ALL`
    rule: str
    settings: int
    mean: float  # mean over the settings of the chosen method's time over the fastest's, less 1
    worst: float
    where: str  # setting with the worst regret
    use: float  # mean of the first rule in the same settings


Verdict = Literal["right", "reversed", "alike", "too short"]
"""Verdict on a pair: in the published order, in the other order, not told apart by the seeds, or
trained for too few steps to tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two methods whose published figures in a setting differ, and the task's own."""

    setting: str  # one model, its data and workers
    field: str  # field of its model
    source: str  # citation
    better: str  # the method with the better published figure
    worse: str
    published: tuple[float, float]  # of better and worse, over dense training's; more is better
    here: tuple[float, float]
    """Measure of the task at the end less dense training's, mean over seeds; more is better."""
    verdict: Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """Agreement of a task's trainings with published accuracies."""

    task: str  # name, optimizer and steps
    compared: str  # field and optimizer of the published settings, or `IN_ALL`
    reported: int  # methods reported to train as dense training, of which the task can tell
    alarms: tuple[str, ...]  # labels of those that do not reach its target
    reported_short: int  # methods so reported for which its steps are too few
    pairs: tuple[Pair, ...]
    spanning: int  # settings of six methods, most of them apart in print
    ranks: tuple[float, ...]
    """Spearman's rank correlations, of those on whose order the seeds agree."""

    def count(self, verdict: Verdict) -> int:
        """Number of its pairs with this verdict."""
        return sum(pair.verdict == verdict for pair in self.pairs)


@dataclass(frozen=True, slots=True)
class Bound:
    """Bound on a suite's points that were not fitted."""

    name: str  # text for people, e.g. "collectives of 1 MB and more at 50 and 100 Mbit/s".
    series: tuple[str, ...] = ()  # series of the points; () for all
    _: KW_ONLY
    statistic: Statistic = "median"
    """median, p90: of the absolute relative errors, at most `limit`; decisions: share of those
    right, at least `limit` (broken where there is nothing to decide); statements: all exact, and
    all verdicts as stated; ordering: share of the pairs of all orderings that are right, at least
    `limit`; regret: mean in all of the rule in `series`, at most
    `limit`; alarms: share of false alarms among methods reported to train as dense training, at
    most `limit`; pairs: share right of the pairs told apart, at least `limit`; both in settings
    with a task's field and optimizer, or in all (`series`: `IN_ALL`)."""
    limit: float = 0.0
    target: float | None = None  # the aim, if not reached: shown, while `limit` must hold


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """Results of a suite."""

    points: tuple[Point, ...] = ()
    statements: tuple[Statement, ...] = ()
    orderings: tuple[Ordering, ...] = ()
    factors: tuple[Factor, ...] = ()
    excluded: tuple[Excluded, ...] = ()
    regrets: tuple[Regret, ...] = ()
    agreements: tuple[Agreement, ...] = ()
    cited: tuple[str, ...] = ()  # citations of what stands in no point


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """Measurements, and the function that predicts them."""

    name: str  # name on the command line, e.g. "shaped-collectives".
    title: str
    about: str  # measurements, authors and machines; a paragraph
    fitted_on: str  # subset that factors are fitted on, in words; "" without fit
    missing: str = ""  # reasons of remaining errors: mechanisms that the model lacks
    bounds: tuple[Bound, ...]
    find: Callable[[], Findings] = field(repr=False)
    """Function that reads the data and predicts, within seconds."""
    figure_x: str = ""  # label of the small multiples' horizontal axis, with unit
