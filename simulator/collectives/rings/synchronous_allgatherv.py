"""MPICH's ring all-gatherv, pipelined in synchronous rounds.

Contributions are cut into blocks of m = max(min n_i, 32 KiB). Rank r sends the blocks of ranks r, r
- 1, ..., r + 2 and receives those of r - 1, ..., r + 1 (all mod p), one of each per round, which
  ends when its own block has left and the other has arrived:

    T[k+1] = max(T[k] + serialisation, T[k] of r - 1 + serialisation + latency + delay)

n_i bytes take ceil(n_i / m) rounds, none a round in which nobody sends; a rank that has sent all
only receives, and conversely. With equal links and blocks every round costs serialisation and
latency; without latency

    T <= (sum n_i + (p - 1) m) beta

Assumptions: sends are buffered, as in `rings/recurrence.py`; messages are numbered per sender; a
collective ends after the last entry (MPICH: ranks may leave earlier).

Source: MPICH, src/mpi/coll/allgatherv/allgatherv_intra_ring.c and
MPIR_CVAR_ALLGATHERV_PIPELINE_MSG_SIZE; Traeff, Ripke, Siebert, Balaji, Thakur and Gropp 2008
(EuroPVM/MPI, LNCS 5205), "A simple, pipelined algorithm for large, irregular all-gather problems".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from gcsim.compressors.loops import loop
from gcsim.simulator.clock import Times, check_range
from gcsim.simulator.collectives.call import Call
from gcsim.simulator.collectives.rings.messages import DRAWN_AT_A_TIME
from gcsim.simulator.collectives.rings.pipelined_allgatherv import PreparedPieces
from gcsim.simulator.collectives.rings.program import ring_traffic
from gcsim.simulator.host import Traffic
from gcsim.simulator.network.departures import departure

PIPELINE = 32 * 1024  # bytes, MPIR_CVAR_ALLGATHERV_PIPELINE_MSG_SIZE
_NOTHING = -(2**62)  # arrival of a message that does not exist: earlier than any time


def block_size(sizes: Sequence[int], pipeline: int = PIPELINE) -> int:
    """Bytes of a block: the smallest contribution, at least `pipeline`, at least 1."""
    return max(min(sizes), pipeline, 1)


class PreparedRounds(PreparedPieces):
    """Gather of fixed contributions over the links of p > 1 ranks: O(p) operations per round."""

    def __call__(self, starts: Times, key: int = 0) -> Times:
        """Exit times, as defined by `Prepared`."""
        messages, ranks = self._messages, self.ranks
        period, pieces = self._repeating(starts)
        # a rank sends all blocks but its successor's
        sends = ranks // period * len(pieces.row) - np.roll(pieces.count, -1)
        rounds = int(sends.max())
        ready = np.array(starts[:period], dtype=np.int64)
        check_range(starts, rounds * messages.slowest)
        place, exchange = pieces.first.copy(), messages.run(_exchange)
        for first, last, jitter in self._rounds(rounds, period, key):
            messages.check_jitter(int(ready.max()), last - first, jitter)
            exchange(
                ready,
                place,
                pieces.row,
                sends,
                messages.kinds,
                messages.nbytes,
                self._serialization,
                self._latency,
                len(messages.links),
                jitter,
                first,
                last,
            )
            messages.check_departures(ready)
        finishes: Times = np.maximum(np.tile(ready, ranks // period), starts.max())
        return finishes

    def _rounds(self, rounds: int, period: int, key: int) -> Iterator[tuple[int, int, Times]]:
        """Portions of the rounds, with their messages' random delays `[rounds, p]`."""
        if not self._messages.jitter.any:
            yield 0, rounds, np.zeros((0, period), dtype=np.int64)
            return
        pieces, rank = self._pieces[self.ranks], np.arange(self.ranks, dtype=np.int64)
        twice = np.concatenate((pieces.row, pieces.row))
        real = self._messages.nbytes[twice] > 0
        sent_before: NDArray[np.int64] = np.cumsum(real) - real
        together = max(1, DRAWN_AT_A_TIME // self.ranks)
        for first in range(0, rounds, together):
            last = min(rounds, first + together)
            at = pieces.first + np.arange(first, last, dtype=np.int64)[:, None]
            number: NDArray[np.int64] = sent_before[at] - sent_before[pieces.first]
            yield (
                first,
                last,
                self._messages.draw_jitter(twice[at], key=key, message=number, rank=rank),
            )


@loop
def _exchange(  # noqa: PLR0917 - a compiled loop takes its arrays by position
    ready: Times,
    place: NDArray[np.int64],
    row: NDArray[np.int64],
    sends: NDArray[np.int64],
    kinds: NDArray[np.int64],
    nbytes: NDArray[np.int64],
    serialization: Times,
    latency: Times,
    width: int,
    jitter: NDArray[np.int64],
    begin: int,
    end: int,
) -> None:
    """Take `ready` `[q]` from before round `begin` to before round `end`.

    `place` `[q]`: each rank's index in `row`, advanced; rank r sends in its first `sends[r]`
    rounds. `serialization` and `latency` are flat, by size class and link class (`width`); `jitter`
    is `[end - begin, q]`, or `[0, q]` for none.
    """
    q = ready.size
    arrived = np.empty(q, dtype=np.int64)
    for number in range(begin, end):
        for r in range(q):
            size = row[place[r]]
            place[r] += 1
            if place[r] == row.size:
                place[r] = 0
            arrived[r] = _NOTHING
            if number < sends[r] and nbytes[size] > 0:
                at = size * width + kinds[r]
                left = departure(serialization, at, ready[r])
                ready[r] = left
                arrived[r] = left + latency[at]
                if jitter.shape[0] > 0:
                    arrived[r] += jitter[number - begin, r]
        ready[0] = max(ready[0], arrived[q - 1])
        for r in range(1, q):
            ready[r] = max(ready[r], arrived[r - 1])


def prepare(call: Call) -> PreparedRounds:
    """Gather over all devices, node by node, in blocks of at least `pipeline_block`."""
    block = block_size(call.sent, call.cluster.collectives.pipeline_block)
    return PreparedRounds(call.sent, call.ring_links(), block)


def traffic(call: Call) -> Traffic:
    """Traffic of the ranks."""
    block = block_size(call.sent, call.cluster.collectives.pipeline_block)
    blocks = [-(-size // block) for size in call.sent]
    return ring_traffic(blocks, call.sent, devices=call.fabric.devices)
