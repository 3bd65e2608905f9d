"""Which kinds of values do several sections of a scenario file share?

Names that the catalogue must know, numbers of nodes, factors, shares of the time, and links.
"""

from __future__ import annotations

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
from gcsim.scenarios.checking import exact_number, refuse, without_per_cent

LARGEST_CLUSTER = 100_000
"""Machines: beyond it the engine's memory is the limit, not its model."""
LARGEST_FACTOR = 1_000_000
"""Times as slow: beyond it a step is days long."""

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


def _node(text: str) -> str:
    plain = text.isascii() and text.isdigit() and str(int(text[:9])) == text
    if not plain or int(text) >= LARGEST_CLUSTER:
        raise refuse(f"{text!r:.40} is not the number of a node", "nodes count from 0")
    return text


def _numbers(*, zero: bool, most: int) -> tuple[PlainValidator, WithJsonSchema]:
    low = "at least 0" if zero else "greater than 0"

    def parse(value: Any) -> Fraction:
        number = exact_number(value)
        if number is None:
            message = f"{value!s:.40} is not a number or a ratio such as 3/2"
            raise refuse(message, without_per_cent(value))
        if not 0 <= number <= most or (number == 0 and not zero):
            hint = without_per_cent(value, share=most == 1)
            raise refuse(f"{value} must be {low} and at most {most:,}", hint)
        return number

    return PlainValidator(parse), WithJsonSchema({"type": ["number", "string"]})


NodeNumber = Annotated[str, AfterValidator(_node), Field(json_schema_extra={"pattern": r"^\d+$"})]
"""A key of a mapping: the number of a node, from 0."""
Factor = Annotated[Fraction, *_numbers(zero=False, most=LARGEST_FACTOR)]
"""How many times as long something takes."""
Variation = Annotated[Fraction, *_numbers(zero=True, most=10)]
"""Standard deviation over mean."""
Probability = Annotated[Fraction, *_numbers(zero=True, most=1)]
