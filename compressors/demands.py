"""Demands on payloads whose answers may lie on a device: those of an exchange are asked for once.

    demand(flag, error)          # error() is raised where the flag is False

In host memory, and where no driver collects demands, an error is raised at once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from gcsim.compressors.lazy_torch import torch
from gcsim.compressors.meter import unpriced
from gcsim.compressors.on_device import handled

Truth = Any
"""A bool, or a tensor of one bool on a device."""

_now = threading.local()


def demand(holds: Truth, error: Callable[[], Exception]) -> None:
    """Raise `error()` unless something holds, or note both in the `Demands` that are entered."""
    collected: Demands | None = getattr(_now, "demands", None)
    if collected is not None and isinstance(holds, torch.Tensor) and handled(holds):
        collected.add(holds, error)
    elif not holds:
        raise error()


class Demands:
    """What is demanded inside `with` and lies on a device."""

    def __init__(self) -> None:
        self._each: list[tuple[Truth, Callable[[], Exception]]] = []

    def __enter__(self) -> None:
        self._before, _now.demands = getattr(_now, "demands", None), self

    def __exit__(self, *_: object) -> None:
        _now.demands = self._before

    def add(self, holds: Truth, error: Callable[[], Exception]) -> None:
        """Demand something later."""
        self._each.append((holds, error))

    @unpriced
    def require(self) -> None:
        """Raise the error of the first that does not hold; the host waits once, if at all."""
        each, self._each = self._each, []
        answers = torch.stack([holds for holds, _ in each]).tolist() if each else []
        for holds, (_, error) in zip(answers, each, strict=True):
            if not holds:
                raise error()
