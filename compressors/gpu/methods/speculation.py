"""Which elements does a CE-SGD worker send next, chosen on a GPU?

Twins of `sparsification/ce_sgd/selection.py` and `speculation.py`, by torch's operators, and by a
kernel where a block tries random places until it has found its share. A few numbers a block of
16,384 elements come to the host, which shares the speculative elements out among blocks.
"""

from __future__ import annotations

import numpy as np
import triton
import triton.language as tl
from numpy.typing import NDArray

from gcsim.compressors.coding.indices.bitmap import BLOCK
from gcsim.compressors.gpu.indices.bitmaps import by_block
from gcsim.compressors.gpu.integers.packing import packed_codes, unpacked
from gcsim.compressors.gpu.words import bits64, bits64_of, launch, there
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.meter import count_random
from gcsim.compressors.sparsification.ce_sgd.selection import DRAW, REWARD
from gcsim.compressors.sparsification.ce_sgd.speculation import AGED, NEVER, Plan

_TRIES = 128
"""Places that are tried together: what is found does not depend on it."""


def inner_product(a: Tensor, b: Tensor) -> float:
    """See `ce_sgd.inner_product`."""
    return float((a.double() * b.double()).sum())


def _choose(
    chosen: Tensor, rewards: Tensor, age: Tensor, near: Tensor, weights: Tensor | None,
    settings: tuple[int, float, int], key: np.uint64,
) -> NDArray[np.int64]:  # fmt: skip
    """See `selection._choose`."""
    n = rewards.numel()
    mode, highest, limit = settings
    blocks = -(-n // BLOCK)
    changed = torch.zeros(blocks, dtype=torch.bool, device=rewards.device)
    if mode == DRAW and weights is not None:
        count_random(n, 16)
        words = bits64_of(key, torch.arange(-(-n // 4), device=rewards.device))
        lanes = torch.arange(0, 64, 16, device=rewards.device)
        random = ((words[:, None] >> lanes) & 0xFFFF).view(-1)[:n]
        inside = random * (highest / 65536.0) < weights.double().abs()
        bits = packed_codes(inside.to(torch.uint8), 1)[0]
        bytewise = torch.cat((bits != chosen, changed.new_zeros(-len(bits) % (BLOCK // 8))))
        changed = bytewise.view(-1, BLOCK // 8).any(1)
        chosen.copy_(bits)
    else:
        inside = unpacked(chosen, n, 1, torch.uint8) != 0
    if mode == REWARD:
        rewards.add_(inside)
    late = ~inside & (age >= limit)
    age.add_(age < 255).mul_(~inside)
    free = rewards.masked_fill(inside | late, int(NEVER))
    lowest = by_block(free, int(NEVER)).amin(1)
    nearest = by_block(free, int(NEVER)) == lowest[:, None]
    nearest = nearest.view(-1)[:n]
    near.copy_(packed_codes(nearest.to(torch.uint8), 1)[0])
    ties = by_block(nearest).sum(1) * (lowest < int(NEVER))
    held, aged = by_block(inside).sum(1), by_block(late).sum(1)
    found = torch.stack((held, aged, lowest.long(), ties, changed.long()))
    counts: NDArray[np.int64] = found.cpu().numpy()
    return counts


def level_of(
    rewards: Tensor, age: Tensor, limit: int, wanted: int
) -> tuple[int, NDArray[np.int64], NDArray[np.int64]]:
    """See `speculation.level_of`."""
    levels = _levels(rewards, age, limit)
    level = int(levels.kthvalue(wanted).values)
    rows = [by_block(which).sum(1) for which in (levels < level, levels == level)]
    below, ties = torch.stack(rows).cpu().numpy()
    return level, below, ties


def find(
    indices: Tensor, state: tuple[Tensor, Tensor, Tensor], plan: Plan, draw: tuple[np.uint64, int]
) -> None:
    """See `speculation.find`."""
    rewards, age, _ = state
    key, limit = draw
    n = age.numel()
    levels = _levels(rewards, age, limit)
    ties = (levels == plan.level).to(torch.uint8)
    most = 2 * plan.drawn > plan.ties  # of these blocks, all ties less some
    changes = np.where(most, plan.ties - plan.drawn, plan.drawn)
    table = there((changes, most), age.device, np.int64)
    marks = table[1].to(torch.uint8).repeat_interleave(BLOCK)[:n] * ties
    marks |= levels < plan.level
    launch(
        _change, len(changes), marks, ties, table, int(~key), n, len(changes), BLOCK=BLOCK,
        TRIES=_TRIES,
    )  # fmt: skip
    places = marks.nonzero().view(-1)
    indices.copy_(places)
    age[places] = 0


def _levels(rewards: Tensor, age: Tensor, limit: int) -> Tensor:
    """See `speculation._level`: int32 `[n]`."""
    return rewards.masked_fill(age > limit, AGED).masked_fill_(age == 0, int(NEVER))


# --- kernels --------------------------------------------------------------------------------------


@triton.jit(do_not_specialize=["key"])
def _change(
    marks, ties, table, key: tl.uint64, n, blocks, BLOCK: tl.constexpr, TRIES: tl.constexpr
):
    """Turn as many random ties of a block to the opposite, the first ones that are met.

    What one thread stores another one may load: hence the barrier.
    """
    key = tl.cast(key, tl.uint64)
    block = tl.program_id(0).to(tl.int64)
    first = block * BLOCK
    size = tl.minimum(n - first, BLOCK).to(tl.uint64)
    left = tl.load(table + block)
    most = tl.load(table + blocks + block).to(tl.uint8)
    number = block << 40
    lane = tl.arange(0, TRIES)
    before = lane[None, :] < lane[:, None]
    while left > 0:
        drawn = bits64(key, number + lane) >> 32
        place = ((drawn * size) >> 32).to(tl.int64)
        fits = tl.load(ties + first + place) != 0
        fits = fits & (tl.load(marks + first + place) == most)
        again = (place[:, None] == place[None, :]) & before
        fits = fits & (tl.sum(again.to(tl.int32), axis=1) == 0)
        taken = fits & (tl.cumsum(fits.to(tl.int32), axis=0) <= left)
        tl.debug_barrier()
        tl.store(marks + first + place, tl.zeros([TRIES], dtype=tl.uint8) + (1 - most), mask=taken)
        tl.debug_barrier()
        left -= tl.sum(taken.to(tl.int64), axis=0)
        number += TRIES
