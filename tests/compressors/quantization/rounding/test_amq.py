"""AMQ's multiplier descends the expected variance, the same on all workers."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from gcsim.compressors.base import Worker
from gcsim.compressors.coding.frames import HEADER_BYTES
from gcsim.compressors.coding.rounding.truncated_normals import Histogram
from gcsim.compressors.quantization.rounding.alq import (
    Amq,
    AmqParameters,
    expected_variance,
    in_common,
    powers_of,
    slope,
    statistics,
)
from gcsim.compressors.quantization.rounding.nuqsgd import exponential_levels
from gcsim.compressors.requests import AllGather, AllReduce
from gcsim.compressors.segments import Segments
from tests.compressors.shared import BucketOf, Draw, members

Exchange = Callable[..., list[torch.Tensor]]

MIXTURE = np.array([[0.02, 0.03, 0.5], [-0.01, 0.1, 0.3], [0.0, 0.4, 0.2]])
WIDE = np.array([[0.0, 0.5, 1.0]])


def parameters_of(**given: Any) -> AmqParameters:
    return AmqParameters(**given)


workers = partial(members, Amq)


@pytest.mark.parametrize("zero", [True, False])
@pytest.mark.parametrize("bits", [2, 3, 4, 6])
def test_the_expected_variance_is_that_of_the_table(zero: bool, bits: int) -> None:
    # The same Psi as of any table, by the distribution of r instead of |r|.
    chosen = parameters_of(bits=bits, zero=zero)
    powers = powers_of(chosen)
    folded, whole = Histogram(MIXTURE, folded=True), Histogram(MIXTURE, folded=False)
    multipliers = np.array([0.2, 0.5, 0.9])
    found = expected_variance(folded, multipliers, powers, zero=zero)
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
    above = expected_variance(model, p + h, powers, zero=zero)
    below = expected_variance(model, p - h, powers, zero=zero)
    np.testing.assert_allclose(
        slope(model, p, powers, zero=zero), (above - below) / (2 * h), rtol=2e-3, atol=2e-5
    )


@pytest.mark.parametrize("zero", [True, False])
@pytest.mark.parametrize("bits", [3, 4])
def test_the_fitted_multiplier_beats_the_starts_and_the_present_one(zero: bool, bits: int) -> None:
    chosen = parameters_of(bits=bits, zero=zero)
    model = Histogram(WIDE, folded=True)
    levels = Amq.fitted(chosen, WIDE, Amq.initial(chosen))
    fitted = np.array([float(levels[-2])])
    best = expected_variance(model, fitted, powers_of(chosen), zero=zero)
    starts = expected_variance(
        model, np.array([0.1, 0.3, 0.5, 0.7, 0.9]), powers_of(chosen), zero=zero
    )
    assert best[0] <= starts.min() + 1e-9
    np.testing.assert_array_equal(levels, exponential_levels(bits, fitted[0], zero=zero))
    again = Amq.fitted(chosen, WIDE, levels)
    assert (
        expected_variance(model, np.array([float(again[-2])]), powers_of(chosen), zero=zero)
        <= best + 1e-9
    )


def test_long_descent_ends_at_the_minimum_of_a_scan() -> None:
    chosen = parameters_of(bits=3, epochs=3000, learning_rate=1.0)
    model, scan = Histogram(WIDE, folded=True), np.linspace(0.02, 0.98, 481)
    least = expected_variance(model, scan, powers_of(chosen), zero=False).min()
    fitted = np.array([float(Amq.fitted(chosen, WIDE, Amq.initial(chosen))[-2])])
    found = expected_variance(model, fitted, powers_of(chosen), zero=False)[0]
    assert found == pytest.approx(least, rel=1e-3)


def test_two_bits_with_zero_have_no_multiplier() -> None:
    chosen = parameters_of(bits=2, zero=True)
    assert Amq.fitted(chosen, MIXTURE, Amq.initial(chosen)).tolist() == [-1.0, 0.0, 1.0]


def test_workers_agree_on_the_multiplier_and_keep_it_between_updates(
    normal: Draw, bucket_of: BucketOf, exchange: Exchange
) -> None:
    group = workers(3, bucket=64, bits=3, update_every=2)
    chosen = group[0].parameters
    tables = []
    for step in range(3):
        buckets = [bucket_of(normal(640, 10 * step + r) ** (2 * step + 1)) for r in range(3)]
        first = type(next(group[0].exchange(buckets[0], step)))
        assert first is (AllReduce if step % 2 == 0 else AllGather)
        updates = exchange(group, buckets, step)
        assert torch.equal(updates[0], updates[2])
        tables.append(group[0].levels_of(buckets[0]).tolist())
        assert tables[-1] == group[2].levels_of(buckets[2]).tolist()
        if step == 0:
            rows = sum(statistics(b.gradient, Segments.of(b.layout), chosen) for b in buckets)
            assert isinstance(rows, torch.Tensor)
            expected = Amq.fitted(chosen, in_common(rows), Amq.initial(chosen))
            assert tables[0] == expected.tolist()
    assert tables[0] == tables[1] != tables[2]


def test_the_message_has_the_length_of_the_formula(normal: Draw, bucket_of: BucketOf) -> None:
    (worker,) = workers(1, bits=3, bucket=100)
    request = next(worker.exchange(bucket_of(normal(1001)), 1))
    assert isinstance(request, AllGather)
    assert request.payload.numel() == HEADER_BYTES + 4 * 11 + math.ceil(1001 * 3 / 8)


@pytest.mark.parametrize("zero", [True, False])
def test_the_mean_is_right_and_the_error_is_that_of_the_laws(
    zero: bool, normal: Draw, bucket_of: BucketOf, exchange: Exchange
) -> None:
    values, draws = normal(1300, seed=2), 300
    bucket, chosen = bucket_of(values), parameters_of(bucket=512, zero=zero)
    updates = [
        exchange([Amq(Worker(rank=0, count=1, seed=seed), chosen)], [bucket])[0].double()
        for seed in range(draws)
    ]
    errors = torch.stack(updates) - values.double()
    properties = Amq.properties(chosen)
    assert properties.unbiased
    assert properties.error_bound is not None
    expected = properties.error_bound(values)
    totals = errors.square().sum(1)
    assert abs(float(totals.mean()) - expected) <= 5 * float(totals.std()) / math.sqrt(draws)
    assert float(errors.mean(0).square().sum()) == pytest.approx(expected / draws, rel=0.35)
