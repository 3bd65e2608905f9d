"""ORQ's levels fulfil the optimality condition, and Linear's are quantiles."""

import itertools
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from gcsim.compressors.coding.frames import HEADER_BYTES
from gcsim.compressors.coding.rounding.bucket_levels import rounding_error
from gcsim.compressors.quantization.rounding.orq import Linear, LinearParameters, Orq, OrqParameters
from gcsim.compressors.random import random_key
from gcsim.compressors.segments import Segments
from tests.compressors.shared import Team, normal, round_alone

WIDE = 65535  # the longest bucket: samples close to their distribution


def cut(values: Tensor, size: int) -> list[Tensor]:
    """The buckets of a vector."""
    return [values[at : at + size] for at in range(0, values.numel(), size)]


def optimal(values: Tensor, **parameters: Any) -> Tensor:
    """ORQ's tables: float32 `[buckets, levels]`."""
    chosen = OrqParameters(**parameters)
    return Orq.tables(values, Segments.alone(values.numel()).cells(chosen.bucket), chosen)


def quantiles(values: Tensor, **parameters: Any) -> Tensor:
    """Linear's tables: float32 `[buckets, levels]`."""
    chosen = LinearParameters(**parameters)
    return Linear.tables(values, Segments.alone(values.numel()).cells(chosen.bucket), chosen)


def levels(values: Tensor, **parameters: Any) -> list[float]:
    """The table of a vector that is one bucket."""
    (table,) = optimal(values, bucket=WIDE, **parameters).tolist()
    return list(table)


def cost(values: list[float], table: list[float]) -> float:
    """The mean square error of rounding at random, from its definition."""
    total = 0.0
    for v in values:
        for low, high in itertools.pairwise(table):
            if low < v < high:
                total += (v - low) * (high - v)
    return total


def naive_level(values: list[Any], low: Any, high: Any) -> Any:
    """The element with exactly floor(T) elements above it; the middle when nothing lies between."""
    inside = sorted((v for v in values if low <= v <= high), reverse=True)
    if not any(low < v < high for v in inside):
        return (low + high) / 2
    return inside[int(sum(v - low for v in inside) / (high - low))]


def naive_levels(values: list[Any], count: int) -> list[Any]:
    """Algorithm 1 of the paper, by recursion."""

    def between(low: Any, high: Any, depth: int) -> list[Any]:
        if depth == 0:
            return []
        middle = naive_level(values, low, high)
        return [*between(low, middle, depth - 1), middle, *between(middle, high, depth - 1)]

    low, high = min(values), max(values)
    return [low, *between(low, high, (count - 1).bit_length() - 1 if count > 3 else 1), high]


@pytest.mark.parametrize("seed", range(30))
def test_the_middle_level_has_the_least_cost_of_all_elements(seed: int) -> None:
    # The cost is piecewise linear and convex in the level: some element minimises it.
    generator = torch.Generator().manual_seed(seed)
    for n in (3, 4, 7, 12, 40):
        values = torch.randn(n, generator=generator)
        if seed % 2:
            values = (3 * values).round()  # ties
        found, given = levels(values, levels=3), values.tolist()
        least = min(cost(given, [found[0], b, found[2]]) for b in given)
        assert cost(given, found) == pytest.approx(least, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("count", [3, 5, 9])
@pytest.mark.parametrize("n", [1, 2, 3, 5, 9, 50, 300])
def test_levels_are_those_of_the_naive_recursion(n: int, count: int) -> None:
    for seed in range(5):
        values = normal(n, seed).exp()
        naive = naive_levels(values.double().tolist(), count)
        assert levels(values, levels=count) == pytest.approx(naive, rel=1e-6)


def test_of_uniform_elements_levels_are_midpoints() -> None:
    # Remark 1.1 of the paper: equal distances. 65535 elements: standard error below .01.
    values = torch.rand(WIDE, generator=torch.Generator().manual_seed(0)) * 2 - 1
    assert levels(values, levels=9) == pytest.approx(np.linspace(-1, 1, 9), abs=0.02)


@pytest.mark.parametrize(
    ("count", "expected"),
    [(3, (1.03, 1.03, 1.03)), (5, (0.2279, 0.2633, 0.3003)), (9, (0.0546, 0.0658, 0.0890))],
)
def test_the_error_on_clipped_gaussian_elements(
    count: int, expected: tuple[float, float, float]
) -> None:
    # Of N(0, 1) clipped to 2.5, as shares of its energy, by numerical integration: ORQ, equal
    # distances, quantiles. Levels of ORQ-9: 0, ±.48, ±1.00, ±1.61, ±2.5.
    clipped = normal(8 * WIDE).clamp(-2.5, 2.5)
    energy = float(clipped.double().square().sum())
    even = torch.linspace(-2.5, 2.5, count).repeat(8, 1)
    ours = optimal(clipped, levels=count, bucket=WIDE)
    naive = quantiles(clipped, levels=count, bucket=WIDE)
    for tables, share in zip((ours, even, naive), expected, strict=True):
        assert rounding_error(clipped, tables, WIDE) / energy == pytest.approx(share, rel=0.01)
    if count == 9:
        known = [-2.5, -1.61, -1.0, -0.48, 0, 0.48, 1.0, 1.61, 2.5]
        assert ours.mean(0).tolist() == pytest.approx(known, abs=0.015)


@pytest.mark.parametrize("count", [5, 9])
def test_refined_levels_meet_the_condition_all_at_once(count: int) -> None:
    for seed in range(4):
        values = normal(500, seed)
        found, given = levels(values, levels=count, refine=True), values.tolist()
        for k in range(1, count - 1):
            least = naive_level(given, found[k - 1], found[k + 1])
            assert found[k] == pytest.approx(least, rel=1e-6)
        assert cost(given, found) <= cost(given, levels(values, levels=count))


def test_elements_far_below_the_largest_keep_their_levels() -> None:
    # Sums from the beginning of the bucket would drown the small elements in the outlier.
    small = normal(1000) * 1e-20
    table = levels(torch.cat((torch.tensor([-3e4]), small)), levels=9)
    naive = naive_levels([Fraction(-30000), *map(Fraction, small.tolist())], 9)
    assert table == pytest.approx([float(level) for level in naive], rel=1e-6)


@pytest.mark.parametrize("name", ["orq", "linear"])
def test_updates_follow_the_definition_over_steps_and_workers(name: str) -> None:
    # Levels by the naive recursion or numpy, rounding by `round_alone` (tested against its
    # definition).
    def levels_of(part: Tensor) -> Any:
        if name == "orq":
            return naive_levels(part.tolist(), 5)
        return np.quantile(part, np.linspace(0, 1, 5)).tolist()

    sizes, size, seed = (70, 9, 1), 32, 7
    crew = Team(name, [(n,) for n in sizes], workers=3, levels=5, bucket=size, seed=seed)
    for step in range(3):
        gradients = [normal(80, 10 * step + rank) for rank in range(3)]
        expected = torch.zeros(80).double()
        for rank, gradient in enumerate(gradients):
            at = 0
            for tensor, n in enumerate(sizes):
                values = gradient[at : at + n]
                tables = torch.tensor([levels_of(part) for part in cut(values, size)])
                key = random_key(seed, step, tensor, f"{name} rounding", rank)
                codes = round_alone(values, tables, size=size, key=key).long()
                expected[at : at + n] += tables[torch.arange(n) // size, codes] / 3
                at += n
        updates = crew.step(gradients, step)
        assert all(torch.equal(update, updates[0]) for update in updates)
        torch.testing.assert_close(updates[0].double(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("size", "ratios"), [(2048, (19.43, 13.27, 9.58)), (512, (17.90, 12.09, 8.50))]
)
def test_the_compression_ratios_with_packing_and_level_tables(
    size: int, ratios: tuple[float, ...]
) -> None:
    # 32 / (1.6 + 96 / size) and so on, by hand; without the header.
    n = 122_880
    for count, ratio in zip((3, 5, 9), ratios, strict=True):
        crew = Team("orq", [(n,)], workers=1, levels=count, bucket=size)
        crew.step([normal(n)])
        ((sent,),) = crew.sent
        assert 4 * n / (sent - HEADER_BYTES) == pytest.approx(ratio, abs=0.006)


# --- Linear ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [3, 5, 9])
@pytest.mark.parametrize("n", [1, 2, 8, 9, 10, 1000])
def test_levels_are_numpys_quantiles(n: int, count: int) -> None:
    values = normal(n)
    kept = values.clone()
    tables = quantiles(values, levels=count, bucket=300)
    assert torch.equal(values, kept)
    for bucket, table in zip(cut(values, 300), tables, strict=True):
        expected = np.quantile(bucket.double().numpy(), np.linspace(0, 1, count))
        assert table.tolist() == pytest.approx(expected, rel=1e-6)
