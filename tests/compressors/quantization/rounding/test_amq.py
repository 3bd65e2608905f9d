"""AMQ's multiplier descends the expected variance, the same on all workers."""

from functools import partial
from typing import Any

import numpy as np
import pytest

from gcsim.compressors.coding.rounding.truncated_normals import Histogram
from gcsim.compressors.quantization.rounding import alq
from gcsim.compressors.quantization.rounding.nuqsgd import exponential_levels
from tests.compressors.shared import members

MIXTURE = np.array([[0.02, 0.03, 0.5], [-0.01, 0.1, 0.3], [0.0, 0.4, 0.2]])
WIDE = np.array([[0.0, 0.5, 1.0]])


def parameters_of(**given: Any) -> alq.AmqParameters:
    return alq.AmqParameters(**given)


workers = partial(members, alq.Amq)


@pytest.mark.parametrize("zero", [True, False])
@pytest.mark.parametrize("bits", [2, 3, 4, 6])
def test_the_expected_variance_is_that_of_the_table(zero: bool, bits: int) -> None:
    # The same Psi as of any table, by the distribution of r instead of |r|.
    chosen = parameters_of(bits=bits, zero=zero)
    powers = alq.powers_of(chosen)
    folded, whole = Histogram(MIXTURE, folded=True), Histogram(MIXTURE, folded=False)
    multipliers = np.array([0.2, 0.5, 0.9])
    found = alq.expected_variance(folded, multipliers, powers, zero=zero)
    for p, value in zip(multipliers, found, strict=True):
        levels = exponential_levels(bits, p, zero=zero).astype(np.float64)
        assert levels[-1 - powers] == pytest.approx(p**powers)
        assert value == pytest.approx(whole.variance(levels), rel=1e-5)


@pytest.mark.parametrize("zero", [True, False])
@pytest.mark.parametrize("powers", [1, 2, 7])
@pytest.mark.parametrize("components", [MIXTURE, WIDE], ids=["mixture", "wide"])
def test_the_slope_is_that_of_the_expected_variance(
    zero: bool, powers: int, components: np.ndarray[Any, Any]
) -> None:
    # Central differences over +-1e-3: their own error is about 1e-6 of the third derivative.
    model, p, h = Histogram(components, folded=True), np.linspace(0.15, 0.9, 12), 1e-3
    above = alq.expected_variance(model, p + h, powers, zero=zero)
    below = alq.expected_variance(model, p - h, powers, zero=zero)
    np.testing.assert_allclose(
        alq.slope(model, p, powers, zero=zero), (above - below) / (2 * h), rtol=2e-3, atol=2e-5
    )


@pytest.mark.parametrize("zero", [True, False])
@pytest.mark.parametrize("bits", [3, 4])
def test_the_fitted_multiplier_beats_the_starts_and_the_present_one(zero: bool, bits: int) -> None:
    chosen = parameters_of(bits=bits, zero=zero)
    model = Histogram(WIDE, folded=True)
    levels = alq.Amq.fitted(chosen, WIDE, alq.Amq.initial(chosen))
    fitted = np.array([float(levels[-2])])
    best = alq.expected_variance(model, fitted, alq.powers_of(chosen), zero=zero)
    starts = alq.expected_variance(
        model, np.array([0.1, 0.3, 0.5, 0.7, 0.9]), alq.powers_of(chosen), zero=zero
    )
    assert best[0] <= starts.min() + 1e-9
    np.testing.assert_array_equal(levels, exponential_levels(bits, fitted[0], zero=zero))
    again = alq.Amq.fitted(chosen, WIDE, levels)
    assert (
        alq.expected_variance(model, np.array([float(again[-2])]), alq.powers_of(chosen), zero=zero)
        <= best + 1e-9
    )


def test_long_descent_ends_at_the_minimum_of_a_scan() -> None:
    chosen = parameters_of(bits=3, epochs=3000, learning_rate=1.0)
    model, scan = Histogram(WIDE, folded=True), np.linspace(0.02, 0.98, 481)
    least = alq.expected_variance(model, scan, alq.powers_of(chosen), zero=False).min()
    fitted = np.array([float(alq.Amq.fitted(chosen, WIDE, alq.Amq.initial(chosen))[-2])])
    found = alq.expected_variance(model, fitted, alq.powers_of(chosen), zero=False)[0]
    assert found == pytest.approx(least, rel=1e-3)


def test_two_bits_with_zero_have_no_multiplier() -> None:
    chosen = parameters_of(bits=2, zero=True)
    assert alq.Amq.fitted(chosen, MIXTURE, alq.Amq.initial(chosen)).tolist() == [-1.0, 0.0, 1.0]
