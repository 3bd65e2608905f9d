"""Do ranks that share a machine's cores get on as processor sharing says?

The oracle is the tick-by-tick simulation (`tick.py`), in which the jobs under way on a machine are
counted at every picosecond and each gets on by its share of it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gcsim.errors import InternalError
from gcsim.scenarios.catalog import device
from gcsim.simulator.cluster import Cluster
from gcsim.simulator.host import Host
from gcsim.simulator.network.links import Link
from gcsim.simulator.steps import vectors as vector_step
from gcsim.simulator.steps.events.step import simulate
from gcsim.simulator.steps.step_plan import CarryOut, Kind, Machines, StepPlan
from tests.simulator.steps.random_plans import (
    all_paces,
    bucket,
    compute,
    contrary,
    fixed,
    in_pairs,
    keyed,
    plans,
    same,
    skewed,
)
from tests.simulator.steps.tick import Piece, Tick

EVERYTHING: frozenset[Kind] = frozenset({"forward", "backward", "encode", "decode", "optimizer"})


@dataclass
class OnCores(Piece):
    """A piece whose jobs get on as fast as somebody tells them to."""

    place: int = 0
    done: Fraction = field(default_factory=Fraction)
    ended: int | None = None

    @property
    def end(self) -> int | None:
        return self.ended

    def kind(self, now: int) -> str:
        return self.jobs[self.place][0]

    def skip(self, now: int) -> None:
        while self.place < len(self.jobs) and self.done >= self.jobs[self.place][1]:
            self.place, self.done = self.place + 1, Fraction(0)
        if self.place == len(self.jobs):
            self.ended = now


class SharedTick(Tick):
    """The step's oracle, with cores that are shared; ranks that are ahead do not stop."""

    times_as_many = 12
    made_of = OnCores

    def account(self) -> None:
        """Everything under way gets on by what it has of this picosecond."""
        under_way = [(rank, piece) for (rank, _), piece in self.running.items() if piece]
        for _, piece in under_way:
            assert isinstance(piece, OnCores)
            piece.skip(self.now)
        super().account()
        machines = self.plan.machines
        assert machines is not None
        serialization = [0] * (max(machines.of_rank) + 1)
        shared = [(rank, piece) for rank, piece in under_way if piece.kind(0) in machines.kinds]
        for rank, _ in shared:
            serialization[machines.of_rank[rank]] += 1
        for rank, piece in under_way:
            assert isinstance(piece, OnCores)
            on_cores = (rank, piece) in shared
            number = serialization[machines.of_rank[rank]] if on_cores else 0
            piece.done += min(Fraction(1), Fraction(machines.cores, number)) if number else 1
            piece.skip(self.now + 1)


@given(
    plan=plans(),
    ranks=st.integers(1, 4),
    iterations=st.integers(1, 3),
    how=st.sampled_from([fixed, skewed, in_pairs, keyed, contrary]),
    cores=st.integers(1, 3),
    kinds=st.sampled_from(
        [EVERYTHING, frozenset({"encode", "decode"}), frozenset({"backward", "encode"})]
    ),
    data=st.data(),
)
def test_any_small_run_is_the_tick_by_tick_simulation(
    plan: StepPlan,
    ranks: int,
    iterations: int,
    how: CarryOut,
    cores: int,
    kinds: Any,
    data: st.DataObject,
) -> None:
    of_rank = data.draw(st.lists(st.integers(0, 1), min_size=ranks, max_size=ranks))
    slowdowns = data.draw(all_paces(ranks, iterations))
    plan = replace(plan, machines=Machines(cores=cores, of_rank=tuple(of_rank), kinds=kinds))
    arguments: dict[str, Any] = {
        "ranks": ranks,
        "execute": how,
        "iterations": iterations,
        "slowdown": lambda iteration: slowdowns[iteration % iterations],
    }
    run = simulate(plan, **arguments, spans=True)
    same(run, SharedTick(plan, **arguments))
    # Simulating ranks in classes changes nothing, to the last span.
    alone = simulate(plan, **arguments, spans=True, collapse=False)
    same(run, alone)
    assert run.spans == alone.spans


@given(
    plan=plans(),
    ranks=st.integers(1, 4),
    how=st.sampled_from([fixed, skewed, contrary]),
    slots=st.sampled_from([1, 2]),
)
def test_a_core_for_every_stream_is_none_shared(
    plan: StepPlan, ranks: int, how: CarryOut, slots: Any
) -> None:
    plan = replace(plan, slots=slots)
    machines = Machines(cores=2 * ranks, of_rank=(0,) * ranks, kinds=EVERYTHING)
    for changed in (replace(plan, machines=machines), replace(machines, kinds=frozenset())):
        shared = changed if isinstance(changed, StepPlan) else replace(plan, machines=changed)
        same(
            simulate(shared, ranks=ranks, execute=how, iterations=3),
            simulate(plan, ranks=ranks, execute=how, iterations=3),
        )


@given(plan=plans(), ranks=st.integers(2, 4))
def test_ranks_that_do_the_same_take_as_many_times_as_long_as_there_are_ranks_a_core(
    plan: StepPlan, ranks: int
) -> None:
    """On one core, without side streams and loaders: every job stretched `ranks` times."""
    plan = replace(plan, side_stream=False, input_batch=0)
    machines = Machines(cores=1, of_rank=(0,) * ranks, kinds=EVERYTHING)
    slowdown: Callable[[int], Any] = lambda _: np.full(ranks, float(ranks))  # noqa: E731
    same(
        simulate(replace(plan, machines=machines), ranks=ranks, execute=fixed, iterations=2),
        simulate(plan, ranks=ranks, execute=fixed, iterations=2, slowdown=slowdown),
    )


def test_who_comes_later_has_less_competition_at_the_end() -> None:
    # Rank 1 leaves the collective 30 later. Rank 0 decodes alone from 20 to 50 (30 of its 40),
    # both from 50 on at half speed: rank 0 until 70 (10 more), rank 1 alone from 70 (10 done).
    def uneven(wanted: Any, starts: Any, server_time: int, key: int) -> Any:
        return np.array([starts.max() + 10, starts.max() + 40], dtype=np.int64)

    machines = Machines(cores=1, of_rank=(0, 0), kinds=frozenset({"decode"}))
    plan = StepPlan(compute=compute(0, 10), buckets=(bucket(0, 1, 40),), machines=machines)
    run = simulate(plan, ranks=2, execute=uneven)
    assert run.finish.tolist() == [[70, 100]]
    assert run.parts["decode"].tolist() == [[50, 50]]


def test_a_job_ends_at_the_first_whole_picosecond_at_which_it_has_had_its_work() -> None:
    machines = Machines(cores=2, of_rank=(0, 0, 0), kinds=frozenset({"forward"}))
    plan = StepPlan(compute=compute(7, 10), buckets=(bucket(0),), machines=machines)
    run = simulate(plan, ranks=3, execute=fixed)
    assert run.parts["forward"].tolist() == [[11, 11, 11]]  # 7 at 2/3 of the speed: 10.5
    assert run.finish.tolist() == [[21, 21, 21]]


def test_vectors_refuse_shared_cores() -> None:
    machines = Machines(cores=1, of_rank=(0, 0), kinds=EVERYTHING)
    plan = StepPlan(compute=compute(7, 10), buckets=(bucket(0),), machines=machines)
    with pytest.raises(InternalError, match="share cores"):
        vector_step.simulate(plan, ranks=2, execute=fixed)


@pytest.mark.parametrize("cores", [1, 2, 3, 4, 5])
def test_a_rank_that_encodes_beside_its_passes_needs_two_cores(cores: int) -> None:
    kinds: frozenset[Kind] = frozenset({"forward", "backward", "encode", "decode"})
    link = Link(name="wire", bandwidth=Fraction(10**9), latency=Fraction(0), source="toy")
    cluster = Cluster(
        nodes=2, devices_per_node=1, device=device("cpu_2core"), network=link, intra_node=link,
        host=Host(cores=cores, per_message=Fraction(0), ranks="all"),
    )  # fmt: skip
    beside, behind = (Machines.of(cluster, kinds, side_stream=side) for side in (True, False))
    assert (beside is None) == (cores >= 4)  # two ranks, two streams each
    assert (behind is None) == (cores >= 2)
    encoding = Machines.of(cluster, frozenset({"encode"}), side_stream=True)
    assert (encoding is None) == (cores >= 2)
