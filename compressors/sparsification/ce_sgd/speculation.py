"""Which elements outside of V travel as speculative ones, once their level and numbers are known?

All below a level of M, and a random subset of those at it: each block of elements finds its share,
a uniformly random one, by trying places. See `selection.py` for how the numbers come about.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcsim.compressors.coding.indices.bitmap import BLOCK
from gcsim.compressors.lazy_torch import Tensor
from gcsim.compressors.loops import array, in_parallel, loop, written_back
from gcsim.compressors.meter import kernel
from gcsim.compressors.on_device import on_device
from gcsim.compressors.random import bits64

Counts = NDArray[np.int64]

NEVER = np.int32(2**31 - 1)
"""The level of elements in V: after all values of M."""
AGED = -1
"""The level of elements unsent for too long: before all values of M."""
_TRIES = 64
"""Places that are tried together, so that their memory is fetched together."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Plan:
    """Which elements outside of V travel: all below a level of M, and some at it."""

    level: int
    below: Counts
    """Elements below the level, by block."""
    ties: Counts
    """Elements at the level, by block."""
    drawn: Counts
    """How many of these travel, by block."""
    marked: bool
    """Whether the pass over everybody has marked the ties: one bit an element."""


@kernel("selection", name="ce_sgd_speculation.level_of")
@on_device("methods.speculation")
def level_of(rewards: Tensor, age: Tensor, limit: int, wanted: int) -> tuple[int, Counts, Counts]:
    """The level of the wanted-th element outside of V: (level, numbers below, numbers at it).

    The slow way, for when fewer than wanted have the lowest M: about 3 n words of memory.
    """
    ages = array(age)
    levels = np.where(ages > limit, np.int32(AGED), array(rewards))
    levels[ages == 0] = NEVER
    level = int(np.partition(levels, wanted - 1)[wanted - 1])
    firsts = np.arange(0, levels.size, BLOCK)
    below = np.add.reduceat(levels < level, firsts, dtype=np.int64)
    return level, below, np.add.reduceat(levels == level, firsts, dtype=np.int64)


@kernel("gather_scatter", resident=("state",), name="ce_sgd_speculation.find")
@on_device("methods.speculation")
def find(
    indices: Tensor, state: tuple[Tensor, Tensor, Tensor], plan: Plan, draw: tuple[np.uint64, int]
) -> None:
    """Write the plan's elements and set their age to 0; of M, ages and marks little is touched."""
    sizes = plan.below + plan.drawn
    key, limit = draw
    rewards, age, near = state
    with written_back(age) as ages, written_back(indices) as found:
        in_parallel(
            find_blocks, ages.size, array(rewards), ages, array(near), plan.marked,
            np.int64(plan.level), np.uint8(limit), plan.below, plan.ties, plan.drawn,
            np.cumsum(sizes) - sizes, ~key, found, grain=BLOCK,
        )  # fmt: skip


@loop
def _level(age: Any, reward: Any, limit: Any) -> Any:
    """Of an element outside of V; of another one, after all levels."""
    level = np.int64(AGED) if age > limit else np.int64(reward)
    return level if age > 0 else np.int64(NEVER)


@loop
def find_blocks(
    start: int, stop: int, rewards: Any, ages: Any, nears: Any, marked: bool, level: Any,
    limit: Any, below: Any, ties: Any, drawn: Any, starts: Any, key: Any, indices: Any,
) -> None:  # fmt: skip
    """Each block's share; a random subset of the ties by trying places until there are enough.

    A subset of more than half of the ties is all of them less some: at most .7 tries an element.
    """
    marks = np.zeros(BLOCK, dtype=np.uint8)
    eights = marks.view(np.uint64)
    for first in range(start, stop, BLOCK):
        block = first // BLOCK
        last = min(first + BLOCK, stop)
        m, age = rewards[first:last], ages[first:last]
        most = 2 * drawn[block] > ties[block]
        if below[block] > 0 or most:
            for i in range(m.size):
                found = _level(age[i], m[i], limit)
                marks[i] = (found < level) | (most & (found == level))
        changes = ties[block] - drawn[block] if most else drawn[block]
        tie, near = (marked, level, limit), nears[first // 8 :]
        _change_marks(marks, most, changes, m, age, near, tie, key, block << 40)
        at = starts[block]
        for j in range((m.size + 7) // 8):
            if eights[j]:
                for i in range(8 * j, 8 * j + 8):
                    if marks[i]:
                        indices[at] = first + i
                        age[i] = 0
                        at += 1
                eights[j] = 0


@loop
def _change_marks(
    marks: Any, most: Any, changes: Any, m: Any, age: Any, near: Any, tie: Any, key: Any,
    number: Any,
) -> None:  # fmt: skip
    """Turn as many random ties from `most` to the opposite: a uniformly random subset.

    `tie` says what a tie is: (whether `near` has a bit for each, else their level, age limit).
    """
    marked, level, limit = tie
    places = np.empty(_TRIES, dtype=np.int64)
    fits = np.empty(_TRIES, dtype=np.bool_)
    while changes > 0:
        for j in range(_TRIES):
            hashed = bits64(key, number + j) >> np.uint64(32)
            places[j] = (hashed * np.uint64(m.size)) >> np.uint64(32)
        for j in range(_TRIES):
            if marked:  # one bit to look at instead of five bytes
                fits[j] = (near[places[j] >> 3] >> np.uint8(places[j] & 7)) & np.uint8(1)
            else:
                fits[j] = _level(age[places[j]], m[places[j]], limit) == level
        for j in range(_TRIES):
            if fits[j] and changes > 0 and (marks[places[j]] != 0) == most:
                marks[places[j]] = not most
                changes -= 1
        number += _TRIES
