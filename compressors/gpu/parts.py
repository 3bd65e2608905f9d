"""Tables of a bucket's tensors, so that one launch handles all of them. Each part gets as many
programs as it needs, and each program looks up its part in the table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Any

import numpy as np
import triton
import triton.language as tl
from numpy.typing import NDArray

from gcsim.compressors.gpu.words import BLOCK, SHORT, index_type, launch, there
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.segments import Column


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    table: Tensor
    """Int64 `[2 + columns, parts]`: first program, number of elements, and the kernel's columns."""
    firsts: list[int]
    """First program of each part, and finally the number of programs."""
    index: Any

    @property
    def count(self) -> int:
        return len(self.firsts) - 1


def parts_of(
    like: Tensor, elements: Sequence[int] | NDArray[Any], programs: Sequence[int] | NDArray[Any],
    *columns: Sequence[int] | NDArray[Any],
) -> Parts:  # fmt: skip
    """Return parts with these elements and programs; columns are int64, or have 64 bits. The most
    recent short tables stay on the device, like those of `there`."""
    rows = [_bits(each) for each in (elements, programs, *columns)]
    device, many = like.device, len(rows) * len(rows[0]) > SHORT
    stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
    return (_parts.__wrapped__ if many else _parts)(b"".join(rows), len(rows), device, stream)


def _bits(numbers: Sequence[int] | NDArray[Any]) -> bytes:
    """Return the numbers as 64-bit words."""
    known = isinstance(numbers, np.ndarray) and numbers.dtype in (np.int64, np.uint64)
    return (numbers if known else np.array(numbers, dtype=np.uint64)).tobytes()  # type: ignore[union-attr]


@lru_cache(maxsize=1 << 9)
def _parts(content: bytes, rows: int, device: torch.device, stream: int) -> Parts:
    """Do `parts_of` for consecutive rows."""
    elements, programs, *columns = np.frombuffer(content, dtype=np.int64).reshape(rows, -1)
    firsts = [0, *programs.cumsum().tolist()]
    table = there((firsts[:-1], elements, *columns), device, np.int64)
    most = int(elements.max(initial=0))
    return Parts(table=table, firsts=firsts, index=index_type(most))


def parts_in_blocks(
    like: Tensor, elements: Column, *columns: NDArray[Any], size: int = BLOCK
) -> Parts:
    """Return parts with these elements and a program for each `size` of them."""
    return parts_of(like, elements, -(-elements // size), *columns)


def launch_parts(kernel: Any, parts: Parts, *arguments: Any, **constants: Any) -> None:
    """Do `launch` with the table after the other arguments: kernels end in `table, parts`."""
    launch(kernel, parts.firsts[-1], *arguments, parts.table, parts.count, **constants)


def starts(lengths: Sequence[int]) -> list[int]:
    """Return where each begins if they are consecutive."""
    return list(accumulate(lengths[:-1], initial=0)) if lengths else []


def spread(found: Tensor, counts: Sequence[int]) -> Tensor:
    """Repeat each part's number `counts` times: from `[parts]` to `[sum of counts]`."""
    times = there(counts, found.device, np.int64)
    return torch.repeat_interleave(found, times, output_size=sum(counts))


_SOURCES = 6
"""Most sources in one launch of `copy`."""


def copy(target: Tensor, sources: Sequence[tuple[Tensor, Any, Any, Any]]) -> None:
    """Copy bytes to their places in `target`, uint8. A source is one-dimensional with any stride,
    then come numbers of bytes, begins in the source (as if contiguous) and in the target."""
    given, rows = [], []
    for number, (source, *columns) in enumerate(sources):
        width, step = source.element_size(), source.element_size() * source.stride(0)
        # bytes of an element, and the stride in bytes; contiguous ones are single bytes
        apart = (width, step) if step != width else (1, 1)
        # the kernel needs only the address; a view as bytes requires a stride of 1
        given.append(torch.as_strided(source, (1,), (1,)).view(torch.uint8))
        row = np.empty((6, len(columns[0])), dtype=np.int64)
        row[:3], row[3:] = columns, [[number], [apart[0]], [apart[1]]]
        rows.append(row)
    if rows:
        lengths, *others = np.concatenate(rows, axis=1)
        parts = parts_of(target, lengths, -(-lengths // BLOCK), *others)
        pointers = (*given, *given[:1] * (_SOURCES - len(given)))
        launch_parts(_copy, parts, *pointers, target, SOURCES=len(given), BLOCK=BLOCK)


@triton.jit
def own_row(firsts, rows, program):
    """Return the row of a table for a program: the last whose first program is not later."""
    low = tl.cast(0, tl.int32)
    high = tl.cast(rows, tl.int32)
    # firsts[low] <= program < firsts[high]; skips parts without programs
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
def own_block(table, parts, BLOCK: tl.constexpr):
    """Return (this program's column of the table, its number within the part, places of its block
    within the part, whether they exist), for `parts_in_blocks`."""
    column, number, n = own_part(table, parts)
    at = number * BLOCK + tl.arange(0, BLOCK)
    return column, number, at, at < n


@triton.jit
def sum_before(counts, first, program, WIDTH: tl.constexpr):
    """Return the sum of the counts from `first` up to this program."""
    total = tl.zeros([WIDTH], dtype=tl.int64)
    for start in range(first, program, WIDTH):
        at = start + tl.arange(0, WIDTH)
        total += tl.load(counts + at, mask=at < program, other=0)
    return tl.sum(total, axis=0)


@triton.jit
def _copy(
    a, b, c, d, e, f, target, table, parts, SOURCES: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    column, number, n = own_part(table, parts)
    at = number * BLOCK + tl.arange(0, BLOCK)
    source, width = tl.load(column + 4 * parts), tl.load(column + 5 * parts)
    byte = tl.load(column + 2 * parts) + at
    # rows of the table: 2 begin, 3 target, 4 source, 5 width, 6 step
    byte = byte // width * tl.load(column + 6 * parts) + byte % width
    here = at < n
    # one source is the program's own, and the others load zeros
    value = tl.load(a + byte, mask=here & (source == 0), other=0)
    if SOURCES > 1:
        value += tl.load(b + byte, mask=here & (source == 1), other=0)
    if SOURCES > 2:
        value += tl.load(c + byte, mask=here & (source == 2), other=0)
    if SOURCES > 3:
        value += tl.load(d + byte, mask=here & (source == 3), other=0)
    if SOURCES > 4:
        value += tl.load(e + byte, mask=here & (source == 4), other=0)
    if SOURCES > 5:
        value += tl.load(f + byte, mask=here & (source == 5), other=0)
    tl.store(target + tl.load(column + 3 * parts) + at, value, mask=here)
