"""Packed bytes decode back exactly, have the length of the formula, and damage is noticed."""

import numpy as np
import pytest
import torch

from gcsim.compressors.coding.integers.packing import pack_bits, unpack_bits
from gcsim.compressors.coding.one_bit.signs import pack_signs, unpack_signs
from gcsim.compressors.meter import segment
from gcsim.errors import InputError

LENGTHS = [0, 1, 2, 3, 5, 7, 8, 9, 63, 1000, (1 << 18) + 5]  # the last is cut for threads


def random_codes(n: int, bits: int) -> torch.Tensor:
    codes = np.random.default_rng(n + bits).integers(0, 1 << bits, n)
    return torch.from_numpy(codes.astype(np.uint8 if bits <= 8 else np.int32))


@pytest.mark.parametrize(
    ("n", "bits"),
    [  # a thread's part begins with a byte: how many bits matters no more than whether they fill it
        (n, bits) for n in LENGTHS for bits in (range(1, 17) if n < 1 << 18 else (1, 3, 8, 11))
    ],
)
def test_codes_survive_and_lie_bit_after_bit(n: int, bits: int) -> None:
    codes = random_codes(n, bits)
    packed = pack_bits(codes, bits)
    # Independent construction: write every bit of every code, lowest first.
    every_bit = (codes.numpy().astype(np.int64)[:, None] >> np.arange(bits)) & 1
    expected = np.packbits(every_bit.reshape(-1).astype(np.uint8), bitorder="little")
    np.testing.assert_array_equal(packed.numpy(), expected)
    assert torch.equal(unpack_bits(packed, n, bits), codes)


def test_known_bytes_of_codes() -> None:
    # By hand: nibbles from the low end; three bits of 5, 1, 7: 111 001 101 = 0x1CD.
    assert pack_bits(torch.tensor([1, 2, 3], dtype=torch.uint8), 4).tolist() == [0x21, 0x03]
    assert pack_bits(torch.tensor([5, 1, 7], dtype=torch.uint8), 3).tolist() == [0xCD, 0x01]


@pytest.mark.parametrize("n", LENGTHS)
def test_signs_survive(n: int) -> None:
    values = torch.from_numpy(np.random.default_rng(n).standard_normal(n, dtype=np.float32))
    packed = pack_signs(values)
    assert packed.numel() == -(-n // 8)
    assert torch.equal(unpack_signs(packed, n), torch.where(values < 0, -1.0, 1.0))


def test_a_set_bit_is_negative_and_both_zeros_are_positive() -> None:
    values = torch.tensor([-1.0, 0.0, -0.0, 2.0, -1e-45])
    assert pack_signs(values).tolist() == [0b10001]
    assert unpack_signs(pack_signs(values), 5).tolist() == [-1, 1, 1, 1, -1]


def test_a_view_into_a_message_unpacks_like_a_copy() -> None:
    codes = random_codes(999, 11)
    message = torch.cat((torch.zeros(3, dtype=torch.uint8), pack_bits(codes, 11)))
    assert torch.equal(unpack_bits(message[3:], 999, 11), codes)
    assert torch.equal(unpack_bits(pack_bits(codes[::2], 11), 500, 11), codes[::2])


@pytest.mark.parametrize("bits", [1, 3, 4, 8, 9, 12, 16])
def test_a_buffer_of_another_length_is_refused(bits: int) -> None:
    packed = pack_bits(random_codes(101, bits), bits)
    for wrong in (packed[:-1], torch.cat((packed, packed[:1])), packed[:0]):
        with pytest.raises(InputError, match="damaged"):
            unpack_bits(wrong, 101, bits)


def test_stray_bits_are_refused() -> None:
    packed = pack_bits(random_codes(3, 3), 3)
    packed[-1] |= 0x80
    with pytest.raises(InputError, match="padding"):
        unpack_bits(packed, 3, 3)
    signs = pack_signs(torch.ones(9))
    signs[-1] = 2
    with pytest.raises(InputError, match="padding"):
        unpack_signs(signs, 9)


def test_values_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InputError, match="outside"):
        pack_bits(torch.tensor([0, 16], dtype=torch.uint8), 4)
    with pytest.raises(InputError, match="outside"):
        pack_bits(torch.tensor([-1], dtype=torch.int32), 12)
    for bits in (0, 17):
        with pytest.raises(InputError, match="1 to 16"):
            pack_bits(torch.tensor([0], dtype=torch.uint8), bits)


def test_packing_is_metered_as_one_kernel_of_the_bytes_it_moves() -> None:
    codes = random_codes(1000, 4)
    with segment() as recorder:
        pack_bits(codes, 4)
    (cost,) = recorder.costs()
    assert (cost.kind, cost.launches, cost.nbytes) == ("streaming", 1, 1000 + 500)
