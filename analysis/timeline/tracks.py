"""What is on the tracks of the ranks? Slices with their arguments.

- input loader: the making of each batch, and within it the time in which the device waits for it.
- compute stream: forward, backward, encode, decode, optimizer.
- side stream: encode and decode, where they have one of their own.
- communicator, and its second slot where two collectives run at a time: each collective, and within
  it, where the rank waited, the time until the last rank was in it, and the rest.

The category of a slice is what is done (`Span.kind`). Viewers colour slices by their name without
its numbers. Arguments name their units.

Times are whole nanoseconds, as Perfetto's: it rounds the start and the length of a slice each on
its own, so that with finer ones slices that follow each other would overlap, and one be dropped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from gcsim.scenarios.result import Span, Timeline

Event = dict[str, Any]

TITLES: dict[tuple[str, int], str] = {
    ("loader", 0): "input loader",
    ("compute", 0): "compute stream",
    ("side", 0): "side stream",
    ("communicator", 0): "communicator",
    ("communicator", 1): "communicator 2",
}
"""By resource and slot, from top to bottom; a rank has those that it uses."""
WAIT, TRANSFER = "wait for last rank", "transfer"

_PLACES = {track: place for place, track in enumerate(TITLES)}
_FIRST_THREAD, _THREADS = 1000, 10
"""Numbers of threads: those of rank r from 1000 + 10 r. None is the number of a process, of which
Perfetto would take it for the main thread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """A process of the trace."""

    number: int
    spans: tuple[Span, ...]
    """Of the ranks that are shown."""
    timeline: Timeline


def tracks(method: Method) -> tuple[list[Event], list[Event]]:
    """Their names, and their slices."""
    used = {_thread(span): span for span in method.spans}
    names = []
    for thread, span in sorted(used.items()):
        title = TITLES[span.resource, span.slot]
        name = f"rank {span.rank}: {title}"
        names.append(metadata(method, "thread_name", thread, name=name))
        names.append(metadata(method, "thread_sort_index", thread, sort_index=thread))
    return names, [event for span in method.spans for event in _slices(method, span)]


def metadata(method: Method, kind: str, thread: int = 0, **args: object) -> Event:
    """An event that tells something of a method, or of one of its threads."""
    return {"name": kind, "ph": "M", "ts": 0, "pid": method.number, "tid": thread, "args": args}


def event(method: Method, span: Span, phase: str, start: int, *, name: str, category: str) -> Event:
    """What all events on the track of a span have; `start` in nanoseconds."""
    return {
        "name": name,
        "cat": category,
        "ph": phase,
        "ts": microseconds(start),
        "pid": method.number,
        "tid": _thread(span),
    }


def nanoseconds(seconds: float) -> int:
    """The nearest one."""
    return round(seconds * 1e9)


def microseconds(nanoseconds: int) -> float:
    """As the format has them; three digits behind the point."""
    return nanoseconds / 1000


def last_entry(span: Span) -> int:
    """When the last rank entered a span's collective, in nanoseconds."""
    return nanoseconds(span.start_s + span.waited_s)


def _thread(span: Span) -> int:
    return _FIRST_THREAD + _THREADS * span.rank + _PLACES[span.resource, span.slot]


def _slices(method: Method, span: Span) -> Iterator[Event]:
    start, end = nanoseconds(span.start_s), nanoseconds(span.end_s)
    whole = event(method, span, "X", start, name=span.name, category=span.kind)
    whole["dur"] = microseconds(end - start)
    args = _arguments(method, span)
    yield {**whole, "args": args} if args else whole
    last = last_entry(span)
    if span.collective is not None and last > start:
        for name, category, begin, until in (
            (WAIT, "wait", start, last),
            (TRANSFER, "transfer", last, end),
        ):
            part = event(method, span, "X", begin, name=name, category=category)
            yield {**part, "dur": microseconds(until - begin)}


def _arguments(method: Method, span: Span) -> dict[str, Any]:
    args: dict[str, Any] = {} if span.bucket is None else {"bucket": span.bucket}
    if span.collective is None:
        return args
    of = method.timeline.collectives[span.collective]
    return {
        **args,
        "collective": span.kind.replace("_", "-"),
        "algorithm": of.algorithm,
        "sent_bytes": of.sent[span.rank],
        "received_bytes": of.received[span.rank],
        "message_bytes": of.moved[span.rank],
        "waited_us": microseconds(nanoseconds(span.waited_s)),
        "transfer_us": microseconds(nanoseconds(span.end_s - span.start_s - span.waited_s)),
        "last_rank": _last(of.last),
    }


def _last(ranks: Sequence[int]) -> str:
    """The ranks that entered last."""
    more = f" and {len(ranks) - 1} more" if len(ranks) > 1 else ""
    return f"{ranks[0]}{more}" if ranks else ""
