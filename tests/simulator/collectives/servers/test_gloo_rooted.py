"""Do Gloo's broadcast, gather and scatter agree with a fluid that moves in tiny steps of rates?

The oracle puts flows on the NICs of `fluid_oracle.simulate`, and knows the tree from what Gloo's
source does, not from the model's messages.
"""

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gcsim.errors import InternalError
from gcsim.simulator.cluster import Cluster, Racks
from gcsim.simulator.collectives.servers.gloo_rooted import (
    broadcast_messages,
    carry_messages,
    gather_messages,
    messages_traffic,
    scatter_messages,
)
from gcsim.simulator.host import Host
from gcsim.simulator.network.links import Link
from tests.simulator.sharing.fluid_oracle import Flow, Rate, simulate
from tests.simulator.world import NETWORK, PS, cluster, link

RATE, LATENCY = 125 * 10**6, 50 * 10**6
"""Bytes per second, picoseconds."""


def with_cards(rates: Sequence[int], host: Host | None = None) -> Cluster:
    nics = {node: nic(rate) for node, rate in enumerate(rates) if rate != RATE}
    return cluster(len(rates), network=nic(RATE), nics=nics, host=host)


def nic(rate: int) -> Link:
    return link(rate, LATENCY * PS)


def oracle(
    starts: Sequence[int], sends: dict[int, list[tuple[int, int]]], rates: Sequence[int]
) -> list[int]:
    """`sends[r]`: whom rank r sends how much, when it has received all that is sent to it."""
    ranks = range(len(starts))
    missing = [sum(to == rank for each in sends.values() for to, _ in each) for rank in ranks]
    finishes = list(starts)

    def ready(sender: int) -> list[Flow]:
        return [
            Flow(
                max(finishes[sender], starts[to] + LATENCY),
                Fraction(nbytes),
                [("out", sender), ("in", to)],
                partial(arrived, sender, to),
            )
            for to, nbytes in sends.get(sender, [])
        ]

    def arrived(sender: int, receiver: int, now: int) -> list[Flow]:
        finishes[sender] = max(finishes[sender], now)
        finishes[receiver] = max(finishes[receiver], now + LATENCY)
        missing[receiver] -= 1
        return [] if missing[receiver] else ready(receiver)

    capacity: dict[Any, Rate] = {
        (way, rank): Fraction(rates[rank]) for way in ("out", "in") for rank in ranks
    }
    simulate([flow for rank in ranks if not missing[rank] for flow in ready(rank)], capacity)
    return finishes


def tree(ranks: int, nbytes: int) -> dict[int, list[tuple[int, int]]]:
    """As gloo/broadcast.cc: bits of a mask are cleared from the lowest on."""
    sends: dict[int, list[tuple[int, int]]] = {}
    bits = (ranks - 1).bit_length()
    for rank in range(ranks):
        mask = (1 << bits) - 1
        for bit in range(bits):
            mask ^= 1 << bit
            peer = rank ^ (1 << bit)
            if rank & mask == 0 and peer < ranks and not rank & (1 << bit):
                sends.setdefault(rank, []).append((peer, nbytes))
    return sends


CASES = st.integers(2, 9).flatmap(
    lambda ranks: st.tuples(
        st.lists(st.integers(0, 10**10), min_size=ranks, max_size=ranks),
        st.lists(st.integers(1, 10**6), min_size=ranks, max_size=ranks),
        st.lists(st.sampled_from([RATE, RATE // 2, RATE // 3]), min_size=ranks, max_size=ranks),
    )
)


@given(CASES)
def test_they_agree_with_the_oracle(case: tuple[list[int], list[int], list[int]]) -> None:
    starts, sizes, rates = case
    ranks, of = len(starts), with_cards(rates)
    start = np.array(starts, dtype=np.int64)
    pairs = [
        (gather_messages(sizes), {rank: [(0, sizes[rank])] for rank in range(1, ranks)}),
        (scatter_messages(sizes), {0: [(rank, sizes[rank]) for rank in range(1, ranks)]}),
        (broadcast_messages(sizes[0], ranks), tree(ranks, sizes[0])),
    ]
    for messages, sends in pairs:
        assert carry_messages(start, messages, of).tolist() == oracle(starts, sends, rates)


@pytest.mark.parametrize("power", [1, 2, 3, 4])
def test_a_broadcasts_copies_share_the_cards_of_the_ranks_that_send_them(power: int) -> None:
    """k (k + 1)/2 copies and k latencies, and the first receiver's announcement."""
    nbytes = 10**6
    of = with_cards([RATE] * 2**power)
    finishes = carry_messages(
        np.zeros(2**power, dtype=np.int64), broadcast_messages(nbytes, 2**power), of
    )
    copies = power * (power + 1) // 2
    assert int(finishes.max()) == copies * nbytes * 10**12 // RATE + (power + 1) * LATENCY


def test_a_gather_ends_when_all_have_passed_the_roots_card() -> None:
    of = with_cards([RATE] * 5)
    finishes = carry_messages(np.zeros(5, dtype=np.int64), gather_messages([1000] * 5), of)
    assert int(finishes[0]) == 4 * 1000 * 10**12 // RATE + 2 * LATENCY


def test_the_host_carries_every_message() -> None:
    host = Host(cores=1, per_message=Fraction(1, 1000), ranks="all")
    messages, starts = gather_messages([1000] * 5), np.zeros(5, dtype=np.int64)
    of = with_cards([RATE] * 5, host)
    assert messages_traffic(messages, of).ends.tolist() == [4, 1, 1, 1, 1]
    alone = int(carry_messages(starts, messages, with_cards([RATE] * 5)).max())
    slow = int(carry_messages(starts, messages, of).max())
    assert slow == host.combined_time(alone, 4 * 10**9)


def test_devices_of_a_node_do_not_use_its_card() -> None:
    of = cluster(2, 2, network=nic(RATE), intra_node=nic(10**10))
    finishes = carry_messages(np.zeros(4, dtype=np.int64), gather_messages([1000] * 4), of)
    assert int(finishes[1]) == LATENCY + 1000 * 10**12 // 10**10
    assert int(finishes[0]) == 2 * 1000 * 10**12 // RATE + 2 * LATENCY


def test_racks_are_not_known() -> None:
    of = cluster(4, racks=Racks(nodes=2, uplink=NETWORK))
    with pytest.raises(InternalError, match="racks"):
        carry_messages(np.zeros(4, dtype=np.int64), gather_messages([1] * 4), of)


def test_connections_have_limits_of_their_own() -> None:
    """Of four ranks: two copies at half the NIC's rate each, then one at the same."""
    nbytes = 10**6
    network = replace(nic(RATE), flow=Fraction(RATE, 2))
    of = replace(with_cards([RATE] * 4), network=network)
    finishes = carry_messages(np.zeros(4, dtype=np.int64), broadcast_messages(nbytes, 4), of)
    assert int(finishes.max()) == 2 * nbytes * 2 * 10**12 // RATE + 3 * LATENCY
