import math
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gcsim.errors import InputError, InternalError
from gcsim.simulator.network.links import Jitter, Link, Loss, SizeFactor, Uplink
from gcsim.simulator.network.paths import across_uplink, inward, outward, path, share_link
from gcsim.simulator.network.rate_trace import RateTrace

PS = 10**12
US = Fraction(1, 10**6)
FAST = Link(
    name="fast",
    bandwidth=Fraction(3 * 10**9),
    efficiency=Fraction(9, 10),
    latency=40 * US,
    overhead=2 * US,
)
SLOW = Link(
    name="slow",
    bandwidth=Fraction(10**9),
    background=Fraction(1, 5),
    latency=100 * US,
    overhead=6 * US,
    factors=(SizeFactor(from_bytes=1000, bandwidth=Fraction(1, 2), latency=Fraction(2)),),
    source="measured",
    estimate=True,
)
DOWN = RateTrace(
    times=(Fraction(0), Fraction(1)),
    rates=(Fraction(10**6), Fraction(4 * 10**6)),
    duration=Fraction(2),
    after="repeat",
)
UP = RateTrace(
    times=(Fraction(0), Fraction(2)),
    rates=(Fraction(2 * 10**6), Fraction(0)),
    duration=Fraction(3),
    after="repeat",
)
CELL = Link(
    name="cell",
    bandwidth=Fraction(6 * 10**6),
    efficiency=Fraction(1, 2),
    latency=Fraction(7, 1000),
    up=Uplink(bandwidth=Fraction(10**6), latency=Fraction(18, 1000), grant=Fraction(25, 10**4)),
)


# ---- between two ends


def test_between_equal_ends_the_path_is_the_link() -> None:
    assert path(FAST, FAST) is FAST
    again = replace(FAST)
    assert again is not FAST
    assert path(again, again) is path(FAST, FAST) is path(FAST, again)
    new = replace(FAST, name="new")
    assert path(new, replace(new)) is new
    traced = replace(SLOW, trace=DOWN, jitter=(Jitter(distribution="uniform", mean=US),))
    assert path(traced, traced) is traced


def test_each_end_stands_for_half_of_latency_and_overhead() -> None:
    there, back = path(FAST, SLOW), path(SLOW, FAST)
    assert (there.name, back.name) == ("fast to slow", "slow to fast")
    assert there.rate == back.rate == 800_000_000
    assert there.latency == back.latency == 70 * US
    assert there.overhead == back.overhead == 4 * US
    assert there.factors == ()
    assert back.factors == SLOW.factors
    assert there.serialization(1000) == 4_000_000 + 1_250_000
    assert back.serialization(1000) == 4_000_000 + 2_500_000
    assert back.latency_for(1000) == 140_000_000
    assert there.source == "measured"
    assert there.estimate
    assert path(FAST, SLOW) is there
    assert path(replace(FAST), replace(SLOW)) is there


def test_both_ends_delay_but_what_they_share_only_once() -> None:
    common = Jitter(distribution="exponential", mean=US)
    own = Jitter(distribution="pareto", mean=2 * US, shape=Fraction(3))
    first = replace(FAST, jitter=(common,))
    assert path(first, replace(SLOW, jitter=(common, own))).jitter == (common, own)
    assert path(first, SLOW).jitter == path(SLOW, first).jitter == (common,)
    rare = Loss(rate=Fraction(1, 10**5), model="sampled")
    frequent = Loss(rate=Fraction(1, 10**3), model="sampled")
    assert path(FAST, replace(SLOW, loss=rare)).loss == rare
    assert path(replace(FAST, loss=rare), replace(SLOW, loss=frequent)).loss == frequent
    assert path(replace(FAST, loss=frequent), replace(SLOW, loss=rare)).loss == frequent


def test_what_losses_leave_is_that_of_the_whole_path() -> None:
    loss = Loss(rate=Fraction(1, 1000), model="capped")
    lossy = path(replace(FAST, bandwidth=Fraction(10**12), loss=loss), replace(FAST, latency=US))
    alone = replace(FAST, bandwidth=Fraction(10**12), loss=loss, latency=Fraction(41, 2) * US)
    assert lossy.rate == alone.rate < FAST.rate


def test_access_links_add_their_legs() -> None:
    link = path(CELL, CELL)
    assert link.name == "cell (up) to cell (down)"
    assert link.up is None
    assert link.rate == 500_000
    assert link.latency == Fraction(25, 1000)
    assert link.grant == Fraction(25, 10**4)
    assert link.departure(1, 1000) == 2_500_000_000 + 2_000_000_000
    from_wire, to_wire = path(FAST, CELL), path(CELL, FAST)
    assert (from_wire.name, to_wire.name) == ("fast to cell (down)", "cell (up) to fast")
    assert from_wire.rate == 3_000_000
    assert from_wire.latency == Fraction(7, 1000) + 20 * US
    assert not from_wire.timed
    assert to_wire.rate == 500_000
    assert to_wire.latency == Fraction(18, 1000) + 20 * US
    assert to_wire.grant == Fraction(25, 10**4)
    assert path(CELL, CELL) is path(replace(CELL), CELL) is link


def test_an_access_link_to_a_machine_at_the_switch() -> None:
    assert outward(FAST) is inward(FAST) is FAST
    away, towards = outward(CELL), inward(CELL)
    assert (away.name, towards.name) == ("cell (up)", "cell (down)")
    assert away.rate == 500_000
    assert away.latency == Fraction(18, 1000)
    assert away.grant == Fraction(25, 10**4)
    assert towards.rate == 3_000_000
    assert towards.latency == Fraction(7, 1000)
    assert towards.grant == 0
    assert away.up is towards.up is None
    assert outward(replace(CELL)) is away


def test_at_each_instant_the_slower_leg_counts() -> None:
    assert CELL.up is not None
    traced = replace(CELL, trace=DOWN, background=Fraction(1, 2), up=replace(CELL.up, trace=UP))
    link = path(traced, traced)
    trace = link.trace
    assert trace is not None
    assert [float(time) for time in trace.times] == [0, 1, 2, 3, 4, 5]
    assert [float(rate) for rate in trace.rates] == [5e5, 1e6, 0, 1e6, 5e5, 0]
    assert trace.duration == 6
    assert link.departure(2 * PS, 1000) == 3 * PS + PS // 1000, "an outage of a second"


def test_a_trace_and_a_constant() -> None:
    traced = replace(FAST, name="traced", trace=DOWN)
    link = path(traced, replace(FAST, bandwidth=Fraction(2 * 10**6)))
    assert link.trace is not None
    assert [float(rate) for rate in link.trace.rates] == [1e6, 1.8e6]
    narrow = path(traced, replace(FAST, bandwidth=Fraction(10**5)))
    assert not narrow.timed, "the trace never counts"
    assert narrow.rate == 90_000


def test_what_can_never_get_through_names_both_ends() -> None:
    one = replace(FAST, name="one", trace=replace(DOWN, rates=(Fraction(0), Fraction(1))))
    other = replace(FAST, name="other", trace=replace(DOWN, rates=(Fraction(1), Fraction(0))))
    with pytest.raises(InputError, match="from one to other: no rate that repeats is positive"):
        path(one, other)
    late = replace(FAST, name="late", trace=replace(DOWN, duration=Fraction(2_000_003, 10**6)))
    with pytest.raises(InputError, match=r"from one to late: .*before they repeat") as refused:
        path(one, late)
    assert "a multiple of" in str(refused.value)


# ---- shared resources


def test_a_message_through_a_rack_uplink_gets_its_share() -> None:
    uplink = Link(
        name="rack",
        bandwidth=Fraction(4 * 10**9),
        latency=10 * US,
        overhead=US,
        jitter=(Jitter(distribution="uniform", mean=US),),
        loss=Loss(rate=Fraction(1, 10), model="sampled"),
    )
    assert across_uplink(FAST, uplink, 1).rate == FAST.rate
    link = across_uplink(FAST, uplink, 4)
    assert link.rate == 10**9
    assert link.name == "fast over rack / 4"
    assert link.latency == 50 * US
    assert link.overhead == 3 * US
    assert link.jitter == uplink.jitter
    assert link.loss == uplink.loss
    assert across_uplink(FAST, uplink, 4) is link
    access = path(CELL, CELL)
    assert across_uplink(access, uplink, 2).grant == access.grant
    with pytest.raises(InputError, match="an access link between two switches"):
        across_uplink(FAST, CELL, 1)


def test_messages_that_share_a_link_share_its_rate() -> None:
    assert share_link(FAST, 1) is FAST
    link = share_link(SLOW, 3)
    assert link.name == "slow / 3"
    assert link.rate == SLOW.rate / 3
    assert (link.latency, link.overhead, link.factors) == (100 * US, 6 * US, SLOW.factors)
    assert link.serialization(10**6) == 6_000_000 + 3 * SLOW_MS
    assert SLOW.serialization(10**6) == share_link(SLOW, 2).serialization(10**6), "half is its part"
    assert SLOW.serialization(10**6) == 6_000_000 + 2 * SLOW_MS
    assert share_link(SLOW, 3) is link
    traced = share_link(replace(FAST, trace=DOWN), Fraction(5, 2))
    assert traced.trace is not None
    assert [float(rate) for rate in traced.trace.rates] == [4e5, 1.6e6]
    with pytest.raises(InternalError):
        share_link(FAST, 0)
    with pytest.raises(InternalError):
        share_link(CELL, 2)


SLOW_MS = 1_250_000_000
"""Picoseconds for 10^6 bytes at all of SLOW's rate."""


def test_a_connection_that_losses_hold_back_loses_nothing_by_sharing() -> None:
    lossy = replace(FAST, loss=Loss(rate=Fraction(1, 100), model="capped"))
    assert lossy.rate < FAST.rate / 10
    assert share_link(lossy, 10).rate == lossy.rate
    assert share_link(lossy, 10**6).rate == FAST.rate / 10**6


@given(
    out=st.sampled_from([FAST, SLOW, CELL, replace(FAST, trace=DOWN)]),
    into=st.sampled_from([FAST, SLOW, CELL, replace(SLOW, trace=UP)]),
    start=st.integers(0, 5 * PS),
    nbytes=st.integers(0, 10**7),
    share=st.integers(1, 5),
)
def test_sharing_never_helps_and_no_path_beats_an_end(
    out: Link, into: Link, start: int, nbytes: int, share: int
) -> None:
    link = path(out, into)
    assert share_link(link, share).departure(start, nbytes) >= link.departure(start, nbytes)
    assert across_uplink(link, SLOW, share).departure(start, nbytes) >= link.departure(
        start, nbytes
    )
    for end in (outward(out), inward(into)):
        bytes_only = replace(end, overhead=Fraction(0), grant=Fraction(0), factors=())
        bare = replace(link, overhead=Fraction(0), grant=Fraction(0), factors=())
        assert bare.departure(start, nbytes) >= bytes_only.departure(start, nbytes)
    assert link.departure(start, nbytes) >= start + math.floor(nbytes * PS / 3 / 10**9)
