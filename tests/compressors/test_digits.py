"""Base-3 digits survive, five a byte, and damage is noticed."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gcsim.compressors.coding.digits import pack_trits, unpack_trits
from gcsim.errors import InputError

# the last two cross an inner block
LENGTHS = [0, 1, 2, 3, 5, 7, 8, 9, 63, 1000, (1 << 17) + 5, 5 * (1 << 17) + 3]


@pytest.mark.parametrize("n", LENGTHS)
def test_digits_survive_at_five_a_byte(n: int) -> None:
    digits = torch.from_numpy(np.random.default_rng(n).integers(0, 3, n).astype(np.uint8))
    packed = pack_trits(digits)
    assert packed.numel() == -(-n // 5)
    assert torch.equal(unpack_trits(packed, n), digits)


def test_known_bytes_of_digits() -> None:
    # By hand: 2 (1 + 3 + 9 + 27 + 81) = 242; six digits make two bytes, planes (0,1) (2,3) (4,5).
    assert pack_trits(torch.full((5,), 2, dtype=torch.uint8)).tolist() == [242]
    six = torch.tensor([1, 2, 0, 1, 2, 0], dtype=torch.uint8)
    assert pack_trits(six).tolist() == [1 + 9 * 2, 2 + 3 * 1]


def test_what_is_no_five_digits_is_refused() -> None:
    with pytest.raises(InputError, match="243"):
        unpack_trits(torch.tensor([243], dtype=torch.uint8), 5)
    with pytest.raises(InputError, match="1 bytes for 6"):
        unpack_trits(torch.tensor([0], dtype=torch.uint8), 6)


def test_digits_after_the_last_must_be_zero() -> None:
    with pytest.raises(InputError, match="padding"):
        unpack_trits(torch.tensor([81], dtype=torch.uint8), 4)


def test_a_digit_above_two_is_refused() -> None:
    with pytest.raises(InputError, match="digit above 2"):
        pack_trits(torch.tensor([3], dtype=torch.uint8))
