"""Values at set bits come out in order and go back to where they were."""

import numpy as np
import pytest
import torch
from torch import Tensor

from gcsim.compressors.coding.indices.bitmap import (
    BLOCK,
    add_at_bits,
    at_bits,
    bit_starts,
    bits_each,
    unite,
)
from gcsim.compressors.segments import Segments

SIZES = [0, 1, 7, 8, 9, 255, BLOCK - 1, BLOCK, BLOCK + 1, 10 * BLOCK + 3]


def random_bits(
    n: int, density: float
) -> tuple[np.ndarray[tuple[int], np.dtype[np.bool_]], Tensor]:
    flags = np.random.default_rng(n).random(n) < density
    return flags, torch.from_numpy(np.packbits(flags, bitorder="little"))


@pytest.mark.parametrize("density", [0.0, 0.01, 0.5, 1.0])
@pytest.mark.parametrize("lengths", [*([n] for n in SIZES), [3, 0, BLOCK + 5, 8, 1]])
def test_values_are_picked_and_put_back(lengths: list[int], density: float) -> None:
    # Against numpy's boolean indexing; bitmaps of tensors begin at bytes of their own.
    segments, values = Segments.behind(lengths), torch.arange(1.0, sum(lengths) + 1)
    parts = [random_bits(n, density) for n in lengths]
    flags, bits = np.concatenate([f for f, _ in parts]), torch.cat([b for _, b in parts])
    starts = bit_starts(bits, segments)
    blocks = [f[at : at + BLOCK].sum() for f, _ in parts for at in range(0, len(f), BLOCK)]
    assert starts.tolist() == [0, *np.cumsum(blocks).tolist()]
    assert bits_each(starts, segments).tolist() == [int(f.sum()) for f, _ in parts]
    picked = at_bits(values, bits, segments, starts)
    np.testing.assert_array_equal(picked.numpy(), values.numpy()[flags])
    out = torch.ones(len(values))
    add_at_bits(out, bits, segments, starts, picked, 0.5)
    np.testing.assert_array_equal(out.numpy(), 1 + 0.5 * np.where(flags, values.numpy(), 0))


def test_infinite_values_do_not_leak_to_their_neighbours() -> None:
    bits = torch.tensor([0b1010], dtype=torch.uint8)
    out = torch.zeros(4)
    segments = Segments.alone(4)
    given = torch.tensor([torch.inf, 2.0])
    add_at_bits(out, bits, segments, bit_starts(bits, segments), given, 1.0)
    assert out.tolist() == [0.0, torch.inf, 0.0, 2.0]


def test_a_union_has_the_bits_of_both_and_of_the_indices() -> None:
    bits = torch.tensor([0b0001, 0], dtype=torch.uint8)
    unite(bits, torch.tensor([0b1001, 0b1], dtype=torch.uint8), torch.tensor([1, 9]).int())
    assert bits.tolist() == [0b1011, 0b11]
