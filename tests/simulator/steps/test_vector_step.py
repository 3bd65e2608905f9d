"""Does the vector engine give what the rules of a step say, to the picosecond?

Three engines that share no code: `vectors.py`, the SimPy model of `events/step.py`, and the
oracle of `tick.py`, which plays picosecond by picosecond.
"""

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gcsim.compressors.lockstep import CollectiveRecord
from gcsim.errors import InputError, InternalError
from gcsim.simulator.clock import Times
from gcsim.simulator.devices.training_time import ComputeTimes
from gcsim.simulator.steps import vectors as vector_steady
from gcsim.simulator.steps.breakdown import PARTS
from gcsim.simulator.steps.events import steady, step
from gcsim.simulator.steps.schedule import Schedule
from gcsim.simulator.steps.step_plan import BucketWork, CarryOut, Job, Run, StepPlan
from gcsim.simulator.steps.vectors import simulate
from tests.simulator.steps.random_plans import extended, fixed, record, rounds, skewed
from tests.simulator.steps.step_oracle import at_random, lagging, pacings, plans, played

CARRIED = st.sampled_from([fixed, skewed, at_random, lagging])


def same(one: Run, other: Run) -> None:
    np.testing.assert_array_equal(one.finish, other.finish)
    assert set(one.parts) == set(other.parts) == set(PARTS)
    for part in PARTS:
        np.testing.assert_array_equal(one.parts[part], other.parts[part], err_msg=part)


def whole(run: Run) -> None:
    """The parts add up to the iterations."""
    start = np.vstack([np.zeros_like(run.finish[:1]), run.finish[:-1]])
    parts = sum(run.parts[part] for part in PARTS if part != "communication")
    np.testing.assert_array_equal(run.finish - start, parts)
    assert all((run.parts[part] >= 0).all() for part in PARTS)


@given(data=st.data(), ranks=st.integers(1, 5), how=CARRIED, seed=st.integers(0, 9))
def test_any_small_step_is_the_picosecond_by_picosecond_simulation(
    data: st.DataObject, ranks: int, how: CarryOut, seed: int
) -> None:
    work, slowdown = data.draw(rounds(plans())), data.draw(pacings(ranks))
    iterations = data.draw(st.integers(1, 4))
    oracle = played(work, ranks, how, iterations, slowdown, seed)
    schedule = Schedule.of(work, range(len(work)))
    run = simulate(
        schedule, ranks=ranks, execute=how, iterations=iterations, slowdown=slowdown, seed=seed
    )
    same(run, oracle)
    whole(run)


@given(data=st.data(), ranks=st.integers(1, 9), how=CARRIED, seed=st.integers(0, 9))
def test_it_is_the_simpy_model(data: st.DataObject, ranks: int, how: CarryOut, seed: int) -> None:
    work, slowdown = data.draw(rounds(plans())), data.draw(pacings(ranks))
    arguments: dict[str, Any] = {
        "ranks": ranks,
        "execute": how,
        "iterations": data.draw(st.integers(1, 6)),
        "slowdown": slowdown,
        "seed": seed,
    }
    schedule = Schedule.of(work, range(len(work)))
    same(simulate(schedule, **arguments), step.simulate(schedule, **arguments))


@given(data=st.data(), ranks=st.integers(1, 5), how=CARRIED, most=st.integers(1, 20))
def test_it_goes_on_for_ever_as_the_simpy_model(
    data: st.DataObject, ranks: int, how: CarryOut, most: int
) -> None:
    def keyless(wanted: CollectiveRecord, starts: Times, server_time: int, key: int) -> Times:
        return how(wanted, starts, server_time, 7)

    work, slowdown = data.draw(rounds(plans())), data.draw(pacings(ranks))(0)
    arguments: dict[str, Any] = {
        "ranks": ranks,
        "execute": keyless,
        "slowdown": slowdown,
        "most": most,
    }
    schedule = Schedule.of(work, range(len(work)))
    found = vector_steady.simulate_steady(schedule, **arguments)
    expected = steady.simulate_steady(schedule, **arguments)
    assert (found.period, found.exact) == (expected.period, expected.exact)
    np.testing.assert_array_equal(found.shift, expected.shift)
    same(found.run, expected.run)
    if found.exact:
        whole(found.run)
        many = len(found.iterations) + len(schedule) + 7
        long = simulate(
            schedule, ranks=ranks, execute=keyless, iterations=many, slowdown=lambda _: slowdown
        )
        same(extended(found, many), long)


def jobs(kind: Any, *durations: int) -> tuple[Job, ...]:
    return tuple(Job(kind=kind, name="", duration=duration) for duration in durations)


def works(*buckets: tuple[int, list[tuple[int, int]]]) -> tuple[BucketWork, ...]:
    """Buckets of (encode, (collective, callback) pairs)."""
    return tuple(
        BucketWork(
            before=jobs("encode", before),
            collectives=tuple(record(collective) for collective, _ in exchange),
            after=jobs("decode", *(after for _, after in exchange)),
        )
        for before, exchange in buckets
    )


def compute(forward: int, *parts: int, rest: int = 0) -> ComputeTimes:
    return ComputeTimes(forward=forward, backward=sum(parts) + rest, parts=parts, provenance="test")


# A metamorphic law


@given(data=st.data(), ranks=st.integers(1, 6), factor=st.integers(2, 1000))
def test_times_scale(data: st.DataObject, ranks: int, factor: int) -> None:
    """The unit of time is nobody's business: all durations times a number, all times so."""
    plan = data.draw(plans())

    def longer(job: Job) -> Job:
        return replace(job, duration=job.duration * factor)

    scaled = replace(
        plan,
        compute=replace(
            plan.compute,
            forward=plan.compute.forward * factor,
            backward=plan.compute.backward * factor,
            parts=tuple(part * factor for part in plan.compute.parts),
        ),
        buckets=tuple(
            replace(
                bucket,
                before=tuple(map(longer, bucket.before)),
                after=tuple(map(longer, bucket.after)),
                exit_delays=tuple(held * factor for held in bucket.exit_delays),
            )
            for bucket in plan.buckets
        ),
        backward_alone=plan.backward * factor,
        side_slowdown=Fraction(2),
        optimizer=plan.optimizer * factor,
        input_batch=plan.input_batch * factor,
    )

    def slower(wanted: CollectiveRecord, starts: Times, server_time: int, key: int) -> Times:
        late: Times = skewed(wanted, starts // factor, server_time, key) * factor
        return late

    run = simulate(
        replace(plan, side_slowdown=Fraction(2)), ranks=ranks, execute=skewed, iterations=2
    )
    np.testing.assert_array_equal(
        run.finish * factor, simulate(scaled, ranks=ranks, execute=slower, iterations=2).finish
    )


# What must not be


def test_a_collective_that_ends_before_its_last_entry_is_our_bug() -> None:
    def early(wanted: CollectiveRecord, starts: Times, server_time: int, key: int) -> Times:
        return starts - 1

    plan = StepPlan(compute=compute(0, 10), buckets=works((0, [(1, 5)])))
    with pytest.raises(InternalError, match=r"bucket 0: a rank leaves at 9 ps, in the past of 10 "):
        simulate(plan, ranks=3, execute=early)


def test_what_does_not_fit_together_is_our_bug() -> None:
    plan = StepPlan(compute=compute(0, 10), buckets=works((0, [(1, 5)])))
    short = replace(plan.buckets[0], after=())
    with pytest.raises(InternalError, match="1 exchanges for 2 buckets"):
        simulate(replace(plan, compute=compute(0, 1, 2)), ranks=1, execute=fixed)
    with pytest.raises(InternalError, match="0 computations after 1 collectives"):
        simulate(replace(plan, buckets=(short,)), ranks=1, execute=fixed)
    with pytest.raises(InternalError, match="2 collectives at a time"):
        simulate(replace(plan, slots=2), ranks=1, execute=fixed)
    with pytest.raises(InternalError, match=r"\(2,\) paces for 3 ranks"):
        simulate(plan, ranks=3, execute=fixed, slowdown=lambda _: np.ones(2))
    with pytest.raises(InternalError, match=r"\(2,\) exit times of 3 ranks"):
        simulate(plan, ranks=3, execute=lambda w, e, s, k: fixed(w, e[:2], s, k))
    with pytest.raises(InternalError, match="keeps 0 batches"):
        simulate(replace(plan, input_batch=1, prefetch=0), ranks=1, execute=fixed)


@pytest.mark.parametrize("work", [2**60, 2**62, 2**70])
def test_times_beyond_the_clock_are_reported_before_a_sum_passes_64_bits(work: int) -> None:
    """Whatever is computed: within an iteration, over iterations, or in one piece of work."""
    compute = ComputeTimes(forward=work, backward=1, parts=(1,), provenance="a test")
    plan = StepPlan(compute=compute, buckets=(BucketWork(before=()),))
    with pytest.raises(InputError, match="more than the 53 days"):
        simulate(plan, ranks=2, execute=lambda _, starts, *__: starts, iterations=12)
