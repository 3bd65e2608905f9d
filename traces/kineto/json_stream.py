"""Streaming reader of a profiler's trace: of hundreds of megabytes only wanted events are kept.

Two formats, told by the list that an object holds, among other keys in any order: `traceEvents` of
Chrome's Trace Event Format, as PyTorch's Kineto and the legacy profiler (also as a bare list)
export it, and `nodes` of an execution trace.

PyTorch's ExecutionTraceObserver writes operators in their order, with shapes and without times.
`chakra_trace_link` adds Kineto's measurements of the same steps (`ts`, `inclusive_dur`), and the
launched kernels as nodes with `cat` and `stream`; those are read here. A kernel's `ts` is the end
of its launch, not its start: it is taken to run when launched or when its stream has done earlier
launches, whichever is later.

Source: pytorch/pytorch, torch/csrc/profiler/standalone/execution_trace_observer.cpp (schema
1.0.2-chakra.0.0.4 to 1.1.1); mlcommons/chakra, src/trace_link/trace_linker.py
(`process_op_and_dependents`, `get_start_timestamp_for_gpu_op`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from gcsim.errors import InputError
from gcsim.json_file import finite
from gcsim.json_stream import Fault, JsonStream, Where, opened

Event = dict[str, Any]

EXPORT_AGAIN = "export it again with torch.profiler's export_chrome_trace, after the last step"

_KINETO, _CHAKRA, _RECORDER = "traceEvents", "nodes", "entries"
"""Keys of the list of events, which identify a format."""


def events(path: Path) -> Iterator[Event]:
    """Yield the events of a profile in file order, without entries that are not objects. Raises
    `InputError` with file, number of the event and byte when it cannot be read, is cut short, is no
    JSON, or holds no `traceEvents` and no nodes with times."""
    with opened(path, lambda what: unreadable(path, what)) as (file, head):
        if is_pickle(head):
            raise InputError("is a pickle", place=str(path), hint=FLIGHT_RECORDER_JSON)
        if is_chakra_protobuf(head):
            raise InputError(PROTOBUF, place=str(path), hint=_NAME_THE_JSON)
        yield from _events(path, JsonStream(file, lambda what, at: _stops(path, what, at)))


def unreadable(path: Path, what: str, hint: str = EXPORT_AGAIN) -> InputError:
    """Return the error for a file that is not a usable profile."""
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
            for event in _as_events(_objects(stream)):
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
"""Ways to get a dump of PyTorch's flight recorder as JSON. Source: pytorch/pytorch,
torch/csrc/distributed/c10d/FlightRecorder.cpp, init.cpp; torch/distributed/flight_recorder (2.5 to
2.13)."""

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
    """Return whether a file begins like a pickle: protocol 2 to 5, or a zip of one."""
    return head[:1] == b"\x80" and head[1:2] in {b"\x02", b"\x03", b"\x04", b"\x05"}


def is_chakra_protobuf(head: bytes) -> bool:
    """Whether it begins with Chakra's `GlobalMetadata`, whose first attribute is the schema: a
    length before each message (varint), field 1 (0x0a), its length, and field 1 of that, the name
    (mlcommons/chakra, schema/protobuf/et_def.proto)."""
    if head[:1] in {b"{", b"["}:
        return False
    at = 0
    while at < len(head) and head[at] & 0x80 and at < 4:
        at += 1
    body = head[at + 1 :]
    return len(body) > 3 and body[0] == 0x0A and b"\x0a" in body[2:5] and b"schema" in body[:64]


_BEFORE = 1e-3
"""Microseconds: a launch that ends where the next operator begins belongs to the one before."""
KIND = "chakra"
"""Category of the host's events made here."""


def _as_events(nodes: Iterable[Event]) -> Iterator[Event]:
    """Yield the events of a trace's nodes; none without times."""
    launched: list[tuple[float, float, Event]] = []
    forwards: dict[float, float] = {}
    for node in nodes:
        start, lasted = finite(node.get("ts")), finite(node.get("inclusive_dur"))
        if start is None or lasted is None:
            continue
        if node.get("cat") is not None:
            launched.append((start, lasted, node))
            continue
        inputs = node.get("inputs")
        shapes = inputs.get("shapes") if isinstance(inputs, dict) else None
        yield {
            "ph": "X",
            "cat": KIND,
            "name": node.get("name"),
            "ts": start,
            "dur": lasted,
            "args": {"Input Dims": shapes},
        }
        if (sequence := _sequence(node)) is not None:  # the innermost operator, as in Kineto
            forwards[sequence] = max(start, forwards.get(sequence, start))
    for start in forwards.values():
        yield {"ph": "s", "cat": "fwdbwd", "name": "fwdbwd", "ts": start}
    yield from _kernels(launched)


def _kernels(launched: list[tuple[float, float, Event]]) -> Iterator[Event]:
    """Yield each kernel with its launch; a stream runs them in order."""
    free: defaultdict[str, float] = defaultdict(lambda: float("-inf"))
    launched.sort(key=lambda kernel: kernel[0])
    for number, (asked, lasted, node) in enumerate(launched):
        stream = str(node.get("stream"))
        start = max(asked, free[stream])
        free[stream] = start + lasted
        correlation = {"correlation": number}
        yield {
            "ph": "X", "cat": "cuda_runtime", "name": "launch", "ts": asked - _BEFORE, "dur": 0,
            "args": correlation,
        }  # fmt: skip
        yield {
            "ph": "X", "cat": node.get("cat"), "name": node.get("name"), "ts": start,
            "dur": lasted, "args": {**correlation, "stream": stream},
        }  # fmt: skip


def _sequence(node: Event) -> float | None:
    """Return the number that a backward operator shares with its forward operator."""
    attributes = node.get("attrs")
    told = {
        one.get("name"): one.get("value")
        for one in (attributes if isinstance(attributes, list) else ())
        if isinstance(one, dict) and isinstance(one.get("name"), str)
    }
    number = finite(told.get("seq_id"))
    forward = told.get("scope") == 0 == told.get("fw_parent")
    return number if forward and number is not None and number >= 0 else None
