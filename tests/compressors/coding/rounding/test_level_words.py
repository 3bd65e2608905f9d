"""Elias words of levels are those of the formula."""

import numpy as np
import pytest
import torch

from gcsim.compressors.coding.integers.elias import omega_word
from gcsim.errors import InputError
from tests.compressors.shared import code_alone, decode_alone


def draw(n: int, steps: int, nonzero: float, seed: int = 0) -> torch.Tensor:
    generator = np.random.default_rng(seed)
    levels = generator.integers(-steps, steps + 1, n) * (generator.random(n) < nonzero)
    return torch.from_numpy((levels + steps).astype(np.uint8))


def as_bytes(word: str) -> list[int]:
    padded = word + "0" * (-len(word) % 8)
    return [int(padded[i : i + 8][::-1], 2) for i in range(0, len(padded), 8)]


def words_of(codes: torch.Tensor, steps: int) -> str:
    words, before = [], -1
    for i, code in enumerate(codes.tolist()):
        if code != steps:
            level = code - steps
            words += [omega_word(i - before), str(int(level < 0)), omega_word(abs(level))]
            before = i
    return "".join(words)


@pytest.mark.parametrize(
    ("n", "steps", "nonzero"),
    [
        (0, 1, 0.5),
        (1, 1, 1.0),
        (5, 7, 0.0),
        (8, 127, 1.0),
        (1000, 1, 0.03),
        (1000, 7, 0.5),
        (3000, 127, 0.9),
        (40_000, 3, 0.2),
        (40_000, 1, 0.0001),
        (50_000, 127, 0.01),
    ],
)
def test_words_are_those_of_the_formula_and_come_back(n: int, steps: int, nonzero: float) -> None:
    codes = draw(n, steps, nonzero)
    packed, count = code_alone(codes, steps)
    assert packed.tolist() == as_bytes(words_of(codes, steps))
    assert count == int((codes != steps).sum())
    assert torch.equal(decode_alone(packed, n, count, steps), codes)


def test_known_words() -> None:
    # By hand, s = 2, levels 0 -1 0 0 2: omega(1) = "0", omega(2) = "100", omega(3) = "110".
    # gap 2, negative, 1; gap 3, positive, 2
    codes = torch.tensor([2, 1, 2, 2, 4], dtype=torch.uint8)
    assert words_of(codes, 2) == "100" + "1" + "0" + "110" + "0" + "100"
    assert code_alone(codes, 2)[0].tolist() == as_bytes("100101100100")


def test_damaged_words_are_refused_or_decode_to_levels() -> None:
    # Any bytes: either an InputError or n levels within [-s, s]; never a read out of bounds.
    generator = np.random.default_rng(3)
    refused = 0
    for trial in range(400):
        steps = int(generator.integers(1, 128))
        body = torch.from_numpy(generator.integers(0, 256, trial % 20, dtype=np.uint8))
        try:
            codes = decode_alone(body, 30, trial % 5, steps)
        except InputError:
            refused += 1
        else:
            assert codes.shape == (30,)
            assert int(codes.max()) <= 2 * steps
    assert 350 < refused < 400, refused


def test_lengths_and_padding_are_checked() -> None:
    codes = draw(100, 3, 0.5)
    body, count = code_alone(codes, 3)
    longer = torch.cat((body, torch.zeros(1, dtype=torch.uint8)))
    for damaged, n, sent, steps in (
        (body[:-1], 100, count, 3),
        (longer, 100, count, 3),
        (body, 100, count - 5, 3),  # one word more or less may be zeros that pad
        (body, 100, count + 5, 3),
        (body, 90, count, 3),  # an element behind the last
        (body, 100, count, 2),  # a level above s
    ):
        with pytest.raises(InputError):
            decode_alone(damaged, n, sent, steps)
