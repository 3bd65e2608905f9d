"""Digits of any base survive, as short as their groups, and damage is noticed."""

import math

import numpy as np
import pytest
import torch

from gcsim.compressors.coding.integers.digits import digits
from gcsim.compressors.coding.rounding.levels import Levels, add_rounded, own
from gcsim.compressors.segments import ZERO
from gcsim.errors import InputError
from tests.compressors.shared import cells_of, rounded

# the last two cross an inner block or are cut for threads
LENGTHS = [0, 1, 2, 3, 5, 7, 8, 9, 63, 1000, (1 << 17) + 5, 5 * (1 << 17) + 3]


def numbered(like: torch.Tensor, base: int) -> Levels:
    """The levels 0 … base - 1: a code is what it stands for."""
    return own(cells_of(like, 1 << 20), torch.arange(base, dtype=torch.float32)[None], base)


def pack_digits(codes: torch.Tensor, base: int) -> torch.Tensor:
    return rounded(codes.float(), numbered(codes, base), np.uint64(0), digits(base))


def unpack_digits(packed: torch.Tensor, n: int, base: int) -> torch.Tensor:
    out = torch.zeros(n)
    add_rounded(out, numbered(out, base), packed, ZERO, digits(base), 1.0)
    return out.to(torch.uint8)


def test_known_bytes_of_digits() -> None:
    # By hand: 2 (1 + 3 + 9 + 27 + 81) = 242; six digits make two bytes, planes (0,1) (2,3) (4,5).
    assert pack_digits(torch.full((5,), 2, dtype=torch.uint8), 3).tolist() == [242]
    six = torch.tensor([1, 2, 0, 1, 2, 0], dtype=torch.uint8)
    assert pack_digits(six, 3).tolist() == [1 + 9 * 2, 2 + 3 * 1]


def test_what_is_no_five_digits_is_refused() -> None:
    with pytest.raises(InputError, match="group is not made of digits"):
        unpack_digits(torch.tensor([243], dtype=torch.uint8), 5, 3)


def test_digits_after_the_last_must_be_zero() -> None:
    with pytest.raises(InputError, match="padding"):
        unpack_digits(torch.tensor([81], dtype=torch.uint8), 4, 3)


# By hand, n = 1000: 200 groups of 8 bits; 334 of 7; 200 of 16; 3, 4 and 8 bits a digit.
@pytest.mark.parametrize(
    ("base", "nbytes"), [(3, 200), (5, 293), (9, 400), (7, 375), (16, 500), (256, 1000), (2, 125)]
)
def test_bytes_of_a_thousand_digits(base: int, nbytes: int) -> None:
    assert digits(base).nbytes(1000) == nbytes


@pytest.mark.parametrize(
    ("base", "ideal", "packed"), [(3, 20.2, 20.0), (5, 13.8, 13.71), (9, 10.1, 10.0)]
)
def test_packing_costs_a_hundredth_of_the_ideal_ratio(
    base: int, ideal: float, packed: float
) -> None:
    # Xu et al., arXiv:2002.11082, table 5, prints 32 / log2(base); by hand 32 / (8 / 5), …
    size, bits, _ = digits(base)
    assert 32 / math.log2(base) == pytest.approx(ideal, abs=0.05)
    assert 32 * size / bits == pytest.approx(packed, abs=0.005)


@pytest.mark.parametrize("base", [2, 3, 4, 5, 6, 7, 9, 15, 17, 255, 256])
@pytest.mark.parametrize("n", LENGTHS)
def test_digits_of_any_base_survive(n: int, base: int) -> None:
    codes = torch.from_numpy(np.random.default_rng(n).integers(0, base, n).astype(np.uint8))
    packed = pack_digits(codes, base)
    assert packed.numel() == digits(base).nbytes(n)
    assert torch.equal(unpack_digits(packed, n, base), codes)


@pytest.mark.parametrize(("base", "size"), [(3, 5), (5, 3), (9, 5)])
def test_every_group_is_taken_apart_exactly(base: int, size: int) -> None:
    # Oracle: Python's divmod on every value that a group can have.
    values = np.arange(base**size)
    each = np.stack([values // base**j % base for j in range(size)]).astype(np.uint8)
    packed = pack_digits(torch.from_numpy(each.reshape(-1)), base)
    expected = np.concatenate([[v >> b & 1 for b in range(digit_bits(base))] for v in values])
    assert packed.tolist() == np.packbits(expected.astype(np.uint8), bitorder="little").tolist()
    assert torch.equal(unpack_digits(packed, each.size, base), torch.from_numpy(each).view(-1))


def digit_bits(base: int) -> int:
    return {3: 8, 5: 7, 9: 16}[base]


@pytest.mark.parametrize("base", [3, 5, 6, 9])
def test_damage_in_any_base_is_refused(base: int) -> None:
    full = torch.full((digits(base).nbytes(10),), 255, dtype=torch.uint8)
    with pytest.raises(InputError, match="damaged payload"):
        unpack_digits(full, 10, base)


def test_bases_that_no_byte_holds_are_refused() -> None:
    for base in (1, 257):
        with pytest.raises(InputError, match="2 to 256"):
            digits(base)
