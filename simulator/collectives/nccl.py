"""NCCL's choice of algorithm and protocol, and the times of its collectives.

NCCL predicts the time of every enabled pair and takes the shortest. For n bytes on p ranks of N
nodes, W the line rate of the network NIC (of the bus for one node), with the constants below:

    ring   base + (2 (p - 1) - 2 (N - 1)) bus + 2 (N - 1) net + 2 (p - 1)/p n / (share W)
    tree   base + 2 (p/N - 1) bus + 2 floor(log2 N) net + 2 n / (share correction W)

and half of the ring's steps for an all-gather, which has no tree. A Simple ring's latency between
nodes counts 1.4 times.

The choice is carried out in the tuner's terms: every rank begins `base` later; a hop costs the
path's latency and the table's, and carries `share` of the path's rate; the ring is
`rings/allreduce.py`, the tree `double_tree_allreduce.py` in NCCL's pieces. On equal links without
latency and with one device per node a ring takes the tuner's time (without the 1.4); overlap of
slices and channels is in the table's latencies.

Assumptions: devices of capability 8.0 or more with an Intel host; two channels; LL128 only for one
device per node (NCCL: over NVLink, not over PCIe). Ceilings that bind only above 20 GB/s, NVLS,
CollNet and PAT are left out. The tuner knows no link's latency: NCCL's transports report none.

Source: NCCL 2.28.3, src/graph/tuning.cc (`ncclTunerConstantsDefaults`, `ncclTopoTuneModel`,
`treeCorrectionFactor`, `ncclTopoGetAlgoTime`), src/enqueue.cc (chunk sizes), and
src/device/all_reduce.h.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import Literal, NamedTuple

from gcsim.simulator.clock import Picoseconds, Times, picoseconds
from gcsim.simulator.cluster import Cluster
from gcsim.simulator.collectives.call import Call, Prepared
from gcsim.simulator.collectives.double_tree_allreduce import DoubleTreeAllReduce
from gcsim.simulator.collectives.rings import allreduce
from gcsim.simulator.collectives.rings.allgather import ring_allgather
from gcsim.simulator.collectives.rings.allreduce import ring_allreduce
from gcsim.simulator.fabric.round_paths import Framing
from gcsim.simulator.fabric.rounds import Fabric
from gcsim.simulator.host import Traffic

Shape = Literal["tree", "ring"]
Protocol = Literal["ll", "ll128", "simple"]
Kind = Literal["all_reduce", "all_gather"]

CHANNELS = 2
RING_PLATEAU = Fraction(14, 10)
"""Factor on a Simple ring's latency between nodes, for chunks of 64 bytes or more per channel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mode:
    """An algorithm with a protocol, and the tuner's constants."""

    shape: Shape
    protocol: Protocol
    base: Fraction
    """Seconds, once."""
    bus: Fraction
    """Seconds per step between devices of a node, over PCIe."""
    net: Fraction
    """Seconds per step between nodes."""
    share: Fraction
    """Share of the link's bandwidth."""

    @property
    def name(self) -> str:
        """Name in a scenario."""
        return f"nccl_{self.shape}_{self.protocol}"

    def title(self, kind: Kind) -> str:
        """Name in a report."""
        algorithm = "double tree" if self.shape == "tree" else "ring"
        protocol = {"ll": "LL", "ll128": "LL128", "simple": "Simple"}[self.protocol]
        return f"NCCL {algorithm} {kind.replace('_', '-')}, {protocol}"


def _mode(shape: Shape, protocol: Protocol, times: str, share: Fraction) -> Mode:
    """Mode with `times` base, bus and net in microseconds."""
    base, bus, net = (Fraction(time) / 10**6 for time in times.split())
    return Mode(shape=shape, protocol=protocol, base=base, bus=bus, net=net, share=share)


_TREE = Fraction(92, 100)
MODES = (
    _mode("tree", "ll", "6.8 1.0 5.0", _TREE * Fraction(10, 38)),
    _mode("tree", "ll128", "14.0 1.9 8.5", _TREE * Fraction(120, 128)),
    _mode("tree", "simple", "8.4 4.0 14.0", _TREE),
    _mode("ring", "ll", "6.6 1.0 2.7", Fraction(1, 2)),
    _mode("ring", "ll128", "14.0 2.5 4.0", Fraction(92, 100)),
    _mode("ring", "simple", "8.4 5.7 14.0", Fraction(1)),
)
"""Ordered as in the tuner: the first of equals wins."""
_EXPOSED = {mode.protocol: mode.net for mode in MODES if mode.shape == "tree"}
"""Network latency of a ring with one device per node, where nothing hides it."""
_CORRECTION: dict[Protocol, tuple[int, ...]] = {
    "ll": (10, 10, 10, 10, 9, 8, 7, 7, 7, 7, 6, 5, 4, 4, 5, 6, 7, 8, 9, 10, 10, 10, 10),
    "ll128": (10, 10, 10, 10, 10, 9, 8, 8, 8, 7, 6, 6, 6, 6, 6, 6, 8, 9, 9, 9, 9, 10, 10),
    "simple": (9, 9, 9, 9, 9, 9, 9, 8, 7, 6, 6, 5, 5, 5, 5, 6, 7, 8, 7, 7, 8, 9, 9),
}
"""Tenths of a tree's bandwidth at medium sizes, from 64 bytes by powers of two."""


class _Seen(NamedTuple):
    nodes: int
    devices_per_node: int
    rate: Fraction  # W

    @staticmethod
    def of(cluster: Cluster) -> _Seen:
        line = cluster.network if cluster.nodes > 1 else cluster.intra_node
        return _Seen(cluster.nodes, cluster.devices_per_node, line.bandwidth)


def enabled(kind: Kind, cluster: Cluster | _Seen) -> list[Mode]:
    """Modes that the tuner chooses from."""
    return [
        mode
        for mode in MODES
        if (mode.protocol != "ll128" or cluster.devices_per_node == 1)
        and (mode.shape == "ring" or kind == "all_reduce")
    ]


def choose(kind: Kind, nbytes: int, cluster: Cluster) -> Mode:
    """The tuner's mode; `nbytes` of the vector, or of all gathered blocks together."""
    ring, tree, border = ring_and_tree(kind, nbytes, cluster)
    return ring if tree is None or cluster.collectives.ring_over_tree < border else tree


def ring_and_tree(kind: Kind, nbytes: int, cluster: Cluster) -> tuple[Mode, Mode | None, Fraction]:
    """The ring and the tree predicted to be fastest, and the least `ring_over_tree` with which the
    tuner takes the tree; an all-gather has no tree."""
    return _fastest(kind, nbytes, _Seen.of(cluster))


@lru_cache(maxsize=1 << 14)
def _fastest(kind: Kind, nbytes: int, seen: _Seen) -> tuple[Mode, Mode | None, Fraction]:
    times = {mode: _seconds(mode, kind, nbytes, seen) for mode in enabled(kind, seen)}
    ring = min((mode for mode in times if mode.shape == "ring"), key=times.__getitem__)
    trees = [mode for mode in times if mode.shape == "tree"]
    if not trees:
        return ring, None, Fraction(0)
    tree = min(trees, key=times.__getitem__)
    return ring, tree, times[tree] / times[ring]


def predicted(mode: Mode, kind: Kind, nbytes: int, cluster: Cluster) -> Fraction:
    """Seconds predicted by the tuner."""
    return _seconds(mode, kind, nbytes, _Seen.of(cluster))


def _seconds(mode: Mode, kind: Kind, nbytes: int, seen: _Seen) -> Fraction:
    mode = _on(mode, seen)
    nodes, devices = seen.nodes, seen.devices_per_node
    ranks, rate = nodes * devices, mode.share * seen.rate
    if mode.shape == "tree":
        size = (nbytes >> 6).bit_length() - 1
        correction = _CORRECTION[mode.protocol]
        if 0 <= size < len(correction):
            rate *= Fraction(correction[size], 10)
        hops = (devices - 1) * mode.bus + (nodes.bit_length() - 1) * mode.net
        return mode.base + 2 * hops + 2 * nbytes / rate
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


class _Later:
    """A collective that every rank begins later."""

    def __init__(self, by: Picoseconds, collective: Prepared) -> None:
        self._by, self._collective = by, collective
        self.nbytes = collective.nbytes

    def __call__(self, starts: Times, key: int = 0) -> Times:
        return self._collective(starts + self._by, key)


def prepare_allreduce(call: Call, mode: Mode) -> Prepared:
    """All-reduce in this mode."""
    base, fabric = _told(call, mode)
    if mode.shape == "tree":
        return _Later(base, _tree(call, mode, fabric))
    return _Later(base, ring_allreduce(call.nbytes, fabric.ring_links(), element=call.element))


def prepare_allgather(call: Call, mode: Mode) -> Prepared:
    """All-gather in this mode; unequal blocks travel whole."""
    base, fabric = _told(call, mode)
    return _Later(base, ring_allgather(call.sent, fabric.ring_links()))


def allreduce_traffic(call: Call, mode: Mode) -> Traffic:
    """Traffic of an all-reduce."""
    if mode.shape == "tree":
        return _tree(call, mode, call.fabric).traffic(call.fabric.devices)
    return allreduce.ring(call).traffic(call.fabric.devices)


def _tree(call: Call, mode: Mode, fabric: Fabric) -> DoubleTreeAllReduce:
    piece = tree_piece(mode.protocol, call.nbytes, call.cluster)
    return DoubleTreeAllReduce(call.nbytes, fabric, piece=piece, element=call.element)


def tree_piece(protocol: Protocol, nbytes: int, cluster: Cluster) -> int:
    """Bytes of a tree's piece: a buffer slot, halved until the pipeline fills."""
    levels = cluster.nodes.bit_length() - 1
    if protocol == "ll":
        return 32 * 1024
    piece: int
    if protocol == "ll128":
        piece, least = 576_000, 1 + levels + Fraction(cluster.devices_per_node, 10)
        rules = [(64 * least, 1 << 17), (16 * least, 1 << 15)]
        rules = [(pieces / cluster.devices_per_node, floor) for pieces, floor in rules]
    else:
        piece, depth = 512 * 1024, Fraction(cluster.devices_per_node - 1 + levels)
        rules = [(8 * depth, 1 << 17), (4 * depth, 1 << 16), (depth, 1 << 15)]
    for pieces, floor in rules:
        while nbytes // (CHANNELS * piece) < pieces and piece > floor:
            piece //= 2
    return piece


def _on(mode: Mode, cluster: Cluster | _Seen) -> Mode:
    """Mode with the tuner's latency on this cluster, and the tree's share within one node."""
    if mode.shape == "ring" and cluster.devices_per_node == 1:
        return replace(mode, net=_EXPOSED[mode.protocol])
    if (mode.shape, mode.protocol) == ("tree", "ll128") and cluster.nodes == 1:
        return replace(mode, share=_TREE * Fraction(7, 9))
    return mode


def _told(call: Call, mode: Mode) -> tuple[Picoseconds, Fabric]:
    """Delay of the ranks' start, and the fabric as the protocol uses it."""
    mode = _on(mode, call.cluster)
    framing = Framing(share=mode.share, network=mode.net, inside=mode.bus)
    return picoseconds(mode.base), call.fabric.framed(framing)
