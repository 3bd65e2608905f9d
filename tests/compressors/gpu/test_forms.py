"""Blocks and bins on a device: the loops' bytes, sums and complaints."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from gcsim.compressors.coding.frame import Codec, Frame
from gcsim.compressors.sparsification.by_size import omnireduce
from gcsim.compressors.sparsification.by_threshold import adacomp
from tests.compressors.gpu.conftest import demand_same, equal, kernels
from tests.compressors.gpu.examples import EXACT, SEEDS, VECTORS, few, vector


@few
@given(values=EXACT, size=st.sampled_from((1, 5, 256, 5000)), clear=st.booleans(), seed=SEEDS)
def test_blocks_that_are_not_zero(values: Tensor, size: int, clear: bool, seed: int) -> None:
    count = omnireduce.block_count(values.numel(), size)
    chosen = torch.from_numpy(np.random.default_rng(seed).random(count) < 0.5)
    values = values * chosen.repeat_interleave(size)[: values.numel()]
    demand_same(omnireduce.nonzero_blocks, values, size)
    demand_same(omnireduce.block_norms, values, size)
    blocks = chosen.nonzero().view(-1)
    taken = demand_same(omnireduce.take_blocks, values, blocks, size, clear=clear)
    demand_same(omnireduce.add_blocks, values, blocks, taken, size)


@pytest.mark.parametrize("size", [1, 63, 64, 500])
@few
@given(values=st.one_of(EXACT, VECTORS), seed=SEEDS, factor=st.sampled_from((0.0, 1.0)))
def test_bins(size: int, values: Tensor, seed: int, factor: float) -> None:
    """A bin of zeros among them; and words that were changed, cut or counted wrongly."""
    n = values.numel()
    values[size : 2 * size] = 0.0
    gradient = torch.where(values == 0, 0.0, vector(n, "ties", seed))
    found = demand_same(adacomp.add_and_select, values, gradient, size, factor)
    if isinstance(found[0], type):  # some are too large for a float32
        return
    _, sent, words = found
    frame = Frame(codec=Codec.ADACOMP, flags=0, params=size, numel=n, nonzero=sent, body=words)
    out = torch.linspace(-1, 1, n)

    def read(words: Tensor, frame: Frame) -> tuple[bool, Tensor]:
        return adacomp._add_words(out[:0], words, frame, np.float32(0.3), own := out.clone()), own

    damaged = words.clone()
    if n:
        damaged[seed % len(damaged)] ^= 1 << seed % (8 * words.element_size() - 1)
    more = dataclasses.replace(frame, nonzero=sent + 1)
    for given_, expected in (
        ((words, frame), True), ((damaged, frame), None), ((words[:-1], frame), None),
        ((words, more), False),
    ):  # fmt: skip
        right, own = read(*given_)
        with kernels():
            found, made = read(*given_)
        assert found == right == (right if expected is None else expected)
        assert not right or equal(made, own)
