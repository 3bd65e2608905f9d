"""Declaration of settings in their type hints: dimension, limits, and name in a file.

The dataclasses of the simulator declare these in type hints and nowhere else:

    restart: Seconds
    slow_factor: Annotated[Fraction, Limits(above=0, most=1_000_000)] = Fraction(1)
    bus_range: RangeOf[Variation] = None

`scenarios/reading/values.py` reads and writes such a dataclass as a section of a file.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from typing import Annotated, Any, Final, TypeVar, get_args, get_origin, get_type_hints

from gcsim.errors import InputError, Problem
from gcsim.units import Dimension


@dataclass(frozen=True, slots=True)
class Unit:
    """A number that has a unit in files and is in the dimension's base unit here; at least 0."""

    dimension: Dimension


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of a number, or of the length of a tuple or text."""

    least: int | None = None
    above: int | None = None
    most: int | None = None
    below: int | None = None

    def __str__(self) -> str:
        low = f"at least {self.least:,}" if self.above is None else f"greater than {self.above:,}"
        if self.most is None and self.below is None:
            return low
        high = f"at most {self.most:,}" if self.below is None else f"less than {self.below:,}"
        return f"{low} and {high}"

    def hold(self, value: Fraction | float) -> bool:
        """Whether a value is within the limits."""
        return (
            (self.least is None or value >= self.least)
            and (self.above is None or value > self.above)
            and (self.most is None or value <= self.most)
            and (self.below is None or value < self.below)
        )

    def __get_pydantic_core_schema__(self, kind: Any, handler: Callable[[Any], Any]) -> Any:
        """Apply the limits to values that pydantic reads from JSON: to numbers, else to lengths."""
        bounds = {"ge": self.least, "gt": self.above, "le": self.most, "lt": self.below}
        if kind not in (int, float):
            bounds = {"min_length": self.least, "max_length": self.most}
        return handler(kind) | {key: bound for key, bound in bounds.items() if bound is not None}


@dataclass(frozen=True, slots=True)
class Index:
    """A mapping's key that counts nodes or workers from 0."""

    of: str


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule for a field in addition to its limits; `check` raises `InputError`."""

    check: Callable[[Any], None]


@dataclass(frozen=True, slots=True)
class Key:
    """Name of the field in a file, if it is another."""

    name: str


INTERNAL: Final = object()  # annotation of a field that no file may state

STATED: Final = object()
"""Annotation of a field that a file must state, although it has a default in Python."""

SHOWN: Final = object()  # annotation of a field that is written even if it has its default

Value = TypeVar("Value")
RangeOf = tuple[Value, Value] | None
"""Range that contains a figure's true value, lowest and highest; `x_range` belongs to the field
`x`. None: the figure is exact."""

POSITIVE: Final = Limits(above=0)
Seconds = Annotated[Fraction, Unit("time")]
PositiveSeconds = Annotated[Fraction, Unit("time"), POSITIVE]
BytesPerSecond = Annotated[Fraction, Unit("bandwidth"), POSITIVE]
Bytes = Annotated[int, Unit("size"), POSITIVE]
Count = Annotated[int, Limits(least=1)]
Whole = Annotated[int, Limits(least=0, most=1 << 62)]
"""Number of bytes, launches or FLOPs. Sums of a few fit in 64 bits, or are refused as too long."""
Text = Annotated[str, Limits(least=1)]
Factor = Annotated[Fraction, Limits(above=0, most=1_000_000)]
"""Factor on a time or an amount. Above the limit, a step would take days."""
Variation = Annotated[Fraction, Limits(least=0, most=10)]  # standard deviation over mean
Passes = Annotated[Fraction, Limits(least=0, most=1000)]  # reads and writes of the same data
Probability = Annotated[Fraction, Limits(least=0, most=1)]
Part = Annotated[Fraction, Limits(least=0, below=1)]  # part of a whole that never takes all of it


class Setting:
    """A frozen dataclass that a file may state, or that contains such ones.

    Construction raises `InputError` with every figure that breaks its limits or its range.
    """

    __slots__ = ()

    def __post_init__(self) -> None:
        problems = list(_broken(self))
        if problems:
            whose = f"{self.name}: " if hasattr(self, "name") else ""
            raise InputError(
                replace(problem, message=whose + problem.message) for problem in problems
            )


def _broken(value: Any) -> Iterator[Problem]:
    limited, _, rules = _figures(type(value))  # type: ignore[arg-type]  # it is hashable
    for name, limits in limited:
        figure = getattr(value, name)
        if figure is not None and not limits.hold(figure):
            shown = f"{float(figure):g}" if isinstance(figure, Fraction | float) else figure
            yield Problem(message=f"{name} = {shown}", hint=f"must be {limits}")
    yield from broken_ranges(value, type(value))
    for name, rule in rules:
        try:
            rule.check(getattr(value, name))
        except InputError as error:
            yield from error.problems


def broken_ranges(value: Any, kind: type) -> Iterator[Problem]:
    """Yield faults in the ranges of a value that has the fields of the dataclass `kind`."""
    for name, ends in _figures(kind)[1]:
        figure, bounds = getattr(value, name, None), getattr(value, f"{name}_range", None)
        if bounds is None:
            continue
        if figure is None:
            yield Problem(
                message=f"{name}_range is given without {name}",
                hint=f"state {name} or leave the range out",
            )
        elif not bounds[0] <= figure <= bounds[1]:
            yield Problem(
                message=f"{name} lies outside of {name}_range", hint="write [smallest, largest]"
            )
        elif ends is not None and not ends.hold(bounds[0]):
            yield Problem(message=f"{name}_range begins at {bounds[0]}", hint=f"must be {ends}")


@functools.cache
def _figures(
    kind: type[Any],
) -> tuple[list[tuple[str, Limits]], list[tuple[str, Limits | None]], list[tuple[str, Rule]]]:
    """Return the fields with limits, those that may have a range, and those with a rule."""
    hints = get_type_hints(kind, include_extras=True)
    names = [field.name for field in fields(kind)]
    limited = [(name, limits) for name in names if (limits := _limits(hints[name])) is not None]
    ranged = [
        (name, _limits(get_args(get_args(hints[f"{name}_range"])[0])[0]))
        for name in names
        if f"{name}_range" in names
    ]
    rules = [
        (name, note) for name in names for note in get_args(hints[name]) if isinstance(note, Rule)
    ]
    return limited, ranged, rules


def _limits(hint: Any) -> Limits | None:
    """Return the limits of a number, or of an optional number."""
    if get_origin(hint) is not Annotated:
        inner = [_limits(part) for part in get_args(hint) if get_origin(part) is Annotated]
        return inner[0] if len(inner) == 1 and get_origin(hint) is not tuple else None
    base, *notes = get_args(hint)
    if base not in (int, float, Fraction):
        return None
    stated = [note for note in notes if isinstance(note, Limits)]
    if stated:
        return stated[0]
    return Limits(least=0) if any(isinstance(note, Unit) for note in notes) else None
