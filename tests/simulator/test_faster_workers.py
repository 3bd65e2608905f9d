"""Does a worker that computes faster never make an iteration longer?

Every time of a step is a sum or a maximum of those before (`steps/step_plan.py`), and so it must be
for all methods, transports, paces and random paces: 1 slow worker costs no more than 4 slow ones.
"""

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from functools import cache
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from gcsim.compressors.bucket import Bucket, BucketLayout, TensorSlice
from gcsim.compressors.registry import REGISTRY, checked_parameters, compressor_class
from gcsim.scenarios.catalog import device, link
from gcsim.simulator.clock import Times
from gcsim.simulator.cluster import Cluster, Collectives
from gcsim.simulator.devices.training_time import ComputeTimes
from gcsim.simulator.predict import predict
from gcsim.simulator.steps.step_plan import CarryOut, StepPlan
from gcsim.simulator.steps.vectors import simulate
from gcsim.simulator.training import Noise, Training
from gcsim.traces.profile import ModelFacts, TrafficProfile
from gcsim.traces.stage1.measure import Subject, measure
from tests.simulator.steps.random_plans import fixed, skewed
from tests.simulator.steps.step_oracle import plans

SIDE = 64
LAYOUTS = tuple(
    BucketLayout(
        index=number,
        slices=(TensorSlice(name=f"w{number}", shape=(rows, SIDE), offset=0, index=3 - number),),
    )
    for number, rows in enumerate((16, 128, 512, 256))
)
MILLISECOND = 10**9
COMPUTE = ComputeTimes(
    forward=MILLISECOND, backward=2 * MILLISECOND, parts=(MILLISECOND // 2,) * 4, provenance="test"
)
WORKERS = 4
FEW = 3
"""Steps of a phase that are simulated: a period of a thousand keeps no other law."""


class Normal:
    """Gradients of one kind."""

    workers, iterations = 2, 2
    facts = ModelFacts(name="toy", parameters=1, layers=(), samples_per_worker=4)
    moment_costs: ClassVar[dict[int, tuple[()]]] = {}

    def bucket(
        self, layout: BucketLayout, iteration: int, worker: int, second_moments: bool = False
    ) -> Bucket:
        generator = torch.Generator().manual_seed(100 * layout.index + 10 * iteration + worker)
        gradient = torch.randn(layout.numel, generator=generator)
        moment = gradient.square() / 2 if second_moments else None
        return Bucket(layout=layout, gradient=gradient, second_moment=moment)


@cache
def profile(kind: str) -> TrafficProfile:
    cls = compressor_class(kind)
    subject = Subject(kind=kind, compressor=cls, parameters=checked_parameters(kind, cls, {}))
    whole = measure([subject], Normal(), LAYOUTS, workers=2, seed=0, provenance={})[0]
    short = [replace(p, count=min(p.count, FEW), steps=p.steps[:FEW]) for p in whole.phases]
    return replace(whole, phases=tuple(short), period=sum(p.count for p in short), order=())


def cluster(**collectives: Any) -> Cluster:
    return Cluster(
        nodes=WORKERS,
        devices_per_node=1,
        device=device("p100_pcie"),
        network=link("10gbe"),
        intra_node=link("pcie3_x16"),
        collectives=Collectives(**collectives),
    )


def iteration(kind: str, where: Cluster, slow: Mapping[int, Fraction], **training: Any) -> float:
    chosen = Training(slow_workers=dict(slow), **training)
    return predict(profile(kind), where, COMPUTE, training=chosen, spans=False).iteration


PICOSECOND = 1e-12
"""To which the steps of a ring are rounded."""
FAIR = 5e-4
"""Of an iteration: messages that cross one link at a time share it fairly, so that one that comes
sooner takes a share of another's."""
NOISE = {"noise": Noise(variation=Fraction(1, 50)), "iterations": 10}
FACTOR = Fraction(11, 10)


def never_falls(
    kind: str, where: Cluster, factor: Fraction, slack: float = 0.0, **more: Any
) -> None:
    """With no, one and all workers slow."""
    times = [
        iteration(kind, where, dict.fromkeys(range(slow), factor), **more)
        for slow in (0, 1, WORKERS)
    ]
    least = -PICOSECOND - slack * times[0]
    assert min(after - before for before, after in pairwise(times)) >= least, times


@pytest.mark.parametrize(
    "kind", ["none", "terngrad", "powersgd", "variance", "qsparse_local_sgd", "onebit_adam"]
)
def test_of_methods_that_broke_it(kind: str) -> None:
    never_falls(kind, cluster(transport="gloo"), FACTOR)


@pytest.mark.long
@pytest.mark.parametrize("kind", REGISTRY)
def test_of_every_method_on_every_transport(kind: str) -> None:
    for transport in ("textbook", "gloo", "nccl", "mpich"):
        where = cluster(transport=transport)
        never_falls(kind, where, FACTOR)
    where = cluster(transport="gloo")
    never_falls(kind, where, 5 * FACTOR)
    never_falls(kind, where, FACTOR, encode_on="side")
    never_falls(kind, where, FACTOR, FAIR, **NOISE)
    never_falls(kind, cluster(transport="gloo", servers=2), FACTOR)


@given(
    plan=plans(),
    slow=st.lists(st.sampled_from([0.9, 1.0, 1.0, 1.3, 2.0, 3.0]), min_size=1, max_size=4),
    faster=st.sampled_from([0.25, 0.5, 0.9]),
    how=st.sampled_from([fixed, skewed]),
    data=st.data(),
)
def test_of_any_plan_in_any_order(
    plan: StepPlan, slow: list[float], faster: float, how: CarryOut, data: st.DataObject
) -> None:
    paces = np.array(slow)
    other = paces.copy()
    other[data.draw(st.integers(0, len(slow) - 1))] *= faster

    def finish(of: NDArray[np.float64]) -> Times:
        run = simulate(plan, ranks=len(slow), execute=how, iterations=3, slowdown=lambda _: of)
        return run.finish

    assert (finish(other) <= finish(paces)).all()
