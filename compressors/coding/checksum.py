"""The checksum of a frame: four bytes that change with any byte of its header or body.

BLAKE2b of 32 bytes: the header's 16, the body's bytes after its last whole word of eight, and the
sum of its words times distinct odd numbers, modulo 2^64, all in one compiled call.

Source: M.-J. Saarinen, J.-P. Aumasson, "The BLAKE2 cryptographic hash and message authentication
code", RFC 7693.
"""

from __future__ import annotations

from typing import Any

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
    ]
)  # fmt: skip
"""Orders of the message's words, a row for each round, repeated after ten."""
ROUNDS = 12


@loop
def checksum(header: Any, body: Any) -> Any:
    """Checksum of a frame: `header` uint8 `[16 or more]`, `body` uint8 `[n]`; 32 bits as uint64."""
    total = np.uint64(0)
    whole = body.size // 8
    for i in range(whole):
        # odd factors have inverses modulo 2^64: a change of one word always changes the sum
        word = number_at(body, 8 * i, 8)
        total += word * (np.uint64(2) * np.uint64(i) + np.uint64(1))
    rest = number_at(body, 8 * whole, body.size - 8 * whole)
    words = number_at(header, 0, 8), number_at(header, 8, 8), rest, total
    return _blake2b(words) & np.uint64(0xFFFFFFFF)


@loop
def number_at(data: Any, at: int, size: int) -> Any:
    """Inside a loop: the unsigned number of `size` <= 8 bytes there, little endian."""
    found = np.uint64(0)
    for j in range(size):
        found |= np.uint64(data[at + j]) << np.uint64(8 * j)
    return found


@loop
def put_number(data: Any, at: int, size: int, number: Any) -> None:
    """Inside a loop: write what `number_at` reads."""
    for j in range(size):
        data[at + j] = np.uint8((number >> np.uint64(8 * j)) & np.uint64(255))


@loop
def _blake2b(words: Any) -> Any:
    """The first word of the hash of one block of 32 bytes, four words.

    Sixteen variables, which registers hold, are a third faster than an array of them. Rounds are
    calls with constants, so that the compiler knows which words are zero.
    """
    first = START[0] ^ KEYLESS_OF_FOUR_BYTES
    a, b, c = (first, START[1], START[2], START[3]), START[4:], START[:4]
    d = START[4] ^ np.uint64(32), START[5], ~START[6], START[7]  # 32 bytes, the last block
    s = *a, b[0], b[1], b[2], b[3], c[0], c[1], c[2], c[3], *d
    s = _round(_round(_round(s, words, 0), words, 1), words, 2)
    s = _round(_round(_round(s, words, 3), words, 4), words, 5)
    s = _round(_round(_round(s, words, 6), words, 7), words, 8)
    s = _round(_round(_round(s, words, 9), words, 10), words, 11)
    return first ^ s[0] ^ s[8]


@loop
def _round(state: Any, words: Any, turn: int) -> Any:
    """The state once columns of a square, then its diagonals, are mixed."""
    a0, a1, a2, a3, b0, b1, b2, b3, c0, c1, c2, c3, d0, d1, d2, d3 = state
    order = ORDERS[turn % 10]
    a0, b0, c0, d0 = _mixed(a0, b0, c0, d0, words, order[0], order[1])
    a1, b1, c1, d1 = _mixed(a1, b1, c1, d1, words, order[2], order[3])
    a2, b2, c2, d2 = _mixed(a2, b2, c2, d2, words, order[4], order[5])
    a3, b3, c3, d3 = _mixed(a3, b3, c3, d3, words, order[6], order[7])
    a0, b1, c2, d3 = _mixed(a0, b1, c2, d3, words, order[8], order[9])
    a1, b2, c3, d0 = _mixed(a1, b2, c3, d0, words, order[10], order[11])
    a2, b3, c0, d1 = _mixed(a2, b3, c0, d1, words, order[12], order[13])
    a3, b0, c1, d2 = _mixed(a3, b0, c1, d2, words, order[14], order[15])
    return a0, a1, a2, a3, b0, b1, b2, b3, c0, c1, c2, c3, d0, d1, d2, d3


@loop
def _word(words: Any, number: int) -> Any:
    """A word of the block, of which the first four are given."""
    a, b, c, d = words
    low = a if number == 0 else b
    high = c if number == 2 else d if number == 3 else np.uint64(0)
    return low if number < 2 else high


@loop
def _mixed(a: Any, b: Any, c: Any, d: Any, words: Any, x: int, y: int) -> Any:
    """The function G of the words x and y."""
    a += b + _word(words, x)
    d = _turned(d ^ a, 32)
    c += d
    b = _turned(b ^ c, 24)
    a += b + _word(words, y)
    d = _turned(d ^ a, 16)
    c += d
    return a, _turned(b ^ c, 63), c, d


@loop
def _turned(word: Any, bits: int) -> Any:
    return (word >> np.uint64(bits)) | (word << np.uint64(64 - bits))
