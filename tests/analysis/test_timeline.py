"""The trace keeps the rules of the format (`trace_rules.py`), and every span of the timelines.

Small timelines are written out by hand; in the fixture's, rank r is r us late, so that every
collective waits for rank 63.
"""

import json
from collections import defaultdict
from dataclasses import replace
from typing import Any

import pytest

from gcsim.analysis import timeline as module
from gcsim.analysis.timeline import chrome_trace
from gcsim.scenarios.result import Collective, Result, Span, Timeline
from gcsim.simulator.steps.breakdown import SPANS
from tests.analysis.trace_rules import bound, checked

Event = dict[str, Any]


@pytest.fixture(scope="module")
def few(result: Result) -> Result:
    """Two of the methods."""
    return replace(result, timelines=result.timelines[:2])


def with_spans(result: Result, *spans: Span, collectives: tuple[Collective, ...] = ()) -> Result:
    one = Timeline(
        compressor="none", label="dense", nodes=32, phase="step", spans=spans,
        collectives=collectives,
    )  # fmt: skip
    return replace(result, timelines=(one,))


def span(start: float, end: float, rank: int = 0, **told: Any) -> Span:
    """In microseconds; a job of the compute stream unless told."""
    about = {"resource": "compute", "kind": "backward", "name": f"{start}", **told}
    return Span(rank=rank, start_s=start / 1e6, end_s=end / 1e6, **about)


def exchanged(start: float, end: float, rank: int, waited: float = 0, **told: Any) -> Span:
    about = {"resource": "communicator", "kind": "all_reduce", "collective": 0, "bucket": 0, **told}
    return span(start, end, rank, waited_s=waited / 1e6, **about)


OF_TWO = Collective(
    algorithm="ring all-reduce", sent=(1000, 1000), received=(1000, 1000), moved=(2000, 2000),
    messages=2000, last=(1,),
)  # fmt: skip
# Rank 1 encodes until 30 us; rank 0 is in the all-reduce from 10 us on.
LATE = (
    span(0, 10, 0), exchanged(10, 50, 0, waited=20),
    span(0, 25, 1), span(25, 30, 1, kind="encode", name="encode, bucket 0"), exchanged(30, 48, 1),
)  # fmt: skip


def of_phase(events: list[Event], phase: str) -> list[Event]:
    return [event for event in events if event["ph"] == phase]


def track_names(events: list[Event]) -> dict[int, str]:
    named = [event for event in events if event["name"] == "thread_name"]
    return {event["tid"]: event["args"]["name"] for event in named}


def test_the_trace_keeps_the_rules(few: Result) -> None:
    one = Timeline(
        compressor="a", label="a", nodes=1, phase="step", spans=LATE, collectives=(OF_TWO,)
    )
    checked(chrome_trace(replace(few, timelines=(*few.timelines[:1], one, one))))


def test_every_span_is_a_slice_on_the_track_of_its_resource(few: Result) -> None:
    events = checked(chrome_trace(few))
    wanted = [
        (f"rank {span.rank}: {title}", span.kind, span.name, round(span.start_s * 1e9),
         round(span.end_s * 1e9))
        for timeline in few.timelines
        for span in timeline.spans
        if (title := {"compute": "compute stream", "side": "side stream"}.get(
            span.resource, span.resource))
    ]  # fmt: skip
    names = track_names(events)
    found = [
        (names[event["tid"]], event["cat"], event["name"], round(event["ts"] * 1e3),
         round((event["ts"] + event["dur"]) * 1e3))
        for event in of_phase(events, "X")
        if event["cat"] not in {"wait", "transfer"}
    ]  # fmt: skip
    assert sorted(found) == sorted(wanted)


def test_slices_that_follow_each_other_abut_on_whole_nanoseconds(result: Result) -> None:
    # 0.6 ns and 2.4 ns: with fractions the first would last from 1 to 3, the next begin at 2
    shown = with_spans(result, span(0.0006, 0.0024), span(0.0024, 0.0061), span(0.0061, 0.0063))
    slices = of_phase(checked(chrome_trace(shown)), "X")
    assert [(event["ts"], event["dur"]) for event in slices] == [
        (0.001, 0.001), (0.002, 0.004), (0.006, 0.0),
    ]  # fmt: skip


def test_a_process_is_a_method_and_its_tracks_are_the_resources_rank_by_rank(
    result: Result,
) -> None:
    shown = with_spans(
        result,
        exchanged(6, 9, 1, slot=1),
        exchanged(5, 9, 1),
        span(0, 5, 1),
        span(1, 2, 1, resource="side"),
        span(0, 5, 0),
        span(0, 3, 0, resource="loader", kind="load"),
        span(1, 3, 0, resource="loader", kind="wait"),
        collectives=(replace(OF_TWO, last=()),),
    )
    events = checked(chrome_trace(shown))
    (process,) = [event for event in events if event["name"] == "process_name"]
    assert process["args"]["name"] == "dense, 64 ranks"
    order = {e["tid"]: e["args"]["sort_index"] for e in events if e["name"] == "thread_sort_index"}
    names = track_names(events)
    assert sorted(order) == sorted(order, key=lambda thread: order[thread])
    assert [names[thread] for thread in sorted(names)] == [
        "rank 0: input loader", "rank 0: compute stream",
        "rank 1: compute stream", "rank 1: side stream", "rank 1: communicator",
        "rank 1: communicator 2",
    ]  # fmt: skip


def test_a_collective_tells_what_was_asked_and_what_became_of_it(result: Result) -> None:
    events = checked(chrome_trace(with_spans(result, *LATE, collectives=(OF_TWO,))))
    (of_first, of_last) = [e for e in of_phase(events, "X") if e["cat"] == "all_reduce"]
    assert of_first["args"] == {
        "bucket": 0,
        "collective": "all-reduce",
        "algorithm": "ring all-reduce",
        "sent_bytes": 1000,
        "received_bytes": 1000,
        "message_bytes": 2000,
        "waited_us": 20.0,
        "transfer_us": 20.0,
        "last_rank": "1",
    }
    assert (of_last["args"]["waited_us"], of_last["args"]["transfer_us"]) == (0.0, 18.0)


def test_a_rank_that_waited_shows_for_how_long_and_an_arrow_from_what_it_waited_for(
    result: Result,
) -> None:
    events = checked(chrome_trace(with_spans(result, *LATE, collectives=(OF_TWO,))))
    parts = [e for e in of_phase(events, "X") if e["cat"] in {"wait", "transfer"}]
    assert [(e["name"], e["ts"], e["dur"]) for e in parts] == [
        ("wait for last rank", 10.0, 20.0), ("transfer", 30.0, 20.0),
    ]  # fmt: skip
    (start,), (end,) = of_phase(events, "s"), of_phase(events, "f")
    source, target = bound(start, events), bound(end, events)
    assert source is not None
    assert target is not None
    assert (source["name"], target["name"]) == ("encode, bucket 0", "transfer")
    assert source["ts"] + source["dur"] == target["ts"]


def test_ranks_that_enter_together_wait_for_nobody(result: Result) -> None:
    spans = [exchanged(10, 30, rank) for rank in range(2)]
    both = replace(OF_TWO, last=(0, 1))
    events = checked(chrome_trace(with_spans(result, *spans, collectives=(both,))))
    assert not of_phase(events, "s")
    assert [e["cat"] for e in of_phase(events, "X")] == ["all_reduce"] * 2
    assert {e["args"]["last_rank"] for e in of_phase(events, "X")} == {"0 and 1 more"}


def test_every_arrow_comes_from_the_last_rank(few: Result) -> None:
    events = checked(chrome_trace(replace(few, timelines=few.timelines[:1])))
    names = track_names(events)
    starts, ends = of_phase(events, "s"), of_phase(events, "f")
    assert len(starts) == len(ends) == 3 * 63
    assert {names[event["tid"]].split(":")[0] for event in starts} == {"rank 63"}
    assert {names[event["tid"]] for event in ends} == {
        f"rank {rank}: communicator" for rank in range(63)
    }


def counter(events: list[Event], name: str) -> list[tuple[float, float]]:
    found = [event for event in of_phase(events, "C") if event["name"] == name]
    return [(event["ts"], *event["args"].values()) for event in found]


def test_counters_say_how_many_ranks_do_what(result: Result) -> None:
    events = checked(chrome_trace(with_spans(result, *LATE, collectives=(OF_TWO,))))
    assert counter(events, "computing") == [(0.0, 2.0), (10.0, 1.0), (30.0, 0.0)]
    assert counter(events, "exchanging") == [(0.0, 0.0), (10.0, 1.0), (30.0, 2.0), (48.0, 1.0),
                                             (50.0, 0.0)]  # fmt: skip
    assert counter(events, "waiting") == [(0.0, 0.0), (10.0, 1.0), (30.0, 0.0)]
    # 2000 bytes in 40 us: from the first entry to the last exit
    assert counter(events, "mean message rate") == [(0.0, 0.0), (10.0, 0.4), (50.0, 0.0)]


def test_a_rank_in_two_collectives_counts_once(result: Result) -> None:
    spans = (exchanged(10, 40, 0), exchanged(20, 50, 0, slot=1, collective=1))
    two = (replace(OF_TWO, last=(0,)),) * 2
    events = checked(chrome_trace(with_spans(result, *spans, collectives=two)))
    assert counter(events, "exchanging") == [(0.0, 0.0), (10.0, 1.0), (50.0, 0.0)]


def test_collectives_one_after_the_other_never_add_their_rates_up(result: Result) -> None:
    # rank 0 is in the second one from 40 us on, rank 1 leaves the first one at 48 us
    again = [exchanged(40, 70, 0, collective=1, waited=8), exchanged(48, 68, 1, collective=1)]
    spans = (*LATE[:1], exchanged(10, 40, 0, waited=20), *LATE[2:], *again)
    events = checked(chrome_trace(with_spans(result, *spans, collectives=(OF_TWO, OF_TWO))))
    assert counter(events, "mean message rate") == [
        (0.0, 0.0), (10.0, 0.421), (48.0, 0.727), (70.0, 0.0),
    ]  # fmt: skip


def test_counters_that_change_often_are_means(
    result: Result, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST", 4)
    spans = [span(10 * n, 10 * n + 4) for n in range(8)]
    events = checked(chrome_trace(with_spans(result, *spans, span(79, 80, rank=1))))
    # quarters of 80 us: busy for 8 us each, the last for one more
    assert counter(events, "computing") == [(0.0, 0.4), (60.0, 0.45), (80.0, 0.0)]


def test_a_large_trace_keeps_the_first_node_and_the_slowest_rank_and_says_so(
    few: Result, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = checked(chrome_trace(few))
    monkeypatch.setattr(module, "LIMIT", 1000)
    text = chrome_trace(few)
    events = checked(text)
    ranks = defaultdict(set)
    for event in events:
        if event["name"] == "thread_name":
            ranks[event["pid"]].add(event["args"]["name"].split(":")[0])
    assert list(ranks.values()) == [{"rank 0", "rank 1", "rank 63"}] * 2
    assert "more than 1000 spans" in json.loads(text)["otherData"]["ranks"]
    assert of_phase(events, "C") == of_phase(whole, "C")  # counters are of all ranks


def test_a_span_that_stands_for_equal_ranks_counts_as_often(
    result: Result, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert module.LIMIT == SPANS  # a timeline without all ranks is never shown as one of all
    monkeypatch.setattr(module, "LIMIT", 5)
    work = [(0, 10), (20, 50), (60, 65)]
    every = [span(*times, rank=rank) for rank in range(32) for times in work]
    one = [span(*times, rank=rank) for rank in (0,) for times in work]
    stands = [span(*times, rank=1, ranks=31) for times in work]
    whole, few = (chrome_trace(with_spans(result, *spans)) for spans in (every, one + stands))
    assert whole == few


def test_a_trace_without_the_last_rank_has_no_arrow_but_its_name(
    few: Result, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LIMIT", 1)
    shown = replace(few, timelines=tuple(
        replace(one, collectives=tuple(replace(c, last=(17,)) for c in one.collectives))
        for one in few.timelines
    ))  # fmt: skip
    events = checked(chrome_trace(shown))
    assert not of_phase(events, "s")
    assert {e["args"]["last_rank"] for e in of_phase(events, "X") if "args" in e
            and "last_rank" in e["args"]} == {"17"}  # fmt: skip


def test_a_small_trace_says_that_all_ranks_are_there_and_how_it_is_opened(few: Result) -> None:
    about = json.loads(chrome_trace(few))["otherData"]
    assert about["ranks"] == "all"
    assert about["phase"]["dense"] == "step"
    assert "ui.perfetto.dev" in about["how"]


def test_the_same_result_gives_the_same_text(few: Result) -> None:
    assert chrome_trace(few) == chrome_trace(few)


def test_no_timelines_give_an_empty_trace(result: Result) -> None:
    assert checked(chrome_trace(replace(result, timelines=()))) == []
    assert checked(chrome_trace(with_spans(result))) == []
