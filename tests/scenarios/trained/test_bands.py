"""Does a band of a few seeds hold the next one as often as it says?"""

import math

import numpy as np
import pytest

from gcsim.scenarios.trained.bands import ALPHA, alike, band, grain, holm


def held(seeds: int, worlds_deviation: float, trials: int = 600) -> float:
    """The share of further seeds that their bands hold: log-normal seeds, log-normal worlds."""
    rng = np.random.default_rng(7)
    inside = 0
    for _ in range(trials):
        middle, deviation = rng.uniform(-1, 3), rng.uniform(0.02, 0.5)
        worlds = np.exp(np.concatenate([[0.0], rng.normal(0, worlds_deviation, 64)]))
        gains = [math.exp(rng.normal(middle, deviation)) * worlds for _ in range(seeds)]
        low, high = band(gains, 0.0)
        further = math.exp(rng.normal(middle, deviation) + rng.normal(0, worlds_deviation))
        inside += low <= further <= high
    return inside / trials


@pytest.mark.parametrize("worlds_deviation", [0.0, 0.2])
@pytest.mark.parametrize("seeds", [2, 3, 8])
def test_a_band_holds_four_of_five_further_seeds(seeds: int, worlds_deviation: float) -> None:
    """0.8 by its definition, somewhat more with two seeds over worlds, which Student's long tails
    widen; 600 trials have a deviation of 0.016."""
    assert 0.77 < held(seeds, worlds_deviation) < 0.87


def test_seeds_that_agree_differ_by_what_evaluations_hide() -> None:
    gains = [np.full(65, 2.0)] * 3
    assert band(gains, 0.0) == pytest.approx((2, 2))
    low, high = band(gains, grain(20, 100, 200))
    assert low * high == pytest.approx(4, rel=1e-4)
    # sqrt((0.2^2 + 0.1^2) / 12) * sqrt(1 + 1/3) * Student's 90 % with 2 degrees of freedom
    assert math.log(high / 2) == pytest.approx(0.0645 * 1.1547 * 1.886, rel=0.03)


def test_two_seeds_in_one_world_have_a_finite_band() -> None:
    """Without draws, too, the ends are Student's percentiles: 3.078 with one degree of freedom."""
    low, high = band([np.full(2, 2.0)] * 2, grain(20, 20, 20))
    assert low * high == pytest.approx(4, rel=1e-3)
    assert math.log(high / 2) == pytest.approx(math.sqrt(1 / 6) * math.sqrt(1.5) * 3.078, rel=0.03)


def test_a_seed_that_does_not_reach_the_target_is_in_the_band_as_nothing() -> None:
    gains = [np.full(65, 2.0), np.full(65, 2.2), np.zeros(65)]
    assert band(gains, 0.1) == pytest.approx((0, 2.2))


def test_one_seed_has_the_worlds_alone() -> None:
    worlds = np.concatenate([[1.0], np.linspace(1, 2, 101)])
    assert band([worlds], 0.1) == pytest.approx((1.1, 1.9))


def test_one_seed_tells_nothing_apart() -> None:
    """In all worlds one is twice as fast: of seeds that is a sample of one, whose sign test has
    2 / 2^1."""
    assert alike([np.full(65, 2.0)], 0.1) == 1.0


@pytest.mark.parametrize(("slower", "least", "most"), [(1.0, 0.05, 0.125), (2.0, 0.9, 1.0)])
def test_methods_that_are_alike_are_rarely_told_apart_in_any_comparison(
    slower: float, least: float, most: float
) -> None:
    """The definition of a family-wise error: 10 % at most of ten methods that share a first one
    (their comparisons depend on each other); of 600 trials the deviation is 0.012. Methods of half
    the speed are told apart from it with seeds that deviate by a twentieth."""
    rng = np.random.default_rng(11)
    found = 0
    for _ in range(600):
        seconds = np.exp(rng.normal(0.0, 0.05, (11, 5)))
        gains = [
            [
                np.full(3, first / (slower * other))
                for first, other in zip(seconds[0], one, strict=True)
            ]
            for one in seconds[1:]
        ]
        adjusted = holm([alike(each, 0.0) for each in gains])
        found += min(adjusted) <= ALPHA
    assert least <= found / 600 <= most


def test_drawn_clusters_are_equally_likely() -> None:
    """Of three seeds with logarithms 0.1, 0.2 and 0.3 and two clusters that add 0 and -0.2, t is
    0.2 / (0.1 / sqrt(3)) and 0; its probability with two degrees of freedom has a closed form."""
    logs, clusters = (0.1, 0.2, 0.3), np.array([0.0, 0.0, -0.2])
    t = 2 * math.sqrt(3)
    slower = (0.5 - t / (2 * math.sqrt(2 + t * t)) + 0.5) / 2
    assert alike([np.exp(one + clusters) for one in logs], 0.0) == pytest.approx(2 * slower)


def test_a_seed_that_misses_the_target_leaves_the_sign_test() -> None:
    """Three seeds of one side have 2 / 2^3, two of three tell nothing."""
    slow, missed = np.full(3, 0.5), np.zeros(3)
    assert alike([slow, slow, missed], 0.1) == 0.25
    assert alike([np.full(3, 2.0), slow, missed], 0.1) == 1.0


def test_holm_steps_down() -> None:
    """0.01, 0.04, 0.03 and 0.005 by hand: 4 x 0.005, 3 x 0.01, 2 x 0.03, then the largest again
    (Holm 1979)."""
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
