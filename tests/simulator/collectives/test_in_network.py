"""Collectives in switches, against closed forms worked out message by message in Python, and
against an event simulation in which vectors and blocks cross cables and switches piece by piece.

On links without random delays; entries differ. The tuner's times are worked out by hand from
src/graph/tuning.cc; rates of real machines are those of `gcsim validate racks`.
"""

from collections import Counter
from collections.abc import Hashable
from dataclasses import replace
from fractions import Fraction

import pytest
import simpy
from hypothesis import given
from hypothesis import strategies as st

from gcsim.simulator.cluster import Cluster, Collectives
from gcsim.simulator.collectives import nccl
from gcsim.simulator.collectives.call import Call
from gcsim.simulator.collectives.dispatch import algorithm_name
from gcsim.simulator.network.links import Link
from tests.simulator import world
from tests.simulator.world import Wait, skews, times

MODE = {mode.name: mode for mode in nccl.MODES}
NVLINK = replace(world.link(400 * 10**9, Fraction(0)), name="nvlink", switch_adds=Fraction(3, 4))
NIC = world.link(50 * 10**9, Fraction(2, 10**6))
SHARP = replace(NIC, switch_adds=Fraction(1, 2))
GATHERS = Fraction(917, 1000)  # of NVLink, by an NVLS all-gather
PS = 10**12


def cluster(nodes: int, devices: int, network: Link = NIC, bus: Link = NVLINK) -> Cluster:
    return world.cluster(nodes, devices, network=network, intra_node=bus)


def finishes(on: Cluster, mode: str, nbytes: int, starts: list[int]) -> list[int]:
    call = Call(sent=(nbytes,) * on.workers, element=4, cluster=on)
    found: list[int] = nccl.prepare_allreduce(call, MODE[mode])(times(starts)).tolist()
    return found


def gathered(on: Cluster, block: int, starts: list[int]) -> list[int]:
    call = Call(sent=(block,) * on.workers, cluster=on)
    prepared = nccl.prepare_allgather(call, MODE["nccl_nvls_simple"])
    found: list[int] = prepared(times(starts)).tolist()
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


@pytest.mark.parametrize("sizes", [(2, 2, 2, 2), (3, 1, 1, 3)], ids=["equal", "unlike"])
def test_an_nvls_tree_is_the_tree_of_nodes_between_the_nodes_own_sums(
    sizes: tuple[int, ...],
) -> None:
    on, nbytes = replace(cluster(4, max(sizes)), sizes=sizes), 1 << 20
    starts = list(skews(8)["ascending"])
    last = [sum(sizes[: n + 1]) - 1 for n in range(4)]
    alone = cluster(4, 1, bus=replace(NVLINK, switch_adds=None))
    call = Call(sent=(nbytes,) * 4, element=4, cluster=alone)
    tree = replace(MODE["nccl_tree_simple"], share=Fraction(1), base=Fraction(0))
    tree = replace(tree, net=MODE["nccl_nvls_tree_simple"].net)
    ready = [starts[rank] + 25_000_000 for rank in last]
    between = nccl.prepare_allreduce(call, tree)(times(ready)).tolist()
    assert min(between) > max(ready) + round(nbytes * PS / (300 * 10**9)) + 30_000_000
    expected = [time for time, count in zip(between, sizes, strict=True) for _ in range(count)]
    assert finishes(on, "nccl_nvls_tree_simple", nbytes, starts) == expected


class Pieces:
    """Pieces go up from devices to a node's switch and from nodes to the network's, and down again.
    A switch passes a vector's piece on when all below it have sent theirs, a block's at once."""

    def __init__(
        self, on: Cluster, starts: list[int], nbytes: int, pieces: int, *, gather: bool = False
    ) -> None:
        self.env, self.on, self.gather = simpy.Environment(), on, gather
        self.cables: dict[Hashable, simpy.Resource] = {}
        self.arrived: Counter[Hashable] = Counter()
        self.finishes = [Fraction(0)] * on.workers
        size = Fraction(nbytes * PS, pieces)
        bus, nic = (GATHERS, 1) if gather else (on.intra_node.switch_adds, on.network.switch_adds)
        self.bus = size / (on.intra_node.bandwidth * (bus or 1))
        self.nic = size / (on.network.bandwidth * (nic or 1))
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
            name = rank * self.gather, piece
            self.env.process(self.up(rank // self.on.devices_per_node, name))

    def up(self, node: int, piece: tuple[int, int]) -> Wait:
        self.arrived[node, piece] += 1
        if self.arrived[node, piece] < self.on.devices_per_node and not self.gather:
            return
        half = Fraction(20_000_000, 2) * (self.on.nodes > 1)  # the NIC's 2 us and the tuner's 18
        yield from self.cross(("NIC out", node), self.nic)
        yield self.after(half)
        self.arrived[piece] += 1
        if self.arrived[piece] < self.on.nodes and not self.gather:
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


@given(
    shape=st.tuples(st.integers(1, 3), st.integers(2, 4)),
    rates=st.tuples(*[st.integers(10**9, 10**12)] * 2),
    block=st.integers(1, 10**8),
    pieces=st.integers(1, 20),
    late=st.lists(st.integers(0, 10**9), min_size=12, max_size=12) | st.just([0] * 12),
)
def test_switches_that_pass_blocks_on_take_all_of_them_over_the_slowest_cable(
    shape: tuple[int, int], rates: tuple[int, int], block: int, pieces: int, late: list[int]
) -> None:
    """Early ranks' blocks may have passed before the last entry, at which the closed form begins;
    its pieces are infinitely many."""
    bus, network = (
        replace(link, bandwidth=Fraction(rate))
        for link, rate in zip((NVLINK, SHARP), rates, strict=True)
    )
    on = cluster(*shape, network, bus)
    starts = late[: on.workers]
    simulated = Pieces(on, starts, block, pieces, gather=True)
    slowest = max(simulated.bus, simulated.nic) * pieces * on.workers
    early = slowest if any(starts) else 0
    more = 2 * (simulated.bus + simulated.nic)
    closed = gathered(on, block, starts)
    for one, other in zip(simulated.finishes, closed, strict=True):
        assert other - 1 - early <= one <= other + more + 1


@pytest.mark.parametrize(
    ("on", "block"), [(cluster(1, 16), 10**6), (cluster(4, 2, SHARP), 10**6)], ids=["one", "nodes"]
)
def test_a_gather_brings_every_block_to_every_device_once(on: Cluster, block: int) -> None:
    """Over NVLink at 0.917 of 400 GB/s, or over a NIC of 50 and 2 us besides the tuner's 43."""
    latency, rate = (25, GATHERS * 400) if on.nodes == 1 else (45, Fraction(50))
    expected = latency * 10**6 + round(on.workers * block * 1000 / rate)
    assert gathered(on, block, [0] * on.workers) == [expected] * on.workers


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


WITH_NICS = replace(cluster(8, 8, SHARP), nics_per_node=8)


@pytest.mark.parametrize(
    ("on", "microseconds"),
    [
        (cluster(1, 16), 25 + 1e6 / (0.85 * 400e3 * (15 / 16) ** 2)),
        (WITH_NICS, 43 + 1e6 / 50e3),
        (replace(WITH_NICS, nics_per_node=9), 43 + 1e6 / 50e3),
        (replace(WITH_NICS, nics_per_node=7), None),  # a NIC per device
        (replace(cluster(8, 8), nics_per_node=8), None),  # no SHARP
        (cluster(1, 32), 25 + 1e6 / (0.85 * 400e3 * (31 / 32) ** 2)),
        (cluster(1, 33), None),  # NCCL_MAX_NVLS_ARITY
        (cluster(1, 16, bus=replace(NVLINK, switch_adds=None)), None),
    ],
)
def test_the_tuners_time_of_a_gather_of_a_megabyte(on: Cluster, microseconds: float | None) -> None:
    assert ("nvls" in {mode.shape for mode in nccl.enabled("all_gather", on)}) == bool(microseconds)
    if microseconds:
        found = nccl.predicted(MODE["nccl_nvls_simple"], "all_gather", 10**6, on)
        assert float(found) * 1e6 == pytest.approx(microseconds, rel=1e-6)


def test_gathers_go_by_the_switch_from_more_than_eight_devices_on_and_if_blocks_are_equal() -> None:
    """On eight devices an LL ring is faster to begin with, then LL128 and Simple: by hand, LL takes
    10.8 us and n / 161 GB/s, LL128 27.3 and n / 420, NVLS 25 and n / 260."""
    sizes = [1 << power for power in range(10, 31)]
    assert {nccl.choose("all_gather", nbytes, cluster(1, 8)).shape for nbytes in sizes} == {"ring"}
    on = replace(cluster(1, 16), collectives=Collectives(transport="nccl"))
    blocks = [2**19] * 16
    assert algorithm_name("all_gather", blocks, 1, on) == "nccl_nvls_simple"
    blocks[0] += 1
    assert algorithm_name("all_gather", blocks, 1, on) == "nccl_ring_ll128"


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
