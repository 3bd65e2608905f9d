import math
import pickle
from bisect import bisect_right
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gcsim.errors import InputError, InternalError
from gcsim.simulator.network.links import Jitter, Link, Loss, SizeFactor, Uplink
from gcsim.simulator.network.paths import path
from gcsim.simulator.network.rate_trace import RateTrace, slower

PS = 10**12
PLAIN = Link(name="plain", bandwidth=Fraction(1_250_000_000), latency=Fraction(50, 10**6))


# ---- what does not depend on time


def test_a_message_takes_overhead_and_bytes_over_goodput_rounded_once() -> None:
    link = replace(
        PLAIN,
        bandwidth=Fraction(7),
        efficiency=Fraction(2, 3),
        background=Fraction(1, 4),
        overhead=Fraction(1, 3 * PS),
    )
    assert link.rate == Fraction(7, 2)
    for nbytes in (0, 1, 5, 10**9 + 7):
        assert link.serialization(nbytes) == round(Fraction(1, 3) + Fraction(2 * nbytes * PS, 7))
        assert link.departure(12345, nbytes) == 12345 + link.serialization(nbytes)
    assert link.serialization(1) == 285_714_285_715  # rounded apart: 285 714 285 714
    assert link.latency_for(10) == 50_000_000


@pytest.mark.parametrize("factor", [1, 1_000_000])
def test_a_latency_that_the_clock_cannot_hold_is_refused(factor: int) -> None:
    """13.3 days are 2^60 ps; arrays of 64 bits hold those of all links, whether used or not."""
    factors = (SizeFactor(from_bytes=1, bandwidth=Fraction(1), latency=Fraction(factor)),)
    link = replace(PLAIN, factors=factors, latency=Fraction(2**60 - 1, factor * PS))
    assert link.latency_for(1) == 2**60 - 1
    link = replace(link, latency=Fraction(2**60, factor * PS))
    with pytest.raises(InputError, match="more than the 13 days"):
        link.latency_for(1)


def test_sizes_of_numpy_do_not_overflow() -> None:
    sized: Any = np.int64
    link = replace(PLAIN, bandwidth=Fraction(3, 7))
    assert link.serialization(sized(10**7)) == link.serialization(10**7) == 7 * 10**19 // 3
    assert type(link.serialization(sized(11))) is int
    trace = RateTrace(
        times=(Fraction(0),), rates=(Fraction(3),), duration=Fraction(1), after="hold"
    )
    timed = replace(PLAIN, trace=trace)
    assert timed.departure(sized(5), sized(10**8)) == 5 + math.ceil(Fraction(10**20, 3))


def test_factors_hold_from_their_size_on() -> None:
    link = replace(
        PLAIN,
        bandwidth=Fraction(1000),
        factors=(
            SizeFactor(from_bytes=10, bandwidth=Fraction(1, 2), latency=Fraction(3)),
            SizeFactor(from_bytes=100, bandwidth=Fraction(4, 5), latency=Fraction(7, 2)),
        ),
    )
    ms = PS // 1000
    found = [(n, link.serialization(n), link.latency_for(n)) for n in (0, 9, 10, 99, 100, 1000)]
    assert found == [
        (0, 0, 50_000_000),
        (9, 9 * ms, 50_000_000),
        (10, 20 * ms, 150_000_000),
        (99, 198 * ms, 150_000_000),
        (100, 125 * ms, 175_000_000),
        (1000, 1250 * ms, 175_000_000),
    ]


@pytest.mark.parametrize(
    ("exponent", "megabits"), [(4, 6.9e3), (3, 577), (2, 22)]
)  # RFC 3819's formula at RTT 100 us, RTO 200 ms, packets of 1448 bytes
def test_losses_cap_the_rate(exponent: int, megabits: float) -> None:
    loss = Loss(rate=Fraction(1, 10**exponent), model="capped")
    link = replace(PLAIN, bandwidth=Fraction(10**10), loss=loss)
    assert float(link.rate) * 8e-6 == pytest.approx(megabits, rel=0.015)
    assert not link.random
    assert not link.timed
    slow = replace(link, bandwidth=Fraction(1000), background=Fraction(1, 2))
    assert slow.rate == 500
    assert replace(link, loss=replace(loss, model="sampled")).rate == 10**10
    assert replace(link, loss=replace(loss, rate=Fraction(0))).rate == 10**10
    farther = replace(link, latency=10 * PLAIN.latency)
    assert farther.rate < link.rate


def test_a_connection_carries_what_line_losses_and_its_limit_allow() -> None:
    link = replace(PLAIN, bandwidth=Fraction(10**9), flow=Fraction(10**8))
    assert link.rate == 10**8
    assert link.line_goodput == 10**9
    assert replace(link, bandwidth=Fraction(10**7)).rate == 10**7
    loss = Loss(rate=Fraction(1, 100), model="capped")
    assert replace(link, loss=loss).rate == replace(link, loss=loss, flow=None).rate < 10**8
    slower, other = replace(link, flow=Fraction(10**6)), replace(link, name="other")
    assert path(slower, other).flow == path(other, slower).flow == 10**6
    with pytest.raises(InputError, match="flow = 0"):
        replace(link, flow=Fraction(0))


def test_frequent_losses_leave_a_packet_for_so_many_time_outs() -> None:
    loss = Loss(rate=Fraction(1, 4), model="capped")
    rate = replace(PLAIN, latency=Fraction(0), loss=loss).rate
    assert float(rate) == pytest.approx(1448 / (0.2 * 0.25 * (1 + 32 / 16)), rel=1e-14)


def test_losses_cap_a_trace_too() -> None:
    trace = RateTrace(
        times=(Fraction(0), Fraction(1)),
        rates=(Fraction(10), Fraction(10**12)),
        duration=Fraction(2),
        after="repeat",
    )
    link = replace(PLAIN, trace=trace, loss=Loss(rate=Fraction(1, 100), model="capped"))
    cap = replace(link, trace=None, bandwidth=Fraction(10**12)).rate
    assert link.rate == (10 + cap) / 2
    assert link.departure(PS, 10**6) == PS + math.ceil(10**6 * PS / cap)


def test_a_link_knows_whether_it_is_random_or_timed() -> None:
    jitter = Jitter(distribution="exponential", mean=Fraction(1, 1000))
    loss = Loss(rate=Fraction(1, 1000), model="sampled")
    assert not PLAIN.random
    assert replace(PLAIN, jitter=(jitter,)).random
    assert replace(PLAIN, loss=loss).random
    assert not replace(PLAIN, loss=replace(loss, rate=Fraction(0))).random
    assert not replace(PLAIN, jitter=(replace(jitter, mean=Fraction(0)),)).random
    assert not replace(PLAIN, jitter=(replace(jitter, probability=Fraction(0)),)).random
    up = Uplink(bandwidth=Fraction(1), latency=Fraction(1))
    assert not replace(PLAIN, up=up).timed
    for timed in (
        replace(PLAIN, grant=Fraction(1, 400)),
        replace(PLAIN, up=replace(up, grant=Fraction(1, 400))),
        replace(PLAIN, up=replace(up, trace=ON_AND_OFF)),
        replace(PLAIN, trace=ON_AND_OFF),
    ):
        assert timed.timed
        timed.departure(0, 10)
        with pytest.raises(InternalError, match="depends on when"):
            timed.serialization(10)


def test_links_are_equal_by_value_and_survive_pickling() -> None:
    link = replace(PLAIN, trace=ON_AND_OFF, jitter=(Jitter(distribution="uniform", mean=ONE),))
    link.departure(0, 10**6)
    hash(link)
    again = pickle.loads(pickle.dumps(link))  # noqa: S301
    assert "_hash" not in again.__dict__, "hashes of strings differ between processes"
    assert again == link
    assert hash(again) == hash(link)
    assert again.departure(7, 12345) == link.departure(7, 12345)
    assert len({link, again, replace(link, name="other")}) == 2


# ---- what does


ONE = Fraction(1)
ON_AND_OFF = RateTrace(
    times=(Fraction(0), Fraction(1), Fraction(3, 2)),
    rates=(Fraction(100), Fraction(0), Fraction(40)),
    duration=Fraction(2),
    after="repeat",
)


def naive(trace: RateTrace, start: Fraction, nbytes: Fraction) -> int:
    """Walks from change to change in Fractions of a second."""
    if nbytes == 0:
        return math.ceil(start * PS)
    now = start
    while True:
        held = now
        until: Fraction | None = None
        if held >= trace.duration:
            if trace.after == "hold":
                held = trace.times[-1]
            else:
                held = trace.back_to + (held - trace.back_to) % (trace.duration - trace.back_to)
        place = max(i for i, time in enumerate(trace.times) if time <= held)
        rate = trace.rates[place]
        if place + 1 < len(trace.times):
            until = now + trace.times[place + 1] - held
        elif trace.after == "repeat":
            until = now + trace.duration - held
        if until is None or nbytes <= rate * (until - now):
            return math.ceil((now + nbytes / rate) * PS)
        nbytes -= rate * (until - now)
        now = until


fractions = st.builds(Fraction, st.integers(1, 40), st.sampled_from([1, 2, 3, 7, 10]))


@st.composite
def traces(
    draw: st.DrawFn, unit: Fraction = Fraction(1), lengths: st.SearchStrategy[Fraction] = fractions
) -> RateTrace:
    steps = draw(st.lists(lengths, min_size=1, max_size=5))
    rates = [draw(st.one_of(st.just(Fraction(0)), fractions)) for _ in steps]
    after = draw(st.sampled_from(["repeat", "hold"]))
    duration = sum(steps, Fraction(0))
    back_to = Fraction(0)
    if after == "hold" or draw(st.booleans()):
        rates[-1] = rates[-1] or Fraction(5)
        if after == "repeat":
            back_to = duration * draw(st.sampled_from([Fraction(0), ONE / 3, ONE * 4 / 5]))
    elif not any(rates):
        rates[0] = Fraction(1)
    starts = [sum(steps[:i], Fraction(0)) for i in range(len(steps))]
    return RateTrace(
        times=tuple(time * unit for time in starts),
        rates=tuple(rate / unit for rate in rates),
        duration=duration * unit,
        after="repeat" if after == "repeat" else "hold",
        back_to=back_to * unit,
    )


FINE = Fraction(1, 10**11)
"""Traces that change within few picoseconds: rounding and breakpoints matter."""


@given(
    trace=st.one_of(traces(), traces(unit=FINE)),
    start=st.one_of(st.integers(0, 5000), st.integers(0, 100 * PS)),
    nbytes=st.integers(0, 300),
)
def test_bytes_are_through_when_a_walk_along_the_trace_says(
    trace: RateTrace, start: int, nbytes: int
) -> None:
    assert trace.finish(start, nbytes) == naive(trace, Fraction(start, PS), Fraction(nbytes))


@given(
    trace=st.one_of(traces(), traces(unit=FINE)),
    start=st.integers(0, 5000),
    later=st.integers(0, 5000),
    first=st.integers(0, 500),
    second=st.integers(0, 500),
)
def test_left_is_monotone_and_parts_add_up(
    trace: RateTrace, start: int, later: int, first: int, second: int
) -> None:
    link = replace(PLAIN, trace=trace)
    assert link.departure(start, first) <= link.departure(start + later, first)
    assert link.departure(start, first) <= link.departure(start, first + second)
    whole = link.departure(start, first + second)
    parts = link.departure(link.departure(start, first), second)
    lost = max(trace.rates) / PS  # no more flows in the picosecond that rounding skips
    assert whole <= parts <= trace.finish(start, first + second + lost)


@given(
    trace=traces(unit=FINE),
    grant=st.builds(Fraction, st.integers(1, 400), st.sampled_from([PS, 3 * PS])),
    start=st.integers(0, 3000),
    nbytes=st.integers(0, 300),
    overhead=st.integers(0, 300),
    factor=fractions.filter(lambda part: part <= 1),
    background=st.sampled_from([Fraction(0), ONE / 3]),
)
def test_a_timed_message_waits_for_a_grant_then_its_overhead_then_flows(
    trace: RateTrace,
    grant: Fraction,
    start: int,
    nbytes: int,
    overhead: int,
    factor: Fraction,
    background: Fraction,
) -> None:
    link = replace(
        PLAIN,
        trace=trace,
        grant=grant,
        overhead=Fraction(overhead, PS),
        factors=(SizeFactor(from_bytes=100, bandwidth=factor),),
        background=background,
    )
    granted = next(
        instant
        for instant in (math.ceil(turn * grant * PS) for turn in range(10**5))
        if instant >= start
    )
    share = factor if nbytes >= 100 else ONE
    free = nbytes / share / (1 - background)
    expected = naive(trace, Fraction(granted + overhead, PS), free)
    to_nearest = len(set(trace.rates)) == 1  # rounded like a constant rate
    assert 0 <= expected - link.departure(start, nbytes) <= to_nearest
    assert link.departure(granted, nbytes) == link.departure(start, nbytes)
    assert link.departure(start, nbytes) <= link.departure(start + 1, nbytes)
    without = replace(link, trace=None, background=Fraction(0))
    expected = granted + round(overhead + nbytes * PS / (PLAIN.bandwidth * share))
    assert without.departure(start, nbytes) == expected


def test_very_long_messages_take_no_longer_to_compute() -> None:
    turns = 10**15
    assert ON_AND_OFF.finish(0, 120 * turns) == 2 * turns * PS
    assert ON_AND_OFF.finish(0, 120 * turns + 1) == 2 * turns * PS + PS // 100
    assert ON_AND_OFF.finish(0, 120 * turns + 100) == (2 * turns + 1) * PS, "not after the pause"
    assert ON_AND_OFF.finish(2 * turns * PS + PS, 20) == 2 * (turns + 1) * PS


def test_the_long_run() -> None:
    assert ON_AND_OFF.long_run == 60
    assert replace(ON_AND_OFF, after="hold").long_run == 40
    assert replace(ON_AND_OFF, back_to=Fraction(1, 2)).long_run == Fraction(140, 3)
    assert replace(PLAIN, trace=ON_AND_OFF, background=Fraction(1, 2)).rate == 30


def rate_at(rate: RateTrace | Fraction, time: Fraction) -> Fraction:
    if isinstance(rate, Fraction):
        return rate
    if time >= rate.duration:
        if rate.after == "hold":
            return rate.rates[-1]
        time = rate.back_to + (time - rate.back_to) % (rate.duration - rate.back_to)
    return rate.rates[bisect_right(rate.times, time) - 1]


halves = st.builds(Fraction, st.integers(1, 9), st.sampled_from([1, 2]))


@given(
    one=st.one_of(traces(lengths=halves), fractions),
    other=traces(lengths=halves),
    times=st.lists(st.fractions(0, 2000, max_denominator=9), min_size=1, max_size=20),
)
def test_the_slower_of_two_is_so_at_each_instant(
    one: RateTrace | Fraction, other: RateTrace, times: list[Fraction]
) -> None:
    ends = [Fraction(0)]
    ends += [
        end for t in (one, other) if isinstance(t, RateTrace) for end in (t.duration, *t.times)
    ]
    try:
        least = slower(one, other)
    except InputError:
        return
    for time in (*times, *ends, *(time + end for time in times for end in ends)):
        assert rate_at(least, time) == min(rate_at(one, time), rate_at(other, time))
    assert least == slower(other, one)


def test_a_rate_that_never_changes_is_a_number() -> None:
    assert slower(ON_AND_OFF, ON_AND_OFF) is ON_AND_OFF
    assert slower(replace(ON_AND_OFF, rates=(ONE * 9, ONE * 5, ONE * 7)), Fraction(5)) == 5


# ---- what is refused


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bandwidth": Fraction(0)}, "bandwidth = 0"),
        ({"latency": Fraction(-1)}, "latency = -1"),
        ({"efficiency": Fraction(0)}, "efficiency = 0"),
        ({"overhead": Fraction(-1)}, "overhead = -1"),
        ({"background": Fraction(1)}, "background = 1"),
        ({"background": Fraction(-1, 2)}, "background = -0.5"),
        ({"grant": Fraction(-1)}, "grant = -1"),
        ({"factors": (SizeFactor(from_bytes=2),) * 2}, "comes after"),
    ],
)
def test_impossible_links_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message) as refused:
        replace(PLAIN, **changes)  # type: ignore[arg-type]
    assert all(problem.hint for problem in refused.value.problems)
    assert "plain: " in str(refused.value)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SizeFactor(from_bytes=-1), "from_bytes = -1"),
        (lambda: SizeFactor(from_bytes=1, bandwidth=Fraction(0)), "bandwidth = 0"),
        (lambda: SizeFactor(from_bytes=1, latency=Fraction(0)), "latency = 0"),
        (lambda: Jitter(distribution="uniform", mean=Fraction(-1)), "mean = -1"),
        (lambda: Jitter(distribution="uniform", mean=ONE, probability=ONE * 2), "probability = 2"),
        (lambda: Jitter(distribution="pareto", mean=ONE, shape=ONE), "tail, is 1"),
        (lambda: Jitter(distribution="lognormal", mean=ONE, shape=-ONE), "shape = -1"),
        (lambda: Loss(rate=ONE, model="capped"), "rate = 1"),
        (lambda: Loss(rate=-ONE, model="sampled"), "rate = -1"),
        (lambda: Loss(rate=ONE / 2, model="sampled", timeout=Fraction(0)), "timeout = 0"),
        (lambda: Loss(rate=ONE / 2, model="sampled", segment=0), "segment = 0"),
        (lambda: Uplink(bandwidth=Fraction(0), latency=ONE), "bandwidth = 0"),
        (lambda: Uplink(bandwidth=ONE, latency=ONE, grant=-ONE), "grant = -1"),
        (lambda: replace(ON_AND_OFF, rates=(ONE,)), "3 times and 1 rates"),
        (lambda: replace(ON_AND_OFF, times=(), rates=()), "without a rate"),
        (lambda: replace(ON_AND_OFF, times=(ONE / 9, ONE, ONE * 3 / 2)), "first time is not 0"),
        (lambda: replace(ON_AND_OFF, times=(ONE * 0, ONE, ONE)), "do not ascend"),
        (lambda: replace(ON_AND_OFF, duration=Fraction(3, 2)), "before its last rate begins"),
        (lambda: replace(ON_AND_OFF, rates=(ONE, -ONE, ONE)), "a rate is negative"),
        (lambda: replace(ON_AND_OFF, rates=(ONE * 0,) * 3), "no rate that repeats"),
        (
            lambda: replace(ON_AND_OFF, rates=(ONE, ONE, ONE * 0), back_to=Fraction(3, 2)),
            "no rate that repeats",
        ),
        (lambda: replace(ON_AND_OFF, rates=(ONE, ONE, ONE * 0), after="hold"), "holds forever"),
        (lambda: replace(ON_AND_OFF, back_to=Fraction(2)), "goes back to 2 s"),
        (lambda: replace(ON_AND_OFF, back_to=ONE, after="hold"), "goes back to 1 s"),
    ],
)
def test_impossible_parts_are_refused(make: object, message: str) -> None:
    assert callable(make)
    with pytest.raises(InputError, match=message) as refused:
        make()
    assert all(problem.hint for problem in refused.value.problems)


def test_several_mistakes_are_told_at_once() -> None:
    with pytest.raises(InputError) as refused:
        replace(PLAIN, efficiency=Fraction(0), background=Fraction(2))
    assert len(refused.value.problems) == 2


def test_impossible_messages_are_our_own_mistake() -> None:
    with pytest.raises(InternalError, match="-1 bytes"):
        PLAIN.serialization(-1)
    with pytest.raises(InternalError, match="from -5 ps"):
        replace(PLAIN, trace=ON_AND_OFF).departure(-5, 1)


# --- ranges --------------------------------------------------------------------------------------

US = Fraction(1, 10**6)


@pytest.mark.parametrize(
    ("figure", "bounds"),
    [
        ("latency", (60 * US, 80 * US)),
        ("latency", (10 * US, 40 * US)),
        ("latency", (-US, 80 * US)),
        ("efficiency", (Fraction(0), Fraction(1))),
        ("overhead", (US, 2 * US)),
    ],
)
def test_a_range_holds_its_figure(figure: str, bounds: tuple[Fraction, Fraction]) -> None:
    changes: dict[str, Any] = {f"{figure}_range": bounds}
    with pytest.raises(InputError, match=f"{figure}_range"):
        replace(PLAIN, **changes)


def test_a_range_changes_nothing_that_a_link_does_and_a_known_figure_has_none() -> None:
    vague = replace(
        PLAIN, latency_range=(10 * US, 80 * US), efficiency_range=(Fraction(1, 2), Fraction(2))
    )
    for nbytes in (0, 1000, 10**9):
        assert vague.serialization(nbytes) == PLAIN.serialization(nbytes)
        assert vague.latency_for(nbytes) == PLAIN.latency_for(nbytes)
    known = vague.exactly(latency=500 * US)
    assert known == replace(vague, latency=500 * US, latency_range=None)
    assert known.exactly(efficiency=Fraction(1)) == replace(PLAIN, latency=500 * US)
    kept = (400 * US, 600 * US)
    assert known.exactly(latency=500 * US, latency_range=kept).latency_range == kept
