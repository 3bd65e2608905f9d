"""Do messages take what their paths say, and do they share NICs, buses, uplinks and the air?"""

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gcsim.errors import InputError
from gcsim.simulator.cluster import Racks
from gcsim.simulator.collectives.rounds.rounds import Rounds
from gcsim.simulator.fabric import rounds
from gcsim.simulator.fabric.hops import Framing
from gcsim.simulator.fabric.link_table import LinkTable, scaled
from gcsim.simulator.fabric.rounds import Fabric
from gcsim.simulator.network.links import Link, SizeFactor, Uplink
from gcsim.simulator.network.paths import across_uplink, path, share_link
from tests.simulator.world import PS, times

FAST = Link(name="fast", bandwidth=Fraction(10**10), latency=3 * PS)
SLOW = Link(name="slow", bandwidth=Fraction(10**9), latency=7 * PS)
BUS = Link(name="bus", bandwidth=Fraction(10**11), latency=PS)
AIR = replace(FAST, name="air", shared=True)

Ranks = np.ndarray[tuple[int], np.dtype[np.int64]]


def messages(
    fabric: Fabric, senders: Ranks, receivers: Ranks, nbytes: int | Ranks
) -> tuple[list[int], list[int]]:
    hops = fabric.hops(senders, receivers)
    return hops.serialization(nbytes).tolist(), hops.latency(nbytes).tolist()


@given(
    values=st.lists(st.integers(0, 10**15), min_size=1, max_size=8),
    over=st.integers(1, 2**70),
    under=st.integers(1, 2**70),
    base=st.integers(0, 2**70),
)
@example(values=[1, 3, 5, 7], over=1, under=2, base=0)
@example(values=[0], over=2**70, under=1, base=1)
@example(values=[10**15], over=2**70, under=2**70 - 1, base=0)
def test_whole_numbers_are_scaled_as_python_rounds_fractions(
    values: list[int], over: int, under: int, base: int
) -> None:
    exact = [round(Fraction(value * over + base, under)) for value in values]
    if max(exact) < 2**62:
        assert scaled(times([*values]), over, under, base).tolist() == exact
        each = np.array([over] * len(values)), np.array([under] * len(values))
        assert scaled(times([*values]), *each, np.array([base] * len(values))).tolist() == exact


@st.composite
def links(draw: st.DrawFn) -> Link:
    factors = [SizeFactor(from_bytes=draw(st.integers(0, 10**6)), latency=Fraction(3, 2))]
    return Link(
        name="any",
        bandwidth=Fraction(draw(st.floats(1e6, 1e12))),
        latency=draw(st.integers(0, 10**6)) * PS / draw(st.sampled_from([1, 2])),
        efficiency=draw(st.sampled_from([Fraction(1), Fraction(1448, 1538)])),
        overhead=draw(st.sampled_from([0 * PS, PS / 3, 10**7 * PS])),
        background=draw(st.sampled_from([Fraction(0), Fraction(1, 7)])),
        factors=tuple(draw(st.sampled_from([[], factors]))),
    )


@given(
    some=st.lists(links(), min_size=1, max_size=4),
    copies=st.sampled_from([1, 20]),
    sizes=st.lists(st.integers(0, 10**11), min_size=1, max_size=6),
    data=st.data(),
)
def test_a_table_says_what_its_links_say(
    some: list[Link], copies: int, sizes: list[int], data: st.DataObject
) -> None:
    table = LinkTable()
    numbers = [table.add(link) for link in some * copies]
    kinds = [data.draw(st.sampled_from(numbers)) for _ in sizes]
    chosen = [table.links[kind] for kind in kinds]
    for asked in (sizes, sizes[0]):
        each = [asked] * len(sizes) if isinstance(asked, int) else asked
        pairs = list(zip(chosen, each, strict=True))
        given_ = asked if isinstance(asked, int) else times([*asked])
        serialization = [link.serialization(size) for link, size in pairs]
        assert table.serialization(times([*kinds]), given_).tolist() == serialization
        latency = [link.latency_for(size) for link, size in pairs]
        assert table.latency(times([*kinds]), given_).tolist() == latency


def test_times_beyond_the_clock_are_refused() -> None:
    for copies in (1, 100):
        table = LinkTable()
        for number in range(copies):
            table.add(replace(SLOW, bandwidth=Fraction(1, 10 + number)))
        for nbytes in (10**9, times([10**9])):
            with pytest.raises(InputError, match="clock"):
                table.serialization(times([0]), nbytes)


def test_messages_share_the_cards_of_their_nodes() -> None:
    # Nodes of three. Ranks 0 and 1 leave by node 0's NIC, rank 3 by node 1's; 2 stays inside.
    fabric = Fabric(nodes=2, devices=3, nics=[FAST, FAST], buses=[BUS])
    serialization, latency = messages(fabric, times([0, 1, 2, 3]), times([3, 4, 0, 2]), 10**6)
    assert serialization == [2 * 10**8, 2 * 10**8, 10**7, 10**8]
    assert latency == [3, 3, 1, 3]
    # Two messages from different nodes reach node 2 by one NIC.
    fabric = Fabric(nodes=3, devices=2, nics=[FAST], buses=[BUS])
    serialization, _ = messages(fabric, times([0, 2, 4]), times([4, 5, 1]), 10**6)
    assert serialization == [2 * 10**8, 2 * 10**8, 10**8]


def test_several_messages_of_one_rank_share_its_links_one_by_one() -> None:
    fabric = Fabric(nodes=2, devices=3, nics=[FAST], buses=[BUS])
    serialization, _ = messages(fabric, times([0, 0, 0, 1]), times([1, 2, 3, 0]), 10**6)
    assert serialization == [2 * 10**7, 2 * 10**7, 10**8, 10**7]


def test_a_path_is_as_fast_as_its_slower_end() -> None:
    fabric = Fabric(nodes=2, devices=1, nics=[FAST, SLOW], buses=[BUS])
    serialization, latency = messages(fabric, times([0, 1]), times([1, 0]), 10**6)
    assert serialization == [10**9] * 2
    assert latency == [5, 5]


def test_devices_on_one_bus_share_it_both_ways() -> None:
    fabric = Fabric(nodes=2, devices=3, nics=[FAST], buses=[BUS], shared_bus=True)
    serialization, _ = messages(fabric, times([0, 1, 2, 3]), times([1, 0, 3, 4]), 10**6)
    assert serialization == [2 * 10**7, 2 * 10**7, 10**8, 10**7]


def test_messages_between_racks_share_the_uplinks() -> None:
    racks = Racks(nodes=2, uplink=SLOW)
    fabric = Fabric(nodes=6, devices=1, nics=[FAST], buses=[BUS], racks=racks)
    # Two messages leave rack 0, two reach rack 2, and 4 stays in it; two reach node 5.
    serialization, latency = messages(fabric, times([0, 1, 2, 4]), times([2, 4, 5, 5]), 10**6)
    assert serialization == [2 * 10**9, 2 * 10**9, 2 * 10**9, 2 * 10**8]
    assert latency == [3 + 7, 3 + 7, 3 + 7, 3]


def test_a_message_between_stations_crosses_the_air_twice() -> None:
    fabric = Fabric(nodes=3, devices=1, nics=[AIR], buses=[BUS])
    serialization, _ = messages(fabric, times([0]), times([1]), 10**6)
    assert serialization == [2 * 10**8]
    serialization, _ = messages(fabric, times([0, 1, 2]), times([1, 2, 0]), 10**6)
    assert serialization == [6 * 10**8] * 3
    # A node on a cable is at the other side of the access point.
    mixed = Fabric(nodes=3, devices=1, nics=[AIR, AIR, FAST], buses=[BUS])
    serialization, _ = messages(mixed, times([0, 1, 2]), times([1, 2, 0]), 10**6)
    assert serialization == [4 * 10**8] * 3


def test_devices_share_each_leg_of_an_access_link() -> None:
    access = replace(FAST, up=Uplink(bandwidth=Fraction(10**9), latency=20 * PS))
    fabric = Fabric(nodes=2, devices=2, nics=[access, FAST], buses=[BUS])
    serialization, latency = messages(fabric, times([0, 1]), times([2, 3]), 10**6)
    assert serialization == [2 * 10**9] * 2
    assert latency == [20 + 2] * 2  # 21.5
    serialization, latency = messages(fabric, times([2, 3]), times([0, 1]), 10**6)
    assert serialization == [2 * 10**8] * 2
    assert latency == [4, 4]  # 1.5 + 3


def test_a_protocol_takes_its_share_of_every_path() -> None:
    framing = Framing(
        share=Fraction(1, 2), share_inside=Fraction(1, 2), network=11 * PS, inside=5 * PS
    )
    racks = Racks(nodes=1, uplink=SLOW)
    fabric = Fabric(nodes=2, devices=2, nics=[FAST], buses=[BUS], racks=racks)
    framed = fabric.with_framing(framing)
    serialization, latency = messages(framed, times([0, 1]), times([1, 2]), 10**6)
    assert serialization == [2 * 10**7, 2 * 10**9]
    assert latency == [1 + 5, 3 + 7 + 11]


@st.composite
def fabrics(draw: st.DrawFn) -> dict[str, Any]:
    """Of links that are a rate and a latency."""
    plain = st.builds(
        Link,
        name=st.just("plain"),
        bandwidth=st.integers(10**6, 10**12).map(Fraction),
        latency=st.integers(0, 9).map(lambda count: count * PS),
        efficiency=st.sampled_from([Fraction(1), Fraction(1448, 1538)]),
        shared=st.sampled_from([False, False, True]),
    )
    nodes = draw(st.integers(1, 6))
    racks = None
    if draw(st.booleans()):
        uplink = replace(draw(plain), shared=False)
        racks = Racks(nodes=draw(st.integers(1, nodes)), uplink=uplink)
        if draw(st.booleans()):
            above = replace(draw(plain), shared=False)
            racks = replace(racks, pod=draw(st.integers(1, 3)), pod_uplink=above)
    framing = Framing(
        share=Fraction(10, 38), share_inside=Fraction(1, 3), network=5 * PS, inside=PS
    )
    return {
        "nodes": nodes,
        "devices": draw(st.integers(1, 3)),
        "nics": draw(st.lists(plain, min_size=nodes, max_size=nodes)),
        "buses": [replace(draw(plain), shared=False) for _ in range(nodes)],
        "racks": racks,
        "shared_bus": draw(st.booleans()),
        "framing": draw(st.sampled_from([None, framing])),
    }


@given(kinds=fabrics(), nbytes=st.integers(0, 10**9), data=st.data())
def test_the_slowest_link_on_the_way_is_the_path(
    kinds: dict[str, Any], nbytes: int, data: st.DataObject
) -> None:
    p = kinds["nodes"] * kinds["devices"]
    step = data.draw(st.integers(1, max(1, p - 1)))
    senders = times([*range(p)]) if p > 1 else times([])
    receivers = (senders + step) % p
    sizes = nbytes + senders
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rounds, "MANY", 0)
        ends = Fabric(**kinds).hops(senders, receivers)
        assert ends.latencies is not None or p == 1
    whole = Fabric(**kinds).hops(senders, receivers)
    assert whole.latencies is None
    assert ends.serialization(sizes).tolist() == whole.serialization(sizes).tolist()
    assert ends.latency(sizes).tolist() == whole.latency(sizes).tolist()


@st.composite
def exchanges(draw: st.DrawFn) -> tuple[Racks, int, int, list[tuple[int, int]]]:
    """Racks in pods, nodes, NICs of each, and a round's messages between different nodes."""
    nodes = draw(st.integers(2, 12))
    bandwidths = st.integers(10**6, 10**12).map(Fraction)
    cables = st.builds(Link, name=st.just("cable"), bandwidth=bandwidths, latency=st.just(7 * PS))
    racks = Racks(
        nodes=draw(st.integers(1, 4)),
        uplink=draw(cables),
        pod=draw(st.integers(1, 3)),
        pod_uplink=draw(cables),
        uplinks=draw(st.integers(1, 4)),
        pod_uplinks=draw(st.integers(1, 4)),
    )
    receivers = draw(st.permutations(range(nodes)))
    nics = draw(st.integers(1, 4))
    return racks, nodes, nics, [(i, j) for i, j in enumerate(receivers) if i != j]


@given(drawn=exchanges(), nbytes=st.integers(1, 10**9), many=st.sampled_from([0, 64]))
def test_a_message_has_the_least_share_of_all_switches_on_its_way(
    drawn: tuple[Racks, int, int, list[tuple[int, int]]], nbytes: int, many: int
) -> None:
    """Message by message: each of a switch's two directions is divided among those that cross it
    so, no message has more cables than NICs, and latencies of NIC and cables add up."""
    racks, nodes, nics, pairs = drawn
    assert racks.pod is not None
    assert racks.pod_uplink is not None
    switches = [
        (racks.nodes, racks.uplink, racks.uplinks),
        (racks.nodes * racks.pod, racks.pod_uplink, racks.pod_uplinks),
    ]
    expected = []
    for sender, receiver in pairs:
        slowest, latency = Fraction(nbytes) / FAST.bandwidth, FAST.latency
        for below, cable, cables in switches:
            if sender // below == receiver // below:
                continue
            crossing = [(i // below, j // below) for i, j in pairs if i // below != j // below]
            out = sum(one == sender // below for one, _ in crossing)
            into = sum(other == receiver // below for _, other in crossing)
            of_all = Fraction(min(nics, cables), cables), Fraction(1, max(out, into))
            slowest = max(slowest, nbytes / (cable.bandwidth * cables * min(of_all)))
            latency += cable.latency
        expected.append((round(slowest / PS), round(latency / PS)))
    senders = times([*(sender for sender, _ in pairs)])
    receivers = times([*(receiver for _, receiver in pairs)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rounds, "MANY", many)
        alike = replace(racks, pod=nodes), replace(racks, pod=None, pod_uplink=None)
        of: dict[str, Any] = {"nodes": nodes, "devices": 1, "nics": [FAST], "buses": [BUS]}
        fabrics = [Fabric(**of, racks=each, nics_per_node=nics) for each in (racks, *alike)]
        found, whole, flat = (messages(one, senders, receivers, nbytes) for one in fabrics)
    assert list(zip(*found, strict=True)) == expected
    assert whole == flat
    for more, less in zip(found, flat, strict=True):
        assert all(above >= below for above, below in zip(more, less, strict=True))


def test_a_rank_is_ready_when_its_message_has_left_and_the_other_was_added() -> None:
    fabric = Fabric(nodes=3, devices=1, nics=[FAST], buses=[BUS])
    cost = Fraction(5, 10**12)  # 100 ps a byte on the link, 5 ps to add
    exchange = Rounds(fabric)
    exchange.exchange(times([0, 1]), times([1, 0]), times([10, 1]), cost)
    ready = exchange(times([0, 50, 9]))
    assert ready.tolist() == [max(1000, 153) + 5, max(150, 1003) + 50, 9]


def test_a_ring_takes_the_bus_inside_a_node_and_the_path_between_nodes() -> None:
    fabric = Fabric(nodes=2, devices=2, nics=[FAST, SLOW], buses=[BUS])
    assert fabric.ring_links() == (BUS, path(FAST, SLOW), BUS, path(SLOW, FAST))
    assert fabric.ring_links() is fabric.ring_links()
    assert fabric.ring_links(backwards=True) == (path(FAST, SLOW), BUS, path(SLOW, FAST), BUS)
    assert fabric.leader_links() == (path(FAST, SLOW), path(SLOW, FAST))


def test_only_one_hop_of_a_ring_leaves_each_rack() -> None:
    racks = Racks(nodes=2, uplink=SLOW)
    fabric = Fabric(nodes=5, devices=1, nics=[FAST], buses=[BUS], racks=racks)
    over = across_uplink(FAST, SLOW, 1)
    assert fabric.ring_links() == (FAST, over, FAST, over, over)
    one_bus = Fabric(nodes=2, devices=3, nics=[FAST], buses=[BUS], shared_bus=True)
    assert one_bus.ring_links() == (share_link(BUS, 2), share_link(BUS, 2), FAST) * 2
