"""Collectives of few rounds: messages prepared once for any entry times.

In a round each rank sends and receives at most one message. It sends when it is ready, and is ready
for the next round when its message has left and the other has arrived and been reduced, if needed:

    ready' = max(ready + serialisation, arrival of the other message) + reduction

Messages between two ranks never overtake each other: each is received in its round. A rank's
messages are numbered from `first`. Messages of a round share links (`fabric/round_paths.py`) as if
they started together. Algorithms for 2^k ranks first fold the other ranks away (`Fold`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from gcsim.compressors.loops import loop
from gcsim.simulator.clock import NO_COST, Picoseconds, Times, check_range
from gcsim.simulator.fabric.link_table import Bytes, Ranks
from gcsim.simulator.fabric.round_paths import Hops
from gcsim.simulator.fabric.rounds import Fabric, reduction
from gcsim.simulator.host import Devices, Traffic

Numbers = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, eq=False)
class _Round:
    hops: Hops
    nbytes: Bytes | int
    adding: Times | Picoseconds
    message: Numbers  # number of each message at its sender


class Rounds:
    """Rounds of one collective on one fabric."""

    def __init__(self, fabric: Fabric, *, first: int = 0) -> None:
        """Number messages from `first`."""
        self._fabric = fabric
        self._rounds: list[_Round] = []
        self._sent = np.full(fabric.ranks, first, dtype=np.int64)

    def exchange(
        self,
        senders: Ranks,
        receivers: Ranks,
        nbytes: Bytes | int,
        gamma: Fraction = NO_COST,
        *,
        adding: Picoseconds = 0,
    ) -> None:
        """Add a round. `nbytes`: one size, or one per message. Reducing costs `gamma` seconds a
        byte, or `adding`."""
        if len(senders):
            found = _Round(
                hops=self._fabric.hops(senders, receivers),
                nbytes=nbytes,
                adding=reduction(nbytes, gamma) if gamma else adding,
                message=self._sent[senders],
            )
            self._rounds.append(found)
            self._sent[senders] += 1

    def __call__(self, starts: Times, key: int = 0) -> Times:
        """Exit times, as defined by `Prepared`; absolute where links change over time. Raises
        `InputError` when the clock cannot hold them."""
        ready = starts.copy()
        if any(round_.hops.timed for round_ in self._rounds):
            for round_ in self._rounds:
                _at_its_time(round_, ready, key)
        elif self._rounds:
            messages = self._messages
            check_range(starts, messages.longest)
            flight = messages.latency
            if messages.draws is not None:
                flight = flight + messages.draws(key)
            _exchange(*messages.ends_and_busy, flight, messages.adding, ready, ready.copy())
        check_range(ready, 0)
        return ready

    def traffic(self, devices: Devices) -> Traffic:
        """Traffic of the ranks, `devices` per node."""
        ends, nbytes = np.zeros((2, self._fabric.ranks), dtype=np.int64)
        for round_ in self._rounds:
            for ranks in (round_.hops.senders, round_.hops.receivers):
                ends[ranks] += 1
                nbytes[ranks] += round_.nbytes
        return Traffic.of_ranks(ends, nbytes, devices)

    @property
    def nbytes(self) -> int:
        """Approximate memory of the messages."""
        return sum(64 * len(round_.message) for round_ in self._rounds)

    @cached_property
    def _messages(self) -> _Messages:
        return _Messages(self._rounds)


class _Messages:
    """Messages of all rounds, in sequence."""

    def __init__(self, rounds: list[_Round]) -> None:
        hops = [round_.hops for round_ in rounds]
        ends = np.cumsum([len(each.senders) for each in hops], dtype=np.int64)
        every = Hops.joined(hops)
        nbytes = np.concatenate(
            [np.broadcast_to(round_.nbytes, round_.message.shape) for round_ in rounds]
        )
        serialization, self.latency = every.serialization(nbytes), every.latency(nbytes)
        adding = [np.broadcast_to(round_.adding, round_.message.shape) for round_ in rounds]
        self.adding = np.concatenate(adding)
        first = ends - np.array([len(each.senders) for each in hops], dtype=np.int64)
        self.longest: int = sum(
            sum(map(int, np.maximum.reduceat(times, first)))
            for times in (serialization, self.latency, self.adding)
        )
        self.ends_and_busy = ends, every.senders, every.receivers, serialization
        self.draws: Callable[[int], Times] | None = None
        if any(each.random for each in hops):
            numbers = np.concatenate([round_.message for round_ in rounds])
            self.draws = lambda key: every.draw_jitter(nbytes, key=key, message=numbers)


def _at_its_time(round_: _Round, ready: Times, key: int) -> None:
    """Run a round where links change over time."""
    hops, nbytes = round_.hops, round_.nbytes
    left = hops.departure(ready[hops.senders], nbytes)
    ready[hops.senders] = left
    flight = hops.latency(nbytes) + hops.draw_jitter(nbytes, key=key, message=round_.message)
    ready[hops.receivers] = np.maximum(ready[hops.receivers], left + flight) + round_.adding


@loop
def _exchange(  # noqa: PLR0917 - compiled: arrays by position
    ends: Numbers,
    senders: Ranks,
    receivers: Ranks,
    serialization: Times,
    flight: Times,
    adding: Times,
    ready: Times,
    left: Times,
) -> None:
    """Run all rounds on `ready`; `ends[j]` is the end of round j's messages."""
    begin = 0
    for end in ends:
        for i in range(begin, end):
            left[i - begin] = ready[senders[i]] + serialization[i]
        for i in range(begin, end):
            ready[senders[i]] = left[i - begin]
        for i in range(begin, end):
            to = receivers[i]
            ready[to] = max(ready[to], left[i - begin] + flight[i]) + adding[i]
        begin = end


def phase_key(key: int, phase: int) -> int:
    """Return the key of the random delays in one of a collective's phases."""
    return key ^ (phase * 0xD1B54A32D192ED03) % 2**64


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Fold:
    """Ranks by role, for an algorithm that needs 2^k ranks."""

    givers: Ranks  # send their data before, and receive the result after it, [s]
    takers: Ranks  # `takers[i]` takes from `givers[i]`
    core: Ranks  # ranks by number in the algorithm, [2^k]

    @staticmethod
    def of(ranks: int) -> Fold:
        """Roles of p ranks."""
        excess = ranks - (1 << (ranks.bit_length() - 1))
        givers = np.arange(0, 2 * excess, 2, dtype=np.int64)
        rest = np.arange(2 * excess, ranks, dtype=np.int64)
        return Fold(givers=givers, takers=givers + 1, core=np.concatenate((givers + 1, rest)))
