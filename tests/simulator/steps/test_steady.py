"""Is what goes on for ever what one gets by simulating it?"""

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from gcsim.compressors.lockstep import CollectiveRecord
from gcsim.errors import InputError
from gcsim.simulator.clock import Times
from gcsim.simulator.steps import breakdown
from gcsim.simulator.steps import vectors as vector_steady
from gcsim.simulator.steps.cycles import Search
from gcsim.simulator.steps.events.steady import Events, simulate_steady
from gcsim.simulator.steps.events.step import simulate
from gcsim.simulator.steps.schedule import Iteration, Schedule, beginning
from gcsim.simulator.steps.step_plan import CarryOut, Kind, Machines, Run, Span, StepPlan
from tests.simulator.steps.random_plans import (
    bucket,
    compute,
    contrary,
    extended,
    fixed,
    in_pairs,
    in_turn,
    rounds,
    same,
    skewed,
)
from tests.simulator.steps.test_concurrent import link, programs


def slowdowns(ranks: int) -> st.SearchStrategy[NDArray[np.float64]]:
    return st.lists(st.sampled_from([1.0, 1.5]), min_size=ranks, max_size=ranks).map(np.array)


@given(
    work=rounds(),
    ranks=st.integers(1, 4),
    how=st.sampled_from([fixed, skewed, in_pairs, contrary]),
    data=st.data(),
)
def test_the_extended_run_is_the_simulated_one(
    work: list[StepPlan], ranks: int, how: CarryOut, data: st.DataObject
) -> None:
    plan = in_turn(work)
    factors = st.lists(st.sampled_from([1.0, 1.5, 0.9]), min_size=ranks, max_size=ranks)
    slowdown = data.draw(st.one_of(st.none(), factors.map(np.array)))
    steady = simulate_steady(plan, ranks=ranks, execute=how, slowdown=slowdown)
    assert steady.exact
    many = len(steady.run.finish) + 2 * steady.period + 3
    run = simulate(plan, ranks=ranks, execute=how, iterations=many, slowdown=lambda _: slowdown)
    same(extended(steady, many), run)
    few = data.draw(st.integers(1, many))
    shorter = extended(steady, few)
    assert np.array_equal(shorter.finish, run.finish[:few])
    last = run.finish[-1] - run.finish[-1 - steady.period]
    assert np.array_equal(steady.shift, last)


@given(data=st.data(), work=rounds(), ranks=st.integers(2, 4))
def test_with_two_collectives_at_a_time_too(
    data: st.DataObject, work: list[StepPlan], ranks: int
) -> None:
    kinds = [link(3), link(1, 2), link(10)]
    links = data.draw(st.lists(st.sampled_from(kinds), min_size=ranks, max_size=ranks))
    records = dict.fromkeys(c for p in work for b in p.buckets for c in b.collectives)
    rings = {record: data.draw(programs(links)) for record in records}
    plan = in_turn([replace(one, slots=2) for one in work])
    steady = simulate_steady(plan, ranks=ranks, execute=skewed, rings=rings.__getitem__)
    assert steady.exact
    many = len(steady.run.finish) + 2 * steady.period + 2
    same(
        extended(steady, many),
        simulate(plan, ranks=ranks, execute=skewed, iterations=many, rings=rings.__getitem__),
    )


def test_ranks_that_are_alike_settle_at_once() -> None:
    plan = StepPlan(compute=compute(3, 5, 6), buckets=(bucket(1, 20, 2), bucket(0, 4, 1)))
    steady = simulate_steady(plan, ranks=1000, execute=fixed)
    assert (len(steady.run.finish), steady.period, steady.exact) == (1, 1, True)


def test_a_cycle_of_two_iterations() -> None:
    plan = StepPlan(compute=compute(3, 5), buckets=(bucket(1, 20, 2),))
    steady = simulate_steady(plan, ranks=2, execute=contrary)
    assert steady.period == 2
    assert len(set(np.diff(extended(steady, 9).finish[:, 0]).tolist())) == 2


def test_a_loader_that_is_a_little_faster_settles_late() -> None:
    plan = StepPlan(compute=compute(30, 70), buckets=(bucket(0, 0, 0),), input_batch=90, prefetch=4)
    steady = simulate_steady(plan, ranks=2, execute=fixed)
    assert 20 < len(steady.run.finish) < 60
    assert steady.exact
    assert (steady.period, steady.shift.tolist()) == (1, [100, 100])
    same(extended(steady, 90), simulate(plan, ranks=2, execute=fixed, iterations=90))
    # Cut short, the last half of what was simulated stands for the rest.
    short = simulate_steady(plan, ranks=2, execute=fixed, most=9)
    assert (short.exact, short.period, short.shift.tolist()) == (False, 5, [500, 500])


@pytest.mark.parametrize("engine", [simulate_steady, vector_steady.simulate_steady])
@pytest.mark.parametrize("k", [0, 1, 9, 250])
def test_a_barrier_waits_for_all_that_local_steps_have_gathered(engine: Any, k: int) -> None:
    # Computation of 100, the second rank f = 3/2 as slow: k (f - 1) c of the local steps, and as
    # much again of the barrier's own; the collective takes 5.
    local = StepPlan(compute=compute(30, 70), buckets=(bucket(0),))
    sync = replace(local, buckets=(bucket(0, 5, 0),))
    steady = engine(
        in_turn([local] * k + [sync]), ranks=2, execute=fixed, slowdown=np.array([1.0, 1.5])
    )
    assert (steady.period, steady.exact) == (k + 1, True)
    assert steady.shift.tolist() == [(k + 1) * 150 + 5] * 2
    exposed = steady.run.parts["exposed"][-k - 1 :]
    barrier = exposed.sum(axis=1).argmax()
    assert exposed[barrier].tolist() == [(k + 1) * 50 + 5, 5]
    assert np.delete(exposed, barrier, axis=0).sum() == 0


@pytest.mark.parametrize("engine", [simulate_steady, vector_steady.simulate_steady])
def test_of_ranks_that_are_alike_each_plan_is_simulated_once(engine: Any) -> None:
    seen: list[int] = []

    def watch(wanted: CollectiveRecord, starts: Times, server_time: int, key: int) -> Times:
        seen.append(wanted.sent[0])
        return fixed(wanted, starts, server_time, key)

    few = StepPlan(compute=compute(3, 5, 6), buckets=(bucket(1, 20, 2), bucket(0, 4, 1)))
    many = replace(few, buckets=(bucket(1, 200, 2), bucket(0, 40, 1)))
    schedule = in_turn([many, *[few] * 699])
    steady = engine(schedule, ranks=100, execute=watch)
    assert seen == [200, 40, 20, 4]
    assert (len(steady.iterations), steady.period, steady.exact) == (700, 700, True)
    same(steady.run, simulate(schedule, ranks=100, execute=fixed, iterations=700))


@given(work=rounds(), ranks=st.integers(1, 4), data=st.data())
def test_an_iteration_by_itself_shows_what_it_does_among_others(
    work: list[StepPlan], ranks: int, data: st.DataObject
) -> None:
    slowdown = np.array(
        data.draw(st.lists(st.sampled_from([1.0, 1.5]), min_size=ranks, max_size=ranks))
    )
    schedule = in_turn(work)
    steady = simulate_steady(schedule, ranks=ranks, execute=skewed, slowdown=slowdown)
    number = data.draw(st.integers(0, len(steady.iterations) - 1))
    events = Events(schedule, execute=skewed, slowdown=slowdown)
    run = simulate(
        schedule, ranks=ranks, execute=skewed, slowdown=lambda _: slowdown, iterations=number + 1,
        spans=True,
    )  # fmt: skip
    begin = run.finish[number - 1] if number else np.zeros(ranks, dtype=np.int64)
    first = int(begin.min()) if schedule.interacts else begin
    moved = [
        span._replace(start=span.start - shift, end=span.end - shift)
        for span, shift in ((span, (first + 0 * begin)[span.rank]) for span in run.spans)
    ]
    before = steady.before(number)
    assert list(events.spans(number, before)) == moved


@given(work=rounds(), ranks=st.integers(1, 5), first=st.integers(1, 3), data=st.data())
def test_a_large_cluster_has_spans_of_its_first_ranks_and_of_one_of_each_kind(
    work: list[StepPlan], ranks: int, first: int, data: st.DataObject
) -> None:
    """The spans of all ranks, counted by their times, are the property's other side."""
    paces = data.draw(st.lists(st.sampled_from([1.0, 1.5]), min_size=ranks, max_size=ranks))
    slowdown, begin = np.array(paces), beginning(in_turn(work), ranks)
    how = data.draw(st.sampled_from([fixed, skewed]))
    events = Events(in_turn(work), execute=how, slowdown=slowdown)
    every = events.spans(0, begin)
    assert events.spans(0, begin, first) == every  # few enough
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(breakdown, "SPANS", len(every) - 1)
        few = events.spans(0, begin, first)
    assert {span._replace(ranks=1) for span in few} <= set(every)
    shown = [span for span in every if span.rank < min(first, ranks)]
    assert [s._replace(ranks=1) for s in few if s.rank < min(first, ranks)] == shown
    counted: Counter[Span] = Counter()
    for span in few:
        counted[span._replace(rank=0, ranks=1)] += span.ranks
    assert counted == Counter(span._replace(rank=0) for span in every)


@given(
    work=rounds(), ranks=st.integers(2, 4), how=st.sampled_from([fixed, skewed, contrary]),
    cores=st.integers(1, 2), data=st.data(),
)  # fmt: skip
def test_of_ranks_that_share_cores_only_a_state_in_which_they_are_together_repeats(
    work: list[StepPlan], ranks: int, how: CarryOut, cores: int, data: st.DataObject
) -> None:
    of_rank = data.draw(st.lists(st.integers(0, 1), min_size=ranks, max_size=ranks))
    slowdown = np.array(
        data.draw(st.lists(st.sampled_from([1.0, 1.5]), min_size=ranks, max_size=ranks))
    )
    kinds: frozenset[Kind] = frozenset({"forward", "encode", "decode"})
    machines = Machines(cores=cores, of_rank=tuple(of_rank), kinds=kinds)
    schedule = in_turn([replace(plan, machines=machines) for plan in work])
    steady = simulate_steady(schedule, ranks=ranks, execute=how, slowdown=slowdown, most=30)
    many = len(steady.iterations) + (len(schedule) + 3 if steady.exact else 0)
    run = simulate(
        schedule, ranks=ranks, execute=how, slowdown=lambda _: slowdown, iterations=3 * many,
        collapse=False,
    )  # fmt: skip
    same(
        extended(steady, many),
        Run(finish=run.finish[:many], parts={k: part[:many] for k, part in run.parts.items()}),
    )


@pytest.mark.parametrize("turns", [[0], [0, 1], [0, 0, 1, 1, 1]])
@pytest.mark.parametrize("slower", [1.5, 3.0])
def test_a_rank_that_is_ahead_goes_on_beside_those_behind_it(
    turns: list[int], slower: float
) -> None:
    """On one core, without collectives: each gets half of it for ever. From the first 50 iterations
    of a long run, in which nobody stops."""
    machines = Machines(cores=1, of_rank=(0, 0), kinds=frozenset({"forward", "encode"}))
    long = StepPlan(compute=compute(30, 70), buckets=(bucket(40),), machines=machines)
    steps = [long, StepPlan(compute=compute(30, 50), buckets=(bucket(20),), machines=machines)]
    schedule, slowdown = in_turn([steps[turn] for turn in turns]), np.array([1.0, slower])
    steady = simulate_steady(schedule, ranks=2, execute=fixed, slowdown=slowdown, most=50)
    assert not steady.exact
    run = simulate(schedule, ranks=2, execute=fixed, slowdown=lambda _: slowdown, iterations=500)
    assert np.array_equal(steady.run.finish, run.finish[: len(steady.iterations)])


def test_ranks_that_begin_together_with_other_batches_ahead_are_not_alike() -> None:
    # Batches 0 are taken at 20. Rank 1 leaves the first collective at 67, 30 later than rank 0, and
    # takes batch 1 then, rank 0 at 40: the loaders make batch 2 until 87 and 60. Both leave the
    # second collective at 77.
    def uneven(wanted: CollectiveRecord, starts: Times, server_time: int, key: int) -> Times:
        finishes = fixed(wanted, starts, server_time, key)
        finishes[1] += 30 if wanted.sent[0] == 7 else 0
        return finishes

    first = StepPlan(compute=compute(4, 6), buckets=(bucket(0, 7, 0),), input_batch=20, prefetch=1)
    second = replace(first, buckets=(bucket(0, 0, 0),))
    schedule = in_turn([first, second, second])
    steady = simulate_steady(schedule, ranks=2, execute=uneven)
    after = steady.iterations[1].after
    assert (after.start.tolist(), after.ahead.tolist()) == ([0, 0], [[0, 10]])
    run = simulate(schedule, ranks=2, execute=uneven, iterations=20)
    same(extended(steady, 20), run)


def test_nearly_the_same_state_is_good_enough_in_a_long_round() -> None:
    # Rotating skews of 3 ps: after some steps each of its kind is taken to be like the last. The
    # first round, in which batches have to be waited for, is not nearly the second.
    step = StepPlan(
        compute=compute(3000, 7000), buckets=(bucket(0, 16, 0),), input_batch=9000, prefetch=2
    )
    other = replace(step, buckets=(bucket(0, 5000, 0),))
    schedule = in_turn([other, *[step] * 99])
    seen: list[int] = []

    def watch(wanted: CollectiveRecord, starts: Times, server_time: int, key: int) -> Times:
        seen.append(wanted.sent[0])
        return rotating(wanted, starts, server_time, key)

    exact = simulate_steady(schedule, ranks=30, execute=watch)
    simulated = len(seen)
    quick = simulate_steady(schedule, ranks=30, execute=watch, tolerance=1e-3)
    assert 2 * (len(seen) - simulated) < simulated
    assert (quick.exact, quick.period) == (False, 100)
    mean, found = (one.shift.mean() / one.period for one in (exact, quick))
    assert found == pytest.approx(mean, rel=1e-3)


def rotating(record: CollectiveRecord, starts: Times, server_time: int, key: int) -> Times:
    """The rank after the one that entered last leaves 3 later: a skew goes round the ring."""
    finishes = np.full_like(starts, starts.max() + 10)
    finishes[(starts.argmax() + 1) % len(starts)] += 3
    return finishes


def test_a_long_cycle_may_be_cut_short_within_a_tolerance() -> None:
    plan = StepPlan(compute=compute(300, 700), buckets=(bucket(0, 16, 0),))
    exact = simulate_steady(plan, ranks=30, execute=rotating)
    assert (exact.period, exact.exact) == (30, True)
    mean = exact.shift / 30
    quick = simulate_steady(plan, ranks=30, execute=rotating, tolerance=1e-3)
    assert (len(quick.run.finish), quick.exact) == (8, False)
    assert np.abs(quick.shift / quick.period / mean - 1).max() < 1e-3
    strict = simulate_steady(plan, ranks=30, execute=rotating, tolerance=1e-6)
    assert (strict.period, strict.exact) == (30, True)


@pytest.mark.parametrize(("like", "exact"), [("itself", True), ("equal", True), ("near", False)])
def test_a_state_that_comes_again_by_what_is_only_near_is_not_exact(like: Any, exact: bool) -> None:
    step = StepPlan(compute=compute(30, 70), buckets=(bucket(0, 6, 0),))
    schedule = in_turn([step, replace(step, optimizer=5)])
    begin = beginning(schedule, 2)
    late = replace(begin, start=np.array([0, 9]))
    search = Search(schedule, begin, tolerance=1e-6)
    took = np.array([100, 100])
    assert not search.add(Iteration(durations=took, parts={}, after=late, elapsed=100))
    assert search.add(Iteration(durations=took, parts={}, after=begin, elapsed=100), like)
    assert (search.result().period, search.result().exact) == (2, exact)


def test_batches_that_take_longer_than_the_clock_can_tell_are_refused() -> None:
    """Two of 3,000 hours are 2.16e19 ps; an int64 ends at 9.2e18."""
    batch = 3000 * 3600 * 10**12
    plan = StepPlan(
        compute=compute(30, 70), buckets=(bucket(0, 0, 0),), input_batch=batch, prefetch=2
    )
    with pytest.raises(InputError, match=r"2\.16e\+07 s, more than the .* days that the clock"):
        beginning(Schedule.of([plan], [0]), 2)
