"""Which elements are beyond doubt, and what words do they become, on a GPU? Variance-based methods.

Twins of `variance.py`, `variance_hybrid.py` and `words.py` in `sparsification/by_variance/`. One
kernel brings both memories on and flags what is clear; the few that are go through torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import triton
import triton.language as tl

from gcsim.compressors.gpu.indices.coded import ascending
from gcsim.compressors.gpu.parts import launch_parts, own_part, parts_of
from gcsim.compressors.gpu.reductions import MAGNITUDE, joined
from gcsim.compressors.gpu.words import BLOCK, blocks, float64, float64_bits, launch, there
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.sparsification.by_variance import words as by_hand
from gcsim.errors import InputError

_INDEX = by_hand.INDEX_LIMIT - 1
_SIGN = -(1 << 31)


def _add_and_find(
    r: Tensor, v: Tensor, gradient: Tensor, second_moment: Tensor, *, alpha: float, zeta: float
) -> tuple[Tensor, Tensor, float]:
    """See `variance._add_and_find`; the indices follow each other without gaps."""
    found, largest = find_parts(
        r, v, gradient, second_moment, [r.numel()], [0], alpha=alpha, zeta=zeta
    )
    return found, found.new_empty(0), float(largest.view(torch.float32))


def find_parts(
    r: Tensor, v: Tensor, gradient: Tensor, second_moment: Tensor, elements: Sequence[int],
    begins: Sequence[int], *, alpha: float, zeta: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """`_add_and_find` of many tensors, where each begins: places in all of them, int64; by tensor,
    the bits of the largest magnitude, int32."""
    parts = parts_of(r, elements, [blocks(n) for n in elements], begins)
    clear = r.new_zeros(r.numel(), dtype=torch.uint8)
    largest = r.new_empty(parts.firsts[-1], dtype=torch.int32)
    launch_parts(
        _find, parts, r, v, gradient.contiguous(), second_moment.contiguous(), clear, largest,
        float64_bits(alpha), float(np.float32(zeta)), BLOCK=BLOCK,
    )  # fmt: skip
    return clear.nonzero().view(-1), joined(largest, there(parts.firsts, r.device), MAGNITUDE)


def take_out(
    r: Tensor, v: Tensor, found: Tensor, counts: Tensor, *, cap: Any, drop: bool
) -> Tensor:  # fmt: skip
    """See `words.take_out`."""
    return words_of_powers(r, v, found, found, torch.full_like(found, int(cap)), drop=drop)[0]


def words_of_powers(
    r: Tensor, v: Tensor, found: Tensor, local: Tensor, cap: Tensor, *, drop: bool
) -> tuple[Tensor, Tensor]:
    """`take_out` of many tensors: places in all of them and within their own, and the cap of each,
    int64; (the words; which of the places they are of, bool)."""
    bits = r[found].view(torch.int32).long()
    rounded = (((bits & 0x7FFFFFFF) + 0x400000) & 0x7F800000).minimum(cap)
    depth = (cap - rounded) >> by_hand.MANTISSA_BITS
    fits = depth <= by_hand.DEEPEST
    gone = found if drop else found[fits]
    r[gone] = v[gone] = 0.0
    words = local | (depth << by_hand.DEPTH_BITS) | (bits & _SIGN)
    return words[fits].int(), fits


def _check_words(words: Tensor, exponent: int, n: int) -> None:
    """See `words._check_words`."""
    if not words.numel():
        return
    if not ascending(words.long() & _INDEX, n):
        raise InputError(f"damaged payload: indices do not ascend below {n}")
    deepest = int(((words >> by_hand.DEPTH_BITS) & by_hand.DEEPEST).max())
    if exponent - deepest + by_hand.BIAS < 1:
        raise InputError(f"damaged payload: 2^({exponent} - {deepest}) is no normal float32")


def _add_words(words: Tensor, exponent: int, out: Tensor, weight: float) -> None:
    """See `words._add_words`."""
    levels = there(by_hand.levels(exponent) * np.float32(weight), out.device)
    places = words.long() & _INDEX
    out[places] += levels[(words.long() >> by_hand.DEPTH_BITS) & 15]


def _add_and_send(
    r: Tensor, v: Tensor, gradient: Tensor, second_moment: Tensor, parameters: Any
) -> Tensor:
    """See `variance_hybrid._add_and_send`."""
    sent = send(r, v, gradient, second_moment, parameters)
    found = sent.nonzero().view(-1)
    return (found | ((sent[found] == 2).long() << 31)).int()


def send(r: Tensor, v: Tensor, gradient: Tensor, second_moment: Tensor, parameters: Any) -> Tensor:
    """The step of `_add_and_send`, of one tensor or of all; uint8 `[n]`, see `_send`."""
    n = r.numel()
    sent = r.new_empty(n, dtype=torch.uint8)
    launch(
        _send, blocks(n), r, v, gradient.contiguous(), second_moment.contiguous(), sent,
        float64_bits(parameters.alpha), float(np.float32(parameters.tau)),
        float(np.float32(parameters.zeta)), n, AFTER=parameters.correct_with == "after",
        BLOCK=BLOCK,
    )  # fmt: skip
    return sent


# --- kernels --------------------------------------------------------------------------------------


@triton.jit(do_not_specialize=["alpha"])
def _find(
    r, v, gradient, second_moment, clear, largest, alpha: tl.uint64, zeta, table, parts,
    LANES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    column, number, n = own_part(table, parts, LANES)
    within = number.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    here = within < n
    at = tl.load(column + 2 * parts) + within
    total = tl.load(r + at, mask=here, other=0.0) + tl.load(gradient + at, mask=here, other=0.0)
    second = tl.load(v + at, mask=here, other=0.0)
    second = second + tl.load(second_moment + at, mask=here, other=0.0)
    tl.store(r + at, total, mask=here)
    tl.store(v + at, zeta * second, mask=here)  # of a sent element: set to zero later
    wide = total.to(tl.float64)
    chosen = (wide * wide > float64(alpha) * second.to(tl.float64)) & here
    size = total.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    chosen = chosen & (size >= 0x00800000)  # 2^-126
    tl.store(clear + at, chosen.to(tl.uint8), mask=here)
    tl.store(largest + tl.program_id(0), tl.max(tl.where(chosen, size, 0), axis=0))


@triton.jit(do_not_specialize=["alpha"])
def _send(
    r, v, gradient, second_moment, sent, alpha: tl.uint64, tau, zeta, n,
    AFTER: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """2 where a negative sign is sent, 1 where another one, else 0."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    here = at < n
    total = tl.load(r + at, mask=here, other=0.0) + tl.load(gradient + at, mask=here, other=0.0)
    second = tl.load(v + at, mask=here, other=0.0)
    second = second + tl.load(second_moment + at, mask=here, other=0.0)
    size = tl.abs(total)
    wide = total.to(tl.float64)
    clear = here & (wide * wide > float64(alpha) * second.to(tl.float64)) & (size > tau)
    left = size
    if AFTER:
        left = size - tau
    corrected = second - (2.0 * left - tau) * tau
    positive = total > 0.0
    off = tl.where(clear, tau, 0.0)
    tl.store(r + at, total - tl.where(positive, off, -off), mask=here)
    tl.store(v + at, zeta * tl.maximum(tl.where(clear, corrected, second), 0.0), mask=here)
    tl.store(sent + at, tl.where(clear, tl.where(positive, 1, 2), 0).to(tl.uint8), mask=here)
