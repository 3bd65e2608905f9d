"""Coded positions of the selected elements of a bucket: `index_coding.py` over a table."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gcsim.compressors.coding.indices.index_coding import Coder, position_bytes, positions_in
from gcsim.compressors.kernels import KernelCost
from gcsim.compressors.lazy_torch import Tensor
from gcsim.compressors.loops import array, tensor
from gcsim.compressors.meter import counted_as, launch
from gcsim.compressors.on_device import primitive
from gcsim.compressors.segments import Column, Segments


def _launches(
    coded: tuple[Tensor, Column], indices: object, segments: object, k: Column, coders: Column
) -> Iterator[KernelCost]:
    for coder in np.unique(coders):
        own = coders == coder
        name = f"index_coding.encode_indices:{Coder(coder).name.lower()}"
        yield launch("streaming", name, k[own], 8 * k[own], coded[1][own])


@counted_as(_launches)
@primitive
def coded_positions(
    indices: Tensor, segments: Segments, k: Column, coders: Column
) -> tuple[Tensor, Column]:
    """(the tensors' coded positions, one behind the other, uint8; bytes of each).

    `indices` are within their tensor, int64 `[sum of k]`, k of each tensor, ascending; `coders` are
    `Coder` numbers. Raises `InternalError` when they do not ascend (raw and packed do not look).
    """
    positions = np.ascontiguousarray(array(indices))
    if (coders == Coder.RAW).all():
        return tensor(positions.astype("<u4").view(np.uint8), indices), 4 * k
    columns = segments.length.tolist(), coders.tolist(), np.split(positions, np.cumsum(k)[:-1])
    bodies = [position_bytes(own, n, Coder(coder)) for n, coder, own in zip(*columns, strict=True)]
    return tensor(np.concatenate(bodies), indices), np.array([body.size for body in bodies])


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
    rows = zip(segments.length.tolist(), k.tolist(), coders.tolist(), strict=True)
    bodies = np.split(array(coded), np.cumsum(sizes)[:-1])
    found = [positions_in(body, *row) for body, row in zip(bodies, rows, strict=True)]
    return tensor(np.concatenate(found), coded)
