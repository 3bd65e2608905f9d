"""Methods between which luck decides are simulated for longer, and others are not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gcsim.scenarios.uncertainty.close_pairs import DOUBLINGS, luck_of, resolve_close_pairs
from gcsim.simulator.luck import Luck, error_of_difference, standard_error
from gcsim.simulator.predict import Prediction

EXACT = Prediction(
    workers=4, iteration=1.0, forward=0.5, backward=0.5, encode=0.0, communication=0.0,
    exposed=0.0, decode=0.0, optimizer=0.0, input=0.0, iteration_p5=None, iteration_p95=None,
    iteration_error=None, algorithms=(), sample_phase="step", spans=(),
)  # fmt: skip


class World:
    """Methods whose iterations are a mean and noise, some of which all share."""

    def __init__(self, *means: float, own: float = 0.05, shared: float = 0.0) -> None:
        self.means, self.own, self.shared = means, own, shared
        self.asked: list[tuple[int, int]] = []

    def predict(self, number: int, factor: int) -> Prediction:
        """Over 100 iterations times a factor; the first iterations are always the same."""
        if factor > 1:
            self.asked.append((number, factor))
        count = 100 * factor
        noise = np.random.default_rng(number).normal(size=800)[:count]
        luck = np.random.default_rng(99).normal(size=800)[:count]
        times = self.means[number] + self.own * noise + self.shared * luck
        batches = tuple(times.reshape(10, -1).mean(1).tolist())
        return replace(
            EXACT, iteration=float(times.mean()), iterations=count, batches=batches,
            iteration_error=standard_error(batches),
        )  # fmt: skip

    def found(self, dense: int | None = None) -> list[Prediction]:
        first = [self.predict(number, 1) for number in range(len(self.means))]
        return resolve_close_pairs(first, dense, self.predict)


def test_what_is_told_apart_is_simulated_once() -> None:
    world = World(1.0, 2.0, 3.0)
    assert [one.iterations for one in world.found(dense=2)] == [100, 100, 100]
    assert world.asked == []


def test_the_leading_pair_is_simulated_until_it_is_told_apart() -> None:
    # 2 % apart; each mean is known to 0.05 / sqrt(100) = 0.5 %, the difference to 0.7 %
    world = World(1.0, 1.02, 2.0, own=0.1)
    found = world.found()
    assert found[2].iterations == 100
    assert found[0].iterations == found[1].iterations
    assert (found[0].iterations or 0) > 100
    doubt = 2 * error_of_difference(luck_of(found[0]), luck_of(found[1]))
    assert found[1].iteration - found[0].iteration > doubt or found[0].iterations == 800


def test_there_is_an_end() -> None:
    world = World(1.0, 1.0, own=0.5)
    assert [one.iterations for one in world.found()] == [800, 800]
    assert [factor for number, factor in world.asked if number == 0] == [2, 4, 8]
    assert len(world.asked) == 2 * DOUBLINGS


def test_dense_is_told_from_the_best_method_too() -> None:
    # dense is the slower one of the near pair, or the fastest of all
    assert World(1.0, 3.0, 1.01, own=0.1).found(dense=0)[1].iterations == 100
    asked = World(3.0, 1.0, 1.005, 1.01, own=0.1)
    asked.found(dense=3)
    assert {number for number, _ in asked.asked} >= {1, 3}


def test_shared_luck_needs_no_more_iterations() -> None:
    # alone, each mean is known to 5 %; their difference is exact
    world = World(1.0, 1.02, own=0.0, shared=0.5)
    world.found()
    assert world.asked == []


def test_the_timeline_is_that_of_the_first_prediction() -> None:
    world = World(1.0, 1.0, own=0.5)
    first = [replace(world.predict(number, 1), sample_phase=f"phase {number}") for number in (0, 1)]
    assert [one.sample_phase for one in resolve_close_pairs(first, None, world.predict)] == [
        "phase 0", "phase 1",
    ]  # fmt: skip


def test_nothing_random_is_exact() -> None:
    assert resolve_close_pairs([EXACT, EXACT], 0, lambda *_: pytest.fail("asked")) == [EXACT, EXACT]


def test_a_difference_is_known_as_its_batches_differ() -> None:
    one, other = (
        Luck(iterations=40, batches=batches, error=standard_error(batches))
        for batches in ((1.0, 2.0, 3.0, 4.0), (2.0, 3.0, 4.0, 5.5))
    )
    # differences 1, 1, 1, 1.5: standard deviation 0.25, of four
    assert error_of_difference(one, other) == pytest.approx(0.125)
    alone = replace(other, iterations=80)
    assert error_of_difference(one, alone) == pytest.approx(
        (standard_error(one.batches) ** 2 + standard_error(other.batches) ** 2) ** 0.5  # type: ignore[operator]
    )
    assert standard_error(()) is None
