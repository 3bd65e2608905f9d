"""Steps for the oracle of `tick.py`, and what it makes of them as the engines return it."""

from collections.abc import Callable, Sequence

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from gcsim.compressors.lockstep import CollectiveRecord
from gcsim.simulator.clock import Times
from gcsim.simulator.devices.training_time import ComputeTimes
from gcsim.simulator.steps.step_plan import BucketWork, CarryOut, Job, Run, StepPlan
from tests.simulator.steps.random_plans import gathering, orders, record
from tests.simulator.steps.tick import Tick


def played(
    plans: StepPlan | Sequence[StepPlan],
    ranks: int,
    execute: CarryOut,
    iterations: int,
    slowdown: Callable[[int], NDArray[np.float64] | None],
    seed: int,
) -> Run:
    """What the engines return, by the oracle."""
    given = [plans] if isinstance(plans, StepPlan) else plans
    found = Tick(
        *given, ranks=ranks, execute=execute, iterations=iterations, slowdown=slowdown, seed=seed
    )
    return Run(
        finish=np.array(found.finish),
        parts={part: np.array(rows) for part, rows in found.parts.items()},
    )


def at_random(wanted: CollectiveRecord, starts: Times, server_time: int, key: int) -> Times:
    """Ranks leave as the collective's key and their number say."""
    random = np.random.default_rng(key)
    late: Times = starts.max() + wanted.sent[0] + random.integers(0, 8, len(starts))
    return late


def lagging(wanted: CollectiveRecord, starts: Times, server_time: int, key: int) -> Times:
    """A rank leaves so much later as it entered later, one much later than all others."""
    late: Times = starts.max() + (starts - starts.min()) + wanted.sent[0]
    late[key % len(late)] += 9
    return late


times = st.integers(0, 6)
KINDS = ("encode", "decode")


@st.composite
def plans(draw: st.DrawFn, side: bool | None = None) -> StepPlan:
    """Small steps with many ties."""
    count = draw(st.integers(0, 4))
    backward = draw(st.lists(times, min_size=count, max_size=count))

    def jobs(low: int, high: int) -> tuple[Job, ...]:
        found = draw(
            st.lists(st.tuples(st.sampled_from(KINDS), times), min_size=low, max_size=high)
        )
        return tuple(
            Job(kind="encode" if kind == "encode" else "decode", name="", duration=time)
            for kind, time in found
        )

    buckets = []
    for _ in range(count):
        collectives = tuple(map(record, draw(st.lists(times, max_size=3))))
        buckets.append(
            BucketWork(
                before=jobs(0, 2),
                collectives=collectives,
                server_times=tuple(draw(st.sampled_from([0, 3])) for _ in collectives)
                if draw(st.booleans())
                else (),
                exit_delays=tuple(draw(st.sampled_from([0, 2])) for _ in collectives)
                if draw(st.booleans())
                else (),
                after=jobs(len(collectives), len(collectives)),
            )
        )
    whole = draw(gathering(buckets)) if buckets else buckets
    return StepPlan(
        compute=ComputeTimes(
            forward=draw(times),
            backward=sum(backward) + draw(st.sampled_from([0, 3])),
            parts=tuple(backward),
            provenance="test",
        ),
        buckets=tuple(draw(st.just(whole) | orders(whole))),
        side_stream=draw(st.booleans()) if side is None else side,
        side_slowdown=draw(st.fractions(1, 2, max_denominator=3)),
        optimizer=draw(st.sampled_from([0, 2])),
        accumulation=draw(st.integers(1, 3)),
        backward_alone=draw(st.none() | times),
        input_batch=draw(st.sampled_from([0, 0, 4, 15])),
        prefetch=draw(st.integers(1, 3)),
    )


@st.composite
def pacings(draw: st.DrawFn, ranks: int) -> Callable[[int], NDArray[np.float64] | None]:
    """Paces, other ones in each iteration; sometimes of 0, often of 1."""
    seed = draw(st.none() | st.integers(0, 99))
    if seed is None:
        return lambda _: None
    values = np.array([0.0, 0.25, 0.9, 1.0, 1.0, 1.3, 2.0, 3.0])

    def slowdown(iteration: int) -> NDArray[np.float64] | None:
        random = np.random.default_rng([seed, iteration])
        return random.choice(values, ranks) if random.random() < 0.8 else None

    return slowdown
