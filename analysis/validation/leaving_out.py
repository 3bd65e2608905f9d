"""Leave-one-source-out test of steps and gains: coverage of ranges, P(faster than dense).

Every training step is predicted in drawn worlds with the catalogue alone, and again with its passes
stated. Factors on whole steps (`scenarios/uncertainty/discrepancy.py`) widen these ranges. Their
widths resemble split conformal prediction (Dunn, Wasserman and Ramdas, "Distribution-free
prediction sets for two-layer hierarchical models", JASA 2023): a width is the least that puts 80 %
of the weight of all other sources, equal for each, inside the middle 80 %. In this order:

- for a compressor, from ratios of two methods' steps, with stated passes;
- for all compressors, from gains over dense, with stated passes: too few sources have dense and
  compressed steps of known devices;
- for all methods, from steps: with stated passes, and with the catalogue's.

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
LEAST, MOST = 0.7, 0.9  # required coverage of steps, averaged over sources
CLOSE = 1.05  # ratio of widths up to which the file counts as current
COMMAND = "python -m tests.benchmarks.discrepancy"
_SHARE = 0.8
_EDGE = (1 - _SHARE) / 2
_WIDEST = 5.0
_QUANTILES = 16
_WORK = (re.compile(r"github\.com/([\w.-]+/[\w.-]+)"), re.compile(r"([\w-]+/[\w.-]+) ?@"))


def work_of(citation: str, otherwise: str) -> str:
    """Return the repository in a citation, or `otherwise`."""
    found = (pattern.search(citation) for pattern in _WORK)
    return next((match[1] for match in found if match), otherwise)


def with_factors(point: Point, suite: str, kind: str) -> tuple[float, ...]:
    """Return a method's seconds by world with the catalogue alone and other sources' factors."""
    known = shipped().without(work_of(point.source, suite))
    found = discrepancy.inputs(known, stated=False, kinds=[kind])
    by = discrepancy.factors(draw(found, len(point.worlds), 0), found, kind)
    seconds = np.array(point.worlds) ** (1 if point.less_is_better else -1)
    return tuple((seconds * by).tolist())


@dataclass(frozen=True, slots=True, eq=False)
class Miss:
    """Deviation of a measurement from its prediction, in drawn worlds."""

    source: str
    logs: Values
    """Log of measured over predicted seconds by world, of a method or of its ratio to another."""
    compressed: bool = False  # whether the step has compression
    measured: float = 0.0  # logarithm of the measured gain


@dataclass(frozen=True, slots=True, eq=False)
class Misses:
    """Misses with one kind of passes (stated, or from the catalogue)."""

    steps: tuple[Miss, ...]
    gains: tuple[Miss, ...]  # compressed steps over dense ones
    pairs: tuple[Miss, ...]  # compressed steps over others of the same setting

    def of(self, keep: Iterable[str]) -> Misses:
        """Return the misses of these sources."""
        names = set(keep)
        parts = (self.steps, self.gains, self.pairs)
        return Misses(*(tuple(one for one in each if one.source in names) for each in parts))

    @property
    def sources(self) -> list[str]:
        """Sources of the steps, in order of first occurrence."""
        return list(dict.fromkeys(one.source for one in self.steps))


def misses(reports: Sequence[Report], *, stated: bool) -> Misses:
    """Return the misses of all points not used in fits, with stated or the catalogue's passes."""
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
        gains += [_ratio(one, dense) for one in own if dense]
        pairs += [_ratio(one, other) for one, other in combinations(own, 2)]
    return Misses(tuple(steps), tuple(gains), tuple(pairs))


def _ratio(one: tuple[Point, Miss], other: tuple[Point, Miss]) -> Miss:
    (point, miss), (reference, known) = one, other
    gain = math.log(reference.measured / point.measured)
    return Miss(
        miss.source, miss.logs - known.logs, measured=gain if point.less_is_better else -gain
    )


def widths(catalogue: Misses, stated: Misses) -> Widths:
    """Return the widths that these misses require."""
    compressor = width(stated.pairs) ** math.sqrt(0.5)  # a ratio of two methods has two
    own = _quantiles(compressor)
    compressed = width([_times(one, own) for one in stated.gains])
    both = _both(compressed, compressor)
    steps = [
        width([_times(one, both if one.compressed else 0 * both) for one in each.steps])
        for each in (catalogue, stated)
    ]
    return Widths(catalogue=steps[0], stated=steps[1], compressed=compressed, compressor=compressor)


def width(found: Sequence[Miss]) -> float:
    """Return the least factor f for which 80 % of the misses, each source of equal weight, are
    within the middle 80 % of the worlds times log-uniform factors of width f; 1 without misses."""
    if not found:
        return 1.0
    counts = Counter(one.source for one in found)
    weights = np.array([1 / len(counts) / counts[one.source] for one in found])
    logs = np.array([one.logs for one in found])
    low, high = 0.0, _WIDEST
    while high - low > 1e-3:
        middle = (low + high) / 2
        inside = weights[_in_middle(places(logs, math.exp(middle)))].sum() >= _SHARE - 1e-9
        low, high = (low, middle) if inside else (middle, high)
    return math.exp(high)


def places(logs: Values, factor: float) -> Values:
    """Return, per miss, the share of worlds times factors of this width below the measurement."""
    below = np.clip(0.5 + (0.5 - _EDGE) * logs / max(math.log(factor), 1e-9), 0, 1)
    found: Values = below.mean(axis=-1)
    return found


def _in_middle(found: Values) -> NDArray[np.bool_]:
    return (found >= _EDGE) & (found <= 1 - _EDGE)


def _quantiles(factor: float) -> Values:
    """Return evenly spaced logarithms of factors of this width."""
    shares = (np.arange(_QUANTILES) + 0.5) / _QUANTILES
    return (shares - 0.5) / (0.5 - _EDGE) * math.log(factor)


def _both(compressed: float, compressor: float) -> Values:
    """Return evenly spaced quantiles of the logarithm of a product of two such factors."""
    each = np.sort(np.add.outer(_quantiles(compressed), _quantiles(compressor)).ravel())
    return each[_QUANTILES // 2 :: _QUANTILES]


def _times(miss: Miss, drawn: Values) -> Miss:
    logs = np.subtract.outer(miss.logs, drawn).ravel()
    return Miss(miss.source, logs, miss.compressed, miss.measured)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A source, predicted with widths from the other sources."""

    source: str
    steps: int
    error: float  # median absolute error of the predicted steps
    moved: float  # the same after correction by the median miss of the other sources
    steps_held: float  # share of the steps within their 80 % ranges
    gains: int
    gains_held: float
    pays: tuple[tuple[float, bool], ...]
    """P(faster than dense) and whether it was faster, for measured gains beyond a tie."""


def brier(pays: Sequence[tuple[float, bool]]) -> float:
    """Return the mean squared difference of probabilities and outcomes; 0 without any."""
    return statistics.fmean((said - did) ** 2 for said, did in pays) if pays else 0.0


def base_rate(pays: Sequence[tuple[float, bool]]) -> float:
    """Return the Brier score of always predicting the share that pays, unknown beforehand."""
    share = statistics.fmean(did for _, did in pays) if pays else 0.0
    return share * (1 - share)


def reliability(pays: Sequence[tuple[float, bool]]) -> Iterator[tuple[float, float, int, float]]:
    """Yield range of probabilities, number of predictions in it, and share that paid."""
    ends = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)
    for low, high in pairwise(ends):
        own = [did for said, did in pays if low <= said < high]
        if own:
            yield low, high, len(own), statistics.fmean(own)


_LAST: deque[tuple[list[Report], dict[str, list[LeftOut]]]] = deque(maxlen=1)


def left_out(reports: Sequence[Report]) -> dict[str, list[LeftOut]]:
    """Return the sources by kind of passes, each predicted with widths from the others."""
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
    steps = np.array([_times(one, both if one.compressed else 0 * both).logs for one in own.steps])
    missed = [float(np.median(one.logs)) for one in own.steps]
    by = [
        statistics.median(float(np.median(one.logs)) for one in others.of([name]).steps)
        for name in others.sources
    ]
    shift = statistics.median(by) if by else 0.0
    compressor = _quantiles(known.compressor)
    gains = np.array([_times(one, compressor).logs for one in own.gains]).reshape(
        -1, _QUANTILES * len(own.steps[0].logs)
    )
    drawn = np.array([one.measured for one in own.gains])[:, None] + gains
    said = places(drawn, known.compressed)
    return LeftOut(
        source=source,
        steps=len(own.steps),
        error=statistics.median(abs(math.exp(-each) - 1) for each in missed),
        moved=statistics.median(abs(math.exp(shift - each) - 1) for each in missed),
        steps_held=float(_in_middle(places(steps, factor)).mean()),
        gains=len(gains),
        gains_held=float(_in_middle(places(gains, known.compressed)).mean()) if len(gains) else 0.0,
        pays=tuple(
            (as_probability(p), one.measured > 0)
            for p, one in zip(said, own.gains, strict=True)
            if abs(math.exp(one.measured) - 1) >= TIE
        ),
    )


def fault(reports: Sequence[Report]) -> str:
    """Return the fault of the file or of the coverage after a run of every suite, else ""."""
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
