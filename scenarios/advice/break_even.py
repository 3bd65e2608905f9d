"""The rate of the network up to which a method pays.

Uncompressed training and the method are simulated over rates, from slow to fast, and where they
change places, a bisection finds the rate at which both take the same time as stated. The drawn
worlds at half and at twice that rate give its range: in each of them the method's gain is taken as
a line over the logarithm of the rate. The rate that is given is where the printed iterations, which
are medians over the worlds, are the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from gcsim.scenarios.advice.engine import Engine
from gcsim.scenarios.findings import FASTEST, SLOWEST, BreakEven
from gcsim.scenarios.result import HIGH, LOW, Row
from gcsim.scenarios.scenario import Scenario

_STEP = 8.0
"""From one rate to the next, before the bisection."""
CLOSE = 2e-3
"""Relative difference of the two iterations at which a bisection ends."""
_CLOSER = 1e-2
"""The same of the printed iterations."""
_MOST = 14
_NEAR = 2.0
"""Times slower and faster than the rate that was found, where the worlds are asked."""
_CENTRED = 3
"""Times at most, until the median of the worlds is between these."""


def rate_key(scenario: Scenario) -> str | None:
    """The setting that is the rate between workers; None where it is no single number."""
    cluster = scenario.cluster
    if cluster.workers == 1:
        return None
    one = cluster.network if cluster.nodes > 1 else cluster.intra_node
    name = "network" if cluster.nodes > 1 else "intra_node"
    if one.shared or one.up is not None or one.timed or cluster.nics:
        return None
    return f"cluster.{name}.bandwidth"


def at_rate(key: str, rate: float) -> str:
    """Setting of the rate, in the form of `--set`."""
    return f"{key}={rate:.6g} bit/s"


def break_even(
    engine: Engine, labels: Sequence[str], ranged: Sequence[str], progress: Callable[[], None]
) -> list[BreakEven]:
    """Break-evens of some methods; for those in `ranged` with the drawn worlds' range.

    Empty where the network's rate is no single number, or nothing is dense. `progress` is told
    when rates have been looked through, and after each method.
    """
    scenario = engine.scenario
    key, number = rate_key(scenario), scenario.dense
    if key is None or number is None or not labels:
        return []
    dense = scenario.compressors[number].label

    def rows(rate: float, names: Sequence[str], draws: bool = False) -> dict[str, Row]:
        found = engine.rows([at_rate(key, rate)], names, draws=draws)
        return found or {}

    def gain(label: str, rate: float) -> float:
        return _gain(rows(rate, [label])[label])

    count = round(math.log(FASTEST / SLOWEST, _STEP))
    rates = [SLOWEST * (FASTEST / SLOWEST) ** (place / count) for place in range(count + 1)]
    spans = _spans(rates, labels, rows)
    if alike := [label for label, span in spans.items() if isinstance(span, bool)]:
        spans |= _spans(rates, alike, partial(rows, draws=True))
    progress()
    found = []
    for label, span in spans.items():
        if isinstance(span, bool):
            found.append(BreakEven(label=label, rate=None, pays=span))
        else:
            rate = _crossing(partial(gain, label), span)
            one = BreakEven(label=label, rate=rate, pays=True)
            one = _with_worlds(one, dense, rows)
            found.append(one if label in ranged else replace(one, low=None, high=None))
        progress()
    return found


_Ends = tuple[tuple[float, float], tuple[float, float]]
"""Two rates, the slower first, each with what is gained there."""


def _spans(
    rates: Sequence[float],
    labels: Sequence[str],
    rows: Callable[[float, Sequence[str]], dict[str, Row]],
) -> dict[str, _Ends | bool]:
    """Find for each method the fastest two neighbouring rates between which it stops being faster;
    where there are none, whether it is faster at any. Empty where a rate is refused."""
    found: dict[str, _Ends | bool] = {}
    faster = dict.fromkeys(labels, False)
    before: dict[str, float] = {}
    for place in reversed(range(len(rates))):
        left = [label for label in labels if label not in found]
        if not left:
            break
        of = rows(rates[place], left)
        if not of:
            return {}
        gains = {label: _gain(of[label]) for label in left}
        for label, now in gains.items():
            faster[label] |= now > 0
            if now > 0 >= before.get(label, now):
                found[label] = (rates[place], now), (rates[place + 1], before[label])
        before = gains
    return {label: found.get(label, faster[label]) for label in labels}


def _gain(row: Row) -> float:
    """Above 0 where the method is faster."""
    return math.log(row.speedup_vs_dense or 1.0)


def _crossing(gain: Callable[[float], float], span: _Ends, close: float = CLOSE) -> float:
    """Find the rate at which a gain falls below 0, in a span of rates: a bisection whose next point
    is where a line between the ends would cross, unless one end has stood still (Illinois)."""
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
    one: BreakEven, dense: str, rows: Callable[[float, Sequence[str], bool], dict[str, Row]]
) -> BreakEven:
    """Add the range that the worlds near the rate give, and centre the rate."""
    label = one.label

    def printed_gain(rate: float) -> float:
        return _gain(rows(rate, [label], True)[label])

    for _ in range(_CENTRED):
        assert one.rate is not None  # noqa: S101
        before, sides, ends = one.rate, [], []
        for factor in (1 / _NEAR, _NEAR):
            of = rows(before * factor, [label], True)
            if not of or not of[dense].iteration_draws_s:
                return one
            times = [np.array(of[name].iteration_draws_s) for name in (dense, label)]
            sides.append(np.log(times[0] / times[1]))
            ends.append((before * factor, _gain(of[label])))
        slow, fast = sides
        falls = np.maximum(slow - fast, 1e-9)
        places = np.clip((slow + fast) / (2 * falls), -4, 4) * 2 * math.log(_NEAR)
        found = np.exp(np.percentile(places, (LOW, 50, HIGH))) * before
        low, middle, high = map(float, np.clip(found, SLOWEST, FASTEST))
        one = replace(one, rate=middle, low=low, high=high)
        if 1 / _NEAR < middle / before < _NEAR:
            if ends[0][1] > 0 > ends[1][1]:
                rate = _crossing(printed_gain, (ends[0], ends[1]), _CLOSER)
                one = replace(one, rate=min(max(rate, low), high))
            break
    return one
