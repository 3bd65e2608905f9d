"""Lazy import of a package's public names (PEP 562).

`from gcsim.compressors import Compressor` imports only the module that defines `Compressor`. For
type checkers the same names are imported under `TYPE_CHECKING`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def offered(
    package: str, modules: Mapping[str, str], *own: str
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` for a package.

    `modules` maps each module to its public names, separated by spaces; `x>y` exports `x` as `y`.
    `own` are names that the package itself defines.
    """
    found: dict[str, tuple[str, str]] = {}
    for module, names in modules.items():
        for name in names.split():
            there, _, here = name.partition(">")
            found[here or there] = module, there

    def get(name: str) -> Any:
        if name not in found:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, there = found[name]
        return getattr(import_module(module), there)

    public = sorted([*found, *own])
    return get, lambda: list(public), public
