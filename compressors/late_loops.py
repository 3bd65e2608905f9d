"""Placeholders for loops with the names of `loop_cache.py`, which delay the slow import of numba.

The first call of any loop (or access to an attribute that only its compiled form has) replaces all
loops in all modules by their compiled forms.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial, update_wrapper
from threading import RLock
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])
_lock = RLock()
_waiting: list[Callable[[], Any]] | None = []
"""Registrations that numba needs before it compiles; None once numba is imported."""


class _Later:
    """A placeholder for a loop that is not yet compiled."""

    def __init__(self, make: str, function: Callable[..., Any], options: dict[str, Any]) -> None:
        update_wrapper(self, function)
        self.py_func, self._make, self._options = function, make, options
        self._made: Any = None

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self._now()(*arguments, **named)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._now(), name)

    def _now(self) -> Any:
        with _lock:
            _make_all()
            self._made = self._made or _numba(self._make)(self.py_func, **self._options)
            return self._made


def _numba(name: str) -> Any:
    from gcsim.compressors import loop_cache

    return getattr(loop_cache, name)


def _make_all() -> None:
    global _waiting
    if _waiting is None:
        return
    waiting, _waiting = _waiting, None
    for register in waiting:
        register()
    for module in list(sys.modules.values()):
        for name, value in list(getattr(module, "__dict__", {}).items()):
            if type(value) is _Later:
                setattr(module, name, value._now())


def _later(make: str, function: Callable[..., Any], **options: Any) -> Any:
    if _waiting is None:
        return _numba(make)(function, **options)
    return _Later(make, function, options)


compiled: Callable[..., Any] = partial(_later, "compiled")
inside: Callable[[Callable[..., Any]], Any] = partial(_later, "inside")


def usable(function: F) -> F:
    """Register a function that loops may call; return it unchanged."""
    return _told(lambda: _numba("usable")(function), function)


def overload(plain: Callable[..., Any], **options: Any) -> Callable[[F], F]:
    """Return a decorator that registers the body that loops call instead of `plain`."""
    return lambda body: _told(lambda: _numba("overload")(plain, **options)(body), body)


def _told(tell: Callable[[], Any], function: F) -> F:
    if _waiting is None:
        tell()
    else:
        _waiting.append(tell)
    return function
