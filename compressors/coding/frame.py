"""How does a receiver know what a payload holds? Every tensor's part begins with 20 bytes.

    codec u8 | flags u8 | params u16 | numel u32 | nonzero u32 | body bytes u32 | checksum u32

little endian; the checksum is over the 16 bytes before it and the body.

A message is one frame a tensor, back to back. `flags` and `params` belong to the codec; `numel`
is the length of the tensor, `nonzero` the number of elements that travel. Whatever a frame says
of itself is checked before it is believed: a damaged message is an `InputError`, never a guess.
The checksum is not priced: networks have their own.
"""

from __future__ import annotations

import importlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from typing import Any, ParamSpec, TypeVar

import numpy as np

from gcsim.compressors.coding.checksum import checksum, number_at, put_number
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.loops import array, loop, written_back
from gcsim.compressors.meter import unpriced
from gcsim.compressors.on_device import handled
from gcsim.errors import InputError, InternalError

P = ParamSpec("P")
R = TypeVar("R")

HEADER_BYTES = 20
_SIZES = (1, 1, 2, 4, 4, 4)
"""Bytes of a header's fields before the checksum."""


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
    travelling = numel if nonzero is None else nonzero
    if handled(body):
        head = np.zeros(HEADER_BYTES, dtype=np.uint8)
        fits = write_header(head, int(codec), flags, params, numel, travelling, body.numel())
        message = torch.cat((torch.from_numpy(head).to(body.device), body))
        on_gpu("seal", message, [body.numel()])
    else:
        message = torch.cat((_room(body.device), body))
        with written_back(message) as data:
            fits = write_frame(data, int(codec), flags, params, numel, travelling)
    if not fits:
        fields = f"flags {flags}, params {params}, {travelling} of {numel} elements"
        raise InternalError(f"no frame header holds codec {codec}, {fields}, {len(body)} bytes")
    return message


@cache
@unpriced
def _room(device: torch.device) -> Tensor:
    """For a header."""
    return torch.zeros(HEADER_BYTES, dtype=torch.uint8, device=device)


def read_frames(
    message: Tensor, *, expected: int | Collection[int] | None = None, most: int = 1
) -> Iterator[Frame]:
    """The frames of a message (uint8, one dimension), in order.

    With `expected`, every frame must be of that codec, or one of those. On a GPU up to `most`
    headers come to the host together. Raises `InputError` for a message that is cut off, of another
    codec, changed on the way, or contradicts itself.
    """
    if message.dtype != torch.uint8 or message.dim() != 1:
        raise InputError(f"a message is uint8 [n], not {message.dtype} {list(message.shape)}")
    allowed = (expected,) if isinstance(expected, int) else expected
    data = None if handled(message) else array(message)
    total = message.numel()
    at = 0
    number = 0
    ahead: list[Any] = []
    while at < total:
        if total - at < HEADER_BYTES:
            raise InputError(
                f"frame {number} at byte {at}: {total - at} bytes left, a header has {HEADER_BYTES}"
            )
        if data is None and not ahead:
            ahead = on_gpu("frames_at", message, at, most)[::-1]
        codec, flags, params, numel, nonzero, length, intact = (
            ahead.pop() if data is None else read_frame(data, at)
        )
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
        elif not intact:
            fault = "the checksum does not match: bytes were changed"
        if fault:
            raise InputError(f"frame {number} at byte {at - HEADER_BYTES}: {fault}")
        body = message[at : at + length]
        yield Frame(
            codec=codec, flags=flags, params=params, numel=numel, nonzero=nonzero, body=body
        )
        at += length
        number += 1


@unpriced
def on_gpu(work: str, message: Tensor, *given: Any) -> Any:
    """What kernels do with the frames of a message: a function of `gpu/frames.py`."""
    with torch.cuda.device_of(message):  # type: ignore[no-untyped-call]
        return getattr(importlib.import_module("gcsim.compressors.gpu.frames"), work)(
            message, *given
        )


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


# --- loops: a call for each frame, most of which are short ---------------------------------------


@loop
def write_frame(
    message: Any, codec: int, flags: int, params: int, numel: int, nonzero: int
) -> bool:
    """Fill the header before a body; False when a number does not fit its field."""
    body = message[HEADER_BYTES:]
    fits = write_header(message, codec, flags, params, numel, nonzero, body.size)
    put_number(message, HEADER_BYTES - 4, 4, checksum(message, body))
    return fits


@loop
def write_header(
    head: Any, codec: int, flags: int, params: int, numel: int, nonzero: int, length: int
) -> bool:
    """`write_frame` up to the checksum."""
    fits = True
    at = 0
    for size, field in zip(_SIZES, (codec, flags, params, numel, nonzero, length)):  # noqa: B905
        fits &= (field >> (8 * size)) == 0  # nor negative
        put_number(head, at, size, np.uint64(field))
        at += size
    return fits


@loop
def read_frame(data: Any, start: int) -> Any:
    """The fields of the frame that begins there, and whether its bytes are those of its checksum.

    At least the header is there.
    """
    frame = data[start:]
    length = np.int64(number_at(frame, 12, 4))
    intact = length <= frame.size - HEADER_BYTES
    if intact:
        body = frame[HEADER_BYTES : HEADER_BYTES + length]
        intact = number_at(frame, 16, 4) == checksum(frame, body)
    codec, flags, params, numel, nonzero, _ = read_header(frame)
    return codec, flags, params, numel, nonzero, length, intact


@loop
def read_header(head: Any) -> Any:
    """Codec, flags, params, elements, those that travel, bytes of the body."""
    return (
        np.int64(head[0]), np.int64(head[1]), np.int64(number_at(head, 2, 2)),
        np.int64(number_at(head, 4, 4)), np.int64(number_at(head, 8, 4)),
        np.int64(number_at(head, 12, 4)),
    )  # fmt: skip
