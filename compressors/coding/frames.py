"""A bucket's message: the frames of all tensors, laid out, filled, sealed and read together.

    message, at = frames(values, Codec.SPARSE, segments, sizes, nonzero=k)   # headers; bodies begin
    put(message, at, values, 4 * k)                                          # parts of bodies
    seal(message, at, sizes)                                                 # checksums

    found = read(message, layout, Codec.SPARSE)                              # columns
    values = taken(message, found.at, 4 * found.nonzero, torch.float32)

Frames and headers: `frame.py`. A receiver knows the layout and nothing else of the sender: frames
that are not those of the layout are an `InputError`.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gcsim.compressors.bucket import BucketLayout
from gcsim.compressors.coding.checksum import checksum, put_number
from gcsim.compressors.coding.frame import HEADER_BYTES, read_frame, write_header
from gcsim.compressors.coding.messages import frames_of
from gcsim.compressors.kernels import KernelCost
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.loops import array, loop, written_back
from gcsim.compressors.meter import counted_as, launch
from gcsim.compressors.on_device import primitive
from gcsim.compressors.segments import Column, Segments, starts
from gcsim.errors import InputError, InternalError


@dataclass(frozen=True, slots=True, eq=False)
class Frames:
    """Headers of a message, a column each."""

    codec: Column
    flags: Column
    params: Column
    nonzero: Column
    """Elements that travel."""
    at: Column
    """First byte of the body in the message."""
    size: Column
    """Bytes of the body."""

    def alike(self, column: str) -> int:
        """The number that a column has in all rows; `InputError` where they differ."""
        values = getattr(self, column)
        if (values != values[0]).any():
            raise InputError(f"damaged payload: {column} {values.tolist()} differ between frames")
        return int(values[0])

    def demand_sizes(self, sizes: Column) -> None:
        """`InputError` unless bodies have so many bytes."""
        for found, asked in zip(self.size, sizes, strict=True):
            if found != asked:
                raise InputError(
                    f"damaged payload: body of {found} bytes, its header asks for {asked}"
                )


def frames(
    like: Tensor, codec: int, segments: Segments, sizes: Column, *,
    nonzero: Column | None = None, flags: ArrayLike = 0, params: ArrayLike = 0,
) -> tuple[Tensor, Column]:  # fmt: skip
    """(a message with its headers, uint8 on the device of `like`; where each body begins).

    `sizes` are the bodies' bytes. Of a tensor `nonzero` elements travel (None: all). Raises
    `InternalError` when a number does not fit its field.
    """
    at = starts(sizes + HEADER_BYTES) + HEADER_BYTES
    heads = np.empty((len(sizes), HEADER_BYTES), dtype=np.uint8)
    fits = _write_headers(
        heads, int(codec), segments.column(flags), segments.column(params), segments.length,
        segments.length if nonzero is None else nonzero, sizes,
    )  # fmt: skip
    if not fits:
        raise InternalError(f"no frame header holds codec {codec}, bodies of {sizes} bytes")
    message = like.new_empty(int(sizes.sum()) + HEADER_BYTES * len(sizes), dtype=torch.uint8)
    head = torch.from_numpy(heads.reshape(-1))
    put(message, at - HEADER_BYTES, head, segments.column(HEADER_BYTES))
    return message, at


def _copying(copied: Tensor | None, message: object, at: object, *given: Any) -> list[KernelCost]:
    """The copy of parts of bodies: those of `put`, or those that are `taken`."""
    source = given[0] if copied is None else copied
    n = source.nbytes
    return [launch("streaming", "aten.cat", n, 2 * n)] if n else []


@counted_as(_copying)
@primitive
def put(message: Tensor, at: Column, source: Tensor, lengths: Column) -> None:
    """Copy the bytes of `source`, so many for each tensor, to their places in a message."""
    if source.numel():
        data = array(source.contiguous()).view(np.uint8)
        with written_back(message) as out:
            _copy(data, starts(lengths), out, at, lengths)


@counted_as(_copying)
@primitive
def taken(message: Tensor, at: Column, lengths: Column, dtype: torch.dtype) -> Tensor:
    """Undo `put`: `[sum of lengths / size]` of `dtype`."""
    out = torch.empty(int(lengths.sum()) // dtype.itemsize, dtype=dtype)
    _copy(array(message), at, array(out).view(np.uint8), starts(lengths), lengths)
    return out.to(message.device)


def picked(values: Tensor, begins: Column, counts: Column) -> Tensor:
    """Pieces of a flat tensor, so many elements from each begin, one behind the other."""
    size = values.element_size()
    return taken(values.view(torch.uint8), size * begins, size * counts, values.dtype)


@counted_as(lambda *_: ())  # a deployment leaves checksums to the network
@primitive
def seal(message: Tensor, at: Column, sizes: Column) -> Tensor:
    """The message, once the checksums of its frames are written."""
    with written_back(message) as data:
        _write_checksums(data, at, sizes)
    return message


def read(message: Tensor, layout: BucketLayout, codec: int | Collection[int]) -> Frames:
    """The headers of a message whose frames are those of the layout's tensors, and intact.

    Raises `InputError` otherwise, or for another codec than this one (these ones).
    """
    allowed = [codec] if isinstance(codec, int) else list(codec)
    rows = np.empty((len(layout.slices), 6), dtype=np.int64)
    of_bytes = message.dtype == torch.uint8 and message.dim() == 1
    if of_bytes and find(message, layout.table, rows):
        found = Frames(*np.ascontiguousarray(rows.T))
        if set(found.codec.tolist()).issubset(allowed):
            return found
    for _ in frames_of(message, layout, codec):  # says what is wrong with which frame
        pass
    raise InternalError("a message that is not whole was read")


@counted_as(lambda *_: ())  # a deployment knows headers and leaves checksums to the network
@primitive
def find(message: Tensor, table: NDArray[np.int64], rows: NDArray[np.int64]) -> bool:
    """Fill the rows of `Frames`; whether a message is an intact frame a tensor, and no more.

    `table` is a layout's, `rows` int64 `[tensors, 6]`.
    """
    return bool(_find(array(message), table, rows))


# --- loops ----------------------------------------------------------------------------------------


@loop
def _write_headers(
    heads: Any, codec: int, flags: Any, params: Any, numel: Any, nonzero: Any, sizes: Any
) -> bool:
    fits = True
    for t in range(sizes.size):
        fits &= write_header(heads[t], codec, flags[t], params[t], numel[t], nonzero[t], sizes[t])
    return fits


@loop
def _copy(source: Any, begins: Any, target: Any, at: Any, lengths: Any) -> None:
    for t in range(lengths.size):
        given = source[begins[t] : begins[t] + lengths[t]]
        out = target[at[t] : at[t] + lengths[t]]
        for i in range(out.size):
            out[i] = given[i]


@loop
def _write_checksums(message: Any, at: Any, sizes: Any) -> None:
    for t in range(sizes.size):
        frame = message[at[t] - HEADER_BYTES : at[t] + sizes[t]]
        put_number(frame, HEADER_BYTES - 4, 4, checksum(frame, frame[HEADER_BYTES:]))


@loop
def _find(data: Any, table: Any, rows: Any) -> Any:
    at = 0
    for t in range(table.shape[0]):
        if data.size - at < HEADER_BYTES:
            return False
        codec, flags, params, numel, nonzero, length, intact = read_frame(data, at)
        if numel != table[t, 1] or nonzero > numel or not intact:
            return False
        at += HEADER_BYTES + length
        rows[t, 0], rows[t, 1], rows[t, 2], rows[t, 3] = codec, flags, params, nonzero
        rows[t, 4], rows[t, 5] = at - length, length
    return at == data.size
