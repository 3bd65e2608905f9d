"""Results that workers of one process share because they follow from the same reply.

    fill_once(add_all, payloads, update, layout, weight)

In lockstep, N workers would decode the same N payloads in turn. A method therefore passes its
decoding as a function of the reply and other arguments. It runs for the first worker; another
worker gets the same result if it calls the same function on the same reply with equal arguments
(compared by value). Replicas need not be equal. Only a driver that runs all workers in turn shares
(`shared`); otherwise the function simply runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.errors import InternalError

R = TypeVar("R", bound=Iterable[Tensor])
V = TypeVar("V")

_MADE = "gcsim_made"
_BY_IDENTITY: Any = object.__eq__


@dataclass(slots=True)
class _Made:
    """Results that workers have computed from one reply."""

    checked: bool
    values: list[tuple[Any, Any]] = field(default_factory=list)
    """Pairs of (function and arguments) and value."""


class Payloads(list[Tensor]):
    """A list of payloads to which `shared` can attach results."""


def shared(replies: list[R], *, checked: bool) -> list[R]:
    """Let workers share results from the replies of one collective (equal tensors, or `Payloads`).
    `checked`: compute each result all the same, and compare."""
    made = _Made(checked)
    for reply in replies:
        vars(reply)[_MADE] = made
    return replies


def forget(replies: Iterable[Any]) -> None:
    """Drop the results of replies that all workers have finished with: results and reply refer to
    each other, so only the garbage collector would free them."""
    for reply in replies:
        made: _Made | None = getattr(reply, _MADE, None)
        if made is not None:
            made.values.clear()


def is_shared(received: Iterable[Tensor]) -> bool:
    """Whether other workers may compute the same from this reply."""
    return hasattr(received, _MADE)


def once(make: Callable[..., V], received: Iterable[Tensor], *given: Any) -> V:
    """Return `make(received, *given)`, a pure function. The value must never be modified, the
    arguments not before the next request. Raises `InternalError` if checked values differ."""
    return _once(make, received, given, lambda: make(received, *given))


def fill_once(
    fill: Callable[..., object], received: Iterable[Tensor], out: Tensor, *given: Any
) -> Tensor:
    """Run `fill(received, out, *given)` once for all workers, whose `out` is equal; return it."""
    if not is_shared(received):
        fill(received, out, *given)
        return out

    def filled() -> Tensor:
        own = out.clone()
        fill(received, own, *given)
        return own

    return out.copy_(_once(fill, received, given, filled))


def _once(
    function: Callable[..., object],
    received: Iterable[Tensor],
    given: tuple[Any, ...],
    value_of: Callable[[], V],
) -> V:
    """Return `value_of()`, or the earlier value of the same function and arguments."""
    made: _Made | None = getattr(received, _MADE, None)
    if made is None:
        return value_of()
    asked = function, received, given
    for before, value in made.values:
        if same(before, asked):
            if made.checked and not same(value_of(), value):
                message = f"{function.__qualname__}({given}): equal arguments, different values"
                raise InternalError(message)
            return value  # type: ignore[no-any-return]  # of the same function
    made.values.append((asked, value_of()))
    return made.values[-1][1]  # type: ignore[no-any-return]


def same(a: Any, b: Any) -> bool:
    """Whether two values are equal, including tensors, arrays and objects nested in them."""
    if a is b:
        found = True
    elif type(a) is not type(b):
        found = False
    elif isinstance(a, torch.Tensor):
        found = a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)
    elif isinstance(a, np.ndarray):
        found = np.array_equal(a, b)
    elif isinstance(a, dict):
        found = a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    elif isinstance(a, list | tuple):
        found = len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    elif hasattr(a, "__dict__") and type(a).__eq__ is _BY_IDENTITY and not callable(a):
        found = same(vars(a), vars(b))
    else:
        found = bool(a == b)
    return found
