"""Small random plans of steps, ways to carry out their collectives, and what runs must share."""

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from gcsim.compressors.lockstep import CollectiveRecord
from gcsim.simulator.clock import Times
from gcsim.simulator.devices.training_time import ComputeTimes
from gcsim.simulator.steps.cycles import Steady
from gcsim.simulator.steps.events.even_cluster import on_even_cluster
from gcsim.simulator.steps.schedule import Schedule, run_of
from gcsim.simulator.steps.step_plan import BucketWork, CarryOut, Job, Run, StepPlan, WeightGather
from tests.simulator.steps.tick import PARTS, Tick


def compute(forward: int, *backward: int, tail: int = 0) -> ComputeTimes:
    return ComputeTimes(
        forward=forward, backward=sum(backward) + tail, parts=backward, provenance="test"
    )


def record(duration: int) -> CollectiveRecord:
    """All-reduce of `duration` bytes, which `fixed` carries out in as many picoseconds."""
    return CollectiveRecord(kind="all_reduce", sent=(duration,))


def bucket(before: int, *exchange: int, moments: int = 0) -> BucketWork:
    """Encode, then (collective, computation) pairs; the last computation is the decode."""
    durations, after = exchange[::2], exchange[1::2]
    jobs = [
        Job(kind="decode" if k == len(after) - 1 else "encode", name="after", duration=time)
        for k, time in enumerate(after)
    ]
    return BucketWork(
        before=(
            Job(kind="encode", name="moments", duration=moments),
            Job(kind="encode", name="encode", duration=before),
        ),
        collectives=tuple(map(record, durations)),
        after=tuple(jobs),
    )


def fixed(wanted: CollectiveRecord, starts: Times, server_time: int, key: int) -> Times:
    return np.full_like(starts, starts.max() + wanted.sent[0] + server_time)


def skewed(wanted: CollectiveRecord, starts: Times, server_time: int, key: int) -> Times:
    """Ranks leave at times that depend on their number and on the collective."""
    ranks = np.arange(len(starts), dtype=np.int64)
    late: Times = starts.max() + wanted.sent[0] + server_time + (ranks * wanted.sent[0]) % 3
    return late


def keyed(wanted: CollectiveRecord, starts: Times, server_time: int, key: int) -> Times:
    """Ranks leave at times that no other collective of the run has."""
    ranks = np.arange(len(starts), dtype=np.int64)
    late: Times = starts.max() + wanted.sent[0] + (ranks + key % 1009) % 4
    return late


def in_pairs(wanted: CollectiveRecord, starts: Times, server_time: int, key: int) -> Times:
    """The two devices of a node leave at different times, all nodes alike."""
    ranks = np.arange(len(starts), dtype=np.int64)
    late: Times = starts.max() + wanted.sent[0] + 2 * (ranks % 2)
    return late


def contrary(wanted: CollectiveRecord, starts: Times, server_time: int, key: int) -> Times:
    """Who entered last leaves first, so that nothing repeats after one iteration."""
    place = np.argsort(np.argsort(-starts, kind="stable"), kind="stable")
    late: Times = starts.max() + wanted.sent[0] + 3 * place
    return late


def first_come(plan: StepPlan, how: CarryOut = fixed, ranks: int = 1) -> StepPlan:
    """In the order of arrival where all ranks enter together."""

    def lengths(wanted: CollectiveRecord, server_time: int) -> tuple[int, int]:
        together = np.zeros(ranks, dtype=np.int64)
        return (int(how(wanted, together, server_time, 0).max()),) * 2

    return on_even_cluster(plan, Fraction(0), lengths)


durations = st.integers(0, 6)


@st.composite
def buckets(draw: st.DrawFn) -> list[BucketWork]:
    exchanges = st.lists(st.tuples(durations, durations), max_size=3).map(lambda p: sum(p, ()))
    return [
        bucket(draw(durations), *draw(exchanges), moments=draw(st.sampled_from([0, 2])))
        for _ in range(draw(st.integers(1, 4)))
    ]


@st.composite
def gathering(draw: st.DrawFn, works: Sequence[BucketWork]) -> list[BucketWork]:
    """The last of all collectives, where the last bucket has any, may be a gather of weights."""
    *others, last = works
    gathers = draw(st.booleans())
    if gathers and last.collectives:
        *before, gather = last.collectives
        weights = WeightGather(kind="all_gather", sent=gather.sent)
        last = replace(last, collectives=(*before, weights))
    return [*others, last]


@st.composite
def orders(draw: st.DrawFn, buckets: Sequence[BucketWork]) -> list[BucketWork]:
    """Any order in which a stream may serve."""
    most, ordered = 0, []
    for number, work in enumerate(buckets):
        behind = []
        for _ in work.collectives:
            most = max(most, number + 1 + draw(st.integers(0, 2)))
            behind.append(min(most, len(buckets) + 1))
        ordered.append(replace(work, behind=tuple(behind)))
    return ordered


@st.composite
def plans(draw: st.DrawFn) -> StepPlan:
    work = draw(buckets().flatmap(gathering))
    backward = draw(st.lists(durations, min_size=len(work), max_size=len(work)))
    return StepPlan(
        compute=compute(draw(durations), *backward, tail=draw(st.sampled_from([0, 3]))),
        buckets=tuple(draw(st.just(work) | orders(work))),
        side_stream=draw(st.booleans()),
        side_slowdown=draw(st.sampled_from([Fraction(1), Fraction(3, 2), Fraction(7, 3)])),
        optimizer=draw(st.sampled_from([0, 0, 4])),
        accumulation=draw(st.integers(1, 3)),
        input_batch=draw(st.sampled_from([0, 3, 9, 25])),
        prefetch=draw(st.integers(1, 3)),
    )


@st.composite
def rounds(draw: st.DrawFn, of: st.SearchStrategy[StepPlan] | None = None) -> list[StepPlan]:
    """Steps that follow each other, some several times, with one kind of loader."""
    first, *others = draw(st.lists(plans() if of is None else of, min_size=1, max_size=3))
    same_loader = [
        replace(plan, input_batch=first.input_batch, prefetch=first.prefetch) for plan in others
    ]
    runs = st.tuples(st.sampled_from([first, *same_loader]), st.integers(1, 3))
    return [
        plan for plan, times in draw(st.lists(runs, min_size=1, max_size=3)) for _ in range(times)
    ]


def in_turn(plans: Sequence[StepPlan]) -> Schedule:
    """Plans that follow each other, again and again."""
    return Schedule.of(plans, range(len(plans)))


@st.composite
def all_paces(draw: st.DrawFn, ranks: int, iterations: int) -> list[NDArray[np.float64] | None]:
    factors = st.lists(st.sampled_from([1.0, 1.5, 2.0, 0.9, 1.25]), min_size=ranks, max_size=ranks)
    one = st.one_of(
        st.none(), factors.map(np.array), factors.map(lambda f: np.array(f[:1] * ranks))
    )
    return draw(st.lists(one, min_size=iterations, max_size=iterations))


def same(run: Run, other: Run | Tick) -> None:
    assert np.array_equal(run.finish, other.finish)
    for part in PARTS:
        assert np.array_equal(run.parts[part], other.parts[part]), part


def extended(steady: Steady, iterations: int) -> Run:
    """The first iterations of those that go on for ever."""
    beyond = range(len(steady.iterations), iterations)
    again = [steady.cycle[place % steady.period] for place in range(len(beyond))]
    return run_of([*steady.iterations[:iterations], *again])
