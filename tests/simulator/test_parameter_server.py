"""Does the parameter-server kernel agree with a simulation of every single flow?

The oracle has one SimPy process a flow and a network that raises all rates together until links
fill up; the kernel works with classes of flows and fair shares. Both keep exact rationals and
end a flow at the first whole picosecond at which its bytes are through. Comparisons are `==`.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import simpy
from hypothesis import given, settings
from hypothesis import strategies as st

from gcsim.simulator.clock import Times
from gcsim.simulator.collectives.fair_sharing import FlowClass, max_min_rates
from gcsim.simulator.collectives.parameter_server import parameter_server
from gcsim.simulator.links import Link

Wait = Generator[simpy.Event, Any, None]


def link(bandwidth: float | Fraction, latency: float | Fraction = 0) -> Link:
    return Link(name="test", bandwidth=Fraction(bandwidth), latency=Fraction(latency))


NETWORK = link(1_250_000_000, Fraction(50, 10**6))
BUS = link(12 * 10**9, Fraction(10, 10**6))


def times(values: Sequence[int]) -> Times:
    return np.array(values, dtype=np.int64)


class Network:
    """Shared links: at every change, all flows' rates rise together until their links are full."""

    def __init__(self, env: simpy.Environment) -> None:
        self.env = env
        self.capacity: dict[Any, Fraction] = {}
        self.flows: dict[simpy.Event, tuple[Fraction, list[Any]]] = {}
        self.rates: dict[simpy.Event, Fraction] = {}
        self.since: float = 0
        self.change = env.event()
        env.process(self.run())

    def carry(self, nbytes: int, links: list[Any]) -> simpy.Event:
        self.advance()
        done = self.env.event()
        self.flows[done] = (Fraction(nbytes), links)
        if not self.change.triggered:
            self.change.succeed()
        return done

    def advance(self) -> None:
        elapsed, self.since = self.env.now - self.since, self.env.now
        for flow, rate in self.rates.items():
            left, links = self.flows[flow]
            self.flows[flow] = (left - rate * int(elapsed), links)

    def fill(self) -> None:
        self.rates = dict.fromkeys(self.flows, Fraction(0))
        rising = set(self.flows)
        while rising:
            room = {}
            for name, capacity in self.capacity.items():
                users = [f for f in self.flows if name in self.flows[f][1]]
                moving = [f for f in users if f in rising]
                if moving:
                    room[name] = (capacity - sum(self.rates[f] for f in users)) / len(moving)
            step = min(room.values())
            for flow in rising:
                self.rates[flow] += step
            full = {name for name, left in room.items() if left == step}
            rising = {f for f in rising if not full.intersection(self.flows[f][1])}

    def run(self) -> Wait:
        while True:
            self.advance()
            for flow in [f for f, (left, _) in self.flows.items() if left <= 0]:
                del self.flows[flow]
                flow.succeed()
            self.fill()
            if self.change.triggered:
                self.change = self.env.event()
            if self.flows:
                next_end = min(
                    math.ceil(left / self.rates[flow]) for flow, (left, _) in self.flows.items()
                )
                yield self.change | self.env.timeout(next_end)
            else:
                self.rates = {}
                yield self.change


def oracle(
    entry: Sequence[int],
    pushed: Sequence[int],
    pulled: int,
    nodes: int,
    servers: int,
    network: Link,
    bus: Link,
    server_time: int,
) -> list[float]:
    env = simpy.Environment()
    net = Network(env)
    p = len(entry)
    node = [rank // (p // nodes) for rank in range(p)]
    home = [server % nodes for server in range(servers)]
    for k in range(nodes):
        net.capacity["out", k] = net.capacity["in", k] = (
            network.bandwidth * network.efficiency / 10**12
        )
    for rank in range(p):
        net.capacity["up", rank] = net.capacity["down", rank] = (
            bus.bandwidth * bus.efficiency / 10**12
        )
    pushes = [[env.event() for _ in range(p)] for _ in range(servers)]
    pulls = [[env.event() for _ in range(servers)] for _ in range(p)]
    exits: list[float] = [0] * p

    def stripe(nbytes: int, server: int) -> int:
        return (
            sum(1 for k in range(server, nbytes, servers))
            if nbytes < 5000
            else (nbytes // servers + (1 if server < nbytes % servers else 0))
        )

    def push(rank: int, server: int) -> Wait:
        same = node[rank] == home[server]
        links = [("up", rank)] if same else [("out", node[rank]), ("in", home[server])]
        yield net.carry(stripe(pushed[rank], server), links)
        yield env.timeout(round((bus if same else network).latency * 10**12))
        pushes[server][rank].succeed()

    def pull(rank: int, server: int) -> Wait:
        same = node[rank] == home[server]
        links = [("down", rank)] if same else [("out", home[server]), ("in", node[rank])]
        yield net.carry(stripe(pulled, server), links)
        yield env.timeout(round((bus if same else network).latency * 10**12))
        pulls[rank][server].succeed()

    def worker(rank: int) -> Wait:
        yield env.timeout(entry[rank])
        for server in range(servers):
            env.process(push(rank, server))
        yield env.all_of(pulls[rank])
        exits[rank] = env.now

    def serve(server: int) -> Wait:
        yield env.all_of(pushes[server])
        yield env.timeout(server_time)
        for rank in range(p):
            env.process(pull(rank, server))

    for rank in range(p):
        env.process(worker(rank))
    for server in range(servers):
        env.process(serve(server))
    env.run()
    return exits


@pytest.mark.parametrize("shape", [(1, 2), (1, 3), (2, 1), (2, 2), (3, 1), (3, 2), (5, 2)])
@pytest.mark.parametrize("servers", [1, 2, 3, 5])
@pytest.mark.parametrize("skew", ["none", "one late", "ascending", "ties"])
def test_kernel_is_the_simulation_of_every_flow(
    shape: tuple[int, int], servers: int, skew: str
) -> None:
    nodes, p = shape[0], shape[0] * shape[1]
    entry = {
        "none": [0] * p,
        "one late": [400_000_000 * (r == p // 2) for r in range(p)],
        "ascending": [r * 37_000_003 for r in range(p)],
        "ties": [(r % 2) * 200_000_000 for r in range(p)],
    }[skew]
    for pushed in ([200_000] * p, [(7919 * r) % 200_003 for r in range(p)]):
        case = (entry, pushed, 100_001, nodes, servers, NETWORK, BUS, 5_000_000)
        assert run(*case) == oracle(*case)


def run(
    entry: Sequence[int],
    pushed: Sequence[int],
    pulled: int,
    nodes: int,
    servers: int,
    network: Link,
    bus: Link,
    server_time: int,
) -> list[int]:
    exits: list[int] = parameter_server(
        times(entry),
        pushed,
        pulled,
        nodes=nodes,
        servers=servers,
        network=network,
        local=bus,
        server_time=server_time,
    ).tolist()
    return exits


@pytest.mark.parametrize(("nodes", "servers"), [(32, 1), (32, 4), (64, 1)])
def test_64_workers_are_the_simulation(nodes: int, servers: int) -> None:
    pushed = [64_000 + 1000 * (r % 2) for r in range(64)]
    case = ([0] * 64, pushed, 64_000, nodes, servers, NETWORK, BUS, 0)
    assert run(*case) == oracle(*case)


POOL = [
    link(10**12, Fraction(3, 10**12)),
    link(10**12 // 7, 0),
    link(5 * 10**11, Fraction(1, 10**6)),
]


@given(
    shape=st.tuples(st.integers(1, 4), st.integers(1, 3)),
    servers=st.integers(1, 4),
    pulled=st.integers(0, 40),
    server_time=st.sampled_from([0, 13]),
    data=st.data(),
)
@settings(max_examples=150, deadline=None)
def test_any_small_exchange_is_the_simulation_and_is_monotone(
    shape: tuple[int, int], servers: int, pulled: int, server_time: int, data: st.DataObject
) -> None:
    nodes, p = shape[0], shape[0] * shape[1]
    if p == 1:
        return
    clock = st.sampled_from([0, 7]) | st.integers(0, 60)
    entry = data.draw(st.lists(clock, min_size=p, max_size=p))
    size = st.sampled_from([0, 12]) | st.integers(0, 40)
    pushed = data.draw(st.lists(size, min_size=p, max_size=p))
    network, bus = data.draw(st.sampled_from(POOL)), data.draw(st.sampled_from(POOL))
    case = (pulled, nodes, servers, network, bus, server_time)
    base = run(entry, pushed, *case)
    assert base == oracle(entry, pushed, *case)
    assert min(base) >= max(entry)
    assert run([e + 10**9 for e in entry], pushed, *case) == [t + 10**9 for t in base]


@given(sizes=st.lists(st.integers(1, 50), min_size=2, max_size=6))
@settings(max_examples=50, deadline=None)
def test_incast_that_starts_together_ends_by_the_closed_form(sizes: list[int]) -> None:
    # t_i = sum over j <= i of (n - j + 1)(s_j - s_{j-1}) / C; one byte takes 1 ns. Node 0 holds
    # the server and a worker that pushes nothing; nothing is pulled.
    network, bus = link(10**9), link(10**15)
    pushed = [0, *(60 * size for size in sizes)]
    exits = run([0] * len(pushed), pushed, 0, len(pushed), 1, network, bus, 0)
    ordered, last = sorted(pushed[1:]), 0
    for j, size in enumerate(ordered):
        last += (len(ordered) - j) * (size - (ordered[j - 1] if j else 0)) * 1000
    assert set(exits) == {last}
    assert last == sum(pushed) * 1000  # the card is busy throughout


def test_one_server_far_away_is_bound_by_its_card() -> None:
    # 8 nodes x 1, server on node 0: 7 pushes of 1 MB in, 7 pulls of 1 MB out, 2 latencies
    exits = run([0] * 8, [1_000_000] * 8, 1_000_000, 8, 1, NETWORK, BUS, 10**9)
    assert max(exits) == 2 * (7 * 800_000_000 + 50_000_000) + 10**9


def test_a_server_on_every_node_spreads_the_load_evenly() -> None:
    # 8 nodes x 1, 8 servers: each card carries 7/8 MB each way, twice
    exits = run([0] * 8, [1_000_000] * 8, 1_000_000, 8, 8, NETWORK, BUS, 0)
    assert exits == [2 * (700_000_000 + 50_000_000)] * 8


def test_doubling_bandwidth_at_zero_latency_halves_the_time() -> None:
    one, two = (
        run([0] * 6, [720_000] * 6, 360_000, 3, 3, link(n * 10**9), link(n * 10**10), 0)
        for n in (1, 2)
    )
    assert one == [2 * t for t in two]


def test_workers_of_one_node_share_its_card() -> None:
    # 2 nodes, server on node 0; node 1 has one or two workers. Pulls follow in the same way.
    alone = run([0] * 2, [10**6] * 2, 0, 2, 1, link(10**9), link(10**15), 0)
    shared = run([0] * 4, [10**6] * 4, 0, 2, 1, link(10**9), link(10**15), 0)
    assert (alone, shared) == ([10**9] * 2, [2 * 10**9] * 4)


def test_max_min_rates_on_two_links_are_those_worked_by_hand() -> None:
    # a and b share link 1 (capacity 10); b and c share link 2 (capacity 4): b = c = 2, a = 8
    flows = [
        FlowClass(nbytes=1, loads={1: 1}),
        FlowClass(nbytes=1, loads={1: 1, 2: 1}),
        FlowClass(nbytes=1, loads={2: 1}),
    ]
    assert max_min_rates(flows, {1: Fraction(10), 2: Fraction(4)}) == [8, 2, 2]


def test_64_workers_and_32_servers_load_every_card_alike() -> None:
    # 32 nodes x 2, a server on each: stripes of 32 kB; each card carries 2 x 31 of them each way
    exits = run([0] * 64, [1_024_000] * 64, 1_024_000, 32, 32, NETWORK, BUS, 10**6)
    assert exits == [2 * (2 * 31 * 32_000 * 800 + 50_000_000) + 10**6] * 64
