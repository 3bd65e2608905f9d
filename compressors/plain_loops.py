"""Loops as plain Python: the names of `loop_cache.py`, for an installation without numba."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np


def compiled(function: Callable[..., Any], **_: Any) -> Any:
    """The function, in which numbers overflow and are divided by zero as in machine code."""
    plain: Any = np.errstate(all="ignore")(function)
    plain.py_func = function
    return plain


def inside(function: Callable[..., Any]) -> Any:
    """The function."""
    return function


usable = inside


def overload(*_: Any, **__: Any) -> Any:
    """A decorator without effect: machine code alone needs the other body."""
    return inside
