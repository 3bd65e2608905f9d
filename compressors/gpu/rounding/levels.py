"""How is a vector rounded at random to levels on a GPU? Twins of `coding/rounding/levels.py`.

Values, norms and random bits become packed codes in one kernel, as in the loop's one pass.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import triton
import triton.language as tl

from gcsim.compressors.coding.integers.packing import damaged, packed_bytes
from gcsim.compressors.coding.rounding.levels import Norm
from gcsim.compressors.gpu.parts import launch_parts, own_part, parts_of
from gcsim.compressors.gpu.reductions import MAGNITUDE, SQUARES, Buckets, bucket_totals
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
from gcsim.compressors.meter import count_random

_STRAY = 256
"""In the place of a code: bits are set behind the last."""


def bucket_norms(values: Tensor, size: int, norm: Norm) -> Tensor:
    """See `levels.bucket_norms`; Euclidean norms may differ as `reductions.py` says."""
    return norms_of(values, Buckets.of_one(values, size), norm)


def norms_of(values: Tensor, buckets: Buckets, norm: Norm) -> Tensor:
    """`bucket_norms` of many tensors, one behind the other: float32 `[buckets of all]`."""
    if norm == "max":
        return bucket_totals(values, buckets, MAGNITUDE).view(torch.float32)
    root = bucket_totals(values, buckets, SQUARES).sqrt()
    return torch.where(root.isfinite(), root.clamp(max=FLOAT32_MAX), root).float()


def encode_levels(
    values: Tensor,
    norms: Tensor,
    key: np.uint64,
    *,
    size: int,
    steps: int,
    bits: int,
    bound: float = float("inf"),
) -> Tensor:
    """See `levels.encode_levels`."""
    n = values.numel()
    out = values.new_empty(packed_bytes(n, bits), dtype=torch.uint8)
    encode_parts(
        values.contiguous(), norms, out, [n], [0], [0], [0],
        sizes=[size], keys=[key], bounds=[bound], steps=steps, bits=bits,
    )  # fmt: skip
    return out


def encode_parts(
    values: Tensor, norms: Tensor, out: Tensor, elements: Sequence[int], begins: Sequence[int],
    norm_begins: Sequence[int], places: Sequence[int], *, sizes: Sequence[int],
    keys: Sequence[np.uint64], bounds: Sequence[float], steps: int, bits: int,
) -> None:  # fmt: skip
    """`encode_levels` of many tensors: where each and its norms begin, where its bytes go."""
    count_random(sum(elements), 16)
    words = np.array(bounds, dtype=np.float32).view(np.uint32).tolist()
    parts = parts_of(
        values, elements, [tiles(n) for n in elements], begins, norm_begins, places, sizes,
        [int(key) for key in keys], words,
    )  # fmt: skip
    launch_parts(
        _encode, parts, values, norms, out, float(steps), BITS=bits, GROUPS=GROUPS,
        INDEX=parts.index,
    )  # fmt: skip


def add_packed_levels(
    out: Tensor,
    packed: Tensor,
    norms: Tensor,
    *,
    size: int,
    steps: int,
    bits: int,
    weight: float,
) -> None:
    """See `levels.add_packed_levels`."""
    n = out.numel()
    expected = packed_bytes(n, bits)
    if packed.numel() != expected:
        raise damaged(f"{packed.numel()} bytes for {n} codes of {bits} bits, not {expected}")
    most = add_parts(
        out, packed.contiguous(), norms, [n], [0], [0], [0], sizes=[size], steps=steps, bits=bits,
        weight=weight,
    )  # fmt: skip
    if most >= _STRAY:
        raise damaged("padding after the last code is not zero")
    if most > 2 * steps:
        raise damaged(f"code {most} where levels end at {2 * steps}")


def add_parts(
    out: Tensor, packed: Tensor, norms: Tensor, elements: Sequence[int], begins: Sequence[int],
    norm_begins: Sequence[int], places: Sequence[int], *, sizes: Sequence[int], steps: int,
    bits: int, weight: float,
) -> int:  # fmt: skip
    """`add_packed_levels` of many tensors: where each, its norms and its bytes begin.

    Returns the largest code, 256 or more where bits are set behind a tensor's last: one wait.
    """
    parts = parts_of(
        out, elements, [tiles(n) for n in elements], begins, norm_begins, places, sizes
    )
    highest = out.new_zeros(max(1, parts.firsts[-1]), dtype=torch.int32)
    launch_parts(
        _add, parts, out, packed, norms, highest, float(steps), float(np.float32(weight / steps)),
        STRAY=_STRAY, BITS=bits, GROUPS=GROUPS, INDEX=parts.index,
    )  # fmt: skip
    return int(highest.max())


# --- kernels --------------------------------------------------------------------------------------


@triton.jit
def _encode(
    values, norms, out, steps, table, parts,
    LANES: tl.constexpr, BITS: tl.constexpr, GROUPS: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    column, number, n = own_part(table, parts, LANES)
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
    out, packed, norms, highest, steps, weight, table, parts, LANES: tl.constexpr,
    STRAY: tl.constexpr, BITS: tl.constexpr, GROUPS: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    column, number, n = own_part(table, parts, LANES)
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
