"""What happened when in a sample iteration? A trace that Perfetto and chrome://tracing open.

A process is one method on the whole cluster, a track one resource of one rank, rank by rank: the
loader of its batches, the compute stream, a side stream, the communicator and its second slot
(`timeline/tracks.py`). Counters tell of all ranks together (`timeline/counters.py`), arrows for
whom a rank waited (`timeline/arrows.py`). All methods start at zero.

Perfetto shows processes by their number of slices, and the tracks of one by their number.

A trace of more than `LIMIT` spans keeps, for each method, the ranks of the first node and the rank
that ends last, and says so in `otherData`; counters are of all ranks all the same.

Source: "Trace Event Format" (Google, 2016); Perfetto, src/trace_processor/importers/json.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from gcsim.analysis.report.numbers import plural
from gcsim.analysis.report.selection import at_largest
from gcsim.analysis.timeline.arrows import arrows
from gcsim.analysis.timeline.counters import counters
from gcsim.analysis.timeline.tracks import Event, Method, metadata, tracks
from gcsim.scenarios.result import Result, Timeline

LIMIT = 60_000
"""Spans in one trace."""

HOW = (
    "Open this file in https://ui.perfetto.dev (it stays on your machine) or chrome://tracing. A "
    "process is one method on the whole cluster: open it to see, rank by rank (they are counted "
    "node by node), a track for each resource, and below them counters of all ranks. A click on a "
    "slice shows its arguments, and, on the transfer of a rank that waited for a slower one, an "
    "arrow from what that one was busy with."
)


def chrome_trace(result: Result) -> str:
    """The timelines of `result` as trace-event JSON, one event a line; deterministic."""
    largest = at_largest(result)[0]
    cut = sum(len(timeline.spans) for timeline in result.timelines) > LIMIT
    about = {
        "scenario": result.scenario.get("name", ""),
        "nodes": largest.nodes,
        "phase": {timeline.label: timeline.phase for timeline in result.timelines},
        "ranks": "all",
        "how": HOW,
    }
    if cut:
        about["ranks"] = (
            "of each compressor the first node's ranks and the one that ends last, because "
            f"there are more than {LIMIT} spans"
        )
    node_size = largest.workers // largest.nodes
    encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
    lines = [
        encode(event)
        for number, timeline in enumerate(result.timelines, start=1)
        for event in _events(timeline, number, node_size, cut=cut)
    ]
    head = json.dumps(about, ensure_ascii=False)
    body = ",\n".join(lines)
    return f'{{"displayTimeUnit":"ms","otherData":{head},"traceEvents":[\n{body}\n]}}\n'


def _events(timeline: Timeline, number: int, node_size: int, *, cut: bool) -> Iterator[Event]:
    """Of one method: names, then what happened, by time."""
    if not timeline.spans:
        return
    kept = _kept(timeline, node_size) if cut else {span.rank for span in timeline.spans}
    spans = tuple(span for span in timeline.spans if span.rank in kept)
    method = Method(number=number, spans=spans, timeline=timeline)
    ranks = plural(timeline.nodes * node_size, "rank")
    yield metadata(method, "process_name", name=f"{timeline.label}, {ranks}")
    yield metadata(method, "process_labels", labels=f"{timeline.phase} iteration")
    yield metadata(method, "process_sort_index", sort_index=number)
    names, slices = tracks(method)
    yield from names
    yield from sorted([*slices, *counters(method), *arrows(method)], key=_by_time)


def _kept(timeline: Timeline, node_size: int) -> set[int]:
    """The first node's ranks and the rank that ends last (ties: the lowest)."""
    last = max(timeline.spans, key=lambda span: (span.end_s, -span.rank))
    return {*range(node_size), last.rank}


def _by_time(event: dict[str, Any]) -> tuple[float, float]:
    """What lasts longer comes before what is within it, and before an arrow's end on it."""
    return event["ts"], -event.get("dur", 0)
