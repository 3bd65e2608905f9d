"""NCCL's choice of algorithm and protocol, and the times of its collectives.

NCCL predicts the time of every enabled pair and takes the shortest. For n bytes on p ranks of N
nodes, with W the line rate of a node's NICs or of its bus, whichever is lower (a channel passes
both, and its search finds the rate of the slowest link) and the constants below:

    ring       base + (2 (p - 1) - 2 (N - 1)) bus + 2 (N - 1) net + 2 (p - 1)/p n / (share W)
    tree       base + 2 (p/N - 1) bus + 2 floor(log2 N) net + 2 n / (share correction W)
    nvls       bus + n / (0.85 W); with in-network sums between nodes bus + net + 2 (p - 1)/p n / B
    nvls tree  bus + 2 floor(log2 N) net + 2 (p - 1)/p n / B
    collnet    2 (p/N - 1) bus + net + 2 n / W

and half of the ring's steps for an all-gather. B is the smaller of W (twice W for the tree of two
nodes) and 1.7 (1 - N/p) times the NVLink's rate; an NVLS all-gather of equal blocks takes n over
the smaller of W between nodes and 0.85 (1 - N/p)^2 times the NVLink's rate. A Simple ring's latency
between nodes counts 1.4 times in an all-reduce.

The chosen mode is simulated with the tuner's constants: every rank begins `base` later; a hop costs
the path's latency plus the table's and carries `share` of the path's rate. The ring is
`rings/allreduce.py`, the tree `double_tree_allreduce.py` with NCCL's piece size, the others are
`in_network.py`. On equal links without latency and with one device per node a ring takes the
tuner's time (without the 1.4). The table's latencies include the overlap of slices and channels.

Assumptions: devices of capability 8.0 or more with an Intel host; two channels; LL128 for one
device per node or over NVLink, not over PCIe. The tuner knows NVLink's goodput (NCCL's own rates
are 20 to 40 GB/s of 25 to 50), but the line rate of a NIC. Limits of single channels, CollNet
within a node over NVSwitch, and PAT are not modelled. The tuner does not know latencies of links,
since NCCL's transports report none.

Source: NCCL 2.28.3 to 2.30, src/graph/tuning.cc (`ncclTunerConstantsDefaults`,
`ncclTopoTuneModel`, `treeCorrectionFactor`, `ncclTopoGetAlgoTime`), src/enqueue.cc (chunk sizes,
`updateCollCostTable`), and src/device/all_reduce.h.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from operator import itemgetter
from typing import Literal, NamedTuple

from gcsim.simulator.clock import Picoseconds, Times, picoseconds
from gcsim.simulator.cluster import Cluster
from gcsim.simulator.collectives.call import Call, Prepared
from gcsim.simulator.collectives.double_tree_allreduce import DoubleTreeAllReduce
from gcsim.simulator.collectives.in_network import InNetwork
from gcsim.simulator.collectives.rings import allgather, allreduce
from gcsim.simulator.collectives.rings.allgather import ring_allgather
from gcsim.simulator.collectives.rings.allreduce import ring_allreduce
from gcsim.simulator.collectives.rings.recurrence import PreparedRing
from gcsim.simulator.fabric.hops import Framing
from gcsim.simulator.fabric.rounds import Fabric
from gcsim.simulator.host import Traffic

Shape = Literal["tree", "ring", "nvls", "nvls_tree", "collnet"]
Protocol = Literal["ll", "ll128", "simple"]
Kind = Literal["all_reduce", "all_gather"]

CHANNELS = 2
RING_PLATEAU = Fraction(14, 10)
"""Factor on a Simple ring's latency between nodes for chunks of 64 bytes or more per channel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mode:
    """An algorithm with a protocol, and the tuner's constants."""

    shape: Shape
    protocol: Protocol
    base: Fraction  # seconds, once
    bus: Fraction  # seconds per step between devices of a node, over PCIe
    nvlink: Fraction  # the same over NVLink
    net: Fraction  # seconds per step between nodes
    share: Fraction  # share of the link's bandwidth

    @property
    def name(self) -> str:
        """Name in a scenario."""
        return f"nccl_{self.shape}_{self.protocol}"

    def title(self, kind: Kind) -> str:
        """Name in a report."""
        algorithm = _TITLES[self.shape]
        protocol = {"ll": "LL", "ll128": "LL128", "simple": "Simple"}[self.protocol]
        return f"NCCL {algorithm} {kind.replace('_', '-')}, {protocol}"


_TITLES: dict[Shape, str] = {
    "tree": "double tree",
    "ring": "ring",
    "nvls": "NVLS",
    "nvls_tree": "NVLS tree",
    "collnet": "CollNet",
}


def _mode(shape: Shape, protocol: Protocol, times: str, share: Fraction = Fraction(1)) -> Mode:
    """Mode with `times` base, bus, NVLink and net in microseconds."""
    base, bus, nvlink, net = (Fraction(time) / 10**6 for time in times.split())
    return Mode(
        shape=shape, protocol=protocol, base=base, bus=bus, nvlink=nvlink, net=net, share=share
    )


_TREE = Fraction(92, 100)
MODES = (
    _mode("tree", "ll", "6.8 1.0 0.6 5.0", _TREE * Fraction(10, 38)),
    _mode("tree", "ll128", "14.0 1.9 1.25 8.5", _TREE * Fraction(120, 128)),
    _mode("tree", "simple", "8.4 4.0 4.0 14.0", _TREE),
    _mode("ring", "ll", "6.6 1.0 0.6 2.7", Fraction(1, 2)),
    _mode("ring", "ll128", "14.0 2.5 1.9 4.0", Fraction(92, 100)),
    _mode("ring", "simple", "8.4 5.7 3.4 14.0"),
    _mode("collnet", "simple", "0 2.8 2.8 30"),
    _mode("nvls", "simple", "0 25 25 18"),
    _mode("nvls_tree", "simple", "0 25 25 20.9"),
)
"""Ordered as in the tuner: the first of equals wins."""
_POSTING = Fraction(1, 10**6)
"""Least seconds per step inside a node for a ring that also crosses the network; Simple: thrice."""
_NVLS = Fraction(85, 100)  # share of NVLink's rate that the tuner assumes for NVLS
_GATHERED = Fraction(917, 1000)
"""Share that an NVLS all-gather reaches: eight H100 with 374 GB/s reached a bus bandwidth (7/8 of
the result over its time) of 300 GB/s for 1 GB, and 350 with the ring (NVIDIA/nccl issue 1506)."""
_MOST_GATHERED = 32  # devices of a node in an NVLS all-gather (`NCCL_MAX_NVLS_ARITY`)
_EXPOSED = {mode.protocol: mode.net for mode in MODES if mode.shape == "tree"}
"""Network latency of a ring with one device per node, which nothing hides."""
_CORRECTION: dict[Protocol, tuple[int, ...]] = {
    "ll": (10, 10, 10, 10, 9, 8, 7, 7, 7, 7, 6, 5, 4, 4, 5, 6, 7, 8, 9, 10, 10, 10, 10),
    "ll128": (10, 10, 10, 10, 10, 9, 8, 8, 8, 7, 6, 6, 6, 6, 6, 6, 8, 9, 9, 9, 9, 10, 10),
    "simple": (9, 9, 9, 9, 9, 9, 9, 8, 7, 6, 6, 5, 5, 5, 5, 6, 7, 8, 7, 7, 8, 9, 9),
}
"""Tenths of a tree's bandwidth at medium sizes, from 64 bytes by powers of two."""


class _TunerView(NamedTuple):
    nodes: int
    ranks: int
    rate: Fraction  # W
    inside: Fraction  # of the NVLink; 0 over PCIe
    adds: tuple[bool, bool]  # whether switches add: inside nodes, between them
    gathered: int  # most devices of a node in an NVLS all-gather

    @staticmethod
    def of(cluster: Cluster, *, equal: bool = True) -> _TunerView:
        bus, line = cluster.intra_node, cluster.network
        inside = bus.bandwidth * bus.efficiency if cluster.nvlink else Fraction(0)
        alone = cluster.nodes == 1
        crossed = [] if alone else [line.bandwidth]
        if alone or cluster.devices_per_node > 1:
            crossed.append(inside or bus.bandwidth)
        heads = _MOST_GATHERED if alone else min(cluster.nics_per_node, _MOST_GATHERED)
        return _TunerView(
            nodes=cluster.nodes,
            ranks=cluster.workers,
            rate=min(crossed),
            inside=inside,
            adds=(
                bool(inside) and bus.switch_adds is not None and cluster.devices_per_node > 1,
                line.switch_adds is not None and not alone,
            ),
            gathered=heads if equal else 0,
        )

    @property
    def devices_per_node(self) -> int:
        """Number of devices per node, the mean rounded down (src/graph/tuning.cc)."""
        return self.ranks // self.nodes

    def shapes(self, kind: Kind) -> set[Shape]:
        """Algorithms to choose from."""
        inside, between = self.adds
        found: set[Shape] = {"ring"}
        if inside and (between or self.nodes == 1):
            found.add("nvls")
        if kind == "all_gather":
            return found if self.devices_per_node <= self.gathered else {"ring"}
        found.add("tree")
        if inside and self.nodes > 1:
            found.add("nvls_tree")
        if between and not inside:
            found.add("collnet")
        return found


def enabled(kind: Kind, cluster: Cluster | _TunerView) -> list[Mode]:
    """Return the modes that the tuner chooses from."""
    seen = cluster if isinstance(cluster, _TunerView) else _TunerView.of(cluster)
    shapes = seen.shapes(kind)
    return [
        mode
        for mode in MODES
        if (mode.protocol != "ll128" or seen.devices_per_node == 1 or seen.inside)
        and mode.shape in shapes
    ]


def choose(kind: Kind, nbytes: int, cluster: Cluster, *, equal: bool = True) -> Mode:
    """Return the tuner's mode. `nbytes`: of the vector, or of all gathered blocks; `equal`: whether
    blocks are of one size (PyTorch gathers others by broadcasts, over rings)."""
    ring, tree, border = ring_and_tree(kind, nbytes, cluster, equal=equal)
    return ring if tree is None or cluster.collectives.ring_over_tree < border else tree


def ring_and_tree(
    kind: Kind, nbytes: int, cluster: Cluster, *, equal: bool = True
) -> tuple[Mode, Mode | None, Fraction]:
    """Return the fastest ring, the fastest other mode (mostly a tree; None if only rings are
    enabled), and the least `ring_over_tree` with which the tuner chooses the latter."""
    return _fastest(kind, nbytes, _TunerView.of(cluster, equal=equal))


@lru_cache(maxsize=1 << 14)
def _fastest(kind: Kind, nbytes: int, seen: _TunerView) -> tuple[Mode, Mode | None, Fraction]:
    times = [(_seconds(on, kind, nbytes, seen), mode) for mode, on in _enabled_on(kind, seen)]
    ring, trees = (
        [one for one in times if (one[1].shape == "ring") is wanted] for wanted in (True, False)
    )
    shortest, mode = min(ring, key=itemgetter(0))
    if not trees:
        return mode, None, Fraction(0)
    other, tree = min(trees, key=itemgetter(0))
    return mode, tree, other / shortest


@lru_cache(maxsize=1 << 8)
def _enabled_on(kind: Kind, seen: _TunerView) -> list[tuple[Mode, Mode]]:
    """Return the enabled modes, each also with the tuner's constants for this cluster."""
    return [(mode, _on(mode, seen)) for mode in enabled(kind, seen)]


def predicted(mode: Mode, kind: Kind, nbytes: int, cluster: Cluster) -> Fraction:
    """Return the seconds that the tuner predicts."""
    seen = _TunerView.of(cluster)
    return _seconds(_on(mode, seen), kind, nbytes, seen)


def _seconds(mode: Mode, kind: Kind, nbytes: int, seen: _TunerView) -> Fraction:
    """Return the predicted seconds of a mode from `_on`."""
    nodes, devices, ranks = seen.nodes, seen.devices_per_node, seen.ranks
    rate = mode.share * seen.rate
    if mode.shape == "tree":
        size = (nbytes >> 6).bit_length() - 1
        correction = _CORRECTION[mode.protocol]
        if 0 <= size < len(correction):
            rate *= Fraction(correction[size], 10)
        hops = 2 * (devices - 1) * mode.bus + _levels(nodes) * mode.net
        return mode.base + hops + 2 * nbytes / rate
    if mode.shape == "collnet":
        return 2 * (devices - 1) * mode.bus + mode.net + 2 * nbytes / rate
    if mode.shape != "ring":
        tree, part = mode.shape == "nvls_tree", Fraction(devices - 1, devices)
        levels = _levels(nodes) if tree else int(nodes > 1)
        moved, most = Fraction(2 * (ranks - 1) * nbytes, ranks), 2 * _NVLS * seen.inside * part
        if kind == "all_gather":
            moved, most = Fraction(nbytes), most * part / 2
        if nodes > 1:
            most = min(most, (1 + (tree and nodes == 2)) * rate)
        return mode.bus + levels * mode.net + moved / most
    passes = 2 if kind == "all_reduce" else 1
    steps, crossing = passes * (ranks - 1), passes * (nodes - 1)
    latency = mode.base + (steps - crossing) * mode.bus + crossing * mode.net
    if (
        (kind, mode.protocol) == ("all_reduce", "simple")
        and nodes > 1
        and nbytes >= 64 * CHANNELS * ranks
    ):
        latency *= RING_PLATEAU
    return latency + Fraction(steps * nbytes, ranks) / rate


def _levels(nodes: int) -> int:
    """Return the number of hops up and down a tree of nodes, as the tuner counts them."""
    return 2 * (nodes.bit_length() - 1)


class _DelayedStart:
    """A collective that every rank begins later by a constant."""

    def __init__(self, by: Picoseconds, collective: Prepared) -> None:
        self._by, self._collective = by, collective
        self.nbytes = collective.nbytes

    def __call__(self, starts: Times, key: int = 0) -> Times:
        return self._collective(starts + self._by, key)


def prepare(call: Call, kind: Kind, mode: Mode) -> Prepared:
    """Prepare a collective in this mode; unequal blocks of an all-gather are not split."""
    if mode.shape not in {"ring", "tree"}:
        return _in_network(call, kind, mode)
    base, framing = start_delay_and_framing(mode, call.cluster)
    fabric = call.fabric.with_framing(framing)
    if mode.shape == "tree":
        return _DelayedStart(base, tree(call, mode, fabric))
    return _DelayedStart(base, ring(call, kind, fabric))


def traffic(call: Call, kind: Kind, mode: Mode) -> Traffic:
    """Traffic of a collective."""
    if mode.shape == "tree":
        return tree(call, mode, call.fabric).traffic(call.fabric.devices)
    if mode.shape == "ring":
        program = allreduce.ring(call) if kind == "all_reduce" else allgather.ring(call)
        return program.traffic(call.fabric.devices)
    return _in_network(call, kind, mode).traffic


def ring(call: Call, kind: Kind, fabric: Fabric) -> PreparedRing:
    """Prepare a ring on a fabric."""
    if kind == "all_gather":
        return ring_allgather(call.sent, fabric.ring_links())
    return ring_allreduce(call.nbytes, fabric.ring_links(), element=call.element)


def _in_network(call: Call, kind: Kind, mode: Mode) -> InNetwork:
    return _by_switch(call, mode) if kind == "all_reduce" else _gathered_by_switch(call, mode)


def _by_switch(call: Call, mode: Mode) -> InNetwork:
    mode, bus = _on(mode, call.cluster), call.cluster.intra_node
    share = call.cluster.network.switch_adds or Fraction(1)
    leaders = _leaders(call, mode, share if mode.shape != "nvls_tree" else Fraction(1))
    hops = 2 * (call.cluster.devices_per_node - 1) if mode.shape == "collnet" else 1
    return InNetwork(
        call,
        leaders,
        sent=call.nbytes,
        result=call.nbytes,
        share=bus.switch_adds,
        tree=tree(call, mode, leaders) if mode.shape == "nvls_tree" else None,
        inside=picoseconds(hops * mode.bus),
    )


def _gathered_by_switch(call: Call, mode: Mode) -> InNetwork:
    result = sum(call.sent)
    return InNetwork(
        call,
        _leaders(call, mode, Fraction(1)),
        sent=result // call.cluster.nodes,
        result=result,
        share=_GATHERED,
        tree=None,
        inside=picoseconds(mode.bus),
    )


def _leaders(call: Call, mode: Mode, share: Fraction) -> Fabric:
    """Return a fabric of one rank per node, at a share of the network's rate."""
    return call.fabric.of_nodes.with_framing(Framing(share=share, network=mode.net))


def tree(call: Call, mode: Mode, fabric: Fabric) -> DoubleTreeAllReduce:
    """Prepare a mode's double tree on a fabric."""
    piece = tree_piece(mode.protocol, call.nbytes, call.cluster)
    return DoubleTreeAllReduce(call.nbytes, fabric, piece=piece, element=call.element)


def tree_piece(protocol: Protocol, nbytes: int, cluster: Cluster) -> int:
    """Return the bytes of a tree's piece: a buffer slot, halved until the pipeline fills."""
    levels, devices = cluster.nodes.bit_length() - 1, cluster.workers // cluster.nodes
    if protocol == "ll":
        return 32 * 1024
    piece: int
    if protocol == "ll128":
        piece, least = 576_000, 1 + levels + Fraction(devices, 10)
        rules = [(64 * least, 1 << 17), (16 * least, 1 << 15)]
        rules = [(pieces / devices, floor) for pieces, floor in rules]
    else:
        piece, depth = 512 * 1024, Fraction(devices - 1 + levels)
        rules = [(8 * depth, 1 << 17), (4 * depth, 1 << 16), (depth, 1 << 15)]
    for pieces, floor in rules:
        while nbytes // (CHANNELS * piece) < pieces and piece > floor:
            piece //= 2
    return piece


def _on(mode: Mode, cluster: Cluster | _TunerView) -> Mode:
    """Return the mode with the tuner's latencies and share of the rate for this cluster."""
    seen = cluster if isinstance(cluster, _TunerView) else _TunerView.of(cluster)
    bus, net, share = mode.nvlink if seen.inside else mode.bus, mode.net, mode.share
    if mode.shape == "ring" and seen.nodes > 1:
        bus = max(bus, _POSTING * (3 if mode.protocol == "simple" else 1))
    if mode.shape == "ring" and seen.devices_per_node == 1:
        net = _EXPOSED[mode.protocol]
    if (mode.shape, mode.protocol) == ("tree", "ll128") and seen.nodes == 1:
        share = _TREE * Fraction(7, 9)
    if mode.protocol == "ll":
        share = min(share, _most_by_ll(seen) / seen.rate)
    return replace(mode, bus=bus, net=net, share=share)


def _most_by_ll(seen: _TunerView) -> Fraction:
    """Return LL's bandwidth limit: Hopper's (NVLS) or Ampere's in a node, else an Intel host's."""
    if seen.nodes == 1:
        return Fraction(141 if seen.adds[0] else 877, 1 if seen.adds[0] else 10) * 10**9
    return Fraction(39 if seen.nodes == 2 else Fraction(204, 10)) * 10**9


def start_delay_and_framing(mode: Mode, cluster: Cluster) -> tuple[Picoseconds, Framing]:
    """Return the delay of the ranks' start, and the protocol's overheads on paths. LL's limit
    between nodes does not reduce the rate inside them."""
    alone, seen = cluster.nodes == 1, _TunerView.of(cluster)
    on = _on(mode, seen if alone else seen._replace(rate=cluster.network.bandwidth))
    inside = on.share if alone or mode.protocol != "ll" else mode.share
    framing = Framing(share=on.share, share_inside=inside, network=on.net, inside=on.bus)
    return picoseconds(on.base), framing
