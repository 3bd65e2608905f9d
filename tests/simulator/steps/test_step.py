"""Does the simulated iteration do what its protocol says?

The oracle (`tick.py`) advances one picosecond at a time, rank by rank, without SimPy and without
classes of ranks; it is written from the rules of `step_plan.py`.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import simpy
from hypothesis import given
from hypothesis import strategies as st

from gcsim.compressors.lockstep import CollectiveRecord
from gcsim.errors import InternalError
from gcsim.simulator.clock import Times, TooLongError
from gcsim.simulator.devices.training_time import ComputeTimes
from gcsim.simulator.steps.events.communicator import Communicator, Request
from gcsim.simulator.steps.events.input_loader import Loader
from gcsim.simulator.steps.events.step import simulate
from gcsim.simulator.steps.step_plan import BucketWork, CarryOut, Run, StepPlan
from tests.simulator.steps.random_plans import (
    all_paces,
    bucket,
    compute,
    contrary,
    first_come,
    fixed,
    in_pairs,
    in_turn,
    keyed,
    plans,
    rounds,
    same,
    skewed,
)
from tests.simulator.steps.tick import PARTS, Tick


class Slowest:
    """One iteration of the rank that ends it last (ties: the lowest)."""

    def __init__(self, run: Run, iteration: int = -1) -> None:
        self.rank = int(run.finish[iteration].argmax())
        self.iteration = int(run.finish[iteration, self.rank])
        for part in PARTS:
            setattr(self, part, int(run.parts[part][iteration, self.rank]))
        self.spans = run.spans

    forward: int
    backward: int
    encode: int
    exposed: int
    decode: int
    communication: int
    optimizer: int
    input: int


def once(
    times: ComputeTimes,
    work: Sequence[BucketWork],
    *,
    ranks: int,
    execute: CarryOut,
    spans: bool = False,
    lengths: CarryOut = fixed,
) -> Slowest:
    """`lengths` are those of collectives by which a stream's order of service is found."""
    plan = first_come(StepPlan(compute=times, buckets=tuple(work)), lengths, ranks)
    return Slowest(simulate(plan, ranks=ranks, execute=execute, spans=spans))


@given(
    work=rounds(),
    ranks=st.integers(1, 4),
    iterations=st.integers(1, 5),
    how=st.sampled_from([fixed, skewed, in_pairs, keyed, contrary]),
    data=st.data(),
)
def test_any_small_run_is_the_tick_by_tick_simulation(
    work: list[StepPlan], ranks: int, iterations: int, how: CarryOut, data: st.DataObject
) -> None:
    arguments: dict[str, Any] = {
        "ranks": ranks,
        "execute": how,
        "iterations": iterations,
        "slowdown": data.draw(all_paces(ranks, iterations)).__getitem__,
        "seed": data.draw(st.integers(0, 3)),
    }
    few, many = (
        simulate(in_turn(work), **arguments, collapse=collapse, spans=True)
        for collapse in (True, False)
    )
    same(few, Tick(*work, **arguments))
    # Simulating ranks in classes changes nothing, to the last span.
    same(few, many)
    assert few.spans == many.spans
    begin = np.vstack([np.zeros(ranks, dtype=np.int64), few.finish[:-1]])
    total = sum(few.parts[part] for part in PARTS if part != "communication")
    assert np.array_equal(few.finish - begin, total)


@given(plan=plans(), ranks=st.integers(1, 4), iterations=st.integers(1, 3))
def test_spans_never_overlap_on_a_resource_and_add_up(
    plan: StepPlan, ranks: int, iterations: int
) -> None:
    run = simulate(plan, ranks=ranks, execute=skewed, iterations=iterations, spans=True)
    for rank in range(ranks):
        spent: Counter[str] = Counter()
        own = [span for span in run.spans if span.rank == rank]
        assert own == sorted(own, key=lambda span: span.start)
        for name in ("compute", "side", "communicator", "loader"):
            spans = [span for span in own if span.resource == name and span.kind != "wait"]
            assert all(first.end <= second.start for first, second in pairwise(spans))
        for span in own:
            spent[span.kind] += span.end - span.start
        part = {name: int(run.parts[name][-1, rank]) for name in PARTS}
        for name in ("forward", "backward", "optimizer"):
            assert spent[name] == part[name]
        assert spent["all_reduce"] + spent["all_gather"] == part["communication"]
        assert spent["wait"] == part["input"]
        where = {span.resource for span in own if span.kind in {"encode", "decode"}}
        assert where <= ({"side"} if plan.side_stream else {"compute"})
        if not plan.side_stream:
            assert (spent["encode"], spent["decode"]) == (part["encode"], part["decode"])
        begin = int(run.finish[-2, rank]) if iterations > 1 else 0
        assert all(begin <= span.start for span in own)
        assert max((span.end for span in own), default=begin) == int(run.finish[-1, rank])


@given(
    asks=st.lists(st.integers(0, 40), max_size=8).map(sorted),
    batch=st.integers(1, 12),
    prefetch=st.integers(1, 4),
    later=st.integers(0, 30),
)
def test_a_loader_knows_when_its_next_batches_will_be_made(
    asks: list[int], batch: int, prefetch: int, later: int
) -> None:
    loader = Loader(batch, prefetch)
    now = 0
    for ask in asks:
        now = loader.take(max(now, ask))
    now += later
    ahead = loader.ahead(now)
    assert len(ahead) == prefetch
    other = Loader(batch, prefetch, ahead, now)  # goes on from there
    assert other.ahead(now) == ahead
    assert list(ahead) == [loader.take(now) - now for _ in range(prefetch)]
    assert list(ahead) == [other.take(now) - now for _ in range(prefetch)]
    for ask in asks:
        now = loader.take(now + ask)
        assert other.take(max(now - batch, now)) == now


def test_a_collective_that_ends_before_its_last_entry_is_our_bug() -> None:
    def early(wanted: CollectiveRecord, starts: Times, server_time: int, key: int) -> Times:
        return starts - 1

    with pytest.raises(InternalError, match="in the past"):
        once(compute(0, 10), [bucket(0, 1, 5)], ranks=2, execute=early)


def test_a_deadlock_is_reported_with_who_waits_for_what(monkeypatch: pytest.MonkeyPatch) -> None:
    ask = Communicator.ask

    def forgetful(
        self: Communicator, member: int, name: tuple[int, int, int], request: Request
    ) -> simpy.Event:
        return simpy.Environment().event() if member == 1 else ask(self, member, name, request)

    monkeypatch.setattr(Communicator, "ask", forgetful)
    plan = StepPlan(compute=compute(0, 10), buckets=(bucket(0, 1, 5),))
    with pytest.raises(
        InternalError,
        match=r"deadlock at 10 ps in iteration 0; iteration 0 bucket 0 .* waits for 1",
    ):
        simulate(plan, ranks=2, execute=fixed, collapse=False)


def test_a_missing_exchange_is_our_bug() -> None:
    with pytest.raises(InternalError, match="1 exchanges for 2 buckets"):
        once(compute(0, 1, 2), [bucket(0)], ranks=1, execute=fixed)


def test_a_loader_that_keeps_nothing_is_our_bug() -> None:
    plan = StepPlan(compute=compute(0, 1), buckets=(bucket(0),), input_batch=1, prefetch=0)
    with pytest.raises(InternalError, match="keeps 0 batches"):
        simulate(plan, ranks=1, execute=fixed)


def test_times_beyond_the_clock_are_reported() -> None:
    plan = StepPlan(compute=compute(2**61, 2**60), buckets=(bucket(0),))
    with pytest.raises(TooLongError, match=r"iteration 1 .* 53 days .* a step takes 40 days"):
        simulate(plan, ranks=2, execute=fixed, iterations=2)  # 1.5 * 2**61 ps each
