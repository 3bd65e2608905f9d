"""Trace of sample iterations for Perfetto and chrome://tracing.

A process is one method on the whole cluster, a track is one resource of one rank. All methods start
at zero. Perfetto sorts processes by their number of slices, tracks by their number. Above `LIMIT`
spans, only the ranks of each method's first node and the rank that ends last are kept, as
`otherData` states; counters still cover all ranks.

Source: "Trace Event Format" (Google, 2016); Perfetto, src/trace_processor/importers/json.

Arrows show which rank the others waited for. A collective begins when the last rank has entered it.
The slice that ended on that rank at this time (a job of a stream, or a collective) gets an arrow to
the slice `transfer` of each rank that waited. Of several last ranks the lowest counts; if all enter
at once there is no arrow. An arrow is a pair of flow events with its own number. Perfetto draws it
on a click on either slice; chrome://tracing draws all.

Slices on the tracks of a rank:

- input loader: preparation of each batch, and within it the device's wait for the batch.
- compute stream: forward, backward, encode, decode, optimizer.
- side stream: encode and decode, if they run on a separate stream.
- communicator, and its second slot if two collectives run at a time: each collective, and within it
  the wait for the last rank, if any, and the rest.

Categories are `Span.kind`. Viewers colour slices by their name without numbers. Arguments contain
their units. Times are whole nanoseconds like Perfetto's: it rounds start and length of a slice
separately, so with finer times it would see consecutive slices overlap and drop one.

Counters cover all ranks of a method:

- computing ranks: their compute or side stream is busy.
- exchanging ranks: those in a collective; the waiting ones are those whose collective lacks a rank.
- rate of all messages of current collectives, those within a node included: a collective's bytes
  over the time from its first entry to its last exit, an average that no link need have. The rest
  of an earlier collective, once ranks are in the next one, counts as part of the earlier one only.

With more than `MOST` changes in an iteration, values are means over this many equal parts.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gcsim.analysis.report.numbers import plural
from gcsim.analysis.report.selection import at_largest
from gcsim.scenarios.result import Result, Span, Timeline

LIMIT = 60_000  # most spans of a trace

HOW = (
    "Open this file in https://ui.perfetto.dev (it stays on your machine) or chrome://tracing. "
    "Each process is one method on the whole cluster; expand it to see a track per resource, rank "
    "by rank (numbered node by node), and below them counters over all ranks. Click a slice to see "
    "its arguments; where a rank waited for a slower one, an arrow leads to its transfer from the "
    "work that kept the slower rank busy."
)


def chrome_trace(result: Result) -> str:
    """Return the timelines of `result` as trace-event JSON, one event per line; deterministic."""
    largest = at_largest(result)[0]
    cut = sum(span.ranks for timeline in result.timelines for span in timeline.spans) > LIMIT
    about = {
        "scenario": result.scenario.get("name", ""),
        "nodes": largest.nodes,
        "phase": {timeline.label: timeline.phase for timeline in result.timelines},
        "ranks": "all",
        "how": HOW,
    }
    if cut:
        about["ranks"] = (
            "for each compressor, the first node's ranks and the one that ends last, because "
            f"there are more than {LIMIT} spans"
        )
    groups = result.scenario.get("cluster", {}).get("groups") or [{}]
    of_first = groups[0].get("devices_per_node", largest.workers // largest.nodes)
    encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
    lines = [
        encode(event)
        for number, timeline in enumerate(result.timelines, start=1)
        for event in _events(timeline, number, largest.workers, of_first if cut else 0)
    ]
    head = json.dumps(about, ensure_ascii=False)
    body = ",\n".join(lines)
    return f'{{"displayTimeUnit":"ms","otherData":{head},"traceEvents":[\n{body}\n]}}\n'


def _events(timeline: Timeline, number: int, workers: int, of_first: int) -> Iterator[Event]:
    """Yield the events of one method: first names, then activities by time. `of_first`: ranks of
    the first node, if only these and the last one are shown; 0: all ranks are."""
    if not timeline.spans:
        return
    kept = {span.rank for span in timeline.spans}
    if of_first:  # and the one that ends last, the lowest of several
        last = max(timeline.spans, key=lambda span: (span.end_s, -span.rank))
        kept = {*range(of_first), last.rank}
    spans = tuple(span for span in timeline.spans if span.rank in kept)
    method = Method(number=number, spans=spans, timeline=timeline)
    ranks = plural(workers, "rank")
    yield _metadata(method, "process_name", name=f"{timeline.label}, {ranks}")
    yield _metadata(method, "process_labels", labels=f"{timeline.phase} iteration")
    yield _metadata(method, "process_sort_index", sort_index=number)
    names, slices = _tracks(method)
    yield from names
    yield from sorted([*slices, *_counters(method), *_arrows(method)], key=_by_time)


def _by_time(event: dict[str, Any]) -> tuple[float, float]:
    """Return a sort key: a longer event before those within it and before an arrow's end on it."""
    return event["ts"], -event.get("dur", 0)


_NAME = "waited for"

_ARROWS = 10**6  # exceeds the arrows of a method; Perfetto needs whole numbers


def _arrows(method: Method) -> list[Event]:
    """Return two events per arrow between shown ranks."""
    sources = _sources(method)
    found: list[Event] = []
    for span in method.spans:
        source = None if span.collective is None else sources.get(span.collective)
        last = last_entry(span)
        if source is None or last <= nanoseconds(span.start_s):
            continue
        same = {"id": _ARROWS * method.number + len(found) // 2}
        # within the slice: the last time before another one begins
        leaves = max(nanoseconds(source.start_s), nanoseconds(source.end_s) - 1)
        found.append({**_end(method, source, "s", leaves), **same})
        found.append({**_end(method, span, "f", last), **same, "bp": "e"})
    return found


def _end(method: Method, span: Span, phase: str, time: int) -> Event:
    return _event(method, span, phase, time, name=_NAME, category="arrow")


def _sources(method: Method) -> dict[int, Span]:
    """Return, by collective, the span that ended when its last rank entered, if shown."""
    by_end: dict[tuple[int, int], Span] = {}
    entries: dict[tuple[int, int], Span] = {}
    for span in method.spans:
        if span.resource != "loader":
            end = (span.rank, nanoseconds(span.end_s))
            by_end[end] = max(by_end.get(end, span), span, key=lambda s: s.end_s - s.start_s)
        if span.collective is not None:
            entries[span.collective, span.rank] = span
    found = {}
    for number, collective in enumerate(method.timeline.collectives):
        entry = entries.get((number, collective.last[0])) if collective.last else None
        if entry is not None:
            source = by_end.get((entry.rank, nanoseconds(entry.start_s)))
            if source is not None:
                found[number] = source
    return found


Event = dict[str, Any]

_TITLES: dict[tuple[str, int], str] = {
    ("loader", 0): "input loader",
    ("compute", 0): "compute stream",
    ("side", 0): "side stream",
    ("communicator", 0): "communicator",
    ("communicator", 1): "communicator 2",
}
"""Tracks by resource and slot, from top to bottom; a rank only has those that it uses."""
_WAIT, _TRANSFER = "wait for last rank", "transfer"

_PLACES = {track: place for place, track in enumerate(_TITLES)}
_FIRST_THREAD, _THREADS = 1000, 10
"""Thread numbers of rank r start at 1000 + 10 r: Perfetto's main thread has the process's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """A process of the trace."""

    number: int
    spans: tuple[Span, ...]  # spans of the ranks that are shown
    timeline: Timeline


def _tracks(method: Method) -> tuple[list[Event], list[Event]]:
    used = {_thread(span): span for span in method.spans}
    names = []
    for thread, span in sorted(used.items()):
        title = _TITLES[span.resource, span.slot]
        name = f"rank {span.rank}: {title}"
        names.append(_metadata(method, "thread_name", thread, name=name))
        names.append(_metadata(method, "thread_sort_index", thread, sort_index=thread))
    return names, [event for span in method.spans for event in _slices(method, span)]


def _metadata(method: Method, kind: str, thread: int = 0, **args: object) -> Event:
    """Return an event that states a fact about a method or one of its threads."""
    return {"name": kind, "ph": "M", "ts": 0, "pid": method.number, "tid": thread, "args": args}


def _event(
    method: Method, span: Span, phase: str, start: int, *, name: str, category: str
) -> Event:
    """Return the fields of all events on a span's track; `start` is in nanoseconds."""
    return {
        "name": name,
        "cat": category,
        "ph": phase,
        "ts": microseconds(start),
        "pid": method.number,
        "tid": _thread(span),
    }


def nanoseconds(seconds: float) -> int:
    """Round seconds to whole nanoseconds."""
    return round(seconds * 1e9)


def microseconds(nanoseconds: int) -> float:
    """Return microseconds in the format's notation, with three decimals."""
    return nanoseconds / 1000


def last_entry(span: Span) -> int:
    """Return the time in nanoseconds at which the last rank entered a span's collective."""
    return nanoseconds(span.start_s + span.waited_s)


def _thread(span: Span) -> int:
    return _FIRST_THREAD + _THREADS * span.rank + _PLACES[span.resource, span.slot]


def _slices(method: Method, span: Span) -> Iterator[Event]:
    start, end = nanoseconds(span.start_s), nanoseconds(span.end_s)
    whole = _event(method, span, "X", start, name=span.name, category=span.kind)
    whole["dur"] = microseconds(end - start)
    args = _arguments(method, span)
    yield {**whole, "args": args} if args else whole
    last = last_entry(span)
    if span.collective is not None and last > start:
        for name, category, begin, until in (
            (_WAIT, "wait", start, last),
            (_TRANSFER, "transfer", last, end),
        ):
            part = _event(method, span, "X", begin, name=name, category=category)
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
    more = f" and {len(ranks) - 1} more" if len(ranks) > 1 else ""
    return f"{ranks[0]}{more}" if ranks else ""


MOST = 400  # most values of a counter

_COMPUTE, _EXCHANGE, _WAITING = "computing", "exchanging", "waiting"
_MESSAGES = "mean message rate"

_Interval = tuple[int, int, float]  # start and end in nanoseconds, and amount


def _counters(method: Method) -> Iterator[Event]:
    """Yield the counters of all ranks of a method, by counter and time."""
    spans = method.timeline.spans
    end = max(map(_leaves, spans))
    exchanges = [span for span in spans if span.collective is not None]
    computes = [span for span in spans if span.resource in {"compute", "side"}]
    found: list[tuple[str, str, Iterable[_Interval]]] = [
        (_COMPUTE, "ranks", _once_a_rank(computes, _leaves)),
        (_EXCHANGE, "ranks", _once_a_rank(exchanges, _leaves)),
        (_WAITING, "ranks", _once_a_rank(exchanges, last_entry)),
        (_MESSAGES, "Gbit/s", _rates(method, exchanges)),
    ]
    for name, unit, intervals in found:
        for time, value in _values([i for i in intervals if i[1] > i[0]], end):
            yield {
                "name": name,
                "ph": "C",
                "ts": microseconds(time),
                "pid": method.number,
                "tid": 0,
                "args": {unit: value},
            }


def _leaves(span: Span) -> int:
    return nanoseconds(span.end_s)


def _once_a_rank(spans: Iterable[Span], end_of: Callable[[Span], int]) -> Iterator[_Interval]:
    """Yield the times in which a rank does at least one of these."""
    by_rank: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for span in spans:
        by_rank[span.rank, span.ranks].append((nanoseconds(span.start_s), end_of(span)))
    for (_, ranks), of_rank in by_rank.items():
        first, last = 0, -1
        for start, end in sorted(of_rank):
            if start > last >= 0:
                yield first, last, float(ranks)
            if start > last:
                first = start
            last = max(last, end)
        yield first, last, float(ranks)


def _rates(method: Method, exchanges: Iterable[Span]) -> Iterator[_Interval]:
    of: dict[int, list[Span]] = defaultdict(list)
    for span in exchanges:
        if span.collective is not None:
            of[span.collective].append(span)
    finishes = np.unique([max(map(_leaves, spans)) for spans in of.values()])
    for number, spans in of.items():
        start = min(nanoseconds(span.start_s) for span in spans)
        in_front = finishes[finishes <= max(map(last_entry, spans))]
        start, end = max([start, *in_front[-1:].tolist()]), max(map(_leaves, spans))
        nbytes = method.timeline.collectives[number].messages
        yield start, end, 8 * nbytes / max(1, end - start)


def _values(intervals: list[_Interval], end: int) -> list[tuple[int, float]]:
    """Return the sum of the current amounts, with start times, until the end; empty if none."""
    if not intervals:
        return []
    start = np.array([interval[0] for interval in intervals])
    until = np.array([interval[1] for interval in intervals])
    much = np.array([interval[2] for interval in intervals])
    times, place = np.unique(np.concatenate([[0, end], start, until]), return_inverse=True)
    change = np.bincount(place[2:], weights=np.concatenate([much, -much]), minlength=len(times))
    level = np.cumsum(change)[:-1]
    if len(times) > MOST + 1:
        total = np.concatenate([[0.0], np.cumsum(level * np.diff(times))])
        parts = np.linspace(0, end, MOST + 1).round().astype(np.int64)
        level = np.diff(np.interp(parts, times, total)) / np.maximum(np.diff(parts), 1)
        times = parts
    told: list[tuple[int, float]] = []
    for time, value in zip(times.tolist(), [*np.round(level, 3).tolist(), 0.0], strict=True):
        if not told or told[-1][1] != value:
            told.append((time, value + 0.0))  # no negative zero
    return told
