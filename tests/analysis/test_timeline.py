"""The trace keeps the rules of the trace-event format, and every span of the timelines.

Rules: "Trace Event Format" (Google, 2016): "X" events have ts and dur >= 0; events of one thread
nest or do not overlap; metadata events are "M" with the names that viewers know.
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from gcsim.analysis import timeline as module
from gcsim.analysis.timeline import chrome_trace
from gcsim.scenarios.result import Result, Span, Timeline

Event = dict[str, Any]


def events(result: Result) -> list[Event]:
    loaded: list[Event] = json.loads(chrome_trace(result))["traceEvents"]
    return loaded


def complete(result: Result) -> list[Event]:
    return [event for event in events(result) if event["ph"] == "X"]


def with_spans(result: Result, *spans: Span) -> Result:
    one = Timeline(compressor="none", label="dense", nodes=32, phase="step", spans=spans)
    return replace(result, timelines=(one,))


def span(start: float, end: float, rank: int = 0, resource: str = "network") -> Span:
    return Span(rank=rank, resource=resource, name=f"{start}", start_s=start, end_s=end)


def test_every_event_has_what_its_phase_requires(result: Result) -> None:
    for event in events(result):
        assert event["ph"] in ("X", "M")
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        assert event["ts"] >= 0
        if event["ph"] == "X":
            assert event["dur"] >= 0
            assert event["name"]
        else:
            assert event["name"] in {
                "process_name", "process_labels", "process_sort_index", "thread_name",
                "thread_sort_index",
            }  # fmt: skip
            assert event["args"]


def test_every_span_is_an_event_of_its_own_with_its_time_in_microseconds(result: Result) -> None:
    spans = [span for timeline in result.timelines for span in timeline.spans]
    found = complete(result)
    assert len(found) == len(spans)
    total = sum(span.end_s - span.start_s for span in spans)
    assert sum(event["dur"] for event in found) == pytest.approx(total * 1e6)
    ends = [event["ts"] + event["dur"] for event in found]
    assert max(ends) == pytest.approx(max(span.end_s for span in spans) * 1e6)


def test_totals_of_each_resource_agree_with_the_spans(result: Result) -> None:
    wanted: dict[str, float] = defaultdict(float)
    for timeline in result.timelines:
        for one in timeline.spans:
            wanted[one.resource] += (one.end_s - one.start_s) * 1e6
    found: dict[str, float] = defaultdict(float)
    for event in complete(result):
        found[event["cat"]] += event["dur"]
    assert dict(found) == pytest.approx(dict(wanted))


def test_events_of_a_thread_do_not_overlap(result: Result) -> None:
    threads: dict[tuple[int, int], list[Event]] = defaultdict(list)
    for event in complete(result):
        threads[event["pid"], event["tid"]].append(event)
    for of_thread in threads.values():
        for before, after in pairwise(sorted(of_thread, key=lambda event: event["ts"])):
            # viewers count whole nanoseconds, cutting off the rest of ts and of dur
            end = int(before["ts"] * 1000) + int(before["dur"] * 1000)
            assert end <= int(after["ts"] * 1000)


def test_overlapping_spans_of_a_resource_get_lanes(result: Result) -> None:
    shown = with_spans(result, span(0.0, 2.0), span(1.0, 3.0), span(2.0, 4.0), span(2.5, 5.0))
    names = {
        event["tid"]: event["args"]["name"]
        for event in events(shown)
        if event["name"] == "thread_name"
    }
    lanes = {event["name"]: names[event["tid"]] for event in complete(shown)}
    assert lanes == {"0.0": "network", "1.0": "network (2)", "2.0": "network", "2.5": "network (3)"}


def test_there_is_a_process_a_rank_and_a_thread_a_resource(result: Result) -> None:
    named = [event for event in events(result) if event["name"] == "process_name"]
    assert len(named) == len({event["pid"] for event in named}) == 12 * 64
    names = [event["args"]["name"] for event in named]
    assert names[:3] == ["dense: rank 0, node 0", "dense: rank 1, node 0", "dense: rank 2, node 1"]
    threads = [
        event["args"]["name"]
        for event in events(result)
        if event["name"] == "thread_name" and event["pid"] == named[0]["pid"]
    ]
    assert threads == ["compute", "encode", "network", "decode"]


def test_threads_are_sorted_from_compute_to_decode(result: Result) -> None:
    shown = with_spans(result, *(span(0, 1, resource=name) for name in ("decode", "compute")))
    found = events(shown)
    names = {e["tid"]: e["args"]["name"] for e in found if e["name"] == "thread_name"}
    order = {e["tid"]: e["args"]["sort_index"] for e in found if e["name"] == "thread_sort_index"}
    by_index = sorted(names, key=lambda thread: order[thread])
    assert [names[thread] for thread in by_index] == ["compute", "encode", "network", "decode"]


def test_input_stands_above_the_others_where_batches_are_loaded(result: Result) -> None:
    shown = with_spans(
        result,
        *(span(0, 1, resource=name) for name in ("compute", "input")),
        span(0, 1, rank=1, resource="compute"),
    )
    found = events(shown)
    order = {
        (e["pid"], e["tid"]): e["args"]["sort_index"]
        for e in found
        if e["name"] == "thread_sort_index"
    }
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in found if e["name"] == "thread_name"}
    ranks = {
        pid: [names[key] for key in sorted(order, key=lambda key: order[key]) if key[0] == pid]
        for pid in (1, 2)
    }
    assert ranks[1] == ["input", "compute", "encode", "network", "decode"]
    assert ranks[2] == ["compute", "encode", "network", "decode"]
    assert len(set(names)) == len(set(names.items())) == 9  # one track a (rank, resource)


def test_a_large_trace_keeps_the_first_node_and_the_slowest_rank_and_says_so(
    result: Result, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LIMIT", 1000)
    document = json.loads(chrome_trace(result))
    names = [
        event["args"]["name"]
        for event in document["traceEvents"]
        if event["name"] == "process_name"
    ]
    # the fixture's ranks start 1 us after each other: rank 63 ends last
    assert names[:3] == [
        "dense: rank 0, node 0",
        "dense: rank 1, node 0",
        "dense: rank 63, node 31",
    ]
    assert len(names) == 12 * 3
    assert "more than 1000 spans" in document["otherData"]["ranks"]


def test_a_small_trace_says_that_all_ranks_are_there(result: Result) -> None:
    document = json.loads(chrome_trace(result))
    assert document["otherData"]["ranks"] == "all"
    assert document["otherData"]["phase"]["dense"] == "step"


def test_the_same_result_gives_the_same_text(result: Result) -> None:
    assert chrome_trace(result) == chrome_trace(result)


def test_no_timelines_give_an_empty_trace(result: Result) -> None:
    assert json.loads(chrome_trace(replace(result, timelines=())))["traceEvents"] == []
    assert complete(with_spans(result)) == []
