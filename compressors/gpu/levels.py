"""How is a vector rounded at random to levels on a GPU? Twins of `coding/rounding/levels.py`.

Values, norms and random bits become packed codes in one kernel, as in the loop's one pass.
"""

from __future__ import annotations

import numpy as np
import triton
import triton.language as tl

from gcsim.compressors.coding.integers.packing import check_packed, damaged, packed_bytes
from gcsim.compressors.coding.rounding.levels import Norm
from gcsim.compressors.gpu.reductions import MAGNITUDE, SQUARES, bucket_totals
from gcsim.compressors.gpu.words import (
    GROUPS,
    index_type,
    launch,
    load_codes,
    places,
    random16,
    store_codes,
    tiles,
)
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.meter import count_random

LARGEST = float(np.finfo(np.float32).max)


def bucket_norms(values: Tensor, size: int, norm: Norm) -> Tensor:
    """See `levels.bucket_norms`; Euclidean norms may differ as `reductions.py` says."""
    if norm == "max":
        return bucket_totals(values, size, MAGNITUDE).view(torch.float32)
    root = bucket_totals(values, size, SQUARES).sqrt()
    return torch.where(root.isfinite(), root.clamp(max=LARGEST), root).float()


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
    count_random(n, 16)
    launch(
        _encode, tiles(n), values.contiguous(), norms, out, int(key), n, out.numel(), size,
        float(steps), float(np.float32(bound)), BITS=bits, GROUPS=GROUPS, INDEX=index_type(n),
    )  # fmt: skip
    return out


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
    check_packed(packed, n, bits)
    highest = out.new_zeros(max(1, tiles(n)), dtype=torch.int32)
    launch(
        _add, tiles(n), out, packed.contiguous(), norms, highest, n, packed.numel(), size,
        float(steps), float(np.float32(weight / steps)),
        BITS=bits, GROUPS=GROUPS, INDEX=index_type(n),
    )  # fmt: skip
    if (most := int(highest.max())) > 2 * steps:
        raise damaged(f"code {most} where levels end at {2 * steps}")


# --- kernels --------------------------------------------------------------------------------------


@triton.jit(do_not_specialize=["key"])
def _encode(
    values, norms, out, key: tl.uint64, n, nbytes, size, steps,
    bound, BITS: tl.constexpr, GROUPS: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    group, at = places(GROUPS, INDEX)
    v = tl.load(values + at, mask=at < n, other=0.0)
    norm = tl.load(norms + at // size, mask=at < n, other=1.0)
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
    store_codes(out, group, tl.where(at < n, code, 0), nbytes, BITS)


@triton.jit
def _add(
    out, packed, norms, highest, n, nbytes, size, steps,
    weight, BITS: tl.constexpr, GROUPS: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    group, at = places(GROUPS, INDEX)
    code = load_codes(packed, group, nbytes, BITS)
    tl.store(highest + tl.program_id(0), tl.max(tl.max(code, axis=1), axis=0))
    factor = weight * tl.load(norms + at // size, mask=at < n, other=0.0)
    total = tl.load(out + at, mask=at < n, other=0.0) + (code.to(tl.float32) - steps) * factor
    tl.store(out + at, total, mask=at < n)
