"""A frame says what it holds, and nothing that contradicts itself is believed."""

import hashlib
import struct
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from gcsim.compressors.coding.frames import (
    HEADER_BYTES,
    Codec,
    as_bytes,
    from_bytes,
    pack_frame,
    read_frames,
)
from gcsim.errors import InputError, InternalError


def body_of(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.uint8)


def test_the_header_is_twenty_bytes_of_which_the_last_four_are_the_checksum() -> None:
    # codec u8, flags u8, params u16, numel u32, nonzero u32, body bytes u32, little endian
    frame = pack_frame(3, body_of(9, 8), numel=70000, nonzero=5, flags=0x12, params=0x0304)
    assert HEADER_BYTES == 20
    fields = [[3, 0x12, 0x04, 0x03], [0x70, 0x11, 1, 0], [5, 0, 0, 0], [2, 0, 0, 0]]
    assert frame[:16].tolist() == [byte for field in fields for byte in field]
    assert frame[20:].tolist() == [9, 8]


@pytest.mark.parametrize("length", [0, 1, 7, 8, 9, 1000, 131_072, 300_001])
def test_any_changed_bit_is_noticed(length: int) -> None:
    body = torch.randint(
        0, 256, (length,), generator=torch.Generator().manual_seed(1), dtype=torch.uint8
    )
    message = pack_frame(1, body, numel=2**31, nonzero=5)
    (frame,) = read_frames(message)
    assert torch.equal(frame.body, body)
    places = {*range(HEADER_BYTES), HEADER_BYTES + length // 2, HEADER_BYTES + length - 1}
    for place in places & set(range(message.numel())):
        for bit in range(8):
            damaged = message.clone()
            damaged[place] ^= 1 << bit
            with pytest.raises(InputError):
                read_frames(damaged)


@pytest.mark.parametrize("length", [0, 1, 7, 8, 9, 16, 1003])
def test_the_checksum_is_blake2b_of_header_rest_and_sum(length: int) -> None:
    # hashlib's BLAKE2b, and the sum of the words in Python's whole numbers
    frame = pack_frame(3, torch.arange(length).mul(37).byte(), numel=length, params=500).numpy()
    body = frame[HEADER_BYTES:].tobytes()
    words = struct.unpack(f"<{length // 8}Q", body[: length // 8 * 8])
    total = sum(word * (2 * i + 1) for i, word in enumerate(words)) % 2**64
    hashed = frame[:16].tobytes() + body[length // 8 * 8 :].ljust(8, b"\0")
    expected = hashlib.blake2b(hashed + total.to_bytes(8, "little"), digest_size=4)
    assert frame[16:HEADER_BYTES].tobytes() == expected.digest()


def test_words_that_change_places_are_noticed() -> None:
    body = torch.arange(64, dtype=torch.uint8)
    message = pack_frame(1, body, numel=64, nonzero=64)
    damaged = message.clone()
    damaged[HEADER_BYTES : HEADER_BYTES + 16] = message[HEADER_BYTES : HEADER_BYTES + 16].roll(8)
    with pytest.raises(InputError, match="the checksum does not match"):
        read_frames(damaged)


def test_the_checksum_does_not_depend_on_threads_or_alignment(same_on_any_threads: Any) -> None:
    body = torch.randint(
        0, 256, (1_000_003,), generator=torch.Generator().manual_seed(2), dtype=torch.uint8
    )
    (message,) = same_on_any_threads(lambda: (pack_frame(1, body, numel=1_000_003, nonzero=0),))
    shifted = torch.cat((torch.zeros(3, dtype=torch.uint8), message))[3:]
    assert torch.equal(read_frames(shifted)[0].body, body)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(list(Codec)),
            st.integers(0, 255),
            st.integers(0, 65535),
            st.integers(0, 2**32 - 1),
            st.binary(max_size=20),
        ),
        max_size=5,
    )
)
def test_frames_back_to_back_are_read_as_they_were_written(
    parts: list[tuple[Codec, int, int, int, bytes]],
) -> None:
    message = torch.cat(
        [torch.zeros(0, dtype=torch.uint8)]
        + [
            pack_frame(c, body_of(*b), numel=n, nonzero=n // 2, flags=f, params=p)
            for c, f, p, n, b in parts
        ]
    )
    read = [
        (x.codec, x.flags, x.params, x.numel, x.nonzero, bytes(x.body.tolist()))
        for x in read_frames(message)
    ]
    assert read == [(c, f, p, n, n // 2, b) for c, f, p, n, b in parts]


def test_a_message_cut_anywhere_is_refused_with_the_place() -> None:
    whole = torch.cat([pack_frame(1, body_of(1, 2, 3), numel=4, nonzero=2)] * 2)
    for cut in range(1, whole.numel()):
        if cut == whole.numel() // 2:
            continue  # exactly one whole frame
        with pytest.raises(InputError, match=r"frame [01] at byte (0|23): .*left"):
            read_frames(whole[:cut])


def test_another_codec_or_an_unknown_one_is_refused() -> None:
    message = pack_frame(Codec.SPARSE, body_of(), numel=1, nonzero=0)
    with pytest.raises(InputError, match="codec 1, expected 2"):
        read_frames(message, expected=Codec.QSGD)
    message[0] = 200
    with pytest.raises(InputError, match="unknown codec 200"):
        read_frames(message)


def test_more_travelling_elements_than_elements_are_refused() -> None:
    message = pack_frame(1, body_of(), numel=3, nonzero=4)
    with pytest.raises(InputError, match="4 of 3 elements"):
        read_frames(message)


def test_a_message_that_is_not_bytes_is_refused() -> None:
    with pytest.raises(InputError, match="uint8"):
        list(read_frames(torch.zeros(16)))


def test_numbers_that_do_not_fit_their_field_are_our_bug() -> None:
    with pytest.raises(InternalError, match="codec 1"):
        pack_frame(1, body_of(), numel=2**32, nonzero=0)
    with pytest.raises(InternalError, match="uint8"):
        pack_frame(1, torch.zeros(2), numel=2, nonzero=0)


def test_values_are_read_back_from_an_unaligned_place() -> None:
    values = torch.tensor([1.5, -2.0])
    shifted = torch.cat((body_of(7), as_bytes(values)))[1:]
    assert torch.equal(from_bytes(shifted, torch.float32, 2), values)
    with pytest.raises(InputError, match="8 bytes where 3 values"):
        from_bytes(shifted, torch.float32, 3)
