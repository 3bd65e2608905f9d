"""How long does an all-to-all take in which each rank talks to one partner at a time?

p - 1 steps; at step s rank r sends the part for rank r + s and receives that of rank r - s (mod
p). It starts the send of a step when it has received what the step before brought, and when that
step's send has left. A rank's own part stays where it is. Where parts may differ in length, a
round of 8 bytes a pair precedes them.

A network card carries, at each step, one message of each of its node's devices whose partner is
on another node: they share it, so that each takes that many times as long (`fabric.py`).

Assumptions: those of `fabric.py`; a rank's parts are equal, 1/p of what it hands over, to the byte,
the longer first.

Source: the pairwise exchange of Thakur, Rabenseifner and Gropp 2005 (Int. J. High Perform. Comput.
Appl. 19), sec. 4.4.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gcsim.simulator.clock import Times
from gcsim.simulator.collectives.call import Call
from gcsim.simulator.collectives.fabric import Fabric
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
    fabric = Fabric(nodes=nodes, devices=ranks // nodes, cards=[network], buses=[local])
    fabric.check(entry, ranks, max(sent) + ranks)
    share, longer = np.divmod(np.array(sent, dtype=np.int64), ranks)
    rank = fabric.everyone
    ready = entry
    for step in range(1, ranks):
        partner = (rank + step) % ranks
        ready = fabric.exchange(ready, rank, partner, share + (partner < longer))
    return ready


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
