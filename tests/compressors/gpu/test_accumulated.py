"""Vectors that accumulate until they are sent, on kernels: momentum, variance, residuals, words."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from gcsim.compressors.coding import momentum
from gcsim.compressors.coding.frames import Codec, packed
from gcsim.compressors.coding.indices import pairs, words
from gcsim.compressors.coding.selecting import marks
from gcsim.compressors.coding.selecting.each_sign import largest_of_each_sign, means_of_signs
from gcsim.compressors.coding.selecting.selection import deliver, sampled
from gcsim.compressors.segments import Segments
from gcsim.errors import InputError
from tests.compressors.gpu.conftest import demand_same, equal, kernels
from tests.compressors.gpu.examples import SEEDS, VECTORS, few, parts_of, spoilt, vector
from tests.compressors.shared import layout_of


@few
@given(values=VECTORS, seed=SEEDS, nesterov=st.booleans(), threshold=st.sampled_from((0.5, np.inf)))
def test_momentum(values: Tensor, seed: int, nesterov: bool, threshold: float) -> None:
    """A sample of the next velocity is the velocity that follows."""
    segments = parts_of(values.numel())
    stride = segments.column(3)
    some = segments, segments.column(0), stride, -(-segments.length // stride)

    def run() -> list[Any]:
        u, v = vector(values.numel(), "normal", seed), vector(values.numel(), "ties", seed)
        sample = sampled(v, values, *some, momentum=u, m=0.9, nesterov=nesterov)
        found = momentum.add_momentum(u, v, values, segments, 0.9, nesterov, threshold)
        return [sample, u, v, found.passed, marks.take(v, segments, found)]

    expected = run()
    assert equal(expected[0] + 0.0, sampled(expected[2], torch.zeros_like(values), *some))
    with kernels():
        assert equal(run(), expected)


@few
@given(values=VECTORS, seed=SEEDS, alpha=st.sampled_from((0.1, 1.0)))
def test_what_is_beyond_doubt(values: Tensor, seed: int, alpha: float) -> None:
    n, segments = values.numel(), parts_of(values.numel())
    r, v = vector(n, "normal", seed), vector(n, "normal", seed + 1).square_()
    given_ = r, v, values, values.clamp(-1e15, 1e15).square(), segments
    for tau in (None, 0.1):
        demand_same(words.clear_words, *given_, alpha=alpha, zeta=0.999, tau=tau)


@few
@given(n=st.sampled_from((9, 4097)), seed=SEEDS, powers=st.booleans())
def test_words_are_added(n: int, seed: int, powers: bool) -> None:
    rng, segments = np.random.default_rng(seed), parts_of(n)
    bits, width = (words.POWER_BITS, 16) if powers else (words.SIGN_BITS, 2)
    places = [np.flatnonzero(rng.random(length) < 0.3) for length in segments.length]
    k = np.array([len(each) for each in places])
    drawn = np.concatenate(places) | (rng.integers(0, width, k.sum()) << bits)
    sent = torch.from_numpy(drawn.astype(np.uint32).view(np.int32))
    out, layout = torch.linspace(-1, 1, n), layout_of(*segments.length.tolist())
    levels = torch.tensor([[0.5, -0.25], [1, -1], [2, -3]])

    def added(sent: Tensor, many: Any) -> list[tuple[Any, ...]]:
        if powers:
            top = torch.tensor([3, 100, -118], dtype=torch.int8)
            parts = (top, segments.column(1)), (sent, 4 * many)
            message = packed(sent, Codec.VARIANCE, segments, *parts, nonzero=many)
            return [(words.add_powers, message, layout, out, 1 / 3)]
        inside, outside = (
            words.signed_message(sent, segments, many, each) for each in (levels, None)
        )
        calls = (inside,), (outside, (0.5, -0.25))
        return [(words.add_signed, each, layout, out, 1 / 3, *known) for each, *known in calls]

    for each in added(sent, k):
        demand_same(*each)
    for wrong, many in ((sent.flip(0), k), (sent, np.array([k.sum(), 0, 0]))):
        if k.min(initial=9, where=k > 0) > 1 and k[0] and k[2] and (many <= segments.length).all():
            for each in added(wrong, many):
                with pytest.raises(InputError, match="ascend"):
                    each[0](*each[1:])
                with kernels(), pytest.raises(InputError, match="ascend"):
                    each[0](*each[1:])


def test_levels_of_powers() -> None:
    levels = words.powers()[np.array([3, -128, -120]) + 128]
    assert levels[0, 9] == -4.0  # of e = 3 and d = 1
    assert np.isnan(levels).sum() == 16 + 2  # 2^-127 is no normal number


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
def test_kept_elements_are_delivered(values: Tensor, seed: int) -> None:
    rng, segments = np.random.default_rng(seed), parts_of(values.numel())

    def drawn(share: float) -> tuple[Tensor, Tensor, Any]:
        places = [np.flatnonzero(rng.random(n) < share) for n in segments.length]
        k = np.array([len(each) for each in places])
        some = torch.from_numpy(np.concatenate(places))
        return some, vector(len(some), "normal", seed), k

    own, kept = drawn(0.4), drawn(0.7)

    def run() -> list[Tensor]:
        update, residual = torch.zeros_like(values), values.clone()
        deliver(update, residual, segments, own, kept, 1 / 3)
        return [update, residual]

    expected = run()
    with kernels():
        assert equal(run(), expected)
    begins = torch.from_numpy(np.repeat(segments.begin, own[2]))
    stays = ~torch.isin(own[0] + begins, kept[0] + torch.from_numpy(segments.begin.repeat(kept[2])))
    assert torch.equal(expected[1][own[0] + begins], torch.where(stays, own[1], 0.0))


@few
@given(values=VECTORS, seed=SEEDS)
def test_sparse_vectors_are_merged(values: Tensor, seed: int) -> None:
    """On a device each tensor's sums are followed by nothing, up to its room."""
    rng, segments = np.random.default_rng(seed), parts_of(values.numel())
    first, second = (np.flatnonzero(rng.random(values.numel()) < 0.4) for _ in range(2))
    inside = segments.begin[:, None], (segments.begin + segments.length)[:, None]
    room = sum(((inside[0] <= each) & (each < inside[1])).sum(1) for each in (first, second))
    ours, theirs = torch.from_numpy(first), torch.from_numpy(second)
    given_ = ours, values[ours], theirs, values[theirs], segments, room
    expected = pairs.merged_pairs(*given_)
    with kernels():
        *found, many = pairs.merged_pairs(*given_)
    assert many is room
    used = found[0] != pairs.BEYOND
    assert equal([each[used] for each in found], list(expected[:2]))
    assert not found[1][~used].any()
    for own, count in zip(torch.split(used, room.tolist()), expected[2].tolist(), strict=True):
        assert own.tolist() == [True] * count + [False] * (len(own) - count)


@few
@given(values=VECTORS, seed=SEEDS)
def test_steps_of_a_worker_alone(values: Tensor, seed: int) -> None:
    u, sums, error = (vector(values.numel(), "normal", seed + i) for i in range(3))
    demand_same(momentum.local_step, values, u, error, 0.9, nesterov=True)
    demand_same(momentum.local_step, values, u, sums, 0.9)
    demand_same(momentum.local_step, values, u, sums, 0.9, error=error)


@few
@given(
    n=st.sampled_from((0, 1, 9, 4097, 70_000)), kind=st.sampled_from(("ties", "normal")),
    proportion=st.sampled_from((0.01, 0.3, 1.0)), seed=SEEDS,
)  # fmt: skip
def test_the_largest_of_each_sign(n: int, kind: str, proportion: float, seed: int) -> None:
    """The longest is sampled for bounds; a sign that is missing, too."""
    values, gradient = vector(n, kind, seed), vector(n, "ties", seed + 1)
    segments = Segments.behind([n // 9, 0, n - n // 9])

    def chosen(kept: Tensor, more: Tensor) -> tuple[Any, ...]:
        *found, k, sizes = largest_of_each_sign(more, segments, proportion, memory=kept)
        means = means_of_signs(sizes, k)
        return *found, k, sizes, means if kind == "ties" else means.shape  # whose sums are exact

    demand_same(chosen, values, gradient)
    demand_same(chosen, values.abs(), gradient.abs())


def test_not_a_number_is_marked_and_refused() -> None:
    values = spoilt(vector(100, "normal", 0), by=np.nan)
    with kernels():
        u, own, alone = torch.zeros(100), values.clone(), Segments.alone(100)
        found = momentum.add_momentum(u, own, values, alone, 0.9, False, 9.0)
        assert found.passed.tolist() == [1]
        with pytest.raises(InputError, match="not a number"):
            marks.take(own, alone, found)
