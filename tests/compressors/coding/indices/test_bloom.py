"""A Bloom filter holds what was put in, and hardly anything else."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from gcsim.compressors.coding.indices.bloom import (
    BloomSize,
    bloom_filter,
    bloom_positives,
    bloom_size,
)
from gcsim.compressors.coding.selecting.subsets import distinct_positions
from gcsim.compressors.random import random_key, stream
from gcsim.errors import InputError


def positions(n: int, k: int, seed: int = 0) -> Tensor:
    return distinct_positions(torch.zeros(0), stream(seed, 0, 0, "test"), n, k)


def key(seed: int = 0) -> np.uint64:
    return random_key(seed, 0, 0, "filter")


def test_a_million_positions_at_one_percent_take_14_4_bits_each() -> None:
    # f = .1 k / n = 1e-3: log2(1000) / ln 2 = 14.378 bits an index, ceil(log2 1000) = 10 hashes
    size = bloom_size(10_000, 1e-3)
    assert size == BloomSize(bits=143_776, hashes=10)
    assert size.nbytes == 17_972
    assert size.bits / 10_000 == pytest.approx(1.44 * math.log2(1000), rel=0.003)


@pytest.mark.parametrize("n", [1, 7, 8, 9, 1000, 4095, 4096, 4097, 300_001])
@pytest.mark.parametrize("density", [0.0, 0.01, 0.5, 1.0])
def test_what_was_put_in_is_found(n: int, density: float) -> None:
    k = round(n * density)
    size = bloom_size(k, 0.05)
    held = positions(n, k)
    found = bloom_positives(bloom_filter(held, size, key()), n, size, key())
    assert bool(torch.isin(held, found).all())
    assert bool((found.diff() > 0).all())
    assert found.dtype == torch.int64
    assert found.numel() == 0 or (int(found[0]) >= 0 and int(found[-1]) < n)


def test_false_positives_are_as_frequent_as_promised() -> None:
    # Binomial: 20 x 99 000 trials at 1e-3, standard error 2.3 %; the formula itself is right to
    # a few per cent (h is rounded up, the filter's fill varies).
    n, k, rate = 100_000, 1000, 1e-3
    size = bloom_size(k, rate)
    wrong = 0
    for seed in range(20):
        filled = bloom_filter(positions(n, k, seed), size, key(seed))
        wrong += bloom_positives(filled, n, size, key(seed)).numel() - k
    assert wrong / 20 / (n - k) == pytest.approx(rate, rel=0.12)


def test_half_of_the_bits_are_set() -> None:
    size = bloom_size(10_000, 2**-10)  # h = 10 exactly: the optimum sets one half
    filled = bloom_filter(positions(1_000_000, 10_000), size, key())
    ones = int(np.unpackbits(filled.numpy()).sum())
    assert ones / size.bits == pytest.approx(0.5, abs=0.01)  # sd .001


def test_another_key_makes_other_mistakes() -> None:
    n, k = 20_000, 200
    size, held = bloom_size(k, 0.01), positions(n, k)
    first, second = (
        set(bloom_positives(bloom_filter(held, size, key(s)), n, size, key(s)).tolist())
        for s in range(2)
    )
    common = first & second - set(held.tolist())
    # 200 mistakes each out of 19 800: 2 in common by chance
    assert len(common) < 15


def test_a_full_filter_holds_everything_and_an_empty_one_nothing() -> None:
    n, size = 500, bloom_size(20, 0.02)
    ones = np.packbits(np.ones(size.bits, dtype=np.uint8), bitorder="little")
    assert bloom_positives(torch.from_numpy(ones), n, size, key()).tolist() == list(range(n))
    nothing = torch.zeros(size.nbytes, dtype=torch.uint8)
    assert bloom_positives(nothing, n, size, key()).numel() == 0


def test_a_filter_of_another_length_or_with_padding_is_refused() -> None:
    size = BloomSize(bits=33, hashes=2)
    filled = torch.zeros(5, dtype=torch.uint8)
    for wrong in (filled[:-1], torch.cat((filled, filled[:1])), filled[:0]):
        with pytest.raises(InputError, match="damaged payload"):
            bloom_positives(wrong, 10, size, key())
    filled[-1] = 2
    with pytest.raises(InputError, match="padding"):
        bloom_positives(filled, 10, size, key())
