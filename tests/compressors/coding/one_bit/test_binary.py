"""Bits and two levels a group: what is written is read back, on any number of threads."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from gcsim.compressors.bucket import BucketLayout, TensorSlice
from gcsim.compressors.coding.frame import Codec, Frame, pack_frame, read_frames
from gcsim.compressors.coding.one_bit.binary import (
    KNOWN_LEVELS,
    SYMMETRIC,
    TWO_LEVELS,
    add_chosen,
    bits_above,
    pack_binary,
    random_bits,
    read_binary,
)
from gcsim.compressors.coding.one_bit.columns import (
    add_and_sum_columns,
    add_columns,
    column_bits,
    column_sums,
    matrix_shape,
)
from gcsim.compressors.meter import segment
from gcsim.compressors.random import random_key
from gcsim.errors import InputError

Draw = Callable[..., Tensor]
LayoutOf = Callable[..., BucketLayout]


def unpacked(bits: Tensor, count: int) -> Tensor:
    """Bits as bool `[count]`, by numpy."""
    return torch.from_numpy(np.unpackbits(bits.numpy(), bitorder="little")[:count]).bool()


def frame_of(message: Tensor) -> Frame:
    (frame,) = read_frames(message)
    return frame


@pytest.mark.parametrize("size", [1, 3, 8, 100, 4096, 65535])
@pytest.mark.parametrize("n", [0, 1, 7, 8, 9, 4095, 4096, 4097, 13_001])
def test_bits_and_levels_of_buckets_are_numpys(n: int, size: int, normal: Draw) -> None:
    values, buckets = normal(n), -(-n // size)
    thresholds, lows, highs = normal(buckets, 1), normal(buckets, 2), normal(buckets, 3)
    at = torch.arange(n) // size
    bits = bits_above(values, thresholds, size)
    assert bits.numel() == -(-n // 8)
    expected = values >= thresholds[at]
    assert torch.equal(unpacked(bits, n), expected)
    assert not np.unpackbits(bits.numpy(), bitorder="little")[n:].any()
    out = torch.ones(n)
    add_chosen(out, bits, lows, highs, size=size, weight=0.25)
    chosen = torch.where(expected, 0.25 * highs[at], 0.25 * lows[at])
    assert torch.equal(out, 1 + chosen)


@pytest.mark.parametrize("unit", [1.0, 1e-30, 2.0**-148, 1e33, 1.6e38])
def test_random_bits_are_right_on_average_at_any_magnitude(unit: float) -> None:
    # v = b / 2 is +b in 3 of 4 cases: 40000 elements, standard error .0022, five allowed.
    values, n = torch.full((40_000,), unit), 40_000
    bounds = torch.tensor([2 * unit])
    bits = random_bits(values, bounds, n, random_key(1, 0, 0, "test"))
    assert float(unpacked(bits, n).float().mean()) == pytest.approx(0.75, abs=0.011)


def test_random_bits_of_the_outermost_values_are_certain() -> None:
    values = torch.tensor([2.0, -2.0, 3.0, -1e9, 1e38]).repeat(2000)
    bits = random_bits(values, torch.tensor([2.0]), values.numel(), random_key(1, 0, 0, "test"))
    assert torch.equal(unpacked(bits, values.numel()), values > 0)


def test_random_bits_are_counted(normal: Draw) -> None:
    values, bounds = normal(1000), torch.ones(1)
    with segment() as recorder:
        random_bits(values, bounds, 1000, random_key(1, 0, 0, "test"))
    costs = {cost.kind: cost.nbytes for cost in recorder.costs()}
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
def test_column_sums_are_numpys(rows: int, columns: int, normal: Draw) -> None:
    values, centres = normal(rows * columns), 0.1 * normal(columns, 1)
    total, magnitude, count = column_sums(values, centres, columns)
    distance = values.view(rows, columns).double() - centres.double()
    torch.testing.assert_close(total, distance.sum(0), rtol=1e-12, atol=1e-10)
    torch.testing.assert_close(magnitude, distance.abs().sum(0), rtol=1e-12, atol=1e-12)
    assert torch.equal(count, (distance >= 0).double().sum(0))


@pytest.mark.parametrize(
    ("rows", "columns"), [(1, 1), (2000, 3), (70, 40), (5, 9000), (300_001, 1)]
)
def test_adding_and_summing_is_adding_then_summing(rows: int, columns: int, normal: Draw) -> None:
    values, added = normal(rows * columns), normal(rows * columns, 1)
    expected = column_sums(values + added, torch.zeros(columns), columns)
    together = values + added
    found = add_and_sum_columns(values, added, columns)
    assert torch.equal(values, together)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("keep_error", [False, True])
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (9, 1), (70, 40), (513, 3), (3, 9000)])
@pytest.mark.parametrize("parts", [1, 2, 3, 50])
def test_stripes_of_columns_are_numpys(
    rows: int, columns: int, parts: int, keep_error: bool, normal: Draw
) -> None:
    values, width = normal(rows * columns), -(-columns // parts)
    levels = normal(3 * width * parts, 1).view(3, -1)
    matrix = values.view(rows, columns).clone()
    out, work = torch.zeros(rows * columns), values.clone()
    for part in range(parts):
        first = part * width
        t, low, high = (line[first : first + width].contiguous() for line in levels)
        bits = column_bits(work, columns, (first, width), (t, low, high), keep_error=keep_error)
        expected = torch.zeros(rows, width, dtype=torch.bool)
        mine = matrix[:, first : first + width]
        expected[:, : mine.shape[1]] = mine >= t[: mine.shape[1]]
        assert torch.equal(unpacked(bits, rows * width), expected.view(-1))
        assert bits.numel() == -(-rows * width // 8)
        add_columns(out, columns, (first, width), bits, (low, high), weight=1.0)
    t, low, high = levels[:, :columns]
    decoded = torch.where(matrix >= t, high, low).view(-1)
    assert torch.equal(out, decoded)
    assert torch.equal(work, values - decoded if keep_error else values)


def test_threads_change_nothing(normal: Draw) -> None:
    values, before = normal(600_000), torch.get_num_threads()
    centres = torch.zeros(300)
    found = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            levels = centres, centres - 1, centres + 1
            work = values.clone()
            found.append(
                (
                    *column_sums(values, centres, 300),
                    column_bits(work, 300, (0, 300), levels, keep_error=True),
                    work,
                    random_bits(values, torch.ones(60), 10_000, random_key(1, 0, 0, "test")),
                )
            )
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(other, found[0], strict=True))


def test_frames_give_back_bits_and_levels(normal: Draw) -> None:
    bits, lows, highs = torch.tensor([0b101], dtype=torch.uint8), normal(2), normal(2, 1)
    two = pack_binary(bits, torch.cat((lows, highs)), numel=3, flags=TWO_LEVELS, size=2)
    symmetric = pack_binary(bits, highs, numel=3, flags=SYMMETRIC, size=2)
    none = pack_binary(bits, None, numel=3, flags=KNOWN_LEVELS, size=2)
    for message, expected, known in (
        (two, (lows, highs), None),
        (symmetric, (-highs, highs), None),
        (none, (lows, highs), (lows, highs, 2)),
    ):
        found, low, high, size = read_binary(frame_of(message), known)
        assert torch.equal(found, bits)
        assert torch.equal(low, expected[0])
        assert torch.equal(high, expected[1])
        assert size == 2


def test_damaged_frames_are_refused(normal: Draw) -> None:
    levels, bits = normal(4), torch.tensor([0b101], dtype=torch.uint8)
    good = pack_binary(bits, levels, numel=3, flags=TWO_LEVELS, size=2)
    body = frame_of(good).body
    for flags, size, data in (
        (3, 2, body),
        (TWO_LEVELS, 0, body),
        (TWO_LEVELS, 1, body),
        (SYMMETRIC, 2, body),
        (TWO_LEVELS, 2, torch.cat((body, bits))),
        (TWO_LEVELS, 2, torch.cat((body[:-1], torch.tensor([0b1101]).byte()))),
        (KNOWN_LEVELS, 2, bits),  # of which the receiver knows nothing
    ):
        message = pack_frame(Codec.BINARY, data, numel=3, nonzero=3, flags=flags, params=size)
        with pytest.raises(InputError, match="damaged payload"):
            read_binary(frame_of(message))
    with pytest.raises(InputError, match="damaged payload"):
        read_binary(frame_of(good), (levels[:2], levels[2:], 2))
