"""The checksum of a frame: four bytes that change with any byte of its header or body.

It is BLAKE2b of 32 bytes: the header's 16, the body's bytes after its last whole 8-byte word, and
the sum of the body's words times distinct odd numbers, modulo 2^64, in one compiled call.

Source: M.-J. Saarinen, J.-P. Aumasson, "The BLAKE2 cryptographic hash and message authentication
code", RFC 7693.
"""

from __future__ import annotations

import numpy as np

from gcsim.compressors.loops import loop

START = np.array(
    [
        0x6A09E667F3BCC908, 0xBB67AE8584CAA73B, 0x3C6EF372FE94F82B, 0xA54FF53A5F1D36F1,
        0x510E527FADE682D1, 0x9B05688C2B3E6C1F, 0x1F83D9ABFB41BD6B, 0x5BE0CD19137E2179,
    ],
    dtype=np.uint64,
)  # fmt: skip
KEYLESS_OF_FOUR_BYTES = np.uint64(0x01010004)
ORDERS = np.array(
    [
        [int(word, 16) for word in order]
        for order in (
            "0123456789abcdef", "ea489fd61c02b753", "b8c052fdae367194", "7931dcbe265a40f8",
            "905724afe1bc683d", "2c6a0b834d75fe19", "c51fed4a0763928b", "db7ec13950f4862a",
            "6fe9b308c2d714a5", "a2847615fb9e3cd0",
        )
    ],
    dtype=np.uint64,  # unsigned, as they are indices
)  # fmt: skip
"""Order of the message's words in each round (one row each), repeated after ten rounds."""
ROUNDS = 12


@loop
def checksum(header, body, block):
    """Return a frame's checksum, 32 bits as uint64: `header` is uint8 `[16 or more]`, `body` uint8
    `[n]`. `block` is scratch, uint64 `[16]`, whose last twelve words are zero."""
    total = np.uint64(0)
    whole = body.size // 8
    for i in range(whole):
        # odd factors are invertible modulo 2^64, so a change of one word always changes the sum
        word = number_at(body, 8 * i, 8)
        total += word * (np.uint64(2) * np.uint64(i) + np.uint64(1))
    for i in range(2):
        block[i] = number_at(header, 8 * i, 8)
    block[2], block[3] = number_at(body, 8 * whole, body.size - 8 * whole), total
    return _blake2b(block) & np.uint64(0xFFFFFFFF)


@loop
def number_at(data, at, size):
    """Read the unsigned little-endian number of `size` <= 8 bytes at `at`; for loops."""
    found = np.uint64(0)
    for j in range(size):
        found |= np.uint64(data[at + j]) << np.uint64(8 * j)
    return found


@loop
def put_number(data, at, size, number):
    """Write a number for `number_at`; for loops."""
    for j in range(size):
        data[at + j] = np.uint8((number >> np.uint64(8 * j)) & np.uint64(255))


@loop
def _blake2b(block):
    """Return the first word of the hash of one block of 32 bytes: uint64 `[16]`. Sixteen variables
    in registers are a third faster than an array."""
    first = START[0] ^ KEYLESS_OF_FOUR_BYTES
    a0, a1, a2, a3, b0, b1, b2, b3 = START
    c0, c1, c2, c3, d0, d1, d2, d3 = START
    a0, d0, d2 = first, d0 ^ np.uint64(32), ~d2  # 32 bytes, the last block
    for turn in range(ROUNDS):  # columns of a square, then its diagonals, are mixed
        order = ORDERS[turn % 10]
        a0, b0, c0, d0 = _mixed(a0, b0, c0, d0, block[order[0]], block[order[1]])
        a1, b1, c1, d1 = _mixed(a1, b1, c1, d1, block[order[2]], block[order[3]])
        a2, b2, c2, d2 = _mixed(a2, b2, c2, d2, block[order[4]], block[order[5]])
        a3, b3, c3, d3 = _mixed(a3, b3, c3, d3, block[order[6]], block[order[7]])
        a0, b1, c2, d3 = _mixed(a0, b1, c2, d3, block[order[8]], block[order[9]])
        a1, b2, c3, d0 = _mixed(a1, b2, c3, d0, block[order[10]], block[order[11]])
        a2, b3, c0, d1 = _mixed(a2, b3, c0, d1, block[order[12]], block[order[13]])
        a3, b0, c1, d2 = _mixed(a3, b0, c1, d2, block[order[14]], block[order[15]])
    return first ^ a0 ^ c0


@loop
def _mixed(a, b, c, d, x, y):
    """Apply BLAKE2's mixing function G to the words x and y."""
    a += b + x
    d = _turned(d ^ a, np.uint64(32))
    c += d
    b = _turned(b ^ c, np.uint64(24))
    a += b + y
    d = _turned(d ^ a, np.uint64(16))
    c += d
    return a, _turned(b ^ c, np.uint64(63)), c, d


@loop
def _turned(word, bits):
    return (word >> bits) | (word << (np.uint64(64) - bits))
