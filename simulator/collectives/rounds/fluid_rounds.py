"""When is a collective of rounds done if its messages share what they cross while they cross it?

A message is a flow: it starts when its sender is ready for it, at the next grant and after its
overhead; while it is under way it shares cards, buses, uplinks and the air max-min fairly with all
that cross them then, of whatever round; it arrives a latency and a random delay after its end. A
rank is ready for its next round as in `rounds.py`:

    ready' = max(end of its own message, arrival of the other) + reduction

Event by event, exact; messages that nobody shares anything with take what they take in `rounds.py`,
to the picosecond.

Assumptions: messages of other collectives are not there; a switch holds nothing up; flows are fair
from their first byte on (TCP's slow start is not); random delays are those of a path that nobody
shares.

Source: the fluid of `sharing/fair.py`; Hockney 1994 for what lies around a flow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gcsim.errors import InternalError
from gcsim.simulator.clock import Picoseconds, Times, check_range, picoseconds
from gcsim.simulator.collectives.servers.parameter_server import begins
from gcsim.simulator.fabric.link_table import Bytes, LinkTable, Ranks
from gcsim.simulator.fabric.shared_paths import SharedPaths
from gcsim.simulator.sharing.local import LocalFlows

_NOT_YET = -1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SharedRound:
    """The messages of one round, `[n]`."""

    senders: Ranks
    receivers: Ranks
    nbytes: Bytes
    adding: Times
    """What the receiver spends on it, picoseconds."""
    message: NDArray[np.int64]
    """Number of each message among those of its sender."""


class FluidRounds:
    """The messages of all rounds, prepared for any entry times."""

    def __init__(self, paths: SharedPaths, ranks: int, rounds: Sequence[SharedRound]) -> None:
        """`paths` is of a fabric of so many ranks."""
        self._program: list[list[tuple[int, int, Picoseconds]]] = [[] for _ in range(ranks)]
        """Of each rank, in order: number of the message that it sends and of that which it
        receives, or none, and what it spends on that."""
        self._ends: list[tuple[int, int]] = []
        found = []
        for each in rounds:
            steps: dict[int, tuple[int, int, Picoseconds]] = {}
            pairs = list(zip(each.senders.tolist(), each.receivers.tolist(), strict=True))
            for number, (sender, _) in enumerate(pairs, len(self._ends)):
                steps[sender] = number, _NOT_YET, 0
            for number, (_, to) in enumerate(pairs, len(self._ends)):
                sent, _, _ = steps.get(to, (_NOT_YET, 0, 0))
                steps[to] = sent, number, int(each.adding[number - len(self._ends)])
            for rank, step in steps.items():
                self._program[rank].append(step)
            self._ends += pairs
            sizes = each.nbytes.tolist()
            found += [paths.crossing(*pair, size) for pair, size in zip(pairs, sizes, strict=True)]
        self._links = [crossing.link for crossing in found]
        self._lead = [
            _NOT_YET if crossing.link.grant else picoseconds(crossing.link.overhead)
            for crossing in found
        ]
        self._table, numbers = LinkTable(), dict[int, int]()
        for link in self._links:
            if id(link) not in numbers:
                numbers[id(link)] = self._table.add(link)
        self._kinds = np.array([numbers[id(link)] for link in self._links], dtype=np.int64)
        self._nbytes = np.concatenate([each.nbytes for each in rounds])
        self._latency = self._table.latency(self._kinds, self._nbytes)
        self._number = np.concatenate([each.message for each in rounds])
        self._senders = np.concatenate([each.senders for each in rounds])
        self._flows = LocalFlows(
            [crossing.flow for crossing in found],
            paths.capacities,
            [crossing.before for crossing in found],
        )

    def carry_out(self, entry: Times, key: int) -> Times:
        """Exit times `[p]` for entry times `[p]`, picoseconds; `key` is that of the random delays.

        Raises `InputError` when the clock cannot hold the times.
        """
        ready: list[Picoseconds] = entry.tolist()
        late: list[Picoseconds] = self._flight(key).tolist()
        left = [_NOT_YET] * len(late)
        at, sending = [0] * len(ready), [_NOT_YET] * len(ready)

        def go_on(rank: int, starts: dict[int, Picoseconds]) -> None:
            """Take a rank as far as it comes with what has left it and what has arrived."""
            program = self._program[rank]
            while at[rank] < len(program):
                sent, received, adding = program[at[rank]]
                if sent != _NOT_YET:
                    if sending[rank] != sent:
                        sending[rank] = sent
                        lead = self._lead[sent]
                        starts[sent] = (
                            ready[rank] + lead
                            if lead != _NOT_YET
                            else begins(self._links[sent], ready[rank])
                        )
                        return
                    if left[sent] == _NOT_YET:
                        return
                    ready[rank] = max(ready[rank], left[sent])
                if received != _NOT_YET:
                    if left[received] == _NOT_YET:
                        return
                    arrival = left[received] + late[received]
                    ready[rank] = max(ready[rank], arrival) + adding
                at[rank] += 1

        def ended(message: int, time: Picoseconds) -> Mapping[int, Picoseconds]:
            left[message] = time
            starts: dict[int, Picoseconds] = {}
            for rank in self._ends[message]:
                go_on(rank, starts)
            return starts

        starts: dict[int, Picoseconds] = {}
        for rank in range(len(ready)):
            go_on(rank, starts)
        self._flows.run(starts, ended)
        if _NOT_YET in left:
            raise InternalError("ranks that wait for each other")
        check_range(entry, max(ready) - int(entry.max()))
        return np.array(ready, dtype=np.int64)

    def _flight(self, key: int) -> Times:
        """From the end of each message to its arrival."""
        if not self._table.random(self._kinds):
            return self._latency
        return self._latency + self._table.delays(
            self._kinds, self._nbytes, key=key, message=self._number, rank=self._senders
        )
