"""Which kinds of values do several sections of a scenario file share?

Names that the catalogue must know, numbers of nodes, factors, shares of the time, and links.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    Field,
    PlainValidator,
    WithJsonSchema,
)

from gcsim.errors import InputError
from gcsim.scenarios.reading.checking import exact_number, not_a_list, refuse, without_per_cent

LARGEST_CLUSTER = 100_000
"""Machines: beyond it the engine's memory is the limit, not its model."""
LARGEST_FACTOR = 1_000_000
"""Times as slow: beyond it a step is days long."""

_RANGE = re.compile(r"\d+\s*(?:-|\.\.|:)\s*\d+", re.ASCII)

Count = Annotated[int, Field(ge=1)]


def in_catalogue(look_up: Callable[[str], object]) -> AfterValidator:
    """Of names that `look_up` must not refuse."""

    def known(name: str) -> str:
        try:
            look_up(name)
        except InputError as error:
            raise refuse(error.problems[0].message, error.problems[0].hint) from error
        return name

    return AfterValidator(known)


def _number_of(what: str) -> AfterValidator:
    def plain(text: str) -> str:
        digits = text.isascii() and text.isdigit() and str(int(text[:9])) == text
        if not digits or int(text) >= LARGEST_CLUSTER:
            hint = f"{what}s count from 0"
            if text.isascii() and text[:9].isdigit() and not digits:
                hint = f"write {int(text[:9])}"
            elif _RANGE.fullmatch(text):
                hint = f"name each {what} of the range"
            raise refuse(f"{text!r:.40} is not the number of a {what}", hint)
        return text

    return AfterValidator(plain)


def _numbers(*, zero: bool, most: int) -> tuple[PlainValidator, WithJsonSchema]:
    low = "at least 0" if zero else "greater than 0"

    def parse(value: Any) -> Fraction:
        not_a_list(value)
        number = exact_number(value)
        if number is None:
            message = f"{value!s:.40} is not a number or a ratio such as 3/2"
            raise refuse(message, without_per_cent(value))
        if not 0 <= number <= most or (number == 0 and not zero):
            hint = without_per_cent(value, share=most == 1)
            raise refuse(f"{value} must be {low} and at most {most:,}", hint)
        return number

    return PlainValidator(parse), WithJsonSchema({"type": ["number", "string"]})


_DIGITS = Field(json_schema_extra={"pattern": r"^\d+$"})
NodeNumber = Annotated[str, _number_of("node"), _DIGITS]
"""A key of a mapping: the number of a node, from 0."""
WorkerNumber = Annotated[str, _number_of("worker"), _DIGITS]
"""A key of a mapping: a rank, from 0, node by node."""
Factor = Annotated[Fraction, *_numbers(zero=False, most=LARGEST_FACTOR)]
"""How many times as long something takes."""
Variation = Annotated[Fraction, *_numbers(zero=True, most=10)]
"""Standard deviation over mean."""
Probability = Annotated[Fraction, *_numbers(zero=True, most=1)]
