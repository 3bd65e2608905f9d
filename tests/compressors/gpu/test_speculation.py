"""CE-SGD's bitmaps and choices on a device: what the loops choose, step after step."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from gcsim.compressors.coding.indices import bitmap
from gcsim.compressors.random import stream
from gcsim.compressors.sparsification.ce_sgd import ce_sgd, messages
from gcsim.compressors.sparsification.ce_sgd.selection import Selection
from gcsim.errors import InputError
from tests.compressors.gpu.conftest import demand_same, equal, kernels
from tests.compressors.gpu.examples import EXACT, SEEDS, few, vector

STEPS = (None, True, True, False, True, None)
"""Whether the last one was an improvement."""


@few
@given(
    n=st.sampled_from((1, 9, 700, bitmap.BLOCK + 77)), limit=st.sampled_from((1, 3)),
    share=st.sampled_from((0.01, 0.3, 0.8)), seed=SEEDS,
)  # fmt: skip
def test_what_is_sent_step_after_step(n: int, limit: int, share: float, seed: int) -> None:
    """The level of those wanted is by turns of the aged, of the least M, and among all."""

    def run() -> list[object]:
        values, seen = vector(n, "normal", seed), list[object]()
        state = Selection(values, limit)
        for step, improved in enumerate(STEPS):
            new, indices = state.renew(
                values.roll(step), improved, max(1, round(share * n)), np.uint64(seed + step),
                partial(stream, seed, step, 0, "test"),
            )  # fmt: skip
            now = state.chosen, state.rewards, state.age
            seen += [new, indices, *(each.clone() for each in now), state.starts.tolist()]
        return seen

    expected = run()
    with kernels():
        assert equal(run(), expected)


@few
@given(values=EXACT, seed=SEEDS)
def test_bitmaps(values: Tensor, seed: int) -> None:
    n = values.numel()
    flags = np.random.default_rng(seed).random(n) < 0.4
    bits = torch.from_numpy(np.packbits(flags, bitorder="little"))
    starts = bitmap.bit_starts(bits, n)
    taken = demand_same(bitmap.at_bits, values, bits, starts)
    demand_same(bitmap.add_at_bits, -values, bits, starts, taken, 1 / 3)
    demand_same(bitmap.as_mask, bits, n)
    indices = torch.arange(0, n, 5, dtype=torch.int32)
    demand_same(bitmap.unite, bits, bits.flip(0) & bits[:1], indices)
    demand_same(messages._check_indices, indices, n)
    demand_same(ce_sgd.inner_product, values, values.flip(0))
    if n > 5:
        assert demand_same(messages._check_indices, indices, n - n % 5 - 5)[0] is InputError


@pytest.mark.parametrize("n", [0, 1, bitmap.BLOCK, bitmap.BLOCK + 1])
def test_bits_before_each_block(n: int) -> None:
    bits = torch.from_numpy(np.packbits(np.arange(n) % 3 == 0, bitorder="little"))
    expected = bitmap.bit_starts(bits, n)
    with kernels():
        assert np.array_equal(bitmap.bit_starts(bits, n), expected)
