"""How long does an all-to-all take in which each rank talks to one partner at a time?

p - 1 steps; at step s rank r sends the part for rank r + s and receives that of rank r - s (mod
p). It starts the send of a step when it has received what the step before brought, and when that
step's send has left. A rank's own part stays where it is. Where parts may differ in length, a
round of 8 bytes a pair precedes them.

A network card carries, at each step, one message of each of its node's devices whose partner is
on another node: they share it, so that each takes that many times as long.

Assumptions: those of `ring.py`; a rank's parts are equal, 1/p of what it hands over, to the byte;
messages that share a card start together.

Source: the pairwise exchange of Thakur, Rabenseifner and Gropp 2005 (Int. J. High Perform. Comput.
Appl. 19), sec. 4.4.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gcsim.simulator.clock import Picoseconds, Times
from gcsim.simulator.collectives.call import Call
from gcsim.simulator.collectives.ring import check_range
from gcsim.simulator.collectives.ring_allreduce import chunks
from gcsim.simulator.links import Link

LENGTH_BYTES = 8
"""What announces the length of a part."""


def pairwise_alltoall(
    entry: Times, sent: Sequence[int], *, nodes: int, network: Link, local: Link
) -> Times:
    """Exit times `[p]` for entry times `[p]`, picoseconds.

    `sent[r]` is the bytes that rank r hands over for all p ranks together, itself included; p is
    a multiple of `nodes` and ranks count node by node. p = 1 costs nothing.
    """
    ranks = len(entry)
    if ranks == 1:
        return entry.copy()
    devices = ranks // nodes
    rank = np.arange(ranks, dtype=np.int64)
    parts = {nbytes: chunks(nbytes, ranks) for nbytes in set(sent)}
    largest = max(max(sizes) for sizes in parts.values())
    slowest = max(
        devices * network.serialization(largest) + network.latency_ps,
        local.serialization(largest) + local.latency_ps,
    )
    check_range(entry, ranks * slowest)

    known: dict[tuple[int, int], Picoseconds] = {}

    def price(nbytes: int, sharing: int) -> Picoseconds:
        """Time on the node's link (sharing 0) or on a card that `sharing` messages share."""
        key = nbytes, sharing
        if key not in known:
            each = network.serialization(nbytes) if sharing else local.serialization(nbytes)
            known[key] = max(1, sharing) * each
        return known[key]

    left = received = entry
    for step in range(1, ranks):
        partner = (rank + step) % ranks
        crosses = partner // devices != rank // devices
        sharing = np.where(crosses, crosses.reshape(nodes, devices).sum(axis=1)[rank // devices], 0)
        busy = [
            price(parts[nbytes][to], shared)
            for nbytes, to, shared in zip(sent, partner.tolist(), sharing.tolist(), strict=True)
        ]
        left = np.maximum(left, received) + np.array(busy, dtype=np.int64)
        latency = np.where(crosses, network.latency_ps, local.latency_ps)
        received = np.maximum(received, np.roll(left + latency, step))
    return np.maximum(left, received)


def carry_out(call: Call) -> Times:
    """The lengths where they differ, then the parts."""
    cluster = call.cluster
    entry = call.entry
    rounds = [call.sent]
    if call.variable:
        rounds.insert(0, (LENGTH_BYTES * cluster.workers,) * cluster.workers)
    for sent in rounds:
        entry = pairwise_alltoall(
            entry, sent, nodes=cluster.nodes, network=cluster.network, local=cluster.intra_node
        )
    return entry
