"""What accumulates until it is sent, on kernels: momentum, variance, residuals, and their words."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from gcsim.compressors.coding import sparse
from gcsim.compressors.coding.indices import pairs
from gcsim.compressors.coding.selecting import marks, selection
from gcsim.compressors.local_updates import cser, qsparse_local_sgd, qsparse_messages
from gcsim.compressors.sparsification.by_size import dgc
from gcsim.compressors.sparsification.by_threshold import dryden, magnitude_fits, strom
from gcsim.compressors.sparsification.by_variance import variance, variance_hybrid, words
from gcsim.errors import InputError
from tests.compressors.gpu.conftest import demand_same, equal, kernels
from tests.compressors.gpu.examples import EXACT, SEEDS, VECTORS, few, spoilt, vector


@few
@given(values=VECTORS, seed=SEEDS, nesterov=st.booleans(), threshold=st.sampled_from((0.5, np.inf)))
def test_momentum(values: Tensor, seed: int, nesterov: bool, threshold: float) -> None:
    n = values.numel()

    def run() -> list[Any]:
        u, v = vector(n, "normal", seed), vector(n, "ties", seed)
        parts = [whole[1::3] for whole in (u, v, values)]
        sample = dgc._next_velocity(parts, 0.9, nesterov)
        found = dgc.add_momentum(u, v, values, 0.9, nesterov, threshold)
        return [sample, u, v, found.total, marks.take(v, found)]

    expected = run()
    assert equal(expected[0], expected[2][1::3])
    with kernels():
        assert equal(run(), expected)


def test_strided_samples() -> None:
    terms = [vector(500, kind, 1) for kind in ("normal", "ties", "any")]
    demand_same(selection.strided_sample, 3, 7, *terms)


@few
@given(values=EXACT, threshold=st.sampled_from((0.0, 1.0)))
def test_sums_of_magnitudes(values: Tensor, threshold: float) -> None:
    """Of whole numbers; logarithms are added in float64."""
    demand_same(magnitude_fits._add_and_sum, values, values.flip(0))
    demand_same(magnitude_fits._sums, values, threshold)
    zeros, total = magnitude_fits._sum_of_logarithms(values)
    with kernels():
        found = magnitude_fits._sum_of_logarithms(values)
    assert found[0] == zeros
    assert found[1] == pytest.approx(total, rel=1e-13)


@few
@given(
    values=VECTORS, seed=SEEDS, alpha=st.sampled_from((0.1, 1.0)), drop=st.booleans(),
    after=st.booleans(),
)  # fmt: skip
def test_what_is_beyond_doubt(
    values: Tensor, seed: int, alpha: float, drop: bool, after: bool
) -> None:
    n = values.numel()

    def run() -> list[object]:
        r, v = vector(n, "normal", seed), vector(n, "normal", seed + 1).square_()
        moment = values.clamp(-1e15, 1e15).square()
        given_ = r, v, values, moment
        found, counts, largest = variance._add_and_find(*given_, alpha=alpha, zeta=0.999)
        cap = words.largest_power(largest)
        sent = words.take_out(r, v, found, counts, cap=cap, drop=drop)
        chosen = variance_hybrid.VarianceHybridParameters(
            alpha=alpha, tau=0.1, zeta=0.999, correct_with="after" if after else "before"
        )
        signs = variance_hybrid._add_and_send(*given_, chosen)
        return [largest, sent, r, v, signs]

    expected = run()
    with kernels():
        assert equal(run(), expected)


@few
@given(n=st.sampled_from((9, 4097)), seed=SEEDS)
def test_words_of_powers_are_added(n: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    places = np.flatnonzero(rng.random(n) < 0.3)
    drawn = (
        places | (rng.integers(0, 8, places.size) << 28) | (rng.integers(0, 2, places.size) << 31)
    )
    sent = torch.from_numpy(drawn.astype(np.uint32).view(np.int32))
    demand_same(words._add_words, sent, 3, torch.linspace(-1, 1, n), 1 / 3)
    demand_same(words._check_words, sent, 3, n)
    if places.size > 1:
        for wrong in ((sent.flip(0), 3, n), (sent, 3, 1), (sent | 0x7 << 28, -125, n)):
            assert demand_same(words._check_words, *wrong)[0] is InputError


@few
@given(values=VECTORS, seed=SEEDS)
def test_signed_indices(values: Tensor, seed: int) -> None:
    n = values.numel()
    places = torch.from_numpy(np.flatnonzero(np.random.default_rng(seed).random(n) < 0.4))
    signs = demand_same(sparse.signed_words, values, places, values[places], 0.5, -0.25)
    k = places.numel()
    assert demand_same(sparse._add_signs, values[:k], signs, (0.5, -0.25), values) is True
    assert (
        k < 2 or demand_same(sparse._add_signs, values[:k], signs.flip(0), (1, -1), values) is False
    )


@few
@given(values=VECTORS, seed=SEEDS)
def test_sparse_vectors_are_merged(values: Tensor, seed: int) -> None:
    rng = np.random.default_rng(seed)
    first, second = (
        torch.from_numpy(np.flatnonzero(rng.random(values.numel()) < 0.4)) for _ in range(2)
    )
    demand_same(pairs.merged_pairs, first, values[first], second, values[second])


@few
@given(values=VECTORS, seed=SEEDS)
def test_steps_of_a_worker_alone(values: Tensor, seed: int) -> None:
    u, sums, error = (vector(values.numel(), "normal", seed + i) for i in range(3))
    demand_same(cser.local_step, values, u, error, 0.9)
    demand_same(qsparse_local_sgd.local_step, values, u, sums, 0.9)
    demand_same(qsparse_local_sgd.last_step, values, u, sums, error, 0.9)


@few
@given(
    n=st.sampled_from((0, 1, 9, 4097, 70_000)), kind=st.sampled_from(("ties", "normal")),
    proportion=st.sampled_from((0.01, 0.3, 1.0)), seed=SEEDS,
)  # fmt: skip
def test_the_largest_of_each_sign(n: int, kind: str, proportion: float, seed: int) -> None:
    """The longest is sampled for bounds; a sign that is missing, too."""
    values, gradient = vector(n, kind, seed), vector(n, "ties", seed + 1)
    for memory in (values, values.abs()):
        added = gradient if memory is values else gradient.abs()
        _, taken = demand_same(dryden.add_and_select, memory, added, proportion)
        whole = taken if kind == "ties" else taken.round()  # whose sums are exact
        demand_same(dryden._means, whole)
        demand_same(dryden._enough, whole, [len(whole) // 2, 1])


@few
@given(values=VECTORS, seed=SEEDS, tau=st.sampled_from((0.1, 2.0)))
def test_two_bits_an_element(values: Tensor, seed: int, tau: float) -> None:
    packed = demand_same(strom.two_bits, values, vector(values.numel(), "ties", seed), tau)
    demand_same(strom._add, values, packed, tau / 3)
    demand_same(strom._add, values, packed | 1, tau / 3)  # a code that stands for nothing


def test_bytes_of_a_sign_and_a_magnitude() -> None:
    every = torch.arange(256, dtype=torch.uint8)
    demand_same(qsparse_messages.to_sign_magnitude, every)
    demand_same(qsparse_messages.from_sign_magnitude, every)


def test_not_a_number_is_marked_and_refused() -> None:
    values = spoilt(vector(100, "normal", 0), by=np.nan)
    with kernels():
        found = dgc.add_momentum(torch.zeros(100), own := values.clone(), values, 0.9, False, 9.0)
        assert found.total == 1
        with pytest.raises(InputError, match="not a number"):
            marks.take(own, found)
