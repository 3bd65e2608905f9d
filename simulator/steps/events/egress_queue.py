"""Queue of messages that leave a rank one after another, first come, first served.

Among messages that are ready at the same instant the lower collective's goes first, then the lower
number:

    left = link.departure(max(ready, left of the previous message), nbytes)

Results never depend on the order in which code creates events: at the end of an instant activities
complete, then collectives are settled, then idle links choose the next message by a total order.
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
    """A message, in the order in which a link takes messages."""

    ready: Picoseconds
    order: tuple[int, ...]  # its collective and its number there
    link: Link = field(compare=False)
    nbytes: int = field(compare=False)
    leaves: Callable[[Picoseconds], None] = field(compare=False)
    """Called at its start with the time at which it will have left."""
    left: Callable[[], None] = field(compare=False)  # called when it has left


class EgressQueue:
    """Messages that leave one rank."""

    def __init__(self, env: simpy.Environment) -> None:
        self._env = env
        self._waiting: list[Message] = []
        self._busy = False  # a message is leaving, or will be chosen at the end of this instant

    def send(self, message: Message) -> None:
        """Queue a message that is ready now."""
        heapq.heappush(self._waiting, message)
        if not self._busy:
            self._choose_later()

    def _choose_later(self) -> None:
        self._busy = True
        EndOfInstant(self._env, _LINKS, self._choose)

    def _choose(self) -> None:
        message = heapq.heappop(self._waiting)
        now = reading(self._env.now)
        left = message.link.departure(now, message.nbytes)
        message.leaves(left)
        call_after(self._env, left - now, lambda: self._end(message))

    def _end(self, message: Message) -> None:
        message.left()
        self._busy = False
        if self._waiting:
            self._choose_later()


def call_after(env: simpy.Environment, delay: Picoseconds, function: Callable[[], Any]) -> None:
    """Call a function after `delay`, as an ordinary event."""
    event = env.timeout(delay)
    assert event.callbacks is not None
    event.callbacks.append(lambda _: function())


COLLECTIVES = simpy.events.EventPriority(2)
"""Priority after an instant's ordinary events (SimPy's own are 0 and 1)."""
_LINKS = simpy.events.EventPriority(3)


class EndOfInstant(simpy.Event):
    """Call of a function at the end of this instant."""

    def __init__(
        self,
        env: simpy.Environment,
        priority: simpy.events.EventPriority,
        function: Callable[[], None],
    ) -> None:
        super().__init__(env)
        self._ok, self._value = True, None
        assert self.callbacks is not None
        self.callbacks.append(lambda _: function())
        env.schedule(self, priority=priority)
