"""How does a receiver know what a payload holds? Every tensor's part begins with 20 bytes.

    codec u8 | flags u8 | params u16 | numel u32 | nonzero u32 | body bytes u32 | checksum u32

little endian; the checksum is over the 16 bytes before it and the body.

A message is one frame a tensor, back to back. `flags` and `params` belong to the codec; `numel`
is the length of the tensor, `nonzero` the number of elements that travel. Whatever a frame says
of itself is checked before it is believed: a damaged message is an `InputError`, never a guess.
The checksum is not priced: networks have their own.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.loops import array, in_parallel, loop
from gcsim.compressors.meter import unpriced
from gcsim.compressors.on_device import handled, twin
from gcsim.errors import InputError, InternalError

HEADER_BYTES = 20
_FIELDS = struct.Struct("<BBHIII")
_BLOCK = 1 << 14
"""Words of 8 bytes that the checksum adds up in one go."""


class Codec(IntEnum):
    """Who wrote the frame's body."""

    SPARSE = 1  # values, then coded indices: top-k, DGC, thresholds
    QSGD = 2
    TERNGRAD = 3
    SIGN_BLOCK = 4  # signs and scales: dist-EF-blockSGDM, EF-signSGD, 1-bit Adam
    VARIANCE = 5
    QSPARSE = 6  # QSparse-local-SGD: quantised values and coded indices
    SIGN = 7  # signs alone
    LEVELS = 8  # codes into a table of levels a bucket: ORQ, Linear
    BINARY = 9  # one bit an element and levels a bucket: BinGrad, 1-bit SGD
    TABLE = 10  # codes into a table that all workers know: NUQSGD, ALQ, AMQ
    SIGNED_INDEX = 11  # words of an index and a sign: Strom, Dryden
    VARIANCE_BOUNDED = 12  # Wangni et al.
    CE_SGD = 13
    CAST = 14  # 8-bit formats: FP8, dynamic 8-bit
    NATURAL = 15  # sign and exponent
    INCEPTIONN = 16
    THC = 17
    ADACOMP = 18
    BLOCKS = 19  # OmniReduce: non-zero blocks
    BLOOM = 20  # DeepReduce
    SKETCH = 21
    PAIRS = 22  # gTop-k, Ok-Topk: indices and values
    AFFINE = 23  # PyTorch's 8-bit hooks
    QSGD_DIGITS = 24  # QSGD's levels as digits, and as Elias codes
    QSGD_ELIAS_DENSE = 25
    QSGD_ELIAS_SPARSE = 26


@dataclass(slots=True, kw_only=True, eq=False)  # not frozen, which takes longer than a short loop
class Frame:
    """One tensor's part of a message."""

    codec: int
    flags: int
    params: int
    numel: int
    """Elements of the tensor."""
    nonzero: int
    """Elements that travel."""
    body: Tensor
    """uint8 `[body bytes]`, sharing the message's memory."""


def pack_frame(
    codec: int,
    body: Tensor,
    *,
    numel: int,
    nonzero: int | None = None,
    flags: int = 0,
    params: int = 0,
) -> Tensor:
    """Header and body as one uint8 tensor `[HEADER_BYTES + body bytes]` on the body's device.

    `numel` elements has the tensor, `nonzero` of them travel (None: all).
    Raises `InternalError` when a number does not fit its field or the body is not bytes.
    """
    if body.dtype != torch.uint8 or body.dim() != 1:
        raise InternalError(f"a frame's body is uint8 [n], not {body.dtype} {list(body.shape)}")
    try:
        travelling = numel if nonzero is None else nonzero
        fields = _FIELDS.pack(codec, flags, params, numel, travelling, body.numel())
    except struct.error as error:
        raise InternalError(f"frame header of codec {codec}: {error}") from error
    header = fields + _checksum(fields, body if handled(body) else array(body))
    head = torch.frombuffer(bytearray(header), dtype=torch.uint8)
    return torch.cat((head if body.is_cpu else head.to(body.device), body))


def read_frames(
    message: Tensor, *, expected: int | Collection[int] | None = None
) -> Iterator[Frame]:
    """The frames of a message (uint8, one dimension), in order.

    With `expected`, every frame must be of that codec, or one of those. Raises `InputError` for a
    message that is cut off, of another codec, changed on the way, or contradicts itself.
    """
    if message.dtype != torch.uint8 or message.dim() != 1:
        raise InputError(f"a message is uint8 [n], not {message.dtype} {list(message.shape)}")
    allowed = (expected,) if isinstance(expected, int) else expected
    # on a GPU headers alone are read: a copy of each, of the body what its checksum needs
    data = message if handled(message) else array(message)
    total = len(data)
    at = 0
    number = 0
    while at < total:
        if total - at < HEADER_BYTES:
            raise InputError(
                f"frame {number} at byte {at}: {total - at} bytes left, a header has {HEADER_BYTES}"
            )
        header = _bytes(data[at : at + HEADER_BYTES])
        fields = header[: _FIELDS.size]
        codec, flags, params, numel, nonzero, length = _FIELDS.unpack(fields)
        at += HEADER_BYTES
        fault = ""
        if allowed is not None and codec not in allowed:
            wanted = " or ".join(str(int(one)) for one in allowed)
            fault = f"codec {codec}, expected {wanted}"
        elif allowed is None and codec not in Codec._value2member_map_:
            fault = f"unknown codec {codec}"
        elif nonzero > numel:
            fault = f"{nonzero} of {numel} elements are said to travel"
        elif length > total - at:
            fault = f"body of {length} bytes, but {total - at} are left"
        elif _checksum(fields, data[at : at + length]) != header[_FIELDS.size :]:
            fault = "the checksum does not match: bytes were changed"
        if fault:
            raise InputError(f"frame {number} at byte {at - HEADER_BYTES}: {fault}")
        body = message[at : at + length]
        yield Frame(
            codec=codec, flags=flags, params=params, numel=numel, nonzero=nonzero, body=body
        )
        at += length
        number += 1


def _bytes(data: NDArray[np.uint8] | Tensor) -> bytes:
    return (data if isinstance(data, np.ndarray) else array(data)).tobytes()


@unpriced
def _checksum(fields: bytes, data: NDArray[np.uint8] | Tensor) -> bytes:
    """32 bits, little endian, that change when any byte does (but for one case in 2^32)."""
    if isinstance(data, np.ndarray):
        total, rest = words_and_rest(data)
    else:
        total, rest = twin("reductions", "words_and_rest")(data)
    rest = fields + rest.ljust(8, b"\0")
    return hashlib.blake2b(rest + total.to_bytes(8, "little"), digest_size=4).digest()


def words_and_rest(data: NDArray[np.uint8]) -> tuple[int, bytes]:
    """(the weighted sum of the words of eight bytes, see `_sum_of_words`; the bytes behind)."""
    whole = data.size // 8 * 8
    words = data[:whole].view(np.uint64)
    if not words.flags.aligned:
        words = words.copy()
    total = 0
    if whole <= 8 * _BLOCK:
        total = _sum_of_words(words, 0)
    else:
        sums = np.zeros(-(-whole // (8 * _BLOCK)), dtype=np.uint64)
        in_parallel(_add_words, words.size, words, sums, grain=_BLOCK)
        total = int(sums.sum(dtype=np.uint64))
    return int(total), data[whole:].tobytes()


@loop
def _sum_of_words(words: Any, first: int) -> Any:
    """The sum of words times odd numbers that differ, modulo 2^64; `first` is the first's place."""
    total = np.uint64(0)
    factor = np.uint64(2) * np.uint64(first) + np.uint64(1)
    for i in range(words.size):
        total += words[i] * (factor + np.uint64(2) * np.uint64(i))
    return total


@loop
def _add_words(start: int, stop: int, words: Any, sums: Any) -> None:
    """`_sum_of_words` of each block."""
    for first in range(start, stop, _BLOCK):
        sums[first // _BLOCK] = _sum_of_words(words[first : min(first + _BLOCK, stop)], first)


def as_bytes(values: Tensor) -> Tensor:
    """The bytes of a one-dimensional tensor, uint8, sharing its memory where it is contiguous."""
    if not values.numel():  # may have a stride that no view can have
        return torch.zeros(0, dtype=torch.uint8, device=values.device)
    return values.contiguous().view(torch.uint8)


@unpriced  # messages are laid out so that they need no realigning where that costs time
def from_bytes(body: Tensor, dtype: torch.dtype, count: int) -> Tensor:
    """`[count]` of `dtype` from exactly as many bytes; a copy when the bytes are not aligned.

    Raises `InputError` when the length does not fit.
    """
    size = dtype.itemsize
    if body.numel() != count * size:
        raise InputError(f"{body.numel()} bytes where {count} values of {size} bytes must be")
    if body.storage_offset() % size:
        body = body.clone()
    return body.view(dtype)
