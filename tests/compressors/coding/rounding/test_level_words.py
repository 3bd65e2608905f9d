"""Elias words of levels are those of the formula, in parallel as one after the other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from gcsim.compressors.coding.integers.elias import omega_word
from gcsim.errors import InputError
from tests.compressors.shared import code_alone, decode_alone


def encode_dense(codes: torch.Tensor, steps: int) -> torch.Tensor:
    return code_alone(codes, steps, "elias_dense")[0]


def encode_sparse(codes: torch.Tensor, steps: int) -> tuple[torch.Tensor, int]:
    return code_alone(codes, steps, "elias_sparse")


def decode_dense(body: torch.Tensor, n: int, steps: int) -> torch.Tensor:
    return decode_alone(body, n, n, steps, "elias_dense")


def decode_sparse(body: torch.Tensor, n: int, sent: int, steps: int) -> torch.Tensor:
    return decode_alone(body, n, sent, steps, "elias_sparse")


def draw(n: int, steps: int, nonzero: float, seed: int = 0) -> torch.Tensor:
    generator = np.random.default_rng(seed)
    levels = generator.integers(-steps, steps + 1, n) * (generator.random(n) < nonzero)
    return torch.from_numpy((levels + steps).astype(np.uint8))


def as_bytes(word: str) -> list[int]:
    padded = word + "0" * (-len(word) % 8)
    return [int(padded[i : i + 8][::-1], 2) for i in range(0, len(padded), 8)]


def dense_word(codes: torch.Tensor, steps: int) -> str:
    words = []
    for code in codes.tolist():
        level = code - steps
        words.append(omega_word(abs(level) + 1) + ("" if level == 0 else str(int(level < 0))))
    return "".join(words)


def sparse_word(codes: torch.Tensor, steps: int) -> str:
    words, before = [], -1
    for i, code in enumerate(codes.tolist()):
        if code != steps:
            level = code - steps
            words += [omega_word(i - before), str(int(level < 0)), omega_word(abs(level))]
            before = i
    return "".join(words)


CASES = pytest.mark.parametrize(
    ("n", "steps", "nonzero"),
    [
        (0, 1, 0.5),
        (1, 1, 1.0),
        (5, 7, 0.0),
        (8, 127, 1.0),
        (1000, 1, 0.03),
        (1000, 7, 0.5),
        (3000, 127, 0.9),
        (40_000, 3, 0.2),  # three blocks
        (40_000, 1, 0.0001),  # gaps longer than a block
        (50_000, 127, 0.01),
    ],
)


@CASES
def test_dense_words_are_those_of_the_formula_and_come_back(
    n: int, steps: int, nonzero: float
) -> None:
    codes = draw(n, steps, nonzero)
    packed = encode_dense(codes, steps)
    assert packed.tolist() == as_bytes(dense_word(codes, steps))
    assert torch.equal(decode_dense(packed, n, steps), codes)


@CASES
def test_sparse_words_are_those_of_the_formula_and_come_back(
    n: int, steps: int, nonzero: float
) -> None:
    codes = draw(n, steps, nonzero)
    packed, count = encode_sparse(codes, steps)
    assert packed.tolist() == as_bytes(sparse_word(codes, steps))
    assert count == int((codes != steps).sum())
    assert torch.equal(decode_sparse(packed, n, count, steps), codes)


def test_known_words() -> None:
    # By hand, s = 2, levels 0 -1 0 0 2: omega(1) = "0", omega(2) = "100", omega(3) = "110".
    codes = torch.tensor([2, 1, 2, 2, 4], dtype=torch.uint8)
    assert dense_word(codes, 2) == "0" + "1001" + "0" + "0" + "1100"
    # gap 2, negative, 1; gap 3, positive, 2
    assert sparse_word(codes, 2) == "100" + "1" + "0" + "110" + "0" + "100"
    assert encode_dense(codes, 2).tolist() == as_bytes("01001001100")
    assert encode_sparse(codes, 2)[0].tolist() == as_bytes("100101100100")


def test_bytes_do_not_depend_on_the_number_of_threads(same_on_any_threads: Any) -> None:
    codes = draw(600_000, 5, 0.3)
    same_on_any_threads(lambda: (encode_dense(codes, 5), *encode_sparse(codes, 5)))


def test_damaged_words_are_refused_or_decode_to_levels() -> None:
    # Any bytes: either an InputError or n levels within [-s, s]; never a read out of bounds.
    generator = np.random.default_rng(3)
    refused = 0
    for trial in range(400):
        steps = int(generator.integers(1, 128))
        body = torch.from_numpy(generator.integers(0, 256, trial % 40, dtype=np.uint8))
        for dense in (True, False):
            try:
                codes = (
                    decode_dense(body, 30, steps) if dense else decode_sparse(body, 30, 4, steps)
                )
            except InputError:
                refused += 1
            else:
                assert codes.shape == (30,)
                assert int(codes.max()) <= 2 * steps
    assert refused > 700  # of 800


def test_lengths_and_padding_are_checked() -> None:
    codes = draw(100, 3, 0.5)
    dense, (sparse, count) = encode_dense(codes, 3), encode_sparse(codes, 3)
    more = torch.zeros(1, dtype=torch.uint8)
    for damaged in (dense[:-1], torch.cat((dense, more))):
        with pytest.raises(InputError):
            decode_dense(damaged, 100, 3)
    for damaged, nonzero in (
        (sparse[:-1], count),
        (torch.cat((sparse, more)), count),
        (sparse, count - 5),  # one word more or less may be zeros that pad
        (sparse, count + 5),
    ):
        with pytest.raises(InputError):
            decode_sparse(damaged, 100, nonzero, 3)
    with pytest.raises(InputError):
        decode_dense(dense, 10**9, 3)
    with pytest.raises(InputError):
        decode_dense(dense, 100, 2)  # a level above s
    with pytest.raises(InputError):
        decode_sparse(sparse, 90, count, 3)  # an element behind the last
