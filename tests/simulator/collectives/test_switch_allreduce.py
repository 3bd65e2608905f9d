"""All-reduces that switches add up, against closed forms worked out message by message in Python,
and against an event simulation in which vectors cross cables and switches piece by piece.

On links without random delays; entries differ. The tuner's times are worked out by hand from
src/graph/tuning.cc; rates of real machines are those of `gcsim validate racks`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Hashable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
import simpy
from hypothesis import given
from hypothesis import strategies as st

from gcsim.simulator.cluster import Cluster
from gcsim.simulator.collectives import nccl
from gcsim.simulator.collectives.call import Call
from gcsim.simulator.network.links import Link
from tests.simulator import world
from tests.simulator.world import skews, times

MODE = {mode.name: mode for mode in nccl.MODES}
NVLINK = replace(world.link(400 * 10**9, Fraction(0)), name="nvlink", switch_adds=Fraction(3, 4))
NIC = world.link(50 * 10**9, Fraction(2, 10**6))
SHARP = replace(NIC, switch_adds=Fraction(1, 2))
PS = 10**12


def cluster(nodes: int, devices: int, network: Link = NIC, bus: Link = NVLINK) -> Cluster:
    return world.cluster(nodes, devices, network=network, intra_node=bus)


def finishes(on: Cluster, mode: str, nbytes: int, starts: list[int]) -> list[int]:
    call = Call(sent=(nbytes,) * on.workers, element=4, cluster=on)
    found: list[int] = nccl.prepare_allreduce(call, MODE[mode])(times(starts)).tolist()
    return found


@pytest.mark.parametrize("entries", ["none", "ascending", "ties"])
@pytest.mark.parametrize("network", [NIC, SHARP], ids=["one node", "nodes"])
def test_each_device_sends_and_receives_its_vector_once(entries: str, network: Link) -> None:
    nodes = 1 if network is NIC else 3
    on, nbytes = cluster(nodes, 4, network), 12_000_000
    starts = list(skews(on.workers)[entries])
    added = round(nbytes * PS / (Fraction(3, 4) * 400 * 10**9))  # by the NVLink's switch
    crossed = round(nbytes * PS / (Fraction(1, 2) * 50 * 10**9))  # by the network's
    ready = [max(starts[4 * n : 4 * n + 4]) + 25_000_000 for n in range(nodes)]
    latency = 20_000_000 if nodes > 1 else 0  # 2 us and the tuner's 18
    slower = max(added, crossed if nodes > 1 else 0)
    expected = on.workers * [max(ready) + slower + latency]
    assert finishes(on, "nccl_nvls_simple", nbytes, starts) == expected


def test_an_nvls_tree_is_the_tree_of_nodes_between_the_nodes_own_sums() -> None:
    on, nbytes = cluster(4, 2), 1 << 20
    starts = list(skews(8)["ascending"])
    alone = cluster(4, 1, bus=replace(NVLINK, switch_adds=None))
    call = Call(sent=(nbytes,) * 4, element=4, cluster=alone)
    tree = replace(MODE["nccl_tree_simple"], share=Fraction(1), base=Fraction(0))
    tree = replace(tree, net=MODE["nccl_nvls_tree_simple"].net)
    ready = [max(starts[2 * n : 2 * n + 2]) + 25_000_000 for n in range(4)]
    between = nccl.prepare_allreduce(call, tree)(times(ready)).tolist()
    assert min(between) > max(ready) + round(nbytes * PS / (300 * 10**9)) + 30_000_000
    expected = [node for node in between for _ in range(2)]
    assert finishes(on, "nccl_nvls_tree_simple", nbytes, starts) == expected


Wait = Generator[simpy.Event, Any, None]


class Pieces:
    """A vector's pieces go up from devices to a node's switch and from nodes to the network's, and
    down again. A switch passes a piece on when all below it have sent theirs."""

    def __init__(self, on: Cluster, starts: list[int], nbytes: int, pieces: int) -> None:
        self.env, self.on = simpy.Environment(), on
        self.cables: dict[Hashable, simpy.Resource] = {}
        self.arrived: Counter[Hashable] = Counter()
        self.finishes = [Fraction(0)] * on.workers
        size = Fraction(nbytes * PS, pieces)
        self.bus = size / (on.intra_node.bandwidth * (on.intra_node.switch_adds or 1))
        self.nic = size / (on.network.bandwidth * (on.network.switch_adds or 1))
        self.bus *= on.devices_per_node > 1
        self.nic *= on.nodes > 1
        for rank, start in enumerate(starts):
            self.env.process(self.device(rank, start, pieces))
        self.env.run()

    def after(self, time: Fraction) -> simpy.Event:
        return self.env.timeout(time)  # type: ignore[arg-type]  # exact

    def cross(self, cable: Hashable, time: Fraction) -> Wait:
        with self.cables.setdefault(cable, simpy.Resource(self.env)).request() as turn:
            yield turn
            yield self.after(time)

    def device(self, rank: int, start: int, pieces: int) -> Wait:
        yield self.after(Fraction(start + 25_000_000))
        for piece in range(pieces):
            yield from self.cross(("bus up", rank), self.bus)
            self.env.process(self.up(rank // self.on.devices_per_node, piece))

    def up(self, node: int, piece: int) -> Wait:
        self.arrived[node, piece] += 1
        if self.arrived[node, piece] < self.on.devices_per_node:
            return
        half = Fraction(20_000_000, 2) * (self.on.nodes > 1)  # the NIC's 2 us and the tuner's 18
        yield from self.cross(("NIC out", node), self.nic)
        yield self.after(half)
        self.arrived[piece] += 1
        if self.arrived[piece] < self.on.nodes:
            return
        for other in range(self.on.nodes):
            self.env.process(self.down(other, half))

    def down(self, node: int, half: Fraction) -> Wait:
        yield self.after(half)
        yield from self.cross(("NIC in", node), self.nic)
        for device in range(self.on.devices_per_node):
            self.env.process(self.end(node * self.on.devices_per_node + device))

    def end(self, rank: int) -> Wait:
        yield from self.cross(("bus down", rank), self.bus)
        self.finishes[rank] = Fraction(self.env.now)


@given(
    shape=st.tuples(st.integers(1, 4), st.integers(1, 4)).filter(lambda shape: shape != (1, 1)),
    rates=st.tuples(*[st.integers(10**9, 10**12)] * 2),
    nbytes=st.integers(1, 10**9),
    pieces=st.integers(1, 30),
    data=st.data(),
)
def test_switches_that_pass_pieces_on_take_a_piece_per_cable_longer(
    shape: tuple[int, int], rates: tuple[int, int], nbytes: int, pieces: int, data: st.DataObject
) -> None:
    """A pipeline takes the slowest cable's time for all pieces and the others' for one; the closed
    form, of infinitely many pieces, the first alone."""
    bus, network = (
        replace(link, bandwidth=Fraction(rate))
        for link, rate in zip((NVLINK, SHARP), rates, strict=True)
    )
    on = cluster(*shape, network, bus)
    late = st.just(0) | st.integers(0, 10**9)
    starts = data.draw(st.lists(late, min_size=on.workers, max_size=on.workers))
    simulated = Pieces(on, starts, nbytes, pieces)
    more = 2 * (simulated.bus + simulated.nic) - max(simulated.bus, simulated.nic)
    closed = finishes(on, "nccl_nvls_simple", nbytes, starts)
    for one, other in zip(simulated.finishes, closed, strict=True):
        assert other - 1 <= one <= other + more + 1


@pytest.mark.parametrize(
    ("mode", "nbytes", "on", "microseconds"),
    [
        ("nccl_nvls_simple", 10**9, cluster(1, 8), 25 + 10**9 / (0.85 * 400e3)),
        # between nodes, of 16 ranks, a NIC of 50 GB/s or 1.7 of 7/8 of the NVLink
        ("nccl_nvls_simple", 10**6, cluster(2, 8, SHARP), 43 + 1.875e6 / 50e3),
        ("nccl_nvls_tree_simple", 10**6, cluster(2, 8), 25 + 2 * 20.9 + 1.875e6 / 100e3),
        ("nccl_nvls_tree_simple", 10**6, cluster(8, 2), 25 + 6 * 20.9 + 1.875e6 / 50e3),
        ("nccl_collnet_simple", 10**6, cluster(4, 2, SHARP), 2 * 2.8 + 30 + 2e6 / 50e3),
        # an LL ring in a node: half of 400 GB/s, at most 141 on the devices that have NVLS
        ("nccl_ring_ll", 8, cluster(1, 8), 6.6 + 14 * 0.6 + 14 / 141e3),
        # between nodes a step of a Simple ring inside a node takes 3.4 us, an LL one 1 and not 0.6
        ("nccl_ring_simple", 8, cluster(2, 2), 8.4 + 4 * 3.4 + 2 * 14 + 12 / 50e3),
        ("nccl_ring_ll", 8, cluster(2, 2), 6.6 + 4 * 1 + 2 * 2.7 + 12 / 25e3),
    ],
)
def test_the_tuners_times(mode: str, nbytes: int, on: Cluster, microseconds: float) -> None:
    found = float(nccl.predicted(MODE[mode], "all_reduce", nbytes, on)) * 1e6
    assert found == pytest.approx(microseconds, rel=1e-6)


@pytest.mark.parametrize(
    ("on", "shapes"),
    [
        (cluster(1, 8), {"ring", "tree", "nvls"}),
        (cluster(1, 1), {"ring", "tree"}),
        (cluster(2, 8), {"ring", "tree", "nvls_tree"}),
        (cluster(2, 8, SHARP), {"ring", "tree", "nvls_tree", "nvls"}),
        (cluster(2, 8, SHARP, replace(NVLINK, switch_adds=None)), {"ring", "tree", "collnet"}),
        (cluster(2, 8, NIC, NIC), {"ring", "tree"}),
    ],
)
def test_switches_that_add_decide_what_the_tuner_may_take(on: Cluster, shapes: set[str]) -> None:
    assert {mode.shape for mode in nccl.enabled("all_reduce", on)} == shapes
    assert {mode.shape for mode in nccl.enabled("all_gather", on)} == {"ring"}


def test_a_long_vector_in_a_node_goes_by_the_switch_and_a_short_one_by_ll() -> None:
    on = cluster(1, 8)
    short, long = (nccl.choose("all_reduce", nbytes, on) for nbytes in (1024, 1 << 28))
    assert (short.protocol, long.shape) == ("ll", "nvls")


@pytest.mark.parametrize("mode", ["nccl_nvls_simple", "nccl_nvls_tree_simple"])
def test_faster_links_and_switches_delay_nobody(mode: str) -> None:
    starts = list(skews(8)["ascending"])
    base = cluster(4, 2, SHARP)
    network = replace(SHARP, bandwidth=2 * SHARP.bandwidth)
    bus = replace(NVLINK, switch_adds=Fraction(1))
    slow = finishes(base, mode, 1 << 22, starts)
    for faster in (cluster(4, 2, network), cluster(4, 2, SHARP, bus)):
        pairs = zip(finishes(faster, mode, 1 << 22, starts), slow, strict=True)
        assert all(one <= other for one, other in pairs)
