"""Which rule does a value break, in words? pydantic's kinds of mistakes as sentences."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gcsim.errors import did_you_mean

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

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
    "extra_forbidden": "is no key that is known",
    "unexpected_keyword_argument": "is no key that is known",
    "finite_number": "must be a finite number",
}
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
    """The rule of a mistake, and a hint where the rule has one of its own."""
    kind = fault["type"]
    if kind in EXPECTED:
        return EXPECTED[kind], ""
    if kind in _LIMITS:
        key, limit = _LIMITS[kind]
        bound = context(fault, key)
        return limit.format(bound, entries="entry" if bound == "1" else "entries"), ""
    if kind == "literal_error":
        words = context(fault, "expected").replace(" or ", ", ").split(", ")
        known = [word.strip("'") for word in words]
        return "is not a choice", did_you_mean(str(fault["input"]), known)
    if kind == "value_error":
        return context(fault, "error"), ""
    return fault["msg"][:1].lower() + fault["msg"][1:], ""


def context(fault: ErrorDetails, key: str) -> str:
    """A part of what pydantic says of a mistake."""
    return str(fault.get("ctx", {}).get(key, ""))


def shown(value: Any) -> str:
    """A value as a person wrote it, cut where it is long."""
    if value is None:
        return "(nothing)"
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
