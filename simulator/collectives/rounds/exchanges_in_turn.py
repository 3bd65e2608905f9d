"""How long do exchanges of everybody with everybody take, one behind the other?

Those of `direct_exchange.py`: a rank begins the next when it is through with the one before. Where
messages share what they cross whatever round they are of (`fluid_rounds.py`), all exchanges are one
collective: a rank that is ahead may meet messages of the exchange before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from gcsim.simulator.clock import NO_COST, Times
from gcsim.simulator.collectives.rounds.direct_exchange import (
    MakeParts,
    exchange_directly,
    exchange_in_rounds,
)
from gcsim.simulator.collectives.rounds.rounds import Rounds
from gcsim.simulator.fabric.rounds import Fabric


@dataclass(frozen=True, slots=True)
class Exchange:
    """One of them: its parts are `make(p, *arguments)`."""

    make: MakeParts
    arguments: tuple[Any, ...]
    gamma: Fraction = NO_COST
    """Seconds a byte, spent on what arrives."""


def exchange_in_turn(
    entry: Times, fabric: Fabric, exchanges: Sequence[Exchange], *, key: int = 0, first: int = 0
) -> Times:
    """Exit times `[p]` for entry times `[p]`, picoseconds.

    `key` is that of the random delays, `first` the number of a rank's first message. O(p^2) each
    for p ranks; p = 1 costs nothing. Raises `InputError` when the clock cannot hold the times.
    """
    if len(entry) == 1:
        return entry.copy()
    if fabric.fluid:
        return fabric.prepared(_rounds, tuple(exchanges), first).carry_out(entry, key)
    for one in exchanges:
        entry = exchange_directly(
            entry, fabric, one.make, *one.arguments, gamma=one.gamma, key=key, first=first
        )
        first += len(entry) - 1
    return entry


def _rounds(fabric: Fabric, exchanges: tuple[Exchange, ...], first: int) -> Rounds:
    rounds = Rounds(fabric, first=first)
    for one in exchanges:
        parts = one.make(fabric.ranks, *one.arguments)
        exchange_in_rounds(rounds, fabric, parts, one.gamma)
    return rounds
