"""What happened when in a sample iteration? A trace that Perfetto and chrome://tracing open.

A process is one rank under one compressor, a thread one resource of that rank: input (only where
batches are loaded), compute, encode, network, decode. Each span is a complete event ("X") with its
start and duration in microseconds; all compressors start at zero. Spans of one resource that
overlap (two collectives under way) get a lane each, as slices on one track must nest.

A trace of more than `LIMIT` spans keeps, for each compressor, the ranks of the first node and the
rank that ends last, and says so in `otherData`.

Source: "Trace Event Format" (Google, 2016), sections "Complete Events" and "Metadata Events".
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from gcsim.analysis.selection import at_largest
from gcsim.scenarios.result import Result, Span, Timeline

RESOURCES = ("compute", "encode", "network", "decode")
"""Threads that every process has, from top to bottom; others follow in the order of appearance."""
INPUT = "input"
"""A thread above them, where batches are loaded."""

LIMIT = 60_000
"""Spans in one trace: about 7 MB of JSON."""

_LANES = 100
"""Lanes that a resource may have: thread id = resource * _LANES + lane."""


def chrome_trace(result: Result) -> str:
    """The timelines of `result` as trace-event JSON, one event a line; deterministic."""
    cut = sum(len(timeline.spans) for timeline in result.timelines) > LIMIT
    shown = [
        (timeline, _kept(timeline, _node_size(result)) if cut else None)
        for timeline in result.timelines
    ]
    about = {
        "scenario": result.scenario.get("name", ""),
        "nodes": at_largest(result)[0].nodes,
        "phase": {timeline.label: timeline.phase for timeline in result.timelines},
        "ranks": "all",
    }
    if cut:
        about["ranks"] = (
            "of each compressor the first node's ranks and the one that ends last, because "
            f"there are more than {LIMIT} spans"
        )
    events = [
        json.dumps(event, ensure_ascii=False, separators=(",", ":"))
        for event in _events(shown, _node_size(result))
    ]
    head = json.dumps(about, ensure_ascii=False)
    body = ",\n".join(events)
    return f'{{"displayTimeUnit":"ms","otherData":{head},"traceEvents":[\n{body}\n]}}\n'


def _node_size(result: Result) -> int:
    largest = at_largest(result)[0]
    return largest.workers // largest.nodes


def _kept(timeline: Timeline, node_size: int) -> set[int]:
    """The first node's ranks and the rank that ends last (ties: the lowest)."""
    last = max(timeline.spans, key=lambda span: (span.end_s, -span.rank), default=None)
    return {*range(node_size), *([] if last is None else [last.rank])}


def _events(
    shown: Iterable[tuple[Timeline, set[int] | None]], node_size: int
) -> Iterator[dict[str, Any]]:
    process = 0
    for timeline, kept in shown:
        by_rank: dict[int, list[Span]] = {}
        for span in timeline.spans:
            if kept is None or span.rank in kept:
                by_rank.setdefault(span.rank, []).append(span)
        for rank in sorted(by_rank):
            process += 1
            name = f"{timeline.label}: rank {rank}, node {rank // node_size}"
            yield _metadata("process_name", process, name=name)
            yield _metadata("process_labels", process, labels=f"{timeline.phase} iteration")
            yield _metadata("process_sort_index", process, sort_index=process)
            yield from _threads(process, by_rank[rank])


def _threads(process: int, spans: list[Span]) -> Iterator[dict[str, Any]]:
    """One rank's threads from top to bottom, each with its events by start."""
    found = dict.fromkeys(span.resource for span in spans)
    resources = [*([INPUT] if INPUT in found else []), *RESOURCES]
    resources += [name for name in found if name not in resources]
    for number, resource in enumerate(resources, start=1):
        of_resource = [span for span in spans if span.resource == resource]
        for lane, lane_spans in enumerate(_lanes(of_resource) or [[]]):
            thread = number * _LANES + lane
            name = resource if lane == 0 else f"{resource} ({lane + 1})"
            yield _metadata("thread_name", process, thread, name=name)
            yield _metadata("thread_sort_index", process, thread, sort_index=thread)
            for span in lane_spans:
                yield _complete(process, thread, span)


def _lanes(spans: list[Span]) -> list[list[Span]]:
    """Spans distributed over as few lanes as leave no two on a lane overlapping."""
    lanes: list[list[Span]] = []
    for span in sorted(spans, key=lambda span: (span.start_s, span.end_s, span.name)):
        free = next((lane for lane in lanes if lane[-1].end_s <= span.start_s), None)
        if free is None:
            lanes.append([span])
        else:
            free.append(span)
    return lanes


def _complete(process: int, thread: int, span: Span) -> dict[str, Any]:
    # through whole picoseconds, so that ts + dur of a span is the ts of the one that follows it
    start, end = round(span.start_s * 1e12), round(span.end_s * 1e12)
    return {
        "name": span.name,
        "cat": span.resource,
        "ph": "X",
        "ts": start / 1e6,
        "dur": (end - start) / 1e6,
        "pid": process,
        "tid": thread,
    }


def _metadata(kind: str, process: int, thread: int = 0, **args: object) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "ts": 0, "pid": process, "tid": thread, "args": args}
