"""How long does it take until each rank has sent something to every other, one partner at a time?

p - 1 steps; at step s rank r sends to rank r + s and receives from rank r - s (mod p). It starts
the send of a step when it has received (and reduced) what the step before brought, and when that
step's send has left. What a rank has for itself stays where it is.

    ready' = max(ready + serialisation, arrival from rank r - s) + reduction

A network NIC carries, at each step, one message each way of each of its node's devices whose
partner is on another node: they share it.

Assumptions: those of `fabric/rounds.py`. The message of step s is number s - 1 of its sender,
counted from `first`.

Source: the pairwise exchange of Thakur, Rabenseifner and Gropp 2005 (Int. J. High Perform. Comput.
Appl. 19), sec. 4.4.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from gcsim.simulator.clock import NO_COST, Times, check_range
from gcsim.simulator.collectives.rounds.nic_exchange import NicExchange, Parts
from gcsim.simulator.collectives.rounds.rounds import Rounds
from gcsim.simulator.fabric.link_table import Ranks
from gcsim.simulator.fabric.rounds import Fabric
from gcsim.simulator.host import Traffic

_WORTH_ITS_MEMORY = 1 << 18
"""Messages of a collective."""


class DirectExchange:
    """An exchange on a fabric, for any entry times."""

    def __init__(
        self, fabric: Fabric, parts: Parts, *, gamma: Fraction = NO_COST, first: int = 0
    ) -> None:
        """`gamma` seconds a byte are spent on what arrives; `first` is the number of a rank's first
        message. O(p^2) for p ranks."""
        self._fabric, self._parts, self._gamma, self._first = fabric, parts, gamma, first
        self._nics = NicExchange.of(fabric, parts, gamma, first)
        self._rounds: Rounds | None = None
        ranks = fabric.ranks
        few = ranks * (ranks - 1) <= _WORTH_ITS_MEMORY
        if few and (self._nics is None or self._nics.random is not None):
            self._nics = None
            self._rounds = Rounds(fabric, first=first)
            for step in range(1, ranks):
                to = _partner(fabric, step)
                self._rounds.exchange(fabric.everyone, to, self._parts.to(to), gamma)

    def __call__(self, starts: Times, key: int = 0) -> Times:
        """As `Prepared`."""
        if self._nics is not None:
            return self._nics.execute(starts, key)
        if self._rounds is not None:
            return self._rounds(starts, key)
        ready = starts
        for step in range(1, len(starts)):
            partner = _partner(self._fabric, step)
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

    def traffic(self, devices: int) -> Traffic:
        """What the ranks handle, `devices` a node; O(p^2)."""
        everyone, ranks = self._fabric.everyone, self._fabric.ranks
        nbytes = np.zeros(ranks, dtype=np.int64)
        for step in range(1, ranks):
            given = self._parts.to((everyone + step) % ranks)
            nbytes += given + np.roll(given, step)
        ends = np.full(ranks, 2 * (ranks - 1), dtype=np.int64)
        return Traffic.of_ranks(ends, nbytes, devices)

    @property
    def nbytes(self) -> int:
        """Memory, about."""
        more = [each.nbytes for each in (self._nics, self._rounds) if each is not None]
        return 64 * self._fabric.ranks + sum(more)


class InTurn:
    """Two exchanges, one after the other."""

    def __init__(self, first: DirectExchange, then: DirectExchange) -> None:
        self._first, self._then = first, then

    def __call__(self, starts: Times, key: int = 0) -> Times:
        """As `Prepared`."""
        return self._then(self._first(starts, key), key)

    def traffic(self, devices: int) -> Traffic:
        """What the ranks handle, `devices` a node."""
        return self._first.traffic(devices) + self._then.traffic(devices)

    @property
    def nbytes(self) -> int:
        """Memory, about."""
        return self._first.nbytes + self._then.nbytes


def _partner(fabric: Fabric, step: int) -> Ranks:
    return (fabric.everyone + step) % fabric.ranks
