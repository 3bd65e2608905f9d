"""Random numbers are keyed, shared where they must be, exact, and touch no global generator."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gcsim.compressors.random import (
    _bernoulli_on_device,
    bernoulli_indices,
    distinct_indices,
    random_bits16,
    stream,
    uniform,
)
from gcsim.errors import InternalError


def test_equal_keys_give_equal_numbers_and_any_difference_gives_others() -> None:
    key = (3, 14, 15, "mask", 2)
    same = uniform(stream(*key), 64)
    assert torch.equal(same, uniform(stream(*key), 64))
    for place, other in enumerate((4, 15, 16, "level", None)):
        changed = list(key)
        changed[place] = other
        assert not torch.equal(same, uniform(stream(*changed), 64))  # type: ignore[arg-type]


def test_numbers_are_pinned_so_that_a_run_can_be_repeated_in_another_version() -> None:
    # Golden: Philox keyed by blake2b-128("1/2/3/shared/golden") as a little-endian integer.
    # It changes only when every stored result may change.
    drawn = stream(1, 2, 3, "golden").bit_generator.random_raw(2)
    assert drawn.tolist() == [9684380393360750681, 14297885659409498307]


def test_no_global_random_state_is_read_or_set() -> None:
    before_torch, before_numpy = torch.get_rng_state(), np.random.get_state()  # noqa: NPY002
    generator = stream(0, 0, 0, "x")
    first = uniform(generator, 10)
    random_bits16(generator, 10)
    distinct_indices(generator, 100, 10)
    bernoulli_indices(generator, torch.ones(10), 0.5)
    assert torch.equal(before_torch, torch.get_rng_state())
    after = np.random.get_state()  # noqa: NPY002
    assert str(before_numpy) == str(after)
    torch.rand(3)
    assert torch.equal(first, uniform(stream(0, 0, 0, "x"), 10))


def test_uniform_is_float32_on_the_half_open_interval_with_the_right_moments() -> None:
    drawn = uniform(stream(5, 0, 0, "u"), 200_000)
    assert drawn.dtype == torch.float32
    assert float(drawn.min()) >= 0.0
    assert float(drawn.max()) < 1.0
    # sd of the mean: 1 / sqrt(12 n) = 6.5e-4; five of them
    assert float(drawn.double().mean()) == pytest.approx(0.5, abs=5 * (12 * 200_000) ** -0.5)
    assert float(drawn.double().var()) == pytest.approx(1 / 12, rel=0.02)


def test_sixteen_random_bits_cover_their_range_evenly() -> None:
    n = 1 << 20
    drawn = random_bits16(stream(5, 0, 0, "b"), n)
    assert drawn.dtype == torch.int32
    assert int(drawn.min()) >= 0
    assert int(drawn.max()) < 1 << 16
    counts = torch.bincount(drawn >> 12, minlength=16).double()
    chi2 = float(((counts - n / 16) ** 2 / (n / 16)).sum())
    assert chi2 < 44.3  # chi-square, 15 degrees of freedom, upper 1e-4 quantile


@given(st.integers(0, 300), st.floats(0, 1), st.integers(0, 2**32))
def test_distinct_indices_are_k_ascending_positions_below_n(n: int, part: float, seed: int) -> None:
    k = round(n * part)
    drawn = distinct_indices(stream(seed, 0, 0, "d"), n, k)
    assert drawn.dtype == torch.int64
    assert drawn.numel() == k == len(set(drawn.tolist()))
    assert drawn.tolist() == sorted(drawn.tolist())
    assert all(0 <= i < n for i in drawn.tolist())


@pytest.mark.parametrize("k", [2, 4])  # below one half, and the complement above it
def test_every_subset_is_equally_likely(k: int) -> None:
    generator = stream(11, 0, 0, "subsets")
    subsets = list(itertools.combinations(range(6), k))  # 15 subsets for both
    counts = dict.fromkeys(subsets, 0)
    for _ in range(6000):
        counts[tuple(distinct_indices(generator, 6, k).tolist())] += 1
    chi2 = sum((c - 400) ** 2 / 400 for c in counts.values())
    assert chi2 < 42.6  # 14 degrees of freedom, upper 1e-4 quantile


def test_more_distinct_indices_than_positions_is_refused() -> None:
    with pytest.raises(InternalError, match="3 distinct indices out of 2"):
        distinct_indices(stream(0, 0, 0, "x"), 2, 3)


@pytest.mark.parametrize("accelerator", [False, True], ids=["cpu", "accelerator's way"])
def test_bernoulli_inclusion_frequencies_are_the_probabilities(accelerator: bool) -> None:
    # Probabilities across the 2^-16 steps of the first draw: below one step, between two, on one.
    p = torch.tensor([0.0, 2.0**-18, 2.0**-16, 1.5 * 2.0**-16, 0.3, 0.75, 1.0])
    copies = 1 << 20
    weight = p.repeat_interleave(copies)
    generator = stream(2, 0, 0, "p")
    if accelerator:
        drawn = _bernoulli_on_device(generator, weight, 65536.0)
    else:
        drawn = bernoulli_indices(generator, weight, 1.0)
    assert drawn.dtype == torch.int64
    assert bool((drawn.diff() > 0).all())
    counts = torch.bincount(drawn // copies, minlength=p.numel()).double()
    sd = (copies * p.double() * (1 - p.double())).sqrt()
    assert counts[0] == 0
    assert counts[-1] == copies
    assert ((counts - copies * p.double()).abs() <= 4.5 * sd).all()


def test_bernoulli_scale_multiplies_the_weight_and_caps_at_one() -> None:
    weight = torch.tensor([1.0, 2.0, 0.0, 1e-30])
    drawn = bernoulli_indices(stream(2, 0, 0, "p"), weight, 3e38)
    assert drawn.tolist() == [0, 1, 3]
