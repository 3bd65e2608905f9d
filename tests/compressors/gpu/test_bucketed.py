"""Levels that buckets and columns find for themselves, on kernels: tables, bits and sums."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from gcsim.compressors.coding.integers.digits import digits, fixed
from gcsim.compressors.coding.integers.packing import packed_bytes
from gcsim.compressors.coding.one_bit import binary, columns
from gcsim.compressors.coding.one_bit.bits import Stripes, put_bits
from gcsim.compressors.coding.rounding import bucket_levels, norms
from gcsim.compressors.coding.rounding.levels import KNOWN, Levels, add_rounded, own, round_levels
from gcsim.compressors.quantization.rounding.alq import AlqParameters, statistics
from gcsim.compressors.quantization.rounding.nuqsgd import exponential_levels
from gcsim.compressors.segments import ZERO, Cells, Segments, starts
from tests.compressors.gpu.conftest import ON_HOST, demand_same, kernels
from tests.compressors.gpu.examples import EXACT, KEYS, SEEDS, VECTORS, few, vector
from tests.compressors.shared import add_chosen, cells_of, packed_by

SIZES = st.sampled_from((1, 5, 512, 2048, 5000))


@few
@given(values=VECTORS, size=SIZES, key=KEYS, seed=SEEDS)
def test_bits_of_buckets(values: Tensor, size: int, key: np.uint64, seed: int) -> None:
    n = values.numel()
    lows, highs = (vector(-(-n // size), "normal", seed + i) for i in range(2))
    bits = demand_same(packed_by, values, size, lows)
    demand_same(packed_by, values, size, highs.abs(), keys=np.array([key]))
    out, stripes = torch.linspace(-1, 1, n), Stripes.of(cells_of(values, size))
    demand_same(add_chosen, out, stripes, bits, ZERO, torch.stack((lows, highs)), 1 / 3)


@few
@given(values=EXACT, size=SIZES)
def test_levels_of_buckets(values: Tensor, size: int) -> None:
    """Of whole numbers, whose sums are exact; at most 128 buckets of 40 ms each."""
    cells = cells_of(values, max(size, values.numel() // 64))
    demand_same(binary.optimal_bounds, values, cells)
    expected = binary.class_means(values, cells)
    with kernels():  # distances from a mean are not whole
        assert torch.allclose(binary.class_means(values, cells), expected, rtol=1e-6)


def clipped(values: Tensor, size: int) -> Tensor:
    own = values.clone()
    binary.clip_to_spread(own, cells_of(own, size), 1.5)
    return own


@pytest.mark.parametrize("size", [100, 2048])
def test_buckets_of_any_numbers_differ_by_the_order_of_sums(size: int) -> None:
    values = vector(4097, "normal", 6)
    cells = cells_of(values, size)
    ways: list[tuple[Callable[..., Any], float]] = [
        (lambda: binary.class_means(values, cells), 2**-23),
        (lambda: binary.optimal_bounds(values, cells), 2**-20),  # the loop's are of float32
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
    """Without zeros of both signs, which a sort may order as it likes; in at most 67 buckets."""
    size = max(size, sum(map(len, parts)) // 64)
    values, cells = flat([part + 0.0 for part in parts], size)
    found = demand_same(bucket_levels.quantiles, values, cells, count, None)
    keys = key + np.arange(len(parts), dtype=np.uint64)
    levels = own(cells, found, count)
    for form in (fixed(8), digits(count)):
        sizes = form.nbytes(cells.segments.length)
        codes, at = torch.zeros(int(sizes.sum()), dtype=torch.uint8), starts(sizes)
        demand_same(round_levels, values, levels, keys, codes, at, form)
        round_levels(values, levels, keys, codes, at, form)
        out = torch.linspace(-1, 1, values.numel())
        demand_same(add_rounded, out, levels, codes, at, form, 1 / 3)


@few
@given(
    how=st.sampled_from(((0, 100), (1, 100), (9, 100), (63, 100), (2049, 0))), size=SIZES,
    count=st.sampled_from((3, 5, 9)), seed=SEEDS,
)  # fmt: skip
def test_levels_of_least_error(how: tuple[int, int], size: int, count: int, seed: int) -> None:
    n, sweeps = how  # sweeps take the interpreter long
    values, cells = flat([vector(n, "normal", seed), vector(9, "normal", seed)], size)
    clip = 2.5 if seed % 2 else None
    demand_same(bucket_levels.optimal_levels, values, cells, count, clip, sweeps)


@few
@given(parts=TENSORS, size=SIZES, key=KEYS, bits=st.sampled_from((2, 6)), zero=st.booleans())
def test_tables_that_all_know(
    parts: list[Tensor], size: int, key: np.uint64, bits: int, zero: bool
) -> None:
    levels = np.stack([exponential_levels(bits, p, zero=zero) for p in (0.8, 0.5)])
    values, cells = flat(parts, size)
    found = demand_same(norms.cell_norms, values, cells, "max")
    numbers, sizes = np.arange(len(parts)) % 2, packed_bytes(cells.segments.length, bits)
    known = Levels(kind=KNOWN, cells=cells, numbers=found, tables=tuple(levels), chosen=numbers)
    keys = key + np.arange(len(parts), dtype=np.uint64)
    packed, at = torch.zeros(int(sizes.sum()), dtype=torch.uint8), starts(sizes)
    demand_same(round_levels, values, known, keys, packed, at, fixed(bits))
    round_levels(values, known, keys, packed, at, fixed(bits))
    out = torch.linspace(-1, 1, values.numel())
    demand_same(add_rounded, out, known, packed, at, fixed(bits), 1 / 3)
    expected = norms.table_errors(values, cells, found, levels[0])
    with kernels():
        errors = norms.table_errors(values, cells, found, levels[0])
    np.testing.assert_allclose(errors, expected, rtol=1e-12)


@few
@given(parts=st.lists(EXACT, min_size=1, max_size=2), size=SIZES, most=st.sampled_from((1, 3)))
def test_statistics_of_buckets(parts: list[Tensor], size: int, most: int) -> None:
    """Sums are exact, and all else is done bucket by bucket. A single distribution is summed where
    the tensor lies: a GPU reads nothing of it on its host, an interpreter's host memory one float64
    of each bucket."""
    chosen = AlqParameters.model_validate({"bucket": size, "norm": "max", "components": most})
    values, cells = flat(parts, size)
    for law, read in (("mixture", 0), ("single", 8 * cells.total)):
        given = values, cells.segments, chosen.model_copy(update={"distribution": law})
        demand_same(statistics, *given, on_host=max(ON_HOST, read))
    demand_same(norms.cell_sums, values, cells)


@few
@given(
    rows=st.sampled_from((1, 3, 300)), width=st.sampled_from((1, 9, 130)),
    workers=st.integers(1, 3), seed=SEEDS, keep=st.booleans(),
)  # fmt: skip
def test_columns(rows: int, width: int, workers: int, seed: int, keep: bool) -> None:
    values, added = (vector(rows * width + 7, "ties", seed + i) for i in range(2))
    matrices = columns.Matrices(
        np.array([rows, 7]), np.array([width, 1]), np.array([0, rows * width]), workers
    )
    stripes = matrices.stripes
    head, sizes = 8 * stripes.begins, stripes.sizes
    message = torch.zeros(8 * workers * matrices.lines, dtype=torch.uint8)
    for more in (None, added):
        demand_same(columns.column_levels, values, matrices, message, head, added=more)
    lines = vector(3 * workers * matrices.lines, "normal", seed).view(3, -1)

    def coded(values: Tensor) -> Tensor:
        bits = torch.zeros(int(sizes.sum()), dtype=torch.uint8)
        put_bits(values, stripes, lines, bits, starts(sizes), keep_error=keep)
        return bits

    bits = demand_same(coded, values)
    demand_same(add_chosen, values, stripes, bits, starts(sizes), lines[1:], 1 / 3)
