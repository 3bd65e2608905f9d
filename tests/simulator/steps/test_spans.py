"""What spans tell beside their times: resources, slots, waits, and what the loader does.

Times themselves are those of the parts (`test_step.py`). Here: a collective's wait ends when its
last rank enters; slots are the fewest; the loader's work is the recurrence of
`events/input_loader.py`, written out again.
"""

from collections import defaultdict
from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gcsim.simulator.steps.breakdown import TimeBreakdown
from gcsim.simulator.steps.events.step import simulate
from gcsim.simulator.steps.step_plan import Run, Span, StepPlan
from tests.simulator.steps.random_plans import bucket, compute, fixed, plans, skewed


def of(run: Run, rank: int, resource: str) -> list[Span]:
    return [span for span in run.spans if (span.rank, span.resource) == (rank, resource)]


@given(plan=plans(), ranks=st.integers(1, 4), iterations=st.integers(1, 3))
def test_a_wait_ends_when_the_last_rank_enters(plan: StepPlan, ranks: int, iterations: int) -> None:
    slowdowns = [1.0 + 0.5 * (rank % 2) for rank in range(ranks)]
    run = simulate(plan, ranks=ranks, execute=skewed, iterations=iterations,
                   slowdown=lambda _: np.array(slowdowns), spans=True)  # fmt: skip
    entries: dict[tuple[int | None, int], list[int]] = defaultdict(list)
    for span in run.spans:
        assert (span.carried is not None) == (span.resource == "communicator")
        if span.carried is not None:
            assert span.slot == 0
            assert span.kind == span.carried.record.kind
            assert span.carried.record == plan.buckets[span.bucket or 0].collectives[
                span.carried.place
            ]  # fmt: skip
            entries[span.bucket, span.carried.place].append(span.start + span.carried.waited)
            assert 0 <= span.carried.waited <= span.end - span.start
    for known in entries.values():  # all ranks agree, and it is one of their entries
        assert len(set(known)) == 1
    begins = {(s.bucket, s.carried.place, s.start) for s in run.spans if s.carried is not None}
    for name, known in entries.items():
        # a collective that takes a rank no time has no span of that rank
        assert (*name, known[0]) in begins or len(known) < ranks


def test_jobs_know_their_bucket() -> None:
    plan = StepPlan(compute=compute(3, 4, 5, tail=2), buckets=(bucket(1, 6, 2), bucket(1, 6, 2)))
    run = simulate(plan, ranks=2, execute=fixed, spans=True)
    told = {(span.kind, span.bucket) for span in of(run, 0, "compute")}
    assert told == {
        ("forward", None), ("backward", 0), ("backward", 1), ("backward", None),
        ("encode", 0), ("encode", 1), ("decode", 0), ("decode", 1),
    }  # fmt: skip


def naive_loads(batch: int, prefetch: int, taken: list[int], count: int) -> list[tuple[int, int]]:
    """When the first batches are made, of which some have been taken; the others never are."""
    made: list[tuple[int, int]] = []
    for number in range(count):
        begin = made[-1][1] if made else 0
        if number >= prefetch:
            if number - prefetch >= len(taken):
                break
            begin = max(begin, taken[number - prefetch])
        made.append((begin, begin + batch))
    return made


@given(
    forward=st.integers(1, 9),
    batch=st.integers(1, 30),
    prefetch=st.integers(1, 4),
    accumulation=st.integers(1, 3),
    iterations=st.integers(1, 4),
)
def test_the_loader_makes_batches_as_the_recurrence_says(
    forward: int, batch: int, prefetch: int, accumulation: int, iterations: int
) -> None:
    plan = StepPlan(
        compute=compute(forward, 10), buckets=(bucket(0),), input_batch=batch, prefetch=prefetch,
        accumulation=accumulation,
    )  # fmt: skip
    taken: list[int] = []
    waits, now = [], 0
    for number in range(iterations * accumulation):
        begin = now
        made = naive_loads(batch, prefetch, taken, number + 1)[number][1]
        taken.append(max(now, made))
        waits.append((now, taken[-1]))
        now = taken[-1] + forward + 10
        if number == (iterations - 1) * accumulation:
            first = begin
    run = simulate(plan, ranks=1, execute=fixed, iterations=iterations, spans=True)
    loads = [(max(a, first), min(b, now)) for a, b in naive_loads(batch, prefetch, taken, 99)]
    found = of(run, 0, "loader")
    shown = [(span.start, span.end) for span in found if span.kind == "load"]
    assert shown == [(a, b) for a, b in loads if b > a]
    shown = [(span.start, span.end) for span in found if span.kind == "wait"]
    assert shown == [(a, b) for a, b in waits[-accumulation:] if b > a]
    for wait in (span for span in found if span.kind == "wait"):  # within the making of its batch
        assert any(
            load.start <= wait.start and wait.end == load.end
            for load in found
            if load.kind == "load"
        )


def test_without_a_loader_nothing_is_loaded() -> None:
    plan = StepPlan(compute=compute(3, 4), buckets=(bucket(1, 6, 2),))
    assert not of(simulate(plan, ranks=2, execute=fixed, spans=True), 0, "loader")
    loaded = replace(plan, input_batch=1)
    assert of(simulate(loaded, ranks=2, execute=fixed, spans=True), 0, "loader")


def test_a_collective_is_in_the_lowest_slot_that_is_free() -> None:
    record = bucket(1, 6, 2).collectives[0]
    breakdown = TimeBreakdown(begin=0)
    times = [(0, 5), (2, 9), (5, 7), (7, 8), (8, 8), (9, 12)]
    breakdown.network += [
        (record, place, 0, starts, starts, left) for place, (starts, left) in enumerate(times)
    ]
    slots = {span.bucket: span.slot for span in breakdown.spans(3)}
    assert slots == {0: 0, 1: 1, 2: 0, 3: 0, 5: 0}  # bucket 4's takes no time
