"""The Elias omega code of positive integers, for loops: small numbers take few bits.

The word of v is v in binary, preceded by its length - 1 coded in the same way until that is 1, and
followed by a zero: 1, 2, 4, 16 and 100 take 1, 3, 6, 11 and 13 bits. Bits are stored in the order
of writing (4 = 101000) and fill each byte from the lowest.

Writers check neither values (1 … 2^32 - 1) nor room, and two threads must not write to the same
byte. A reader never passes its limit in bits and takes at most as many steps as there are bits.
Short words, which are nearly all, take one table look-up. Source: P. Elias, "Universal codeword
sets and representations of the integers", IEEE Trans. Inform. Theory 21(2), 1975.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gcsim.compressors.loops import inlined
from gcsim.errors import InputError

_SHORT = 1024
"""Smaller values are coded with a table."""
PEEK = 12
"""Words of up to this many bits are decoded with a table."""


def omega_word(value: int) -> str:
    """Return the omega word of `value` >= 1 as text, e.g. "101000" for 4."""
    word = "0"
    while value > 1:
        word = f"{value:b}{word}"
        value = value.bit_length() - 1
    return word


def _tables() -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (word | length << 32, by value; length | value << 8 or 0, by the next `PEEK` bits)."""
    writing = np.zeros(_SHORT, dtype=np.int64)
    reading = np.zeros(1 << PEEK, dtype=np.int64)
    for value in range(1, _SHORT):
        word = omega_word(value)
        bits, length = int(word[::-1], 2), len(word)
        writing[value] = bits | length << 32
        if length <= PEEK:
            # all peeks that begin with this word, whatever follows it
            reading[bits :: 1 << length] = length | value << 8
    return writing, reading


_OMEGA, _OMEGA_READ = _tables()
_WORD = np.int64((1 << 32) - 1)


@inlined
def put_bits(buffer, position, value, count):
    """Write the `count` <= 57 low bits of `value` (no others may be set), lowest first, to uint8
    that is zero from bit `position` on; return the position after them."""
    at = position >> 3
    # 57 bits and an offset of up to 7 fit 64 bits
    word = np.uint64(value) << np.uint64(position & 7)
    left = (position & 7) + count
    while left > 0:
        buffer[at] |= np.uint8(word & np.uint64(255))
        word >>= np.uint64(8)
        at += 1
        left -= 8
    return position + count


@inlined
def next_bits(buffer, position):
    """Return the `PEEK` bits from `position` on; the buffer must have three bytes there."""
    at = position >> 3
    bits = np.int64(buffer[at]) | np.int64(buffer[at + 1]) << 8 | np.int64(buffer[at + 2]) << 16
    return (bits >> (position & 7)) & ((1 << PEEK) - 1)


@inlined
def bit_length(value):
    """Return the bits of `value` in binary, for 0 <= value < 2^63."""
    length = 0
    rest = np.int64(value)
    while rest > 255:
        rest >>= 8
        length += 8
    while rest > 0:
        rest >>= 1
        length += 1
    return length


@inlined
def _reversed_bits(value, length):
    turned = np.int64(0)
    for place in range(length):
        turned = (turned << 1) | ((np.int64(value) >> place) & 1)
    return turned


@inlined
def put_omega(buffer, position, value):
    """Write the omega word of `value`, 1 … 2^32 - 1; return the position after it."""
    if value < _SHORT:
        entry = _OMEGA[value]
        word = entry & _WORD
        length = entry >> 32
    else:
        size = bit_length(value)
        entry = _OMEGA[size - 1]  # drop its final zero
        length = (entry >> 32) - 1
        # written from the highest bit on, which thus becomes the lowest
        word = (entry & _WORD) | _reversed_bits(value, size) << length
        length += size + 1  # plus a new final zero; at most 43 bits
    return put_bits(buffer, position, word, length)


@inlined
def get_omega(buffer, position, limit):
    """Return (value, position after it) of the omega word at `position`; (0, -1) if it does not end
    before bit `limit` (at most the buffer's end) or exceeds 2^32 - 1."""
    entry = np.int64(0)
    if (position >> 3) + 2 < buffer.size:
        entry = _OMEGA_READ[next_bits(buffer, position)]
    value, after = entry >> 8, position + (entry & 255)
    # rare: a word of more than `PEEK` bits, near the buffer's end, or damaged
    if value == 0 or after > limit:
        # Bit by bit: a group begins with a 1, has one bit more than the value so far, and becomes
        # the value; a 0 ends the word.
        value = np.int64(1)
        after = np.int64(position)
        reading = True
        while reading:
            if after >= limit:
                reading = False
                after = np.int64(-1)
            elif (buffer[after >> 3] >> (after & 7)) & 1 == 0:
                reading = False
                after += 1
            # a group of more than 32 bits, or one that exceeds the limit
            elif value > 31 or after + value + 1 > limit:
                reading = False
                after = np.int64(-1)
            else:
                group = np.int64(1)
                for _ in range(value):
                    after += 1
                    group = group << 1 | ((buffer[after >> 3] >> (after & 7)) & 1)
                after += 1
                value = group
        if after < 0:
            value = np.int64(0)
    return value, after


@inlined
def omega_bits(value):
    """Return the bits of the omega word of `value`, 1 … 2^32 - 1."""
    if value < _SHORT:
        bits = _OMEGA[value] >> 32
    else:
        size = bit_length(value)
        bits = (_OMEGA[size - 1] >> 32) + size
    return bits


def check_end(packed: NDArray[np.uint8], after: int) -> None:
    """Raise `InputError` unless `after`, the position after the last word, is in the last byte and
    only zeros follow; -1 stands for a word without end."""
    if after < 0:
        raise InputError("damaged payload: a code word does not end in its buffer")
    if len(packed) != -(-after // 8):
        raise InputError(f"damaged payload: {len(packed)} bytes, code words end at bit {after}")
    if after % 8 and int(packed[-1]) >> after % 8:
        raise InputError("damaged payload: bits are set after the last code word")
