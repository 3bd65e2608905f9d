"""How long does it take to merge all payloads two by two and to tell everybody the result?

Round j of the merge: rank r with r mod 2^(j+1) = 2^j sends what it holds to rank r - 2^j, which
computes for `merge_time` and holds the merged payload then; ceil(log2 p) rounds bring everything
to rank 0. The broadcast takes the same tree the other way: whoever has the result sends it to the
subtrees it merged, the largest first, one after the other. Any number of ranks.

A merged payload has the size of the result: methods that merge this way keep it (gTop-k).

Assumptions: those of `fabric/rounds.py`; a rank sends one message at a time.

Source: the tree of S. Shi et al. 2019 (ICDCS, gTop-k, Alg. 3); binomial trees as in Thakur,
Rabenseifner and Gropp 2005, sec. 4.2.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gcsim.simulator.clock import Picoseconds, Times
from gcsim.simulator.collectives.call import Call
from gcsim.simulator.collectives.rounds.binomial_tree_allreduce import (
    broadcast_rounds,
    children,
    tree_distances,
)
from gcsim.simulator.collectives.rounds.rounds import Rounds
from gcsim.simulator.fabric.rounds import Fabric
from gcsim.simulator.host import Traffic


def tree_merge(
    starts: Times,
    sent: Sequence[int],
    result: int,
    fabric: Fabric,
    *,
    merge_time: Picoseconds = 0,
    key: int = 0,
) -> Times:
    """Exit times `[p]` for entry times `[p]`, picoseconds.

    `sent[r]` is the bytes of rank r's payload, `result` those of a merged one; `key` is that of the
    random delays. p = 1 costs nothing.
    """
    return fabric.prepared(_rounds, tuple(sent), result, merge_time).execute(starts, key)


def _rounds(fabric: Fabric, sent: tuple[int, ...], result: int, merge_time: Picoseconds) -> Rounds:
    ranks, size = fabric.ranks, np.array(sent, dtype=np.int64)
    rounds = Rounds(fabric)
    for distance in tree_distances(ranks):
        senders = children(ranks, distance)
        rounds.exchange(senders, senders - distance, size[senders], adding=merge_time)
        size[senders - distance] = result
    broadcast_rounds(rounds, ranks, result)
    return rounds


def execute(call: Call) -> Times:
    """The tree over all devices, ranks counted node by node."""
    return tree_merge(
        call.starts,
        call.sent,
        call.pulled,
        call.fabric,
        merge_time=call.server_time,
        key=call.key,
    )


def traffic(call: Call) -> Traffic:
    """What the ranks handle in it."""
    return call.fabric.prepared(_rounds, tuple(call.sent), call.pulled, call.server_time).traffic(
        call.fabric.devices
    )
