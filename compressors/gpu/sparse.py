"""What does a message of selected elements look like, made on a GPU? Values and coded indices.

Twins of `coding/indices/index_coding.py` and `pairs.py`, and of what `coding/sparse.py` adds.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import triton
import triton.language as tl

from gcsim.compressors.coding import sparse as loops
from gcsim.compressors.coding.indices.index_coding import decode_indices
from gcsim.compressors.coding.integers.packing import damaged
from gcsim.compressors.demands import when_known
from gcsim.compressors.gpu.indices.coded import positions_of
from gcsim.compressors.gpu.parts import launch_parts, own_part, parts_of, starts
from gcsim.compressors.gpu.words import BLOCK, blocks
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.on_device import kernel_of
from gcsim.compressors.segments import Column, Segments


@kernel_of(loops.scatter_add)
def scatter_add(
    out: Tensor, segments: Segments, coded: Tensor, sizes: Column, coders: Column, values: Tensor,
    k: Column, weight: float,
) -> None:  # fmt: skip
    """Read again tensor by tensor after a failure, to name the damage."""
    bodies, each = coded.split(sizes.tolist()), values.float().split(k.tolist())
    for coder in np.unique(coders):  # the tensors of each together
        rows = np.flatnonzero(coders == coder)
        own, many = segments.rows(rows), k[rows].tolist()
        elements = own.length.tolist()
        body, numbers = (torch.cat([some[row] for row in rows]) for some in (bodies, each))
        places = positions_of(body, sizes[rows].tolist(), many, elements, int(coder))
        if places is None:
            for row, n, count in zip(rows, elements, many, strict=True):
                decode_indices(bodies[row], n, count, int(coder))
            raise damaged("coded positions")
        _add_at_parts(out, places, numbers, many, own.begin.tolist(), elements, weight=weight)


def _add_at_parts(
    out: Tensor, positions: Tensor, values: Tensor, sent: Sequence[int], begins: Sequence[int],
    elements: Sequence[int], *, weight: float,
) -> None:  # fmt: skip
    """`scatter_add` at positions: how many elements of each travel, where it begins, how long
    it is; positions within it and values lie one tensor's behind the other's."""
    places = positions.long() & 0xFFFFFFFF if positions.dtype == torch.int32 else positions
    parts = parts_of(out, sent, [blocks(k) for k in sent], starts(sent), begins, elements)
    wrong = out.new_zeros(max(1, parts.firsts[-1]), dtype=torch.int32)
    launch_parts(
        _add, parts, out, places, values.contiguous(), wrong, float(np.float32(weight)),
        BLOCK=BLOCK,
    )  # fmt: skip
    when_known(wrong.any(), _demand_ascending)


def _demand_ascending(wrong: bool) -> None:
    if wrong:
        raise damaged("positions do not ascend below the tensor's length")


@triton.jit
def _add(out, positions, values, wrong, weight, table, parts, BLOCK: tl.constexpr):
    column, number, k = own_part(table, parts)
    i = number * BLOCK + tl.arange(0, BLOCK)
    place = positions + tl.load(column + 2 * parts) + i
    at = tl.load(place, mask=i < k, other=0)
    before = tl.load(place - 1, mask=(i > 0) & (i < k), other=-1)
    good = (i < k) & (at > before) & (at < tl.load(column + 4 * parts))
    target = out + tl.load(column + 3 * parts) + at
    value = tl.load(values + tl.load(column + 2 * parts) + i, mask=good, other=0.0)
    total = tl.load(target, mask=good, other=0.0) + weight * value
    tl.store(target, total, mask=good)
    tl.store(wrong + tl.program_id(0), tl.max(((i < k) & (good == 0)).to(tl.int32), axis=0))
