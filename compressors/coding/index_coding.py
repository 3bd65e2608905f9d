"""How many bytes do k sorted positions out of n cost, and what do they look like on the wire?

| coder   | body                                               | bits an index, k/n = .001/.01/.08 |
|---------|----------------------------------------------------|-----------------------------------|
| raw     | 32 bits an index                                   | 32     32    32                   |
| packed  | ceil(log2 n) bits an index                         | 20     20    20      (n = 1e6)    |
| rice    | gaps: b low bits each, then the high parts in unary| 11.49  8.11  5.05                 |
| bitmap  | 1 bit an element                                   | 1000   100   12.5                 |

Rice's parameter is b = max(0, round(log2(ln 2 * n / k))) and follows from n and k, which the
frame carries; so the body is nothing but code. The two parts of the Rice code lie one after the
other instead of interleaved: the same number of bits, and no loop over elements to decode it.
Bits fill each byte from the lowest; the last byte is padded with zeros.

Source: R. Rice, J. Plaunt, "Adaptive variable-length coding", IEEE Trans. Comm. 1971; parameter
after Golomb 1966 for geometric gaps.
"""

from __future__ import annotations

import math
from enum import IntEnum
from typing import TYPE_CHECKING, Literal

import numpy as np

from gcsim.compressors.lazy_torch import torch
from gcsim.compressors.meter import kernel
from gcsim.errors import InputError, InternalError

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

IndexCoding = Literal["raw", "packed", "rice", "bitmap", "auto"]
"""A coder by name; auto is the one that is expected to be the shortest for (n, k)."""


class Coder(IntEnum):
    """A coder as the frame's flags name it."""

    RAW = 0
    PACKED = 1
    RICE = 2
    BITMAP = 3


def choose_coder(coding: IndexCoding, n: int, k: int) -> Coder:
    """The named coder; for auto the shortest for k of n, so the same on every worker.

    On a tie one of fixed length is chosen: it spares workers the exchange of lengths.
    """
    if coding != "auto":
        return Coder[coding.upper()]
    return min(Coder, key=lambda c: (round(expected_bits(c, n, k)), c is Coder.RICE))


def expected_bits(coder: Coder, n: int, k: int) -> float:
    """Bits of the body; for rice the mean over random positions, for the others exact."""
    if coder is Coder.RAW:
        return 32.0 * k
    if coder is Coder.PACKED:
        return float(k * index_width(n))
    if coder is Coder.BITMAP:
        return float(n)
    b = rice_parameter(n, k)
    survive = (1.0 - k / n) ** (1 << b) if n else 0.0  # P(a gap is at least 2^b)
    mean_high = n / (1 << b) if survive == 1.0 else survive / (1.0 - survive)
    return k * (b + 1 + mean_high)


def index_width(n: int) -> int:
    """ceil(log2 n): bits that tell n positions apart."""
    return max(0, n - 1).bit_length()


def rice_parameter(n: int, k: int) -> int:
    """b, the number of low bits of each gap."""
    return max(0, round(math.log2(math.log(2) * n / k))) if k else 0


@kernel("streaming")
def encode_indices(indices: Tensor, n: int, coder: Coder) -> Tensor:
    """Strictly ascending int64 `[k]` in 0 … n-1 as bytes, uint8 `[m]`, on the same device."""
    positions = indices.cpu().numpy()
    k = positions.size
    if coder is Coder.RAW:
        body = positions.astype("<u4").view(np.uint8)
    elif coder is Coder.PACKED:
        body = pack_fixed(positions, index_width(n))
    elif coder is Coder.RICE:
        body = _rice(np.diff(positions, prepend=-1) - 1, rice_parameter(n, k))
    else:
        bits = np.zeros(n, dtype=np.uint8)
        bits[positions] = 1
        body = np.packbits(bits, bitorder="little")
    return torch.from_numpy(body).to(indices.device)


@kernel("streaming")
def decode_indices(body: Tensor, n: int, k: int, coder: int) -> Tensor:
    """The positions that `encode_indices` coded, int64 `[k]`.

    Raises `InputError` when the body has not the length that n and k demand, has stray bits, or
    does not describe k ascending positions below n.
    """
    packed = body.cpu().numpy()
    if coder == Coder.RAW:
        _demand(packed.size == 4 * k, f"{packed.size} bytes for {k} indices of 32 bits")
        positions = np.frombuffer(packed.tobytes(), dtype="<u4").astype(np.int64)
    elif coder == Coder.PACKED:
        positions = unpack_fixed(packed, k, index_width(n))
    elif coder == Coder.RICE:
        positions = np.cumsum(_unrice(packed, k, rice_parameter(n, k), n) + 1) - 1
    elif coder == Coder.BITMAP:
        _demand(packed.size == (n + 7) // 8, f"{packed.size} bytes for a bitmap of {n} bits")
        positions = _ones(packed)
        _demand(positions.size == k, f"a bitmap with {positions.size} bits set, {k} announced")
    else:
        raise InputError(f"damaged indices: unknown index coder {coder}")
    if k:
        _demand(bool((np.diff(positions) > 0).all()), "positions do not ascend")
        _demand(positions[0] >= 0 and positions[-1] < n, f"position {positions[-1]} out of {n}")
    return torch.from_numpy(positions).to(body.device)


def pack_fixed(values: NDArray[np.int64], width: int) -> NDArray[np.uint8]:
    """Non-negative integers at `width` <= 32 bits each, in ceil(k * width / 8) bytes.

    64 values fill `width` words of 64 bits exactly; the loop is over the 64 places.
    """
    if not 0 <= width <= 32:
        raise InternalError(f"cannot pack values of {width} bits")
    groups = -(-values.size // 64)
    places = np.zeros((64, groups), dtype=np.uint64)
    padded = np.zeros(groups * 64, dtype=np.uint64)
    padded[: values.size] = values
    places[:] = padded.reshape(groups, 64).T
    words = np.zeros((width + 1, groups), dtype=np.uint64)
    for place in range(64 if width else 0):
        word, shift = divmod(place * width, 64)
        words[word] |= places[place] << np.uint64(shift)
        if shift + width > 64:
            words[word + 1] |= places[place] >> np.uint64(64 - shift)
    packed = np.ascontiguousarray(words[:width].T).astype("<u8", copy=False).view(np.uint8)
    return packed.reshape(-1)[: _bytes(values.size * width)]


def unpack_fixed(packed: NDArray[np.uint8], count: int, width: int) -> NDArray[np.int64]:
    """The values that `pack_fixed` packed; `InputError` for another length or stray bits."""
    size = _bytes(count * width)
    _demand(packed.size == size, f"{packed.size} bytes for {count} values of {width} bits")
    if not width:
        return np.zeros(count, dtype=np.int64)
    groups = -(-count // 64)
    padded = np.zeros(groups * width * 8, dtype=np.uint8)
    padded[:size] = packed
    words = np.ascontiguousarray(padded.view("<u8").reshape(groups, width).T)
    places = np.empty((64, groups), dtype=np.uint64)
    for place in range(64):
        word, shift = divmod(place * width, 64)
        np.right_shift(words[word], np.uint64(shift), out=places[place])
        if shift + width > 64:
            places[place] |= words[word + 1] << np.uint64(64 - shift)
    places &= np.uint64((1 << width) - 1)
    values = np.ascontiguousarray(places.T).reshape(-1)
    used = count * width % 8
    _demand(not (used and packed[-1] >> used), "bits are set behind the last value")
    return values[:count].astype(np.int64)


def _rice(gaps: NDArray[np.int64], b: int) -> NDArray[np.uint8]:
    low = pack_fixed(gaps & ((1 << b) - 1), b)
    ends = np.cumsum((gaps >> b) + 1)  # a high part is that many zeros and a one
    bits = np.zeros(int(ends[-1]) if ends.size else 0, dtype=np.uint8)
    bits[ends - 1] = 1
    return np.concatenate((low, np.packbits(bits, bitorder="little")))


def _unrice(packed: NDArray[np.uint8], k: int, b: int, n: int) -> NDArray[np.int64]:
    cut = _bytes(k * b)
    _demand(packed.size >= cut, f"{packed.size} bytes where the low bits alone take {cut}")
    low = unpack_fixed(packed[:cut], k, b)
    unary = packed[cut:]
    _demand(unary.size <= _bytes(k + (n >> b)), f"{unary.size} bytes of high parts are too many")
    ends = _ones(unary)
    _demand(ends.size == k, f"{ends.size} high parts, {k} announced")
    needed = _bytes(int(ends[-1]) + 1) if k else 0
    _demand(unary.size == needed, "bytes follow the last high part")
    return ((np.diff(ends, prepend=-1) - 1) << b) | low


def _ones(packed: NDArray[np.uint8]) -> NDArray[np.int64]:
    return np.flatnonzero(np.unpackbits(packed, bitorder="little"))


def _bytes(bits: int) -> int:
    return (bits + 7) // 8


def _demand(holds: bool, otherwise: str) -> None:
    if not holds:
        raise InputError(f"damaged indices: {otherwise}")
