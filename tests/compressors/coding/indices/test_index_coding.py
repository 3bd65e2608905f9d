"""Coded indices decode exactly, are as short as theory says, and damage is noticed."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from gcsim.compressors.coding.indices.index_coding import (
    Coder,
    choose_coder,
    expected_bits,
    index_width,
    rice_parameter,
)
from gcsim.compressors.coding.integers.packing import get_fields, packed_bytes, put_fields
from gcsim.compressors.coding.selecting.subsets import draw_subset
from gcsim.compressors.random import stream
from gcsim.compressors.segments import Segments
from gcsim.errors import InputError, InternalError
from tests.compressors.shared import decode_indices, encode_indices

CODERS = pytest.mark.parametrize("coder", list(Coder), ids=lambda c: c.name.lower())


def positions(n: int, k: int, seed: int = 0) -> Tensor:
    return draw_subset(torch.zeros(0), Segments.alone(n), np.array([k]), [(seed, 0, 0, "test")])


@given(st.sampled_from(list(Coder)), st.integers(1, 700), st.floats(0, 1), st.integers(0, 99))
def test_every_coder_gives_back_what_it_was_given(
    coder: Coder, n: int, part: float, seed: int
) -> None:
    indices = positions(n, round(n * part), seed)
    body = encode_indices(indices, n, coder)
    assert body.dtype == torch.uint8
    assert torch.equal(decode_indices(body, n, indices.numel(), coder), indices)


@CODERS
@pytest.mark.parametrize("n", [255, 256, 257, 65_535, 65_536, 65_537])
def test_lengths_around_powers_of_two(coder: Coder, n: int) -> None:
    for indices in (torch.tensor([0]), torch.tensor([n - 1]), torch.arange(n)):
        body = encode_indices(indices, n, coder)
        assert torch.equal(decode_indices(body, n, indices.numel(), coder), indices)


@CODERS
def test_clustered_positions_decode_too(coder: Coder) -> None:
    n = 1_000_000  # far from the even spread that Rice's parameter is made for
    indices = torch.cat((torch.arange(500), torch.arange(n - 500, n)))
    body = encode_indices(indices, n, coder)
    assert torch.equal(decode_indices(body, n, 1000, coder), indices)


# Bits per index, n = 1e6: 32; ceil(log2 1e6) = 20; the mean length of a Golomb-Rice code of
# geometric gaps with b = 9, 6, 3; n/k. From an independent program.
@pytest.mark.parametrize(
    ("density", "coder", "bits"),
    [
        (0.001, Coder.RAW, 32.0),
        (0.001, Coder.PACKED, 20.0),
        (0.001, Coder.RICE, 11.49),
        (0.001, Coder.BITMAP, 1000.0),
        (0.01, Coder.RAW, 32.0),
        (0.01, Coder.PACKED, 20.0),
        (0.01, Coder.RICE, 8.11),
        (0.01, Coder.BITMAP, 100.0),
        (0.08, Coder.RAW, 32.0),
        (0.08, Coder.PACKED, 20.0),
        (0.08, Coder.RICE, 5.05),
        (0.08, Coder.BITMAP, 12.5),
    ],
)
def test_bits_per_index_are_the_known_ones(density: float, coder: Coder, bits: float) -> None:
    n = 1_000_000
    k = round(n * density)
    measured = 8 * encode_indices(positions(n, k), n, coder).numel() / k
    # 1 %: the standard deviation of the mean over 1000 gaps is below .5 %
    tolerance = 0.001 if coder.fixed_length else 0.01
    assert measured == pytest.approx(bits, rel=tolerance)
    assert expected_bits(coder, n, k) / k == pytest.approx(bits, rel=0.005)


def test_auto_is_the_shortest_of_all() -> None:
    n = 100_000
    for k in (1, 10, 100, 1000, 8000, 30_000, 60_000, 99_999):
        body = encode_indices(positions(n, k), n, choose_coder("auto", n, k))
        shortest = min(encode_indices(positions(n, k), n, c).numel() for c in Coder)
        assert body.numel() <= 1.02 * shortest + 1, k
    assert choose_coder("auto", n, n // 2) is Coder.BITMAP
    assert choose_coder("auto", n, n // 100) is Coder.RICE
    assert choose_coder("packed", n, n // 100) is Coder.PACKED


def test_rice_parameter_and_index_width_by_hand() -> None:
    # log2(ln 2 * 1000) = 9.44, log2(ln 2 * 100) = 6.12, log2(ln 2 * 12.5) = 3.12; ln 2 < 1
    assert [rice_parameter(1000, k) for k in (1, 10, 80, 1000, 0)] == [9, 6, 3, 0, 0]
    assert [index_width(n) for n in (0, 1, 2, 3, 256, 257, 61_100_840)] == [0, 0, 1, 2, 8, 9, 26]


def test_rice_code_by_hand() -> None:
    # n = 8, k = 2: b = round(log2(2.77)) = 1. Positions 1, 6: gaps 1 and 4 = (high 0, low 1) and
    # (high 2, low 0). Low bits 1, 0 -> 0b01; high parts "1" "001" -> bits 0 and 3 -> 0b1001.
    assert encode_indices(torch.tensor([1, 6]), 8, Coder.RICE).tolist() == [0b01, 0b1001]


@pytest.mark.parametrize("coder", [Coder.RICE, Coder.BITMAP])
@pytest.mark.parametrize("indices", [[5, 3], [3, 3], [-1, 2], [3, 10]])
def test_what_is_not_ascending_is_not_coded(coder: Coder, indices: list[int]) -> None:
    with pytest.raises(InternalError, match="do not ascend"):
        encode_indices(torch.tensor(indices), 10, coder)


@CODERS
def test_noise_is_decoded_to_valid_positions_or_refused(coder: Coder) -> None:
    draw = torch.Generator().manual_seed(0)
    for _ in range(300):
        length = int(torch.randint(0, 20, (1,), generator=draw))
        n = int(torch.randint(1, 200, (1,), generator=draw))
        k = int(torch.randint(0, n + 1, (1,), generator=draw))
        body = torch.randint(0, 256, (length,), generator=draw).to(torch.uint8)
        try:
            found = decode_indices(body, n, k, coder)
        except InputError:
            continue
        assert found.numel() == k
        assert torch.equal(encode_indices(found, n, coder), body)


@given(st.integers(0, 32), st.integers(0, 200), st.integers(0, 2**32))
def test_fields_of_any_width_survive(width: int, count: int, seed: int) -> None:
    values = stream(seed, 0, 0, "w").integers(0, 1 << width, count)
    packed = np.zeros(packed_bytes(count, width), dtype=np.uint8)
    assert put_fields(values, width, packed) == np.bitwise_or.reduce(values, initial=0)
    found = np.empty(count, dtype=np.int64)
    get_fields(packed, width, found)
    assert found.tolist() == values.tolist()


def test_fields_fill_bytes_from_the_lowest_bit() -> None:
    packed = np.zeros(2, dtype=np.uint8)
    put_fields(np.array([1, 2, 3]), 3, packed)
    assert packed.tolist() == [0b11_010_001, 0]


@CODERS
def test_a_body_of_another_length_is_refused(coder: Coder) -> None:
    body = encode_indices(positions(1000, 20), 1000, coder)
    extra = torch.zeros(1, dtype=torch.uint8)
    for damaged in (body[:-1], torch.cat((body, extra)), body[:0]):
        with pytest.raises(InputError, match="damaged payload"):
            decode_indices(damaged, 1000, 20, coder)


def test_positions_out_of_order_or_range_are_refused() -> None:
    swapped = encode_indices(torch.tensor([5, 3]), 10, Coder.RAW)
    with pytest.raises(InputError, match="do not ascend"):
        decode_indices(swapped, 10, 2, Coder.RAW)
    with pytest.raises(InputError, match="positions below 5"):
        decode_indices(encode_indices(torch.tensor([3, 5]), 6, Coder.RAW), 5, 2, Coder.RAW)
    with pytest.raises(InputError, match="by coder 9"):
        decode_indices(swapped, 10, 2, 9)
