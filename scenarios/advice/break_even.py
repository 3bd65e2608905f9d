"""Network rate up to which a method pays.

Uncompressed training and the method are simulated over rates, from slow to fast; where they change
places, a bisection finds the rate at which both take the same time as stated. (Where they change
places at no rate, the drawn worlds at the rate of the closest times say whether the printed ones
do.) The drawn worlds at
three rates around it, powers of four apart, give its range: in each, the gain is linear in the
rate's logarithm between two of them. The rate itself is where the printed iterations (medians over
the worlds) are equal; the worlds' addition to the gain as stated is linear likewise, where that
leaves no doubt.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise

import numpy as np

from gcsim.scenarios.advice.engine import Engine
from gcsim.scenarios.findings import FASTEST, SLOWEST, BreakEven
from gcsim.scenarios.result import Row
from gcsim.scenarios.scenario import Scenario
from gcsim.scenarios.uncertainty.ranges import interval

_STEP = 8.0  # factor between rates, before the bisection
CLOSE = 2e-3
"""Relative difference of both iterations that ends a bisection."""
_CLOSER = 1e-2  # the same for printed iterations
_SURELY = 0.5  # share of that within which a line does for the worlds at a third rate
_MOST = 14
_APART = 4.0  # factor between rates with drawn worlds, common to all methods
_FAR = 3  # steps beyond these rates to which a world's line is extended
_FLAT = 1e-9
_CLEAR = math.log(2)  # gain as stated of which the worlds' median is surely on the same side
_CENTRED = 4  # most attempts at centring the rates on the printed change


def rate_key(scenario: Scenario) -> str | None:
    """Setting of the rate between workers; None where it is no single number."""
    cluster = scenario.cluster
    if cluster.workers == 1:
        return None
    one = cluster.network if cluster.nodes > 1 else cluster.intra_node
    name = "network" if cluster.nodes > 1 else "intra_node"
    if one.shared or one.up is not None or one.timed or cluster.nics or cluster.groups:
        return None
    return f"cluster.{name}.bandwidth"


def at_rate(key: str, rate: float) -> str:
    """Setting of the rate as in `--set`."""
    return f"{key}={rate:.6g} bit/s"


def break_even(
    engine: Engine, labels: Sequence[str], ranged: Sequence[str], progress: Callable[[], None]
) -> list[BreakEven]:
    """Break-evens of methods, with the drawn worlds' range for those in `ranged`. Empty if the
    network's rate is no single number, or nothing is dense. `progress` is called after the scan of
    rates and after each method."""
    scenario = engine.scenario
    key, number = rate_key(scenario), scenario.dense
    if key is None or number is None or not labels:
        return []
    dense = scenario.compressors[number].label

    def rows(rate: float, names: Sequence[str], draws: bool = False) -> dict[str, Row]:
        found = engine.rows([at_rate(key, rate)], names, draws=draws)
        return found or {}

    stated: dict[float, dict[str, float]] = {}

    def gains(rate: float, names: Sequence[str]) -> dict[str, float]:
        of = rows(rate, names)
        stated[rate] = {label: _gain(of[label]) for label in names if of}
        return stated[rate]

    def drawn_gains(rate: float, names: Sequence[str]) -> dict[str, float]:
        close = [label for label in names if abs(stated[rate][label]) < _CLEAR]
        of = rows(rate, close, draws=True) if close else {}
        return {label: _gain(of[label]) if label in of else stated[rate][label] for label in names}

    def gain(label: str, rate: float, draws: bool = False) -> float:
        return _gain(rows(rate, [label], draws)[label])

    count = round(math.log(FASTEST / SLOWEST, _STEP))
    rates = [SLOWEST * (FASTEST / SLOWEST) ** (place / count) for place in range(count + 1)]
    spans = _spans(rates, labels, gains)
    alike = [label for label, span in spans.items() if isinstance(span, bool)]
    closest = {label: min(rates, key=lambda rate: abs(stated[rate][label])) for label in alike}
    turned = [
        label
        for label, rate in closest.items()
        if (drawn_gains(rate, [label])[label] > 0) is not (stated[rate][label] > 0)
    ]
    spans |= _spans(rates, turned, drawn_gains)
    crossing = [label for label, span in spans.items() if not isinstance(span, bool)]
    progress()
    found = []
    worlds: dict[float, dict[str, Row]] = {}

    def near(rate: float) -> dict[str, Row]:
        """Methods with a break-even in the drawn worlds at a rate."""
        if rate not in worlds:
            worlds[rate] = rows(rate, crossing, draws=True)
        return worlds[rate]

    for label, span in spans.items():
        if isinstance(span, bool):
            found.append(BreakEven(label=label, rate=None, pays=span))
        else:
            rate = _crossing(partial(gain, label), span)
            one = BreakEven(label=label, rate=rate, pays=True)
            one = _with_worlds(one, dense, near, partial(gain, label))
            found.append(one if label in ranged else replace(one, low=None, high=None))
        progress()
    return found


_Ends = tuple[tuple[float, float], tuple[float, float]]
"""Two rates, the slower first, with the gain at each."""


def _spans(
    rates: Sequence[float],
    labels: Sequence[str],
    gains_at: Callable[[float, Sequence[str]], dict[str, float]],
) -> dict[str, _Ends | bool]:
    """Fastest two neighbouring rates between which each method stops being faster, else whether it
    is faster at any; empty if a rate is refused."""
    found: dict[str, _Ends | bool] = {}
    faster = dict.fromkeys(labels, False)
    before: dict[str, float] = {}
    for place in reversed(range(len(rates))):
        left = [label for label in labels if label not in found]
        if not left:
            break
        gains = gains_at(rates[place], left)
        if not gains:
            return {}
        for label, now in gains.items():
            faster[label] |= now > 0
            if now > 0 >= before.get(label, now):
                found[label] = (rates[place], now), (rates[place + 1], before[label])
        before = gains
    return {label: found.get(label, faster[label]) for label in labels}


def _gain(row: Row) -> float:
    """Gain of the method, positive where it is faster."""
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
    gain: Callable[[float, bool], float],
) -> BreakEven:
    """Add the range of the worlds near the rate, and centre the rate."""
    label = one.label
    assert one.rate is not None  # noqa: S101

    step = math.floor(math.log(one.rate / SLOWEST, _APART))
    for _ in range(_CENTRED):
        rates = [SLOWEST * _APART ** (step + more) for more in (-1, 0, 1)]
        found = [near(rate) for rate in rates]
        if not all(of and of[dense].iteration_draws_s for of in found):
            return one
        ends = [(rate, _gain(of[label])) for rate, of in zip(rates, found, strict=True)]
        span = next((pair for pair in pairwise(ends) if pair[0][1] > 0 >= pair[1][1]), None)
        if span is not None:
            break
        step += 1 if ends[-1][1] > 0 else -1
    slow, middle, fast = (
        np.log(np.divide(of[dense].iteration_draws_s, of[label].iteration_draws_s)) for of in found
    )
    places = np.where(
        middle > 0,
        1 + middle / np.maximum(middle - fast, _FLAT),
        slow / np.maximum(slow - middle, _FLAT),
    )
    places = np.clip(places, -_FAR, 2 + _FAR)
    percentiles = np.array([*interval(places), np.median(places)])
    low, high, rate = map(float, np.clip(rates[0] * _APART**percentiles, SLOWEST, FASTEST))
    if span is not None:
        at = [place for place, _ in span]
        of_ends = [of[label] for place, of in zip(rates, found, strict=True) if place in at]
        stated = [row.speedup_as_stated or row.speedup_vs_dense or 1.0 for row in of_ends]
        more = [_gain(row) - math.log(one) for row, one in zip(of_ends, stated, strict=True)]

        def printed_gain(rate: float) -> float:
            about = gain(rate, False) + float(np.interp(math.log(rate), np.log(at), more))
            return about if abs(about) < _SURELY * _CLOSER else gain(rate, True)

        rate = min(max(_crossing(printed_gain, span, _CLOSER), low), high)
    return replace(one, rate=rate, low=low, high=high)
