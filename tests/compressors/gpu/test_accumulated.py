"""What accumulates until it is sent, on kernels: momentum, variance, residuals, and their words."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from gcsim.compressors.coding.indices import pairs, words
from gcsim.compressors.coding.integers import two_bits
from gcsim.compressors.coding.integers.packing import packed_bytes
from gcsim.compressors.coding.selecting import marks, selection
from gcsim.compressors.local_updates import cser, qsparse_local_sgd, qsparse_messages
from gcsim.compressors.segments import Segments, starts
from gcsim.compressors.sparsification.by_size import dgc
from gcsim.compressors.sparsification.by_threshold import dryden, magnitude_fits
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
    values=VECTORS, seed=SEEDS, alpha=st.sampled_from((0.1, 1.0)), first=st.booleans(),
    second=st.booleans(),
)  # fmt: skip
def test_what_is_beyond_doubt(
    values: Tensor, seed: int, alpha: float, first: bool, second: bool
) -> None:
    n, segments = values.numel(), parts_of(values.numel())
    r, v = vector(n, "normal", seed), vector(n, "normal", seed + 1).square_()
    given_ = r, v, values, values.clamp(-1e15, 1e15).square(), segments
    demand_same(words.clear_powers, *given_, alpha=alpha, zeta=0.999, whole=first, drop=second)
    demand_same(words.unambiguous_signs, *given_, alpha=alpha, tau=0.1, zeta=0.999, after=first)


def parts_of(n: int) -> Segments:
    """A table of three tensors, the second without elements."""
    return Segments.behind([n // 3, 0, n - n // 3])


@few
@given(n=st.sampled_from((9, 4097)), seed=SEEDS, powers=st.booleans())
def test_words_are_added(n: int, seed: int, powers: bool) -> None:
    rng, segments = np.random.default_rng(seed), parts_of(n)
    bits, width = (words.POWER_BITS, 16) if powers else (words.SIGN_BITS, 2)
    places = [np.flatnonzero(rng.random(length) < 0.3) for length in segments.length]
    k = np.array([len(each) for each in places])
    drawn = np.concatenate(places) | (rng.integers(0, width, k.sum()) << bits)
    sent = torch.from_numpy(drawn.astype(np.uint32).view(np.int32))
    out, levels = torch.linspace(-1, 1, n), torch.tensor([[0.5, -0.25]]).expand(3, 2).clone()
    if powers:
        levels = demand_same(words.levels_of, torch.tensor([3, -128, -120], dtype=torch.int8))
        assert levels[0, 9] == -4.0  # of e = 3 and d = 1
        assert levels.isnan().sum() == 16 + 2  # 2^-127 is no normal number
    levels[1:] = levels[0]
    demand_same(words.add_words, out, segments, sent, k, levels, 1 / 3)
    demand_same(words.add_words, out, segments, sent, k, levels[:1].numpy(), 1 / 3)
    for wrong, many in ((sent.flip(0), k), (sent, np.array([k.sum(), 0, 0]))):
        if k.min(initial=9, where=k > 0) > 1 and k[0] and k[2]:
            with pytest.raises(InputError, match="ascend"):
                words.add_words(out.clone(), segments, wrong, many, levels, 1.0)
            with kernels(), pytest.raises(InputError, match="ascend"):
                words.add_words(out.clone(), segments, wrong, many, levels, 1.0)


@few
@given(values=VECTORS, seed=SEEDS)
def test_signed_indices(values: Tensor, seed: int) -> None:
    rng, segments = np.random.default_rng(seed), parts_of(values.numel())
    places = [torch.from_numpy(np.flatnonzero(rng.random(n) < 0.4)) for n in segments.length]
    own = torch.cat([each + begin for each, begin in zip(places, segments.begin, strict=True)])
    k = np.array([len(each) for each in places])
    levels = torch.tensor([[0.5, -0.25], [1, -1], [2, -3]])
    given_ = values, segments, torch.cat(places), values[own], k
    demand_same(words.signed_words, *given_, levels)
    demand_same(words.signed_words, *given_, levels[:1].numpy())


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
    segments, added = parts_of(values.numel()), vector(values.numel(), "ties", seed)
    size = packed_bytes(segments.length, 2)
    at, packed = starts(size), torch.zeros(int(size.sum()), dtype=torch.uint8)
    demand_same(two_bits.two_bits, values, added, segments, tau, packed, at)
    two_bits.two_bits(values.clone(), added, segments, tau, packed, at)
    for sent in (packed, packed | 1, packed | 0x80):  # code 1 stands for nothing; padding is zero
        demand_same(two_bits.add_two_bits, values, segments, sent, at, tau / 3)


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
