"""Do all-to-all and tree merge agree with simulations of every single message?

The oracles have a SimPy process a rank and a mailbox a message; they know nothing of rounds.
Comparisons are `==` in picoseconds.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import simpy
from hypothesis import given, settings
from hypothesis import strategies as st

from gcsim.compressors.lockstep import CollectiveRecord
from gcsim.simulator.clock import Times
from gcsim.simulator.cluster import Cluster
from gcsim.simulator.collectives.dispatch import carry_out
from gcsim.simulator.collectives.pairwise_alltoall import pairwise_alltoall
from gcsim.simulator.collectives.tree_merge import tree_merge
from gcsim.simulator.device import Device
from gcsim.simulator.links import Link

Wait = Generator[simpy.Event, Any, None]

NETWORK = Link(name="net", bandwidth=Fraction(1_250_000_000), latency=Fraction(50, 10**6))
BUS = Link(name="bus", bandwidth=Fraction(12 * 10**9), latency=Fraction(10, 10**6))


def times(values: Sequence[int]) -> Times:
    return np.array(values, dtype=np.int64)


def part(nbytes: int, ranks: int, number: int) -> int:
    """Sizes differ by at most one byte, the longer first."""
    return nbytes // ranks + (number < nbytes % ranks)


def alltoall_oracle(entry: Sequence[int], sent: Sequence[int], nodes: int) -> list[float]:
    env = simpy.Environment()
    p, d = len(entry), len(entry) // nodes
    boxes = {(a, b): simpy.Store(env) for a in range(p) for b in range(p)}
    exits: list[float] = [0] * p

    def deliver(a: int, b: int, latency: int) -> Wait:
        yield env.timeout(latency)
        yield boxes[a, b].put(None)

    def send(rank: int, step: int) -> Wait:
        to = (rank + step) % p
        node = rank // d
        if to // d == node:
            link, flows = BUS, 1
        else:
            mates = range(node * d, (node + 1) * d)
            link, flows = NETWORK, sum(1 for m in mates if (m + step) % p // d != node)
        yield env.timeout(flows * link.serialization(part(sent[rank], p, to)))
        env.process(deliver(rank, to, link.latency_ps))

    def worker(rank: int) -> Wait:
        yield env.timeout(entry[rank])
        for step in range(1, p):
            sending = env.process(send(rank, step))
            yield boxes[(rank - step) % p, rank].get()
            yield sending
        exits[rank] = env.now

    for rank in range(p):
        env.process(worker(rank))
    env.run()
    return exits


def merge_oracle(
    entry: Sequence[int], sent: Sequence[int], result: int, merge_time: int
) -> list[float]:
    env = simpy.Environment()
    p = len(entry)
    boxes = {(a, b): simpy.Store(env) for a in range(p) for b in range(p)}
    exits: list[float] = [0] * p

    def deliver(a: int, b: int) -> Wait:
        yield env.timeout(NETWORK.latency_ps)
        yield boxes[a, b].put(None)

    def send(a: int, b: int, nbytes: int) -> Wait:
        yield env.timeout(NETWORK.serialization(nbytes))
        env.process(deliver(a, b))

    def worker(rank: int) -> Wait:
        yield env.timeout(entry[rank])
        # children: rank + 2^j below the lowest set bit of rank; the parent clears that bit
        children = []
        bit = 1
        while bit < p and not rank & bit:
            if rank + bit < p:
                children.append(rank + bit)
            bit *= 2
        nbytes = sent[rank]
        for child in children:
            yield boxes[child, rank].get()
            yield env.timeout(merge_time)
            nbytes = result
        if rank:
            parent = rank & (rank - 1)
            yield env.process(send(rank, parent, nbytes))
            yield boxes[parent, rank].get()
        for child in reversed(children):
            yield env.process(send(rank, child, result))
        exits[rank] = env.now

    for rank in range(p):
        env.process(worker(rank))
    env.run()
    return exits


entries = st.integers(0, 10**9)
sizes = st.integers(0, 10**6)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_all_to_all_equals_a_simulation_of_every_message(data: st.DataObject) -> None:
    nodes, devices = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 3))
    p = nodes * devices
    entry = data.draw(st.lists(entries, min_size=p, max_size=p))
    sent = data.draw(st.lists(sizes, min_size=p, max_size=p))
    got = pairwise_alltoall(times(entry), sent, nodes=nodes, network=NETWORK, local=BUS)
    assert got.tolist() == alltoall_oracle(entry, sent, nodes)


@pytest.mark.parametrize("p", [2, 3, 64])
def test_equal_parts_take_p_minus_one_messages(p: int) -> None:
    n = 64 * p * 1000  # closed form: (p - 1) (alpha + n/p beta)
    got = pairwise_alltoall(times([0] * p), [n] * p, nodes=p, network=NETWORK, local=BUS)
    each = NETWORK.serialization(n // p) + NETWORK.latency_ps
    assert got.tolist() == [(p - 1) * each] * p


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_tree_merge_equals_a_simulation_of_every_message(data: st.DataObject) -> None:
    p = data.draw(st.integers(1, 17))
    entry = data.draw(st.lists(entries, min_size=p, max_size=p))
    sent = data.draw(st.lists(sizes, min_size=p, max_size=p))
    result, merge_time = data.draw(sizes), data.draw(entries)
    got = tree_merge(times(entry), sent, result, link=lambda a, b: NETWORK, merge_time=merge_time)
    assert got.tolist() == merge_oracle(entry, sent, result, merge_time)


@pytest.mark.parametrize("p", [2, 4, 64])
def test_the_last_rank_waits_for_log_p_merges_and_as_many_messages_back(p: int) -> None:
    # closed form for powers of two: log2 p (message + merge), then log2 p messages
    rounds = p.bit_length() - 1
    message = NETWORK.serialization(5000) + NETWORK.latency_ps
    got = tree_merge(times([0] * p), [5000] * p, 5000, link=lambda a, b: NETWORK, merge_time=777)
    assert max(got.tolist()) == rounds * (message + 777) + rounds * message


def cluster(nodes: int) -> Cluster:
    return Cluster(
        nodes=nodes,
        devices_per_node=1,
        device=Device(name="any", title="any", kernels={}, effective_flop_rate=1.0, source="none"),
        network=NETWORK,
        intra_node=BUS,
    )


def test_parts_of_a_whole_shrink_with_the_number_of_workers() -> None:
    # recorded with 2 workers of 4000 bytes: 8000 in all; 8 workers have 1000 each
    whole = CollectiveRecord(kind="all_gather", sent=(4000, 4000), part=True)
    apart = CollectiveRecord(kind="all_gather", sent=(1000,) * 8)
    entry = times([0] * 8)
    assert (
        carry_out(whole, entry, cluster(8)).tolist() == carry_out(apart, entry, cluster(8)).tolist()
    )


def test_an_all_to_all_of_unequal_parts_exchanges_lengths_first() -> None:
    plain = CollectiveRecord(kind="all_to_all", sent=(8000, 8000))
    variable = CollectiveRecord(kind="all_to_all", sent=(8000, 8000), variable=True)
    entry = times([0] * 4)
    extra = 3 * (NETWORK.serialization(8) + NETWORK.latency_ps)
    both = [carry_out(record, entry, cluster(4)).tolist() for record in (plain, variable)]
    assert [b - a for a, b in zip(*both, strict=True)] == [extra] * 4
