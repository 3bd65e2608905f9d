"""Rates that change over time, from points in the YAML or a CSV file.

    trace: {points: [[0 s, 50 Mbit/s], [1 s, 20 Mbit/s]], duration: 2 s, after: repeat}
    trace: {file: cell.csv, after: hold}

A rate is the goodput from its time until the next point, 0 in an outage; the first time is 0. The
last rate ends at `duration`, by default after as long an interval as the one before it. `after` has
no default: what follows a measurement is the user's assumption. The path of a file (`csv_table.py`)
is relative to the scenario file's folder; a resolved scenario contains its rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, PlainValidator, PrivateAttr, WithJsonSchema, model_validator

from gcsim import units
from gcsim.errors import InputError, InternalError, Problem
from gcsim.scenarios.links.csv_table import MOST_POINTS, Point, read_points, shown
from gcsim.scenarios.reading.checking import AnySection, Section, check, invalid
from gcsim.scenarios.reading.document import Document, Keys
from gcsim.scenarios.reading.types import PositiveDuration, asking
from gcsim.simulator.network.rate_trace import RateTrace

_AFTER = "write `after: repeat` (it begins again) or `after: hold` (the last rate forever)"


def _point(value: Any) -> Point:
    if not isinstance(value, list) or len(value) != 2:
        raise invalid(f"{value!s:.40} is not a time and a rate", "write it like [1 s, 20 Mbit/s]")
    return asking(lambda: (units.parse(value[0], "time"), units.parse(value[1], "bandwidth")))


_PointEntry = Annotated[
    tuple[Fraction, Fraction],
    PlainValidator(_point),
    WithJsonSchema(
        {"type": "array", "items": {"type": "string"}, "minItems": 2, "maxItems": 2,
         "examples": [["1 s", "20 Mbit/s"]]}
    ),
]  # fmt: skip


class TraceSection(Section):
    """Rate that changes over time, in place of `bandwidth`."""

    file: Annotated[str, Field(min_length=1)] | None = None
    points: Annotated[list[_PointEntry], Field(min_length=1, max_length=MOST_POINTS)] | None = None
    duration: PositiveDuration | None = None
    after: Literal["repeat", "hold"] | None = None

    _rates: RateTrace | None = PrivateAttr(default=None)

    @model_validator(mode="after")
    def _complete(self) -> TraceSection:
        if (self.file is None) == (self.points is None):
            said = "both `file` and `points`" if self.file else "neither `file` nor `points`"
            raise invalid(f"{said} are given", "one of them says what the rates are")
        if self.after is None:
            raise invalid("the rate after the end of the trace is missing", _AFTER)
        if self.points is not None:
            points = self.points
            self._rates = asking(lambda: self._made(points, lambda n: (f"point {n}", "")))
        return self

    @property
    def rates(self) -> RateTrace:
        """The trace; that of a file is set by `read_traces`."""
        if self._rates is None:
            raise InternalError(f"the rates of {self.file} were not read")
        return self._rates

    def read(self, path: Path) -> None:
        """Read `file` from its place; `InputError` with each row's mistake."""
        rows = read_points(path)
        name, places = shown(path), [place for place, _ in rows]

        def called(number: int) -> tuple[str, str]:
            return f"line {places[number].rpartition(':')[2]}", places[number]

        try:
            self._rates = self._made([point for _, point in rows], called)
        except InputError as error:
            raise InputError(
                Problem(place=problem.place or name, message=problem.message, hint=problem.hint)
                for problem in error.problems
            ) from error

    def _made(self, points: list[Point], called: Callable[[int], tuple[str, str]]) -> RateTrace:
        """The trace; `called` gives name and place of a point by number."""
        times = tuple(time for time, _ in points)
        if times[0] != 0:
            name, place = called(0)
            raise InputError(
                f"{name} is at {_text(times[0])}; the first is at 0 s",
                place=place,
                hint="state the rate from 0 s on",
            )
        for number in range(1, len(times)):
            if times[number] <= times[number - 1]:
                name, place = called(number)
                raise InputError(
                    f"{name} is at {_text(times[number])} and comes after "
                    f"{_text(times[number - 1])}",
                    place=place,
                    hint="times must ascend",
                )
        if self.after is None:
            raise InternalError("a trace without `after` passed its check")
        return RateTrace(
            times=times,
            rates=tuple(rate for _, rate in points),
            duration=self._duration(times),
            after=self.after,
        )

    def _duration(self, times: tuple[Fraction, ...]) -> Fraction:
        if self.duration is not None:
            return self.duration
        steps = {later - earlier for earlier, later in pairwise(times)}
        if len(steps) != 1 and self.after == "repeat":
            seen = "there is only one rate" if not steps else "the intervals are not all equal"
            raise InputError(
                f"the end of the last rate is missing: {seen}",
                hint="write `duration:`, the length of the whole trace",
            )
        # with `after: hold` the last rate never ends, so its duration has no effect
        return times[-1] + (times[-1] - times[-2] if len(times) > 1 else 1)


def read_traces(
    section: Section, document: Document, path: Path, key_path: Keys = ()
) -> list[Problem]:
    """Read the files of all traces in a checked section; return every mistake with its line.
    `key_path`: the section's place in the document. A path in a file is relative to its folder, one
    in an option to the working directory."""
    problems: list[Problem] = []
    for place, trace in _traces(section, key_path):
        if trace.file is None:
            continue
        at = (*place, "file")
        stands = document.values.get(at, "")
        in_file = stands.startswith(f"{document.name}:") or not stands
        folder = path.resolve().parent if in_file else Path.cwd()
        found = folder / trace.file
        if not found.is_file():
            hint = "paths are relative to the scenario file's folder" if in_file else ""
            problems.append(document.problem(at, f": there is no file {shown(found)}", hint))
            continue
        try:
            trace.read(found)
        except InputError as error:
            problems += error.problems
    return problems


def with_traces(
    model: type[AnySection], document: Document, path: Path, problems: Sequence[Problem] = ()
) -> AnySection:
    """Check the document as `model` and read its traces; raises `InputError` with all problems."""
    section, faults = check(model, document)
    found = [*problems, *faults]
    if section is not None:
        found += read_traces(section, document, path)
    if found or section is None:
        raise InputError(document.sorted(found))
    return section


def _traces(value: Any, key_path: Keys) -> Iterator[tuple[Keys, TraceSection]]:
    if isinstance(value, TraceSection):
        yield key_path, value
    elif isinstance(value, BaseModel):
        for name in type(value).model_fields:
            yield from _traces(getattr(value, name), (*key_path, name))
    elif isinstance(value, dict | list):
        entries = value.items() if isinstance(value, dict) else enumerate(value)
        for key, entry in entries:
            yield from _traces(entry, (*key_path, key))


def _text(seconds: Fraction) -> str:
    return units.exact(seconds, "time")
