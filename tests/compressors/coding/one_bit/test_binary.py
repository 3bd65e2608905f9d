"""Bits and two levels a group: what is written is read back, on any number of threads."""

import numpy as np
import pytest
import torch
from torch import Tensor

from gcsim.compressors.bucket import TensorSlice
from gcsim.compressors.coding.frames import Codec, as_bytes, pack_frame
from gcsim.compressors.coding.one_bit.bits import Stripes, put_bits
from gcsim.compressors.coding.one_bit.columns import Matrices, column_sums, matrix_shape
from gcsim.compressors.meter import segment
from gcsim.compressors.quantization.one_bit import bingrad
from gcsim.compressors.random import random_key
from gcsim.compressors.segments import ZERO, Segments
from gcsim.errors import InputError
from tests.compressors.shared import add_chosen, cells_of, layout_of, normal, packed_by

KEYS = np.array([random_key(1, 0, 0, "test")])


def matrix_of(rows: int, columns: int, count: int = 1) -> Matrices:
    """A matrix alone, in so many stripes."""
    return Matrices(ZERO + rows, ZERO + columns, ZERO, count)


def unpacked(bits: Tensor, count: int) -> Tensor:
    """Bits as bool `[count]`, by numpy."""
    return torch.from_numpy(np.unpackbits(bits.numpy(), bitorder="little")[:count]).bool()


@pytest.mark.parametrize("size", [1, 3, 8, 100, 4096, 65535])
@pytest.mark.parametrize("n", [0, 1, 7, 8, 9, 4095, 4096, 4097, 13_001])
def test_bits_and_levels_of_buckets_are_numpys(n: int, size: int) -> None:
    values, buckets = normal(n), -(-n // size)
    thresholds, lows, highs = normal(buckets, 1), normal(buckets, 2), normal(buckets, 3)
    at = torch.arange(n) // size
    bits = packed_by(values, size, thresholds)
    assert bits.numel() == -(-n // 8)
    expected = values >= thresholds[at]
    assert torch.equal(unpacked(bits, n), expected)
    assert not np.unpackbits(bits.numpy(), bitorder="little")[n:].any()
    out = torch.ones(n)
    levels = torch.stack((lows, highs))
    add_chosen(out, Stripes.of(cells_of(out, size)), bits, ZERO, levels, 0.25)
    chosen = torch.where(expected, 0.25 * highs[at], 0.25 * lows[at])
    assert torch.equal(out, 1 + chosen)


@pytest.mark.parametrize("unit", [1.0, 1e-30, 2.0**-148, 1e33, 1.6e38])
def test_random_bits_are_right_on_average_at_any_magnitude(unit: float) -> None:
    # v = b / 2 is +b in 3 of 4 cases: 40000 elements, standard error .0022, five allowed.
    values, n = torch.full((40_000,), unit), 40_000
    bounds = torch.tensor([2 * unit])
    bits = packed_by(values, n, bounds, keys=KEYS)
    assert float(unpacked(bits, n).float().mean()) == pytest.approx(0.75, abs=0.011)


def test_random_bits_of_the_outermost_values_are_certain() -> None:
    values = torch.tensor([2.0, -2.0, 3.0, -1e9, 1e38]).repeat(2000)
    bits = packed_by(values, values.numel(), torch.tensor([2.0]), keys=KEYS)
    assert torch.equal(unpacked(bits, values.numel()), values > 0)


def test_random_bits_are_counted() -> None:
    values, bounds = normal(1000), torch.ones(1)
    with segment() as recorder:
        packed_by(values, 1000, bounds, keys=KEYS)
    own = [cost for cost in recorder.costs() if cost.name == "binary.random_bits"]
    costs = {cost.kind: cost.nbytes for cost in own}
    assert costs == {"streaming": 4000 + 4 + 125, "random": 2000}


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((5, 3), (5, 3)),
        ((4, 3, 2, 2), (4, 12)),
        ((7,), (7, 1)),
        ((), (1, 1)),
        ((0,), (0, 0)),
        ((5, 0), (5, 0)),
    ],
)
def test_a_tensor_as_matrix(shape: tuple[int, ...], expected: tuple[int, int]) -> None:
    piece = TensorSlice(name="t", shape=shape, offset=0, index=0)
    rows, columns = matrix_shape(piece)
    assert rows * columns == piece.numel
    assert (rows, columns) == expected or piece.numel == 0


@pytest.mark.parametrize(
    ("rows", "columns"), [(1, 1), (1, 9), (9, 1), (2000, 3), (70, 40), (5, 9000), (3001, 1)]
)
@pytest.mark.parametrize("count", [1, 3])
def test_column_sums_are_numpys(rows: int, columns: int, count: int) -> None:
    """Lines of several owners are those of the columns, and zeros."""
    matrices = matrix_of(rows, columns, count)
    values = normal(rows * columns)
    sums = torch.from_numpy(column_sums(values, matrices))
    total, magnitude, number = sums[:, :columns]
    matrix = values.view(rows, columns).double()
    torch.testing.assert_close(total, matrix.sum(0), rtol=1e-12, atol=1e-10)
    torch.testing.assert_close(magnitude, matrix.abs().sum(0), rtol=1e-12, atol=1e-12)
    assert torch.equal(number, (matrix >= 0).double().sum(0))
    assert not sums[:, columns:].any()


@pytest.mark.parametrize(
    ("rows", "columns"), [(1, 1), (2000, 3), (70, 40), (5, 9000), (300_001, 1)]
)
def test_adding_and_summing_is_adding_then_summing(rows: int, columns: int) -> None:
    values, added = normal(rows * columns), normal(rows * columns, 1)
    matrix, together = matrix_of(rows, columns), values + added
    expected = column_sums(together, matrix)
    np.testing.assert_array_equal(column_sums(values, matrix, added), expected)
    assert torch.equal(values, together)


@pytest.mark.parametrize("keep_error", [False, True])
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (9, 1), (70, 40), (513, 3), (3, 9000)])
@pytest.mark.parametrize("parts", [1, 2, 3, 50])
def test_stripes_of_columns_are_numpys(
    rows: int, columns: int, parts: int, keep_error: bool
) -> None:
    values, matrices = normal(rows * columns), matrix_of(rows, columns, parts)
    width, stripes = int(matrices.width[0]), matrices.stripes
    levels = normal(3 * width * parts, 1).view(3, -1)
    size = -(-rows * width // 8)
    bits, at = torch.zeros(size * parts, dtype=torch.uint8), size * np.arange(parts)
    matrix = values.view(rows, columns).clone()
    out, work = torch.zeros(rows * columns), values.clone()
    put_bits(work, stripes, levels, bits, at, keep_error=keep_error)
    for part in range(parts):
        expected = torch.zeros(rows, width, dtype=torch.bool)
        own = slice(part * width, (part + 1) * width)
        mine = matrix[:, own]
        expected[:, : mine.shape[1]] = mine >= levels[0, own][: mine.shape[1]]
        coded = bits[part * size : (part + 1) * size]
        assert torch.equal(unpacked(coded, rows * width), expected.view(-1))
        add_chosen(out, matrices.stripes_of(part), coded, ZERO, levels[1:, own], 1.0)
    t, low, high = levels[:, :columns]
    decoded = torch.where(matrix >= t, high, low).view(-1)
    assert torch.equal(out, decoded)
    assert torch.equal(work, values - decoded if keep_error else values)


def test_messages_give_back_bits_and_levels() -> None:
    layout, both = layout_of(3, 0, 2), normal(6).view(2, 3)
    values, limits = torch.tensor([1.0, -1, 1, -1, 1]), torch.zeros((1, 3))  # bits 10 | 1, 01
    cells = Segments.of(layout).cells(2)
    for flags, levels, decoded in (
        (bingrad.TWO_LEVELS, both, both),
        (bingrad.SYMMETRIC, both[1:], torch.stack((-both[1], both[1]))),
    ):
        out = torch.zeros(5)
        message = bingrad.message_of(values, cells, flags, limits, levels)
        bingrad.add_decoded(message, layout, out, 1.0)
        low, high = decoded
        assert out.tolist() == [high[0], low[0], high[1], low[2], high[2]]


def test_damaged_frames_are_refused() -> None:
    levels, bits, layout = normal(4), torch.tensor([0b101], dtype=torch.uint8), layout_of(3)
    body = torch.cat((as_bytes(levels), bits))
    for flags, size, data in (
        (3, 2, body),
        (bingrad.TWO_LEVELS, 0, body),
        (bingrad.TWO_LEVELS, 1, body),
        (bingrad.SYMMETRIC, 2, body),
        (bingrad.TWO_LEVELS, 2, torch.cat((body, bits))),
        (bingrad.TWO_LEVELS, 2, torch.cat((body[:-1], torch.tensor([0b1101]).byte()))),
    ):
        message = pack_frame(Codec.BINARY, data, numel=3, nonzero=3, flags=flags, params=size)
        with pytest.raises(InputError, match="damaged payload"):
            bingrad.add_decoded(message, layout, torch.zeros(3), 1.0)
