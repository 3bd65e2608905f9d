"""Work that workers of one process share: what all of them make of one reply.

    fill_once(add_all, payloads, update, layout, weight)

Each of N workers decodes the same N payloads. On a cluster they do so side by side; in lockstep
that is N^2 decodings one after the other, of which N are enough. So a method says what it makes of
a reply as a function of the reply and of other arguments, which is called for the first worker
only. Another worker has what came out when it asks for the same function of the same reply and its
arguments are equal, value by value; else it computes for itself. Nothing is assumed of replicas.

Only a driver that runs all workers in turn lets them share (`shared`); elsewhere it is a call.
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
    """Results that workers have made of a reply."""

    checked: bool
    values: list[tuple[Any, Any]] = field(default_factory=list)
    """Function and arguments, value."""


class Payloads(list[Tensor]):
    """A list that can be `shared`."""


def shared(replies: list[R], *, checked: bool) -> list[R]:
    """The replies of one collective, tensors or `Payloads` that are equal, as shared by workers.

    `checked`: whatever need not be computed is computed all the same, and compared.
    """
    made = _Made(checked)
    for reply in replies:
        vars(reply)[_MADE] = made
    return replies


def forget(replies: Iterable[Any]) -> None:
    """All workers have made of these replies what they make. What is kept of it holds the reply,
    which holds it: tensors would stay until the garbage collector comes."""
    for reply in replies:
        made: _Made | None = getattr(reply, _MADE, None)
        if made is not None:
            made.values.clear()


def is_shared(received: Iterable[Tensor]) -> bool:
    """Whether other workers may make the same of this reply."""
    return hasattr(received, _MADE)


def once(make: Callable[..., V], received: Iterable[Tensor], *given: Any) -> V:
    """`make(received, *given)`, a function of its arguments, whose value nobody changes.

    `received` is a reply as it came; arguments stay as they are until the exchange's next request.
    Raises `InternalError` where sharing is checked and the value would have been another one.
    """
    return _once(make, received, given, lambda: make(received, *given))


def fill_once(
    fill: Callable[..., object], received: Iterable[Tensor], out: Tensor, *given: Any
) -> Tensor:
    """`fill(received, out, *given)`, `once`; returns `out`, which all workers begin alike."""
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
    """`value_of()`, or what it was for the same function of the same arguments."""
    made: _Made | None = getattr(received, _MADE, None)
    if made is None:
        return value_of()
    asked = function, received, given
    for before, value in made.values:
        if same(before, asked):
            if made.checked and not same(value_of(), value):
                message = f"{function.__qualname__}({given}): equal arguments, other values"
                raise InternalError(message)
            return value  # type: ignore[no-any-return]  # of the same function
    made.values.append((asked, value_of()))
    return made.values[-1][1]  # type: ignore[no-any-return]


def same(a: Any, b: Any) -> bool:
    """Whether two values are equal, with the tensors, arrays and objects that they hold."""
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
