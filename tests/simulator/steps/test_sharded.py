"""Steps with sharded weights, against an event simulation that shares nothing with them, and
against sums worked out by hand."""

from collections import defaultdict
from collections.abc import Generator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import simpy
from hypothesis import given
from hypothesis import strategies as st

from gcsim.simulator.clock import Times
from gcsim.simulator.devices.training_time import ComputeTimes
from gcsim.simulator.steps.schedule import State, schedule_of
from gcsim.simulator.steps.sharded import forward_parts, spans
from gcsim.simulator.steps.step_plan import (
    BucketWork,
    CarryOut,
    GradientScatter,
    Job,
    StepPlan,
    WeightGather,
    slowed_by,
)
from gcsim.simulator.steps.vectors import simulate, simulate_steady
from tests.simulator.steps.random_plans import contrary, fixed, in_pairs, skewed

TIMES = st.integers(0, 50)


def unit(
    gather: int, unpack: int, encode: int, *exchange: int, again: bool, between: bool = False
) -> BucketWork:
    """A unit whose gathers take `gather` and `unpack`, with (collective, computation) pairs; all
    but the first may be between nodes."""
    durations, computed = exchange[::2], exchange[1::2]
    gathers = 2 if again else 1
    jobs = [
        *[Job(kind="decode", name="unpack", duration=unpack)] * gathers,
        *(Job(kind="decode", name="decode", duration=time) for time in computed),
    ]
    return BucketWork(
        before=(Job(kind="encode", name="encode", duration=encode),),
        collectives=(
            *[WeightGather(kind="all_gather", sent=(gather,), scope="node" if between else "all")]
            * gathers,
            *(
                GradientScatter(
                    kind="all_gather", sent=(time,), scope="nodes" if between and n else "all"
                )
                for n, time in enumerate(durations)
            ),
        ),
        after=tuple(jobs),
    )


@st.composite
def plans(draw: st.DrawFn) -> StepPlan:
    """Up to four units of one or two exchanges each, in stages 2 and 3, or inside nodes."""
    stage, many = draw(st.sampled_from((2, 3))), draw(st.integers(1, 4))
    between = draw(st.booleans())
    pairs = draw(st.integers(2 if between else 1, 3))
    exchanges = st.lists(TIMES, min_size=2 * pairs, max_size=2 * pairs)
    buckets = tuple(
        unit(
            *draw(st.tuples(TIMES, TIMES, TIMES)), *draw(exchanges),
            again=stage == 3 and n > 0, between=between,
        )
        for n in range(many)
    )  # fmt: skip
    parts = tuple(draw(st.lists(TIMES, min_size=many, max_size=many)))
    compute = ComputeTimes(
        forward=draw(TIMES), backward=sum(parts) + draw(TIMES), parts=parts, provenance="test"
    )
    return StepPlan(
        compute=compute,
        buckets=buckets,
        optimizer=draw(TIMES),
        accumulation=draw(st.integers(1, 3)),
    )


class Oracle:
    """Each rank has a process that computes and one that communicates; a collective ends for all
    when the last rank has entered it."""

    def __init__(self, plan: StepPlan, ranks: int, carry_out: CarryOut, paces: Any = None) -> None:
        self.plan, self.ranks, self.carry_out = plan, ranks, carry_out
        self.env = simpy.Environment()
        self.paces = [1.0] * ranks if paces is None else list(paces)
        self.flags: dict[Any, simpy.Event] = defaultdict(self.env.event)
        self.entered: dict[Any, dict[int, int]] = defaultdict(dict)
        self.finish = [0] * ranks
        for rank in range(ranks):
            self.env.process(self.rank(rank))
        self.env.run()

    def rank(self, rank: int) -> Generator[Any, Any, Any]:
        for micro in range(self.plan.accumulation):
            others = [self.communicates(rank, micro), self.between(rank, micro)]
            talking = [self.env.process(one) for one in others]
            yield simpy.AllOf(self.env, [self.env.process(self.computes(rank, micro)), *talking])
        yield self.env.timeout(slowed_by(self.plan.optimizer, self.paces[rank]))
        self.finish[rank] = int(self.env.now)

    def communicates(self, rank: int, micro: int) -> Generator[Any, Any, Any]:
        units = len(self.plan.buckets)
        order: list[tuple[int, int, Any]] = []
        for n in reversed(range(units)):
            order.append((n, 0, ("unpacked", n + 2) if n + 2 < units else None))
        for n in range(units):
            if n + 1 < units and self.gathers(n + 1) == 2:
                order.append((n + 1, 1, ("begun", n)))
            for place in range(self.gathers(n), self.scattered(n) + 1):
                order.append((n, place, ("asked", n, place)))
        for n, place, asked in order:
            if asked is not None:
                yield self.flags[rank, micro, asked]
            yield self.met(rank, micro, n, place)

    def between(self, rank: int, micro: int) -> Generator[Any, Any, Any]:
        """Exchanges between nodes, with their computations, one unit after the other."""
        for n, work in enumerate(self.plan.buckets):
            first = self.scattered(n)
            if first + 1 == len(work.collectives):
                continue
            yield self.flags[rank, micro, ("left", n, first)]
            for place in range(first, len(work.collectives)):
                if place > first:
                    yield self.met(rank, micro, n, place)
                duration = slowed_by(work.after[place].duration, self.paces[rank])
                yield self.env.timeout(duration)

    def scattered(self, n: int) -> int:
        """Place of the last collective that is not between nodes."""
        records = self.plan.buckets[n].collectives
        return max(place for place, record in enumerate(records) if record.scope != "nodes")

    def met(self, rank: int, micro: int, n: int, place: int) -> simpy.Event:
        """Enter a collective; the event is the rank's exit."""
        met = self.entered[micro, n, place]
        met[rank] = int(self.env.now)
        if len(met) == self.ranks:
            starts: Times = np.array([met[one] for one in range(self.ranks)])
            exits = self.carry_out(self.plan.buckets[n].collectives[place], starts, 0, 0)
            for one, left in enumerate(exits.tolist()):
                self.env.process(self.leave(left, (one, micro, ("left", n, place))))
        return self.flags[rank, micro, ("left", n, place)]

    def leave(self, time: int, name: Any) -> Generator[Any, Any, Any]:
        yield self.env.timeout(time - self.env.now)
        self.flags[name].succeed()

    def gathers(self, n: int) -> int:
        return sum(isinstance(one, WeightGather) for one in self.plan.buckets[n].collectives)

    def computes(self, rank: int, micro: int) -> Generator[Any, Any, Any]:
        plan, pace = self.plan, self.paces[rank]
        units = range(len(plan.buckets))

        def work(duration: int) -> Any:
            return self.env.timeout(slowed_by(duration, pace))

        def flag(*name: Any) -> simpy.Event:
            return self.flags[rank, micro, name]

        def last(n: int) -> int:
            return self.scattered(n)

        def decode(n: int) -> Any:
            decodes = last(n) + 1 == len(plan.buckets[n].collectives)
            return work(plan.buckets[n].after[-1].duration if decodes else 0)

        forward = forward_parts(plan)
        for n in reversed(units):
            yield flag("left", n, 0)
            yield work(plan.buckets[n].after[0].duration)
            flag("unpacked", n).succeed()
            yield work(forward[n])
        for n in units:
            if self.gathers(n) == 2:
                yield flag("left", n, 1)
                yield work(plan.buckets[n].after[1].duration)
            flag("begun", n).succeed()
            rest = plan.compute.rest if n == units[-1] else 0
            yield work(plan.compute.parts[n] + rest)
            if n:
                yield flag("left", n - 1, last(n - 1))
                yield decode(n - 1)
            yield work(plan.buckets[n].before[0].duration)
            for place in range(self.gathers(n), last(n)):
                flag("asked", n, place).succeed()
                yield flag("left", n, place)
                yield work(plan.buckets[n].after[place].duration)
            flag("asked", n, last(n)).succeed()
        yield flag("left", units[-1], last(units[-1]))
        yield decode(units[-1])


@given(
    plans(), st.integers(2, 5), st.sampled_from((fixed, skewed, in_pairs, contrary)), st.booleans()
)
def test_an_event_simulation_says_the_same(
    plan: StepPlan, ranks: int, carry_out: CarryOut, slow: bool
) -> None:
    """To the picosecond, also where ranks differ in pace and leave collectives apart."""
    paces = np.array([1.0, 1.5, 1.25, 1.0, 2.0][:ranks]) if slow else None
    run = simulate(plan, ranks=ranks, execute=carry_out, slowdown=lambda _: paces)
    assert run.finish[0].tolist() == Oracle(plan, ranks, carry_out, paces).finish
    spent = [run.parts[part] for part in run.parts if part != "communication"]
    assert (np.sum(spent, axis=0) == run.finish).all()
    assert all((times >= 0).all() for times in run.parts.values())


@given(plans(), st.sampled_from((fixed, skewed, contrary)))
def test_spans_add_up_to_the_parts(plan: StepPlan, carry_out: CarryOut) -> None:
    run = simulate(plan, ranks=3, execute=carry_out)
    before = State(start=np.zeros(3, dtype=np.int64), ahead=np.zeros((0, 3), dtype=np.int64))
    found = spans(schedule_of(plan), 0, before, execute=carry_out)
    for rank in range(3):
        own = [span for span in found if span.rank == rank]
        computed = [span for span in own if span.resource == "compute"]
        for kind in ("forward", "backward", "encode", "decode", "optimizer"):
            total = sum(span.end - span.start for span in computed if span.kind == kind)
            assert total == run.parts[kind][0, rank]
        talked = [span for span in own if span.resource == "communicator"]
        total = sum(span.end - span.start for span in talked)
        assert total == run.parts["communication"][0, rank]
        assert max((span.end for span in own), default=0) <= run.finish[0, rank]


@given(plans(), st.sampled_from((fixed, skewed)))
def test_iterations_repeat(plan: StepPlan, carry_out: CarryOut) -> None:
    steady = simulate_steady(plan, ranks=3, execute=carry_out)
    run = simulate(plan, ranks=3, execute=carry_out, iterations=len(steady.iterations))
    assert (steady.run.finish == run.finish).all()


@pytest.mark.parametrize("stage", [2, 3])
def test_one_unit_is_a_gather_a_pass_and_a_scatter(stage: int) -> None:
    """7 + 1 unpacked, 10 forward, 20 backward and 2 after its gradients, 3 to encode, 9 + 4."""
    compute = ComputeTimes(forward=10, backward=22, parts=(20,), provenance="test")
    plan = StepPlan(compute=compute, buckets=(unit(7, 1, 3, 9, 4, again=False),), optimizer=5)
    run = simulate(plan, ranks=2, execute=fixed)
    assert run.finish[0, 0] == 7 + 1 + 10 + 22 + 3 + 9 + 4 + 5
    assert run.parts["exposed"][0, 0] == 7 + 9


def test_gathers_hide_behind_passes_that_are_longer() -> None:
    """Three units of 10 forward and 20 backward; gathers take 4, scatters 5, all else nothing. The
    first gather and the last scatter are waited for, the others not: while a unit's backward pass
    runs (20), the next gather and the last scatter (9) are done."""
    compute = ComputeTimes(forward=30, backward=60, parts=(20, 20, 20), provenance="test")
    buckets = tuple(unit(4, 0, 0, 5, 0, again=n > 0) for n in range(3))
    plan = StepPlan(compute=compute, buckets=buckets)
    assert simulate(plan, ranks=2, execute=fixed).finish[0, 0] == 4 + 90 + 5
    twice = replace(plan, accumulation=2)
    assert simulate(twice, ranks=2, execute=fixed).finish[0, 0] == 2 * (4 + 90 + 5)


def test_where_the_network_is_slow_every_collective_is_waited_for() -> None:
    """Passes of nothing: three gathers, two again (stage 3), three scatters in a row."""
    compute = ComputeTimes(forward=0, backward=0, parts=(0, 0, 0), provenance="test")
    for stage, count in ((3, 2), (2, 0)):
        buckets = tuple(unit(40, 0, 0, 50, 0, again=stage == 3 and n > 0) for n in range(3))
        run = simulate(StepPlan(compute=compute, buckets=buckets), ranks=2, execute=fixed)
        assert run.finish[0, 0] == (3 + count) * 40 + 3 * 50


@given(plans(), st.data())
def test_nothing_that_takes_less_time_makes_a_step_longer(
    plan: StepPlan, data: st.DataObject
) -> None:
    bucket = data.draw(st.integers(0, len(plan.buckets) - 1))
    work = plan.buckets[bucket]
    place = data.draw(st.integers(0, len(work.collectives) - 1))
    record = work.collectives[place]
    faster = replace(record, sent=(record.sent[0] // 2,))
    records = tuple(faster if n == place else one for n, one in enumerate(work.collectives))
    changed = replace(work, collectives=records)
    buckets = tuple(changed if n == bucket else one for n, one in enumerate(plan.buckets))
    before = simulate(plan, ranks=2, execute=fixed).finish
    after = simulate(replace(plan, buckets=buckets), ranks=2, execute=fixed).finish
    assert (after <= before).all()
