"""How long does it take until each rank has sent something to every other, one partner at a time?

p - 1 steps; at step s rank r sends to rank r + s and receives from rank r - s (mod p). It starts
the send of a step when it has received (and reduced) what the step before brought, and when that
step's send has left. What a rank has for itself stays where it is.

    ready' = max(ready + serialisation, arrival from rank r - s) + reduction

A network card carries, at each step, one message each way of each of its node's devices whose
partner is on another node: they share it.

Assumptions: those of `fabric.py`. The message of step s is number s - 1 of its sender, counted from
`first`.

Source: the pairwise exchange of Thakur, Rabenseifner and Gropp 2005 (Int. J. High Perform. Comput.
Appl. 19), sec. 4.4.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from gcsim.compressors.loops import loop
from gcsim.simulator.clock import Times
from gcsim.simulator.collectives.fabric import Fabric
from gcsim.simulator.collectives.link_table import Bytes, Ranks
from gcsim.simulator.collectives.rings.ring import NO_COST, check_range
from gcsim.simulator.collectives.rounds.rounds import Rounds
from gcsim.simulator.host import Traffic

_WORTH_ITS_MEMORY = 1 << 18
"""Messages of a collective."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Parts:
    """How many bytes rank r has for rank q."""

    longer: Ranks
    """`[p]`: ranks q below `longer[r]` get `long[r]`."""
    long: Bytes
    short: Bytes
    last: Bytes
    """What rank q = p - 1 gets."""

    def to(self, partner: Ranks) -> Bytes:
        """Bytes that each rank sends to its partner."""
        usual = np.where(partner < self.longer, self.long, self.short)
        return np.where(partner == len(partner) - 1, self.last, usual)


MakeParts = Callable[..., Parts]
"""From the number of ranks and what else tells the parts."""


def exchange_directly(
    entry: Times,
    fabric: Fabric,
    make: MakeParts,
    *arguments: Any,
    gamma: Fraction = NO_COST,
    key: int = 0,
    first: int = 0,
) -> Times:
    """Exit times `[p]` for entry times `[p]`, picoseconds.

    `make(p, *arguments)` are the parts; `gamma` seconds a byte are spent on what arrives; `key` is
    that of the random delays. O(p^2) for p ranks; p = 1 costs nothing. Raises `InputError` when the
    clock cannot hold the times.
    """
    if len(entry) == 1:
        return entry.copy()
    exchange = fabric.prepared(_DirectExchange, make, arguments, gamma, first)
    return exchange.carry_out(entry, key)


def direct_traffic(fabric: Fabric, make: MakeParts, *arguments: Any) -> Traffic:
    """What the ranks handle in it; O(p^2)."""
    ranks, parts = fabric.ranks, make(fabric.ranks, *arguments)
    nbytes = np.zeros(ranks, dtype=np.int64)
    for step in range(1, ranks):
        given = parts.to((fabric.everyone + step) % ranks)
        nbytes += given + np.roll(given, step)
    ends = np.full(ranks, 2 * (ranks - 1), dtype=np.int64)
    return Traffic.of_ranks(ends, nbytes, fabric.devices)


class _DirectExchange:
    """An exchange on a fabric, for any entry times."""

    def __init__(
        self,
        fabric: Fabric,
        make: MakeParts,
        arguments: tuple[Any, ...],
        gamma: Fraction,
        first: int,
    ) -> None:
        self._fabric, self._gamma, self._first = fabric, gamma, first
        self._parts = make(fabric.ranks, *arguments)
        self._busy: tuple[Times, Times, Times] | None = None
        self._rounds: Rounds | None = None
        ranks = fabric.ranks
        if fabric.flat and not gamma:
            self._prepare_flat()
        if self._busy is None and ranks * (ranks - 1) <= _WORTH_ITS_MEMORY:
            self._rounds = Rounds(fabric, first=first)
            for step in range(1, ranks):
                partner = self._partner(step)
                self._rounds.exchange(fabric.everyone, partner, self._parts.to(partner), gamma)

    def carry_out(self, entry: Times, key: int) -> Times:
        """Exit times `[p]` for entry times `[p]`."""
        if self._busy is not None:
            return self._flat(entry)
        if self._rounds is not None:
            return self._rounds.carry_out(entry, key)
        ready = entry
        for step in range(1, len(entry)):
            partner = self._partner(step)
            ready = self._fabric.exchange(
                ready,
                self._fabric.everyone,
                partner,
                self._parts.to(partner),
                self._gamma,
                key=key,
                message=self._first + step - 1,
            )
            check_range(ready, 0)
        return ready

    @property
    def nbytes(self) -> int:
        """Memory, about."""
        return 64 * self._fabric.ranks + (0 if self._rounds is None else self._rounds.nbytes)

    def _partner(self, step: int) -> Ranks:
        return (self._fabric.everyone + step) % self._fabric.ranks

    def _prepare_flat(self) -> None:
        parts, hops = self._parts, self._fabric.hops(self._fabric.everyone, self._partner(1))
        latency = [hops.latency(nbytes) for nbytes in (parts.long, parts.short, parts.last)]
        if not (hops.random or hops.timed) and len(np.unique(latency)) == 1:
            self._busy = hops.busy(parts.long), hops.busy(parts.short), hops.busy(parts.last)
            self._latency = int(latency[0][0])

    def _flat(self, entry: Times) -> Times:
        assert self._busy is not None
        most = max(int(busy.max()) for busy in self._busy)
        check_range(entry, (len(entry) - 1) * (most + self._latency))
        ready = entry.copy()
        _exchange(ready, ready.copy(), self._parts.longer, *self._busy, self._latency)
        return ready


@loop
def _exchange(  # noqa: PLR0917 - compiled: arrays by position
    ready: Times,
    left: Times,
    longer: Ranks,
    long: Times,
    short: Times,
    last: Times,
    latency: int,
) -> None:
    """`ready` becomes what it is after all steps on a network where all links are one link."""
    ranks = ready.size
    for step in range(1, ranks):
        for r in range(ranks):
            to = r + step if r + step < ranks else r + step - ranks
            busy = long[r] if to < longer[r] else short[r]
            left[r] = ready[r] + (last[r] if to == ranks - 1 else busy)
        for r in range(ranks):
            sender = r - step if r >= step else r - step + ranks
            ready[r] = max(left[r], left[sender] + latency)
