"""Checks of numbers that a device finds in payloads; the host waits once for all of them.

    when_known(highest, demand_codes)      # demand_codes(number) raises the fault

In host memory, and where no driver collects them, a check runs at once.
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
"""A number, or a tensor of whole numbers or bools on a device."""

_now = threading.local()


def when_known(found: Found, check: Callable[..., object]) -> None:
    """Call `check(*numbers)`, which raises the fault: now, or at the end of the exchange."""
    if not isinstance(found, torch.Tensor):
        check(found)
    elif (exchange := entered()) is not None and handled(found):
        exchange.unknown.append((found.view(-1), check))
    else:
        check(*found.view(-1).tolist())


def entered() -> Demands | None:
    """The demands of the current exchange."""
    return getattr(_now, "demands", None)


class Demands:
    """Context that collects an exchange's deferred checks, and facts about its payloads."""

    def __init__(self) -> None:
        self.fixed: dict[Any, Any] = {}
        """Headers that all messages of this exchange have; `coding/frames.py` fills it."""
        self.unknown: list[tuple[Tensor, Callable[..., object]]] = []
        self.faults: Tensor | None = None
        """Faults that kernels note, a bit each: one of `unknown`."""
        self.plain = False
        """Whether indices of selected elements travel in fields of one width, on all workers."""

    def __enter__(self) -> None:
        self._before, _now.demands = entered(), self

    def __exit__(self, *_: object) -> None:
        _now.demands = self._before

    def around(self, function: Callable[P, R]) -> Callable[P, R]:
        """The function, run within these demands: a server's."""

        @functools.wraps(function)
        def inside(*args: P.args, **kwargs: P.kwargs) -> R:
            with self:
                return function(*args, **kwargs)

        return inside

    def take_over(
        self, other: Demands, inside: Callable[[], AbstractContextManager[object]]
    ) -> None:
        """Make the checks of another exchange with these, inside the context."""

        def checked(check: Callable[..., object], *numbers: Any) -> None:
            with inside():
                check(*numbers)

        self.unknown += [(found, partial(checked, check)) for found, check in other.unknown]

    def require(self) -> None:
        """Make the checks; the host waits once, or not at all where there are none."""
        from gcsim.compressors.meter import unpriced  # which imports this file

        if self.unknown:
            unpriced(self._ask)()

    def _ask(self) -> None:
        each, self.unknown, self.faults = self.unknown, [], None
        numbers = iter(torch.cat([found for found, _ in each]).tolist())
        for found, check in each:
            check(*islice(numbers, len(found)))
