"""Does a document have the right shape, and what does a person read when it does not?

pydantic finds every mistake in one pass; here its locations become `file:line:column` and its
messages sentences with a suggestion. Strict: a number is never read from text, nor a truth value
from a number.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from gcsim.errors import Problem, did_you_mean
from gcsim.rules import context, rule, shown
from gcsim.scenarios.reading.broken_rules import example, instead, known_keys, way_out
from gcsim.scenarios.reading.document import Document, Keys, dotted


class Section(BaseModel):
    """A mapping of a file: unknown keys are refused, nothing is converted in silence."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


AnySection = TypeVar("AnySection", bound=Section)

NAMED, SPELLED_OUT, TABLED = "<name>", "<mapping>", "<table>"
"""Tags of unions of a name, a mapping and a table; they occur in pydantic's locations, not in
files."""


def by_shape(value: Any) -> str:
    """Which side of such a union a value belongs to."""
    return SPELLED_OUT if isinstance(value, Mapping | Section) else NAMED


def invalid(message: str, hint: str = "") -> PydanticCustomError:
    """The error for a validator to raise: the message is shown as it is."""
    return PydanticCustomError("refused", "{message}", {"message": message, "hint": hint})


def not_a_list(value: Any) -> None:
    """Refuse several values where one belongs."""
    if isinstance(value, list):
        raise PydanticCustomError("one_value", "")


def check(model: type[AnySection], document: Document) -> tuple[AnySection | None, list[Problem]]:
    """The document as `model`, or None and everything that is wrong with it."""
    try:
        return model.model_validate(document.data), []
    except ValidationError as error:
        return None, [_problem(model, document, fault) for fault in error.errors()]


def _problem(model: type[Section], document: Document, fault: ErrorDetails) -> Problem:
    tags = (NAMED, SPELLED_OUT, TABLED, "[key]")
    last = fault["loc"][-1] if fault["loc"] else ""
    kind = fault["type"]
    key_path: Keys = tuple(key for key in fault["loc"] if key not in tags)
    if kind == "extra_forbidden" and last in tags:  # a key may be called so, too
        key_path = (*key_path, last)
    around = f" in {dotted(key_path[:-1])}" if key_path[:-1] else ""
    if kind == "extra_forbidden":
        key_path = (*key_path, last) if last in tags else key_path  # a key that is called so
        return unknown_key(document, key_path, known_keys(model, key_path[:-1]))
    if kind == "missing":
        place = document.location_of_key(key_path[:-1])
        shown_key = f"write {key_path[-1]}: {example(model, key_path)}"
        message = f"key {key_path[-1]!r} is missing{around}"
        return Problem(place=place, message=message, hint=shown_key)
    if last == "[key]" and kind != "refused":
        expected = [word.strip("' ") for word in context(fault, "expected").split(",")]
        known = [word.strip("' ") for part in expected for word in part.split(" or ")]
        return unknown_key(document, key_path, known)
    name = dotted(key_path) or "the file"
    value = fault["input"]
    # A block mapping begins at its first key: what is wrong with it as a whole stands at its name.
    of_key = isinstance(value, dict) or last == "[key]"
    place = document.location_of_key(key_path) if of_key else document.place(key_path)
    if kind == "refused":
        message = context(fault, "message")
        hint = context(fault, "hint") or instead(model, key_path)
        return Problem(place=place, message=f"{name}: {message}", hint=hint)
    said, hint = rule(fault)
    hint = hint or way_out(model, key_path, kind, value) or instead(model, key_path)
    stated = f" = {shown(value)}" if not isinstance(value, dict | list) else ""
    return Problem(place=place, message=f"{name}{stated}: {said}", hint=hint)


def unknown_key(document: Document, key_path: Keys, known: list[str]) -> Problem:
    """The problem of a key that means nothing."""
    around = f" in {dotted(key_path[:-1])}" if key_path[:-1] else ""
    return Problem(
        place=document.location_of_key(key_path),
        message=f"unknown key {key_path[-1]!r}{around}",
        hint=did_you_mean(str(key_path[-1]), known),
    )
