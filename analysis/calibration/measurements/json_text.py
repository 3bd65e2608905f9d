"""Content of a JSON file of measurements that gcsim did not write.

An object is read key by key, keeping of its `traceEvents`, perhaps millions, only the selected
ones; a list entry by entry by its reader. Readers report missing values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from gcsim.errors import InputError
from gcsim.json_file import LARGEST
from gcsim.json_stream import Fault, JsonStream, Source, Where

EVENTS = "traceEvents"


@dataclass(frozen=True, slots=True)
class Listed:
    """File that is one list, to be read once."""

    entries: Iterator[Any]


def loaded(name: str, file: Source, kept: Callable[[Any], bool]) -> dict[str, Any] | Listed:
    """The file's object or list. An object's `traceEvents` that are not `kept` are None. Raises
    `InputError` with line and column for no JSON, and for other values above 64 MiB."""

    def refuse(what: Fault, at: Where) -> InputError:
        told = "is cut off or not JSON" if what != "is nested too deeply" else what
        return InputError(told, place=f"{name}:{at.line}:{at.column}")

    stream = JsonStream(file, refuse)
    if stream.next() == "[":
        return Listed(stream.items(unfinished=True))
    body: dict[str, Any] = {}
    size = 0
    for key in stream.keys():  # noqa: SIM118 (a stream's)
        if key == EVENTS and stream.next() == "[":
            body[key] = [event if kept(event) else None for event in stream.items()]
            continue
        before = stream.position
        values: list[Any] = []
        if stream.next() == "[":
            body[key] = values
            for value in stream.items():
                values.append(value)
                _check_size(name, size + stream.position - before)
        else:
            body[key] = stream.value()
        size += stream.position - before
        _check_size(name, size)
    if stream.next():
        refused = stream.next()
        raise InputError(f"continues after its end with {refused!r}", place=name)
    return body


def _check_size(name: str, size: int) -> None:
    if size > LARGEST:
        message = f"is larger than {LARGEST >> 20} MiB without its {EVENTS}"
        raise InputError(message, place=name)


def at(value: Any, *keys: str | int) -> Any:
    """Value under keys, if all are there."""
    for key in keys:
        if isinstance(key, int):
            value = (
                value[key] if isinstance(value, list) and -len(value) <= key < len(value) else None
            )
        else:
            value = value.get(key) if isinstance(value, dict) else None
    return value


def entries(value: Any, *keys: str | int) -> list[Any]:
    """List under keys, empty if missing."""
    found = at(value, *keys)
    return found if isinstance(found, list) else []


def whole(value: Any) -> int | None:
    """Whole number from 0; else None."""
    return value if type(value) is int and 0 <= value < 1 << 62 else None
