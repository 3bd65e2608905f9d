"""All-reduces and all-gathers in switches: NVLS in a node, NVLS and CollNet (SHARP) between nodes.

A switch adds the vectors, or forwards each block to all devices. Each device sends its vector or
block once and receives the result once, instead of 2 (p - 1)/p of it with a ring. For a result of n
bytes:

    ready of a node = last entry of its devices + inside
    between nodes   = the double tree of `double_tree_allreduce.py`, or the switch's work: last of
                      the nodes' results to arrive, each n / (share W) and a latency after its start
    exit            = that, and not before the last node's ready + n / (share of the NVLink's rate)
                      and a latency of the network

`share` is the share of a link's goodput that its switch reaches. Transfers inside and between nodes
are pipelined, so the slower of them counts. Blocks of early ranks wait for the last entry.

Source: NCCL, src/device/all_reduce.h (`RunWorkColl` of NVLS, NVLS_TREE and COLLNET_CHAIN) and
all_gather.h (NVLS); Graham et al. 2016, "Scalable hierarchical aggregation protocol (SHArP)",
COMHPC.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from gcsim.simulator.clock import Picoseconds, Times, check_range
from gcsim.simulator.collectives.call import Call
from gcsim.simulator.collectives.double_tree_allreduce import DoubleTreeAllReduce
from gcsim.simulator.fabric.link_table import LinkTable
from gcsim.simulator.fabric.rounds import Fabric
from gcsim.simulator.host import Traffic, first_ranks
from gcsim.simulator.network.paths import with_framing


class InNetwork:
    """Collective carried out by switches, for any entry times."""

    def __init__(
        self,
        call: Call,
        leaders: Fabric,
        *,
        sent: int,
        result: int,
        share: Fraction | None,
        tree: DoubleTreeAllReduce | None,
        inside: Picoseconds,
    ) -> None:
        """`leaders`: fabric of one rank per node, at the switch's rate; `sent`: bytes of a node;
        `result`: bytes on each rank; `share`: for the devices' own links, None: no switch inside
        nodes; `tree`: between nodes, None: the switch; `inside`: time to begin and end within a
        node."""
        self._sent, self._result, self._ranks = sent, result, call.cluster.workers
        self._devices = call.cluster.devices_by_node
        self._first = first_ranks(call.cluster.nodes, self._devices)
        self._leaders, self._tree, self._inside = leaders, tree, inside
        ranks = leaders.everyone
        self._hops = leaders.hops(ranks, np.roll(ranks, -1)) if leaders.nodes > 1 else None
        self._bus = LinkTable()
        self._switched = share is not None and self._devices != 1
        self._bus.add(with_framing(call.cluster.intra_node, share or Fraction(1), Fraction(0)))
        self.nbytes = 4096 + (0 if tree is None else tree.nbytes)

    def __call__(self, starts: Times, key: int = 0) -> Times:
        """Exit times, as defined by `Prepared`."""
        ready = np.maximum.reduceat(starts, self._first) + self._inside  # [nodes]
        finishes = ready
        if self._tree is not None:
            finishes = self._tree(ready, key)
        elif self._hops is not None:
            _, arrivals = self._hops.flight(ready, self._result, key=key, message=0)
            finishes = np.full_like(ready, arrivals.max())
        if self._switched:
            kinds = np.zeros_like(ready)
            if self._bus.timed(kinds):
                within = self._bus.departure(ready, kinds, self._result)
            else:
                within = ready + self._bus.serialization(kinds, self._result)
            if self._hops is not None:  # the result needs every node's last piece
                within = np.full_like(ready, (within + self._hops.latency(self._result)).max())
            finishes = np.maximum(finishes, within)
        check_range(finishes, 0)
        return np.repeat(finishes, self._devices)

    @property
    def traffic(self) -> Traffic:
        """Traffic of each node's first device: the tree's, or one message each way."""
        ends, nbytes = np.zeros((2, self._ranks), dtype=np.int64)
        if self._tree is not None:
            between = self._tree.traffic(1)
            ends[self._first], nbytes[self._first] = between.ends, between.nbytes
        elif self._hops is not None:
            ends[self._first], nbytes[self._first] = 2, self._sent + self._result
        return Traffic.of_ranks(ends, nbytes, self._devices)
