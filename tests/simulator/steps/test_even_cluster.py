"""Does a step in which computations and collectives slow each other take what it must?

The oracle follows one rank picosecond by picosecond, with exact shares of work done, from the rules
of `step_plan.py` and the two speeds of `events/even_cluster.py`.
"""

from dataclasses import dataclass, replace
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from gcsim.compressors.lockstep import CollectiveRecord
from gcsim.simulator.steps import vectors as vector_step
from gcsim.simulator.steps.events import step
from gcsim.simulator.steps.events.even_cluster import on_even_cluster
from gcsim.simulator.steps.step_plan import StepPlan, WeightGather
from tests.simulator.steps.random_plans import fixed, plans, same, skewed
from tests.simulator.steps.tick import Tick

SLOWER = Fraction(5, 2)
"""A collective beside computations."""


def lengths(record: CollectiveRecord, server_time: int) -> tuple[int, int]:
    """Alone as `fixed` carries it out, and beside computations."""
    alone = record.sent[0] + server_time
    return alone, int(alone * SLOWER)


@dataclass
class Doing:
    """A piece of work or a collective, with the share of it that is still to be done."""

    name: tuple[int, int]
    jobs: list[int]
    left: Fraction = Fraction(1)


def last_event(plan: StepPlan, computation: Fraction) -> int:  # noqa: PLR0912 (one loop over time)
    """Picoseconds from the end of forward until all passes and exchanges of a rank are done."""
    slower = plan.side_slowdown if plan.side_stream else 1
    waiting: dict[str, list[tuple[int, int, tuple[int, int], list[int]]]] = {"main": [], "side": []}
    running: dict[str, Doing | None] = {"main": None, "side": None}
    asked: set[tuple[int, int]] = set()
    order = [(b, i) for b, one in enumerate(plan.buckets) for i in range(len(one.collectives))]
    inside: Doing | None = None
    now = 0

    def jobs_of(kind: str, name: tuple[int, int]) -> list[int]:
        number, place = name
        if kind == "after":
            return [round(plan.buckets[number].after[place].duration * slower)]
        before = [round(job.duration * slower) for job in plan.buckets[number].before]
        return before

    def thread(number: int) -> None:
        if number == len(plan.buckets):
            issue("main", 0, (number, -1), [plan.compute.rest])
            return
        before = [] if plan.side_stream else jobs_of("before", (number, -1))
        issue("main", 0, (number, -1), [plan.compute.parts[number], *before])

    def issue(stream: str, order: int, name: tuple[int, int], jobs: list[int]) -> None:
        if sum(jobs):
            waiting[stream].append((now, order, name, [time for time in jobs if time]))
        else:
            done(order, name)

    def done(order: int, name: tuple[int, int]) -> None:
        number, place = name
        if order:
            ask(number, place + 1)
        elif number < len(plan.buckets):
            if plan.side_stream:
                issue("side", 1, name, jobs_of("before", name))
            else:
                ask(number, 0)
            thread(number + 1)

    def ask(number: int, place: int) -> None:
        records = plan.buckets[number].collectives
        if place < len(records) and not isinstance(records[place], WeightGather):
            asked.add((number, place))

    def returned(name: tuple[int, int]) -> None:
        issue("side" if plan.side_stream else "main", 1, name, jobs_of("after", name))

    def length(name: tuple[int, int]) -> tuple[int, int]:
        work = plan.buckets[name[0]]
        server = work.server_times[name[1]] if work.server_times else 0
        return lengths(work.collectives[name[1]], server)

    orders: dict[str, int] = {}
    thread(0)
    while True:
        while inside is None and order and order[0] in asked:
            name = order.pop(0)
            if length(name)[0]:
                inside = Doing(name, [])
            else:
                returned(name)
        for stream, pieces in waiting.items():
            if running[stream] is None and pieces:
                first = min(pieces)
                pieces.remove(first)
                orders[stream], running[stream] = first[1], Doing(first[2], first[3])
        serialization = [doing for doing in running.values() if doing is not None]
        if not serialization and inside is None:
            if not order:
                return now
            asked.add(order[0])  # the gather of weights
            continue
        if inside is not None:
            inside.left -= Fraction(1, length(inside.name)[1 if serialization else 0])
        for doing in serialization:
            speed = 1 / (1 + computation) if inside is not None else Fraction(1)
            doing.left -= speed / doing.jobs[0]
        now += 1
        if inside is not None and inside.left <= 0:
            name, inside = inside.name, None
            returned(name)
        for stream, current in list(running.items()):
            if current is not None and current.left <= 0:
                del current.jobs[0]
                current.left = Fraction(1)
                if not current.jobs:
                    running[stream] = None
                    done(orders[stream], current.name)


@given(plan=plans(), computation=st.sampled_from([Fraction(0), Fraction(1, 3), Fraction(2)]))
def test_alike_ranks_do_exactly_what_the_two_speeds_say(
    plan: StepPlan, computation: Fraction
) -> None:
    plan = replace(plan, accumulation=2, input_batch=0)
    slowed = on_even_cluster(plan, computation, lengths)
    run = step.simulate(slowed, ranks=3, execute=fixed, iterations=2)
    before = 2 * plan.compute.forward + plan.backward
    one = before + last_event(plan, computation) + plan.optimizer
    assert run.finish.tolist() == [[one] * 3, [2 * one] * 3]
    same(run, vector_step.simulate(slowed, ranks=3, execute=fixed, iterations=2))


@given(plan=plans(), ranks=st.integers(1, 4), data=st.data())
def test_what_holds_a_collective_holds_every_rank(
    plan: StepPlan, ranks: int, data: st.DataObject
) -> None:
    held = st.sampled_from([0, 1, 5])
    buckets = tuple(
        replace(one, exit_delays=tuple(data.draw(held) for _ in one.collectives))
        for one in plan.buckets
    )
    plan = replace(plan, buckets=buckets, backward_alone=data.draw(st.none() | st.just(2)))
    tick = Tick(plan, ranks=ranks, execute=skewed, iterations=2)
    same(step.simulate(plan, ranks=ranks, execute=skewed, iterations=2), tick)
    same(vector_step.simulate(plan, ranks=ranks, execute=skewed, iterations=2), tick)


@given(plan=plans())
def test_nothing_that_slows_changes_nothing(plan: StepPlan) -> None:
    plan = replace(plan, side_slowdown=Fraction(1))

    def alone(record: CollectiveRecord, server_time: int) -> tuple[int, int]:
        return (lengths(record, server_time)[0],) * 2

    slowed = on_even_cluster(plan, Fraction(0), alone)
    ordered = [replace(one, behind=()) for one in slowed.buckets]
    assert ordered == [replace(one, behind=()) for one in plan.buckets]
    assert replace(slowed, buckets=plan.buckets) == plan
