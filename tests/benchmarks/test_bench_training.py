"""Does the cost of a training step's exchanges grow with the workers, and not with their square?

`python tests/benchmarks/training_step.py` prints the milliseconds. Here the yardstick is the same
method with fewer workers: four times as many take about four times as long.
"""

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from gcsim.compressors.registry import REGISTRY
from tests.benchmarks.training_step import Training

pytestmark = pytest.mark.usefixtures("one_thread")
FEW, MANY = 4, 16
MOST = 8.0
"""Times as long; sixteen with a part for each pair of workers, or a decoding by each worker."""
IN_PAIRS = {"ok_topk", "onebit_sgd", "onebit_adam"}
"""All-to-alls: a message for each pair of workers."""


@pytest.mark.parametrize("name", REGISTRY)
def test_exchanges_of_a_step(benchmark: BenchmarkFixture, name: str) -> None:
    Training(name, 2).run()  # compiles the loops
    few = Training(name, FEW).milliseconds()["mean"]
    many = benchmark.pedantic(Training(name, MANY).milliseconds, rounds=1)["mean"]
    benchmark.extra_info.update(name=name, few=few, many=many)
    assert name in IN_PAIRS or many < MOST * few
