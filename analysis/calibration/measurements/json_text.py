"""Reading of JSON files with measurements that gcsim did not write.

An object is read key by key; of its `traceEvents`, perhaps millions, only selected ones are kept. A
list is read entry by entry by the format's reader. The readers report missing values.
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
    """A file that is one list and can be read only once."""

    entries: Iterator[Any]


def loaded(name: str, file: Source, kept: Callable[[Any], bool]) -> dict[str, Any] | Listed:
    """Return the file's object or list. `traceEvents` of an object become None unless `kept`.
    Raises `InputError` with line and column if it is not JSON or has other values above 64 MiB."""

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
    """Return the value under nested keys; None if one is missing."""
    for key in keys:
        if isinstance(key, int):
            value = (
                value[key] if isinstance(value, list) and -len(value) <= key < len(value) else None
            )
        else:
            value = value.get(key) if isinstance(value, dict) else None
    return value


def entries(value: Any, *keys: str | int) -> list[Any]:
    """Return the list under nested keys; empty if missing."""
    found = at(value, *keys)
    return found if isinstance(found, list) else []


def whole(value: Any) -> int | None:
    """Return a whole number >= 0; else None."""
    return value if type(value) is int and 0 <= value < 1 << 62 else None
