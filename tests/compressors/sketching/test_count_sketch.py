"""Tables and estimates are those of matrices of signs, and the updates those of the algorithm."""

from typing import Any

import numpy as np
import pytest
import torch

from gcsim.compressors.sketching.count_sketch import estimate, sketch
from tests.compressors.shared import Team, normal, split_mix


class Oracle:
    """The count sketch as matrices: r matrices c x n of one sign a column, float64."""

    def __init__(self, keys: Any, columns: int, n: int) -> None:
        self.rows = np.zeros((len(keys), columns, n))
        for row, key in enumerate(keys.tolist()):
            for i in range(n):
                hashed = split_mix(key, i)
                self.rows[row, (hashed >> 32) * columns >> 32, i] = 1 - 2 * (hashed & 1)

    def estimate(self, table: Any) -> np.ndarray[Any, Any]:
        return np.asarray(np.median(np.einsum("rcn,rc->rn", self.rows, table), axis=0))


@pytest.mark.parametrize("rows", [1, 2, 5])
def test_tables_and_estimates_are_those_of_the_definition(rows: int) -> None:
    keys = Team("count_sketch", [(500,)], rows=rows).workers[0].keys(0)
    assert len(set(keys.tolist())) == rows
    oracle, values = Oracle(keys, 40, 500), normal(500)
    table = sketch(values, keys, 40)
    np.testing.assert_allclose(table, oracle.rows @ values.numpy(), rtol=1e-5, atol=1e-5)
    expected = oracle.estimate(table.numpy())
    np.testing.assert_allclose(estimate(table, 500, keys), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("momentum", [0.9, 0.0])
def test_updates_follow_the_published_algorithm_step_by_step(momentum: float) -> None:
    # Algorithm 1 of Rothchild et al. with the matrices of the definition, float64.
    n, count = 400, 3
    given: dict[str, Any] = {"column_ratio": 0.2, "ratio": 0.02, "momentum": momentum}
    crew = Team("count_sketch", [(20, 15), (100,)], workers=count, **given)
    oracle = Oracle(crew.workers[0].keys(0), 80, n)
    moved, error = np.zeros((5, 80)), np.zeros((5, 80))
    for step in range(6):
        gradients = [normal(n, 10 * step + rank) for rank in range(count)]
        moved = momentum * moved + oracle.rows @ torch.stack(gradients).mean(0).numpy()
        error = error + moved
        estimates, updates = oracle.estimate(error), crew.step(gradients, step)
        assert all(torch.equal(update, updates[0]) for update in updates)
        top = np.flatnonzero(updates[0])
        assert len(top) == 8  # .02 * 400
        least = np.sort(np.abs(estimates))[-8]  # of equal ones either may be sent
        assert np.abs(estimates[top]).min() >= least * (1 - 1e-6)
        np.testing.assert_allclose(updates[0][top], estimates[top], rtol=1e-3, atol=1e-4)
        hit = np.abs(oracle.rows[:, :, top]).sum(2) > 0
        error[hit] = moved[hit] = 0
    (record,) = crew.listener.collectives
    assert record.sent == (4 * 5 * 80,) * count  # 32 r c bits
