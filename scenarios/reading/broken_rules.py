"""What may stand in the place of a value that breaks a rule? Keys, choices or a command."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, get_args

from pydantic import BaseModel

from gcsim.rules import EXPECTED

_FEW = 4
"""Values that a hint repeats."""
_LONGEST = 320
"""Letters of a hint; a longer one is none."""


def way_out(model: type[BaseModel], key_path: Sequence[str | int], kind: str, value: Any) -> str:
    """What to write in the place of a value of another type; empty where the rule says it."""
    hint = ""
    if value is None:
        hint = "write its value, or leave the key out if it has a default"
    elif kind == "list_type":
        hint = f"write [{', '.join(map(str, value if isinstance(value, dict) else [value]))}]"
    elif kind in {"model_type", "model_attributes_type"}:
        keys = known_keys(model, key_path)
        hint = f"its keys: {', '.join(keys)}" if keys else ""
    elif kind in {"int_type", "int_from_float"} and isinstance(value, float):
        hint = f"write {math.floor(value)} or {math.ceil(value)}" if math.isfinite(value) else ""
    elif kind == "int_type" and isinstance(value, str) and value.isascii() and value.isdigit():
        hint = f"write {value}, without quotes"
    elif kind in EXPECTED and kind != "dict_type" and isinstance(value, list):
        values = ",".join(map(str, value[:_FEW]))
        if values and all(isinstance(key, str) for key in key_path):
            hint = f"for one run each: gcsim sweep --grid '{'.'.join(map(str, key_path))}={values}'"
    return hint if len(hint) <= _LONGEST else ""


def known_keys(model: type[BaseModel], key_path: Sequence[str | int]) -> list[str]:
    """Keys that a mapping at `key_path` may have, over all sections that may stand there."""
    sections: list[type[BaseModel]] = [model]
    for key in key_path:
        annotations = [
            part
            for section in sections
            if isinstance(key, str) and key in section.model_fields
            for part in (section.model_fields[key].annotation, *section.model_fields[key].metadata)
        ]
        # A list index or the key of a table leads into what the annotation holds already.
        if annotations:
            sections = [found for annotation in annotations for found in _sections(annotation)]
    return sorted(
        {
            field.alias or name
            for section in sections
            for name, field in section.model_fields.items()
        }
    )


def _sections(annotation: Any) -> list[type[BaseModel]]:
    annotation = getattr(annotation, "section", annotation)  # of `values.As`
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [found for part in get_args(annotation) for found in _sections(part)]
