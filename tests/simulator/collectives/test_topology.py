"""Do racks, Wi-Fi, slow nodes and buses cost what arithmetic says, whatever the collective?"""

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gcsim.compressors.lockstep import CollectiveRecord
from gcsim.simulator.cluster import (
    AllGatherAlgorithm,
    AllReduceAlgorithm,
    Cluster,
    Collectives,
    Racks,
)
from gcsim.simulator.collectives.dispatch import CollectiveMemo, execute
from gcsim.simulator.collectives.rings.allreduce import ring_allreduce
from gcsim.simulator.network.links import Jitter, Link
from gcsim.simulator.network.paths import path, share_link
from gcsim.simulator.network.rate_trace import RateTrace
from tests.simulator.world import BUS, NETWORK, cluster, reduce, zeros

SLOW = replace(NETWORK, name="slow", bandwidth=Fraction(125_000_000))
ALPHA, BETA = 50_000_000, 800
"""Picoseconds, and picoseconds a byte, of the network."""


GATHER = CollectiveRecord(kind="all_gather", sent=(30_000, 10_000, 77))


def everything(on: Cluster, part: int = 1) -> Iterator[tuple[CollectiveRecord, Cluster]]:
    """Every algorithm of messages, with a request for it, of one in `part` of the bytes."""
    gathered = tuple(nbytes // part for nbytes in GATHER.sent)
    for name in sorted({*get_args(AllReduceAlgorithm)} - {"auto", "nccl", "parameter_server"}):
        yield reduce(100_004 // part), replace(on, collectives=Collectives(all_reduce=name))
    for name in sorted({*get_args(AllGatherAlgorithm)} - {"auto", "nccl"}):
        yield replace(GATHER, sent=gathered), replace(on, collectives=Collectives(all_gather=name))
    exchanged = (50_000 // part, 40_000 // part)
    yield CollectiveRecord(kind="all_to_all", sent=exchanged, variable=True), on
    yield CollectiveRecord(kind="tree_merge", sent=(5_000 // part,), pulled=9_000 // part), on


# --- Wi-Fi ---------------------------------------------------------------------------------------


# --- racks ---------------------------------------------------------------------------------------


def test_full_uplinks_are_no_racks() -> None:
    # two nodes a rack, two devices a node: no more than four messages cross an uplink
    uplink = Link(name="up", bandwidth=4 * NETWORK.bandwidth, latency=Fraction(0))
    plain, starts = cluster(5, 2), np.arange(10, dtype=np.int64) * 10**7
    racked = replace(plain, racks=Racks(nodes=2, uplink=uplink))
    for (record, flat), (_, high) in zip(everything(plain), everything(racked), strict=True):
        expected = execute(record, starts, flat).tolist()
        assert execute(record, starts, high).tolist() == expected, (record, flat.collectives)


def test_halving_doubling_crosses_racks_in_its_last_round_only() -> None:
    # 8 nodes in two racks whose uplinks carry as much as one NIC: partners at distances 1 and 2
    # are in the rack; the four at distance 4 share an uplink for n/8 bytes each, there and back.
    n = 8 * 100_000
    racks = Racks(nodes=4, uplink=replace(NETWORK, name="up", latency=Fraction(0)))
    on = cluster(8, all_reduce="halving_doubling")
    flat, racked = (
        execute(reduce(n), zeros(8), replace(on, racks=which)) for which in (None, racks)
    )
    assert set(flat.tolist()) == {6 * ALPHA + 2 * (n // 2 + n // 4 + n // 8) * BETA}
    assert set(racked.tolist()) == {6 * ALPHA + 2 * (n // 2 + n // 4 + 4 * n // 8) * BETA}


def test_an_uplinks_latency_is_added_once_for_each_crossing() -> None:
    uplink = Link(name="up", bandwidth=NETWORK.bandwidth, latency=Fraction(3, 10**6))
    on = cluster(2, all_reduce="recursive_doubling", racks=Racks(nodes=1, uplink=uplink))
    finishes = execute(reduce(1000), zeros(2), on)
    assert finishes.tolist() == [1000 * BETA + ALPHA + 3_000_000] * 2


def test_uplinks_are_one_of_their_sum_to_messages_of_as_many_cards() -> None:
    up = Link(name="up", bandwidth=NETWORK.bandwidth / 3, latency=Fraction(1, 10**6))
    wide, starts = replace(up, bandwidth=4 * up.bandwidth), np.arange(10, dtype=np.int64) * 10**7
    on = replace(cluster(5, 2), nics_per_node=4)
    four, one = (
        replace(on, racks=Racks(nodes=2, uplink=link, uplinks=count, pod=1, pod_uplink=wide))
        for link, count in ((up, 4), (wide, 1))
    )
    for (record, several), (_, sum_of) in zip(everything(four), everything(one), strict=True):
        if record.kind != "tree_merge":  # a message of its own has one card
            expected = execute(record, starts, sum_of).tolist()
            assert execute(record, starts, several).tolist() == expected, several.collectives


@pytest.mark.parametrize(("cards", "uplinks", "used"), [(1, 4, 1), (2, 4, 2), (4, 2, 2), (1, 1, 1)])
def test_a_card_sends_over_one_uplink(cards: int, uplinks: int, used: int) -> None:
    """Two nodes in two racks exchange a vector: it has the uplinks that its cards reach."""
    up = Link(name="up", bandwidth=NETWORK.bandwidth / 8, latency=Fraction(0))
    racks = Racks(nodes=1, uplink=up, uplinks=uplinks)
    on = cluster(2, all_reduce="recursive_doubling", racks=racks, nics_per_node=cards)
    finishes = execute(reduce(8000), zeros(2), on)
    assert finishes.tolist() == [8000 * 8 * BETA // used + ALPHA] * 2


# --- nodes that differ ---------------------------------------------------------------------------


def test_a_slow_node_slows_the_hops_to_it_and_from_it() -> None:
    on = cluster(5, nics={2: SLOW})
    hops = [NETWORK, path(NETWORK, SLOW), path(SLOW, NETWORK), NETWORK, NETWORK]
    finishes = execute(reduce(80_000), zeros(5), on)
    expected = ring_allreduce(80_000, hops, element=4)(zeros(5))
    assert finishes.tolist() == expected.tolist()
    assert finishes.max() > 8 * 16_000 * 10 * BETA  # all wait for it


@given(
    slower=st.sampled_from(["NIC", "network", "bus", "uplink"]),
    what=st.sampled_from(["rate", "latency"]),
    starts=st.lists(st.integers(0, 10**9), min_size=10, max_size=10),
    shape=st.sampled_from([(5, 2), (10, 1)]),
    stations=st.booleans(),
)
def test_nobody_gains_from_a_slower_link(
    slower: str, what: str, starts: list[int], shape: tuple[int, int], stations: bool
) -> None:
    def worse(link: Link) -> Link:
        if what == "rate":
            return share_link(link, 3)
        return replace(link, latency=link.latency + Fraction(7, 10**6))

    network = replace(NETWORK, shared=stations)
    uplink = replace(SLOW, latency=Fraction(0))
    base = cluster(*shape, network=network, nics={1: SLOW}, racks=Racks(nodes=2, uplink=uplink))
    changed = {
        "NIC": replace(base, nics={1: worse(SLOW)}),
        "network": replace(base, network=worse(network)),
        "bus": replace(base, intra_node=worse(BUS)),
        "uplink": replace(base, racks=Racks(nodes=2, uplink=worse(uplink))),
    }[slower]
    times = np.array(starts, dtype=np.int64)
    for (record, one), (_, other) in zip(everything(base), everything(changed), strict=True):
        if one.collectives.all_reduce == "hierarchical" and slower == "bus" and shape[1] == 1:
            continue
        before, after = execute(record, times, one), execute(record, times, other)
        # fair shares are not monotone: whom a slower link holds up leaves others more elsewhere
        slack = before.max() // 100 if one.collectives.names_servers else 0
        assert (after + slack >= before).all(), (record.kind, one.collectives)
        assert (execute(record, times + 5, one) == before + 5).all()


# --- chance and time -----------------------------------------------------------------------------


JITTERY = replace(NETWORK, jitter=(Jitter(distribution="exponential", mean=Fraction(1, 10**4)),))


def test_every_collective_is_late_at_random_and_by_its_key_alone() -> None:
    plain, starts = cluster(5, 2), np.arange(10, dtype=np.int64) * 10**7
    random = replace(plain, network=JITTERY)
    for (record, still), (_, on) in zip(everything(plain), everything(random), strict=True):
        memo = CollectiveMemo(on)
        once = memo(record, starts, 0, 1)
        assert (once >= execute(record, starts, still)).all(), (record.kind, on.collectives)
        assert memo(record, starts, 0, 1).tolist() == once.tolist()
        assert memo(record, starts, 0, 2).tolist() != once.tolist(), (record.kind, on.collectives)
        assert memo(record, starts + 9, 0, 1).tolist() == (once + 9).tolist()


def test_every_collective_knows_what_time_it_is() -> None:
    # nothing gets through from the second millisecond to the third
    outage = RateTrace(
        times=(Fraction(0), Fraction(1, 1000), Fraction(3, 1000)),
        rates=(NETWORK.rate, Fraction(0), NETWORK.rate),
        duration=Fraction(10),
        after="hold",
    )
    # a message on a link that changes is rounded up: a picosecond or less a message
    on = cluster(4, 2, network=replace(NETWORK, trace=outage))
    plain, starts = cluster(4, 2), zeros(8)
    for (record, timed), (_, still) in zip(everything(on), everything(plain), strict=True):
        memo, expected = CollectiveMemo(timed), execute(record, starts, still)
        where = (record.kind, timed.collectives)
        if expected.max() < 10**9:
            assert abs(memo(record, starts) - expected).max() <= 100, where
        assert memo(record, starts + 10**9).min() >= 3 * 10**9, where
        late = 4 * 10**9
        assert abs(memo(record, starts + late) - expected - late).max() <= 100, where


def test_what_is_remembered_stays_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gcsim.simulator.collectives.dispatch._KEPT_BYTES", 4096)
    monkeypatch.setattr("gcsim.simulator.collectives.dispatch._KEPT_REQUESTS", 1 << 16)
    on = cluster(8, all_reduce="halving_doubling")
    memo = CollectiveMemo(on)
    for number in range(200):
        starts = np.arange(8, dtype=np.int64) * number
        record = reduce(4000 + 4 * (number % 50))
        assert memo(record, starts).tolist() == execute(record, starts, on).tolist()
    assert len(memo._known) <= 32
    held = sum(request.collective.nbytes for request in memo._requests.values())
    assert 1 < len(memo._requests) < 50
    assert memo._held == held <= 1 << 16
