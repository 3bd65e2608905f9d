"""Random subsets: of the size asked for, all equally likely, on any number of threads."""

import itertools
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gcsim.compressors.coding.selecting.subsets import draw_subset
from gcsim.compressors.segments import Segments
from gcsim.errors import InternalError


def drawn(seed: int, n: int, k: int) -> torch.Tensor:
    """A subset of one tensor."""
    streams = [(seed, 0, 0, "d")]
    return draw_subset(torch.zeros(0), Segments.alone(n), np.array([k]), streams)


@given(st.integers(0, 700), st.floats(0, 1), st.integers(0, 2**32))
def test_a_subset_is_k_ascending_positions_below_n(n: int, part: float, seed: int) -> None:
    k = round(part * n)
    found = drawn(seed, n, k)
    assert found.dtype == torch.int64
    assert found.numel() == k
    assert bool((found.diff() > 0).all())
    assert k == 0 or (int(found[0]) >= 0 and int(found[-1]) < n)


@pytest.mark.parametrize("k", [1, 2, 3, 5])
def test_all_subsets_are_equally_likely(k: int) -> None:
    # C(6, k) outcomes; chi-square below its 1 - 1e-4 quantile for that many degrees of freedom.
    quantile = {1: 25.7, 2: 42.6, 3: 51.2, 5: 25.7}[k]  # for 5, 14, 19, 5
    draws, outcomes = 6000, list(itertools.combinations(range(6), k))
    seen = Counter(tuple(drawn(s, 6, k).tolist()) for s in range(draws))
    expected = draws / len(outcomes)
    assert sum((seen[o] - expected) ** 2 / expected for o in outcomes) < quantile


@pytest.mark.parametrize("part", [0.01, 0.7])
def test_large_subsets_fall_evenly_on_segments(part: float) -> None:
    # 2.5 segments of 2^20: parts of n; the count in each part is hypergeometric.
    n = 5 << 19
    k = round(part * n)
    found = drawn(3, n, k)
    assert found.numel() == k
    assert bool((found.diff() > 0).all())
    counts = np.histogram(found.numpy(), bins=50, range=(0, n))[0]
    variance = k / 50 * (49 / 50) * (1 - part)
    assert np.abs(counts - k / 50).max() < 5 * variance**0.5


def test_impossible_subsets_are_refused() -> None:
    with pytest.raises(InternalError):
        drawn(0, 2, 3)
