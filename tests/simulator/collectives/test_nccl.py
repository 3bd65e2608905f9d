"""NCCL's tuner chooses as NCCL's does, and its choice is carried out in its own terms.

Predictions are worked out by hand from src/graph/tuning.cc of NCCL 2.28.3. The ring is compared,
with `==` in picoseconds, to the simulation of every message in `rings/wire.py`; the tree to the
kernel that `test_double_tree.py` compares to one.
"""

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any, get_args

import pytest

from gcsim.simulator.cluster import AllGatherAlgorithm, AllReduceAlgorithm, Cluster, Racks
from gcsim.simulator.collectives import nccl
from gcsim.simulator.collectives.call import Call
from gcsim.simulator.collectives.double_tree_allreduce import DoubleTreeAllReduce
from gcsim.simulator.collectives.rings.allreduce import ring_allreduce
from gcsim.simulator.fabric.rounds import Fabric
from gcsim.simulator.network.links import Jitter, Link
from gcsim.simulator.network.paths import across_uplink, path, share_link
from tests.simulator import world
from tests.simulator.collectives.rings.wire import Ring
from tests.simulator.world import skews, times

MODE = {mode.name: mode for mode in nccl.MODES}
TREES_AND_RINGS = [mode for mode in nccl.MODES if mode.shape in {"tree", "ring"}]
RING_MODES = [mode for mode in nccl.MODES if mode.shape == "ring"]


def link(bandwidth: float, latency: str = "0", efficiency: str = "1") -> Link:
    return world.link(bandwidth, Fraction(latency), efficiency=Fraction(efficiency))


BUS = link(12_150_000_000, "1/100000")


def cluster(nodes: int, devices: int = 1, network: Link | None = None) -> Cluster:
    network = network or link(1_250_000_000)
    return world.cluster(nodes, devices, network=network, intra_node=BUS)


# --- the choice ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "kind", "nbytes", "on", "microseconds"),
    [
        # base + 126 steps over the network, exposed latency; n 126/64 over half of 1250 B/us
        ("nccl_ring_ll", "all_reduce", 6400, cluster(64), 6.6 + 126 * 5 + 12600 / 625),
        ("nccl_ring_ll128", "all_reduce", 6400, cluster(64), 14 + 126 * 8.5 + 12600 / 1150),
        # 6400 B are 50 B for each of two channels of 64 ranks: no plateau; 64 B: plateau
        ("nccl_ring_simple", "all_reduce", 6400, cluster(64), 8.4 + 126 * 14 + 12600 / 1250),
        (
            "nccl_ring_simple",
            "all_reduce",
            64 * 128,
            cluster(64),
            1.4 * (8.4 + 126 * 14) + 126 * 128 / 1250,
        ),
        # with four devices a node, 62 steps: 14 over the network, the others over PCIe
        (
            "nccl_ring_ll",
            "all_reduce",
            3200,
            cluster(8, 4),
            6.6 + 48 * 1 + 14 * 2.7 + 62 * 100 / 625,
        ),
        ("nccl_ring_ll", "all_gather", 6400, cluster(64), 6.6 + 63 * 5 + 6300 / 625),
        ("nccl_ring_simple", "all_gather", 1 << 20, cluster(1, 4), 8.4 + 3 * 5.7 + 786432 / 12150),
        # six levels, 2 n over .92 of the line; 64 to 127 B: all of it for LL, .9 for Simple
        ("nccl_tree_ll", "all_reduce", 64, cluster(64), 6.8 + 12 * 5 + 128 / (1250 * 0.92 / 3.8)),
        (
            "nccl_tree_simple",
            "all_reduce",
            127,
            cluster(64),
            8.4 + 12 * 14 + 254 / (1250 * 0.92 * 0.9),
        ),
        # 256 KiB = 64 B 2^12: .4 for LL; below 64 B and from 512 MiB on no correction
        (
            "nccl_tree_ll",
            "all_reduce",
            1 << 18,
            cluster(64),
            6.8 + 12 * 5 + 524288 / (1250 * 0.92 / 3.8 * 0.4),
        ),
        ("nccl_tree_simple", "all_reduce", 1 << 29, cluster(64), 8.4 + 12 * 14 + 1073741824 / 1150),
        ("nccl_tree_simple", "all_reduce", 63, cluster(64), 8.4 + 12 * 14 + 126 / 1150),
        # 100 nodes are floor(log2 100) levels; a node's chain of four is three hops
        (
            "nccl_tree_ll128",
            "all_reduce",
            64,
            cluster(100, 4),
            14 + 2 * (3 * 1.9 + 6 * 8.5) + 128 / (1250 * 0.92 * 120 / 128),
        ),
        (
            "nccl_tree_ll128",
            "all_reduce",
            64,
            cluster(1, 4),
            14 + 2 * 3 * 1.9 + 128 / (12150 * 0.92 * 7 / 9),
        ),
    ],
)
def test_predictions(
    mode: str, kind: nccl.Kind, nbytes: int, on: Cluster, microseconds: float
) -> None:
    assert float(nccl.predicted(MODE[mode], kind, nbytes, on)) * 1e6 == pytest.approx(microseconds)


TEN = cluster(64)
HUNDRED = cluster(16, network=link(12_500_000_000))


@pytest.mark.parametrize(
    ("on", "nbytes", "name"),
    [
        (TEN, 64, "nccl_tree_ll"),
        (TEN, 32 << 10, "nccl_tree_ll128"),
        (TEN, 2 << 20, "nccl_ring_ll128"),
        (TEN, 25 << 20, "nccl_ring_simple"),
        (HUNDRED, 32 << 10, "nccl_tree_ll"),
        (HUNDRED, 256 << 10, "nccl_tree_ll128"),
        (HUNDRED, 16 << 20, "nccl_ring_ll128"),
        (HUNDRED, 256 << 20, "nccl_ring_simple"),
        (cluster(8, 4), 25 << 20, "nccl_ring_simple"),
        (cluster(1, 4), 1 << 10, "nccl_ring_ll"),
        (cluster(2), 64, "nccl_ring_ll"),
    ],
)
def test_choices(on: Cluster, nbytes: int, name: str) -> None:
    assert nccl.choose("all_reduce", nbytes, on).name == name
    shortest = nccl.predicted(MODE[name], "all_reduce", nbytes, on)
    others = [
        nccl.predicted(mode, "all_reduce", nbytes, on) for mode in nccl.enabled("all_reduce", on)
    ]
    assert shortest == min(others)


@pytest.mark.parametrize(("name", "step"), [("bus", 1.0), ("nvlink4", 0.6), ("xgmi", 0.6)])
def test_a_step_over_nvlink_and_xgmi_has_the_tables_constant(name: str, step: float) -> None:
    """LL's ring of eight: base, 14 steps over PCIe or NVLink, 64 B 14/8 over half of 12150 B/us."""
    on = replace(cluster(1, 8), intra_node=replace(BUS, name=name))
    found = float(nccl.predicted(MODE["nccl_ring_ll"], "all_reduce", 64, on)) * 1e6
    assert found == pytest.approx(6.6 + 14 * step + 112 / 6075)


def test_the_tuner_knows_neither_latency_nor_goodput() -> None:
    slow = cluster(64, network=link(1_250_000_000, "1/100", "1/3"))
    for nbytes in (64, 1 << 15, 1 << 20, 1 << 24):
        assert nccl.choose("all_reduce", nbytes, slow) == nccl.choose("all_reduce", nbytes, TEN)


@pytest.mark.parametrize(("devices", "bound"), [(4, True), (1, False)])
def test_between_nodes_a_bus_that_every_channel_passes_bounds_the_rate(
    devices: int, bound: bool
) -> None:
    fast, as_the_bus = (link(rate) for rate in (5e10, float(BUS.bandwidth)))
    for mode in TREES_AND_RINGS:
        one, other = (
            nccl.predicted(mode, "all_reduce", 1 << 24, cluster(16, devices, network))
            for network in (fast, as_the_bus)
        )
        assert (one == other) is bound


def test_a_tuner_that_is_off_by_a_third_changes_its_mind_near_the_border_only() -> None:
    """Near: where the best ring's prediction is within that factor of the best tree's."""

    def best(shape: str, nbytes: int) -> Fraction:
        modes = (mode for mode in nccl.enabled("all_reduce", TEN) if mode.shape == shape)
        return min(nccl.predicted(mode, "all_reduce", nbytes, TEN) for mode in modes)

    near = set()
    for nbytes in (1 << power for power in range(6, 31)):
        ratio = best("ring", nbytes) / best("tree", nbytes)
        for factor in (Fraction(3, 4), Fraction(1), Fraction(4, 3)):
            on = replace(TEN, collectives=replace(TEN.collectives, ring_over_tree=factor))
            shape = nccl.choose("all_reduce", nbytes, on).shape
            assert shape == ("ring" if ratio * factor < 1 else "tree"), (nbytes, factor)
            if shape != nccl.choose("all_reduce", nbytes, TEN).shape:
                near.add(nbytes)
    assert 0 < len(near) < 25


def test_ll128_needs_one_device_a_node_and_gathers_have_no_tree() -> None:
    assert nccl.enabled("all_reduce", TEN) == [*TREES_AND_RINGS]
    assert {mode.protocol for mode in nccl.enabled("all_reduce", cluster(8, 4))} == {"ll", "simple"}
    assert {mode.shape for mode in nccl.enabled("all_gather", TEN)} == {"ring"}


def test_every_mode_can_be_named() -> None:
    assert {mode.name for mode in nccl.MODES} <= set(get_args(AllReduceAlgorithm))
    assert {mode.name for mode in RING_MODES} <= set(get_args(AllGatherAlgorithm))
    assert MODE["nccl_tree_ll128"].title("all_reduce") == "NCCL double tree all-reduce, LL128"
    assert MODE["nccl_ring_simple"].title("all_gather") == "NCCL ring all-gather, Simple"


# --- what it costs -------------------------------------------------------------------------------

HOPS = {
    # latency between nodes and inside one in microseconds, and share, of a ring
    "ll": ("2.7", "1.0", Fraction(1, 2)),
    "ll128": ("4.0", "2.5", Fraction(92, 100)),
    "simple": ("14.0", "5.7", Fraction(1)),
}
ALONE = {"ll": "5.0", "ll128": "8.5", "simple": "14.0"}
BASE = {"ll": 6_600_000, "ll128": 14_000_000, "simple": 8_400_000}


def ring(
    starts: Sequence[int], blocks: Sequence[int], on: Cluster, mode: nccl.Mode, *, reduces: bool
) -> list[float]:
    """Exits from a simulation of every message of a ring with the tables' links."""
    hops = []
    for rank in range(on.workers):
        inside = rank // on.devices_per_node == (rank + 1) % on.workers // on.devices_per_node
        between, bus, share = HOPS[mode.protocol]
        if on.devices_per_node == 1:
            between = ALONE[mode.protocol]
        hop = on.intra_node if inside else on.network
        flight = hop.latency + Fraction(bus if inside else between) / 10**6
        hops.append(world.link(hop.bandwidth * hop.efficiency * share, flight))
    entries = [start + BASE[mode.protocol] for start in starts]
    return Ring(entries, blocks, hops, reduces=reduces).finishes


@pytest.mark.parametrize("shape", [(2, 1), (7, 1), (16, 1), (3, 2), (4, 4), (1, 5)])
@pytest.mark.parametrize("mode", RING_MODES, ids=lambda mode: mode.protocol)
def test_rings_are_the_simulation(shape: tuple[int, int], mode: nccl.Mode) -> None:
    on = cluster(*shape, network=link(1_250_000_000, "1/20000", "1448/1538"))
    p, elements = on.workers, 250_003
    share, longer = divmod(elements, p)
    chunks = [4 * (share + (r < longer)) for r in range(p)]
    gathered = [10_000 + 7 * (r % 3) for r in range(p)]
    for starts in (skews(p)[name] for name in ("none", "ascending", "ties")):
        call = Call(sent=(4 * elements,) * p, element=4, cluster=on)
        expected = ring(starts, chunks, on, mode, reduces=True)
        assert nccl.prepare(call, "all_reduce", mode)(times(starts)).tolist() == expected
        call = replace(call, sent=tuple(gathered))
        expected = ring(starts, gathered, on, mode, reduces=False)
        assert nccl.prepare(call, "all_gather", mode)(times(starts)).tolist() == expected


@pytest.mark.parametrize("mode", TREES_AND_RINGS, ids=lambda mode: mode.name)
def test_a_protocol_takes_its_share_of_any_path(mode: nccl.Mode) -> None:
    late = replace(
        link(500_000_000, "1/30000"),
        jitter=(Jitter(distribution="exponential", mean=Fraction(1, 10**4)),),
    )
    network, uplink = link(1_250_000_000, "1/20000", "1448/1538"), link(300_000_000, "1/100000")
    on = replace(
        cluster(4, 2, network=network), nics={1: late}, racks=Racks(nodes=2, uplink=uplink)
    )
    start_delay_and_framing, share, base = on_the_wire(mode)

    def seen(of: Link, extra: str) -> Link:
        slower = share_link(of, 1 / share)
        return replace(slower, latency=slower.latency + Fraction(extra) / 10**6)

    starts, nbytes = times([r * 1_000_003 for r in range(8)]), 400_004
    call = Call(sent=(nbytes,) * 8, element=4, cluster=on)
    finishes = nccl.prepare(call, "all_reduce", mode)(starts, 77)
    if mode.shape == "ring":
        over = (
            path(network, late),
            across_uplink(path(late, network), uplink, 1),
            network,
            across_uplink(network, uplink, 1),
        )
        hops = [
            hop
            for of in over
            for hop in (seen(BUS, start_delay_and_framing[1]), seen(of, start_delay_and_framing[0]))
        ]
        expected = ring_allreduce(nbytes, hops, element=4)(starts + base, 77)
        assert finishes.tolist() == expected.tolist()
    else:
        # where nobody shares anything, a tree of framed links is a tree of those links
        pair = replace(on, nodes=2, devices_per_node=1, nics={}, racks=None)
        fabric = Fabric(
            nodes=2, devices=1, nics=[seen(network, start_delay_and_framing[0])], buses=[BUS]
        )
        piece = nccl.tree_piece(mode.protocol, nbytes, pair)
        expected = DoubleTreeAllReduce(nbytes, fabric, piece=piece, element=4)(
            starts[:2] + base, 77
        )
        call = replace(call, sent=(nbytes,) * 2, cluster=pair)
        assert nccl.prepare(call, "all_reduce", mode)(starts[:2], 77).tolist() == expected.tolist()
        assert finishes.min() > starts.max() + base


def on_the_wire(mode: nccl.Mode) -> tuple[tuple[str, str], Fraction, int]:
    """Microseconds between nodes and inside one, share, and base: the tables, typed again."""
    if mode.shape == "ring":
        between, bus, share = HOPS[mode.protocol]
        return (between, bus), share, BASE[mode.protocol]
    return {
        "ll": (("5.0", "1.0"), Fraction(92, 380), 6_800_000),
        "ll128": (("8.5", "1.9"), Fraction(92 * 120, 100 * 128), 14_000_000),
        "simple": (("14.0", "4.0"), Fraction(92, 100), 8_400_000),
    }[mode.protocol]


@pytest.mark.parametrize("mode", RING_MODES, ids=lambda mode: mode.protocol)
def test_a_ring_without_latency_takes_what_the_tuner_predicts(mode: nccl.Mode) -> None:
    on, nbytes = cluster(16), 4000 * 16
    call = Call(sent=(nbytes // 16,) * 16, cluster=on)
    finishes = nccl.prepare(call, "all_gather", mode)(times([0] * 16))
    tuner = nccl.predicted(mode, "all_gather", nbytes, on) * 10**12
    assert set(finishes.tolist()) == {finishes[0]}
    assert abs(int(finishes[0]) - tuner) <= 15  # each message's time is rounded

    # twice the steps, one base; the choice alone counts a Simple ring's latency 1.4 times
    reduced = replace(call, sent=(nbytes,) * 16, element=4)
    finishes = nccl.prepare(reduced, "all_reduce", mode)(times([0] * 16))
    assert set(finishes.tolist()) == {finishes[0]}
    assert abs(int(finishes[0]) - (2 * tuner - BASE[mode.protocol])) <= 30


@pytest.mark.parametrize("shape", [(2, 1), (9, 1), (4, 2), (1, 4)])
@pytest.mark.parametrize("nbytes", [4, 100_000, 25 << 20])
def test_trees_are_the_double_tree_with_the_tables_links(
    shape: tuple[int, int], nbytes: int
) -> None:
    on = cluster(*shape, network=link(1_250_000_000, "1/20000", "0.9"))
    for mode in (mode for mode in TREES_AND_RINGS if mode.shape == "tree"):
        (between, bus), share, base = on_the_wire(mode)
        if on.nodes == 1 and mode.protocol == "ll128":
            share = Fraction(92 * 7, 900)
        network, inside = (
            replace(
                of, latency=of.latency + Fraction(extra) / 10**6, efficiency=of.efficiency * share
            )
            for of, extra in ((on.network, between), (on.intra_node, bus))
        )
        fabric = Fabric(nodes=on.nodes, devices=on.devices_per_node, nics=[network], buses=[inside])
        starts = times([r * 1_000_003 for r in range(on.workers)])
        piece = nccl.tree_piece(mode.protocol, nbytes, on)
        expected = DoubleTreeAllReduce(nbytes, fabric, piece=piece, element=4)(starts + base)
        call = Call(sent=(nbytes,) * on.workers, element=4, cluster=on)
        assert nccl.prepare(call, "all_reduce", mode)(starts).tolist() == expected.tolist()


@pytest.mark.parametrize(
    ("protocol", "nbytes", "on", "expected"),
    [
        ("ll", 1 << 30, TEN, 32 << 10),
        # depth 6: halved below 48 pieces a channel to 128 KiB, below 24 to 64, below 6 to 32
        ("simple", 1 << 30, TEN, 512 << 10),
        ("simple", 2 * 48 * (512 << 10), TEN, 512 << 10),
        ("simple", 2 * 48 * (512 << 10) - 1, TEN, 256 << 10),
        ("simple", 2 * 48 * (256 << 10) - 1, TEN, 128 << 10),
        ("simple", 2 * 24 * (128 << 10) - 1, TEN, 64 << 10),
        ("simple", 2 * 6 * (64 << 10), TEN, 64 << 10),
        ("simple", 2 * 6 * (64 << 10) - 1, TEN, 32 << 10),
        ("simple", 4, TEN, 32 << 10),
        # 7.1 steps: 64 a step down to 131,072 B, 16 a step down to 32 KiB
        ("ll128", 1 << 30, TEN, 576_000),
        ("ll128", 2 * 576_000 * 455, TEN, 576_000),
        ("ll128", 2 * 576_000 * 455 - 1, TEN, 288_000),
        ("ll128", 4, TEN, 18_000),
    ],
)
def test_pieces_of_the_tree(protocol: Any, nbytes: int, on: Cluster, expected: int) -> None:
    assert nccl.tree_piece(protocol, nbytes, on) == expected
