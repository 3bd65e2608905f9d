"""Is what goes on for ever what one gets by simulating it?"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gcsim.compressors.lockstep import CollectiveRecord
from gcsim.simulator.clock import Times
from gcsim.simulator.steps.message_ring import RingProgram
from gcsim.simulator.steps.steady import TooManyClassesError, simulate_steady
from gcsim.simulator.steps.step import simulate
from gcsim.simulator.steps.step_plan import CarryOut, StepPlan
from tests.simulator.random_plans import (
    bucket,
    compute,
    contrary,
    fixed,
    in_pairs,
    plans,
    same,
    skewed,
)
from tests.simulator.test_concurrent import link, programs


@given(
    plan=plans(),
    ranks=st.integers(1, 4),
    how=st.sampled_from([fixed, skewed, in_pairs, contrary]),
    data=st.data(),
)
@settings(max_examples=150, deadline=None)
def test_the_extended_run_is_the_simulated_one(
    plan: StepPlan, ranks: int, how: CarryOut, data: st.DataObject
) -> None:
    factors = st.lists(st.sampled_from([1.0, 1.5, 0.9]), min_size=ranks, max_size=ranks)
    pace = data.draw(st.one_of(st.none(), factors.map(np.array)))
    steady = simulate_steady(plan, ranks=ranks, carry_out=how, pace=pace)
    assert steady.exact
    many = len(steady.run.finish) + 2 * steady.period + 3
    run = simulate(plan, ranks=ranks, carry_out=how, iterations=many, pace=lambda _: pace)
    same(steady.extended(many), run)
    few = data.draw(st.integers(1, many))
    shorter = steady.extended(few)
    assert np.array_equal(shorter.finish, run.finish[:few])
    last = run.finish[-1] - run.finish[-1 - steady.period]
    assert np.array_equal(steady.shift, last)


@given(data=st.data(), plan=plans(), ranks=st.integers(2, 4))
@settings(max_examples=60, deadline=None)
def test_with_two_collectives_at_a_time_too(
    data: st.DataObject, plan: StepPlan, ranks: int
) -> None:
    kinds = [link(3), link(1, 2), link(10)]
    links = data.draw(st.lists(st.sampled_from(kinds), min_size=ranks, max_size=ranks))
    records = dict.fromkeys(c for work in plan.buckets for c in work.collectives)
    rings = {record: data.draw(programs(links)) for record in records}
    plan = replace(plan, slots=2)
    steady = simulate_steady(plan, ranks=ranks, carry_out=skewed, rings=rings.__getitem__)
    assert steady.exact
    many = len(steady.run.finish) + 2 * steady.period + 2
    same(
        steady.extended(many),
        simulate(plan, ranks=ranks, carry_out=skewed, iterations=many, rings=rings.__getitem__),
    )


def test_ranks_that_are_alike_settle_at_once() -> None:
    plan = StepPlan(compute=compute(3, 5, 6), buckets=(bucket(1, 20, 2), bucket(0, 4, 1)))
    steady = simulate_steady(plan, ranks=1000, carry_out=fixed)
    assert (len(steady.run.finish), steady.period, steady.exact) == (1, 1, True)


def test_a_cycle_of_two_iterations() -> None:
    plan = StepPlan(compute=compute(3, 5), buckets=(bucket(1, 20, 2),))
    steady = simulate_steady(plan, ranks=2, carry_out=contrary)
    assert steady.period == 2
    assert len(set(np.diff(steady.extended(9).finish[:, 0]).tolist())) == 2


def test_a_loader_that_is_a_little_faster_settles_late() -> None:
    plan = StepPlan(compute=compute(30, 70), buckets=(bucket(0, 0, 0),), input_batch=90, prefetch=4)
    steady = simulate_steady(plan, ranks=2, carry_out=fixed)
    assert 20 < len(steady.run.finish) < 60
    assert steady.exact
    assert (steady.period, steady.shift.tolist()) == (1, [100, 100])
    same(steady.extended(90), simulate(plan, ranks=2, carry_out=fixed, iterations=90))
    # Cut short, the last half of what was simulated stands for the rest.
    short = simulate_steady(plan, ranks=2, carry_out=fixed, most=9)
    assert (short.exact, short.period, short.shift.tolist()) == (False, 5, [500, 500])


def test_ranks_that_never_meet_drift_apart() -> None:
    plan = StepPlan(compute=compute(30, 70), buckets=(bucket(4),), input_batch=90)
    pace = np.array([1.0, 3.0, 0.5])
    steady = simulate_steady(plan, ranks=3, carry_out=fixed, pace=pace)
    assert steady.shift.tolist() == [104, 312, 90]
    assert steady.exact
    run = simulate(plan, ranks=3, carry_out=fixed, pace=lambda _: pace, iterations=50)
    same(steady.extended(50), run)


@pytest.mark.parametrize("side_stream", [False, True])
def test_heterogeneous_links_settle_after_several_iterations(side_stream: bool) -> None:
    links = (link(1), link(90), link(2, 1, overhead=Fraction(30, 10**12)), link(5))
    ring = RingProgram(
        pieces=np.array([[9], [200], [3], [40]]),
        phases=((0, 3),),
        in_flight=1,
        announced=False,
        links=links,
    )
    plan = StepPlan(
        compute=compute(3, 50, 60),
        buckets=(bucket(1, 20, 2), bucket(7, 4, 1)),
        slots=2,
        input_batch=105,
        side_stream=side_stream,
    )
    steady = simulate_steady(plan, ranks=4, carry_out=fixed, rings=lambda _: ring)
    assert len(steady.run.finish) >= 2
    same(
        steady.extended(40),
        simulate(plan, ranks=4, carry_out=fixed, rings=lambda _: ring, iterations=40),
    )


def rotating(record: CollectiveRecord, entry: Times, server_time: int, key: int) -> Times:
    """The rank after the one that entered last leaves 3 later: a skew goes round the ring."""
    exits = np.full_like(entry, entry.max() + 10)
    exits[(entry.argmax() + 1) % len(entry)] += 3
    return exits


def test_a_long_cycle_may_be_cut_short_within_a_tolerance() -> None:
    plan = StepPlan(compute=compute(300, 700), buckets=(bucket(0, 16, 0),))
    exact = simulate_steady(plan, ranks=30, carry_out=rotating)
    assert (exact.period, exact.exact) == (30, True)
    mean = exact.shift / 30
    quick = simulate_steady(plan, ranks=30, carry_out=rotating, tolerance=1e-3)
    assert (len(quick.run.finish), quick.exact) == (8, False)
    assert np.abs(quick.shift / quick.period / mean - 1).max() < 1e-3
    strict = simulate_steady(plan, ranks=30, carry_out=rotating, tolerance=1e-6)
    assert (strict.period, strict.exact) == (30, True)


def test_too_many_that_differ_are_refused_where_that_is_asked_for() -> None:
    plan = StepPlan(compute=compute(30, 70), buckets=(bucket(0, 6, 0),))
    pace = np.array([1.0, 2.0, 3.0])
    with pytest.raises(TooManyClassesError):
        simulate_steady(plan, ranks=3, carry_out=fixed, pace=pace, most_classes=2)
    assert simulate_steady(plan, ranks=3, carry_out=fixed, pace=pace, most_classes=3).exact
