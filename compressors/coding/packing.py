"""How do small integers become bytes on the wire, and back?

Fixed-width codes of 1 to 16 bits and sign bits; base-3 digits are in `digits.py`. Every packed
buffer is little endian and padded with zeros to a whole byte; what a buffer cannot have been
packed from (wrong length, padding that is not zero) raises `InputError`.

Eight codes of b bits fill exactly b bytes, so eight codes are folded as one 64-bit word: pairs,
then pairs of pairs, are shifted together (three steps).

Every function is one streaming kernel of an accelerator; here it is blocks of vectorised numpy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gcsim.compressors.lazy_torch import torch
from gcsim.compressors.meter import kernel
from gcsim.errors import InputError, Problem

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    Words = NDArray[np.uint64]
    Bytes = NDArray[np.uint8]

MAX_BITS = 16
BLOCK = 1 << 17
"""Codes folded at a time: a block and its temporaries stay in the processor's cache."""

_LITTLE64 = np.dtype("<u8")
_LITTLE16 = np.dtype("<u2")


def packed_bytes(count: int, bits: int) -> int:
    """Bytes that `count` codes of `bits` bits take: whole bytes, rounded up."""
    return -(-count * bits // 8)


@kernel("streaming")
def pack_bits(values: Tensor, bits: int) -> Tensor:
    """Pack codes of `bits` bits, the first in the lowest bits of the first byte.

    Parameters
    ----------
    values : integer tensor `[n]` (uint8 is fastest), each in [0, 2^bits)
    bits : 1 to 16

    Returns
    -------
    uint8 tensor `[ceil(n bits / 8)]`, on the device of `values`

    Raises
    ------
    InputError
        When a value does not fit, or `bits` is out of range.
    """
    _check_bits(bits)
    codes = to_array(values)
    lane = 8 if bits <= 8 else 16
    count = codes.size
    out = np.empty(-(-count // 8) * bits, dtype=np.uint8)
    for start in range(0, count, BLOCK):
        block = codes[start : start + BLOCK]
        if block.max() >> bits or block.min() < 0:
            raise InputError(f"cannot pack a value outside [0, {1 << bits}) in {bits} bits")
        packed = _fold(_words(block, lane), lane, bits)
        first = start // 8 * bits
        out[first : first + packed.size] = packed
    return to_tensor(out[: packed_bytes(count, bits)], values)


@kernel("streaming")
def unpack_bits(buffer: Tensor, count: int, bits: int) -> Tensor:
    """Undo `pack_bits`.

    Returns a tensor `[count]`: uint8 up to 8 bits, else int32. Raises `InputError` when the
    buffer's length is not that of `count` codes, or its padding is not zero.
    """
    _check_bits(bits)
    data = to_array(buffer)
    _check_packed(data, count, bits)
    lane = 8 if bits <= 8 else 16
    out = np.empty(count, dtype=np.uint8 if lane == 8 else np.int32)
    for start in range(0, count, BLOCK):
        first = start // 8 * bits
        length = min(BLOCK, count - start)
        groups = -(-length // 8)
        block = data[first : first + groups * bits]
        if block.size < groups * bits:
            block = np.pad(block, (0, groups * bits - block.size))
        words = _unfold(block, lane, bits)
        out[start : start + length] = words.view(np.uint8 if lane == 8 else _LITTLE16)[:length]
    return to_tensor(out, buffer)


@kernel("streaming")
def pack_signs(values: Tensor) -> Tensor:
    """One bit an element, 1 = negative; zero of either sign counts as positive.

    `values` is a float tensor `[n]`; returns uint8 `[ceil(n / 8)]`.
    """
    data = to_array(values)
    out = np.empty(packed_bytes(data.size, 1), dtype=np.uint8)
    for start in range(0, data.size, BLOCK):
        bits = np.packbits(data[start : start + BLOCK] < 0, bitorder="little")
        out[start // 8 : start // 8 + bits.size] = bits
    return to_tensor(out, values)


@kernel("streaming")
def unpack_signs(buffer: Tensor, count: int) -> Tensor:
    """Undo `pack_signs`: float32 `[count]` of +1 and -1. Raises `InputError` as `unpack_bits`."""
    data = to_array(buffer)
    _check_packed(data, count, 1)
    out = np.empty(count, dtype=np.float32)
    for start in range(0, count, BLOCK):
        bits = np.unpackbits(data[start // 8 : (start + BLOCK) // 8], bitorder="little")
        block = out[start : start + BLOCK]
        np.multiply(bits[: block.size], np.float32(-2), out=block)
        block += 1
    return to_tensor(out, buffer)


# --- folding eight codes into one word -------------------------------------------------------


def _words(block: NDArray[Any], lane: int) -> Words:
    """The codes as 64-bit words of `lane`-bit fields, padded to whole groups of eight codes."""
    fields = np.ascontiguousarray(block, dtype=np.uint8 if lane == 8 else _LITTLE16)
    if missing := -fields.size % 8:
        fields = np.pad(fields, (0, missing))
    return fields.view(_LITTLE64)


def _repeated(width: int, period: int) -> np.uint64:
    """A mask of the `width` low bits of each field of `period` bits."""
    return np.uint64(sum(((1 << width) - 1) << at for at in range(0, 64, period)))


def _fold(words: Words, lane: int, bits: int) -> Bytes:
    """Bring fields of `bits` bits, one in each `lane` bits, next to each other."""
    width, period = bits, lane
    while period < 64:
        low = _repeated(width, 2 * period)
        high = words >> np.uint64(period - width)
        words = words & low
        high &= low << np.uint64(width)
        words |= high
        width, period = 2 * width, 2 * period
    if lane == 16 and bits % 2:  # four codes end inside a byte: the next four lend it 4 bits
        pairs = words.reshape(-1, 2).copy()
        pairs[:, 0] |= pairs[:, 1] << np.uint64(width)
        pairs[:, 1] >>= np.uint64(4)
        split = pairs.view(np.uint8).reshape(-1, 16)
        half = (bits + 1) // 2
        return np.concatenate([split[:, :half], split[:, 8 : 8 + bits // 2]], axis=1).reshape(-1)
    return words.view(np.uint8).reshape(-1, 8)[:, : width // 8].reshape(-1)


def _unfold(packed: Bytes, lane: int, bits: int) -> Words:
    """Undo `_fold`."""
    width = bits * 64 // lane
    if lane == 16 and bits % 2:
        half = (bits + 1) // 2
        split = packed.reshape(-1, bits)
        pairs = np.zeros((split.shape[0], 16), dtype=np.uint8)
        pairs[:, :half] = split[:, :half]
        pairs[:, 8 : 8 + bits // 2] = split[:, half:]
        both = pairs.view(_LITTLE64)
        both[:, 1] <<= np.uint64(4)
        both[:, 1] |= both[:, 0] >> np.uint64(width)
        words = both.reshape(-1)
    else:
        wide = np.zeros((packed.size // (width // 8), 8), dtype=np.uint8)
        wide[:, : width // 8] = packed.reshape(-1, width // 8)
        words = wide.reshape(-1).view(_LITTLE64)
    period = 64
    while period > lane:
        width, period = width // 2, period // 2
        low = _repeated(width, 2 * period)
        high = words & (low << np.uint64(width))
        high <<= np.uint64(period - width)
        words = words & low
        words |= high
    return words


# --- checks and conversions -----------------------------------------------------------------


def _check_bits(bits: int) -> None:
    if not 1 <= bits <= MAX_BITS:
        raise InputError(f"cannot pack codes of {bits} bits: 1 to {MAX_BITS} are possible")


def _check_packed(data: Bytes, count: int, bits: int) -> None:
    expected = packed_bytes(count, bits)
    if data.size != expected:
        raise damaged(f"{data.size} bytes for {count} codes of {bits} bits, not {expected}")
    used = count * bits % 8
    if used and int(data[-1]) >> used:
        raise damaged("padding after the last code is not zero")


def damaged(what: str) -> InputError:
    """What is raised for a buffer that cannot have been packed."""
    return InputError(
        Problem(message=f"damaged payload: {what}", hint="it was cut, edited or misread")
    )


def to_array(tensor: Tensor) -> NDArray[Any]:
    """The tensor as numpy array, shared when it lies in host memory."""
    array: NDArray[Any] = tensor.detach().cpu().numpy()
    return array


def to_tensor(array: NDArray[Any], like: Tensor) -> Tensor:
    """The array as tensor on the device of `like`."""
    return torch.from_numpy(array).to(like.device)
