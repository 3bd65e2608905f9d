"""Events of a profiler's trace, of whose hundreds of megabytes only what is wanted stays.

Two formats are told by the list that an object holds, among other keys in any order: `traceEvents`
of Chrome's Trace Event Format, as PyTorch's Kineto and the legacy profiler export it (there a bare
list, too), and `nodes` of an execution trace (`execution_trace.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gcsim.errors import InputError
from gcsim.json_stream import Fault, JsonStream, Where, opened
from gcsim.traces.kineto.execution_trace import as_events
from gcsim.traces.kineto.refused import (
    FLIGHT_RECORDER_JSON,
    LINK_IT,
    NAME_THE_JSON,
    NO_PASSES,
    NO_TIMES,
    PROTOBUF,
    TAKE_IT_TO_LINK,
    is_chakra_protobuf,
    is_pickle,
)

Event = dict[str, Any]

EXPORT_AGAIN = "export it again with torch.profiler's export_chrome_trace, after the last step"

_KINETO, _CHAKRA, _RECORDER = "traceEvents", "nodes", "entries"
"""Keys of the list that tells a format."""


def events(path: Path) -> Iterator[Event]:
    """The events of a profile in the file's order; entries that are no objects are left out.

    Raises `InputError` that names the file, and the number of the event and the byte where it
    stops, when it cannot be read, is cut short, is no JSON, or holds no `traceEvents` and no nodes
    with times.
    """
    with opened(path, lambda what: unreadable(path, what)) as (file, head):
        if is_pickle(head):
            raise InputError("is a pickle", place=str(path), hint=FLIGHT_RECORDER_JSON)
        if is_chakra_protobuf(head):
            raise InputError(PROTOBUF, place=str(path), hint=NAME_THE_JSON)
        yield from _events(path, JsonStream(file, lambda what, at: _stops(path, what, at)))


def unreadable(path: Path, what: str, hint: str = EXPORT_AGAIN) -> InputError:
    """The error for a file that is no profile that can be used."""
    return InputError(f"profiler's trace {what}", place=str(path), hint=hint)


def _stops(path: Path, what: Fault, at: Where) -> InputError:
    return unreadable(path, f"{what} at event {at.item:,}, character {at.character:,}")


def _events(path: Path, stream: JsonStream) -> Iterator[Event]:
    first = stream.next()
    if first == "[":
        yield from _objects(stream)
        return
    if first != "{":
        raise unreadable(path, "is empty" if not first else "is no JSON object")
    found = False
    for key in stream.keys():  # noqa: SIM118 (a stream's)
        listed = stream.next() == "["
        if key == _KINETO and listed:
            found = True
            yield from _objects(stream)
        elif key == _CHAKRA and listed:
            timed = False
            for event in as_events(_objects(stream)):
                timed = True
                yield event
            if not timed:
                raise InputError(NO_TIMES, place=str(path), hint=LINK_IT)
            found = True
        elif key in {_RECORDER, "pg_config"}:
            raise InputError(NO_PASSES, place=str(path), hint=TAKE_IT_TO_LINK)
        else:
            stream.value()
    if not found:
        raise unreadable(
            path,
            "holds no traceEvents",
            "name the JSON that torch.profiler's export_chrome_trace wrote, or that of "
            "chakra_trace_link",
        )


def _objects(stream: JsonStream) -> Iterator[Event]:
    return (value for value in stream.items() if isinstance(value, dict))
