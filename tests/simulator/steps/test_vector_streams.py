"""Are ranks served together as each of them is served alone?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray

from gcsim.simulator.steps.vectors import loops as vector_streams
from gcsim.simulator.steps.vectors.loops import (
    HEAD,
    NOTHING,
    PLACE,
    STATE_ROWS,
    TAIL,
)

RANKS = 18
"""More than `run` asks for before it looks whether all agree."""


@dataclass(frozen=True, slots=True)
class Case:
    """Streams somewhere in an iteration: the arguments of `run`."""

    state: NDArray[np.int64]
    calls: NDArray[np.int64]
    side: NDArray[np.int64]
    table: NDArray[np.int64]
    shape: NDArray[np.int64]
    places: NDArray[np.int64]

    def arrays(self) -> tuple[NDArray[np.int64], ...]:
        """Copies, to be changed."""
        ours = (self.state, self.calls, self.side, self.table, self.shape, self.places)
        return tuple(each.copy() for each in ours)


def a_case(random: np.random.Generator) -> Case:
    """Small numbers, so that many instants are the same; ranks differ seldom, or in one thing."""
    spread = int(random.choice([1, 1, 2, 4]))

    def times(*rows: int, most: int = 12) -> NDArray[np.int64]:
        common = random.integers(0, most, (*rows, 1))
        return np.ascontiguousarray(common + random.integers(0, spread, (*rows, RANKS)))

    buckets = int(random.integers(1, 4))
    counts = random.integers(0, 3, buckets)
    total, on_side = int(counts.sum()), int(random.integers(2))
    side, after = 4 + buckets, 4 + 2 * buckets
    state = times(STATE_ROWS)
    pieces = buckets if on_side else buckets + 1
    state[PLACE] = random.integers(0, pieces + 1)
    waiting = int(random.integers(0, total + 1))
    state[HEAD], state[TAIL] = 0, waiting
    calls = times(3, max(total, 1))
    order = random.permutation(total)[:waiting]
    calls[1, order] = np.sort(calls[1, order], axis=0)
    calls[2, :waiting] = order[:, None]
    if random.random() < 0.1:
        state[int(random.choice([PLACE, HEAD])), int(random.integers(RANKS))] = 0
    if waiting > 1 and random.random() < 0.2:
        rank = int(random.integers(RANKS))
        calls[2, :2, rank] = calls[2, 1::-1, rank]
    width = int(random.choice([1, RANKS]))
    table = random.integers(0, 4, (after + total, 1)) * np.ones((1, width), dtype=np.int64)
    if random.random() < 0.2:
        table[:, 0] = 0
    shape = np.zeros((4, max(buckets, total, 1)), dtype=np.int64)
    shape[0, :buckets], shape[1, :buckets] = counts, np.cumsum([0, *counts])[:-1]
    shape[2, :total] = np.repeat(np.arange(buckets), counts)
    shape[3, :total] = [k + 1 < count for count in counts for k in range(count)]
    needed = int(random.choice([NOTHING, *range(-1, buckets)]))
    places = [buckets, on_side, side if on_side else 3, after, needed, random.integers(2)]
    ready = np.sort(times(2 * buckets + total), axis=0)
    return Case(state, calls, ready, table, shape, np.array(places, dtype=np.int64))


@pytest.mark.parametrize("seed", range(4))
def test_together_is_one_by_one(seed: int) -> None:
    random = np.random.default_rng(seed)
    agreed = 0
    for _ in range(1000):
        case = a_case(random)
        together, alone = case.arrays(), case.arrays()
        needed, follows = int(case.places[4]), bool(case.places[5])
        vector_streams.run(*together)
        vector_streams._one_by_one(needed, follows, *alone)
        for one, other in zip(together, alone, strict=True):
            np.testing.assert_array_equal(one, other)
        agreed += bool(vector_streams._together(needed, follows, *case.arrays()))
    assert 200 < agreed < 900, agreed  # both happen
