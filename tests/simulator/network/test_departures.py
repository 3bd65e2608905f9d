"""Is what compiled loops are told of a link that changes over time what the link itself says?

`Link.departure` is the oracle: the same integral in Python's integers, which have no end.
"""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gcsim.compressors.loops import loop
from gcsim.errors import InputError
from gcsim.simulator.clock import LIMIT
from gcsim.simulator.collectives.rings.allreduce import ring_allreduce
from gcsim.simulator.collectives.rings.gloo_allreduce import gloo_ring_allreduce
from gcsim.simulator.collectives.rings.messages import Messages
from gcsim.simulator.network.departures import Departures, departure
from gcsim.simulator.network.links import Link
from gcsim.simulator.network.rate_trace import RateTrace

PS = 10**12


@loop
def compiled(table: Departures, place: int, start: int) -> int:
    return departure(table, place, start)


@st.composite
def traces(draw: st.DrawFn, scale: int = PS) -> RateTrace:
    times = draw(st.sets(st.integers(1, 10 ** draw(st.integers(1, 13))), max_size=5))
    begins = [0, *sorted(times)]
    rate = st.builds(Fraction, st.integers(0, 10**10), st.sampled_from([1, 3, 8]))
    rates = draw(st.lists(rate, min_size=len(begins), max_size=len(begins)))
    rates[-1] += 1
    end = begins[-1] + draw(st.integers(1, PS))
    repeats = draw(st.booleans())
    return RateTrace(
        times=tuple(Fraction(time, scale) for time in begins),
        rates=tuple(rates),
        duration=Fraction(end, scale),
        after="repeat" if repeats else "hold",
        back_to=Fraction(draw(st.integers(0, begins[-1])) if repeats else 0, scale),
    )


@st.composite
def links(draw: st.DrawFn) -> Link:
    trace = draw(traces() | st.none())
    return Link(
        name="changing",
        bandwidth=Fraction(10**6) if trace is None else trace.long_run,
        latency=Fraction(1, 100),
        trace=trace,
        grant=Fraction(draw(st.sampled_from([0, 1, 2_500_000_000])), PS),
        overhead=Fraction(draw(st.sampled_from([0, 10**6])), PS),
    )


@given(
    of=st.lists(links(), min_size=1, max_size=3),
    sizes=st.lists(st.integers(0, 10**9), min_size=1, max_size=3),
    starts=st.lists(st.integers(0, 10**15), min_size=1, max_size=4),
)
def test_every_departure_is_the_link_s(of: list[Link], sizes: list[int], starts: list[int]) -> None:
    table = Departures.of(sizes, of)
    assert table is not None
    for place, (nbytes, link) in enumerate((n, link) for n in sizes for link in of):
        for start in starts:
            expected = link.departure(start, nbytes)
            found = compiled(table, place, start)
            assert found == expected or min(found, expected) >= LIMIT // 2


@given(trace=traces(scale=3 * PS), start=st.integers(0, 10**13))
def test_what_lies_between_picoseconds_is_left_to_the_link(trace: RateTrace, start: int) -> None:
    link = Link(name="odd", bandwidth=trace.long_run, latency=Fraction(1, 100), trace=trace)
    table = Departures.of([1000], [link])
    if table is None:
        assert trace.integral.ticks != 1
    else:
        assert compiled(table, 0, start) == link.departure(start, 1000)


CELL = RateTrace(
    times=(Fraction(0), Fraction(1, 100), Fraction(3, 100)),
    rates=(Fraction(10**6), Fraction(0), Fraction(10**8, 3)),
    duration=Fraction(1, 20),
    after="repeat",
)


@pytest.mark.parametrize("make", [ring_allreduce, gloo_ring_allreduce])
def test_compiled_rings_are_those_that_ask_the_links(
    make: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Link(name="cell", bandwidth=CELL.long_run, latency=Fraction(1, 100), trace=CELL)
    granted = Link(
        name="granted", bandwidth=Fraction(10**7), latency=Fraction(1, 50), grant=Fraction(1, 400)
    )
    starts = np.array([0, 5 * 10**9, 10**12, 3], dtype=np.int64)
    found = make(100_003, [slow, granted] * 2, gamma=Fraction(1, 10**9))(starts)
    monkeypatch.setattr(Departures, "of", staticmethod(lambda sizes, links: None))
    asked = make(100_003, [slow, granted] * 2, gamma=Fraction(1, 10**9))(starts)
    assert (found == asked).all()


def test_departures_beyond_the_clock_are_refused() -> None:
    crawl = RateTrace(
        times=(Fraction(0),), rates=(Fraction(1, 10**4),), duration=Fraction(1), after="repeat"
    )
    link = Link(name="crawl", bandwidth=crawl.long_run, latency=Fraction(1, 100), trace=crawl)
    assert Messages.of([10**6], [link]).table is not None
    with pytest.raises(InputError, match="more than the 13 days"):
        ring_allreduce(10**6, [link] * 3)(np.zeros(3, dtype=np.int64))
