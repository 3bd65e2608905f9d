"""How is a vector rounded to levels that all workers know, on a GPU? NUQSGD, ALQ and AMQ.

Twins of `coding/rounding/tables.py`, and of what ALQ and AMQ learn of buckets (sums by torch).
"""

from __future__ import annotations

import numpy as np
import triton
import triton.language as tl
from numpy.typing import NDArray

from gcsim.compressors.coding.integers.packing import check_packed, damaged, packed_bytes
from gcsim.compressors.coding.rounding.tables import COUNTED, Levels
from gcsim.compressors.gpu.reductions import PLAIN, SQUARES, Buckets, bucket_totals
from gcsim.compressors.gpu.words import (
    GROUPS,
    index_type,
    launch,
    load_codes,
    places,
    random16,
    store_codes,
    there,
    tiles,
)
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.meter import count_random

_TOGETHER = 1 << 20
"""Elements whose errors are added up together, in float64."""


def encode_table(
    values: Tensor, norms: Tensor, levels: Levels, key: np.uint64, *, size: int, bits: int
) -> Tensor:
    """See `tables.encode_table`."""
    n, pairs = values.numel(), levels.size - 1
    out = values.new_empty(packed_bytes(n, bits), dtype=torch.uint8)
    table = there(np.concatenate((levels[:-1], np.diff(levels))), values.device)
    count_random(n, 16)
    # the loop counts pairs of levels, too, up to `COUNTED` of them, as many as it has room for
    launch(
        _encode, tiles(n), values.contiguous(), norms, table, out, int(key), n, out.numel(), size,
        pairs, COUNT=levels.size <= COUNTED, BITS=bits, GROUPS=GROUPS, INDEX=index_type(n),
    )  # fmt: skip
    return out


def add_table(
    out: Tensor,
    packed: Tensor,
    norms: Tensor,
    levels: Levels,
    *,
    size: int,
    bits: int,
    weight: float,
) -> None:
    """See `tables.add_table`."""
    n = out.numel()
    check_packed(packed, n, bits)
    table = there(levels, out.device)
    highest = out.new_zeros(max(1, tiles(n)), dtype=torch.int32)
    launch(
        _add, tiles(n), out, packed.contiguous(), norms, table, highest, n, packed.numel(), size,
        levels.size, float(np.float32(weight)), BITS=bits, GROUPS=GROUPS, INDEX=index_type(n),
    )  # fmt: skip
    if n and (most := int(highest.max())) >= levels.size:
        raise damaged(f"code {most} into a table of {levels.size} levels")


def rounding_error(values: Tensor, norms: Tensor, levels: Levels, *, size: int) -> float:
    """See `tables.rounding_error`."""
    exact = there(levels, values.device, np.float64)
    each = max(1, _TOGETHER // size)  # buckets
    total = norms.new_zeros((), dtype=torch.float64)
    for first in range(0, norms.numel(), each):
        part = values[first * size : (first + each) * size].double()
        norm = norms[first : first + each].double().repeat_interleave(size)[: part.numel()]
        share = torch.where(norm > 0, part / norm, 0.0)
        low = torch.searchsorted(exact, share, right=True).sub_(1).clamp_(0, levels.size - 2)
        error = ((share - exact[low]) * (exact[low + 1] - share)).clamp_(min=0.0)
        total += (norm * norm * error).sum()
    return float(total)


def bucket_sums(values: Tensor, size: int) -> Tensor:
    """See `adaptive_levels.bucket_sums`."""
    buckets = Buckets.of_one(values, size)
    return torch.stack([bucket_totals(values, buckets, what) for what in (PLAIN, SQUARES)], 1)


def _weighted(
    norms: list[Tensor], sums: list[Tensor], lengths: NDArray[np.float64], most: int | None
) -> Tensor:
    """See `adaptive_levels._weighted`."""
    norm = torch.cat(norms).double()
    rows = norm.new_zeros((min(most or 1, norm.numel()), 3))
    used = norm.isfinite() & (norm > 0)
    norm, length = norm[used], there(lengths, norm.device)[used]
    total, square = torch.cat(sums)[used].T
    mean = total / norm / length
    within = (square / norm**2 - length * mean**2).clamp_(min=0.0)
    if most is None:
        return torch.stack((length.sum(), (length * mean).sum(), within.sum()))[None]
    weight, largest = norm.sort(descending=True, stable=True)
    weight, largest = weight[: len(rows)], largest[: len(rows)]
    variance = within[largest] / (length[largest] - 1).clamp(min=1)
    found = torch.stack((weight, weight * mean[largest], weight * variance), 1)
    rows[: len(found)] = found
    return rows


# --- kernels --------------------------------------------------------------------------------------


@triton.jit(do_not_specialize=["key"])
def _encode(
    values, norms, table, out, key: tl.uint64, n, nbytes, size, pairs,
    COUNT: tl.constexpr, BITS: tl.constexpr, GROUPS: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    group, at = places(GROUPS, INDEX)
    v = tl.load(values + at, mask=at < n, other=0.0)
    norm = tl.load(norms + at // size, mask=at < n, other=1.0)
    norm = tl.where(norm == 0.0, 1.0, norm)
    # as in `levels._encode`: division takes subnormal numbers for zero, so both are made larger
    factor = tl.where(norm < 2.0**-60, 2.0**64, 1.0)
    share = tl.minimum(tl.maximum(tl.div_rn(v * factor, norm * factor), -1.0), 1.0)
    fraction = random16(key, group, GROUPS).to(tl.float32) * 2.0**-16 + 2.0**-17
    code = tl.zeros([GROUPS, 8], dtype=tl.int32)
    if COUNT:  # the pairs whose random point between two levels is below the share
        for pair in range(pairs):
            point = tl.load(table + pair) + fraction * tl.load(table + pairs + pair)
            code += (point < share).to(tl.int32)
    else:  # the last level that the share is not below, and its pair
        for pair in range(1, pairs):
            code += (tl.load(table + pair) <= share).to(tl.int32)
        point = tl.load(table + code) + fraction * tl.load(table + pairs + code)
        code += (point < share).to(tl.int32)
    store_codes(out, group, tl.where(at < n, code, 0), nbytes, BITS)


@triton.jit
def _add(
    out, packed, norms, table, highest, n, nbytes, size, count, weight,
    BITS: tl.constexpr, GROUPS: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    group, at = places(GROUPS, INDEX)
    code = load_codes(packed, group, nbytes, BITS)
    tl.store(highest + tl.program_id(0), tl.max(tl.max(code, axis=1), axis=0))
    level = tl.load(table + code, mask=(at < n) & (code < count), other=0.0)
    factor = weight * tl.load(norms + at // size, mask=at < n, other=0.0)
    total = tl.load(out + at, mask=at < n, other=0.0) + level * factor
    tl.store(out + at, total, mask=at < n)
