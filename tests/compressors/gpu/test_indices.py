"""Coded positions on kernels: the loops' bodies, positions and errors, whatever the coders."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gcsim.compressors.coding.indices.index_coding import Coder, coded_positions, decoded_positions
from gcsim.compressors.coding.integers.elias import omega_word
from gcsim.compressors.coding.sparse import scatter_add
from gcsim.compressors.gpu.indices import index_coding as kernels_of_coders
from gcsim.compressors.gpu.integers.elias import words_of
from gcsim.compressors.segments import Segments
from tests.compressors.gpu.conftest import demand_same, equal, kernels, outcome
from tests.compressors.gpu.examples import SEEDS, few

CODERS = st.one_of(
    st.lists(st.sampled_from(Coder), min_size=4, max_size=4),
    st.sampled_from(Coder).map(lambda one: [one] * 4),
)


def drawn(seed: int) -> tuple[torch.Tensor, Segments, Any]:
    """(positions within four tensors, their table, how many of each)."""
    rng = np.random.default_rng(seed)
    segments = Segments.behind(rng.choice([0, 1, 2, 9, 300, 5000], 4))
    share = rng.choice([0, 0.002, 0.3, 1])
    each = [np.flatnonzero(rng.random(n) < share) for n in segments.length]
    return torch.from_numpy(np.concatenate(each)), segments, np.array([len(one) for one in each])


@few
@given(coders=CODERS, seed=SEEDS)
def test_many_tensors_together(coders: list[int], seed: int) -> None:
    (positions, segments, k), columns = drawn(seed), np.array(coders)
    body, sizes = demand_same(coded_positions, positions, segments, k, columns)
    with kernels():
        found = kernels_of_coders.read_positions(body, segments, sizes, k, columns)
    assert found is not None
    assert torch.equal(found[0], positions)
    assert not found[1].any()


@few
@given(coders=CODERS, seed=SEEDS, more=st.integers(-1, 1), noise=st.booleans())
def test_damage_is_named_as_by_the_loop(
    coders: list[int], seed: int, more: int, noise: bool
) -> None:
    """A bit is changed, or one more or less is announced, or all bytes are random."""
    (positions, segments, k), columns = drawn(seed), np.array(coders)
    body, sizes = coded_positions(positions, segments, k, columns)
    rng = np.random.default_rng(seed)
    if noise:
        body = torch.from_numpy(rng.integers(0, 256, len(body), dtype=np.uint8))
    elif len(body):
        bit = int(rng.integers(8 * len(body)))
        body[bit // 8] ^= 1 << bit % 8
    k[2] = max(0, k[2] + more)
    given_ = body, segments, sizes, k, columns
    expected = outcome(decoded_positions, *given_)
    with kernels():
        assert equal(outcome(decoded_positions, *given_), expected)
    out, values = torch.zeros(int(segments.length.sum())), torch.ones(int(k.sum()))
    message = segments, body, sizes, columns, values, k, 0.5
    expected = outcome(scatter_add, out, *message)
    with kernels():
        found = outcome(scatter_add, out, *message)
    assert isinstance(found[0], tuple) == isinstance(expected[0], tuple)
    assert isinstance(found[0], tuple) or equal(found, expected)


@few
@given(gaps=st.lists(st.integers(0, 31).flatmap(lambda e: st.integers(1 << e, (2 << e) - 1))))
def test_omega_words_of_any_size(gaps: list[int]) -> None:
    words = [omega_word(gap) for gap in gaps]
    with kernels():
        found, lengths = words_of(torch.tensor(gaps, dtype=torch.int64))
    assert lengths.tolist() == [len(word) for word in words]
    assert found.tolist() == [int(word[::-1], 2) for word in words]


def test_what_is_too_long_for_kernels_is_read_by_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels_of_coders, "_LONGEST", 64)
    positions, segments = torch.arange(0, 300, 3), Segments.behind([200, 100])
    positions, k, coders = positions % 200, np.array([67, 33]), np.array([Coder.RICE, Coder.RICE])
    body, sizes = coded_positions(positions, segments, k, coders)
    assert 8 * len(body) > 64
    given_ = segments, body, sizes, coders, torch.ones(100), k, 1.0
    expected = outcome(scatter_add, torch.zeros(300), *given_)
    with kernels():
        assert torch.equal(decoded_positions(body, segments, sizes, k, coders), positions)
        assert equal(outcome(scatter_add, torch.zeros(300), *given_), expected)
