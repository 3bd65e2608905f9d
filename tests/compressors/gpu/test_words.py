"""Codes of unknown length on kernels: Elias words and bytes of 7 bits, written and read alike."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gcsim.compressors.coding.indices import index_coding
from gcsim.compressors.coding.integers import elias
from gcsim.compressors.gpu.words import there
from gcsim.errors import InternalError
from tests.compressors.gpu.conftest import demand_same
from tests.compressors.gpu.examples import few
from tests.compressors.shared import decode_alone

CODES = (
    (elias.encode_omega, elias.decode_omega),
    (elias.encode_gamma, elias.decode_gamma),
)
NUMBERS = st.lists(st.integers(0, 31).flatmap(lambda e: st.integers(1 << e, (2 << e) - 1)))


@few
@given(numbers=NUMBERS)
def test_elias_words(numbers: list[int]) -> None:
    values = torch.tensor(numbers, dtype=torch.int64)
    for encode, decode in CODES:
        coded = demand_same(encode, values)
        assert demand_same(decode, coded, len(numbers)).tolist() == numbers


@few
@given(body=st.binary(max_size=9), count=st.integers(0, 20))
def test_damaged_words_are_refused_alike(body: bytes, count: int) -> None:
    """Random bytes are rarely whole words; those that are, must be read alike."""
    packed = torch.tensor(list(body), dtype=torch.uint8)
    for _, decode in CODES:
        demand_same(decode, packed, count)


@pytest.mark.parametrize("value", [0, -3, 1 << 32])
def test_what_has_no_word_is_refused(value: int) -> None:
    for encode, _ in CODES:
        assert demand_same(encode, torch.tensor([1, value]))[0] is InternalError


@few
@given(body=st.binary(max_size=6), count=st.integers(0, 9), steps=st.sampled_from((1, 7)))
def test_damaged_levels_are_refused_alike(body: bytes, count: int, steps: int) -> None:
    packed = torch.tensor(list(body), dtype=torch.uint8)
    demand_same(decode_alone, packed, count, count, steps, "elias_dense")
    demand_same(decode_alone, packed, 9, count, steps, "elias_sparse")


@few
@given(gaps=st.lists(st.integers(0, 27).flatmap(lambda e: st.integers(1 << e, (2 << e) - 1))))
def test_gaps_in_bytes_of_seven_bits(gaps: list[int]) -> None:
    places = torch.tensor(gaps, dtype=torch.int64).cumsum(0) - 1
    n = sum(gaps)
    coded = demand_same(index_coding.encode_indices, places, n, index_coding.Coder.VARINT)
    found = demand_same(index_coding.decode_indices, coded, n, len(gaps), 6)
    assert torch.equal(found, places)


def test_numbers_are_kept_on_a_device_once() -> None:
    device, numbers = torch.device("cpu"), [3, 1, 4]
    first = there(numbers, device)
    assert first.tolist() == numbers
    assert there(tuple(numbers), device) is first
    for other in (there([3, 1, 5], device), there(numbers, device, np.float64), there([], device)):
        assert other is not first
    assert there(np.zeros(1 << 16), device) is not there(np.zeros(1 << 16), device)  # too long
