"""All-reduce that first reduces inside each node.

1. A node's devices send their vectors to its first device, the leader, over the node's own link,
   which carries one vector at a time.
2. The leaders run a ring all-reduce over the network: 2 (N - 1) steps instead of 2 (p - 1), and
   2 (N - 1) n / N bytes per NIC, for N nodes.
3. Each leader sends the result to its node's other devices, one after the other.

Assumptions: a transfer inside the node starts when device and leader have entered and the link is
free, in order of entry (ties: by rank); the three parts are not pipelined; the leader adds each
vector as it arrives, and leaves when its last copy has left. For random delays, a device's message
to its leader has number 0; ring and copies have separate keys (`phase_key`), in which node k is
rank k and the copy for a node's i-th device has number i - 1.

Source: the hierarchical all-reduce of Jia et al. 2018 (arXiv:1807.11205).
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from gcsim.simulator.clock import NO_COST, PS_PER_SECOND, Picoseconds, Times, check_range
from gcsim.simulator.collectives.call import Call
from gcsim.simulator.collectives.rings.allreduce import chunks, ring_allreduce
from gcsim.simulator.collectives.rings.program import ring_traffic
from gcsim.simulator.collectives.rounds.rounds import phase_key
from gcsim.simulator.collectives.staging import copy_time
from gcsim.simulator.fabric.link_table import LinkTable
from gcsim.simulator.host import Traffic
from gcsim.simulator.network.links import Link

STAGES_ITSELF = True  # its leaders copy between device and host


class HierarchicalAllReduce:
    """All-reduce of a vector on fixed links, for any entry times."""

    nbytes = 4096

    def __init__(
        self,
        nbytes: int,
        links: Sequence[Link],
        *,
        local: Link,
        element: int = 1,
        gamma: Fraction = NO_COST,
        staging: Picoseconds = 0,
    ) -> None:
        """Prepare a vector of `nbytes` bytes, `element` bytes per element.

        `links[k]` leads from node k to node k + 1; ranks count node by node. `local` joins a node's
        devices; each leader spends `staging` before and after the ring (copies between device and
        host); reducing costs `gamma` seconds per byte.
        """
        self._nodes, self._staging = max(1, len(links)), staging
        self._inside = _IntraNode(local, nbytes, round(gamma * nbytes * PS_PER_SECOND))
        self._ring = None
        if self._nodes > 1:
            self._ring = ring_allreduce(nbytes, links, element=element, gamma=gamma)

    def __call__(self, starts: Times, key: int = 0) -> Times:
        """Exit times, as defined by `Prepared`."""
        by_node = starts.reshape(self._nodes, -1)  # [nodes, devices]
        devices = by_node.shape[1]
        check_range(starts, 2 * (devices * self._inside.longest + self._staging))
        reduced = self._inside.gather(by_node, key)
        if self._ring is not None:
            reduced = self._ring(reduced + self._staging, phase_key(key, 1)) + self._staging
        finishes = self._inside.broadcast(reduced, devices, phase_key(key, 2)).reshape(-1)
        check_range(finishes, 0)
        return finishes


class _IntraNode:
    """Transfers of a vector between a node's devices and its leader, one after the other."""

    def __init__(self, local: Link, nbytes: int, reduction: Picoseconds) -> None:
        self._link, self._nbytes, self._reduction = local, nbytes, reduction
        self._table = LinkTable()
        self._table.add(local)
        self._latency = local.latency_for(nbytes)
        self._serialization = 0 if local.timed else local.serialization(nbytes)
        self.longest = self._serialization + self._latency + reduction

    def gather(self, by_node: Times, key: int) -> Times:
        """Return when the leaders have their nodes' sums, for entries `[nodes, devices]`."""
        leader, others = by_node[:, 0], by_node[:, 1:]
        order = np.argsort(others, axis=1, kind="stable")  # in order of entry
        rank = np.arange(by_node.size, dtype=np.int64).reshape(by_node.shape)[:, 1:]
        delays = self._draw_jitter(rank, 0, key)
        free, arrivals = leader, np.empty_like(others)
        entered = np.take_along_axis(others, order, 1)
        for place in range(others.shape[1]):
            free = self._left(np.maximum(free, entered[:, place]))
            arrivals[:, place] = free + self._latency
        arrivals += np.take_along_axis(delays, order, 1)
        done = leader
        for arrival in np.sort(arrivals, axis=1).T:
            done = np.maximum(done, arrival) + self._reduction
        return done

    def broadcast(self, held: Times, devices: int, key: int) -> Times:
        """Return when the devices `[nodes, devices]` have the result of their leaders."""
        nodes = len(held)
        finishes = np.empty((nodes, devices), dtype=np.int64)
        leader = np.arange(nodes, dtype=np.int64)[:, None] * devices
        copy = np.arange(devices - 1, dtype=np.int64)
        delays = self._draw_jitter(np.broadcast_to(leader, (nodes, devices - 1)), copy, key)
        for place in range(1, devices):
            held = self._left(held)
            finishes[:, place] = held + self._latency + delays[:, place - 1]
        finishes[:, 0] = held
        return finishes

    def _left(self, start: Times) -> Times:
        if self._link.timed:
            return self._table.departure(start, np.zeros_like(start), self._nbytes)
        return start + self._serialization

    def _draw_jitter(self, rank: Times, message: Times | int, key: int) -> Times:
        if not self._link.random:
            return np.zeros_like(rank)
        kinds = np.zeros_like(rank)
        return self._table.draw_jitter(kinds, self._nbytes, key=key, message=message, rank=rank)


def prepare(call: Call) -> HierarchicalAllReduce:
    """Prepare an all-reduce whose leaders copy through host memory if the transport does."""
    cluster = call.cluster
    staging = 0
    if cluster.collectives.stages:
        staging = copy_time(call.nbytes, cluster.intra_node)
    return HierarchicalAllReduce(
        call.nbytes,
        call.fabric.leader_links(),
        local=cluster.between_ranks,
        element=call.element,
        gamma=call.gamma,
        staging=staging,
    )


def traffic(call: Call) -> Traffic:
    """Return the traffic of the leaders' ring, and two messages per other device."""
    nodes, devices = call.fabric.nodes, call.cluster.devices_per_node
    blocks = chunks(call.nbytes, nodes, call.element)
    ring = ring_traffic([1] * nodes, blocks, devices=1, firsts=(0, 1))
    ends = np.full(nodes * devices, 2, dtype=np.int64)
    ends[::devices] *= devices - 1
    nbytes = ends * call.nbytes
    if nodes > 1:
        ends[::devices] += ring.ends
        nbytes[::devices] += ring.nbytes
    return Traffic.of_ranks(ends, nbytes, devices)
