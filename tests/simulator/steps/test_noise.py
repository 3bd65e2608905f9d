"""Are the factors on computation what the scenario says, and nobody else's business?

Statistical tolerances are five standard errors of the estimate: with fixed seeds nothing here
fails at random.
"""

from fractions import Fraction
from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from gcsim.simulator.steps.noise import longest, slowdowns
from gcsim.simulator.training import Noise

RANKS = 200_000
DISTRIBUTIONS: tuple[Literal["lognormal", "gamma"], ...] = ("lognormal", "gamma")
VARIATIONS = [Fraction(1, 100), Fraction(1, 10), Fraction(1, 2), Fraction(2)]


def spread(noise: Noise, seed: int = 1) -> NDArray[np.float64]:
    return slowdowns(noise, seed, 0, RANKS)


def standard(distribution: str, variation: float) -> stats.rv_continuous:
    if distribution == "gamma":
        return stats.gamma(a=variation**-2, scale=variation**2)
    sigma = np.sqrt(np.log1p(variation**2))
    return stats.lognorm(s=sigma, scale=np.exp(-(sigma**2) / 2))


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@pytest.mark.parametrize("variation", VARIATIONS)
def test_mean_and_variation(distribution: str, variation: Fraction) -> None:
    found = spread(Noise(distribution=distribution, variation=variation))  # type: ignore[arg-type]
    c = float(variation)
    assert abs(found.mean() - 1) < 5 * c / np.sqrt(RANKS)
    # The standard error of a variance is sqrt((kurtosis - 1) / n) times it.
    kurtosis = 3 + float(standard(distribution, c).stats("k"))
    assert abs(found.var() / c**2 - 1) < 5 * np.sqrt((kurtosis - 1) / RANKS)
    assert (found >= 0).all()


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@pytest.mark.parametrize("variation", VARIATIONS)
def test_the_whole_distribution(distribution: str, variation: Fraction) -> None:
    found = spread(Noise(distribution=distribution, variation=variation))  # type: ignore[arg-type]
    # The grid of 2^-32 puts ties where the density is infinite (gamma with c > 1): half a step.
    distance = stats.kstest(found + 2.0**-33, standard(distribution, float(variation)).cdf)
    assert distance.pvalue > 1e-3


@pytest.mark.parametrize("probability", [Fraction(1, 1000), Fraction(1, 10), Fraction(1)])
def test_slow_workers_are_as_many_and_as_slow_as_it_says(probability: Fraction) -> None:
    found = spread(Noise(slow_probability=probability, slow_factor=Fraction(7, 2)))
    assert set(np.unique(found)) <= {1.0, 3.5}
    p = float(probability)
    assert abs((found == 3.5).mean() - p) <= 5 * np.sqrt(p * (1 - p) / RANKS)


def test_slowness_comes_on_top_and_is_independent_of_the_noise() -> None:
    noise = Noise(variation=Fraction(1, 10))
    slow = Noise(
        variation=Fraction(1, 10), slow_probability=Fraction(1, 5), slow_factor=Fraction(4)
    )
    ratio = spread(slow) / spread(noise)
    is_slow = ratio > 2
    np.testing.assert_allclose(ratio[is_slow], 4, rtol=1e-8)
    np.testing.assert_array_equal(ratio[~is_slow], 1)
    assert abs(np.corrcoef(is_slow, spread(noise))[0, 1]) < 5 / np.sqrt(RANKS)


@given(
    ranks=st.integers(1, 300),
    more=st.integers(0, 300),
    seed=st.integers(0, 2**63),
    iteration=st.integers(0, 10**6),
    distribution=st.sampled_from(DISTRIBUTIONS),
)
def test_a_rank_s_factor_depends_on_nobody_else(
    ranks: int, more: int, seed: int, iteration: int, distribution: Literal["lognormal", "gamma"]
) -> None:
    noise = Noise(
        distribution=distribution,
        variation=Fraction(1, 3),
        slow_probability=Fraction(1, 4),
        slow_factor=Fraction(2),
    )
    few = slowdowns(noise, seed, iteration, ranks)
    np.testing.assert_array_equal(few, slowdowns(noise, seed, iteration, ranks + more)[:ranks])
    np.testing.assert_array_equal(few, slowdowns(noise, seed, iteration, ranks))  # no state is kept


def test_iterations_seeds_and_ranks_are_independent() -> None:
    noise = Noise(variation=Fraction(1, 2))
    base = slowdowns(noise, 3, 5, RANKS)
    for other in (slowdowns(noise, 3, 6, RANKS), slowdowns(noise, 4, 5, RANKS), np.roll(base, 1)):
        assert (base != other).mean() > 0.999
        assert abs(np.corrcoef(base, other)[0, 1]) < 5 / np.sqrt(RANKS)


def test_no_noise_is_a_factor_of_one() -> None:
    np.testing.assert_array_equal(slowdowns(Noise(), 0, 0, 5), np.ones(5))


def test_known_values() -> None:
    """The numbers of one seed, so that results do not change from one version to the next."""
    noise = Noise(
        variation=Fraction(1, 10), slow_probability=Fraction(1, 3), slow_factor=Fraction(3)
    )
    found = np.rint(slowdowns(noise, 42, 7, 4) * 2**32).astype(np.int64)
    assert found.tolist() == [3890701185, 4061584078, 5251527868, 4625377212]


def test_the_longest_of_so_many_passes_is_the_mean_of_the_largest_draw() -> None:
    """Tippett 1925 (Biometrika 17), and a mean of 200,000 maxima drawn by numpy."""
    tenth = Noise(skew=Fraction(1, 10))
    for workers, mean in ((2, 0.56419), (4, 1.02938), (8, 1.42360), (16, 1.76599), (100, 2.50759)):
        assert float(longest(tenth, workers)) == pytest.approx(1 + mean / 10, abs=2e-6)
    draws = np.random.default_rng(0).standard_normal((200_000, 5)).max(1)
    assert float(longest(tenth, 5)) == pytest.approx(1 + draws.mean() / 10, abs=1e-3)
    assert longest(tenth, 1) == longest(None, 9) == longest(Noise(), 9) == 1
