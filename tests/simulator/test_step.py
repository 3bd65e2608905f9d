"""Does the simulated iteration do what its protocol says?

The oracle advances one picosecond at a time, rank by rank, without SimPy and without classes of
ranks; it is written from the rules of `step.py`, `communicator.py` and `instant.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import pytest
import simpy
from hypothesis import given, settings
from hypothesis import strategies as st

from gcsim.compressors.lockstep import CollectiveRecord
from gcsim.errors import InternalError
from gcsim.simulator.clock import Times
from gcsim.simulator.communicator import Communicator
from gcsim.simulator.step import BucketWork, IterationTimes, Job, simulate_iteration
from gcsim.simulator.training_time import ComputeTimes


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


def fixed(wanted: CollectiveRecord, entry: Times, server_time: int) -> Times:
    return np.full_like(entry, entry.max() + wanted.sent[0] + server_time)


def skewed(wanted: CollectiveRecord, entry: Times, server_time: int) -> Times:
    """Ranks leave at times that depend on their number and on the collective."""
    ranks = np.arange(len(entry), dtype=np.int64)
    late: Times = entry.max() + wanted.sent[0] + (ranks * wanted.sent[0]) % 3
    return late


def in_pairs(wanted: CollectiveRecord, entry: Times, server_time: int) -> Times:
    """The two devices of a node leave at different times, all nodes alike."""
    ranks = np.arange(len(entry), dtype=np.int64)
    late: Times = entry.max() + wanted.sent[0] + 2 * (ranks % 2)
    return late


def parts(times: IterationTimes) -> tuple[int, ...]:
    return (times.forward, times.backward, times.encode, times.exposed, times.decode)


def test_one_bucket_is_a_chain() -> None:
    times = simulate_iteration(
        compute(10, 20), [bucket(3, 100, 7, moments=2)], ranks=4, carry_out=fixed
    )
    assert parts(times) == (10, 20, 5, 100, 7)
    assert (times.iteration, times.communication) == (142, 100)


def test_a_collective_hides_behind_the_rest_of_the_backward_pass() -> None:
    # ready at 10 + 20 + 1 = 31 and 31 + 30 + 1 = 62; bucket 0 returns at 56 while the stream is
    # busy until 62 and is decoded until 64; bucket 1 runs from 62 to 72 and is decoded until 74
    work = [bucket(1, 25, 2), bucket(1, 10, 2)]
    times = simulate_iteration(compute(10, 20, 30), work, ranks=2, carry_out=fixed)
    assert parts(times) == (10, 50, 2, 8, 4)
    assert (times.iteration, times.communication) == (74, 35)


def test_encoding_delays_every_later_bucket() -> None:
    # ready_k = t_k + sum over j <= k of encode_j, as long as nothing returns before
    work = [bucket(5, 1000, 0) for _ in range(3)]
    entries: list[int] = []

    def watch(wanted: CollectiveRecord, entry: Times, server_time: int) -> Times:
        entries.append(int(entry.max()))
        return fixed(wanted, entry, server_time)

    simulate_iteration(compute(100, 10, 20, 30), work, ranks=1, carry_out=watch)
    ready = [100 + 10 + 5, 100 + 30 + 10, 100 + 60 + 15]
    assert entries == [ready[0], ready[0] + 1000, ready[0] + 2000]
    alone = simulate_iteration(
        compute(100, 10, 20, 30), [bucket(5), bucket(5), work[2]], ranks=1, carry_out=watch
    )
    assert entries[-1] == ready[2]
    assert alone.iteration == ready[2] + 1000


def test_a_second_collective_queues_behind_what_was_asked_for_before() -> None:
    # Bucket 0 asks at 10, returns at 20; bucket 1 asks at 20, while the middle computation of
    # bucket 0 takes until 25: its second collective waits for bucket 1's to return at 120.
    order: list[int] = []

    def watch(wanted: CollectiveRecord, entry: Times, server_time: int) -> Times:
        order.append(wanted.sent[0])
        return fixed(wanted, entry, server_time)

    work = [bucket(0, 10, 5, 30, 1), bucket(0, 100, 1)]
    times = simulate_iteration(compute(0, 10, 10), work, ranks=3, carry_out=watch)
    assert order == [10, 100, 30]
    assert times.iteration == 20 + 100 + 30 + 1
    assert (times.encode, times.decode) == (5, 2)


def test_a_decode_queues_behind_the_piece_under_way_and_before_the_next() -> None:
    # bucket 0 returns at 15, in the middle of the backward pass to bucket 1 (10 to 30), and is
    # decoded from 30 to 37, before the backward pass to bucket 2
    work = [bucket(0, 5, 7), bucket(0), bucket(0)]
    times = simulate_iteration(compute(0, 10, 20, 40), work, ranks=1, carry_out=fixed, spans=True)
    spans = [(span.name, span.start, span.end) for span in times.spans]
    # bucket 1's piece ends at 30 at the same instant as the thread issues bucket 2's; the decode
    # arrived at 15 and goes first
    assert ("after", 30, 37) in spans
    assert ("backward, bucket 2", 37, 77) in spans


def test_local_steps_neither_communicate_nor_wait() -> None:
    def never(wanted: CollectiveRecord, entry: Times, server_time: int) -> Times:
        raise AssertionError("a local step has no collectives")

    times = simulate_iteration(
        compute(10, 20, 30), [bucket(3), bucket(4)], ranks=8, carry_out=never
    )
    assert parts(times) == (10, 50, 7, 0, 0)
    assert times.communication == 0


def test_work_after_the_last_bucket_counts_as_backward() -> None:
    times = simulate_iteration(
        compute(10, 20, tail=40), [bucket(0, 15, 5)], ranks=2, carry_out=fixed
    )
    # bucket 0 returns at 45, the rest of the pass ends at 70, decode at 75: nothing exposed
    assert parts(times) == (10, 60, 0, 0, 5)


class Tick:
    """The oracle: everything that one iteration does, one picosecond at a time."""

    def __init__(
        self,
        times: ComputeTimes,
        work: Sequence[BucketWork],
        ranks: int,
        carry_out: Callable[[CollectiveRecord, Times, int], Times],
    ) -> None:
        self.work, self.ranks, self.carry_out = work, ranks, carry_out
        self.thread = [
            [times.forward]
            + [
                b + sum(j.duration for j in w.before)
                for b, w in zip(times.parts, work, strict=True)
            ]
            + [times.rest]
            for _ in range(ranks)
        ]
        self.place = [-1] * ranks
        self.running: list[tuple[int, tuple[int, int, int]] | None] = [None] * ranks
        self.waiting: list[list[tuple[int, tuple[int, int, int], int]]] = [[] for _ in range(ranks)]
        self.asked: dict[tuple[int, int], dict[int, int]] = {}
        self.new: set[tuple[int, int]] = set()
        self.queue: list[tuple[int, int]] = []
        self.leaving: list[tuple[int, int, int, int]] = []
        self.free = [0] * ranks
        self.last = [0] * ranks
        self.busy = [0] * ranks
        self.under_way = [0] * ranks
        self.now = 0
        for rank in range(ranks):
            self.go_on(rank)
        while self.alive():
            self.instant()
            self.now += 1

    def alive(self) -> bool:
        return bool(
            any(self.running) or any(self.waiting) or self.leaving or self.queue or self.new
        )

    def go_on(self, rank: int) -> None:
        """The thread has finished a piece, or begins."""
        self.place[rank] += 1
        at = self.place[rank]
        self.last[rank] = self.now
        if 2 <= at <= len(self.work) + 1 and self.work[at - 2].collectives:
            self.ask(rank, at - 2, 0)
        if at < len(self.thread[rank]):
            if self.thread[rank][at]:
                self.waiting[rank].append((self.now, (0, 0, 0), self.thread[rank][at]))
            else:
                self.go_on(rank)

    def ask(self, rank: int, number: int, index: int) -> None:
        if (number, index) not in self.asked:
            self.asked[number, index] = {}
            self.new.add((number, index))
        self.asked[number, index][rank] = self.now

    def computed(self, rank: int, number: int, index: int) -> None:
        self.last[rank] = self.now
        if index + 1 < len(self.work[number].collectives):
            self.ask(rank, number, index + 1)

    def instant(self) -> None:
        while True:
            for rank, job in enumerate(self.running):
                if job is not None and job[0] == self.now:
                    self.running[rank] = None
                    kind, number, index = job[1]
                    if kind == 0:
                        self.go_on(rank)
                    else:
                        self.computed(rank, number, index)
            for leave in [item for item in self.leaving if item[0] == self.now]:
                self.leaving.remove(leave)
                _, rank, number, index = leave
                duration = self.work[number].after[index].duration
                if duration:
                    self.waiting[rank].append((self.now, (1, number, index), duration))
                else:
                    self.computed(rank, number, index)
            if not self.settle():
                break
        for rank in range(self.ranks):
            if self.running[rank] is None and self.waiting[rank]:
                first = min(self.waiting[rank])
                self.waiting[rank].remove(first)
                self.running[rank] = (self.now + first[2], first[1])
                self.busy[rank] += first[2]

    def settle(self) -> bool:
        self.queue += sorted(self.new)
        self.new.clear()
        settled = False
        while self.queue and len(self.asked[self.queue[0]]) == self.ranks:
            settled = True
            number, index = self.queue.pop(0)
            entry = [max(self.asked[number, index][r], self.free[r]) for r in range(self.ranks)]
            exits = self.carry_out(
                self.work[number].collectives[index], np.array(entry, dtype=np.int64), 0
            ).tolist()
            for rank in range(self.ranks):
                self.leaving.append((exits[rank], rank, number, index))
                self.under_way[rank] += exits[rank] - entry[rank]
            self.free = exits
        return settled


durations = st.integers(0, 6)


@st.composite
def iterations(draw: st.DrawFn) -> tuple[ComputeTimes, list[BucketWork]]:
    count = draw(st.integers(1, 4))
    work = [
        bucket(
            draw(durations),
            *draw(st.lists(st.tuples(durations, durations), max_size=3).map(lambda p: sum(p, ()))),
            moments=draw(st.sampled_from([0, 2])),
        )
        for _ in range(count)
    ]
    backward = draw(st.lists(durations, min_size=count, max_size=count))
    return compute(draw(durations), *backward, tail=draw(st.sampled_from([0, 3]))), work


@given(
    iteration=iterations(), ranks=st.integers(1, 5), how=st.sampled_from([fixed, skewed, in_pairs])
)
@settings(max_examples=400, deadline=None)
def test_any_small_iteration_is_the_tick_by_tick_simulation(
    iteration: tuple[ComputeTimes, list[BucketWork]],
    ranks: int,
    how: Callable[[CollectiveRecord, Times, int], Times],
) -> None:
    times, work = iteration
    oracle = Tick(times, work, ranks, how)
    slowest = max(range(ranks), key=lambda rank: (oracle.last[rank], -rank))
    collapsed = simulate_iteration(times, work, ranks=ranks, carry_out=how, spans=True)
    assert collapsed.iteration == oracle.last[slowest]
    assert collapsed.rank == slowest
    assert collapsed.exposed == oracle.last[slowest] - oracle.busy[slowest]
    assert collapsed.communication == oracle.under_way[slowest]
    assert collapsed.iteration == sum(parts(collapsed))
    # Simulating ranks in classes changes nothing, to the last span.
    assert collapsed == simulate_iteration(
        times, work, ranks=ranks, carry_out=how, spans=True, collapse=False
    )


@given(iteration=iterations(), ranks=st.integers(1, 4))
@settings(max_examples=100, deadline=None)
def test_spans_never_overlap_on_a_resource_and_add_up(
    iteration: tuple[ComputeTimes, list[BucketWork]], ranks: int
) -> None:
    times = simulate_iteration(
        iteration[0], iteration[1], ranks=ranks, carry_out=skewed, spans=True
    )
    spent: Counter[str] = Counter()
    for rank in range(ranks):
        for on_network in (True, False):
            spans = [
                span
                for span in times.spans
                if span.rank == rank and (span.resource == "network") == on_network
            ]
            assert all(first.end <= second.start for first, second in pairwise(spans))
            if rank == times.rank:
                for span in spans:
                    spent[span.resource] += span.end - span.start
    assert spent["compute"] == times.forward + times.backward
    assert spent["encode"] == times.encode
    assert spent["decode"] == times.decode
    assert spent["network"] == times.communication
    assert times.iteration == max((span.end for span in times.spans), default=0)


def test_a_rank_that_is_late_holds_up_the_others_but_not_their_backward_pass() -> None:
    # The first collective lets rank 1 leave 50 later. Its decode (5) is the only work left.
    def uneven(wanted: CollectiveRecord, entry: Times, server_time: int) -> Times:
        return np.array([entry.max() + 10, entry.max() + 60], dtype=np.int64)

    times = simulate_iteration(
        compute(0, 10, 20), [bucket(0, 1, 5), bucket(0)], ranks=2, carry_out=uneven
    )
    assert (times.rank, times.iteration, times.exposed) == (1, 75, 40)
    assert times.communication == 60


def test_a_collective_that_ends_before_its_last_entry_is_our_bug() -> None:
    def early(wanted: CollectiveRecord, entry: Times, server_time: int) -> Times:
        return entry - 1

    with pytest.raises(InternalError, match="in the past"):
        simulate_iteration(compute(0, 10), [bucket(0, 1, 5)], ranks=2, carry_out=early)


def test_a_deadlock_is_reported_with_who_waits_for_what(monkeypatch: pytest.MonkeyPatch) -> None:
    ask = Communicator.ask

    def forgetful(
        self: Communicator, member: int, name: tuple[int, int], record: CollectiveRecord, time: int
    ) -> simpy.Event:
        return simpy.Environment().event() if member == 1 else ask(self, member, name, record, time)

    monkeypatch.setattr(Communicator, "ask", forgetful)
    with pytest.raises(
        InternalError, match=r"deadlock at 10 ps.*bucket 0 collective 0 waits for 1"
    ):
        simulate_iteration(
            compute(0, 10), [bucket(0, 1, 5)], ranks=2, carry_out=fixed, collapse=False
        )


def test_a_missing_exchange_is_our_bug() -> None:
    with pytest.raises(InternalError, match="1 exchanges for 2 buckets"):
        simulate_iteration(compute(0, 1, 2), [bucket(0)], ranks=1, carry_out=fixed)
