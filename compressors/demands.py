"""Deferred checks of numbers that a GPU finds in payloads; the host waits once for all of them.

    when_known(highest, demand_codes)      # demand_codes(number) raises the error

In host memory, or if no driver collects the checks, a check runs at once.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from itertools import islice
from typing import Any, ParamSpec, TypeVar

from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.on_device import handled

P = ParamSpec("P")
R = TypeVar("R")
Found = Any
"""A number, or a tensor of integers or bools on a device."""

_now = threading.local()


def when_known(found: Found, check: Callable[..., object]) -> None:
    """Call `check(*numbers)`, which raises the error: now, or at the end of the exchange."""
    if not isinstance(found, torch.Tensor):
        check(found)
    elif (exchange := entered()) is not None and handled(found):
        exchange.unknown.append((found.view(-1), check))
    else:
        check(*found.view(-1).tolist())


def entered() -> Demands | None:
    """Return the demands of the current exchange, if a driver collects them."""
    return getattr(_now, "demands", None)


class Demands:
    """Context that collects the deferred checks of an exchange, and facts about its payloads."""

    def __init__(self) -> None:
        self.fixed: dict[Any, Any] = {}
        """Headers that all messages of this exchange share; filled by `coding/frames.py`."""
        self.unknown: list[tuple[Tensor, Callable[..., object]]] = []
        self.faults: Tensor | None = None
        """Faults found by kernels, one bit each; the tensor is one of `unknown`."""
        self.plain = False
        """Whether indices of selected elements have fixed-width fields, on all workers."""

    def __enter__(self) -> None:
        self._before, _now.demands = entered(), self

    def __exit__(self, *_: object) -> None:
        _now.demands = self._before

    def around(self, function: Callable[P, R]) -> Callable[P, R]:
        """Wrap a server's function so that it runs within these demands."""

        @functools.wraps(function)
        def inside(*args: P.args, **kwargs: P.kwargs) -> R:
            with self:
                return function(*args, **kwargs)

        return inside

    def take_over(
        self, other: Demands, inside: Callable[[], AbstractContextManager[object]]
    ) -> None:
        """Add another exchange's checks to these; they will run inside the context."""

        def checked(check: Callable[..., object], *numbers: Any) -> None:
            with inside():
                check(*numbers)

        self.unknown += [(found, partial(checked, check)) for found, check in other.unknown]

    def require(self) -> None:
        """Run the checks; the host waits once, or not at all if there are none."""
        from gcsim.compressors.meter import unpriced  # it imports this file

        if self.unknown:
            unpriced(self._ask)()

    def _ask(self) -> None:
        each, self.unknown, self.faults = self.unknown, [], None
        numbers = iter(torch.cat([found for found, _ in each]).tolist())
        for found, check in each:
            check(*islice(numbers, len(found)))
