"""All-reduce that switches add up: NVLS inside a node, NVLS and CollNet (SHARP) between nodes.

Each device sends its vector once and receives the sum once, where a ring has 2 (p - 1)/p of it:

    ready of a node = last entry of its devices + inside
    between nodes   = the double tree of `double_tree_allreduce.py`, or the switch's sum: last of
                      the nodes' vectors to arrive, each n / (adds W) and a latency after its start
    exit            = that, and not before the last node's ready + n / (adds of the NVLink's switch)
                      and a latency of the network

`adds` is the share of a link's goodput with which its switch adds (`Link.switch_adds`). A node's
part and the network's are pipelined, so that the slower of both counts.

Source: NCCL, src/device/all_reduce.h (`RunWorkColl` of NVLS, NVLS_TREE and COLLNET_CHAIN); Graham
et al. 2016, "Scalable hierarchical aggregation protocol (SHArP)", COMHPC.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from gcsim.simulator.clock import Picoseconds, Times, check_range
from gcsim.simulator.collectives.call import Call
from gcsim.simulator.collectives.double_tree_allreduce import DoubleTreeAllReduce
from gcsim.simulator.fabric.link_table import LinkTable
from gcsim.simulator.fabric.rounds import Fabric
from gcsim.simulator.host import Traffic
from gcsim.simulator.network.paths import framed


class SwitchAllReduce:
    """All-reduce of a vector, for any entry times."""

    def __init__(
        self, call: Call, leaders: Fabric, *, tree: DoubleTreeAllReduce | None, inside: Picoseconds
    ) -> None:
        """`leaders`: a rank per node, at the rate with which their switch adds; `tree`: between
        nodes, None: the switch adds; `inside`: time to begin and end within a node."""
        self._vector, self._devices = call.nbytes, call.cluster.devices_per_node
        self._leaders, self._tree, self._inside = leaders, tree, inside
        ranks = leaders.everyone
        self._hops = leaders.hops(ranks, np.roll(ranks, -1)) if leaders.nodes > 1 else None
        self._bus = LinkTable()
        bus = call.cluster.intra_node
        self._adds = bus.switch_adds is not None and self._devices > 1
        self._bus.add(framed(bus, bus.switch_adds or Fraction(1), Fraction(0)))
        self.nbytes = 4096 + (0 if tree is None else tree.nbytes)

    def __call__(self, starts: Times, key: int = 0) -> Times:
        """Exit times, as defined by `Prepared`."""
        ready = starts.reshape(-1, self._devices).max(axis=1) + self._inside  # [nodes]
        finishes = ready
        if self._tree is not None:
            finishes = self._tree(ready, key)
        elif self._hops is not None:
            _, arrivals = self._hops.flight(ready, self._vector, key=key, message=0)
            finishes = np.full_like(ready, arrivals.max())
        if self._adds:
            kinds = np.zeros_like(ready)
            if self._bus.timed(kinds):
                added = self._bus.departure(ready, kinds, self._vector)
            else:
                added = ready + self._bus.serialization(kinds, self._vector)
            if self._hops is not None:  # a sum has every node's last piece
                added = np.full_like(ready, (added + self._hops.latency(self._vector)).max())
            finishes = np.maximum(finishes, added)
        check_range(finishes, 0)
        return np.repeat(finishes, self._devices)

    @property
    def traffic(self) -> Traffic:
        """Traffic of each node's first device: the tree's, or one vector out and one in."""
        ends, nbytes = np.zeros((2, self._leaders.nodes * self._devices), dtype=np.int64)
        if self._tree is not None:
            between = self._tree.traffic(1)
            ends[:: self._devices], nbytes[:: self._devices] = between.ends, between.nbytes
        elif self._hops is not None:
            ends[:: self._devices], nbytes[:: self._devices] = 2, 2 * self._vector
        return Traffic.of_ranks(ends, nbytes, self._devices)
