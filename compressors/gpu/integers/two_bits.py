"""Two bits an element: the kernels of `coding/integers/two_bits.py`."""

from __future__ import annotations

import numpy as np
import triton
import triton.language as tl

from gcsim.compressors.coding.integers import two_bits as loops
from gcsim.compressors.demands import when_known
from gcsim.compressors.gpu.parts import Parts, launch_parts, own_part, parts_of
from gcsim.compressors.gpu.words import GROUPS, load_codes, places_of, store_codes, tiles
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.on_device import kernel_of
from gcsim.compressors.segments import Column, Segments


@kernel_of(loops.two_bits)
def two_bits(
    memory: Tensor, gradient: Tensor, segments: Segments, tau: float, out: Tensor, at: Column
) -> None:
    """One launch."""
    parts = _parts(memory, segments, at)
    launch_parts(
        _code, parts, memory, gradient.contiguous(), out, float(np.float32(tau)), GROUPS=GROUPS,
        INDEX=parts.index,
    )  # fmt: skip


@kernel_of(loops.add_two_bits)
def add_two_bits(out: Tensor, segments: Segments, packed: Tensor, at: Column, level: float) -> None:
    """Padding is checked `when_known`."""
    parts = _parts(out, segments, at)
    wrong = out.new_zeros((max(1, parts.firsts[-1]), 2), dtype=torch.int32)
    launch_parts(
        _decode, parts, out, packed, wrong, float(np.float32(level)), GROUPS=GROUPS,
        INDEX=parts.index,
    )  # fmt: skip
    when_known(wrong.amax(0), loops.demand_codes)


def _parts(like: Tensor, segments: Segments, at: Column) -> Parts:
    elements = segments.length.tolist()
    programs = [tiles(n) for n in elements]
    return parts_of(like, elements, programs, segments.begin.tolist(), at.tolist())


# --- kernels --------------------------------------------------------------------------------------


@triton.jit
def _code(
    memory, gradient, out, tau, table, parts, GROUPS: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    column, number, n = own_part(table, parts)
    group, within = places_of(number, GROUPS, INDEX)
    here = within < n
    at = tl.load(column + 2 * parts) + within
    value = tl.load(memory + at, mask=here, other=0.0) + tl.load(
        gradient + at, mask=here, other=0.0
    )
    plus = (value >= tau) & here
    minus = (value <= -tau) & here
    tl.store(memory + at, value - tl.where(plus, tau, tl.where(minus, -tau, 0.0)), mask=here)
    code = tl.where(plus, 3, tl.where(minus, 2, 0))
    store_codes(out + tl.load(column + 3 * parts), group, code, (n + 3) // 4, 2)


@triton.jit
def _decode(
    out, packed, wrong, level, table, parts, GROUPS: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    column, number, n = own_part(table, parts)
    group, within = places_of(number, GROUPS, INDEX)
    here = within < n
    code = load_codes(packed + tl.load(column + 3 * parts), group, (n + 3) // 4, 2)
    slot = wrong + 2 * tl.program_id(0)
    tl.store(slot, tl.max(tl.max(tl.where(here, 0, code), axis=1), axis=0))
    unknown = here & (code == 1)
    tl.store(slot + 1, tl.max(tl.max(unknown.to(tl.int32), axis=1), axis=0))
    at = tl.load(column + 2 * parts) + within
    sign = (code & 1) * 2 - (code >> 1)
    total = tl.load(out + at, mask=here, other=0.0) + level * sign.to(tl.float32)
    tl.store(out + at, total, mask=here)
