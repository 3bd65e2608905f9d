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
            raise InputError(PROTOBUF, place=str(path), hint=_NAME_THE_JSON)
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
                raise InputError(_NO_TIMES, place=str(path), hint=_LINK_IT)
            found = True
        elif key in {_RECORDER, "pg_config"}:
            raise InputError(_NO_PASSES, place=str(path), hint=_TAKE_IT_TO_LINK)
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


FLIGHT_RECORDER_JSON = (
    "a pickle runs code when it is loaded, so gcsim never loads one; have the training write JSON: "
    "open('fr.json', 'wb').write(torch._C._distributed_c10d._dump_nccl_trace_json()), with Gloo "
    "_dump_fr_trace_json(), or ask its worker server for dump_nccl_trace_json (torchfrtrace -j "
    "prints a table and no JSON)"
)
"""How a dump of PyTorch's flight recorder is had as JSON. Source: pytorch/pytorch, torch/csrc/
distributed/c10d/FlightRecorder.cpp, init.cpp; torch/distributed/flight_recorder (2.5 to 2.13)."""

_NO_PASSES = (
    "is a dump of PyTorch's flight recorder, which says when collectives were queued, of how many "
    "bytes, and with TORCH_NCCL_ENABLE_TIMING=1 how long they took; not when forward and backward "
    "passes begin"
)
_TAKE_IT_TO_LINK = (
    "gcsim calibrate link FILE reads its collectives; for passes profile the same training with "
    "torch.profiler"
)
_NO_TIMES = (
    "is an execution trace of ExecutionTraceObserver, which says which operators ran, and not when"
)
_LINK_IT = (
    "link it to the Kineto trace of the same steps (chakra_trace_link) and name what comes out, or "
    "name the Kineto trace itself"
)
OPERATORS = "is an execution trace, which says which operators ran and times no collective"
NAME_THE_KINETO = (
    "for a link name the Kineto trace of the same steps, with NCCL's kernels; for passes "
    "`compute: {profile: FILE}` in a scenario reads the JSON of chakra_trace_link"
)
PROTOBUF = (
    "is a Chakra trace as protobuf (.et), whose nodes have durations and no times at which they "
    "start"
)
_NAME_THE_JSON = (
    "name the JSON that chakra_trace_link wrote (the input of chakra_converter), or the Kineto "
    "trace of the same steps"
)


def is_pickle(head: bytes) -> bool:
    """Whether the first bytes of a file are those of a pickle: protocol 2 to 5, or a zip of one."""
    return head[:1] == b"\x80" and head[1:2] in {b"\x02", b"\x03", b"\x04", b"\x05"}


def is_chakra_protobuf(head: bytes) -> bool:
    """Whether it begins with Chakra's `GlobalMetadata`, whose first attribute is the schema.

    A length stands before each message (varint), then field 1 (0x0a), its length, and field 1 of
    that, the name: mlcommons/chakra, schema/protobuf/et_def.proto.
    """
    if head[:1] in {b"{", b"["}:
        return False
    at = 0
    while at < len(head) and head[at] & 0x80 and at < 4:
        at += 1
    body = head[at + 1 :]
    return len(body) > 3 and body[0] == 0x0A and b"\x0a" in body[2:5] and b"schema" in body[:64]
