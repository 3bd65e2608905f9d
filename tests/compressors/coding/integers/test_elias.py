"""Elias code words are the published ones, decode exactly, and damage is noticed."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from gcsim.compressors.coding.indices.index_coding import Coder
from gcsim.compressors.coding.integers.elias import omega_bits, omega_word, put_bits
from gcsim.errors import InputError
from tests.compressors.shared import decode_indices, encode_indices

LARGEST = (1 << 32) - 1
ANYWHERE = 1 << 48
"""Elements of a tensor whose positions have any gaps."""


def encode(values: Tensor) -> Tensor:
    """The words of gaps."""
    return encode_indices(values.cumsum(0) - 1, ANYWHERE, Coder.OMEGA)


def decode(body: Tensor, count: int) -> Tensor:
    positions = decode_indices(body, ANYWHERE, count, Coder.OMEGA)
    return positions.diff(prepend=torch.tensor([-1]))


# Elias 1975, the published table of omega words
OMEGA = {
    1: "0",
    2: "100",
    3: "110",
    4: "101000",
    7: "101110",
    8: "1110000",
    16: "10100100000",
    100: "1011011001000",
}


def written(bits: str) -> list[int]:
    """The bytes of a string of bits, the first in the lowest place."""
    values = np.array([int(bit) for bit in bits], dtype=np.uint8)
    return np.packbits(values, bitorder="little").tolist()


@pytest.mark.parametrize(("value", "word"), OMEGA.items())
def test_omega_words_are_the_published_ones(value: int, word: str) -> None:
    assert omega_word(value) == word
    assert encode(torch.tensor([value])).tolist() == written(word)
    assert omega_bits(value) == len(word)


@given(values=st.lists(st.integers(1, LARGEST) | st.integers(1, 3000), max_size=60))
def test_words_lie_one_after_the_other_and_decode(values: list[int]) -> None:
    body = encode(torch.tensor(values, dtype=torch.int64))
    assert body.tolist() == written("".join(omega_word(value) for value in values))
    assert decode(body, len(values)).tolist() == values


def test_values_on_both_sides_of_every_power_of_two_survive() -> None:
    values = [max(1, (1 << e) + d) for e in range(32) for d in (-1, 0, 1)] + [LARGEST]
    assert decode(encode(torch.tensor(values)), len(values)).tolist() == values


def test_many_values_of_two_threads_survive() -> None:
    values = torch.from_numpy(np.random.default_rng(0).geometric(0.01, 300_000))
    body = encode(values)
    assert body.numel() == -(-sum(len(omega_word(v)) for v in values.tolist()) // 8)
    assert torch.equal(decode(body, values.numel()), values)


def test_a_body_of_another_length_is_refused() -> None:
    body = encode(torch.arange(1, 50))
    for wrong in (body[:-1], torch.cat((body, body[:1] * 0)), body[:0]):
        with pytest.raises(InputError, match="damaged payload"):
            decode(wrong, 49)


def test_every_byte_string_is_decoded_or_refused_and_never_more_than_it_holds() -> None:
    draw = np.random.default_rng(1)
    decoded = 0
    for length in [1, 2, 3, 4, 6, 20] * 60:
        noise = torch.from_numpy(draw.integers(0, 256, length).astype(np.uint8))
        for count in range(8):
            try:
                values = decode(noise, count)
            except InputError:
                continue
            decoded += 1
            assert torch.equal(encode(values), noise)  # one body for each list of values
    assert decoded > 5


@pytest.mark.parametrize("byte", [0, 255])
def test_a_word_that_never_ends_is_refused(byte: int) -> None:
    with pytest.raises(InputError, match="damaged payload"):
        decode(torch.full((100,), byte, dtype=torch.uint8), 1)


def test_bits_behind_the_last_word_are_refused() -> None:
    body = encode(torch.tensor([1]))  # "0" and seven zeros of padding
    body[0] = 0x80
    with pytest.raises(InputError, match="bits are set behind"):
        decode(body, 1)


@given(st.lists(st.tuples(st.integers(0, 56), st.integers(0, (1 << 56) - 1)), max_size=20))
def test_fields_of_any_width_lie_side_by_side(fields: list[tuple[int, int]]) -> None:
    buffer = np.zeros(200, dtype=np.uint8)
    text, position = "", 0
    for width, bits in fields:
        value = bits & ((1 << width) - 1)
        position = put_bits(buffer, position, value, width)
        text += f"{value:0{width}b}"[::-1] if width else ""
    assert position == len(text)
    assert buffer[: -(-position // 8)].tolist() == written(text)
