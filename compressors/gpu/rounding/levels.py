"""Random rounding to levels on a GPU: the kernels of `coding/rounding/levels.py`.

Values, norms and random bits become packed codes in one kernel, as in the loop's one pass.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import triton
import triton.language as tl
from numpy.typing import NDArray

from gcsim.compressors.coding.rounding import levels as loops
from gcsim.compressors.coding.rounding.levels import Norm
from gcsim.compressors.demands import when_known
from gcsim.compressors.gpu.parts import Parts, launch_parts, own_part, parts_of
from gcsim.compressors.gpu.scans import MAGNITUDE, SQUARES, bucket_totals
from gcsim.compressors.gpu.words import (
    GROUPS,
    load_codes,
    places_of,
    random16,
    store_codes,
    tiles,
)
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.loops import FLOAT32_MAX
from gcsim.compressors.on_device import kernel_of
from gcsim.compressors.segments import Cells, Column


@kernel_of(loops.cell_norms)
def cell_norms(values: Tensor, cells: Cells, norm: Norm) -> Tensor:
    """Euclidean norms may differ as `reductions.py` says."""
    if norm == "max":
        return bucket_totals(values, cells, MAGNITUDE).view(torch.float32)
    root = bucket_totals(values, cells, SQUARES).sqrt()
    return torch.where(root.isfinite(), root.clamp(max=FLOAT32_MAX), root).float()


@kernel_of(loops.round_levels)
def round_levels(
    values: Tensor, cells: Cells, norms: Tensor, keys: NDArray[np.uint64], out: Tensor, at: Column,
    *, steps: int, bits: int, bounds: NDArray[np.float32] | None = None,
) -> None:  # fmt: skip
    """Products and sums are not fused."""
    if bounds is None:
        bounds = np.full(len(keys), np.inf, dtype=np.float32)
    parts = parts_of_cells(values, cells, at, keys, bounds.view(np.uint32))
    launch_parts(
        _encode, parts, values.contiguous(), norms, out, float(steps), BITS=bits, GROUPS=GROUPS,
        INDEX=parts.index,
    )  # fmt: skip


@kernel_of(loops.add_coded_levels)
def add_coded_levels(
    out: Tensor, cells: Cells, norms: Tensor, packed: Tensor, at: Column,
    *, steps: int, bits: int, weight: float,
) -> None:  # fmt: skip
    """The largest code is checked `when_known`."""
    parts = parts_of_cells(out, cells, at)
    highest = out.new_zeros(max(1, parts.firsts[-1]), dtype=torch.int32)
    launch_parts(
        _add, parts, out, packed.contiguous(), norms, highest, float(steps),
        float(np.float32(weight / steps)), STRAY=loops.STRAY, BITS=bits, GROUPS=GROUPS,
        INDEX=parts.index,
    )  # fmt: skip
    when_known(highest.max(), partial(loops.demand_levels, steps=steps))


def parts_of_cells(like: Tensor, cells: Cells, at: Column, *columns: Any) -> Parts:
    """Parts in tiles of groups, with begins, first norms, places, cells' sizes, and more."""
    elements = cells.segments.length.tolist()
    known = [each.tolist() for each in (cells.segments.begin, cells.first, at, cells.size)]
    return parts_of(like, elements, [tiles(n) for n in elements], *known, *columns)


# --- kernels --------------------------------------------------------------------------------------


@triton.jit
def _encode(
    values, norms, out, steps, table, parts, BITS: tl.constexpr, GROUPS: tl.constexpr,
    INDEX: tl.constexpr,
):  # fmt: skip
    column, number, n = own_part(table, parts)
    group, at = places_of(number, GROUPS, INDEX)
    here = at < n
    size = tl.load(column + 5 * parts).to(INDEX)
    key = tl.load(column + 6 * parts).to(tl.uint64, bitcast=True)
    bound = tl.load(column + 7 * parts).to(tl.int32).to(tl.float32, bitcast=True)
    v = tl.load(values + tl.load(column + 2 * parts) + at, mask=here, other=0.0)
    norm = tl.load(norms + tl.load(column + 3 * parts) + at // size, mask=here, other=1.0)
    norm = tl.where(norm == 0.0, 1.0, norm)
    # `div_rn` takes subnormal operands for zero (div.rn.ftz): both are first made larger, exactly.
    # An element so small beside a larger norm could not move a fraction of at least 2^-17. `floor`
    # flushes too, but a sum with such a fraction is zero or far from subnormal.
    factor = tl.where(norm < 2.0**-60, 2.0**64, 1.0)
    share = tl.div_rn(tl.minimum(tl.maximum(v, -bound), bound) * factor, norm * factor)
    level = tl.minimum(tl.maximum(share, -1.0), 1.0) * steps  # -s … s
    # up with the probability of the rest: the fraction is uniform on 2^-17, 3 2^-17, …
    fraction = random16(key, group, GROUPS).to(tl.float32) * 2.0**-16 + 2.0**-17
    code = (tl.floor(level + fraction) + steps).to(tl.int32)
    place = out + tl.load(column + 4 * parts)
    store_codes(place, group, tl.where(here, code, 0), (n * BITS + 7) // 8, BITS)


@triton.jit
def _add(
    out, packed, norms, highest, steps, weight, table, parts,
    STRAY: tl.constexpr, BITS: tl.constexpr, GROUPS: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    column, number, n = own_part(table, parts)
    group, at = places_of(number, GROUPS, INDEX)
    here = at < n
    size = tl.load(column + 5 * parts).to(INDEX)
    code = load_codes(packed + tl.load(column + 4 * parts), group, (n * BITS + 7) // 8, BITS)
    seen = tl.where(here, code, tl.where(code != 0, STRAY, 0))
    tl.store(highest + tl.program_id(0), tl.max(tl.max(seen, axis=1), axis=0))
    norm = tl.load(norms + tl.load(column + 3 * parts) + at // size, mask=here, other=0.0)
    target = out + tl.load(column + 2 * parts) + at
    total = tl.load(target, mask=here, other=0.0) + (code.to(tl.float32) - steps) * (weight * norm)
    tl.store(target, total, mask=here)
