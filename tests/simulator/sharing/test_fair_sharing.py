"""Do flows that share links run as a simulation of every single flow says?

Links with one flow class each have virtual times, networks have levels found by a compiled loop;
the oracle (`fluid_oracle.py`) raises all rates together. Comparisons are `==`.
"""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import accumulate
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gcsim.errors import InternalError
from gcsim.simulator.network.rate_trace import RateTrace
from gcsim.simulator.sharing import fair as fluid_levels
from gcsim.simulator.sharing.fair import Crossings, share_fairly
from gcsim.simulator.sharing.model import Capacity, FlowClass, Supply
from tests.simulator.sharing.fluid_oracle import Flow, rates_of, simulate
from tests.simulator.world import PS

RATES = st.sampled_from([Fraction(n * 10**12) / d for n in (1, 2, 3) for d in (1, 7, 10)])


@st.composite
def traces(draw: st.DrawFn) -> RateTrace:
    spans = draw(st.lists(st.integers(1, 30), min_size=1, max_size=4))
    rates = draw(st.lists(RATES | st.just(Fraction(0)), min_size=len(spans), max_size=len(spans)))
    rates[-1] = draw(RATES)
    times = [time * PS for time in accumulate(spans, initial=0)]
    back = draw(st.sampled_from(times[:-1]))
    hold = draw(st.booleans())
    return RateTrace(
        times=tuple(times[:-1]),
        rates=tuple(rates),
        duration=times[-1],
        after="hold" if hold else "repeat",
        back_to=Fraction(0) if hold else back,
    )


def ends_of(
    starts: Sequence[int], flows: Sequence[FlowClass], capacities: Mapping[Any, Capacity]
) -> list[int]:
    """Flow 0's end starts the last flow of all, if its start is negative, that much later."""
    ends = [-1] * len(flows)

    def ended(place: int, time: int) -> Mapping[int, int]:
        ends[place] = time
        return {len(flows) - 1: time - starts[-1]} if place == 0 and starts[-1] < 0 else {}

    share_fairly(
        {place: start for place, start in enumerate(starts) if start >= 0}, flows, capacities, ended
    )
    return ends


def simulated(
    starts: Sequence[int], flows: Sequence[FlowClass], capacities: Mapping[Any, Capacity]
) -> list[int]:
    ends = [-1] * len(flows)

    def single(place: int, start: int) -> Flow:
        crosses = [link for link, count in flows[place].loads.items() for _ in range(count)]

        def done(time: int) -> list[Flow]:
            ends[place] = time
            last = len(flows) - 1
            return [single(last, time - starts[-1])] if place == 0 and starts[-1] < 0 else []

        return Flow(start, Fraction(flows[place].nbytes), crosses, done)

    simulate(
        [single(place, start) for place, start in enumerate(starts) if start >= 0], dict(capacities)
    )
    return ends


@st.composite
def networks(
    draw: st.DrawFn, most: int = 3
) -> tuple[list[int], list[FlowClass], dict[str, Capacity]]:
    names = "abcde"[: draw(st.integers(1, 5))]
    capacity: st.SearchStrategy[Capacity] = RATES | RATES | traces()
    capacities = {name: draw(capacity) for name in names}
    load = st.dictionaries(
        st.sampled_from(names), st.sampled_from([1, 1, 2]), min_size=1, max_size=most
    )
    size = st.integers(0, 40) | st.just(12) | st.fractions(0, 30, max_denominator=7)
    flows = [FlowClass(draw(size), draw(load)) for _ in range(draw(st.integers(1, 9)))]
    start = st.just(0) | st.integers(0, 60)
    starts = [draw(start) for _ in flows]
    if len(flows) > 1 and draw(st.booleans()):
        starts[-1] = -draw(st.integers(1, 20))
    return starts, flows, capacities


@given(network=networks())
def test_flows_over_several_links_are_the_simulation(
    network: tuple[list[int], list[FlowClass], dict[str, Capacity]],
) -> None:
    assert ends_of(*network) == simulated(*network)


@given(network=networks(most=1))
def test_flows_over_one_link_each_are_the_simulation(
    network: tuple[list[int], list[FlowClass], dict[str, Capacity]],
) -> None:
    assert ends_of(*network) == simulated(*network)


def loaded(count: int) -> st.SearchStrategy[list[FlowClass]]:
    load = st.dictionaries(st.integers(0, 5), st.integers(1, 3), min_size=1, max_size=4)
    return st.lists(st.builds(FlowClass, st.just(1), load), min_size=1, max_size=count)


@given(
    flows=loaded(12),
    capacities=st.lists(
        st.sampled_from([0, 1, 6, 7, 10**9, 10**9 + 1, 2 * 10**9, 3 * 10**9 - 1, 10**40]),
        min_size=6,
        max_size=6,
    ),
    only=st.sampled_from(["loop", "plain loop", "exact"]),
)
def test_levels_are_max_min_fair_also_with_shares_that_are_almost_equal(
    flows: list[FlowClass], capacities: list[int], only: str
) -> None:
    crossings = Crossings(flows)
    room = [capacities[link] for link in crossings.links]
    active = np.arange(0, len(flows), 2, dtype=np.int64)
    with pytest.MonkeyPatch.context() as patch:
        if only == "plain loop":
            patch.setattr(fluid_levels, "_fill", fluid_levels._fill.py_func)  # type: ignore[attr-defined]
        if only == "exact":
            patch.setattr(fluid_levels, "_ROUNDING", 0.0)
        levels = crossings.levels(active, room)
    rates = [Fraction(levels.shares[level], levels.scale) for level in levels.level]
    singles = [
        Flow(
            0, Fraction(1), [link for link, n in flow.loads.items() for _ in range(n)], lambda _: []
        )
        for flow in flows[::2]
    ]
    limits = {link: Fraction(capacity) for link, capacity in enumerate(capacities)}
    found = rates_of(singles, dict(limits))
    assert rates == [found[flow] for flow in singles]


@pytest.mark.parametrize("apart", [0, 1, 5, 10**4])
def test_links_whose_shares_are_almost_equal_are_not_taken_for_equal(apart: int) -> None:
    flows = [FlowClass(1, {"a": 1}), FlowClass(1, {"b": 2}), FlowClass(1, {"a": 2, "b": 1})]
    crossings = Crossings(flows)
    levels = crossings.levels(np.arange(3), [3 * 10**9, 3 * 10**9 + apart])
    rates = [Fraction(levels.shares[level], levels.scale) for level in levels.level]
    assert rates == [10**9, 10**9 + Fraction(apart, 2), 10**9]


@given(sizes=st.lists(st.integers(0, 50), min_size=1, max_size=6))
def test_incast_that_starts_together_ends_by_the_closed_form(sizes: list[int]) -> None:
    # t_i = sum over j <= i of (n - j + 1)(s_j - s_{j-1}) / C; a byte takes 1 ns, and shares of
    # 60 bytes are whole picoseconds for up to 6 flows
    flows = [FlowClass(60 * size, {"NIC": 1}) for size in sizes]
    ends = ends_of([0] * len(sizes), flows, {"NIC": Fraction(10**9)})
    last, before, expected = 0, 0, {}
    for place, size in enumerate(sorted(60 * size for size in sizes)):
        last += (len(sizes) - place) * (size - before) * 1000
        before, expected[size] = size, last
    assert ends == [expected[60 * size] for size in sizes]


@given(trace=traces() | RATES, start=st.integers(0, 500))
def test_a_capacity_has_the_rates_of_its_trace(trace: RateTrace | Fraction, start: int) -> None:
    supply = Supply(trace)
    carried, now = Fraction(0), 0
    while now < start:
        rate, until = supply.rate(now)
        assert until is None or until > now
        stop = start if until is None else min(until, start)
        carried, now = carried + Fraction(rate * (stop - now), supply.scale), stop
    if isinstance(trace, RateTrace):
        assert carried == Fraction(trace.integral.until(start), trace.integral.units)
    else:
        assert carried == trace * start / 10**12


def test_a_capacity_of_nothing_is_refused() -> None:
    with pytest.raises(InternalError, match="nothing"):
        Supply(Fraction(0))


def test_a_flow_that_starts_before_now_is_refused() -> None:
    for loads in ({"a": 1}, {"a": 1, "b": 2}):
        flows = [FlowClass(10, loads), FlowClass(10, loads), FlowClass(10, {"b": 1})]
        capacities = {"a": Fraction(10**12), "b": Fraction(10**12)}
        with pytest.raises(InternalError, match="in the past"):
            share_fairly(
                {0: 5, 2: 0}, flows, capacities, lambda place, _: {1: 3} if not place else {}
            )


def test_transfers_to_one_card_share_it() -> None:
    def both(second: int) -> list[int]:
        flows = [FlowClass(1000, {"out 1": 1, "in": 1}), FlowClass(3000, {"out 2": 1, "in": 1})]
        rates = {"in": Fraction(1000), "out 1": Fraction(second), "out 2": Fraction(1000)}
        return ends_of([0, 0], flows, rates)

    # half each until the short one is through, at 2 s; then 2000 bytes alone
    assert both(1000) == [2 * 10**12, 4 * 10**12]
    # a slow NIC of 250 B/s leaves 750 B/s to the other
    assert both(250) == [4 * 10**12, 4 * 10**12]
