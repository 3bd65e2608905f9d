"""Types of values that sections of a scenario file share: pydantic readers and JSON schemas."""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, Field, PlainValidator, WithJsonSchema

from gcsim import units
from gcsim.errors import InputError
from gcsim.fields import Limits
from gcsim.scenarios.reading.checking import invalid, not_a_list

LARGEST_CLUSTER = 100_000  # most nodes; more would need too much memory

_RANGE = re.compile(r"\d+\s*(?:-|\.\.|:)\s*\d+", re.ASCII)
# No text makes a huge integer, and all the digits of what is read here can be read again.
_NUMBER = re.compile(
    r"[+-]?(?:\d+\.?\d*|\.\d+)|\d+/\d+|[+-]?(?:\d{1,20}\.?\d{0,20}|\.\d{1,20})[eE][+-]?\d{1,2}",
    re.ASCII,
)
_LONGEST = 160


def exact_number(value: Any) -> Fraction | None:
    """Return an exact number from a number, or a ratio of whole numbers as text; else None."""
    text = str(value)
    if isinstance(value, bool) or len(text) > _LONGEST or not _NUMBER.fullmatch(text):
        return None
    try:
        return Fraction(text)
    except ZeroDivisionError:
        return None


def per_cent(value: Any) -> Fraction | None:
    """Return the exact number of a text such as "90 %"; else None."""
    text = str(value).strip()
    number = exact_number(text[:-1].rstrip()) if text.endswith("%") else None
    return None if number is None else number / 100


def _one_line(text: str) -> str:
    if len(text.splitlines()) > 1 or "\t" in text:
        raise invalid(f"{text!r} is not a single line", "write it without line ends and tabs")
    return text


Line = Annotated[str, Field(min_length=1), AfterValidator(_one_line)]
"""Text for a table or a sentence, on one line."""

Price = Annotated[float, Field(gt=0, allow_inf_nan=False)]
"""Cost of a node per hour, in any currency."""

Found = TypeVar("Found")


def asking(question: Callable[[], Found]) -> Found:
    """Call `question` in a validator and convert its `InputError` to pydantic's."""
    try:
        return question()
    except InputError as error:
        raise invalid(error.problems[0].message, error.problems[0].hint) from error


def in_catalogue(look_up: Callable[[str], Any]) -> AfterValidator:
    """Return a validator of names for `look_up`, which replaces a name by the entry's own."""

    def known(name: str) -> str:
        return str(getattr(asking(lambda: look_up(name)), "name", name))

    return AfterValidator(known)


def quantity(
    dimension: units.Dimension, *, positive: bool = False
) -> tuple[PlainValidator, WithJsonSchema]:
    """Return the type of a text with a unit, read exactly; sizes are whole bytes."""
    read = units.parse_bytes if dimension == "size" else lambda text: units.parse(text, dimension)

    def parse(text: Any) -> Fraction | int:
        not_a_list(text)
        value: Fraction | int = asking(lambda: read(text))
        if positive and value == 0:
            least = "at least 1 B" if dimension == "size" else "more"
            raise invalid(f"{text} is zero; it must be {least}")
        return value

    schema = {"type": "string", "examples": [units.EXAMPLES[dimension]]}
    return PlainValidator(parse), WithJsonSchema(schema)


def number(limits: Limits) -> tuple[PlainValidator, WithJsonSchema]:
    """Return the type of an exact number, ratio of whole numbers or percentage within limits."""

    def parse(value: Any) -> Fraction:
        not_a_list(value)
        found = exact_number(value)
        shown = value
        if found is None and (found := per_cent(value)) is not None:
            shown = f"{value}, which is {float(found):g},"
        if found is None:
            raise invalid(f"{value!s:.40} is not a number or a ratio such as 3/2")
        if not limits.hold(found):
            meant = 1 in (limits.most, limits.below) and shown is value and 1 < found <= 100
            hint = f"write {float(found):.12g} % if you mean that" if meant else ""
            raise invalid(f"{shown} must be {limits}", hint)
        return found

    bounds = {
        "minimum": limits.least,
        "exclusiveMinimum": limits.above,
        "maximum": limits.most,
        "exclusiveMaximum": limits.below,
    }
    stated = {name: bound for name, bound in bounds.items() if bound is not None}
    return PlainValidator(parse), WithJsonSchema({"type": ["number", "string"], **stated})


def index(what: str) -> tuple[AfterValidator, Any]:
    """Return the type of a mapping's key: the number of a node or worker, from 0."""

    def plain(text: str) -> str:
        digits = text.isascii() and text.isdigit() and str(int(text[:9])) == text
        if not digits or int(text) >= LARGEST_CLUSTER:
            hint = f"{what}s count from 0"
            if text.isascii() and text[:9].isdigit() and not digits:
                hint = f"write {int(text[:9])}"
            elif _RANGE.fullmatch(text):
                hint = f"name each {what} of the range"
            raise invalid(f"{text!r:.40} is not the number of a {what}", hint)
        return text

    return AfterValidator(plain), Field(json_schema_extra={"pattern": r"^\d+$"})


Count = Annotated[int, Field(ge=1)]
NodeNumber = Annotated[str, *index("node")]
Duration = Annotated[Fraction, *quantity("time")]  # seconds
PositiveDuration = Annotated[Fraction, *quantity("time", positive=True)]
Bandwidth = Annotated[Fraction, *quantity("bandwidth", positive=True)]  # bytes per second
Share = Annotated[Fraction, *number(Limits(above=0, most=1))]
