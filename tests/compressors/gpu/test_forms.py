"""Blocks and bins on a device: the loops' bytes, sums and complaints."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from gcsim.compressors.sparsification.by_size import omnireduce
from tests.compressors.gpu.conftest import demand_same
from tests.compressors.gpu.examples import EXACT, SEEDS, few


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
