"""Sums of sparse vectors, by merging ascending lists of (index, value)."""

from __future__ import annotations

import numpy as np

from gcsim.compressors.lazy_torch import Tensor
from gcsim.compressors.loops import array, loop, tensor
from gcsim.compressors.meter import kernel
from gcsim.compressors.on_device import primitive
from gcsim.compressors.segments import Column, Segments

BEYOND = (1 << 63) - 1
"""Filler in place of an index."""


@kernel("streaming")
@primitive
def merged_pairs(
    indices: Tensor, values: Tensor, other_indices: Tensor, other_values: Tensor,
    segments: Segments, room: Column,
) -> tuple[Tensor, Tensor, Column]:  # fmt: skip
    """Add two sparse vectors: (indices int64 `[u]`, ascending; values float32 `[u]`; how many per
    tensor). The given indices are places in the flat bucket, ascending int64 `[k]` and `[m]`, the
    values float32; together they have at most `room` elements per tensor. On a device each tensor
    occupies its room, padded with `BEYOND` and zeros, so that the host need not wait."""
    most = indices.numel() + other_indices.numel()
    out_indices = np.empty(most, dtype=np.int64)
    out_values = np.empty(most, dtype=np.float32)
    used = _merge(
        array(indices), array(values), array(other_indices), array(other_values),
        out_indices, out_values,
    )  # fmt: skip
    # pairs are in the bucket's order: a tensor's last pair is the last one below its end
    upto = np.searchsorted(out_indices[:used], segments.begin + segments.length)
    many = upto.copy()
    many[1:] -= upto[:-1]
    return tensor(out_indices[:used], values), tensor(out_values[:used], values), many


@loop
def _merge(ia, va, ib, vb, indices, values) -> int:
    a = b = used = 0
    while a < ia.size or b < ib.size:
        # test for the end of a list before reading its next index
        if b == ib.size or (a < ia.size and ia[a] < ib[b]):
            indices[used], values[used] = ia[a], va[a]
            a += 1
        elif a == ia.size or ib[b] < ia[a]:
            indices[used], values[used] = ib[b], vb[b]
            b += 1
        else:
            indices[used], values[used] = ia[a], va[a] + vb[b]
            a += 1
            b += 1
        used += 1
    return used
