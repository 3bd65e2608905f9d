"""Are the shortcuts of a run from nothing worth what they are there for? Ratios within one run of
processor seconds on one thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import torch
from pytest_benchmark.fixture import BenchmarkFixture

from gcsim.compressors.bucket import Bucket, BucketLayout, TensorSlice
from gcsim.scenarios.load import load_scenario
from gcsim.scenarios.sweeps.tasks import Task, perform
from gcsim.scenarios.uncertainty import approximation
from gcsim.traces.stage1.quality import ErrorMeter

pytestmark = pytest.mark.usefixtures("one_thread")


def least(work: Callable[[], object], times: int = 4) -> float:
    """Processor seconds of the shortest call but the first."""
    found = []
    for _ in range(times):
        before = time.process_time()
        work()
        found.append(time.process_time() - before)
    return min(found[1:])


def test_errors_of_replicas_add_up_in_place(benchmark: BenchmarkFixture) -> None:
    """Beside means and copies of whole vectors, which are read and written again: 0.6 to 0.8."""
    numel = 1 << 23
    layout = BucketLayout(
        index=0, slices=(TensorSlice(index=0, name="w", shape=(numel,), offset=0),)
    )
    gradients = [torch.randn(numel) for _ in range(2)]
    buckets = [Bucket(layout=layout, gradient=each) for each in gradients]
    meter = ErrorMeter(numel, (0.0, False), apart=True)
    sums = [each.clone() for each in (*gradients, gradients[0])]

    def plain() -> None:
        mean = (gradients[0] + gradients[1]).div_(2)
        copies = [each.clone() for each in gradients]
        sums[:] = [new.add_(old) for new, old in zip((*copies, mean), sums, strict=True)]

    copied = least(plain, 8)
    in_place = benchmark.pedantic(lambda: least(lambda: meter.add(buckets, gradients), 8), rounds=1)
    print(f"\nerrors in place: {in_place / copied:.2f} of the time")
    assert in_place < 0.9 * copied


def test_points_of_a_sweep_share_the_drawn_trainings(
    benchmark: BenchmarkFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A point whose predecessor had the same training, beside one that starts anew."""
    scenario = load_scenario("lenet_2node", ["cluster.nodes=[2]"])

    def anew() -> None:
        approximation._LAST.clear()
        perform(Task(scenario=scenario))

    first = least(anew, 8)
    again = benchmark.pedantic(lambda: least(lambda: perform(Task(scenario=scenario)), 8), rounds=1)
    print(f"\na further point: {again / first:.2f} of the time")
    assert again < 0.95 * first
