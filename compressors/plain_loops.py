"""Plain Python loops with the names of `loop_cache.py`, for installations without numba."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np


def compiled(function: Callable[..., Any], **_: Any) -> Any:
    """Make overflow and division by zero silent in the function, as in machine code."""
    plain: Any = np.errstate(all="ignore")(function)
    plain.py_func = function
    return plain


def inside(function: Callable[..., Any]) -> Any:
    """Return the function unchanged."""
    return function


usable = inside


def overload(*_: Any, **__: Any) -> Any:
    """Return a decorator without effect: only machine code needs the other body."""
    return inside
