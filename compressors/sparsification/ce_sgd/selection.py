"""Which elements of a tensor does a CE-SGD worker send next? Selection, rewards and speculation.

One pass rewards or draws V, ages everybody and notes, of each block, what lies outside of V, and
whether V has changed:
elements unsent for too long, the lowest M of the others, and how many have it. These numbers
divide the speculative elements among the blocks (a multivariate hypergeometric draw, so that every
set of ties is as likely), and each block then finds its share by trying places. When fewer
elements have the lowest M than are wanted, a selection among all finds the level.

See `ce_sgd.py` for the method and its source.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcsim.compressors.coding.floats.narrow_floats import largest_magnitude
from gcsim.compressors.coding.indices.bitmap import BLOCK
from gcsim.compressors.coding.integers.packing import fold_bits, packed_bytes
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.loops import array, in_parallel, loop, total_of, written_back
from gcsim.compressors.meter import count_random, kernel
from gcsim.compressors.on_device import on_device
from gcsim.compressors.random import bits64
from gcsim.compressors.sparsification.ce_sgd.speculation import (
    AGED,
    NEVER,
    Plan,
    find,
    level_of,
)

Counts = NDArray[np.int64]

REWARD, KEEP, DRAW = range(3)
_NOTHING = np.zeros(0, dtype=np.float32)


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """Of each block: int64 `[ceil(n / BLOCK)]`."""

    chosen: Counts
    """Elements in V."""
    aged: Counts
    """Elements outside of V that were not sent for too long."""
    lowest: Counts
    """The smallest M of the other elements outside of V."""
    ties: Counts
    """How many have it."""
    changed: Counts
    """Whether V is not what it was: 0 or 1."""


class Selection:
    """One tensor's state on one worker."""

    def __init__(self, like: Tensor, unsent_limit: int) -> None:
        n = like.numel()
        self.unsent_limit = unsent_limit
        self.chosen = like.new_zeros(packed_bytes(n, 1), dtype=torch.uint8)
        """V: one bit an element, `[ceil(n / 8)]`."""
        self.rewards = torch.zeros_like(like, dtype=torch.int32)
        """M `[n]`."""
        self.age = torch.zeros_like(like, dtype=torch.uint8)
        """0: in V, or speculative at the last step; else steps unsent, up to 255. `[n]`"""
        self.starts: Counts = np.zeros(1 + -(-n // BLOCK), dtype=np.int64)
        """See `bit_starts`, of V."""
        self.near = torch.zeros_like(self.chosen)
        """One bit an element: outside of V, and of its block's lowest M."""
        self.begun = False

    def renew(
        self, values: Tensor, improved: bool | None, wanted: int, key: np.uint64,
        draws: Callable[[], np.random.Generator],
    ) -> tuple[bool, Tensor]:  # fmt: skip
        """Reward V when the last step improved, else draw another by `values`; V stays for None.

        `values` are what V selects from, float32 `[n]`; `draws` makes a generator where one is
        needed. Returns (whether V differs from the last one, or is the first, speculative indices:
        int32 ascending, as many as wanted or as are outside of V).
        """
        first, mode = self.begin(improved)
        weights, highest = (values, largest_magnitude(values)) if mode == DRAW else (None, 0.0)
        settings = mode, highest, self.unsent_limit
        counts = _choose(self.chosen, self.rewards, self.age, self.near, weights, settings, key)
        found = Found(*counts)
        self.starts[1:] = found.chosen.cumsum()
        plan = self.plan(found, wanted, draws)
        return first or bool(found.changed.any()), self._speculate(plan, key)

    def begin(self, improved: bool | None) -> tuple[bool, int]:
        """A step: (whether it is the first one, what is done with V)."""
        first, self.begun = not self.begun, True
        return first, DRAW if first or improved is False else REWARD if improved else KEEP

    def plan(self, found: Found, wanted: int, draws: Callable[[], np.random.Generator]) -> Plan:
        wanted = min(wanted, self.age.numel() - int(self.starts[-1]))
        lowest = min(found.lowest.tolist(), default=int(NEVER))
        at_lowest = np.where(found.lowest == lowest, found.ties, 0)
        aged = int(total_of(found.aged))
        if aged >= wanted:
            level, below, ties = AGED, np.zeros_like(found.aged), found.aged
        elif aged + int(total_of(at_lowest)) >= wanted:
            level, below, ties = lowest, found.aged, at_lowest
        else:
            level, below, ties = level_of(self.rewards, self.age, self.unsent_limit, wanted)
        marked = ties is at_lowest
        missing = wanted - int(total_of(below))
        drawn = np.zeros_like(below)
        if ties.size == 1:
            drawn[0] = missing
        elif missing:
            drawn = draws().multivariate_hypergeometric(ties, missing, method="marginals")
        return Plan(level=level, below=below, ties=ties, drawn=drawn, marked=marked)

    def _speculate(self, plan: Plan, key: np.uint64) -> Tensor:
        sizes = plan.below + plan.drawn
        device = self.age.device
        indices = torch.empty(int(total_of(sizes)), dtype=torch.int32, device=device)
        if indices.numel():
            state = self.rewards, self.age, self.near
            find(indices, state, plan, (key, self.unsent_limit))
        return indices


# --- one pass over everybody -------------------------------------------------------------------


@kernel("streaming", updates=("chosen", "rewards", "age", "near"), name="ce_sgd_selection._choose")
@on_device("methods.speculation")
def _choose(
    chosen: Tensor, rewards: Tensor, age: Tensor, near: Tensor, weights: Tensor | None,
    settings: tuple[int, float, int], key: np.uint64,
) -> NDArray[np.int64]:  # fmt: skip
    """A step of V, M and the ages, in place; five numbers a block: see `Found`."""
    n = rewards.numel()
    mode, highest, limit = settings
    if mode == DRAW:
        count_random(n, 16)
    counts = np.zeros((5, -(-n // BLOCK)), dtype=np.int64)
    with (
        written_back(chosen) as bits,
        written_back(rewards) as m,
        written_back(age) as ages,
        written_back(near) as lowest,
    ):
        in_parallel(
            choose_blocks, n, mode, bits, m, ages, lowest, _NOTHING if weights is None else
            np.ascontiguousarray(array(weights)), key, np.float64(highest), np.uint8(limit),
            counts, grain=BLOCK,
        )  # fmt: skip
    return counts


@loop
def choose_blocks(
    start: int, stop: int, mode: int, selection: Any, rewards: Any, ages: Any, nears: Any,
    weights: Any, key: Any, highest: Any, limit: Any, counts: Any,
) -> None:  # fmt: skip
    """The loop of `_choose`."""
    chosen = np.zeros(BLOCK, dtype=np.uint8)
    words = np.empty(BLOCK // 4, dtype=np.uint64)
    before = np.empty(BLOCK // 8, dtype=np.uint8)
    for first in range(start, stop, BLOCK):
        block = first // BLOCK
        last = min(first + BLOCK, stop)
        m, age = rewards[first:last], ages[first:last]
        bits = selection[first // 8 : (last + 7) // 8]
        if mode == DRAW:
            for j in range((m.size + 3) // 4):
                words[j] = bits64(key, first // 4 + j)
            _draw(words.view(np.uint16), weights[first:last], highest, chosen)
            before[: bits.size] = bits
            fold_bits(chosen.view(np.uint64), bits)
            for b in range(bits.size):
                if bits[b] != before[b]:
                    counts[4, block] = 1
        else:
            for b in range(bits.size):
                for j in range(8):
                    chosen[8 * b + j] = (bits[b] >> np.uint8(j)) & np.uint8(1)
        if mode == REWARD:
            for i in range(m.size):
                m[i] += np.int32(chosen[i])
        _look_outside(chosen, m, age, limit, counts[:, block])
        fold_bits(chosen.view(np.uint64), nears[first // 8 : (last + 7) // 8])


@loop
def _draw(random: Any, weights: Any, highest: Any, chosen: Any) -> None:
    """1 with probability |weight| / highest; zeros behind the last one."""
    chosen[weights.size :] = 0
    scale = highest / 65536.0
    for i in range(weights.size):  # r / 65536 < |weight| / highest: float32 in float64, exact
        chosen[i] = np.float64(random[i]) * scale < abs(np.float64(weights[i]))


@loop
def _look_outside(chosen: Any, m: Any, age: Any, limit: Any, numbers: Any) -> None:
    """Everybody outside of V becomes a step older; the first four of the block's numbers.

    `chosen` is V; afterwards it marks what is outside of V and has the lowest M.
    """
    free = np.empty(BLOCK, dtype=np.int32)
    held = np.int32(0)
    aged = np.int32(0)
    lowest = NEVER
    for i in range(m.size):
        inside = chosen[i] != 0
        late = (not inside) & (age[i] >= limit)
        older = age[i] + np.uint8(age[i] < np.uint8(255))
        age[i] = np.uint8(0) if inside else older
        held += np.int32(inside)
        aged += np.int32(late)
        free[i] = NEVER if inside | late else m[i]
        lowest = min(lowest, free[i])
    ties = np.int32(0)
    chosen[m.size :] = 0
    for i in range(m.size):
        chosen[i] = free[i] == lowest
        ties += np.int32(chosen[i])
    numbers[0] = held
    numbers[1] = aged
    numbers[2] = lowest
    numbers[3] = ties if lowest < NEVER else np.int32(0)
