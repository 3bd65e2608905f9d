"""Reading of JSON files that others may have edited, and sentences for pydantic's errors.

Traces and fits may come from other people. Such a file is read up to a size limit, is never
executed, and is checked by pydantic against its types: keys, ranges, lengths.

`rule` turns pydantic's kinds of errors into sentences.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gcsim.errors import UNPRINTABLE, InputError, Problem, did_you_mean
from gcsim.files import open_file

if TYPE_CHECKING:
    from pydantic import ValidationError
    from pydantic_core import ErrorDetails


LARGEST = 64 << 20  # most bytes that are read of a file
_FIRST = 3  # most mistakes of a file that are reported


def read_object(
    path: Path,
    place: str,
    what: str,
    hint: str,
    refusal: type[InputError] = InputError,
    *,
    largest: int | None = None,
) -> dict[str, Any]:
    """Return the mapping in a JSON file, which messages call `place`.

    Raises `refusal` if the file cannot be read, has more than `largest` bytes (default: `LARGEST`),
    is not JSON, or does not hold a mapping.
    """
    largest = LARGEST if largest is None else largest
    try:
        with open_file(path) as file:
            content = file.read(largest + 1)
    except OSError as error:
        raise refusal(f"cannot be read: {error.strerror}", place=place, hint=hint) from error
    if len(content) > largest:
        raise refusal(f"is larger than {largest >> 20} MiB", place=place, hint=hint)
    try:
        body = json.loads(content.decode("utf-8"))
    except RecursionError as error:
        raise refusal("is nested too deeply", place=place, hint=hint) from error
    except ValueError as error:
        raise refusal(f"is truncated or not JSON: {error}", place=place, hint=hint) from error
    if any(UNPRINTABLE.search(text) for text in _texts(body)):
        raise refusal("has control characters in its text", place=place, hint=hint)
    if not isinstance(body, dict):
        raise refusal(f"is not a {what}", place=place, hint=hint)
    return body


def finite(value: object) -> float | None:
    """Return a finite number; None for any other JSON value."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for inner in value:
            yield from _texts(inner)
        for inner in value.values() if isinstance(value, dict) else ():
            yield from _texts(inner)


def broken(error: ValidationError, body: Any, place: str, hint: str) -> Iterator[Problem]:
    """Yield the first mistakes of a JSON file: key, value and rule; `hint` unless the rule has one.

    `facts.layers.3.outputs (conv1) = -5: must be at least 0`: in brackets the name of the entry.
    """
    for fault in error.errors(include_url=False)[:_FIRST]:
        found, named = body, ""
        for key in fault["loc"]:
            inside = isinstance(found, list) and isinstance(key, int) and key < len(found)
            found = found[key] if inside else found.get(key) if isinstance(found, dict) else None
            name = found.get("name") if isinstance(found, dict) else None
            named = f" ({name})" if name and isinstance(name, str) else named
        key_path = ".".join(str(key) for key in fault["loc"] if key != "[key]")
        value = "" if isinstance(fault["input"], dict | list) else f" = {shown(fault['input'])}"
        said, own = rule(fault)
        message = f"{key_path}{named}{value}: {said}"
        yield Problem(place=place, message=message, hint=own or hint)


EXPECTED = {
    "one_value": "must be one value, not a list",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "int_parsing": "must be a whole number",
    "float_type": "must be a number",
    "string_type": "must be text",
    "bool_type": "must be true or false",
    "list_type": "must be a list",
    "tuple_type": "must be a list",
    "model_type": "must be a mapping (key: value)",
    "model_attributes_type": "must be a mapping (key: value)",
    "dict_type": "must be a mapping (key: value)",
    "dataclass_type": "must be a mapping (key: value)",
    "missing": "is missing",
    "extra_forbidden": "is not a known key",
    "unexpected_keyword_argument": "is not a known key",
    "finite_number": "must be a finite number",
}
_NEAR = 70  # per cent: "on" is not a mistyped "none"
_LIMITS = {
    "greater_than": ("gt", "must be greater than {}"),
    "greater_than_equal": ("ge", "must be at least {}"),
    "less_than": ("lt", "must be less than {}"),
    "less_than_equal": ("le", "must be at most {}"),
    "too_short": ("min_length", "must have at least {} {entries}"),
    "too_long": ("max_length", "must have at most {} {entries}"),
    "string_too_short": ("min_length", "must not be empty"),
}


def rule(fault: ErrorDetails) -> tuple[str, str]:
    """Return the rule that a mistake breaks, and the rule's own hint, if any."""
    kind = fault["type"]
    if kind in EXPECTED:
        return EXPECTED[kind], ""
    if kind in _LIMITS:
        key, limit = _LIMITS[kind]
        bound = context(fault, key)
        return limit.format(bound, entries="entry" if bound == "1" else "entries"), ""
    if kind == "literal_error":
        known, said = sorted(choices(fault)), str(fault["input"])
        digits = sorted(filter(str.isdigit, said))  # fp64 is not a mistyped fp16
        alike = [word for word in known if sorted(filter(str.isdigit, word)) == digits]
        hint = did_you_mean(said, alike, near=_NEAR)
        with_it = [word for word in known if said.lower() in word.split("_")]
        near = f"there are {', '.join(with_it)}" if with_it else f"known: {', '.join(known)}"
        return "is not a choice", hint if hint.endswith("?") else near
    if kind == "value_error":
        return context(fault, "error"), ""
    return fault["msg"][:1].lower() + fault["msg"][1:], ""


def choices(fault: ErrorDetails) -> list[str]:
    """Return the values that would have been valid."""
    words = context(fault, "expected").replace(" or ", ", ").split(", ")
    return [word.strip("' ") for word in words]


def context(fault: ErrorDetails, key: str) -> str:
    """Return a part of pydantic's description of a mistake."""
    return str(fault.get("ctx", {}).get(key, ""))


def shown(value: Any) -> str:
    """Return a value as a person would write it, shortened if long."""
    if value is None:
        return "(nothing)"
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
