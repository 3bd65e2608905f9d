"""A validation suite: measured points beside predictions of them, and bounds to keep.

A suite reads its measurements, predicts every one of them with the
simulator, twice (with the factors that were fitted on a stated subset, and with the catalogue's
values alone), and says which points served the fit. Those are never judged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Literal

DENSE = "none"
"""The method of the uncompressed exchange: what decisions are against."""

IN_ALL = "in all"

Statistic = Literal["median", "p90", "decisions", "statements", "ordering", "regret"]
Unit = Literal["s", "samples/s", "bytes", "x"]
"""Units of a measurement. Less is better of times and bytes, more of rates and speedups."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One measurement, and what was predicted of it."""

    name: str
    """Unique in its suite, e.g. "all-reduce 16 MB, 4 ranks, 100 Mbit/s"."""
    series: str
    """A line of the report: points that are alike."""
    unit: Unit
    measured: float
    predicted: float
    """Prediction with the suite's fitted factors."""
    unfitted: float | None
    """Prediction with the catalogue's values alone; None where it knows nothing of it."""
    fitted: bool = False
    """Served the fit: shown, not judged."""
    source: str
    """Citation of this measurement: publication or data file, and where in it."""
    workers: int
    nbytes: float = 0
    """Bytes of a message: of the reduced vector; in training the piece of a worker's gradient or
    payload that is exchanged at once, the mean where pieces differ, all of it where they are not
    known; 0: there is none, or nobody has looked."""
    setting: str = ""
    """Points of one setting (model, network, workers) are choices between methods; "": of none."""
    method: str = ""
    """The compressor, `DENSE` for the exchange without; "": no choice is made."""
    panel: str = ""
    """The small multiple that shows it as a part of a curve; "": none."""
    curve: str = ""
    """Its curve in the panel."""
    x: float | None = None
    """Its place on the curve, e.g. workers or bytes."""
    worlds: tuple[float, ...] = ()
    """`unfitted` of a training step in drawn worlds, without what the catalogue has of this source
    about the device's steps; empty where the catalogue alone predicts nothing."""
    stated_worlds: tuple[float, ...] = ()
    """The same, with the own step stated; empty where it is not."""

    @property
    def error(self) -> float:
        """(predicted - measured) / measured."""
        return self.predicted / self.measured - 1

    @property
    def unfitted_error(self) -> float | None:
        """The same of the prediction without any fit."""
        return None if self.unfitted is None else self.unfitted / self.measured - 1

    @property
    def less_is_better(self) -> bool:
        """Whether a smaller value wins."""
        return self.unit in {"s", "bytes"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """A number that a paper states, and the right one."""

    name: str
    source: str
    unit: str
    stated: float
    digit: float
    """One unit of the last digit that the paper prints."""
    computed: float
    """Computed by gcsim: its units, link and collectives."""
    formula: float
    """The same in closed form, from the paper's own inputs; independent of the simulator."""
    wrong: bool = False
    """We say that the paper's number is wrong."""
    at_least: bool = False
    """The paper states a lower bound: what is larger agrees."""
    note: str = ""

    @property
    def agrees(self) -> bool:
        """The paper prints what the right number rounds to, or is cut off to, or a lower bound of
        it."""
        below = self.stated - self.computed
        if self.at_least:
            return below <= self.digit / 2 * (1 + 1e-9)
        return abs(below) <= self.digit / 2 * (1 + 1e-9) or -self.digit < below <= 0

    @property
    def exact(self) -> bool:
        """Simulator and closed form agree to the clock's picosecond."""
        return abs(self.computed - self.formula) <= 1e-12 * max(1.0, abs(self.formula))


@dataclass(frozen=True, slots=True, kw_only=True)
class Ordering:
    """Order of several methods' speeds, as a source says without numbers (a figure, a sentence),
    and how fast gcsim says they are."""

    name: str
    source: str
    expected: tuple[tuple[str, ...], ...]
    """Best first; methods of one group are about equal, and are not compared."""
    values: Mapping[str, float]
    """Numbers by method, e.g. speedups over dense; more is better."""

    @property
    def pairs(self) -> tuple[tuple[str, str], ...]:
        """All pairs (better, worse) of different groups."""
        return tuple(
            (better, worse)
            for place, group in enumerate(self.expected)
            for later in self.expected[place + 1 :]
            for better in group
            for worse in later
        )

    @property
    def wrong(self) -> tuple[tuple[str, str], ...]:
        """The pairs that gcsim has the other way round, or equal."""
        return tuple(pair for pair in self.pairs if self.values[pair[0]] <= self.values[pair[1]])


@dataclass(frozen=True, slots=True)
class Factor:
    """A value that was fitted."""

    series: str
    """Name of the points that it is used for."""
    name: str
    value: float
    unit: str
    points: int
    """Measurements that it was fitted on."""
    _: KW_ONLY
    catalogue: float | None = None
    """The catalogue's value in its place, for the prediction without fit."""
    given: bool = False
    """A user states it of the own machine (`compute:`, a stage of the own hook), from a row that
    has next to nothing else in it: shown as fitted, and never judged. Nothing of an exchange."""


def given_step(series: str, name: str, seconds: float, catalogue: float | None = None) -> Factor:
    """A step of the own machine, which its own row states."""
    return Factor(series, name, seconds, "s", 1, catalogue=catalogue, given=True)


@dataclass(frozen=True, slots=True)
class Excluded:
    """Measurements that are not compared, by a rule that does not look at predictions."""

    what: str
    count: int
    rule: str
    """Why, in a sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Regret:
    """Cost of choosing methods by a rule, against always knowing the fastest measured one."""

    source: str
    """A suite, or `IN_ALL`."""
    rule: str
    settings: int
    mean: float
    """Mean over the settings of the chosen method's time over that of the fastest, less 1."""
    worst: float
    where: str
    """Setting with the worst."""
    use: float
    """Mean of the first rule over the same settings."""


@dataclass(frozen=True, slots=True)
class Bound:
    """Bound that a suite must keep on the points that were not fitted."""

    name: str
    """Text for people, e.g. "collectives of 1 MB and more at 50 and 100 Mbit/s"."""
    series: tuple[str, ...] = ()
    """Series of the points; (): all of the suite."""
    _: KW_ONLY
    statistic: Statistic = "median"
    """median, p90: of the absolute relative errors, at most `limit`; decisions: share of those
    right, at least `limit` (broken where there is nothing to decide); statements: all exact, and
    all verdicts as stated; ordering: share of the pairs of all orderings that are right, at least
    `limit`; regret: mean in all of the rule in `series`, at most
    `limit`."""
    limit: float = 0.0
    target: float | None = None
    """The aim, where that is not reached: shown, and `limit` must hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """Results of a suite."""

    points: tuple[Point, ...] = ()
    statements: tuple[Statement, ...] = ()
    orderings: tuple[Ordering, ...] = ()
    factors: tuple[Factor, ...] = ()
    excluded: tuple[Excluded, ...] = ()
    regrets: tuple[Regret, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """One line of `suites.SUITES`."""

    name: str
    """Name on the command line, e.g. "shaped-collectives"."""
    title: str
    about: str
    """The measurements, their authors and machines; a paragraph."""
    fitted_on: str
    """The subset that factors are fitted on, in words; "" where nothing is fitted."""
    missing: str = ""
    """Reasons of the errors that are left: mechanisms that the model lacks."""
    bounds: tuple[Bound, ...]
    find: Callable[[], Findings] = field(repr=False)
    """Reads the data and predicts; takes seconds, not minutes."""
    figure_x: str = ""
    """Label of the small multiples' horizontal axis, with unit."""
