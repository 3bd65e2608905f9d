"""Tables of a bucket's tensors, by which one launch works on all of them.

The programs of a kernel are shared out: a part takes as many as it needs, and each finds in the
table which part is its own. A call for one tensor is one with a table of one part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import triton
import triton.language as tl
from numpy.typing import NDArray

from gcsim.compressors.gpu.words import BLOCK, blocks, index_type, launch, there
from gcsim.compressors.lazy_torch import Tensor, torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """A kernel's table of the tensors that it works on together."""

    table: Tensor
    """int64 `[2 + columns, parts]`: the first program of each, its elements, and what it needs."""
    firsts: list[int]
    """First program of each part; at the end, the number of programs."""
    index: Any
    """The type of a place within a part."""

    @property
    def count(self) -> int:
        return len(self.firsts) - 1


def parts_of(
    like: Tensor, elements: Sequence[int], programs: Sequence[int],
    *columns: Sequence[int] | NDArray[Any],
) -> Parts:  # fmt: skip
    """The parts of so many elements and programs each; columns of int64, or of 64 bits."""
    firsts = [0, *accumulate(programs)]
    rows = [np.array(each, dtype=np.uint64).view(np.int64) for each in columns]
    table = there((firsts[:-1], elements, *rows), like.device, np.int64)
    return Parts(table=table, firsts=firsts, index=index_type(max(elements, default=0)))


def launch_parts(kernel: Any, parts: Parts, *arguments: Any, **constants: Any) -> None:
    """`launch`, with the table behind the other arguments: kernels end in `table, parts`."""
    launch(kernel, parts.firsts[-1], *arguments, parts.table, parts.count, **constants)


def starts(lengths: Sequence[int]) -> list[int]:
    """Begin of each when they lie one behind the other."""
    return list(accumulate(lengths[:-1], initial=0)) if lengths else []


def spread(found: Tensor, counts: Sequence[int]) -> Tensor:
    """Each part's number as often as it says: `[parts]` to `[sum of counts]`."""
    times = there(counts, found.device, np.int64)
    return torch.repeat_interleave(found, times, output_size=sum(counts))


def put(
    target: Tensor, source: Tensor, lengths: Sequence[int], places: Sequence[int],
    begins: Sequence[int] | None = None,
) -> None:  # fmt: skip
    """Copy so many bytes (or other elements) at a time to their places in `target`.

    In `source` they lie one behind the other, or begin there.
    """
    first = starts(lengths) if begins is None else begins
    parts = parts_of(target, lengths, [blocks(n) for n in lengths], first, places)
    launch_parts(_copy, parts, source, target, BLOCK=BLOCK)


# --- kernels --------------------------------------------------------------------------------------


@triton.jit
def own_row(firsts, rows, program):
    """The row of a table that a program works on: the last whose first program is not later."""
    low = tl.cast(0, tl.int32)
    high = tl.cast(rows, tl.int32)
    while high - low > 1:
        middle = (low + high) // 2
        later = tl.load(firsts + middle) > program
        high = tl.where(later, middle, high)
        low = tl.where(later, low, middle)
    return low


@triton.jit
def own_part(table, parts):
    """(this program's column of the table, its number within the part, the part's elements)."""
    program = tl.program_id(0)
    column = table + own_row(table, parts, program)
    return column, program - tl.load(column), tl.load(column + parts)


@triton.jit
def _copy(source, target, table, parts, BLOCK: tl.constexpr):
    column, number, n = own_part(table, parts)
    at = number * BLOCK + tl.arange(0, BLOCK)
    byte = tl.load(source + tl.load(column + 2 * parts) + at, mask=at < n, other=0)
    tl.store(target + tl.load(column + 3 * parts) + at, byte, mask=at < n)
