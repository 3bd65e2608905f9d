"""Count sketches on a device: the loops' tables, medians and cells that are cleared."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gcsim.compressors.sketching import table
from tests.compressors.gpu.conftest import demand_same
from tests.compressors.gpu.examples import SEEDS, few, vector


@pytest.mark.parametrize(("subtract", "blocks"), [(False, 1), (True, 3)])
@few
@given(
    n=st.sampled_from((0, 1, 9, 700)), kind=st.sampled_from(("normal", "ties", "any")),
    rows=st.integers(1, 6), columns=st.sampled_from((1, 40, 300)),
    seed=SEEDS,
)  # fmt: skip
def test_sketches(
    n: int, kind: str, rows: int, columns: int, blocks: int, subtract: bool, seed: int
) -> None:
    """Ties hold zeros of both signs; of any exponent, sums overflow and medians are of infinities
    and what is not a number."""
    values = vector(n, kind, seed)
    hashes = table.Hashes(seed, 1, n, rows=rows, columns=columns, blocks=blocks)
    cells = demand_same(table.sketch, values, hashes)
    demand_same(table.estimate, cells, n, hashes)
    taken = torch.arange(0, n, 3, dtype=torch.int32)
    demand_same(table.take_off, taken, values[taken.long()], cells, hashes, subtract=subtract)
