"""The rules of the trace-event format, as Perfetto's importer has them, for any trace.

"Trace Event Format" (Google, 2016), and Perfetto's src/trace_processor/importers/json and
importers/common/{slice,flow}_tracker.cc: times become whole nanoseconds, each rounded on its own; a
slice that overlaps an earlier one of its thread without lying in it is dropped
(`slice_drop_overlapping_complete_event`); a flow event belongs to the slice that began last on its
thread (`flow_no_enclosing_slice`), and needs a whole number (`flow_invalid_id`); a thread with the
number of its process is that one's main thread; metadata has the names that viewers know.
"""

import json
from collections import Counter, defaultdict
from typing import Any

Event = dict[str, Any]
Thread = tuple[int, int]

KNOWN = {
    "process_name", "process_labels", "process_sort_index", "thread_name", "thread_sort_index",
}  # fmt: skip


def checked(text: str) -> list[Event]:
    """The events of a trace that keeps all rules."""
    document = json.loads(text)
    assert set(document) == {"displayTimeUnit", "otherData", "traceEvents"}
    events: list[Event] = document["traceEvents"]
    for event in events:
        _keeps_its_form(event)
    _names(events)
    threads = _threads(events)
    for of_thread in threads.values():
        _nest(of_thread)
    _flows(events, threads)
    _counters(events)
    return events


def nanoseconds(microseconds: float) -> int:
    """As the importer reads a time."""
    return round(microseconds * 1000)


def _keeps_its_form(event: Event) -> None:
    assert event["ph"] in {"X", "M", "C", "s", "f"}
    assert isinstance(event["pid"], int)
    assert isinstance(event["tid"], int)
    assert event["tid"] != event["pid"]
    assert event["ts"] >= 0
    assert event["name"]
    for time in (event["ts"], event.get("dur", 0)):
        assert time >= 0
        assert time == nanoseconds(time) / 1000  # no digit that is rounded away
    assert ("dur" in event) == (event["ph"] == "X")
    if event["ph"] == "M":
        assert event["name"] in KNOWN
        assert event["args"]
    if event["ph"] in {"X", "s", "f"}:
        assert event["cat"]
    if event["ph"] == "f":
        assert event["bp"] == "e"


def _names(events: list[Event]) -> None:
    """Each process and each thread with slices is named once."""
    named = Counter((e["name"], e["pid"], e["tid"]) for e in events if e["ph"] == "M")
    assert set(named.values()) <= {1}
    for event in events:
        if event["ph"] != "M":
            assert ("process_name", event["pid"], 0) in named
        if event["ph"] == "X":
            assert ("thread_name", event["pid"], event["tid"]) in named


def _threads(events: list[Event]) -> dict[Thread, list[Event]]:
    found: dict[Thread, list[Event]] = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            found[event["pid"], event["tid"]].append(event)
    return found


def _nest(slices: list[Event]) -> None:
    """By start as they stand, and each within what it overlaps."""
    open_until: list[int] = []
    before = 0
    for event in slices:
        start = nanoseconds(event["ts"])
        end = start + nanoseconds(event["dur"])
        assert start >= before
        while open_until and open_until[-1] <= start:
            open_until.pop()
        assert not open_until or end <= open_until[-1]
        open_until.append(end)
        before = start


def _flows(events: list[Event], threads: dict[Thread, list[Event]]) -> None:
    """A start and an end each, in this order, each within the slice that it would be bound to."""
    ends: dict[int, list[Event]] = defaultdict(list)
    for event in events:
        if event["ph"] in {"s", "f"}:
            assert isinstance(event["id"], int)
            ends[event["id"]].append(event)
    for pair in ends.values():
        end, start = sorted(pair, key=lambda event: event["ph"])  # two of each
        assert (start["ph"], end["ph"]) == ("s", "f")
        assert (start["name"], start["cat"]) == (end["name"], end["cat"])
        assert start["ts"] <= end["ts"]
        for event in (start, end):
            assert bound(event, events) is not None


def bound(flow: Event, events: list[Event]) -> Event | None:
    """The slice that began last on a flow event's thread, if the event is within it: at equal
    times those that stand before it in the file."""
    last = None
    for event in events:
        if event is flow:
            break
        if event["ph"] == "X" and (event["pid"], event["tid"]) == (flow["pid"], flow["tid"]):
            last = event
    if last is None or last["ts"] + last["dur"] < flow["ts"] - 1e-9:
        return None
    return last


def _counters(events: list[Event]) -> None:
    """Numbers, by time, which end at zero."""
    found: dict[tuple[int, str], list[Event]] = defaultdict(list)
    for event in events:
        if event["ph"] == "C":
            found[event["pid"], event["name"]].append(event)
    for values in found.values():
        times = [event["ts"] for event in values]
        assert times == sorted(set(times))
        for event in values:
            ((_, value),) = event["args"].items()
            assert isinstance(value, float)
            assert value >= 0
        assert list(values[-1]["args"].values()) == [0.0]
