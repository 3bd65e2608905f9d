"""How does a vector become a count sketch on a GPU, and how is an element read from it?

Twins of `sketching/table.py`, whose cells add up their elements in order. Here a stable sort by
cell brings them side by side, and a lane for each cell adds up its own: the same sums. Hashes and
medians are by torch's operators.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import triton
import triton.language as tl

from gcsim.compressors.gpu.words import bits64_of, launch, shifted, there
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.meter import count_bytes
from gcsim.compressors.sketching.table import PARTS, Hashes

_TOGETHER = 1 << 24
"""Elements whose estimates are made together."""
_CELLS = 256
"""Of a program."""


def sketch(values: Tensor, hashes: Hashes) -> Tensor:
    """See `table.sketch`."""
    n = values.numel()
    count_bytes("gather_scatter", 8 * hashes.rows * n)
    partial = values.new_zeros((PARTS, hashes.rows, hashes.columns))
    cuts = [n * part // PARTS for part in range(PARTS + 1)]
    for row, cells, signs in _hashed(torch.arange(n, device=values.device), hashes):
        signed = values * signs
        for part, first in enumerate(cuts[:-1]):
            here = slice(first, cuts[part + 1])
            _add_in_order(partial[part][row], cells[here], signed[here])
    table = partial[0]
    for other in partial[1:]:
        table += other
    return table


def estimate(table: Tensor, n: int, hashes: Hashes) -> Tensor:
    """See `table.estimate`."""
    count_bytes("gather_scatter", 4 * hashes.rows * n)
    out = table.new_empty(n)
    for part in torch.arange(n, device=table.device).split(_TOGETHER):
        seen = table.new_empty((hashes.rows, part.numel()))
        for row, cells, signs in _hashed(part, hashes):
            seen[row] = table[row][cells] * signs
        _sort_columns(seen)
        middle = seen[(hashes.rows - 1) // 2], seen[hashes.rows // 2]
        out[part] = 0.5 * middle[0] + 0.5 * middle[1]
    return out


def take_off(
    indices: Tensor, values: Tensor, table: Tensor, hashes: Hashes, *, subtract: bool
) -> None:
    """See `table.take_off`."""
    for row, cells, signs in _hashed(indices.long(), hashes):
        if subtract:
            _add_in_order(table[row], cells, -(values * signs))
        else:
            table[row][cells] = 0.0


def _hashed(index: Tensor, hashes: Hashes) -> Iterator[tuple[int, Tensor, Tensor]]:
    """By row: its number, the columns of elements, int64, and their signs, float32."""
    offsets, flips = (
        there(each.view(np.int64), index.device) for each in (hashes.offsets, hashes.flips)
    )
    block = index // hashes.length
    for row, key in enumerate(hashes.keys):
        hashed = bits64_of(key, index - block * hashes.length)
        column = (shifted(hashed, 32) * hashes.columns >> 32) + offsets[row][block]
        column -= hashes.columns * (column >= hashes.columns)
        yield row, column, 1.0 - 2.0 * ((hashed ^ flips[row][block]) & 1).float()


def _sort_columns(values: Tensor) -> None:
    """See `table._sort_columns`: pairs of rows, all of a turn together."""
    rows = len(values)
    for turn in range(rows):
        pairs = (rows - turn % 2) // 2
        one = values[turn % 2 :][: 2 * pairs : 2]
        other = values[turn % 2 + 1 :][: 2 * pairs : 2]
        less = one < other
        upper, lower = torch.where(less, one, other), torch.where(less, other, one)
        one.copy_(upper)
        other.copy_(lower)


def _add_in_order(target: Tensor, cells: Tensor, values: Tensor) -> None:
    """target[cell] += value, one after the other."""
    ordered, order = cells.sort(stable=True)
    every = torch.arange(target.numel(), device=target.device)
    ends = torch.searchsorted(ordered, every, right=True)
    launch(
        _add_runs, -(-target.numel() // _CELLS), target, values[order], ends, target.numel(),
        CELLS=_CELLS,
    )  # fmt: skip


# --- kernels --------------------------------------------------------------------------------------


@triton.jit
def _add_runs(target, values, ends, n, CELLS: tl.constexpr):
    """To each cell what stands between the end of the one before and its own."""
    cell = tl.program_id(0) * CELLS + tl.arange(0, CELLS)
    end = tl.load(ends + cell, mask=cell < n, other=0)
    at = tl.load(ends + cell - 1, mask=(cell > 0) & (cell < n), other=0)
    total = tl.load(target + cell, mask=cell < n, other=0.0)
    longest = tl.max(end - at, axis=0)
    for k in range(longest):
        more = tl.load(values + at + k, mask=at + k < end, other=0.0)
        total = tl.where(at + k < end, total + more, total)
    tl.store(target + cell, total, mask=cell < n)
