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
    words = np.zeros(16, dtype=np.uint64)
    words[0], words[1] = number_at(header, 0, 8), number_at(header, 8, 8)
    words[2], words[3] = number_at(body, 8 * whole, body.size - 8 * whole), total
    return _blake2b(words, 32) & np.uint64(0xFFFFFFFF)


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
def _blake2b(words: Any, nbytes: int) -> Any:
    """First word of the hash of one block of 16 words, of which `nbytes` are given. Sixteen
    variables stay in registers: a third faster than an array."""
    first = START[0] ^ KEYLESS_OF_FOUR_BYTES
    a0, a1, a2, a3 = first, START[1], START[2], START[3]
    b0, b1, b2, b3 = START[4], START[5], START[6], START[7]
    c0, c1, c2, c3 = START[0], START[1], START[2], START[3]
    d0, d1, d2, d3 = START[4] ^ np.uint64(nbytes), START[5], ~START[6], START[7]  # the last block
    for turn in range(ROUNDS):  # over the columns of a square, then its diagonals
        order = ORDERS[turn % 10]
        a0, b0, c0, d0 = _mixed(a0, b0, c0, d0, words[order[0]], words[order[1]])
        a1, b1, c1, d1 = _mixed(a1, b1, c1, d1, words[order[2]], words[order[3]])
        a2, b2, c2, d2 = _mixed(a2, b2, c2, d2, words[order[4]], words[order[5]])
        a3, b3, c3, d3 = _mixed(a3, b3, c3, d3, words[order[6]], words[order[7]])
        a0, b1, c2, d3 = _mixed(a0, b1, c2, d3, words[order[8]], words[order[9]])
        a1, b2, c3, d0 = _mixed(a1, b2, c3, d0, words[order[10]], words[order[11]])
        a2, b3, c0, d1 = _mixed(a2, b3, c0, d1, words[order[12]], words[order[13]])
        a3, b0, c1, d2 = _mixed(a3, b0, c1, d2, words[order[14]], words[order[15]])
    return first ^ a0 ^ c0


@loop
def _mixed(a: Any, b: Any, c: Any, d: Any, x: Any, y: Any) -> Any:
    a += b + x
    d = _turned(d ^ a, 32)
    c += d
    b = _turned(b ^ c, 24)
    a += b + y
    d = _turned(d ^ a, 16)
    c += d
    return a, _turned(b ^ c, 63), c, d


@loop
def _turned(word: Any, bits: int) -> Any:
    return (word >> np.uint64(bits)) | (word << np.uint64(64 - bits))
