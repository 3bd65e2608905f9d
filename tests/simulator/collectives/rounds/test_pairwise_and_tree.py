"""Do all-to-all and tree merge agree with simulations of every single message?

The oracles have a SimPy process a rank and a mailbox a message; they learn what other messages
of a round there are from the pseudo-code.
Comparisons are `==` in picoseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import simpy
from hypothesis import given
from hypothesis import strategies as st

from gcsim.compressors.lockstep import CollectiveRecord
from gcsim.simulator.cluster import Cluster, Racks
from gcsim.simulator.collectives.dispatch import execute
from gcsim.simulator.collectives.rounds import direct_exchange
from gcsim.simulator.collectives.rounds.alltoall_allgather_allreduce import (
    alltoall_allgather_allreduce,
)
from gcsim.simulator.collectives.rounds.pairwise_alltoall import pairwise_alltoall
from gcsim.simulator.collectives.rounds.tree_merge import tree_merge
from gcsim.simulator.fabric.rounds import Fabric
from gcsim.simulator.network.jitter import draw_jitter
from gcsim.simulator.network.links import Jitter, Link, Loss, SizeFactor
from gcsim.simulator.network.paths import path, slowed, through
from gcsim.simulator.network.rate_trace import RateTrace
from tests.simulator.world import NETWORK, PS, cluster, times

Wait = Generator[simpy.Event, Any, None]


def part(nbytes: int, ranks: int, number: int) -> int:
    """Sizes differ by at most one byte, the longer first."""
    return nbytes // ranks + (number < nbytes % ranks)


class World:
    """Ranks with one process each; the messages of a round share what they pass."""

    def __init__(self, of: Cluster, starts: Sequence[int], key: int) -> None:
        self.env, self.of, self.key = simpy.Environment(), of, key
        self.starts, self.p = starts, len(starts)
        self.boxes: dict[tuple[int, int, object], simpy.Store] = {}
        self.sent = [0] * self.p
        self.finishes: list[float] = [0] * self.p

    def path(self, a: int, b: int, beside: Sequence[tuple[int, int]]) -> Link:
        """With the messages `beside` this one, itself included, in the same round."""
        of = self.of

        def node(rank: int) -> int:
            return rank // of.devices_per_node

        across = [(x, y) for x, y in beside if node(x) != node(y)]
        if node(a) == node(b):
            mates = sum(node(x) == node(y) == node(a) for x, y in beside)
            return slowed(of.intra_node, mates if of.shared_bus else 1)
        out = sum(node(x) == node(a) for x, _ in across)
        into = sum(node(y) == node(b) for _, y in across)
        nics = [of.nic(node(a)), of.nic(node(b))]
        air = sum(of.nic(node(end)).shared for message in across for end in message)
        out, into = (air if nic.shared else own for nic, own in zip(nics, (out, into), strict=True))
        found = path(nics[0], nics[1], out, into)
        if of.racks is not None:
            size = of.racks.nodes * of.devices_per_node
            away = [(x // size, y // size) for x, y in across if x // size != y // size]
            if a // size != b // size:
                leaving = sum(x == a // size for x, _ in away)
                reaching = sum(y == b // size for _, y in away)
                found = through(found, of.racks.uplink, max(leaving, reaching))
        return found

    def send(
        self, a: int, b: int, label: object, nbytes: int, beside: Sequence[tuple[int, int]]
    ) -> Wait:
        on, number, now = self.path(a, b, beside), self.sent[a], int(self.env.now)
        self.sent[a] += 1
        late = draw_jitter([on], times([0]), nbytes, key=self.key, message=number, rank=times([a]))
        yield self.env.timeout(on.departure(now, nbytes) - now)
        self.env.process(self.deliver(a, b, label, on.latency_for(nbytes) + int(late[0])))

    def deliver(self, a: int, b: int, label: object, latency: int) -> Wait:
        yield self.env.timeout(latency)
        yield self.box(a, b, label).put(None)

    def box(self, a: int, b: int, label: object) -> simpy.Store:
        return self.boxes.setdefault((a, b, label), simpy.Store(self.env))

    def run(self, program: Callable[[int], Wait]) -> list[float]:
        def live(rank: int) -> Wait:
            yield self.env.timeout(self.starts[rank])
            yield from program(rank)
            self.finishes[rank] = self.env.now

        for rank in range(self.p):
            self.env.process(live(rank))
        self.env.run()
        return self.finishes

    def to_each(
        self, rank: int, part: str, nbytes: Callable[[int, int], int], gamma: int = 0
    ) -> Wait:
        """Sends to rank + 1, rank + 2, ... and receives from rank - 1, rank - 2, ..."""
        for step in range(1, self.p):
            to, back = (rank + step) % self.p, (rank - step) % self.p
            beside = [(r, (r + step) % self.p) for r in range(self.p)]
            sending = self.env.process(self.send(rank, to, (part, step), nbytes(rank, to), beside))
            yield self.box(back, rank, (part, step)).get()
            yield sending
            yield self.env.timeout(gamma * nbytes(back, rank))


def alltoall_oracle(world: World, sent: Sequence[int]) -> list[float]:
    def worker(rank: int) -> Wait:
        yield from world.to_each(rank, "all", lambda a, b: part(sent[a], world.p, b))

    return world.run(worker)


def reduce_oracle(world: World, nbytes: int, element: int, gamma: int) -> list[float]:
    chunk = [part(nbytes // element, world.p, r) * element for r in range(world.p)]
    chunk[-1] += nbytes % element

    def worker(rank: int) -> Wait:
        yield from world.to_each(rank, "sum", lambda a, b: chunk[b], gamma)
        yield from world.to_each(rank, "tell", lambda a, b: chunk[a])

    return world.run(worker)


def merge_oracle(world: World, sent: Sequence[int], result: int, merge_time: int) -> list[float]:
    p = world.p

    def family(rank: int) -> list[int]:
        """Children: rank + 2^j below the lowest set bit of rank; the parent clears that bit."""
        found, bit = [], 1
        while bit < p and not rank & bit:
            found += [rank + bit] if rank + bit < p else []
            bit *= 2
        return found

    def beside(distance: int, *, up: bool) -> list[tuple[int, int]]:
        pairs = [(c, r) for r in range(p) for c in family(r) if c - r == distance]
        return pairs if up else [(r, c) for c, r in pairs]

    def worker(rank: int) -> Wait:
        nbytes = sent[rank]
        for child in family(rank):
            yield world.box(child, rank, "up").get()
            yield world.env.timeout(merge_time)
            nbytes = result
        if rank:
            parent = rank & (rank - 1)
            others = beside(rank - parent, up=True)
            yield world.env.process(world.send(rank, parent, "up", nbytes, others))
            yield world.box(parent, rank, "down").get()
        for child in reversed(family(rank)):
            others = beside(child - rank, up=False)
            yield world.env.process(world.send(rank, child, "down", result, others))

    return world.run(worker)


entries = st.integers(0, 10**9)
sizes = st.integers(0, 10**6)


SLOW = Link(name="slow", bandwidth=Fraction(125 * 10**6), latency=Fraction(90, 10**6))
LATE = replace(
    NETWORK,
    jitter=(Jitter(distribution="exponential", mean=Fraction(1, 5000)),),
    loss=Loss(rate=Fraction(1, 10**4), model="sampled"),
    overhead=Fraction(1, 10**6),
    factors=(SizeFactor(from_bytes=2000, bandwidth=Fraction(9, 10), latency=Fraction(2)),),
)
CHANGING = replace(
    NETWORK,
    trace=RateTrace(
        times=(Fraction(0), Fraction(1, 10**4), Fraction(2, 10**4)),
        rates=(Fraction(10**9), Fraction(0), Fraction(10**8)),
        duration=Fraction(1, 1000),
        after="repeat",
    ),
)
POOL = [NETWORK, SLOW, replace(NETWORK, shared=True), LATE, CHANGING]


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    """One kind of link most often: what the kernels have short cuts for."""
    nodes = draw(st.integers(1, 6))
    network = draw(st.sampled_from(POOL))
    nics = {}
    if draw(st.booleans()):
        nics = {node: draw(st.sampled_from(POOL)) for node in range(nodes)}
    racks = None
    if draw(st.booleans()):
        racks = Racks(nodes=draw(st.integers(1, nodes)), uplink=draw(st.sampled_from([SLOW, LATE])))
    return replace(
        cluster(nodes),
        devices_per_node=draw(st.sampled_from([1, 1, 2, 3])),
        network=network,
        nics=nics,
        racks=racks,
        shared_bus=draw(st.booleans()),
    )


seeds = st.integers(0, 2**64 - 1)


@given(of=clusters(), key=seeds, data=st.data())
def test_all_to_all_equals_a_simulation_of_every_message(
    of: Cluster, key: int, data: st.DataObject
) -> None:
    p = of.workers
    starts = data.draw(st.lists(entries, min_size=p, max_size=p))
    sent = data.draw(st.lists(sizes, min_size=p, max_size=p))
    fabric = Fabric.of(of)
    got = pairwise_alltoall(sent, fabric)(times(starts), key)
    assert got.tolist() == alltoall_oracle(World(of, starts, key), sent)


@given(of=clusters(), key=seeds, data=st.data())
def test_all_reduce_by_owners_equals_a_simulation_of_every_message(
    of: Cluster, key: int, data: st.DataObject
) -> None:
    starts = data.draw(st.lists(entries, min_size=of.workers, max_size=of.workers))
    nbytes, element = data.draw(sizes), data.draw(st.sampled_from([1, 4]))
    gamma = data.draw(st.sampled_from([0, 25]))
    fabric = Fabric.of(of)
    got = alltoall_allgather_allreduce(nbytes, fabric, element=element, gamma=gamma * PS)(
        times(starts), key
    )
    world = World(of, starts, key)
    assert got.tolist() == reduce_oracle(world, nbytes, element, gamma)


@pytest.mark.parametrize("p", [2, 5, 8])
def test_what_is_left_of_an_element_goes_to_the_last_rank(p: int) -> None:
    of, starts = cluster(p), [0] * p
    got = alltoall_allgather_allreduce(4 * p + 3, Fabric.of(of), element=4)(times(starts))
    assert got.tolist() == reduce_oracle(World(of, starts, 0), 4 * p + 3, 4, 0)
    # 3 bytes more for each that is sent to rank p - 1, and for all that it sends
    assert got.max() > 2 * (p - 1) * (NETWORK.serialization(4) + NETWORK.latency_ps)


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("network", [NETWORK, LATE, CHANGING], ids=lambda link: link.name)
def test_many_ranks_round_by_round_are_the_simulation(
    monkeypatch: pytest.MonkeyPatch, network: Link, devices: int
) -> None:
    monkeypatch.setattr(direct_exchange, "_WORTH_ITS_MEMORY", 0)
    of = replace(cluster(32 // devices), devices_per_node=devices, network=network)
    starts = [rank % 3 * 10**8 for rank in range(32)]
    sent = [100_000 + 77 * rank for rank in range(32)]
    fabric = Fabric.of(of)
    got = pairwise_alltoall(sent, fabric)(times(starts), 5)
    assert got.tolist() == alltoall_oracle(World(of, starts, 5), sent)


def cards_of_all_kinds(nodes: int) -> Cluster:
    """Rates and latencies of their own, odd and even picoseconds."""
    nics = {
        node: Link(
            name=f"NIC {node}",
            bandwidth=Fraction(10**9 + 7919 * node**2 % 10**9),
            latency=Fraction(50_000_000 + 37 * node % 11, 10**12),
        )
        for node in range(nodes)
    }
    return replace(cluster(nodes), nics=nics)


@pytest.mark.parametrize("uneven", [False, True])
@pytest.mark.parametrize("p", [9, 150])
def test_messages_that_see_two_cards_see_the_path_between_them(
    monkeypatch: pytest.MonkeyPatch, p: int, uneven: bool
) -> None:
    of = cards_of_all_kinds(p)
    starts = times([(rank * 7919) % 4001 * 10**6 for rank in range(p)])
    sent = [100_003 + 70 * (rank % 3) * uneven for rank in range(p)]

    def both(fabric: Fabric) -> list[list[int]]:
        all_reduced = alltoall_allgather_allreduce(
            100_003, fabric, element=4, gamma=Fraction(25, 10**12)
        )(starts)
        return [pairwise_alltoall(sent, fabric)(starts).tolist(), all_reduced.tolist()]

    by_cards = both(Fabric.of(of))
    monkeypatch.setattr(direct_exchange.NicExchange, "of", lambda *arguments: None)
    assert by_cards == both(Fabric.of(of))
    if p == 9:
        assert by_cards[0] == alltoall_oracle(World(of, starts.tolist(), 0), sent)


@pytest.mark.parametrize("p", [2, 3, 64])
def test_equal_parts_take_p_minus_one_messages(p: int) -> None:
    n = 64 * p * 1000  # closed form: (p - 1) (alpha + n/p beta)
    fabric = Fabric.of(cluster(p))
    got = pairwise_alltoall([n] * p, fabric)(times([0] * p))
    each = NETWORK.serialization(n // p) + NETWORK.latency_ps
    assert got.tolist() == [(p - 1) * each] * p
    got = alltoall_allgather_allreduce(n, fabric, element=4, gamma=25 * PS)(times([0] * p))
    assert got.tolist() == [(p - 1) * (2 * each + 25 * (n // p))] * p


@given(of=clusters(), key=seeds, data=st.data())
def test_tree_merge_equals_a_simulation_of_every_message(
    of: Cluster, key: int, data: st.DataObject
) -> None:
    p = of.workers
    starts = data.draw(st.lists(entries, min_size=p, max_size=p))
    sent = data.draw(st.lists(sizes, min_size=p, max_size=p))
    result, merge_time = data.draw(sizes), data.draw(entries)
    fabric = Fabric.of(of)
    got = tree_merge(sent, result, fabric, merge_time=merge_time)(times(starts), key)
    assert got.tolist() == merge_oracle(World(of, starts, key), sent, result, merge_time)


@pytest.mark.parametrize("p", [2, 4, 64])
def test_the_last_rank_waits_for_log_p_merges_and_as_many_messages_back(p: int) -> None:
    # closed form for powers of two: log2 p (message + merge), then log2 p messages
    rounds = p.bit_length() - 1
    message = NETWORK.serialization(5000) + NETWORK.latency_ps
    got = tree_merge([5000] * p, 5000, Fabric.of(cluster(p)), merge_time=777)(times([0] * p))
    assert max(got.tolist()) == rounds * (message + 777) + rounds * message


def test_parts_of_a_whole_shrink_with_the_number_of_workers() -> None:
    # recorded with 2 workers of 4000 bytes: 8000 in all; 8 workers have 1000 each
    whole = CollectiveRecord(kind="all_gather", sent=(4000, 4000), part=True)
    apart = CollectiveRecord(kind="all_gather", sent=(1000,) * 8)
    starts = times([0] * 8)
    assert (
        execute(whole, starts, cluster(8)).tolist() == execute(apart, starts, cluster(8)).tolist()
    )


def test_an_all_to_all_of_unequal_parts_exchanges_lengths_first() -> None:
    plain = CollectiveRecord(kind="all_to_all", sent=(8000, 8000))
    variable = CollectiveRecord(kind="all_to_all", sent=(8000, 8000), variable=True)
    starts = times([0] * 4)
    extra = 3 * (NETWORK.serialization(8) + NETWORK.latency_ps)
    both = [execute(record, starts, cluster(4)).tolist() for record in (plain, variable)]
    assert [b - a for a, b in zip(*both, strict=True)] == [extra] * 4


def test_groups_of_sends_reach_their_share_of_the_network() -> None:
    """By hand: 3 parts of 5 MB at half of 1.25 GB/s, 50 us each; inside a node as before."""
    whole = cluster(4)
    half = replace(whole, collectives=replace(whole.collectives, grouped=Fraction(1, 2)))
    record = CollectiveRecord(kind="all_to_all", sent=(20_000_000,) * 4)
    starts = np.zeros(4, dtype=np.int64)
    assert execute(record, starts, half).max() == 3 * (8 * 10**9 + 50 * 10**6)
    reduced = CollectiveRecord(kind="all_reduce", sent=(20_000_000,) * 4, element=4)
    assert (execute(reduced, starts, half) == execute(reduced, starts, whole)).all()
    one_node = replace(half, nodes=1, devices_per_node=4)
    assert (
        execute(record, starts, one_node)
        == execute(record, starts, replace(one_node, collectives=whole.collectives))
    ).all()
