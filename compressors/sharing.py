"""What need workers in one process not each compute? What all of them make of one reply.

    once(add_all, payloads, update, layout, weight)

Each of N workers decodes the same N payloads. On a cluster they do so side by side; in lockstep
that is N^2 decodings one after the other, of which N are enough. So a method says what it makes of
a reply as a function of the reply and of other arguments, and `once` calls it for the first worker
only. Another worker gets a copy when it asks for the same function of the same reply and its
arguments are equal, value by value; else it computes for itself. Nothing is assumed of replicas.

Only a driver that runs all workers in turn lets them share (`shared`); elsewhere `once` is a call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.errors import InternalError

R = TypeVar("R", bound=Iterable[Tensor])

_MADE = "gcsim_made"


@dataclass(slots=True)
class _Made:
    """What workers have made of a reply."""

    checked: bool
    results: list[tuple[Any, Any, Tensor]] = field(default_factory=list)
    """Function, arguments, result."""


class Payloads(list[Tensor]):
    """A list that can be `shared`."""


def shared(replies: list[R], *, checked: bool) -> list[R]:
    """The replies of one collective, tensors or `Payloads` that are equal, as shared by workers.

    `checked`: whatever `once` need not compute it computes all the same, and compares.
    """
    made = _Made(checked)
    for reply in replies:
        vars(reply)[_MADE] = made
    return replies


def once(
    fill: Callable[..., None], received: Iterable[Tensor], out: Tensor, *given: Any
) -> Tensor:
    """`fill(received, out, *given)`, which writes to `out` and is a function of the others alone.

    `received` is a reply as it came, `out` is the same on all workers before. Returns `out`. Raises
    `InternalError` where sharing is checked and `fill` would write something else.
    """
    made: _Made | None = getattr(received, _MADE, None)
    if made is None:
        fill(received, out, *given)
        return out
    arguments = received, given
    for function, before, result in made.results:
        if function == fill and same(before, arguments):
            if made.checked:
                fill(received, out, *given)
                if not same(out, result):
                    raise InternalError(f"{fill.__qualname__} of equal arguments: other bits")
            return out.copy_(result)
    fill(received, out, *given)
    made.results.append((fill, arguments, out.clone()))
    return out


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
    elif hasattr(a, "__dict__") and type(a).__eq__ is object.__eq__ and not callable(a):
        found = same(vars(a), vars(b))
    else:
        found = bool(a == b)
    return found
