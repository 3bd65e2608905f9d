"""The cluster as the simulator sees it: nodes, devices, links, and who talks to whom."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gcsim.simulator.device import Device
from gcsim.simulator.links import Link

TransportName = Literal["textbook", "gloo", "nccl", "mpich"]
AllReduceAlgorithm = Literal[
    "auto",
    "ring",
    "hierarchical",
    "halving_doubling",
    "recursive_doubling",
    "binomial_tree",
    "double_tree",
    "gloo_ring",
    "nccl",
    "nccl_ring_ll",
    "nccl_ring_ll128",
    "nccl_ring_simple",
    "nccl_tree_ll",
    "nccl_tree_ll128",
    "nccl_tree_simple",
]
AllGatherAlgorithm = Literal[
    "auto",
    "ring",
    "pipelined_ring",
    "recursive_doubling",
    "bruck",
    "gather_broadcast",
    "gloo_ring",
    "nccl",
    "nccl_ring_ll",
    "nccl_ring_ll128",
    "nccl_ring_simple",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Collectives:
    """Which algorithm carries out each kind of request."""

    transport: TransportName = "textbook"
    """The library in whose place "auto" chooses. gloo: device tensors are staged through host
    memory over `Cluster.intra_node`."""
    all_reduce: AllReduceAlgorithm = "ring"
    """auto: what the transport would choose; nccl: what NCCL's tuner would, on any transport."""
    all_gather: AllGatherAlgorithm = "ring"
    pipeline_block: int = 32 * 1024
    """Bytes a block of the pipelined all-gatherv, and a piece of the double tree's all-reduce."""
    servers: int = 1
    """Parameter servers; server s lives on node s mod nodes and shares its network card."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """`nodes` machines with `devices_per_node` workers each, one network card a machine.

    Ranks count node by node: worker r is device r mod devices_per_node of node
    r // devices_per_node.
    """

    nodes: int
    devices_per_node: int
    device: Device
    network: Link
    """Between a node's network card and the switch, each direction."""
    intra_node: Link
    """Between a device and its node's memory (PCIe), each direction."""
    collectives: Collectives = Collectives()

    @property
    def workers(self) -> int:
        """Number of devices, one worker each."""
        return self.nodes * self.devices_per_node

    def node_of(self, rank: int) -> int:
        """The node that a rank is on."""
        return rank // self.devices_per_node
