"""How long does it take to merge all payloads two by two and to tell everybody the result?

Round j of the merge: rank r with r mod 2^(j+1) = 2^j sends what it holds to rank r - 2^j, which
computes for `merge_time` and holds the merged payload then; ceil(log2 p) rounds bring everything
to rank 0. The broadcast takes the same tree the other way: whoever has the result sends it to the
subtrees it merged, the largest first, one after the other. Any number of ranks.

A merged payload has the size of the result: methods that merge this way keep it (gTop-k).

Assumptions: messages are buffered, a rank sends one message at a time; two ranks of one node
talk over the node's link, others over the network; messages of different devices that cross one
card at the same time do not slow each other (with 2^i devices a node they never do).

Source: the tree of S. Shi et al. 2019 (ICDCS, gTop-k, Alg. 3); binomial trees as in Thakur,
Rabenseifner and Gropp 2005, sec. 4.2.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from gcsim.simulator.clock import Picoseconds, Times
from gcsim.simulator.collectives.call import Call
from gcsim.simulator.collectives.ring import check_range
from gcsim.simulator.links import Link


def tree_merge(
    entry: Times,
    sent: Sequence[int],
    result: int,
    *,
    link: Callable[[int, int], Link],
    merge_time: Picoseconds = 0,
) -> Times:
    """Exit times `[p]` for entry times `[p]`, picoseconds.

    `sent[r]` is the bytes of rank r's payload, `result` those of a merged one; `link(a, b)` is the
    link from rank a to rank b. p = 1 costs nothing.
    """
    ranks = len(entry)
    ready = entry.tolist()
    size = list(sent)
    distance = 1
    while distance < ranks:
        for receiver in range(0, ranks - distance, 2 * distance):
            sender = receiver + distance
            arrival = ready[sender] + _message(link(sender, receiver), size[sender])
            ready[sender] += link(sender, receiver).serialization(size[sender])
            ready[receiver] = max(ready[receiver], arrival) + merge_time
            size[receiver] = result
        distance *= 2
    while distance > 1:
        distance //= 2
        for sender in range(0, ranks - distance, 2 * distance):
            receiver = sender + distance
            arrival = ready[sender] + _message(link(sender, receiver), result)
            ready[sender] += link(sender, receiver).serialization(result)
            ready[receiver] = max(ready[receiver], arrival)
    check_range(entry, max(ready) - int(entry.max()))
    return np.array(ready, dtype=np.int64)


def _message(link: Link, nbytes: int) -> Picoseconds:
    return link.serialization(nbytes) + link.latency_ps


def carry_out(call: Call) -> Times:
    """The tree over all devices, ranks counted node by node."""
    cluster = call.cluster

    def link(a: int, b: int) -> Link:
        same = cluster.node_of(a) == cluster.node_of(b)
        return cluster.intra_node if same else cluster.network

    return tree_merge(call.entry, call.sent, call.pulled, link=link, merge_time=call.server_time)
