"""Linear's levels are the quantiles of each bucket, and its rounding is unbiased."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from gcsim.compressors.coding.frames import HEADER_BYTES
from gcsim.compressors.quantization.rounding.orq import Linear, LinearParameters
from gcsim.compressors.random import random_key
from gcsim.compressors.segments import Segments
from tests.compressors.shared import Draw, round_alone


def cut(values: Tensor, size: int) -> list[Tensor]:
    """The buckets of a vector."""
    return [values[at : at + size] for at in range(0, values.numel(), size)]


def tables_of(values: Tensor, **parameters: Any) -> Tensor:
    chosen = LinearParameters(**parameters)
    return Linear.tables(values, Segments.alone(values.numel()).cells(chosen.bucket), chosen)


def test_quantiles_by_hand() -> None:
    # Of 0 … 4 and 10 the quantiles 0, 1/4, …: at places 0, 1.25, 2.5, 3.75, 5.
    values = torch.tensor([10.0, 1, 3, 2, 0, 4])
    (table,) = tables_of(values, levels=5).tolist()
    assert table == [0, 1.25, 2.5, 3.75, 10]


@pytest.mark.parametrize("count", [3, 5, 9])
@pytest.mark.parametrize("n", [1, 2, 8, 9, 10, 1000])
def test_levels_are_numpys_quantiles(n: int, count: int, normal: Draw) -> None:
    values = normal(n)
    tables = tables_of(values, levels=count, bucket=300)
    for bucket, table in zip(cut(values, 300), tables, strict=True):
        expected = np.quantile(bucket.double().numpy(), np.linspace(0, 1, count))
        assert table.tolist() == pytest.approx(expected, rel=1e-6)


def test_equally_many_elements_lie_between_neighbours(normal: Draw) -> None:
    values = normal(8001)
    tables = tables_of(values, levels=9, bucket=8001)
    places = torch.searchsorted(tables[0], values, right=True).clamp(1, 8) - 1
    assert torch.bincount(places).tolist() == [1000] * 7 + [1001]


def test_clipped_levels_are_quantiles_of_clipped_elements(normal: Draw) -> None:
    values = normal(1000)
    bound = 1.5 * float(values.double().std(correction=0))
    (table,) = tables_of(values, levels=5, clip=1.5).tolist()
    clipped = values.double().clamp(-bound, bound).numpy()
    assert table == pytest.approx(np.quantile(clipped, [0, 0.25, 0.5, 0.75, 1]), rel=1e-5)


def test_updates_follow_the_definition_over_steps_and_workers(team: Any, normal: Draw) -> None:
    sizes, size, seed = (70, 9, 1), 32, 7
    crew = team("linear", [(n,) for n in sizes], workers=2, levels=9, bucket=size, seed=seed)
    for step in range(3):
        gradients = [normal(80, 10 * step + rank) for rank in range(2)]
        expected = torch.zeros(80).double()
        for rank, gradient in enumerate(gradients):
            at = 0
            for tensor, n in enumerate(sizes):
                values = gradient[at : at + n]
                tables = torch.tensor(
                    np.array([np.quantile(b, np.linspace(0, 1, 9)) for b in cut(values, size)])
                ).float()
                key = random_key(seed, step, tensor, "linear rounding", rank)
                codes = round_alone(values, tables, size=size, key=key).long()
                expected[at : at + n] += tables[torch.arange(n) // size, codes] / 2
                at += n
        updates = crew.step(gradients, step)
        assert torch.equal(updates[0], updates[1])
        torch.testing.assert_close(updates[0].double(), expected, rtol=1e-5, atol=1e-6)


def test_a_message_has_the_length_of_the_formula(team: Any, normal: Draw) -> None:
    # 3 base-5 digits in 7 bits and 5 float32 a bucket: 1000 elements, 8 buckets of 128.
    crew = team("linear", [(1000,)], workers=1, bucket=128)
    crew.step([normal(1000)])
    assert crew.sent == [(HEADER_BYTES + 8 * 5 * 4 + -(-334 * 7 // 8),)]


@pytest.mark.parametrize("parameters", [{}, {"levels": 9, "clip": 1.0}])
def test_the_laws_hold(parameters: dict[str, Any], team: Any, normal: Draw) -> None:
    # 800 steps: means within five standard errors, mean square error within 3 %.
    values, draws = normal(150), 800
    crew = team("linear", [(150,)], workers=1, bucket=64, **parameters)
    properties = Linear.properties(LinearParameters(bucket=64, **parameters))
    updates = torch.stack([crew.step([values], t)[0] for t in range(draws)]).double()
    error = float((updates - values).square().sum(1).mean())
    assert properties.error_bound is not None
    assert error == pytest.approx(properties.error_bound(values), rel=0.03)
    spread = updates.std(0) / draws**0.5
    biased = bool(((updates.mean(0) - values).abs() > 5 * spread + 1e-6).any())
    assert biased is not properties.unbiased
