"""THC's rotation, rounding and sums on a device: the loops' codes, residuals and vectors."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from gcsim.compressors.coding.rounding import rotated
from gcsim.compressors.quantization.rounding import thc
from tests.compressors.gpu.conftest import demand_same
from tests.compressors.gpu.examples import EXACT, KEYS, SEEDS, few, vector


@pytest.mark.parametrize(
    ("n", "stages"), [(0, 3), (1, 0), (127, 3), (4100, 0), (4100, 6), (33_000, 10)]
)
@few
@given(
    kind=st.sampled_from(("normal", "any")), most=st.sampled_from((0.0, 1e-42, 1.5)), seed=SEEDS,
    keys=st.tuples(KEYS, KEYS),
)  # fmt: skip
def test_rotation_and_rounding(
    n: int, kind: str, stages: int, most: float, seed: int, keys: tuple[np.uint64, np.uint64]
) -> None:
    table = np.array((0, 1, 3, 6, 12, 21, 29, 30), dtype=np.uint8)
    codes = demand_same(
        rotated.round_rotated, vector(n, kind, seed), most=most, table=table, grid=30,
        stages=stages, signs=keys[0], rounding=keys[1],
    )  # fmt: skip
    sums = torch.from_numpy(table)[codes.long()]
    for dtype in (torch.uint8, torch.int16, torch.int32):
        form = {"step": 0.01, "most": most, "stages": stages, "signs": keys[1]}
        demand_same(rotated.rotate_back, torch.zeros(n), sums.to(dtype), **form)
        demand_same(thc.add_integers, sums.to(dtype), codes, table)


@few
@given(values=EXACT)
def test_the_norm_of_what_is_held(values: Tensor) -> None:
    demand_same(thc.add_and_measure, values, values.flip(0))
    demand_same(thc.add_and_measure, values * 3e38, values)  # not above float32's largest
