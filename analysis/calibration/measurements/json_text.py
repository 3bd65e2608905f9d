"""What is in a JSON text of measurements that gcsim did not write?

What is needed is looked up; what is missing is told by who needs it.
"""

from __future__ import annotations

import json
from typing import Any

from gcsim.errors import InputError


def loaded(name: str, text: str) -> Any:
    """What the text holds. Raises `InputError` with line and column where it is no JSON."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        place = f"{name}:{error.lineno}:{error.colno}"
        raise InputError(f"is cut off or no JSON: {error.msg}", place=place) from error
    except (ValueError, RecursionError) as error:  # a number of 5,000 digits, [[[[...
        message = "is nested too deeply" if isinstance(error, RecursionError) else "is no JSON"
        raise InputError(message, place=name) from error


def at(value: Any, *keys: str | int) -> Any:
    """What stands under some keys; None where one of them is missing."""
    for key in keys:
        if isinstance(key, int):
            value = (
                value[key] if isinstance(value, list) and -len(value) <= key < len(value) else None
            )
        else:
            value = value.get(key) if isinstance(value, dict) else None
    return value


def entries(value: Any, *keys: str | int) -> list[Any]:
    """The list that stands there; empty where there is none."""
    found = at(value, *keys)
    return found if isinstance(found, list) else []


def whole(value: Any) -> int | None:
    """A whole number from 0; None for everything else."""
    return value if type(value) is int and 0 <= value < 1 << 62 else None
