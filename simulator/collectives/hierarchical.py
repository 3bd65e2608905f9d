"""How long does an all-reduce take that first reduces inside each node?

1. Each device of a node hands its vector to the node's first device, the leader, over the
   node's own link; the leader's side of that link takes one vector at a time.
2. The leaders run a ring all-reduce over the network.
3. Each leader sends the result to the other devices of its node, one after the other.

Every network card carries 2 (N - 1) n / N bytes for N nodes, and the ring has 2 (N - 1) steps
instead of 2 (p - 1).

Assumptions: a transfer inside the node starts when its device and the leader have entered and
the link is free, in the order in which the devices entered (ties: by rank); the three parts are
not pipelined; the leader adds each vector as it arrives. A leader has left when its last copy
has left it.

Source: the hierarchical all-reduce of Jia et al. 2018 (arXiv:1807.11205).
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from gcsim.simulator.clock import PS_PER_SECOND, Picoseconds, Times
from gcsim.simulator.collectives.call import Call
from gcsim.simulator.collectives.ring import NO_COST, check_range
from gcsim.simulator.collectives.ring_allreduce import ring_allreduce
from gcsim.simulator.collectives.staging import copy_time
from gcsim.simulator.links import Link


def hierarchical_allreduce(
    entry: Times,
    nbytes: int,
    links: Sequence[Link],
    *,
    local: Link,
    element: int = 1,
    gamma: Fraction = NO_COST,
    staging: Picoseconds = 0,
) -> Times:
    """Exit times `[p]` for entry times `[p]`, picoseconds.

    `links[k]` leads from node k to node k + 1; p is a multiple of the number of nodes, ranks
    count node by node. `local` joins the devices of a node; `staging` is spent by each leader
    before and again after the ring (copies between device and host); `gamma` seconds a byte.
    """
    nodes = len(links)
    by_node = entry.reshape(nodes, -1)
    devices = by_node.shape[1]
    busy, latency = local.serialization(nbytes), local.latency_ps
    reduction = round(gamma * nbytes * PS_PER_SECOND)
    check_range(entry, 2 * (devices * (busy + latency + reduction) + staging))

    reduced = _gather(by_node, busy, latency, reduction)
    if nodes > 1:
        ring = ring_allreduce(reduced + staging, nbytes, links, element=element, gamma=gamma)
        reduced = ring + staging

    left = reduced[:, None] + busy * np.arange(devices, dtype=np.int64)
    exit_times = left + latency
    exit_times[:, 0] = left[:, -1]
    return exit_times.reshape(-1)


def _gather(
    by_node: Times, busy: Picoseconds, latency: Picoseconds, reduction: Picoseconds
) -> Times:
    """When each leader holds the sum of its node's vectors; `by_node` is `[nodes, devices]`."""
    leader = by_node[:, 0]
    others = np.sort(by_node[:, 1:], axis=1)  # who entered first goes first
    free, done = leader, leader
    for place in range(others.shape[1]):
        free = np.maximum(free, others[:, place]) + busy
        done = np.maximum(done, free + latency) + reduction
    return done


def carry_out(call: Call) -> Times:
    """Leaders stage through host memory where the transport does."""
    cluster = call.cluster
    staging = 0
    if cluster.collectives.transport == "gloo":
        staging = copy_time(call.nbytes, cluster.intra_node)
    return hierarchical_allreduce(
        call.entry,
        call.nbytes,
        [cluster.network] * cluster.nodes,
        local=cluster.intra_node,
        element=call.element,
        staging=staging,
    )
