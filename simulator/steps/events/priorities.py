"""In which order do things happen that happen at the same picosecond?

Never in the order in which somebody happened to write them down. At each instant, first, what
ends ends; then collectives that have been asked for are settled, then idle links choose what they
send next, and again whatever that ends. Each choice is by a total key.
"""

from __future__ import annotations

from collections.abc import Callable

import simpy

COLLECTIVES = simpy.events.EventPriority(2)
"""After all ordinary events of an instant (SimPy's own priorities are 0 and 1)."""
LINKS = simpy.events.EventPriority(3)
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
