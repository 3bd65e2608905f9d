"""How long does the pipelined ring all-gatherv take, blocks forwarded as they arrive?

Every rank's data is cut into pieces of `piece` bytes (the last may be shorter). A rank sends its
own pieces, then forwards each piece that arrives, first come first served, except to the rank
that it came from first; one unequal contribution no longer holds up a whole step:

    T <= (sum n_i + (p - 1) piece) beta, when latency is zero

Assumptions: those of `ring.py`, per piece. This is forwarding on arrival; MPICH's synchronous
rounds, which wait for a piece's arrival before the next is sent, take 2 to 9 times as long where
latency counts. A rank with nothing to send sends one empty piece.

Source: Traeff, Ripke, Siebert, Balaji, Thakur and Gropp 2008 (EuroPVM/MPI, LNCS 5205), "A simple,
pipelined algorithm for large, irregular all-gather problems"; the bound as in Tsuzuku, Imachi
and Akiba 2018 (arXiv:1802.06058), sec. 5.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gcsim.simulator.clock import Times
from gcsim.simulator.collectives.call import Call
from gcsim.simulator.collectives.ring import (
    Messages,
    check_range,
    classes,
    common_period,
    from_predecessor,
)
from gcsim.simulator.links import Link


def pipelined_ring_allgatherv(
    entry: Times, sizes: Sequence[int], links: Sequence[Link], piece: int
) -> Times:
    """Exit times `[p]` for entry times `[p]`, picoseconds.

    `sizes[r]` is the bytes of rank r, `links[r]` leads from rank r to rank r + 1 (mod p),
    `piece` is the bytes of a full piece. p = 1 costs nothing. Time O(p) numpy operations on
    arrays of p rows and as many columns as the largest contribution has pieces.
    """
    ranks = len(entry)
    if ranks == 1:
        return entry.copy()
    period = common_period(entry, classes(sizes)[1], classes([id(link) for link in links])[1])
    pieces, distinct = _cut(sizes[:period], piece)
    messages = Messages.of(distinct, links[:period])
    check_range(entry, (ranks - 1) * pieces.shape[1] * messages.slowest)
    exit_times = _forward(entry[:period], pieces, messages, steps=ranks - 1)
    return np.tile(exit_times, ranks // period)


def _cut(sizes: Sequence[int], piece: int) -> tuple[NDArray[np.int64], list[int]]:
    """Size class of piece k of rank r at [r, k], and the bytes of each class.

    Rows are filled up with empty pieces; behind the last real piece they change nothing.
    """
    distinct = list(dict.fromkeys([0, piece, *sorted({size % piece for size in sizes})]))
    place = {nbytes: position for position, nbytes in enumerate(distinct)}
    table = np.zeros((len(sizes), max(1, -(-max(sizes) // piece))), dtype=np.int64)
    for row, size in enumerate(sizes):
        full, rest = divmod(size, piece)
        table[row, :full] = 1
        if rest:
            table[row, full] = place[rest]
    return table, distinct


def _forward(entry: Times, pieces: NDArray[np.int64], messages: Messages, *, steps: int) -> Times:
    """All pieces of one origin at a time, step by step away from it.

    F[k] = max(F[k-1], available[k]) + serialisation[k] along a row is, with P the running sum of
    the serialisation, F[k] = P[k] + max over i <= k of (available[i] - P[i-1]).
    """
    ranks = len(entry)
    links, latency = messages.kinds[:, None], messages.latency[:, None]
    twice = np.concatenate((pieces, pieces))
    free = entry[:, None]
    available = np.broadcast_to(free, pieces.shape)
    for step in range(steps):
        shift = ranks - step % ranks
        busy = messages.serialisation[twice[shift : shift + ranks], links]
        total = np.cumsum(busy, axis=1)
        slack = np.maximum.accumulate(available - (total - busy), axis=1)
        sent = total + np.maximum(slack, free)
        available = np.maximum(from_predecessor(sent + latency), entry[:, None])
        free = sent[:, -1:]
    return np.maximum(free[:, 0], available[:, -1])


def carry_out(call: Call) -> Times:
    """The ring over all devices, node by node."""
    piece = call.cluster.collectives.pipeline_block
    return pipelined_ring_allgatherv(call.entry, call.sent, call.ring_links(), piece)
