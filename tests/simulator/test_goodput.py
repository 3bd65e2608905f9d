"""Goodput of a training that fails, against failures drawn one by one and a search."""

import math
import random
from fractions import Fraction
from pathlib import Path

import pytest

from gcsim.scenarios.run import run
from gcsim.simulator.clock import TooLongError
from gcsim.simulator.goodput import goodput, stretch
from gcsim.simulator.training import Failures
from tests.scenarios.files import check_mistake, load

SCENARIO = """
model: lenet
batch_size: 8
gradients: {source: synthetic, iterations: 1}
cluster: {nodes: [2, 4], device: v100, network: 1gbe}
training: {failures: {mtbf: 100 h, restart: 10 min, checkpoint: 1 min}}
compressors: [none]
"""


def failures(mtbf: float, restart: float, write: float, every: float | None = None) -> Failures:
    return Failures(
        mtbf=Fraction(mtbf),
        restart=Fraction(restart),
        checkpoint=Fraction(write),
        every=None if every is None else Fraction(every),
    )


def drawn(failing: Failures, nodes: int, stretches: int) -> float:
    """Share of useful time of so many stretches, second by second of a drawn training."""
    chance = random.Random(7)
    work, write = stretch(failing, nodes), float(failing.checkpoint)
    spent = 0.0
    next_failure = chance.expovariate(nodes / float(failing.mtbf))
    for _ in range(stretches):
        needed, done = work + write, False
        while not done:
            done = next_failure >= needed
            spent += min(needed, next_failure)
            if done:
                next_failure -= needed
                needed = work + write
            else:
                next_failure = chance.expovariate(nodes / float(failing.mtbf))
                needed = float(failing.restart) + work + write
    return stretches * work / spent


@pytest.mark.parametrize(
    ("failing", "nodes"),
    [
        (failures(100_000, 300, 60), 1),
        (failures(100_000, 300, 60), 16),
        (failures(100_000, 600, 30, 3600), 8),
    ],
)
def test_goodput_is_that_of_drawn_failures(failing: Failures, nodes: int) -> None:
    assert goodput(failing, nodes) == pytest.approx(drawn(failing, nodes, 40_000), rel=0.02)


@pytest.mark.parametrize("write", [1, 60, 900])
def test_the_interval_is_the_best_and_youngs_where_failures_are_rare(write: float) -> None:
    failing = failures(200_000, 300, write)
    best = max(goodput(failures(200_000, 300, write, 1.02**n), 4) for n in range(100, 650))
    assert goodput(failing, 4) == pytest.approx(best, rel=1e-3)
    if write == 1:
        assert stretch(failing, 4) == pytest.approx(math.sqrt(2 * 50_000 * write), rel=0.02)


def test_more_nodes_and_longer_checkpoints_cost_and_no_training_goes_on_for_ever() -> None:
    shares = [goodput(failures(10_000, 300, 60), nodes) for nodes in (1, 2, 8, 64)]
    assert shares == sorted(shares, reverse=True)
    assert goodput(failures(10_000, 300, 60), 64) > goodput(failures(10_000, 300, 90), 64)
    with pytest.raises(TooLongError, match="less than a millionth"):
        goodput(failures(1, 3600, 60), 1000)


def test_a_scenarios_cost_includes_it(tmp_path: Path) -> None:
    free, failing = (
        run(load(tmp_path, SCENARIO + "cost: {per_hour: 3}\n", *changes), cache=False)
        for changes in (("training.failures=null",), ())
    )
    for one, other in zip(free.rows, failing.rows, strict=True):
        assert other.iteration_s == one.iteration_s
        assert one.goodput is None
        expected = goodput(failures(360_000, 600, 60), other.nodes)
        assert other.goodput == expected
        assert one.cost_per_1000_iterations is not None
        assert other.cost_per_1000_iterations == one.cost_per_1000_iterations / expected
    check_mistake(
        tmp_path,
        SCENARIO.replace("mtbf: 100 h", "mtbf: 0 h"),
        "a.yaml:6:29: error: training.failures.mtbf: 0 h is zero; it must be more",
    )
