"""Random rotation of a vector, and rounding to integers of a table in the rotated space.

Signs drawn at random, then Hadamard transforms: whatever the vector was, its elements are then
about normal with one variance. `stages` butterflies give transforms of 2^stages elements; those
of `LANES` neighbouring transforms lie side by side, element by element, so that every addition is
one of whole stretches of memory. The last elements of a vector, too few for that, are cut into
parts of powers of two, each transformed over as many of its stages as it has: nothing is padded,
and the transform of any length is orthogonal.

Rotation, rounding and what the rounding loses, rotated back, are one pass over parts of
LANES 2^stages elements, which stay in the processor's cache (128 KB at ten stages).
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcsim.compressors.lazy_torch import Tensor
from gcsim.compressors.loops import FLOAT32_MAX, array, in_parallel, loop, tensor, written_back
from gcsim.compressors.meter import count_random, kernel
from gcsim.compressors.random import bits64

LANES = 32
"""Distance of the elements of a transform: so many transforms go side by side."""


@kernel("streaming", updates=("held",))
def round_rotated(
    held: Tensor,
    *,
    most: float,
    table: NDArray[np.uint8],
    grid: int,
    stages: int,
    signs: np.uint64,
    rounding: np.uint64,
) -> Tensor:
    """Codes of a rotated vector: uint8 `[n]`; `held` (float32 `[n]`) keeps what they lose.

    Parameters
    ----------
    held : rotated, rounded and reduced by what the codes stand for, in place
    most : M, half the range in which values are represented
    table : the integers of the codes, 0 … grid
    signs, rounding : random keys, the first the same on all workers
    """
    n = held.numel()
    count_random(n, 16)
    count_random(n, 1)
    codes = np.empty(n, dtype=np.uint8)
    lines = lines_of(table.tobytes(), grid)
    scale = min(grid / (2 * most), FLOAT32_MAX) if most > 0 else 0.0
    numbers = np.array([scale, grid / 2, grid, len(table) - 1], dtype=np.float32)
    values = ((2 * most / grid) * table - most).astype(np.float32)
    with written_back(held) as target:
        for first, stop, size in pieces(n, stages):
            in_parallel(
                _round_rotated, stop - first, target[first:stop], codes[first:stop],
                np.int64(first), np.int64(size), np.int64(lanes_of(size, stages)), lines, values,
                numbers, signs, rounding, grain=size,
            )  # fmt: skip
    return tensor(codes, held)


@cache
def lines_of(integers: bytes, grid: int) -> NDArray[np.float32]:
    """Between two integers of a table the code is a linear function of t: slopes and offsets."""
    table = np.frombuffer(integers, dtype=np.uint8)
    index = np.searchsorted(table, np.arange(grid + 1), side="right") - 1
    index = np.minimum(index, len(table) - 2)
    slopes = 1 / (table[index + 1].astype(np.float64) - table[index])
    return np.stack((slopes, index - slopes * table[index])).astype(np.float32)


@kernel("streaming", updates=("out",))
def rotate_back(
    out: Tensor, sums: Tensor, *, step: float, most: float, stages: int, signs: np.uint64
) -> None:
    """out = the inverse transform of step * sums - most; float32 `[n]`, integers `[n]`."""
    n = out.numel()
    count_random(n, 1)
    integers = array(sums)
    with written_back(out) as target:
        for first, stop, size in pieces(n, stages):
            in_parallel(
                _rotate_back, stop - first, target[first:stop], integers[first:stop],
                np.int64(first), np.int64(size), np.int64(lanes_of(size, stages)), np.float32(step),
                np.float32(most), signs, grain=size,
            )  # fmt: skip


def pieces(n: int, stages: int) -> Iterable[tuple[int, int, int]]:
    """(first, stop, size): ranges to be transformed in parts of `size` elements, a power of two."""
    size, first = LANES << stages, 0
    while first < n:
        whole = (n - first) // size * size
        if whole:
            yield first, first + whole, size
        first += whole
        size //= 2


def lanes_of(size: int, stages: int) -> int:
    """Distance of the elements of a transform, in parts of `size` elements."""
    return max(1, size >> stages)


@loop
def _hadamard(x: Any, distance: int) -> None:
    """In place: butterflies over `distance`, twice that, … up to half of x; two at a time."""
    size = x.size
    while 4 * distance <= size:
        for base in range(0, size, 4 * distance):
            a, b = x[base : base + distance], x[base + distance : base + 2 * distance]
            c = x[base + 2 * distance : base + 3 * distance]
            d = x[base + 3 * distance : base + 4 * distance]
            for i in range(a.size):
                p, q, r, s = a[i] + b[i], a[i] - b[i], c[i] + d[i], c[i] - d[i]
                a[i], b[i], c[i], d[i] = p + r, q + s, p - r, q - s
        distance *= 4
    if 2 * distance <= size:
        a, b = x[:distance], x[distance:]
        for i in range(a.size):
            a[i], b[i] = a[i] + b[i], a[i] - b[i]


@loop
def _flip(x: Any, first: int, key: Any) -> None:
    """Change the sign of every element whose random bit (number `first` on) is set."""
    words = x.view(np.uint32)
    if words.size < 64:
        for i in range(words.size):
            bits = bits64(key, (first + i) >> 6) >> np.uint64((first + i) & 63)
            words[i] ^= np.uint32(bits & np.uint64(1)) << np.uint32(31)
        return
    for part in range(words.size // 64):
        own = words[64 * part : 64 * part + 64]
        bits = bits64(key, (first >> 6) + part)
        low, high = np.uint32(bits & np.uint64(0xFFFFFFFF)), np.uint32(bits >> np.uint64(32))
        for i in range(32):
            own[i] ^= np.uint32(np.uint32(low << np.uint32(31 - i)) & np.uint32(0x80000000))
        for i in range(32):
            own[32 + i] ^= np.uint32(np.uint32(high << np.uint32(31 - i)) & np.uint32(0x80000000))


@loop
def _round_rotated(
    start: int, stop: int, held: Any, codes: Any, first: int, size: int, lanes: int, lines: Any,
    values: Any, numbers: Any, signs: Any, rounding: Any,
) -> None:  # fmt: skip
    scale, middle, grid, last = numbers
    slopes, offsets = lines[0], lines[1]
    root = np.float32(1 / np.sqrt(size / lanes))
    words = np.empty(size // 4 + 1, dtype=np.uint64)
    random = words.view(np.uint16)
    t = np.empty(size, dtype=np.float32)
    code = np.empty(size, dtype=np.int32)
    # Look-ups have loops of their own: what surrounds them is vectorised.
    for begin in range(start, stop, size):
        x, own = held[begin : begin + size], codes[begin : begin + size]
        for j in range(words.size):
            words[j] = bits64(rounding, (first + begin) // 4 + j)
        shift = (first + begin) % 4  # not zero only in parts of one or two elements
        drawn = random[shift : shift + size]
        _flip(x, first + begin, signs)
        _hadamard(x, lanes)
        for i in range(x.size):  # from -M … M to the grid's 0 … g, clamped
            place = x[i] * (root * scale) + middle
            place = place if place > np.float32(0) else np.float32(0)  # NaN too
            t[i] = place if place < grid else grid
        for i in range(t.size):  # from the grid to the codes, which lie at uneven points of it
            k = np.uint32(np.int32(t[i]))
            t[i] = t[i] * slopes[k] + offsets[k]
        for i in range(x.size):
            fraction = (np.float32(drawn[i]) + np.float32(0.5)) * np.float32(2.0**-16)
            code[i] = np.int32(min(t[i] + fraction, last))
        for i in range(t.size):
            t[i] = values[np.uint32(code[i])]
        for i in range(x.size):  # what is lost, to be rotated back
            x[i] = (x[i] * root - t[i]) * root
            own[i] = code[i]
        _hadamard(x, lanes)
        _flip(x, first + begin, signs)


@loop
def _rotate_back(
    start: int, stop: int, out: Any, sums: Any, first: int, size: int, lanes: int, step: Any,
    most: Any, signs: Any,
) -> None:  # fmt: skip
    root = np.float32(1 / np.sqrt(size / lanes))
    for begin in range(start, stop, size):
        x, own = out[begin : begin + size], sums[begin : begin + size]
        for i in range(x.size):
            x[i] = (np.float32(own[i]) * step - most) * root
        _hadamard(x, lanes)
        _flip(x, first + begin, signs)
