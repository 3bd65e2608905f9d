"""Elements that a CE-SGD worker sends next: selection, rewards and speculation.

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
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcsim.compressors.coding.indices.bitmap import BLOCK, bits_each, bytes_of, places
from gcsim.compressors.coding.integers.packing import fold_bits
from gcsim.compressors.coding.rounding.norms import cell_norms
from gcsim.compressors.kernels import KernelCost, spread
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.loops import array, in_tiles, loop
from gcsim.compressors.meter import counted_as, drawn, kernel, launch
from gcsim.compressors.random import bits64
from gcsim.compressors.segments import Column, Segments, starts

REWARD, KEEP, DRAW = range(3)
NEVER = np.int32(2**31 - 1)
"""The level of elements in V: after all values of M."""
AGED = -1
"""The level of elements unsent for too long: before all values of M."""
_TRIES = 64
"""Places that are tried together, so that their memory is fetched together."""
Draws = Callable[[int], np.random.Generator]
"""Makes the generator of the tensor of that number."""


class Selection:
    """A bucket's state on one worker, in host memory."""

    def __init__(self, segments: Segments, unsent_limit: int) -> None:
        n, nbytes = int(segments.length.sum()), int(bytes_of(segments).sum())
        self.table = segments.table
        self.unsent_limit = unsent_limit
        self.chosen = torch.zeros(nbytes, dtype=torch.uint8)
        """V: bitmaps of the tensors."""
        self.rewards = torch.zeros(n, dtype=torch.int32)
        """M `[n]`."""
        self.age = torch.zeros(n, dtype=torch.uint8)
        """0: in V, or speculative at the last step; else steps unsent, up to 255. `[n]`"""
        self.near = torch.zeros(nbytes, dtype=torch.uint8)
        """One bit an element: outside of V, and of its block's lowest M."""
        self.begun = False

    def renew(
        self, values: Tensor, improved: bool | None, wanted: Column, keys: NDArray[np.uint64],
        draws: Draws,
    ) -> tuple[Column, Tensor, Column]:  # fmt: skip
        """Reward V when the last step improved, else draw another by `values`; V stays for None.

        Parameters
        ----------
        values : what V selects from, flat float32
        wanted, keys : of each tensor: speculative elements, and the key of its random numbers

        Returns
        -------
        Of each tensor whether V differs from the last one, or is the first: 0 or 1; speculative
        places within the tensor, int32, ascending, as many as wanted or as are outside of V; how
        many of each tensor
        """
        segments = Segments(self.table)
        first, self.begun = not self.begun, True
        mode = DRAW if first or improved is False else REWARD if improved else KEEP
        state = self.chosen, self.rewards, self.age, self.near
        highest = np.zeros(len(self.table))
        if mode == DRAW:
            highest = cell_norms(values, segments.whole, "max").double().numpy()
        counts = _choose(*state, values, segments, (mode, self.unsent_limit), highest, keys)
        new = _each(counts[4], segments) > 0
        plan, ways = self._plan(counts, wanted, segments, draws)
        found = _find(*state[1:], segments, self.unsent_limit, plan, ways, ~keys)
        return (new | first).astype(np.int64), found, _each(plan[0] + plan[2], segments)

    def _plan(
        self, counts: NDArray[np.int64], wanted: Column, segments: Segments, draws: Draws
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(by block: elements below the level, at it, how many of these travel, `[3, blocks]`; by
        tensor: the level, and whether the pass over everybody has marked the ties)."""
        blocks = segments.cells(BLOCK)
        held, aged, lowest, ties, _ = counts
        least = np.full(len(wanted), NEVER, dtype=np.int64)
        np.minimum.at(least, blocks.owner, lowest)
        at_least = np.where(lowest == least[blocks.owner], ties, 0)
        wanted = np.minimum(wanted, segments.length - _each(held, segments))
        late, lowest_too = (_each(each, segments) for each in (aged, aged + at_least))
        marked = (late < wanted) & (lowest_too >= wanted)
        ways = np.stack((np.where(marked, least, AGED), marked))
        by_block = marked[blocks.owner]
        plan = np.stack(
            (np.where(by_block, aged, 0), np.where(by_block, at_least, aged), np.zeros_like(aged))
        )
        for t in np.flatnonzero(lowest_too < wanted).tolist():
            own = slice(segments.begin[t], segments.begin[t] + segments.length[t])
            here = slice(blocks.first[t], blocks.first[t] + blocks.count[t])
            given = self.rewards[own], self.age[own], self.unsent_limit, int(wanted[t])
            ways[0, t], plan[0, here], plan[1, here] = level_of(*given)
        missing = wanted - _each(plan[0], segments)
        alone = blocks.count == 1
        plan[2, blocks.first[alone]] = missing[alone]
        for t in np.flatnonzero((blocks.count > 1) & (missing > 0)).tolist():
            here = slice(blocks.first[t], blocks.first[t] + blocks.count[t])
            plan[2, here] = draws(t).multivariate_hypergeometric(
                plan[1, here], int(missing[t]), method="marginals"
            )
        return plan, ways


def _each(numbers: NDArray[np.int64], segments: Segments) -> Column:
    """The sum over each tensor's blocks."""
    return bits_each(np.append(0, numbers.cumsum()), segments)


@kernel("selection", name="ce_sgd_speculation.level_of")
def level_of(
    rewards: Tensor, age: Tensor, limit: int, wanted: int
) -> tuple[int, NDArray[np.int64], NDArray[np.int64]]:
    """The level of the wanted-th element outside of V: (level, numbers below, numbers at it).

    Of one tensor, by block: the slow way, for when fewer than wanted have the lowest M.
    """
    ages = array(age)
    levels = np.where(ages > limit, np.int32(AGED), array(rewards))
    levels[ages == 0] = NEVER
    level = int(np.partition(levels, wanted - 1)[wanted - 1])
    firsts = np.arange(0, levels.size, BLOCK)
    below = np.add.reduceat(levels < level, firsts, dtype=np.int64)
    return level, below, np.add.reduceat(levels == level, firsts, dtype=np.int64)


# --- one pass over everybody -------------------------------------------------------------------


def _chooses(
    _: object, chosen: Tensor, rewards: Tensor, age: Tensor, near: Tensor, weights: Tensor,
    segments: object, settings: tuple[int, int], *__: object,
) -> list[KernelCost]:  # fmt: skip
    n, name, draws = rewards.numel(), "ce_sgd_selection._choose", settings[0] == DRAW
    state = 2 * sum(each.nbytes for each in (chosen, rewards, age, near))
    costs = [launch("streaming", name, n, state, weights.nbytes * draws)]
    return [drawn(name, n, 16), *costs] if draws else costs


@counted_as(_chooses)
def _choose(
    chosen: Tensor, rewards: Tensor, age: Tensor, near: Tensor, weights: Tensor,
    segments: Segments, settings: tuple[int, int], highest: NDArray[np.float64],
    keys: NDArray[np.uint64],
) -> NDArray[np.int64]:  # fmt: skip
    """A step of V, M and the ages, in place; of each block, int64 `[5, blocks]`:

    elements in V; elements outside of V that were not sent for too long; the smallest M of the
    other elements outside of V; how many have it; whether V is not what it was.
    """
    blocks, (mode, limit) = segments.cells(BLOCK), settings
    counts = np.zeros((5, blocks.total), dtype=np.int64)
    state = (array(each) for each in (chosen, rewards, age, near))
    in_tiles(
        _choose_tiles, blocks.tiles, places(segments), mode, *state,
        np.ascontiguousarray(array(weights)), keys, highest, np.uint8(limit), counts,
    )  # fmt: skip
    return counts


@counted_as(
    lambda found, *_: [
        launch(
            "gather_scatter", f"ce_sgd_speculation.find:{spread(found.numel())}", found.numel(),
            found.nbytes,
        )
    ]
)  # fmt: skip
def _find(
    rewards: Tensor, age: Tensor, near: Tensor, segments: Segments, limit: int,
    plan: NDArray[np.int64], ways: NDArray[np.int64], keys: NDArray[np.uint64],
) -> Tensor:  # fmt: skip
    """The plan's elements, int32, whose age becomes 0; of M, ages and marks little is touched."""
    sizes = plan[0] + plan[2]
    found = np.empty(sizes.sum(), dtype=np.int32)
    in_tiles(
        _find_tiles, segments.cells(BLOCK).tiles, places(segments), array(rewards), array(age),
        array(near), ways, np.uint8(limit), *plan, starts(sizes), keys, found,
    )  # fmt: skip
    return torch.from_numpy(found)


@loop
def _choose_tiles(
    start: int, stop: int, tiles: Any, places: Any, mode: int, bits: Any, rewards: Any, ages: Any,
    nears: Any, weights: Any, keys: Any, highest: Any, limit: Any, counts: Any,
) -> None:  # fmt: skip
    for tile in range(start, stop):
        t, first, last = tiles[tile]
        begin, end, byte = places[t, 0], places[t, 0] + places[t, 1], places[t, 2]
        choose_blocks(
            first, last, mode, bits[byte:], rewards[begin:end], ages[begin:end], nears[byte:],
            weights[begin:end], keys[t], highest[t], limit, counts[:, places[t, 3] :],
        )  # fmt: skip


@loop
def _find_tiles(
    start: int, stop: int, tiles: Any, places: Any, rewards: Any, ages: Any, nears: Any, ways: Any,
    limit: Any, below: Any, ties: Any, drawn: Any, at: Any, keys: Any, found: Any,
) -> None:  # fmt: skip
    for tile in range(start, stop):
        t, first, last = tiles[tile]
        begin, end, block = places[t, 0], places[t, 0] + places[t, 1], places[t, 3]
        find_blocks(
            first, last, rewards[begin:end], ages[begin:end], nears[places[t, 2] :],
            ways[1, t] != 0, ways[0, t], limit, below[block:], ties[block:], drawn[block:],
            at[block:], keys[t], found,
        )  # fmt: skip


@loop
def choose_blocks(
    start: int, stop: int, mode: int, selection: Any, rewards: Any, ages: Any, nears: Any,
    weights: Any, key: Any, highest: Any, limit: Any, counts: Any,
) -> None:  # fmt: skip
    """`_choose` of one tensor."""
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
