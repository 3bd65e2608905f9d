"""Elias code words are the published ones, decode exactly, and damage is noticed."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from gcsim.compressors.coding.integers import elias
from gcsim.errors import InputError

LARGEST = (1 << 32) - 1


def encode(values: list[int]) -> NDArray[np.uint8]:
    """The words of values, one behind the other."""
    body, end = np.zeros(6 * len(values) + 8, dtype=np.uint8), 0
    for value in values:
        end = elias.put_omega(body, end, value)
    return body[: -(-end // 8)]


def decode(body: NDArray[np.uint8], count: int) -> list[int]:
    values: list[int] = []
    end = 0
    while len(values) < count and end >= 0:
        value, end = elias.get_omega(body, end, 8 * len(body))
        values.append(value)
    elias.check_end(body, end)
    return values


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
    assert elias.omega_word(value) == word
    assert encode([value]).tolist() == written(word)
    assert elias.omega_bits(value) == len(word)


@given(values=st.lists(st.integers(1, LARGEST) | st.integers(1, 3000), max_size=60))
def test_words_lie_one_after_the_other_and_decode(values: list[int]) -> None:
    body = encode(values)
    assert body.tolist() == written("".join(elias.omega_word(value) for value in values))
    assert decode(body, len(values)) == values


def test_values_on_both_sides_of_every_power_of_two_survive() -> None:
    values = [max(1, (1 << e) + d) for e in range(32) for d in (-1, 0, 1)] + [LARGEST]
    assert decode(encode(values), len(values)) == values


def test_a_body_of_another_length_is_refused() -> None:
    body = encode(list(range(1, 50)))
    for wrong in (body[:-1], np.append(body, np.uint8(0)), body[:0]):
        with pytest.raises(InputError, match="damaged payload"):
            decode(wrong, 49)


def test_every_byte_string_is_decoded_or_refused_and_never_more_than_it_holds() -> None:
    draw = np.random.default_rng(1)
    decoded = 0
    for length in [1, 2, 3, 4, 6, 20] * 60:
        noise = draw.integers(0, 256, length).astype(np.uint8)
        for count in range(8):
            try:
                values = decode(noise, count)
            except InputError:
                continue
            decoded += 1
            assert encode(values).tolist() == noise.tolist()  # one body for each list of values
    assert decoded > 5


@pytest.mark.parametrize("byte", [0, 255])
def test_a_word_that_never_ends_is_refused(byte: int) -> None:
    with pytest.raises(InputError, match="damaged payload"):
        decode(np.full(100, byte, dtype=np.uint8), 1)


def test_bits_behind_the_last_word_are_refused() -> None:
    body = encode([1])  # "0" and seven zeros of padding
    body[0] = 0x80
    with pytest.raises(InputError, match="bits are set after"):
        decode(body, 1)


@given(st.lists(st.tuples(st.integers(0, 56), st.integers(0, (1 << 56) - 1)), max_size=20))
def test_fields_of_any_width_lie_side_by_side(fields: list[tuple[int, int]]) -> None:
    buffer = np.zeros(200, dtype=np.uint8)
    text, position = "", 0
    for width, bits in fields:
        value = bits & ((1 << width) - 1)
        position = elias.put_bits(buffer, position, value, width)
        text += f"{value:0{width}b}"[::-1] if width else ""
    assert position == len(text)
    assert buffer[: -(-position // 8)].tolist() == written(text)
