"""How many bytes do k sorted positions out of n cost, and what do they look like on the wire?

| coder   | body                                               | bits an index, k/n = .001/.01/.08 |
|---------|----------------------------------------------------|-----------------------------------|
| raw     | 32 bits an index                                   | 32     32    32                   |
| packed  | ceil(log2 n) bits an index                         | 20     20    20      (n = 1e6)    |
| rice    | gaps: b low bits each, then the high parts in unary| 11.49  8.11  5.05                 |
| bitmap  | 1 bit an element                                   | 1000   100   12.5                 |
| omega   | Elias omega word of each gap                       | 16.42  11.93 6.95                 |
| gamma   | Elias gamma word of each gap                       | 18.34  11.72 6.24                 |
| varint  | each gap in bytes of 7 bits (LEB128)               | 15.1   10.2  8.0                  |

A gap is the distance to the position before, the first one's to -1; it is at least 1. Rice codes
the gap - 1; its parameter is b = max(0, round(log2(ln 2 * n / k))) and follows from n and k, which
the frame carries; so the body is nothing but code. The two parts of the Rice code lie one after
the other instead of interleaved: the same number of bits. Bits fill each byte from the lowest; the
last byte is padded with zeros. Varint: 7 bits a byte from the lowest on, bit 7 says that more
follow.

Random positions have geometric gaps, whose entropy is 11.41 / 8.08 / 5.03 bits an index: rice is
then the shortest of the coders of gaps. Bitmap beats raw above k/n = 1/32 and packed above
1/ceil(log2 n).

Sources: R. Rice, J. Plaunt, "Adaptive variable-length coding for efficient compression of
spacecraft television data", IEEE Trans. Comm. Technology 1971; parameter
after Golomb 1966 for geometric gaps; Elias 1975 (`elias.py`).
"""

from __future__ import annotations

import math
from enum import IntEnum
from functools import lru_cache
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from gcsim.compressors.coding.integers.elias import (
    decode_gamma,
    decode_omega,
    encode_gamma,
    encode_omega,
    gamma_word,
    omega_word,
    put_bits,
)
from gcsim.compressors.coding.integers.packing import (
    damaged,
    pack_fixed,
    packed_bytes,
    unpack_fixed,
)
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.loops import loop
from gcsim.compressors.meter import kernel
from gcsim.compressors.on_device import on_device
from gcsim.errors import InternalError

IndexCoding = Literal["raw", "packed", "rice", "bitmap", "omega", "gamma", "varint", "auto"]
"""A coder by name; auto is the one that is expected to be the shortest for (n, k)."""


class Coder(IntEnum):
    """A coder as the frame's flags name it."""

    RAW = 0
    PACKED = 1
    RICE = 2
    BITMAP = 3
    OMEGA = 4
    GAMMA = 5
    VARINT = 6

    @property
    def fixed_length(self) -> bool:
        """The body's length follows from n and k, whatever the positions."""
        return self in (Coder.RAW, Coder.PACKED, Coder.BITMAP)


_AUTO = (Coder.RAW, Coder.PACKED, Coder.RICE, Coder.BITMAP)
"""Omega, gamma and varint are never expected to be shorter than the best of these."""


@lru_cache(maxsize=1 << 12)
def choose_coder(coding: IndexCoding, n: int, k: int) -> Coder:
    """The named coder; for auto the shortest for k of n, so the same on every worker.

    On a tie one of fixed length is chosen: it spares workers the exchange of lengths.
    """
    if coding != "auto":
        return Coder[coding.upper()]
    return min(_AUTO, key=lambda c: (round(expected_bits(c, n, k)), not c.fixed_length))


def expected_bits(coder: Coder, n: int, k: int) -> float:
    """Bits of the body: exact for coders of fixed length, else the mean over random positions.

    The mean takes gaps as geometric, which they are for large n. For k = 0 all but bitmap need
    none.
    """
    if coder is Coder.BITMAP:
        return float(n)
    if coder.fixed_length:
        return float(k * (32 if coder is Coder.RAW else index_width(n)))
    if k == 0:
        return 0.0
    stay = 1.0 - k / n  # P(a gap is larger than g) = stay^g
    if coder is Coder.RICE:
        return k * _mean_rice(n, k, stay)
    if coder is Coder.VARINT:
        return k * 8.0 * sum(stay ** ((1 << at) - 1) for at in range(0, n.bit_length(), 7))
    word = omega_word if coder is Coder.OMEGA else gamma_word
    shares = [*(stay ** ((1 << size) - 1) for size in range(n.bit_length())), 0.0]
    words = [len(word(1 << size)) for size in range(n.bit_length())]  # alike up to the next power
    return k * sum(b * (p - q) for b, (p, q) in zip(words, pairwise(shares), strict=True))


def _mean_rice(n: int, k: int, stay: float) -> float:
    b = rice_parameter(n, k)
    survive = stay ** (1 << b)  # P(a gap - 1 is at least 2^b)
    mean_high = n / (1 << b) if survive == 1.0 else survive / (1.0 - survive)
    return b + 1 + mean_high


def index_width(n: int) -> int:
    """ceil(log2 n): bits that tell n positions apart."""
    return max(0, n - 1).bit_length()


def rice_parameter(n: int, k: int) -> int:
    """b, the number of low bits of each gap."""
    return max(0, round(math.log2(math.log(2) * n / k))) if k else 0


@kernel("streaming", variants=("coder",))
@on_device("indices.coded")
def encode_indices(indices: Tensor, n: int, coder: Coder) -> Tensor:
    """Strictly ascending int64 `[k]` in 0 … n-1 as bytes, uint8 `[m]`, on the same device.

    Raises `InternalError` when they are not (raw and packed do not look).
    """
    body = position_bytes(np.ascontiguousarray(indices.cpu().numpy()), n, coder)
    return torch.from_numpy(body).to(indices.device)


def position_bytes(positions: NDArray[np.int64], n: int, coder: Coder) -> NDArray[np.uint8]:
    """`encode_indices` of an array."""
    k = positions.size
    if coder is Coder.RAW:
        return positions.astype("<u4").view(np.uint8)
    if coder is Coder.PACKED:
        return pack_fixed(positions, index_width(n))
    if not ascends_below(positions, n):
        raise InternalError(f"positions to be coded do not ascend below {n}")
    if coder is Coder.BITMAP:
        body = np.zeros(packed_bytes(n, 1), dtype=np.uint8)
        set_bits(positions, body)
    elif coder is Coder.RICE:
        b = rice_parameter(n, k)
        low = np.zeros(packed_bytes(k, b), dtype=np.uint8)
        high = np.zeros(packed_bytes(_unary_bits(positions, b), 1), dtype=np.uint8)
        _write_rice(positions, b, low, high)
        body = np.concatenate((low, high))
    elif coder is Coder.VARINT:
        body = np.empty(_varint_bytes(positions), dtype=np.uint8)
        _write_varint(positions, body)
    else:
        gaps = torch.from_numpy(np.diff(positions, prepend=-1))
        body = (encode_omega if coder is Coder.OMEGA else encode_gamma)(gaps).numpy()
    return body


@kernel("streaming", variants=("coder",))
@on_device("indices.coded")
def decode_indices(body: Tensor, n: int, k: int, coder: int) -> Tensor:
    """The positions that `encode_indices` coded, int64 `[k]`.

    Raises `InputError` when the body has not the length that n and k demand, has stray bits, or
    does not describe k ascending positions below n.
    """
    positions = positions_in(np.ascontiguousarray(body.cpu().numpy()), n, k, coder)
    return torch.from_numpy(positions).to(body.device)


def positions_in(packed: NDArray[np.uint8], n: int, k: int, coder: int) -> NDArray[np.int64]:
    """`decode_indices` of an array."""
    if not 0 <= k <= n:
        raise damaged(f"{k} positions below {n}")
    if coder == Coder.RAW:
        demand(packed.size == 4 * k, f"{packed.size} bytes for {k} indices of 32 bits")
        positions = np.frombuffer(packed.tobytes(), dtype="<u4").astype(np.int64)
    elif coder == Coder.PACKED:
        positions = unpack_fixed(packed, k, index_width(n))
    elif coder == Coder.RICE:
        positions = _decode_rice(packed, n, k)
    elif coder == Coder.BITMAP:
        demand(packed.size == packed_bytes(n, 1), f"{packed.size} bytes for a bitmap of {n} bits")
        positions = set_places(packed, k)
    elif coder == Coder.VARINT:
        demand(k <= packed.size, f"{packed.size} bytes for {k} gaps")
        positions = np.empty(k, dtype=np.int64)
        used = int(_read_varint(packed, n, positions))
        demand(used == packed.size, f"{packed.size} bytes are not {k} gaps that end below {n}")
    elif coder in (Coder.OMEGA, Coder.GAMMA):
        decode = decode_omega if coder == Coder.OMEGA else decode_gamma
        positions = np.cumsum(decode(torch.from_numpy(packed), k).numpy()) - 1
    else:
        raise damaged(f"unknown index coder {coder}")
    if not ascends_below(positions, n):
        demand(bool((np.diff(positions) > 0).all()), "positions do not ascend")
        raise damaged(f"position {positions[-1]} out of {n}")
    return positions


def set_places(bits: NDArray[np.uint8], count: int) -> NDArray[np.int64]:
    """The places of the `count` bits that are set, ascending; bit 0 is the lowest of byte 0."""
    places = np.empty(count, dtype=np.int64)
    found = int(find_bits(bits, places))
    demand(found == count, f"{found} bits are set, {count} announced")
    return places


def _decode_rice(packed: NDArray[np.uint8], n: int, k: int) -> NDArray[np.int64]:
    b = rice_parameter(n, k)
    cut = packed_bytes(k, b)
    demand(packed.size >= cut, f"{packed.size} bytes where the low bits alone take {cut}")
    positions = unpack_fixed(packed[:cut], k, b)
    high = packed[cut:]
    longest = packed_bytes(k + (n >> b), 1)
    demand(high.size <= longest, f"{high.size} bytes of high parts are too many")
    ends = set_places(high, k)
    needed = packed_bytes(int(ends[-1]) + 1, 1) if k else 0
    demand(high.size == needed, "bytes follow the last high part")
    _join_rice(ends, b, positions)
    return positions


def demand(holds: bool, otherwise: str) -> None:
    """`InputError` that the payload is damaged, and how, unless something holds."""
    if not holds:
        raise damaged(otherwise)


# --- loops over the positions, in order ----------------------------------------------------------

_DE_BRUIJN = np.uint64(0x03F79D71B4CB0A89)  # its 64 windows of 6 bits all differ
_PLACE = np.zeros(64, dtype=np.int64)
"""By window: the place of the only bit that is set in a word."""
for _place in range(64):
    _PLACE[(int(_DE_BRUIJN) << _place) % (1 << 64) >> 58] = _place


@loop
def ascends_below(positions: Any, n: int) -> bool:
    """Whether -1 < p_0 < p_1 < … < n."""
    faults = 0
    before = np.int64(-1)
    for i in range(positions.size):
        faults += positions[i] <= before
        before = positions[i]
    return faults == 0 and bool(before < n)


@loop
def set_bits(positions: Any, bits: Any) -> None:
    """Set the bits at the positions in a bitmap, in place; bit 0 is the lowest of byte 0."""
    for position in positions:
        bits[position >> 3] |= np.uint8(1 << (position & 7))


@loop
def find_bits(bits: Any, places: Any) -> int:
    """The places of the first bits that are set, as many as `places` holds; counts them all."""
    found = 0
    for at in range(0, bits.size, 8):
        word = np.uint64(0)
        part = bits[at : min(at + 8, bits.size)]
        for j in range(part.size):
            word |= np.uint64(part[j]) << np.uint64(8 * j)
        while word != np.uint64(0):
            lowest = word & (~word + np.uint64(1))  # only the lowest bit that is set
            word ^= lowest
            if found < places.size:
                places[found] = 8 * at + _PLACE[(lowest * _DE_BRUIJN) >> np.uint64(58)]
            found += 1
    return found


@loop
def _unary_bits(positions: Any, b: int) -> int:
    """Bits of all high parts: each is so many zeros and a one."""
    bits: int = positions.size
    before = np.int64(-1)
    for position in positions:
        bits += (position - before - 1) >> b
        before = position
    return bits


@loop
def _write_rice(positions: Any, b: int, low: Any, high: Any) -> None:
    mask = (np.int64(1) << b) - 1
    before = np.int64(-1)
    at = 0
    end = 0
    for position in positions:
        gap = position - before - 1
        before = position
        at = put_bits(low, at, gap & mask, b)  # low parts side by side, b bits each
        end += gap >> b  # a high part is so many zeros, which are there, and a one
        high[end >> 3] |= np.uint8(1 << (end & 7))
        end += 1


@loop
def _join_rice(ends: Any, b: int, positions: Any) -> None:
    """Turns low parts, in `positions`, and the places of the ones of the high parts into both."""
    before = np.int64(-1)
    end = np.int64(-1)
    for i in range(positions.size):
        before += 1 + ((ends[i] - end - 1) << b) + positions[i]
        end = ends[i]
        positions[i] = before


@loop
def _varint_bytes(positions: Any) -> int:
    count: int = positions.size
    before = np.int64(-1)
    for position in positions:
        rest = (position - before) >> 7
        before = position
        while rest > 0:
            rest >>= 7
            count += 1
    return count


@loop
def _write_varint(positions: Any, body: Any) -> None:
    before = np.int64(-1)
    at = 0
    for position in positions:
        rest = position - before
        before = position
        while rest > 127:
            body[at] = np.uint8(rest & 127 | 128)
            rest >>= 7
            at += 1
        body[at] = np.uint8(rest)
        at += 1


@loop
def _read_varint(body: Any, n: int, positions: Any) -> int:
    """Bytes used; -1 when a gap is 0, longer than need be, leaves 0 … n-1 or is cut off."""
    at = 0
    before = np.int64(-1)
    for i in range(positions.size):
        gap = np.int64(0)
        shift = 0
        byte = np.int64(128)
        while byte > 127:
            if at >= body.size or shift > 35:
                return -1
            byte = np.int64(body[at])  # 7 bits of the gap, lowest first; bit 7: more follow
            at += 1
            gap |= (byte & 127) << shift
            shift += 7
        before += gap
        if byte == 0 or before >= n:
            return -1
        positions[i] = before
    return at
