"""Values of 0 to 32 bits, blocks and bins on a device: the loops' bytes, sums and complaints."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from gcsim.compressors.coding.floats import truncated
from gcsim.compressors.sparsification.by_size import omnireduce
from gcsim.errors import InputError
from tests.compressors.gpu.conftest import demand_same
from tests.compressors.gpu.examples import EXACT, SEEDS, VECTORS, few, spoilt


@few
@given(
    values=VECTORS, bound=st.sampled_from((1, 9, 14)), factor=st.sampled_from((1.0, 2.0**-9)),
    power=st.sampled_from((0, 128)),
)  # fmt: skip
def test_values_cut_to_bytes(values: Tensor, bound: int, factor: float, power: int) -> None:
    values = spoilt(values, by=np.nan)
    values[:1] = -np.inf
    body, sent = demand_same(truncated.cut, values, bound, factor)
    form = {"bound": bound, "weight": 2.0**power / 3}
    out = torch.linspace(-1, 1, values.numel())
    demand_same(truncated.add_cut, out, body, sent=sent, **form)
    for damaged in (body[:-1], torch.cat((body, body[:1]))):
        if damaged.numel():
            found = demand_same(truncated.add_cut, out, damaged, sent=sent, **form)
            assert found[0] is InputError
    assert demand_same(truncated.add_cut, out, body, sent=sent + 1, **form)[0] is InputError
    if values.numel() % 4:
        stray = body | torch.tensor([255] * body.numel(), dtype=torch.uint8)
        assert demand_same(truncated.add_cut, out, stray, sent=sent, **form)[0] is InputError


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
