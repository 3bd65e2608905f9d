"""Rate of the slowest link up to which a method pays, or from which on.

Uncompressed training and the method are simulated over rates, from slow to fast. Where their order
changes, a bisection finds the rate at which both take the same stated time. (If it changes at no
rate, the drawn worlds at the rate with the closest times decide whether the printed order does.)
The range comes from the drawn worlds at three rates around that one, powers of four apart, and at
more if needed: in each world the gain is interpolated linearly in the logarithm of the rate. The
break-even itself is the rate with equal printed iterations (medians over the worlds): stated gain
and the worlds' difference from it are interpolated likewise, and worlds are drawn at each rate that
is found until it no longer moves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from gcsim.scenarios.advice.engine import Engine
from gcsim.scenarios.advice.slowest_link import slowest_link
from gcsim.scenarios.findings import FASTEST, SLOWEST, BreakEven
from gcsim.scenarios.result import HIGH, LOW, Row
from gcsim.scenarios.uncertainty.ranges import interval

_STEP = 8.0  # factor between rates, before the bisection
CLOSE = 2e-3
"""Relative difference of both iterations that ends a bisection."""
_ROUGH = 0.1  # the same where worlds are drawn around the rate
_CLOSER = 1e-2  # the same for printed iterations
_CORRECTED = 4  # most rates at which the worlds correct the printed one
_MOST = 14
_APART = 4.0  # factor between rates with drawn worlds, common to all methods
_FAR = 3  # steps beyond these rates to which a world's line is extended
_FLAT = 1e-9
_CLEAR = math.log(2)  # stated gain from which the worlds' median surely has the same sign
_WIDENED = 4  # most attempts to find rates that enclose the range and the printed rate


def no_break_even(engine: Engine) -> str:
    """Reason for no break-even, in words; empty if there is one."""
    if engine.scenario.cluster.groups:
        return "the groups of nodes differ"  # and each rate would take seconds
    link = slowest_link(engine.question)
    return "" if link is None else link.no_one_rate


def break_even(
    engine: Engine, labels: Sequence[str], ranged: Sequence[str], progress: Callable[[], None]
) -> list[BreakEven]:
    """Break-evens of methods, with the drawn worlds' range for those in `ranged`. Empty if the
    slowest link's rate is no single number, nodes are unlike, or nothing is dense. `progress` is
    called after the scan of rates and after each method."""
    scenario, link = engine.scenario, slowest_link(engine.question)
    number = scenario.dense
    if link is None or no_break_even(engine) or number is None or not labels:
        return []
    dense = scenario.compressors[number].label

    curves = {label: _Curve() for label in labels}

    def rows(rate: float, names: Sequence[str], draws: bool = False) -> dict[str, Row]:
        found = engine.rows(link.at(rate), names, draws=draws) or {}
        for label in names if found else ():
            curves[label].add(rate, found[label])
        return found

    def gains(rate: float, names: Sequence[str]) -> dict[str, float]:
        of = rows(rate, names)
        return {label: _gain(of[label]) for label in names if of}

    def drawn_gains(rate: float, names: Sequence[str]) -> dict[str, float]:
        stated = {label: curves[label].stated[rate] for label in names}
        close = [label for label in names if abs(stated[label]) < _CLEAR]
        of = rows(rate, close, draws=True) if close else {}
        return stated | {label: _gain(of[label]) for label in close if of}

    def gain(label: str, rate: float, *, draws: bool = False) -> float:
        return _gain(rows(rate, [label], draws)[label])

    count = round(math.log(FASTEST / SLOWEST, _STEP))
    rates = [SLOWEST * (FASTEST / SLOWEST) ** (place / count) for place in range(count + 1)]
    spans = _spans(rates, labels, gains)
    known = sorted({rate for curve in curves.values() for rate in curve.stated})
    turned = []
    for label in [label for label, span in spans.items() if isinstance(span, bool)]:
        stated = curves[label].stated
        rate = min(known, key=lambda rate: abs(stated[rate]))
        if (drawn_gains(rate, [label])[label] > 0) is not (stated[rate] > 0):
            turned.append(label)
    turned += [label for label, span in spans.items() if _rises(span)]
    spans |= _spans(known, turned, drawn_gains)
    crossing = [
        label for label, span in spans.items() if not (isinstance(span, bool) or _rises(span))
    ]
    progress()
    found = []
    worlds = cache(partial(rows, names=crossing, draws=True))
    for label, span in spans.items():
        if isinstance(span, bool):
            found.append(BreakEven(label=label, rate=None, pays=span))
            progress()
            continue
        own, drawn = partial(gain, label), partial(rows, names=[label], draws=True)
        if _rises(span):
            rate = _crossing(partial(gain, label, draws=True), span, _CLOSER)
            one = BreakEven(label=label, rate=rate, pays=True, above=True)
        else:
            about = BreakEven(label=label, rate=_crossing(own, span, _ROUGH), pays=True)
            one = _with_worlds(about, dense, worlds, drawn, curves[label], wide=label in ranged)
            if one is about:
                one = replace(about, rate=_crossing(own, span))
            if label not in ranged:
                one = BreakEven(label=label, rate=one.rate, pays=one.pays)
        found.append(one)
        progress()
    return found


class _Curve:
    """Known stated gains of a method by rate, and the worlds' differences from them."""

    def __init__(self) -> None:
        self.stated: dict[float, float] = {}
        self._added: dict[float, float] = {}

    def add(self, rate: float, row: Row) -> None:
        """Add a row at a rate."""
        self.stated[rate] = math.log(row.speedup_as_stated or row.speedup_vs_dense or 1.0)
        if row.iteration_draws_s:
            self._added[rate] = _gain(row) - self.stated[rate]

    def crossing(self, slow: float, fast: float) -> float:
        """Return the first rate between two others at which the sum of both, interpolated linearly
        in the rate's logarithm, falls below 0."""
        rates = [rate for rate in sorted({*self.stated, *self._added}) if slow <= rate <= fast]
        at = np.log(rates)
        gains = np.zeros(len(rates))
        for known in map(sorted, (self.stated.items(), self._added.items())):
            places, values = np.array(known).T
            gains += np.interp(at, np.log(places), values)
        last = max(1, int(np.argmax(gains < _FLAT)))
        share = gains[last - 1] / max(gains[last - 1] - gains[last], _FLAT)
        return math.exp(at[last - 1] + min(1.0, share) * (at[last] - at[last - 1]))


_Ends = tuple[tuple[float, float], tuple[float, float]]
"""Two rates with the gain at each, above 0 at the first: the slower one, unless the gain rises."""


def _rises(span: _Ends | bool) -> bool:
    return not isinstance(span, bool) and span[0][0] > span[1][0]


def _spans(
    rates: Sequence[float],
    labels: Sequence[str],
    gains_at: Callable[[float, Sequence[str]], dict[str, float]],
) -> dict[str, _Ends | bool]:
    """Fastest two neighbouring rates between which each method stops being faster; where it does
    not, those between which it begins to be; else whether it is faster. Rates below one that is
    refused, for its messages are too long, are left out; empty if all are."""
    found: dict[str, _Ends | bool] = {}
    rising: dict[str, _Ends] = {}
    faster = dict.fromkeys(labels, False)
    before: dict[str, float] = {}
    for place in reversed(range(len(rates))):
        left = [label for label in labels if label not in found]
        if not left:
            break
        gains = gains_at(rates[place], left)
        if not gains:
            break
        for label, now in gains.items():
            faster[label] |= now > 0
            if now > 0 >= before.get(label, now):
                found[label] = (rates[place], now), (rates[place + 1], before[label])
            elif now <= 0 < before.get(label, now):
                rising.setdefault(label, ((rates[place + 1], before[label]), (rates[place], now)))
        before = gains
    return {label: found.get(label, rising.get(label, faster[label])) for label in labels if before}


def _gain(row: Row) -> float:
    """Return the gain of the method, positive if it is faster."""
    return math.log(row.speedup_vs_dense or 1.0)


def _crossing(gain: Callable[[float], float], span: _Ends, close: float = CLOSE) -> float:
    """Rate at which a gain falls below 0, by regula falsi with the Illinois rule."""
    (slow, before), (fast, after) = span
    ends, values = [math.log(slow), math.log(fast)], [before, after]
    moved = -1
    rate = math.sqrt(slow * fast)
    for _ in range(_MOST):
        share = values[0] / (values[0] - values[1])
        place = ends[0] + min(max(share, 0.05), 0.95) * (ends[1] - ends[0])
        rate = float(f"{math.exp(place):.4g}")
        now = gain(rate)
        if abs(now) < close:
            break
        side = int(now <= 0)
        ends[side], values[side] = math.log(rate), now
        if moved == side:
            values[1 - side] /= 2
        moved = side
    return rate


def _with_worlds(
    one: BreakEven,
    dense: str,
    near: Callable[[float], dict[str, Row]],
    drawn: Callable[[float], dict[str, Row]],
    curve: _Curve,
    *,
    wide: bool,
) -> BreakEven:
    """Break-even as printed, with its range over the worlds. They are drawn at three rates around
    the stated one, and at further ones until these hold the printed rate and, if `wide`, the
    range."""
    label = one.label
    assert one.rate is not None  # noqa: S101

    step = round(math.log(one.rate / SLOWEST, _APART))
    steps = [step - 1, step, step + 1]
    for left in reversed(range(_WIDENED)):
        rates = [SLOWEST * _APART**each for each in steps]
        found = [near(rate) for rate in rates]
        if not all(of and of[dense].iteration_draws_s for of in found):
            return one
        ends = [(rate, _gain(of[label])) for rate, of in zip(rates, found, strict=True)]
        span = next((pair for pair in pairwise(ends) if pair[0][1] > 0 >= pair[1][1]), None)
        draws = [(of[dense].iteration_draws_s, of[label].iteration_draws_s) for of in found]
        places = _places(np.array([np.log(np.divide(*each)) for each in draws]))
        percentiles = np.array([*interval(places), np.median(places)])
        first, last, _ = percentiles
        slower = (wide and first < 0) or (span is None and ends[-1][1] <= 0)
        faster = (wide and last > len(steps) - 1) or (span is None and ends[-1][1] > 0)
        if not left or not (slower or faster):
            break
        if slower and rates[0] > SLOWEST:
            steps.insert(0, steps[0] - 1)
        elif faster and rates[-1] * _APART <= FASTEST:
            steps.append(steps[-1] + 1)
        else:
            break
    low, high, rate = map(float, np.clip(rates[0] * _APART**percentiles, SLOWEST, FASTEST))
    # lines reach no farther; a mean of several worlds' places hardly ever is one of these ends
    least, most = np.percentile(places, (LOW, HIGH), method="closest_observation")
    low = low if least > -_FAR else SLOWEST
    high = high if most < len(rates) - 1 + _FAR else FASTEST
    if span is not None:
        for _ in range(_CORRECTED):
            rate = float(f"{curve.crossing(*(place for place, _ in span)):.4g}")
            if abs(_gain(drawn(rate)[label])) < _CLOSER:
                break
        rate = min(max(rate, low), high)
    one = replace(one, low=low, high=high, low_open=low <= SLOWEST, high_open=high >= FASTEST)
    if not SLOWEST < rate < FASTEST:
        return replace(one, rate=None, pays=rate >= FASTEST)
    return replace(one, rate=rate)


def _places(gains: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the last place, by world, at which the gain `[rates, worlds]` is above 0, linear
    between two rates and extrapolated from the nearest two."""
    count = len(gains)
    last = count - 1 - np.argmax(gains[::-1] > 0, axis=0)
    last = np.where((gains > 0).any(axis=0), last, 0)
    left = np.minimum(last, count - 2)
    before, after = (np.take_along_axis(gains, n[None], axis=0)[0] for n in (left, left + 1))
    falls = np.maximum(before - after, _FLAT)
    places = np.where(after > 0, left + 1 + after / falls, left + before / falls)
    found: NDArray[np.float64] = np.clip(places, -_FAR, count - 1 + _FAR)
    return found
