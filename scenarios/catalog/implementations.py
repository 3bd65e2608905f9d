"""Third-party implementations of methods, from `catalog/implementations.yaml`.

An entry with a `kind` is run as that registered method, which has the third-party code's operators
and bytes; one without has the kernels of gcsim's method and its own cost around the exchange.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import Field

from gcsim.compressors.options.method import OPTIONS
from gcsim.compressors.registry import check_parameters, compressor_class
from gcsim.errors import InputError, Problem, did_you_mean
from gcsim.scenarios.catalog import FOLDER
from gcsim.scenarios.reading.checking import Section, shipped_table
from gcsim.scenarios.reading.values import As, Spelled
from gcsim.simulator.training import Framework

OWN, OWN_TITLE = "gcsim", "gcsim's hook"  # the default implementation
KEY = "implementation"


def parameters(entry: Mapping[str, Any]) -> dict[str, Any]:
    """A method's parameters in an entry of a scenario's `compressors`."""
    return {key: value for key, value in entry.items() if key not in ("kind", "label", KEY)}


class Implementation(Section):
    """Another implementation of a method."""

    method: str = ""
    name: str = ""
    title: Annotated[str, Field(min_length=1)]
    kind: str = ""  # registered method with its operators and bytes; "": the method's kernels
    defaults: dict[str, Any] = {}  # noqa: RUF012
    """Defaults of parameters that are not the method's."""
    stated: Annotated[Spelled, As(Framework)] | None = Field(default=None, alias="around")
    """Cost around an exchange, if it is not that of the framework's hook."""
    deploy: Annotated[list[str], Field(min_length=1)]  # lines to paste, with parameters as {name}
    estimate: bool
    source: Annotated[str, Field(min_length=1)]

    def around(self, hook: Framework) -> Framework:
        """Return the cost around an exchange, given that of the framework's hook."""
        return hook if self.stated is None else self.stated.value(Framework, hook)


class _Table(Section):
    methods: dict[str, dict[str, Implementation]]


@functools.cache
def _all() -> Mapping[str, Mapping[str, Implementation]]:
    table = shipped_table(_Table, FOLDER / "implementations.yaml")
    return {
        method: {
            name: entry.model_copy(update={"method": method, "name": name})
            for name, entry in entries.items()
        }
        for method, entries in table.methods.items()
    }


def of(kind: str, name: str = "") -> Implementation | None:
    """Return the implementation for a method's registered name and the implementation's name; None
    for gcsim's own. Raises `InputError` for an unknown one, with the key as its place."""
    every = (one for entries in _all().values() for one in entries.values())
    stands = next((one for one in every if one.kind == kind), None)
    known = _all().get(kind, {})
    if stands is not None or name in ("", OWN, *known):
        return stands or known.get(name)
    if known:
        message = f"unknown implementation {name!r} of {kind}"
        raise InputError(message, place=KEY, hint=did_you_mean(name, (OWN, *known)))
    table = "; ".join(f"{method}: {', '.join(names)}" for method, names in _all().items())
    message = f"{kind} has only the implementation {OWN}"
    raise InputError(message, place=KEY, hint=f"remove it; known are {table}")


def installed(method: str, name: str, given: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the registered name and the parameters for an implementation of a method. Raises
    `InputError` for an unknown one, and for options that only gcsim's own code has."""
    entry = of(method, name) if name else None
    if entry is None:
        return method, dict(given)
    if problems := [
        Problem(message=f"{entry.title} has no {key!r}", place=key, hint=f"{KEY}: {OWN} has it")
        for key in given
        if key in OPTIONS
    ]:
        raise InputError(problems)
    kind = entry.kind or method
    known, usual = compressor_class(kind).Parameters.model_fields, _defaults(method)
    shared = {key: value for key, value in usual.items() if key in known}
    return kind, {**shared, **entry.defaults, **given}


def alternatives(
    kind: str, name: str, parameters: Mapping[str, Any]
) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield method, implementation and parameters of the same algorithm in other code."""
    own = of(kind, name)
    method = kind if own is None else own.method
    if own is not None and own.kind:
        usual = {**_defaults(kind), **_defaults(method), **own.defaults}
    else:
        usual = _defaults(method)
    stated = {key: value for key, value in parameters.items() if usual.get(key) != value}
    if not any(key in OPTIONS for key in stated):
        names = ("", *_all().get(method, {}))
        yield from ((method, one, stated) for one in names if one != (own.name if own else ""))


def _defaults(method: str) -> dict[str, Any]:
    return check_parameters(method, {}).model_dump()
