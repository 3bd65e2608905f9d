"""Levels that buckets and columns find for themselves, on kernels: tables, bits and sums."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from gcsim.compressors.coding.integers.packing import packed_bytes
from gcsim.compressors.coding.one_bit import binary, columns
from gcsim.compressors.coding.rounding import bucket_levels, tables
from gcsim.compressors.coding.rounding.levels import cell_norms
from gcsim.compressors.quantization.one_bit import bingrad_b, bingrad_pb
from gcsim.compressors.quantization.rounding import adaptive_levels
from gcsim.compressors.quantization.rounding.alq import AlqParameters
from gcsim.compressors.segments import Cells, Segments, starts
from tests.compressors.gpu.conftest import demand_same, kernels
from tests.compressors.gpu.examples import EXACT, KEYS, LENGTHS, SEEDS, VECTORS, few, vector

SIZES = st.sampled_from((1, 5, 512, 2048, 5000))


@few
@given(values=VECTORS, size=SIZES, key=KEYS, seed=SEEDS)
def test_bits_of_buckets(values: Tensor, size: int, key: np.uint64, seed: int) -> None:
    n = values.numel()
    lows, highs = (vector(-(-n // size), "normal", seed + i) for i in range(2))
    bits = demand_same(binary.bits_above, values, lows, size)
    demand_same(binary.random_bits, values, highs.abs(), size, key)
    out = torch.linspace(-1, 1, n)
    demand_same(binary.add_chosen, out, bits, lows, highs, size=size, weight=1 / 3)


@few
@given(values=EXACT, size=SIZES, iterations=st.sampled_from((0, 1, 9)))
def test_thresholds_and_levels_of_buckets(values: Tensor, size: int, iterations: int) -> None:
    """Of whole numbers, whose sums are exact; the deviation is what is not."""
    thresholds, *_ = demand_same(bingrad_b.class_means, values, size, iterations)
    found = bingrad_b.class_sums(values, thresholds, size)
    with kernels():  # distances from a mean are not whole
        assert torch.allclose(bingrad_b.class_sums(values, thresholds, size), found, rtol=1e-6)
    demand_same(bingrad_b.class_sums, values, torch.zeros_like(thresholds), size)
    demand_same(bingrad_pb.optimal_bounds, values, size)


def clipped(values: Tensor, size: int) -> Tensor:
    own = values.clone()
    bucket_levels.clip_to_spread(own, size, 1.5)
    return own


@pytest.mark.parametrize("size", [100, 2048])
def test_buckets_of_any_numbers_differ_by_the_order_of_sums(size: int) -> None:
    values = vector(4097, "normal", 6)
    ways: list[tuple[Callable[..., Any], float]] = [
        (lambda: torch.stack(bingrad_b.class_means(values, size, 3)), 2**-23),
        (lambda: bingrad_pb.optimal_bounds(values, size), 2**-20),  # the loop's are of float32
        (lambda: clipped(values, size), 2**-23),
    ]
    for find, most in ways:
        expected = find()
        with kernels():
            assert torch.allclose(find(), expected, rtol=most, atol=0)


TENSORS = st.lists(VECTORS, min_size=1, max_size=3)


def flat(parts: list[Tensor], size: int) -> tuple[Tensor, Cells]:
    """(tensors one behind the other, their cells)."""
    return torch.cat(parts), Segments.behind([len(part) for part in parts]).cells(size)


@few
@given(parts=TENSORS, size=SIZES, count=st.sampled_from((3, 5, 9)), key=KEYS)
def test_tables_and_what_is_rounded_between_their_levels(
    parts: list[Tensor], size: int, count: int, key: np.uint64
) -> None:
    """Without zeros of both signs, which a sort may order as it likes."""
    values, cells = flat([part + 0.0 for part in parts], size)
    found = demand_same(bucket_levels.quantiles, values, cells, count, None)
    keys = key + np.arange(len(parts), dtype=np.uint64)
    codes = demand_same(bucket_levels.round_between, values, cells, found, keys)
    out = torch.linspace(-1, 1, values.numel())
    demand_same(bucket_levels.add_between, out, cells, found, codes, 1 / 3)


@few
@given(
    n=st.sampled_from(LENGTHS), size=SIZES, count=st.sampled_from((3, 5, 9)), seed=SEEDS,
    sweeps=st.sampled_from((0, 100)),
)  # fmt: skip
def test_levels_of_least_error(n: int, size: int, count: int, seed: int, sweeps: int) -> None:
    values, cells = flat([vector(n, "normal", seed), vector(9, "normal", seed)], size)
    clip = 2.5 if seed % 2 else None
    demand_same(bucket_levels.optimal_levels, values, cells, count, clip, sweeps)


@few
@given(parts=TENSORS, size=SIZES, key=KEYS, bits=st.sampled_from((2, 6)), zero=st.booleans())
def test_tables_that_all_know(
    parts: list[Tensor], size: int, key: np.uint64, bits: int, zero: bool
) -> None:
    levels = np.stack([tables.exponential_levels(bits, p, zero=zero) for p in (0.8, 0.5)])
    values, cells = flat(parts, size)
    norms = demand_same(cell_norms, values, cells, "max")
    numbers, sizes = np.arange(len(parts)) % 2, packed_bytes(cells.segments.length, bits)
    keys = key + np.arange(len(parts), dtype=np.uint64)
    packed, at = torch.zeros(int(sizes.sum()), dtype=torch.uint8), starts(sizes)
    given = values, cells, norms, levels, numbers, keys, packed, at
    demand_same(tables.round_to_table, *given, bits=bits)
    tables.round_to_table(*given, bits=bits)
    coded = torch.linspace(-1, 1, values.numel()), cells, norms, levels, numbers, packed, at
    demand_same(tables.add_from_table, *coded, bits=bits, weight=1 / 3)
    expected = tables.table_errors(values, cells, norms, levels[0])
    with kernels():
        found = tables.table_errors(values, cells, norms, levels[0])
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@few
@given(parts=st.lists(EXACT, min_size=1, max_size=2), size=SIZES, most=st.sampled_from((1, 3)))
def test_statistics_of_buckets(parts: list[Tensor], size: int, most: int) -> None:
    """Sums are exact, and all else is done bucket by bucket."""
    chosen = AlqParameters.model_validate({"bucket": size, "norm": "max", "components": most})
    values, cells = flat(parts, size)
    for law in ("mixture", "single"):
        given = values, cells.segments, chosen.model_copy(update={"distribution": law})
        demand_same(adaptive_levels.statistics, *given)
    demand_same(tables.cell_sums, values, cells)


@few
@given(
    rows=st.sampled_from((1, 3, 300)), width=st.sampled_from((1, 9, 130)),
    workers=st.integers(1, 3), seed=SEEDS, keep=st.booleans(),
)  # fmt: skip
def test_columns(rows: int, width: int, workers: int, seed: int, keep: bool) -> None:
    values, added = vector(rows * width, "ties", seed), vector(rows * width, "ties", seed + 1)
    demand_same(columns.column_sums, values, torch.ones(width), width)
    demand_same(columns.add_and_sum_columns, values, added, width)
    cut = -(-width // workers)
    stripe = (workers - 1) * cut, cut
    if stripe[0] > width:
        return
    lines = tuple(vector(cut, "normal", seed + i) for i in range(3))
    bits = demand_same(columns.column_bits, values, width, stripe, lines, keep_error=keep)
    assert bits.numel() == packed_bytes(rows * cut, 1)
    demand_same(columns.add_columns, values, width, stripe, bits, lines[1:], weight=1 / 3)
