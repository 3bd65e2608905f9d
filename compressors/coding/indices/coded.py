"""Coded positions of a bucket's selected elements: the coders of `index_coding.py` over a table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcsim.compressors.coding.frames import as_bytes
from gcsim.compressors.coding.indices.index_coding import (
    FAULTS,
    Coder,
    IndexCoding,
    choose_coder,
    get_positions,
    put_positions,
    rice_parameter,
)
from gcsim.compressors.coding.integers.packing import damaged, packed_bytes
from gcsim.compressors.kernels import KernelCost
from gcsim.compressors.lazy_torch import Tensor
from gcsim.compressors.loops import array, in_tiles, loop, tensor
from gcsim.compressors.meter import counted_as, launch
from gcsim.compressors.on_device import primitive
from gcsim.compressors.segments import Column, Segments, starts
from gcsim.errors import InternalError


def chosen_coders(coding: IndexCoding, segments: Segments, k: Column) -> Column:
    """`choose_coder` for each tensor."""
    if coding != "auto":
        return segments.column(Coder[coding.upper()])
    pairs = zip(segments.length.tolist(), k.tolist(), strict=True)
    return np.array([choose_coder(coding, n, many) for n, many in pairs], dtype=np.int64)


def fixed_length(coders: Column) -> bool:
    """Whether the bytes of all tensors follow from n and k."""
    return all(Coder(coder).fixed_length for coder in set(coders.tolist()))


def widths_of(segments: Segments, k: Column, coders: Column) -> Column:
    """Bits of each position in the part of fixed length: all, or a Rice code's low bits."""
    packed = np.frexp(np.maximum(0, segments.length - 1))[1]  # `index_width`
    widths: Column = np.where(coders == Coder.PACKED, packed, 32 * (coders == Coder.RAW))
    for t in np.flatnonzero(coders == Coder.RICE).tolist():
        widths[t] = rice_parameter(int(segments.length[t]), int(k[t]))
    return widths


def most_bytes(segments: Segments, k: Column, coders: Column, widths: Column) -> Column:
    """Bytes of each body: exact where the length is fixed, else of the longest there can be."""
    n = segments.length
    bits = np.where(coders == Coder.BITMAP, n, (k + (n >> widths)) * (coders == Coder.RICE))
    return packed_bytes(k * widths, 1) + packed_bytes(bits, 1)


def _launches(
    coded: tuple[Tensor, Column], indices: object, segments: object, k: Column, coders: Column
) -> Iterator[KernelCost]:
    for coder in np.unique(coders):
        own = coders == coder
        name = f"index_coding.encode_indices:{Coder(coder).name.lower()}"
        yield launch("streaming", name, k[own], 8 * k[own], coded[1][own])


def coded_positions(
    indices: Tensor, segments: Segments, k: Column, coders: Column
) -> tuple[Tensor, Column]:
    """(the tensors' coded positions, one behind the other, uint8; bytes of each).

    `indices` are within their tensor, int64 `[sum of k]`, k of each tensor, ascending; `coders` are
    `Coder` numbers. Raises `InternalError` when they do not ascend (raw and packed do not look,
    nor do kernels).
    """
    coded, sizes = words_of_positions(indices, segments, k, coders)
    return as_bytes(coded), sizes


@counted_as(_launches)
@primitive
def words_of_positions(
    indices: Tensor, segments: Segments, k: Column, coders: Column
) -> tuple[Tensor, Column]:
    """`coded_positions`, but int32 of any stride where all are raw."""
    positions = np.ascontiguousarray(array(indices))
    if (coders == Coder.RAW).all():
        return tensor(positions.astype("<i4"), indices), 4 * k
    widths = widths_of(segments, k, coders)
    room = most_bytes(segments, k, coders, widths)
    at, out = starts(room), np.zeros(int(room.sum()), dtype=np.uint8)
    sizes, n = np.empty_like(k), segments.length
    in_tiles(_put, _whole(k), n, coders, widths, starts(k), at, room, positions, out, sizes)
    if (wrong := np.flatnonzero(sizes < 0)).size:
        raise InternalError(f"positions to be coded do not ascend below {n[wrong[0]]}")
    if (sizes < room).any():
        pairs = zip(at.tolist(), sizes.tolist(), strict=True)
        out = np.concatenate([out[first : first + size] for first, size in pairs])
    return tensor(out, indices), sizes


def _reading(
    found: Tensor, coded: object, segments: object, sizes: Column, k: Column, coders: Column
) -> Iterator[KernelCost]:
    for coder in np.unique(coders):
        own = coders == coder
        name = f"index_coding.decode_indices:coder_{coder}"
        yield launch("streaming", name, np.maximum(k, sizes)[own], sizes[own], 8 * k[own])


@counted_as(_reading)
@primitive
def decoded_positions(
    coded: Tensor, segments: Segments, sizes: Column, k: Column, coders: Column
) -> Tensor:
    """Undo `coded_positions`: int64 `[sum of k]`, ascending below each tensor's length.

    Raises `InputError` when bodies, of so many bytes, do not say so.
    """
    return tensor(positions_in(array(coded), segments, sizes, k, coders), coded)


def demand_ascending(wrong: int) -> None:
    """`InputError` for positions that do not ascend, or cannot be read."""
    if wrong:
        raise damaged("positions do not ascend below the tensor's length")


def positions_in(
    coded: NDArray[np.uint8], segments: Segments, sizes: Column, k: Column, coders: Column
) -> NDArray[np.int64]:
    """`decoded_positions` of an array."""
    widths, faults = widths_of(segments, k, coders), np.empty_like(k)
    positions = np.empty(int(k.sum()), dtype=np.int64)
    rows = segments.length, coders, widths, starts(k), starts(sizes), sizes
    in_tiles(_get, _whole(k), *rows, np.ascontiguousarray(coded), positions, faults)
    if faults.any():
        t = int(np.flatnonzero(faults)[0])
        n, coder, many, size = (int(each[t]) for each in (segments.length, coders, k, sizes))
        name = Coder(coder).name.lower() if coder in set(Coder) else f"coder {coder}"
        what = FAULTS[faults[t]]
        raise damaged(f"{size} bytes are not {many} positions below {n} by {name}: {what}")
    return positions


# --- loops ----------------------------------------------------------------------------------------


@loop
def _whole(k: Any) -> Any:
    """A tile for each tensor."""
    tiles = np.zeros((k.size, 3), dtype=np.int64)
    for t in range(k.size):
        tiles[t, 0], tiles[t, 2] = t, k[t]
    return tiles


@loop
def _put(
    start: int, stop: int, tensors: Any, n: Any, coders: Any, widths: Any, firsts: Any, at: Any,
    room: Any, positions: Any, out: Any, sizes: Any,
) -> None:  # fmt: skip
    for t in range(start, stop):
        own = positions[firsts[t] : firsts[t] + tensors[t, 2]]
        body = out[at[t] : at[t] + room[t]]
        sizes[t] = put_positions(own, n[t], coders[t], widths[t], body)


@loop
def _get(
    start: int, stop: int, tensors: Any, n: Any, coders: Any, widths: Any, firsts: Any, at: Any,
    sizes: Any, coded: Any, positions: Any, faults: Any,
) -> None:  # fmt: skip
    for t in range(start, stop):
        own = positions[firsts[t] : firsts[t] + tensors[t, 2]]
        body = coded[at[t] : at[t] + sizes[t]]
        faults[t] = get_positions(body, n[t], coders[t], widths[t], own)
