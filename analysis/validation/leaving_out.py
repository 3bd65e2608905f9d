"""Steps and gains of a source, predicted without its statements: coverage, P(faster than dense).

Every training step is predicted by the catalogue alone in drawn worlds, and again with its passes
stated. Factors on whole steps (`scenarios/uncertainty/discrepancy.py`) widen these ranges. Their
widths are split-conformal in spirit (Dunn, Wasserman and Ramdas, "Distribution-free prediction sets
for two-layer hierarchical models", JASA 2023): a width is the least that has 80 % of the weight of
all other sources, each of equal weight, inside the middle 80 %. In turn:

- of a compressor, from ratios of two methods' steps, with stated passes;
- of all compressors, from gains over dense, with stated passes: too few sources have dense and
  compressed steps of known devices;
- of all methods, from steps: with stated passes, and with the catalogue's.

A source is a repository or a suite; its rates of the device are left out as well.

    python -m tests.benchmarks.discrepancy    # scenarios/catalog/discrepancy.yaml, in a checkout
"""

from __future__ import annotations

import math
import operator
import re
import statistics
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gcsim.analysis.validation.decisions import TIE
from gcsim.analysis.validation.registry import SUITES
from gcsim.analysis.validation.suite import Point
from gcsim.scenarios.uncertainty import discrepancy
from gcsim.scenarios.uncertainty.discrepancy import FILE, Widths, shipped
from gcsim.scenarios.uncertainty.worlds import draw
from gcsim.simulator.luck import as_probability
from gcsim.simulator.training import DENSE

if TYPE_CHECKING:
    from gcsim.analysis.validation.judge import Report

Values = NDArray[np.float64]
LEAST, MOST = 0.7, 0.9  # required coverage of steps, each source alike
CLOSE = 1.05  # ratio of widths up to which the file is not stale
COMMAND = "python -m tests.benchmarks.discrepancy"
_SHARE = 0.8
_EDGE = (1 - _SHARE) / 2
_WIDEST = 5.0
_QUANTILES = 16
_WORK = (re.compile(r"github\.com/([\w.-]+/[\w.-]+)"), re.compile(r"([\w-]+/[\w.-]+) ?@"))


def work_of(citation: str, otherwise: str) -> str:
    """Repository in a citation, or `otherwise`."""
    found = (pattern.search(citation) for pattern in _WORK)
    return next((match[1] for match in found if match), otherwise)


def with_factors(point: Point, suite: str, kind: str) -> tuple[float, ...]:
    """Seconds by world of a point's method by the catalogue alone, with others' factors."""
    known = shipped().without(work_of(point.source, suite))
    found = discrepancy.inputs(known, stated=False, kinds=[kind])
    by = discrepancy.factors(draw(found, len(point.worlds), 0), found, kind)
    seconds = np.array(point.worlds) ** (1 if point.less_is_better else -1)
    return tuple((seconds * by).tolist())


@dataclass(frozen=True, slots=True, eq=False)
class Miss:
    """A measurement beside its prediction in drawn worlds."""

    source: str
    logs: Values
    """Logarithm of measured over predicted seconds, of a method or over another's, by world."""
    compressed: bool = False  # whether a step is compressed
    measured: float = 0.0  # logarithm of a measured gain


@dataclass(frozen=True, slots=True, eq=False)
class Misses:
    """Misses of one kind of passes."""

    steps: tuple[Miss, ...]
    gains: tuple[Miss, ...]  # compressed steps over dense ones
    pairs: tuple[Miss, ...]  # compressed steps over others of the same setting

    def of(self, keep: Iterable[str]) -> Misses:
        """Misses of some sources."""
        names = set(keep)
        parts = (self.steps, self.gains, self.pairs)
        return Misses(*(tuple(one for one in each if one.source in names) for each in parts))

    @property
    def sources(self) -> list[str]:
        """Sources of the steps, in order of their first ones."""
        return list(dict.fromkeys(one.source for one in self.steps))


def misses(reports: Sequence[Report], *, stated: bool) -> Misses:
    """Misses of all points that served no fit, with stated or the catalogue's passes."""
    steps: list[Miss] = []
    settings: dict[tuple[str, str], list[tuple[Point, Miss]]] = {}
    for report in reports:
        for point in report.findings.points:
            worlds = point.stated_worlds if stated else point.worlds
            if not worlds:
                continue
            logs = np.log(np.divide(point.measured, worlds))
            compressed = point.method not in {"", DENSE}
            source = work_of(point.source, report.suite.name)
            seconds = logs if point.less_is_better else -logs
            one = Miss(source, seconds, compressed)
            if not point.fitted:
                steps.append(one)
            if point.setting and point.method:
                settings.setdefault((source, point.setting), []).append((point, one))
    gains, pairs = [], []
    for group in settings.values():
        dense = next((one for one in group if one[0].method == DENSE), None)
        own = [one for one in group if one[0].method != DENSE and not one[0].fitted]
        gains += [_over(one, dense) for one in own if dense]
        pairs += [_over(one, other) for one, other in combinations(own, 2)]
    return Misses(tuple(steps), tuple(gains), tuple(pairs))


def _over(one: tuple[Point, Miss], other: tuple[Point, Miss]) -> Miss:
    (point, miss), (reference, known) = one, other
    gain = math.log(reference.measured / point.measured)
    return Miss(
        miss.source, miss.logs - known.logs, measured=gain if point.less_is_better else -gain
    )


def widths(catalogue: Misses, stated: Misses) -> Widths:
    """Widths from all these."""
    compressor = width(stated.pairs) ** math.sqrt(0.5)  # two of them differ
    own = _quantiles(compressor)
    compressed = width([_beside(one, own) for one in stated.gains])
    both = _both(compressed, compressor)
    steps = [
        width([_beside(one, both if one.compressed else 0 * both) for one in each.steps])
        for each in (catalogue, stated)
    ]
    return Widths(catalogue=steps[0], stated=steps[1], compressed=compressed, compressor=compressor)


def width(found: Sequence[Miss]) -> float:
    """Least factor f with which 80 % of the misses, each source of equal weight, lie within the
    middle 80 % of the worlds multiplied by log-even factors of width f; 1 without misses."""
    if not found:
        return 1.0
    counts = Counter(one.source for one in found)
    weights = np.array([1 / len(counts) / counts[one.source] for one in found])
    logs = np.array([one.logs for one in found])
    low, high = 0.0, _WIDEST
    while high - low > 1e-3:
        middle = (low + high) / 2
        inside = weights[_within(places(logs, math.exp(middle)))].sum() >= _SHARE - 1e-9
        low, high = (low, middle) if inside else (middle, high)
    return math.exp(high)


def places(logs: Values, factor: float) -> Values:
    """Share of worlds, with factors of this width, below each measurement `[misses]`."""
    below = np.clip(0.5 + (0.5 - _EDGE) * logs / max(math.log(factor), 1e-9), 0, 1)
    found: Values = below.mean(axis=-1)
    return found


def _within(found: Values) -> NDArray[np.bool_]:
    return (found >= _EDGE) & (found <= 1 - _EDGE)


def _quantiles(factor: float) -> Values:
    """Even logarithms of factors of this width."""
    shares = (np.arange(_QUANTILES) + 0.5) / _QUANTILES
    return (shares - 0.5) / (0.5 - _EDGE) * math.log(factor)


def _both(compressed: float, compressor: float) -> Values:
    """The same of a product of two."""
    each = np.sort(np.add.outer(_quantiles(compressed), _quantiles(compressor)).ravel())
    return each[_QUANTILES // 2 :: _QUANTILES]


def _beside(miss: Miss, drawn: Values) -> Miss:
    logs = np.subtract.outer(miss.logs, drawn).ravel()
    return Miss(miss.source, logs, miss.compressed, miss.measured)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A source, predicted with widths from the others."""

    source: str
    steps: int
    error: float  # median absolute error of the estimates of steps
    moved: float  # the same with predictions moved by the others' median miss
    steps_held: float  # share of the steps in their 80 % ranges
    gains: int
    gains_held: float
    pays: tuple[tuple[float, bool], ...]
    """P(faster than dense) and whether it paid, for measured gains beyond a tie."""


def brier(pays: Sequence[tuple[float, bool]]) -> float:
    """Mean squared difference of probabilities from 0 or 1; 0 without any."""
    return statistics.fmean((said - did) ** 2 for said, did in pays) if pays else 0.0


def base_rate(pays: Sequence[tuple[float, bool]]) -> float:
    """Brier score of always saying the share that pays, unknown beforehand."""
    share = statistics.fmean(did for _, did in pays) if pays else 0.0
    return share * (1 - share)


def reliability(pays: Sequence[tuple[float, bool]]) -> Iterator[tuple[float, float, int, float]]:
    """Range of probabilities, their number, and the share that paid."""
    ends = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)
    for low, high in pairwise(ends):
        own = [did for said, did in pays if low <= said < high]
        if own:
            yield low, high, len(own), statistics.fmean(own)


_LAST: deque[tuple[list[Report], dict[str, list[LeftOut]]]] = deque(maxlen=1)


def left_out(reports: Sequence[Report]) -> dict[str, list[LeftOut]]:
    """Sources by kind of passes, with the catalogue's widths without them."""
    for known, found in _LAST:
        if len(known) == len(reports) and all(map(operator.is_, known, reports)):
            return found
    found = {}
    for kind, stated in (("catalogue alone", False), ("own passes stated", True)):
        own = misses(reports, stated=stated)
        if own.steps:
            found[kind] = [_left_out(own, name, stated=stated) for name in own.sources]
    _LAST.append((list(reports), found))
    return found


def _left_out(found: Misses, source: str, *, stated: bool) -> LeftOut:
    own = found.of([source])
    others = found.of(set(found.sources) - {source})
    known = shipped().without(source)
    both = _both(known.compressed, known.compressor)
    factor = known.stated if stated else known.catalogue
    steps = np.array([_beside(one, both if one.compressed else 0 * both).logs for one in own.steps])
    missed = [float(np.median(one.logs)) for one in own.steps]
    by = [
        statistics.median(float(np.median(one.logs)) for one in others.of([name]).steps)
        for name in others.sources
    ]
    shift = statistics.median(by) if by else 0.0
    compressor = _quantiles(known.compressor)
    gains = np.array([_beside(one, compressor).logs for one in own.gains]).reshape(
        -1, _QUANTILES * len(own.steps[0].logs)
    )
    drawn = np.array([one.measured for one in own.gains])[:, None] + gains
    said = places(drawn, known.compressed)
    return LeftOut(
        source=source,
        steps=len(own.steps),
        error=statistics.median(abs(math.exp(-each) - 1) for each in missed),
        moved=statistics.median(abs(math.exp(shift - each) - 1) for each in missed),
        steps_held=float(_within(places(steps, factor)).mean()),
        gains=len(gains),
        gains_held=float(_within(places(gains, known.compressed)).mean()) if len(gains) else 0.0,
        pays=tuple(
            (as_probability(p), one.measured > 0)
            for p, one in zip(said, own.gains, strict=True)
            if abs(math.exp(one.measured) - 1) >= TIE
        ),
    )


def fault(reports: Sequence[Report]) -> str:
    """Fault of the file or of the steps' coverage, after a run of every suite; else empty."""
    if not set(SUITES) <= {report.suite.name for report in reports}:
        return ""
    now = widths(*(misses(reports, stated=stated) for stated in (False, True)))
    pairs = [(getattr(now, name), getattr(shipped().widths, name)) for name in Widths.model_fields]
    if any(abs(math.log(one / other)) > math.log(CLOSE) for one, other in pairs):
        return f"{FILE.name} is of other predictions: {COMMAND}"
    for kind, found in left_out(reports).items():
        held = statistics.fmean(one.steps_held for one in found)
        if not LEAST <= held <= MOST:
            return f"{kind}: ranges hold {held:.0%} of the steps, not {LEAST:.0%} to {MOST:.0%}"
    return ""
