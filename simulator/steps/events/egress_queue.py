"""First come, first served: messages that leave a rank one after another, and ties of an instant.

A message that is ready when the link is busy waits for all that were ready before it; of those
that are ready at the same instant the lower collective's goes first, then the lower message.

    left = link.departure(max(ready, left of the one before), nbytes)

Source: alpha-beta links (Hockney 1994), as in `rings/recurrence.py`.

Ties never depend on the order in which code happens to create events. At the end of an instant,
complete what ends; then settle collectives that have been asked for; then idle links choose what
they send next, and again whatever that ends. Each choice is by a total key.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import simpy

from gcsim.simulator.clock import Picoseconds, reading
from gcsim.simulator.network.links import Link


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Message:
    """One message, in the order in which a link takes it."""

    ready: Picoseconds
    order: tuple[int, ...]
    """Its collective, and its number among the rank's messages of that."""
    link: Link = field(compare=False)
    nbytes: int = field(compare=False)
    leaves: Callable[[Picoseconds], None] = field(compare=False)
    """Called when it starts, with the time at which it will have left."""
    left: Callable[[], None] = field(compare=False)
    """Called when it has."""


class EgressQueue:
    """Queue of the messages that leave one rank."""

    def __init__(self, env: simpy.Environment) -> None:
        self._env = env
        self._waiting: list[Message] = []
        self._busy = False
        """A message is leaving, or will be chosen at the end of this instant."""

    def send(self, message: Message) -> None:
        """Take a message that is ready now."""
        heapq.heappush(self._waiting, message)
        if not self._busy:
            self._choose_later()

    def _choose_later(self) -> None:
        self._busy = True
        Later(self._env, _LINKS, self._choose)

    def _choose(self) -> None:
        message = heapq.heappop(self._waiting)
        now = reading(self._env.now)
        left = message.link.departure(now, message.nbytes)
        message.leaves(left)
        at(self._env, left - now, lambda: self._end(message))

    def _end(self, message: Message) -> None:
        message.left()
        self._busy = False
        if self._waiting:
            self._choose_later()


def at(env: simpy.Environment, delay: Picoseconds, function: Callable[[], Any]) -> None:
    """Call a function so much later, as an ordinary event."""
    event = env.timeout(delay)
    assert event.callbacks is not None
    event.callbacks.append(lambda _: function())


COLLECTIVES = simpy.events.EventPriority(2)
"""After all ordinary events of an instant (SimPy's own priorities are 0 and 1)."""
_LINKS = simpy.events.EventPriority(3)
"""After the collectives, last."""


class Later(simpy.Event):
    """Calls a function at the end of this instant, or of one to come."""

    def __init__(
        self,
        env: simpy.Environment,
        priority: simpy.events.EventPriority,
        function: Callable[[], None],
        delay: int = 0,
    ) -> None:
        super().__init__(env)
        self._ok, self._value = True, None
        assert self.callbacks is not None
        self.callbacks.append(lambda _: function())
        env.schedule(self, priority=priority, delay=delay)
