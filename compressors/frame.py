"""How does a receiver know what a payload holds? Every tensor's part begins with 16 bytes.

    codec u8 | flags u8 | params u16 | numel u32 | nonzero u32 | body bytes u32      little endian

A message is one frame a tensor, back to back. `flags` and `params` belong to the codec; `numel`
is the length of the tensor, `nonzero` the number of elements that travel. Whatever a frame says
of itself is checked before it is believed: a damaged message is an `InputError`, never a guess.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

from gcsim.compressors.lazy_torch import torch
from gcsim.errors import InputError, InternalError

if TYPE_CHECKING:
    from torch import Tensor

HEADER_BYTES = 16
_HEADER = struct.Struct("<BBHIII")


class Codec(IntEnum):
    """Who wrote the frame's body."""

    SPARSE = 1  # values, then coded indices: top-k, DGC
    QSGD = 2
    TERNGRAD = 3
    SIGN_BLOCK = 4  # dist-EF-blockSGDM: signs and a scale
    VARIANCE = 5
    QSPARSE = 6  # QSparse-local-SGD: quantised values and coded indices


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
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
    codec: int, body: Tensor, *, numel: int, nonzero: int, flags: int = 0, params: int = 0
) -> Tensor:
    """Header and body as one uint8 tensor `[16 + body bytes]` on the body's device.

    Raises `InternalError` when a number does not fit its field or the body is not bytes.
    """
    if body.dtype != torch.uint8 or body.dim() != 1:
        raise InternalError(f"a frame's body is uint8 [n], not {body.dtype} {list(body.shape)}")
    try:
        header = _HEADER.pack(codec, flags, params, numel, nonzero, body.numel())
    except struct.error as error:
        raise InternalError(f"frame header of codec {codec}: {error}") from error
    head = torch.frombuffer(bytearray(header), dtype=torch.uint8).to(body.device)
    return torch.cat((head, body))


def read_frames(message: Tensor, *, expected: int | None = None) -> Iterator[Frame]:
    """The frames of a message (uint8, one dimension), in order.

    With `expected`, every frame must be of that codec. Raises `InputError` for a message that
    is cut off, of another codec, or contradicts itself.
    """
    if message.dtype != torch.uint8 or message.dim() != 1:
        raise InputError(f"a message is uint8 [n], not {message.dtype} {list(message.shape)}")
    total = message.numel()
    at = 0
    number = 0
    while at < total:
        if total - at < HEADER_BYTES:
            raise InputError(
                f"frame {number} at byte {at}: {total - at} bytes left, a header has {HEADER_BYTES}"
            )
        header = bytes(message[at : at + HEADER_BYTES].tolist())
        codec, flags, params, numel, nonzero, length = _HEADER.unpack(header)
        place = f"frame {number} at byte {at}"
        at += HEADER_BYTES
        if expected is not None and codec != expected:
            raise InputError(f"{place}: codec {codec}, expected {int(expected)}")
        if expected is None and codec not in Codec._value2member_map_:
            raise InputError(f"{place}: unknown codec {codec}")
        if nonzero > numel:
            raise InputError(f"{place}: {nonzero} of {numel} elements are said to travel")
        if length > total - at:
            raise InputError(f"{place}: body of {length} bytes, but {total - at} are left")
        yield Frame(
            codec=codec,
            flags=flags,
            params=params,
            numel=numel,
            nonzero=nonzero,
            body=message[at : at + length],
        )
        at += length
        number += 1


def as_bytes(values: Tensor) -> Tensor:
    """The bytes of a one-dimensional tensor, uint8, sharing its memory where it is contiguous."""
    return values.contiguous().view(torch.uint8)


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
