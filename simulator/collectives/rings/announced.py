"""Exit times of a ring in which receivers announce that they have posted a receive.

A rank sends its messages (pieces of blocks) in order, with w (`in_flight`) in flight: it posts
receive and send of message i when message i - w has arrived and been reduced and its own message
i - w has left. Data leave when the sender has posted them and received the receiver's announcement.
With U the time of posting and F the end of a send, for w = 2:

    U[i] = max(max(U[i-1], arrival of i - 2) + reduction, F[i-2])
    F[i] = max(U[i], U[i] of the receiver + latency, F[i-1]) + serialisation
    arrival of i = F[i] + latency + delay, and not before that of i - 1

Two ranks share one connection for both directions, on which a rank's data and announcements stay in
order. At one instant arrivals come before posts, and no message arrives when it is sent.

Assumptions: a message has left when its last byte is on the link (Gloo: in the socket's buffer);
headers and announcements (48 bytes each) occupy no link, have an empty message's latency and no
random delay, and for p > 2 do not queue. Data messages are numbered per sender.

Source: pytorch/gloo, gloo/transport/tcp/pair.cc (`send`, `recv`, `handleRemotePendingRecv`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from gcsim.simulator.clock import NO_COST, Times, check_range
from gcsim.simulator.collectives.rings.announced_loop import (
    Phases,
    Prices,
    Rules,
    exits,
    post,
    state_of,
    wait,
)
from gcsim.simulator.collectives.rings.messages import DRAWN_AT_A_TIME, Messages, common_period
from gcsim.simulator.collectives.rings.program import Phase, Program
from gcsim.simulator.network.links import Link

_LONG = 128  # ranks from which tracking only changed timings is faster
_LARGEST = 1 << 18  # most pieces in its table of times


def phases_of(program: Program, ranks: int, period: int, *, constant: bool, even: bool) -> Phases:
    """Return the phases for the compiled loop, of the first `period` ranks. `constant`: times of
    messages do not depend on their start; `even`: nor on their link."""
    pieces = program.pieces[:period]
    steady = constant and bool((pieces == pieces[0]).all())
    many = len(pieces) >= _LONG and pieces.size <= _LARGEST
    announcing_first = program.in_flight == 2 and not program.sends_first
    keeps = constant and even and not steady and many and announcing_first
    gone = program.skips_empty & (np.array(program.sizes) == 0) if keeps else None
    return Phases(
        pieces=np.concatenate((pieces, pieces)).T.copy(),
        rules=Rules(ranks == 2, program.sends_first, program.skips_empty, steady),
        gone=gone,
        reduces=np.array([phase.reduces for phase in program.phases]),
        shifts=np.array([phase.first % period for phase in program.phases], dtype=np.int64),
        posts=(ranks - 1) * program.pieces.shape[1],
        window=program.in_flight,
    )


class AnnouncedRing:
    """Ring that runs `program` over the links of p > 1 ranks.

    `links[r]` leads from rank r to rank r + 1 (mod p), or to r - 1 if the program goes backwards;
    announcements travel the other way. Reducing costs `gamma` seconds per byte, taking in a message
    `reception` seconds per byte after its last byte (`Host.per_received_byte`). O(p) per message;
    on constant links one rank represents all equal ones.
    """

    def __init__(
        self,
        program: Program,
        links: Sequence[Link],
        *,
        gamma: Fraction = NO_COST,
        reception: Fraction = NO_COST,
    ) -> None:
        self.program, self.ranks = program, len(links)
        links = links[::-1] if program.backwards else links  # by place along the ring
        self._messages = messages = Messages.of(
            program.sizes, links, gamma=gamma, reception=reception
        )
        back = np.array([link.latency_for(0) for link in messages.links], dtype=np.int64)
        self._prices = Prices(
            kinds=messages.kinds,
            nbytes=messages.nbytes,
            serialization=messages.serialization(),
            latency=messages.latency.reshape(-1),
            back=back[messages.kinds],
            reductions=messages.reductions,
        )
        self._slowest = messages.slowest + int(back.max())
        self._post = messages.run(post)
        self._known: dict[int, Phases] = {}  # by period
        self._period = 0
        if messages.constant:
            self._period = common_period(program.alike, messages.kinds)

    def __call__(self, starts: Times, key: int = 0) -> Times:
        """Exit times, as defined by `Prepared`."""
        program, ranks = self.program, self.ranks
        starts = starts[::-1] if program.backwards else starts
        per_phase = (ranks - 1) * program.pieces.shape[1]
        check_range(starts, (2 * len(program.phases) * per_phase + 4) * self._slowest)
        period = common_period(starts, multiple_of=self._period) if self._period else ranks
        begin, messages = np.ascontiguousarray(starts[:period]), self._messages
        if period not in self._known:
            self._known[period] = phases_of(
                program, ranks, period, constant=messages.constant, even=len(messages.links) == 1
            )
        known = self._known[period]
        if messages.constant:
            return self._of_all(exits(begin, known, self._prices))
        state, sent = state_of(begin, program.in_flight), np.zeros(ranks, dtype=np.int64)
        pieces, rules, gone, *_ = known
        for phase, reduces, shift in zip(
            program.phases, known.reduces.tolist(), known.shifts.tolist(), strict=True
        ):
            for first, last, jitter in self._portions(phase, per_phase, sent, key, period):
                self._messages.check_jitter(int(state.posted.max()), last - first, jitter)
                self._post(
                    state, pieces, self._prices, rules, gone, reduces, jitter, shift, first, last
                )
            while state.queue[0]:
                wait(state)
            messages.check_departures(state.posted)
        return self._of_all(state.posted)

    def _of_all(self, posted: Times) -> Times:
        """Return the exit times of all ranks, from those of the simulated ones."""
        finishes = np.tile(posted, self.ranks // len(posted))
        return finishes[::-1] if self.program.backwards else finishes

    @property
    def nbytes(self) -> int:
        """Approximate memory."""
        return 4096 + 64 * self.ranks + 2 * self.program.pieces.nbytes

    def _portions(
        self, phase: Phase, posts: int, sent: NDArray[np.int64], key: int, period: int
    ) -> Iterator[tuple[int, int, Times]]:
        """Yield portions of a phase's messages, with random delays `[messages, p]`. `sent` `[p]`,
        each rank's number of data messages so far, is advanced."""
        if not self._messages.jitter.any:
            yield 0, posts, np.zeros((0, period), dtype=np.int64)
            return
        program, messages = self.program, self._messages
        rank = np.arange(self.ranks, dtype=np.int64)
        together = max(1, DRAWN_AT_A_TIME // self.ranks)
        for first in range(0, posts, together):
            last = min(posts, first + together)
            block, piece = np.divmod(np.arange(first, last), program.pieces.shape[1])
            at = (rank + phase.first - block[:, None]) % self.ranks
            sizes = program.pieces[at, piece[:, None]]
            real = messages.nbytes[sizes] > 0 if program.skips_empty else sizes >= 0
            number = sent + np.cumsum(real, axis=0) - real
            sent += real.sum(axis=0)
            jitter = messages.jitter(
                np.tile(messages.kinds, (last - first, 1)),
                messages.nbytes[sizes],
                key=key,
                message=number,
                rank=np.tile(rank[::-1] if program.backwards else rank, (last - first, 1)),
            )
            yield first, last, jitter


class EmptyCollective:
    """Empty collective: ranks leave when all have entered (Gloo's: at once)."""

    nbytes = 0

    def __call__(self, starts: Times, key: int = 0) -> Times:
        """Exit times, as defined by `Prepared`."""
        return np.full_like(starts, starts.max())
