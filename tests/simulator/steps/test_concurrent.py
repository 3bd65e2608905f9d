"""Do two collectives at a time do what their protocols say, message by message?

The oracle handles one message after the other from a heap, rank by rank; it is written from the
descriptions of the protocols and of the slots, without SimPy and without classes of ranks.
"""

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from gcsim.compressors.lockstep import CollectiveRecord
from gcsim.simulator.clock import Times
from gcsim.simulator.cluster import Cluster, Collectives
from gcsim.simulator.collectives.dispatch import execute
from gcsim.simulator.collectives.rings import gloo_allgather, gloo_allreduce
from gcsim.simulator.devices.training_time import ComputeTimes
from gcsim.simulator.host import Host, Sums
from gcsim.simulator.network.jitter import collective_key
from gcsim.simulator.network.links import Jitter, Link, SizeFactor
from gcsim.simulator.network.rate_trace import RateTrace
from gcsim.simulator.steps.events.communicator import Rings
from gcsim.simulator.steps.events.message_ring import (
    NOTHING,
    RingProgram,
    RingPrograms,
    in_messages,
)
from gcsim.simulator.steps.events.step import simulate
from gcsim.simulator.steps.step_plan import BucketWork, CarryOut, Job, Run, StepPlan
from tests.simulator import world
from tests.simulator.world import PS, gather

Program = Iterator[Callable[[], bool]]


def link(latency: int = 3, rate: int = 1, **more: Any) -> Link:
    """`rate` bytes a picosecond, `latency` picoseconds."""
    return world.link(rate * 10**12, latency * PS, **more)


@dataclass
class One:
    """A collective in the oracle, by rank."""

    program: RingProgram | None
    asked: list[int]
    sizes: list[list[int]]
    starts: dict[int, int] = field(default_factory=dict)
    finishes: dict[int, int] = field(default_factory=dict)
    gone: list[set[int]] = field(default_factory=list)
    come: list[set[int]] = field(default_factory=list)
    heard: list[set[int]] = field(default_factory=list)
    last: list[int] = field(default_factory=list)
    added: list[dict[int, int]] = field(default_factory=list)
    """By rank and message: until when the rank adds it."""


class Heap:
    """The oracle: `asked[c][r]` is when rank r asks for collective c."""

    def __init__(
        self,
        programs: list[RingProgram | None],
        asked: NDArray[np.int64],
        alone: Callable[[int, list[int]], list[int]],
        delay: Callable[[int, int, int], int] = lambda number, rank, message: 0,
    ) -> None:
        self.ranks, self.alone, self.delay = asked.shape[1], alone, delay
        self.all = [self.one(program, asked[k].tolist()) for k, program in enumerate(programs)]
        self.heap: list[tuple[int, int, Callable[[], None]]] = []
        self.ready: list[list[tuple[int, int, int]]] = [[] for _ in range(self.ranks)]
        self.link_free = [0] * self.ranks
        self.waiting: list[tuple[Program, Callable[[], bool]]] = []
        self.now = self.count = 0
        for time in set(asked.ravel().tolist()):
            self.at(time, lambda: None)
        while self.heap:
            self.instant()
        assert not self.waiting

    def one(self, program: RingProgram | None, asked: list[int]) -> One:
        ranks = range(self.ranks)
        sizes: list[list[int]] = [[] for _ in ranks]
        if program is not None:
            for place in ranks:
                rank = self.ranks - 1 - place if program.backwards else place
                for first, blocks in program.phases:
                    for block in range(blocks):
                        row = program.pieces[(place + first - block) % self.ranks]
                        sizes[rank] += row.tolist()
        gone, come, heard = [[set[int]() for _ in ranks] for _ in range(3)]
        added = [dict[int, int]() for _ in ranks]
        return One(program, asked, sizes, {}, {}, gone, come, heard, [0] * self.ranks, added)

    def at(self, time: int, action: Callable[[], None]) -> None:
        self.count += 1
        heapq.heappush(self.heap, (time, self.count, action))

    def instant(self) -> None:
        self.now = self.heap[0][0]
        while True:
            while self.heap and self.heap[0][0] == self.now:
                heapq.heappop(self.heap)[2]()
                self.scripts()
            if self.enter_all():
                self.scripts()
                continue
            if not self.links():
                return

    def scripts(self) -> None:
        moved = True
        while moved:
            moved = False
            waiting, self.waiting = self.waiting, []
            for script, ready in waiting:
                if ready():
                    moved = True
                    for wanted in script:
                        self.waiting.append((script, wanted))
                        break
                else:
                    self.waiting.append((script, ready))

    def enter_all(self) -> bool:
        """Queue order is that of the list, since all ask in this order."""
        moved = False
        for number, one in enumerate(self.all):
            for rank in range(self.ranks):
                front = self.all[:number]
                inside = [other for other in front if rank not in other.finishes]
                if (
                    rank in one.starts
                    or one.asked[rank] > self.now
                    or any(rank not in other.starts for other in front)
                    or len(inside) > 1
                    or (inside and (one.program is None or inside[0].program is None))
                ):
                    continue
                moved = True
                one.starts[rank] = self.now
                if one.program is not None:
                    self.waiting.append((self.work(number, rank), lambda: True))
                elif len(one.starts) == self.ranks:
                    starts = [one.starts[r] for r in range(self.ranks)]
                    for r, left in enumerate(self.alone(number, starts)):
                        self.at(left, partial(one.finishes.__setitem__, r, left))
        return moved

    def work(self, number: int, rank: int) -> Program:
        """What a rank does in a ring, one thing after the other."""
        one = self.all[number]
        program = one.program
        assert program is not None
        if program.before is not None:
            yield self.sleep(int(program.before[rank]))
        before = self.neighbours(program, rank)[1]
        if not program.announced:
            self.waiting.append((self.adder(one, rank, before), lambda: True))
        flying: list[int] = []
        blocks = [blocks for _, blocks in program.phases]
        message = 0
        for phase in blocks:
            for _ in range(phase * program.pieces.shape[1]):
                if len(flying) == program.in_flight:
                    yield from self.wait(one, rank, flying.pop(0), before)
                if program.announced:
                    hop = self.hop(program, before)
                    self.at(self.now + hop.latency_for(0), partial(one.heard[before].add, message))
                flying.append(message)
                if one.sizes[rank][message] != NOTHING:
                    self.waiting.append((self.send(number, rank, message), lambda: True))
                message += 1
            while flying:
                yield from self.wait(one, rank, flying.pop(0), before)
        if program.after is not None:
            yield self.sleep(int(program.after[rank]))
        one.finishes[rank] = self.now
        self.at(self.now, lambda: None)

    def sleep(self, duration: int) -> Callable[[], bool]:
        until = self.now + duration
        self.at(until, lambda: None)
        return lambda: self.now >= until

    def neighbours(self, program: RingProgram, rank: int) -> tuple[int, int]:
        step = -1 if program.backwards else 1
        return (rank + step) % self.ranks, (rank - step) % self.ranks

    def hop(self, program: RingProgram, rank: int) -> Link:
        return program.links[self.ranks - 1 - rank if program.backwards else rank]

    def wait(self, one: One, rank: int, message: int, before: int) -> Program:
        """First for what comes: Gloo adds it then and there, the textbook's ring has an adder."""
        assert one.program is not None
        if one.program.announced:
            yield from self.add(one, rank, message, before)
        else:
            yield lambda: one.added[rank].get(message, self.now + 1) <= self.now
        yield lambda: message in one.gone[rank] or one.sizes[rank][message] == NOTHING

    def adder(self, one: One, rank: int, before: int) -> Program:
        """Adds what comes, one message after the other, whatever the rank sends."""
        for message in range(len(one.sizes[before])):
            yield from self.add(one, rank, message, before)

    def add(self, one: One, rank: int, message: int, before: int) -> Program:
        nbytes, program = one.sizes[before][message], one.program
        assert program is not None
        yield lambda: message in one.come[rank] or nbytes == NOTHING
        if nbytes != NOTHING and message < (self.ranks - 1) * program.pieces.shape[1]:
            yield self.sleep(round(program.gamma * nbytes * 10**12))
        one.added[rank][message] = self.now

    def send(self, number: int, rank: int, message: int) -> Program:
        one = self.all[number]
        assert one.program is not None
        if one.program.announced:
            yield lambda: message in one.heard[rank]
        self.ready[rank].append((self.now, number, message))

    def links(self) -> bool:
        moved = False
        for rank, ready in enumerate(self.ready):
            if not ready or self.link_free[rank] > self.now:
                continue
            moved = True
            first = min(ready)
            ready.remove(first)
            _, number, message = first
            one = self.all[number]
            assert one.program is not None
            hop, nbytes = self.hop(one.program, rank), one.sizes[rank][message]
            left = hop.departure(self.now, nbytes)
            late = self.delay(number, rank, message)
            one.last[rank] = max(one.last[rank], left + hop.latency_for(nbytes) + late)
            after, _ = self.neighbours(one.program, rank)
            self.link_free[rank] = left
            self.at(left, partial(one.gone[rank].add, message))
            self.at(one.last[rank], partial(one.come[after].add, message))
        return moved


def all_reduce(nbytes: int, element: int = 1) -> CollectiveRecord:
    return CollectiveRecord(kind="all_reduce", sent=(nbytes,) * 4, element=element)


def plan_of(records: list[CollectiveRecord], gaps: list[int]) -> StepPlan:
    """Collective k is asked for when gaps 0 to k are over, at each rank's pace."""
    nothing = Job(kind="encode", name="encode", duration=0)
    return StepPlan(
        compute=ComputeTimes(forward=0, backward=sum(gaps), parts=tuple(gaps), provenance="test"),
        buckets=tuple(
            BucketWork(before=(nothing,), collectives=(record,), after=(nothing,))
            for record in records
        ),
        slots=2,
    )


def asked(gaps: list[int], slowdowns: list[float]) -> NDArray[np.int64]:
    """When each rank asks for each collective."""
    return np.array(
        [np.cumsum([round(gap * slowdown) for gap in gaps]) for slowdown in slowdowns],
        dtype=np.int64,
    ).T


def fixed(record: CollectiveRecord, starts: Times, server_time: int, key: int) -> Times:
    return np.full_like(starts, starts.max() + sum(record.sent) % 7)


def run(
    plan: StepPlan,
    rings: Rings,
    *,
    ranks: int,
    slowdowns: list[float] | None = None,
    how: CarryOut = fixed,
    collapse: bool = True,
    iterations: int = 1,
) -> Run:
    return simulate(
        plan,
        ranks=ranks,
        execute=how,
        rings=rings,
        slowdown=lambda _: None if slowdowns is None else np.array(slowdowns),
        collapse=collapse,
        iterations=iterations,
        spans=True,
    )


def finishes(result: Run, number: int, ranks: int) -> list[tuple[int, int]]:
    """(entry, exit) of each rank; nobody appears whose collective took no time."""
    found = {
        span.rank: (span.start, span.end)
        for span in result.spans
        if span.resource == "communicator" and span.name.endswith(f"bucket {number}")
    }
    return [found[rank] for rank in range(ranks)]


@st.composite
def programs(draw: st.DrawFn, links: list[Link]) -> RingProgram | None:
    """Of any ring collective."""
    ranks = len(links)
    sizes = st.lists(st.integers(1, 9), min_size=ranks, max_size=ranks)
    match draw(st.sampled_from(["alone", "reduce", "gather", "gloo reduce", "gloo gather"])):
        case "alone":
            return None
        case "gloo reduce":
            program = in_messages(gloo_allreduce.program(draw(st.integers(1, 40)), ranks), links)
        case "gloo gather":
            equal = draw(st.integers(1, 9))
            blocks = draw(st.one_of(sizes, st.just([equal] * ranks)))
            program = in_messages(gloo_allgather.program(blocks), links)
        case kind:
            steps = (ranks - 1) * (2 if kind == "reduce" else 1)
            program = RingProgram(
                pieces=np.array(draw(sizes))[:, None],
                phases=((0, steps),),
                in_flight=1,
                announced=False,
                links=tuple(links),
            )
    gamma = Fraction(draw(st.sampled_from([0, 0, 1, 4, 13])), 2 * 10**12)  # also half picoseconds
    program = replace(program, gamma=gamma)
    if draw(st.booleans()):
        copies = np.array(draw(sizes), dtype=np.int64)
        program = replace(program, before=copies, after=copies[::-1].copy())
    return program


@given(data=st.data(), ranks=st.integers(2, 5), count=st.integers(1, 4))
def test_any_collectives_are_the_message_by_message_simulation(
    data: st.DataObject, ranks: int, count: int
) -> None:
    tick = Fraction(1, 10**12)  # no message takes no time, so that each shows
    kinds = [link(3), link(1, 2, overhead=tick), link(10), link(7, overhead=2 * tick)]
    some = data.draw(st.lists(st.sampled_from(kinds), min_size=ranks, max_size=ranks))
    links = data.draw(st.sampled_from([some, [kinds[0]] * ranks]))
    chosen = [data.draw(programs(links)) for _ in range(count)]
    gaps = data.draw(st.lists(st.integers(0, 60), min_size=count, max_size=count))
    factor = st.sampled_from([1.0, 1.0, 2.0, 0.5])
    slowdowns = data.draw(st.lists(factor, min_size=ranks, max_size=ranks))
    records = [gather(number + 1) for number in range(count)]
    of = dict(zip(records, chosen, strict=True))

    def alone(number: int, starts: list[int]) -> list[int]:
        late: list[int] = fixed(records[number], np.array(starts), 0, 0).tolist()
        return late

    oracle = Heap(chosen, asked(gaps, slowdowns), alone)
    plan = plan_of(records, gaps)
    few, many = (
        run(plan, of.__getitem__, ranks=ranks, slowdowns=slowdowns, collapse=collapse)
        for collapse in (True, False)
    )
    for number, one in enumerate(oracle.all):
        expected = [(one.starts[rank], one.finishes[rank]) for rank in range(ranks)]
        assert finishes(few, number, ranks) == expected
    assert few.spans == many.spans
    assert np.array_equal(few.finish, many.finish)


def cluster(nodes: int, devices: int = 1, **more: Any) -> Cluster:
    usual = {"network": link(50), "intra_node": link(4, 3)}
    return world.cluster(nodes, devices, **usual | more)


CALLS = Host(
    dispatch=Fraction(77, 10**12),
    per_copied_byte=Fraction(1, 10**12),
    per_received_byte=Fraction(5, 2 * 10**12),
)
"""What comes after the messages, and after each segment."""
GLOO = Collectives(transport="gloo")


@given(
    sizes=st.lists(st.integers(1, 4000), min_size=1, max_size=5),
    kind=st.sampled_from(["all_reduce", "all_gather"]),
    element=st.sampled_from([1, 4]),
    nodes=st.integers(1, 6),
    devices=st.integers(1, 3),
    collectives=st.sampled_from([Collectives(), GLOO, replace(GLOO, all_reduce="ring")]),
    sums=st.sampled_from(
        [Sums(), Sums(float32=Fraction(10**12)), Sums(float32=Fraction(3 * 10**11))]
    ),
    host=st.sampled_from([None, CALLS]),
    data=st.data(),
)
def test_a_collective_on_its_own_is_what_its_kernel_says(
    sizes: list[int],
    kind: str,
    element: int,
    nodes: int,
    devices: int,
    collectives: Collectives,
    sums: Sums | None,
    host: Host | None,
    data: st.DataObject,
) -> None:
    chosen = cluster(nodes, devices, collectives=collectives, sums=sums, host=host)
    ranks = chosen.workers
    record = all_reduce(sizes[0], element) if kind == "all_reduce" else gather(*sizes)
    factor = st.sampled_from([1.0, 1.5, 3.0, 0.25])
    slowdowns = data.draw(
        st.one_of(
            st.just([1.0] * ranks),
            st.just([1.0 + k % devices for k in range(ranks)]),
            st.lists(factor, min_size=ranks, max_size=ranks),
        )
    )
    program = RingPrograms(chosen)(record)
    # One after the other, each when the one before is over.
    gaps = [500, 10**9]
    expected = [execute(record, starts, chosen).tolist() for starts in asked(gaps, slowdowns)]
    result = run(
        plan_of([record] * 2, gaps),
        lambda _: program,
        ranks=ranks,
        slowdowns=slowdowns,
        how=(lambda record, starts, server_time, key: execute(record, starts, chosen)),
    )
    if ranks > 1:
        for number in range(2):
            assert [left for _, left in finishes(result, number, ranks)] == expected[number]
    if ranks > 2 or (ranks == 2 and collectives.transport == "textbook"):
        assert program is not None


def test_one_rank_stands_for_all_where_all_are_alike() -> None:
    record = all_reduce(4 * 240, 4)
    chosen = cluster(6)
    program = RingPrograms(chosen)(record)
    plan = plan_of([record] * 3, [10, 20, 300])
    few = run(plan, lambda _: program, ranks=6)
    many = run(plan, lambda _: program, ranks=6, collapse=False)
    assert few.spans == many.spans


@pytest.mark.parametrize("collectives", [Collectives(), GLOO])
@given(nbytes=st.integers(1, 5000), nodes=st.integers(3, 7), gap=st.integers(0, 3000))
def test_two_at_a_time_end_between_one_alone_and_both_in_turn(
    collectives: Collectives, nbytes: int, nodes: int, gap: int
) -> None:
    record = all_reduce(nbytes)
    chosen = cluster(nodes, collectives=collectives)
    program = RingPrograms(chosen)(record)
    assert program is not None
    result = run(plan_of([record] * 2, [0, gap]), lambda _: program, ranks=nodes)
    alone = execute(record, np.zeros(nodes, dtype=np.int64), chosen)
    ends = [max(left for _, left in finishes(result, number, nodes)) for number in range(2)]
    # A message may wait for one of the other collective, at most, before each of its own.
    latencies = 4 * nodes * chosen.network.latency_for(0)
    assert ends[0] >= alone.max()
    assert ends[1] >= gap + alone.max()
    assert max(ends) <= gap + 2 * alone.max() + latencies
    # All bytes have left: no link can have been quicker than that.
    sent = max(
        sum(max(0, size) for size in sizes)
        for sizes in Heap([program], np.zeros((1, nodes), dtype=np.int64), lambda *_: [])
        .all[0]
        .sizes
    )
    assert max(ends) >= 2 * sent


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather"])
@pytest.mark.parametrize("collectives", [Collectives(), GLOO])
@pytest.mark.parametrize("nbytes", [7, 1203])
def test_random_delays_and_cards_are_those_of_the_kernel(
    collectives: Collectives, kind: Literal["all_reduce", "all_gather"], nbytes: int
) -> None:
    jitter = Jitter(distribution="exponential", mean=Fraction(40, 10**12))
    slow = SizeFactor(from_bytes=100, latency=Fraction(3))
    network = link(20, jitter=(jitter,), factors=(slow,))
    chosen = replace(
        cluster(5, 2, collectives=collectives, network=network),
        nics={1: link(70, 2), 3: replace(network, factors=())},
    )
    record = CollectiveRecord(kind=kind, sent=(nbytes, nbytes))
    slowdowns = [1.0, 1.5, 2.0, 1.0, 1.0, 0.5, 3.0, 1.0, 1.0, 1.25]
    gaps = [500, 10**6]
    result = run(plan_of([record] * 2, gaps), RingPrograms(chosen), ranks=10, slowdowns=slowdowns)
    for number, starts in enumerate(asked(gaps, slowdowns)):
        key = collective_key(0, 0, number, 0)
        expected = execute(record, starts, chosen, key=key)
        assert [left for _, left in finishes(result, number, 10)] == expected.tolist()


@pytest.mark.parametrize("collectives", [Collectives(), GLOO])
def test_on_links_that_change_over_time_absolute_time_counts(collectives: Collectives) -> None:
    trace = RateTrace(
        times=(Fraction(0), Fraction(700, 10**12), Fraction(1500, 10**12)),
        rates=(Fraction(10**12), Fraction(10**11), Fraction(3 * 10**12)),
        duration=Fraction(2000, 10**12),
        after="repeat",
    )
    chosen = cluster(5, collectives=collectives, network=link(20, trace=trace))
    record = all_reduce(203)
    gaps, slowdowns = [500, 10**6], [1.0, 1.5, 2.0, 1.0, 0.5]
    result = run(plan_of([record] * 2, gaps), RingPrograms(chosen), ranks=5, slowdowns=slowdowns)
    for number, starts in enumerate(asked(gaps, slowdowns)):
        expected = execute(record, starts, chosen)
        assert [left for _, left in finishes(result, number, 5)] == expected.tolist()


@pytest.mark.parametrize("collectives", [Collectives(), GLOO])
def test_a_rank_sends_as_long_over_a_rate_that_never_changes(collectives: Collectives) -> None:
    rate = Fraction(10**12)
    trace = RateTrace(times=(Fraction(0),), rates=(rate,), duration=Fraction(1), after="repeat")
    plain, traced = (
        RingPrograms(cluster(5, collectives=collectives, network=network)).sending(all_reduce(200))
        for network in (link(20), link(20, trace=trace))
    )
    assert traced == plain == 2 * 4 * 40  # a picosecond a byte: twice all five chunks but one


def test_what_is_no_ring_runs_alone_and_nothing_beside_it() -> None:
    records = [gather(1), gather(2), gather(3)]
    ring = RingProgram(
        pieces=np.full((3, 1), 100),
        phases=((0, 2),),
        in_flight=1,
        announced=False,
        links=(link(),) * 3,
    )
    result = run(
        plan_of(records, [0, 0, 0]),
        dict(zip(records, [ring, None, ring], strict=True)).__getitem__,
        ranks=3,
    )
    first, second, third = (finishes(result, number, 3)[0] for number in range(3))
    assert (first, second, third) == ((0, 206), (206, 208), (208, 414))
