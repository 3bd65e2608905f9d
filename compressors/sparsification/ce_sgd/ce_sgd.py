"""CE-SGD: a worker keeps sending the same coordinates as long as its loss falls.

Worker i has, for each tensor, a selection V (one bit per element), a map M of how often each
element was in a rewarded selection, and the steps since each element was sent. Before each step:
    f(x_{t-1}) > f(x_t): V stays, M += V;    otherwise: V_j = 1 with probability |g_j| / max |g|
(V_0 is drawn in the same way). The worker sends g_V and `speculative` n elements outside of V:
first those unsent for `unsent_limit` steps, then by ascending M, ties at random. The server knows
each worker's V, averages over all workers (absent elements count as zero) and sends the mean at the
union.

Body of a tensor: a flag byte; V as a bitmap of n bits, only if it has changed; 32 |V| bits of
values; 64 bits per speculative element (indices, then values). Down: a bitmap of the union and its
values, n + 32 |union| bits. With `levels` l, both kinds of values are rounded at random to 2 l + 1
levels (Eq. 8): indices, a scale of 32 bits (their largest magnitude), then codes. Biased: at the
first step E|Q(g) - g|^2 <= sum (1 - |g_j| / max |g|) g_j^2 in float32, with equality but for
speculative elements.

The feedback f is the worker's own loss: live and recorded training have it, a DDP hook takes it as
`hook.loss`. If it is unknown, a bucket has improved if <g_t, u_{t-1}> > 0 with u the last update:
this is sufficient for a convex f and plain gradient descent, but on mini-batches it agrees with the
loss no more often than chance. With nothing to compare yet, V and M stay.

In the paper's setting (4 workers, batches of 64, Adam; 40 to 60 steps) a worker sends 11 to 20 % of
a dense gradient's bytes, the union has 31 to 56 %, both together 21 to 38 % (LeNet, ResNet-20, a
narrow VGG). Table I has 32 %, Table II 44 and 49 % for WideResNet and VGG11. MobileNet's 79 % are
not reproduced; large networks with small batches give less (VGG-16, batches of 32: 4 and 16 %).

Choices where the paper is open or has slips:
* Both branches print f(x_{t-1}) > f(x_t); the second means "otherwise", as Algorithm 2 has it.
* Line 14 draws V_j with probability M_j / max M: each later draw is the same V. The text behind
  Definition 3 has Bernoulli(|g_j| / max |g|), which is taken here; M ranks rare elements.
* Line 7 masks the received average with each worker's own V: replicas would drift apart. Left out.
* The number of speculative elements is not printed: 1 % at each step. Unsent elements are lost.
* Index m - 1 sends a layer while the next one is differentiated: left to buckets.
* Without a server, each worker serves a stripe of the elements.

Source: Z. Tao, Q. Xia, Q. Li, S. Cheng, "CE-SGD: Communication-Efficient Distributed Machine
Learning", Algorithm 2, Definitions 1-3, Eq. 8.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from gcsim.compressors.base import (
    About,
    Compressor,
    CompressorParameters,
    Properties,
    Worker,
    add_all,
)
from gcsim.compressors.bucket import Bucket, BucketLayout, bucket_state
from gcsim.compressors.coding.frames import Codec, packed, picked, put, put_all, read, taken
from gcsim.compressors.coding.indices import bitmap
from gcsim.compressors.coding.indices.bitmap import BLOCK, bits_each, bytes_of
from gcsim.compressors.coding.integers import packing
from gcsim.compressors.coding.integers.digits import fixed
from gcsim.compressors.coding.rounding.levels import add_rounded, even, round_levels
from gcsim.compressors.coding.rounding.norms import cell_norms
from gcsim.compressors.coding.scans import block_products
from gcsim.compressors.coding.selecting.selection import counts_kept, each_of, flat_places
from gcsim.compressors.kernels import spread
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.loops import SUM_BLOCK, array, in_parallel, in_tiles, loop, partial_sums
from gcsim.compressors.meter import counted_as, drawn, kernel, launch
from gcsim.compressors.random import bits64, stream
from gcsim.compressors.requests import Exchange, PushPull
from gcsim.compressors.segments import Column, Segments, keys_of, starts
from gcsim.compressors.sharing import fill_once

REWARD, KEEP, DRAW = range(3)
NEVER = np.int32(2**31 - 1)  # level of elements in V: larger than any M
AGED = -1  # level of elements unsent for too long: smaller than any M
TRIES = 64  # places tried in one batch, so that their memory is fetched together
Piece = tuple[Tensor, Column]  # values of all tensors, and the bytes per tensor


class CeSgdParameters(CompressorParameters):
    speculative: float = Field(
        0.01, ge=0, le=1, description="fraction of elements sent in addition to the selection"
    )
    unsent_limit: int = Field(
        100, ge=1, le=254, description="steps after which an unsent element goes first"
    )
    levels: int | None = Field(
        None, ge=1, le=127, description="levels above zero (l), 2 l + 1 in all; null: float32"
    )


class CeSgd(Compressor[CeSgdParameters]):
    """Keeps coordinates while the feedback is good; the server knows each selection."""

    about = About(
        title="CE-SGD",
        family="sparsification",
        collective="push-pull",
        without_server="alltoall_allgather",
        bits="8 a tensor + (new V: 1) + 32 |V| / n + 64 speculative; down 1 + 32 |union| / n",
        state="V (n bits), M (n), age (n bytes), last update (n) without a loss; "
        "server: V of each worker",
        paper="Tao et al., CE-SGD",
    )

    def __init__(self, worker: Worker, parameters: CeSgdParameters) -> None:
        super().__init__(worker, parameters)
        self._selections: dict[int, Selection] = {}  # by bucket
        self._last: dict[int, Tensor] = {}  # last update, by bucket, if there is no loss
        self._losses: dict[int, float] = {}  # loss of the last step, by bucket
        self._known: dict[tuple[int, int], Tensor] = {}  # on the server: V by (bucket, rank)

    @classmethod
    def properties(cls, parameters: CeSgdParameters) -> Properties:
        def bound(values: Tensor) -> float:
            magnitudes = values.double().abs()
            highest = float(magnitudes.max()) if values.numel() else 0.0
            return float(((highest - magnitudes) * magnitudes**2).sum()) / (highest or 1.0)

        return Properties(error_bound=bound if parameters.levels is None else None)

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        answer = yield PushPull(
            payload=self.encode(bucket, step), server=partial(self._serve, bucket),
            without_server="alltoall_allgather", variable=True,
        )  # fmt: skip
        update = torch.zeros_like(bucket.gradient)
        fill_once(add_all, answer, update, add_answer, bucket.layout, 1.0, {})
        if bucket.loss is None:
            bucket_state(self._last, bucket).copy_(update)
        return update

    def _improved(self, bucket: Bucket) -> bool | None:
        """Whether the last step improved; None if there is nothing to compare with."""
        index, loss = bucket.layout.index, bucket.loss
        if loss is not None:
            before, self._losses[index] = self._losses.get(index), loss
            return None if before is None else before > loss
        last = self._last.get(index)
        return None if last is None else inner_product(bucket.gradient, last) > 0

    def encode(self, bucket: Bucket, step: int) -> Tensor:
        """Select and pack the elements of a step: uint8, one frame per tensor."""
        p, me, layout = self.parameters, self.worker, bucket.layout
        segments, values = Segments.of(layout), bucket.gradient.cpu()
        state = self._selections.setdefault(layout.index, Selection(segments, p.unsent_limit))
        wanted = counts_kept(segments.length, p.speculative) * (p.speculative > 0)

        def draws(t: int) -> np.random.Generator:
            return stream(me.seed, step, layout.slices[t].index, "ce_sgd speculative", me.rank)

        keys = keys_of(layout, me.seed, step, "ce_sgd selection", me.rank)
        new, indices, extra = state.renew(values, self._improved(bucket), wanted, keys, draws)
        nbytes, begins = bytes_of(segments), bitmap.bit_starts(state.chosen, segments)
        selected = bits_each(begins, segments)
        inside = bitmap.at_bits(values, state.chosen, segments, begins)
        outside = values[flat_places(indices, segments, extra)]
        sent: tuple[Piece, ...] = (inside, 4 * selected), (indices, 4 * extra), (outside, 4 * extra)
        if p.levels is not None:
            keys = keys_of(layout, me.seed, step, "ce_sgd levels", me.rank)
            sent = sent[1], *rounded(sent[0], sent[2], p.levels, keys)
        message = packed(
            values, Codec.CE_SGD, segments,
            (torch.from_numpy(new.astype(np.uint8)), segments.column(1)),
            (state.chosen[torch.from_numpy(np.repeat(new > 0, nbytes))], nbytes * new),
            *sent, nonzero=selected + extra,
        )  # fmt: skip
        return message.to(bucket.gradient.device)

    def _serve(self, bucket: Bucket, payloads: Iterable[Tensor]) -> Tensor:
        """Return the mean over workers at the union of what they sent; store new selections."""
        layout, segments = bucket.layout, Segments.of(bucket.layout)
        nbytes, total = bytes_of(segments), torch.zeros(layout.numel)
        union = torch.zeros(int(nbytes.sum()), dtype=torch.uint8)
        for rank, payload in enumerate(payloads):
            place = layout.index, rank
            given = payload.cpu(), layout, self._known.get(place), self.parameters.levels
            self._known[place] = add_elements(*given, total, 1.0 / self.worker.count, union)
        begins = bitmap.bit_starts(union, segments)
        values, count = bitmap.at_bits(total, union, segments, begins), bits_each(begins, segments)
        parts = (union, nbytes), (values, 4 * count)
        answer = packed(total, Codec.CE_SGD, segments, *parts, nonzero=count)
        return answer.to(bucket.gradient.device)


# --- selection ------------------------------------------------------------------------------


def _chooses(_: object, state: Selection, values: Tensor, mode: int, *__: object) -> Any:
    n, name = state.rewards.numel(), "ce_sgd_selection._choose"
    if mode == DRAW:
        yield drawn(name, n, 16)
    moved = 2 * (state.chosen.nbytes + state.rewards.nbytes + state.age.nbytes)
    yield launch("streaming", name, n, moved, values.nbytes * (mode == DRAW))


def _finds(found: Tensor, *_: object) -> Any:
    n = found.numel()
    yield launch("gather_scatter", f"ce_sgd_speculation.find:{spread(n)}", n, found.nbytes)


class Selection:
    """A bucket's selection state on one worker, in host memory.

    One pass rewards or redraws V, updates the ages and counts candidates per block. The counts
    divide the speculative elements among the blocks (a multivariate hypergeometric draw: every set
    of ties is equally likely), and each block finds its share by trying places.
    """

    def __init__(self, segments: Segments, unsent_limit: int) -> None:
        n = int(segments.length.sum())
        self.segments, self.unsent_limit = segments, unsent_limit
        self.chosen = torch.zeros(int(bytes_of(segments).sum()), dtype=torch.uint8)  # V, bitmaps
        self.rewards = torch.zeros(n, dtype=torch.int32)  # M
        # 0: in V, or speculative at the last step; else the number of steps unsent, up to 255
        self.age = torch.zeros(n, dtype=torch.uint8)
        self.begun = False

    def renew(
        self, values: Tensor, improved: bool | None, wanted: Column, keys: NDArray[np.uint64],
        draws: Callable[[int], np.random.Generator],
    ) -> tuple[Column, Tensor, Column]:  # fmt: skip
        """Reward V if the last step improved, redraw it by `values` if not, or keep it (None).
        `wanted` is the number of speculative elements per tensor, `draws` makes a tensor's
        generator. Returns: whether V has changed or is the first, per tensor: 0 or 1; speculative
        indices within tensors, int32, ascending, as many as wanted or as are outside of V; their
        number per tensor."""
        segments, first, self.begun = self.segments, not self.begun, True
        mode = DRAW if first or improved is False else REWARD if improved else KEEP
        highest = np.zeros(len(wanted))
        if mode == DRAW:
            highest = cell_norms(values, segments.whole, "max").double().numpy()
        counts = self._choose(values, mode, highest, keys)
        new = _each(counts[4], segments) > 0
        plan, levels = self._plan(counts, wanted, draws)
        # inverted keys give other random numbers than those that V is drawn with
        found = self._find(plan, levels, ~keys)
        return (new | first).astype(np.int64), found, _each(plan[0] + plan[2], segments)

    @counted_as(_chooses)
    def _choose(
        self, values: Tensor, mode: int, highest: NDArray[np.float64], keys: NDArray[np.uint64]
    ) -> NDArray[np.int64]:
        """Update V, M and the ages; return int64 `[5, blocks]`: elements in V; others unsent for
        too long; smallest M of the rest; how many have it; whether V has changed."""
        segments, blocks = self.segments, self.segments.cells(BLOCK)
        state = array(self.chosen), array(self.rewards), array(self.age)
        weights, limit = np.ascontiguousarray(array(values)), np.uint8(self.unsent_limit)
        counts = np.zeros((5, blocks.total), dtype=np.int64)
        given = mode, *state, weights, keys, highest, limit, counts
        in_tiles(_choose_tiles, blocks.tiles, bitmap.places(segments), *given)
        return counts

    @counted_as(_finds)
    def _find(self, plan: NDArray[np.int64], levels: Column, keys: NDArray[np.uint64]) -> Tensor:
        """Find the plan's elements, int32, and reset their age; reads little of M and ages."""
        sizes, limit = plan[0] + plan[2], np.uint8(self.unsent_limit)
        found = np.empty(sizes.sum(), dtype=np.int32)
        given = array(self.rewards), array(self.age), levels, limit, plan, starts(sizes), keys
        tiles = self.segments.cells(BLOCK).tiles
        in_tiles(_find_tiles, tiles, bitmap.places(self.segments), *given, found)
        return torch.from_numpy(found)

    def _plan(
        self, counts: NDArray[np.int64], wanted: Column, draws: Callable[[int], np.random.Generator]
    ) -> tuple[NDArray[np.int64], Column]:
        """Return (elements below the level, at it, at it and sent, `[3, blocks]`; levels)."""
        segments, blocks = self.segments, self.segments.cells(BLOCK)
        held, aged, lowest, ties, _ = counts
        least = np.full(len(wanted), NEVER, dtype=np.int64)
        np.minimum.at(least, blocks.owner, lowest)
        at_least = np.where(lowest == least[blocks.owner], ties, 0)
        wanted = np.minimum(wanted, segments.length - _each(held, segments))
        late, lowest_too = (_each(each, segments) for each in (aged, aged + at_least))
        # level of the last element to send: aged elements suffice, or the lowest M is needed
        levels, none = np.where(late < wanted, least, AGED), 0 * aged
        plan = np.where(levels[blocks.owner] < 0, (none, aged, none), (aged, at_least, none))
        for t in np.flatnonzero(lowest_too < wanted).tolist():
            own = slice(segments.begin[t], segments.begin[t] + segments.length[t])
            here = slice(blocks.first[t], blocks.first[t] + blocks.count[t])
            given = self.rewards[own], self.age[own], self.unsent_limit, int(wanted[t])
            levels[t], plan[0, here], plan[1, here] = level_of(*given)
        missing = wanted - _each(plan[0], segments)
        for t in np.flatnonzero(missing > 0).tolist():
            here = slice(blocks.first[t], blocks.first[t] + blocks.count[t])
            plan[2, here] = missing[t]
            if blocks.count[t] > 1:
                law = draws(t).multivariate_hypergeometric
                plan[2, here] = law(plan[1, here], int(missing[t]), method="marginals")
        return plan, levels


def _each(numbers: NDArray[np.int64], segments: Segments) -> Column:
    """Sum over the blocks of each tensor."""
    return bits_each(np.append(0, numbers.cumsum()), segments)


@kernel("selection", name="ce_sgd_speculation.level_of")
def level_of(
    rewards: Tensor, age: Tensor, limit: int, wanted: int
) -> tuple[int, NDArray[np.int64], NDArray[np.int64]]:
    """Return the level of the wanted-th element of a tensor outside of V, and each block's number
    of elements below and at it. Slow; only used if fewer than wanted have the lowest M."""
    ages = array(age)
    levels = np.where(ages > limit, np.int32(AGED), array(rewards))
    levels[ages == 0] = NEVER
    level = int(np.partition(levels, wanted - 1)[wanted - 1])
    firsts = np.arange(0, levels.size, BLOCK)
    below = np.add.reduceat(levels < level, firsts, dtype=np.int64)
    return level, below, np.add.reduceat(levels == level, firsts, dtype=np.int64)


@loop
def _choose_tiles(
    start: int, stop: int, tiles: Any, places: Any, mode: int, bits: Any, rewards: Any, ages: Any,
    weights: Any, keys: Any, highest: Any, limit: Any, counts: Any,
) -> None:  # fmt: skip
    chosen, before = np.zeros(BLOCK, dtype=np.uint8), np.empty(BLOCK // 8, dtype=np.uint8)
    words = np.empty(BLOCK // 4, dtype=np.uint64)
    for tile in range(start, stop):
        t, begin, end = tiles[tile]
        for first in range(begin, end, BLOCK):
            some = slice(places[t, 0] + first, places[t, 0] + min(first + BLOCK, end))
            m, at = rewards[some], places[t, 2] + first // 8
            packed = bits[at : at + (m.size + 7) // 8]
            numbers = counts[:, places[t, 3] + first // BLOCK]
            if mode == DRAW:
                for j in range((m.size + 3) // 4):
                    # four 16-bit numbers per word, indexed by place, so that tiles do not matter
                    words[j] = bits64(keys[t], first // 4 + j)
                weight, random, scale = weights[some], words.view(np.uint16), highest[t] / 65536.0
                chosen[m.size :] = 0
                for i in range(m.size):  # r / 65536 < |weight| / highest, exact in float64
                    chosen[i] = np.float64(random[i]) * scale < abs(np.float64(weight[i]))
                before[: packed.size] = packed
                packing.fold_bits(chosen.view(np.uint64), packed)
                for b in range(packed.size):
                    if packed[b] != before[b]:
                        numbers[4] = 1
            else:
                packing.unfold_bits(packed, chosen.view(np.uint64))
            if mode == REWARD:
                for i in range(m.size):
                    m[i] += np.int32(chosen[i] != 0)
            _look_outside(chosen, m, ages[some], limit, numbers)


@loop
def _look_outside(chosen: Any, m: Any, age: Any, limit: Any, numbers: Any) -> None:
    """Age all elements outside of V by a step; compute the block's first four numbers."""
    free = np.empty(BLOCK, dtype=np.int32)
    held, aged, lowest, ties = np.int32(0), np.int32(0), NEVER, np.int32(0)
    for i in range(m.size):
        inside = chosen[i] != 0
        # age before this step; `_level`, which sees the age after it, compares with `limit` by >
        late = (not inside) & (age[i] >= limit)
        older = age[i] + np.uint8(age[i] < np.uint8(255))
        age[i] = np.uint8(0) if inside else older
        held += np.int32(inside)
        aged += np.int32(late)
        free[i] = NEVER if inside | late else m[i]
        lowest = min(lowest, free[i])
    for i in range(m.size):
        ties += np.int32(free[i] == lowest)
    numbers[0], numbers[1], numbers[2] = held, aged, lowest
    # without a candidate all elements would tie at NEVER
    numbers[3] = ties if lowest < NEVER else np.int32(0)


@loop
def _level(age: Any, reward: Any, limit: Any) -> Any:
    # age 0 means in V, since `_look_outside` has aged all others
    level = np.int64(AGED) if age > limit else np.int64(reward)
    return level if age > 0 else np.int64(NEVER)


@loop
def _find_tiles(
    start: int, stop: int, tiles: Any, places: Any, rewards: Any, ages: Any, levels: Any,
    limit: Any, plan: Any, starts: Any, keys: Any, found: Any,
) -> None:  # fmt: skip
    """Find each block's share; to take more than half of the ties, take all and remove some."""
    marks = np.zeros(BLOCK, dtype=np.uint8)
    eights = marks.view(np.uint64)
    for tile in range(start, stop):
        t, begin, end = tiles[tile]
        for first in range(begin, end, BLOCK):
            some = slice(places[t, 0] + first, places[t, 0] + min(first + BLOCK, end))
            m, age, number = rewards[some], ages[some], first // BLOCK
            block = places[t, 3] + number
            below, ties, drawn = plan[:, block]
            most = 2 * drawn > ties
            # a few ties are found by trying, without reading the block
            if below > 0 or most:
                for i in range(m.size):
                    level = _level(age[i], m[i], limit)
                    marks[i] = (level < levels[t]) | (most & (level == levels[t]))
            changes = ties - drawn if most else drawn
            # each block has 2^40 random numbers to itself, more than it can use
            _change_marks(marks, most, changes, m, age, levels[t], limit, keys[t], number << 40)
            at = starts[block]
            for j in range((m.size + 7) // 8):
                if eights[j]:
                    for i in range(8 * j, 8 * j + 8):
                        if marks[i]:
                            found[at] = first + i
                            age[i] = 0
                            at += 1
                    eights[j] = 0


@loop
def _change_marks(
    marks: Any, most: Any, changes: Any, m: Any, age: Any, level: Any, limit: Any, key: Any,
    number: Any,
) -> None:  # fmt: skip
    """Flip `changes` random ties from `most` to the opposite, by trying places. Needs at most .7
    tries per element."""
    places, fits = np.empty(TRIES, dtype=np.int64), np.empty(TRIES, dtype=np.bool_)
    while changes > 0:
        for j in range(TRIES):
            hashed = bits64(key, number + j) >> np.uint64(32)
            places[j] = (hashed * np.uint64(m.size)) >> np.uint64(32)
        for j in range(TRIES):
            fits[j] = _level(age[places[j]], m[places[j]], limit) == level
        for j in range(TRIES):
            # a place that was tried before has already changed and does not count
            if fits[j] and changes > 0 and (marks[places[j]] != 0) == most:
                marks[places[j]] = not most
                changes -= 1
        number += TRIES


# --- messages ---------------------------------------------------------------------------------


def rounded(
    inside: Piece, outside: Piece, levels: int, keys: NDArray[np.uint64]
) -> tuple[Piece, Piece]:
    """Return scales and codes of the values in V and outside, which each tensor rounds together."""
    count = (inside[1] + outside[1]) // 4
    both, at = torch.empty(int(count.sum())), 4 * starts(count)
    put_all(both.view(torch.uint8), [(at, *inside), (at + inside[1], *outside)])
    cells, form = Segments.behind(count).cells(None), fixed((2 * levels).bit_length())
    scales, width = cell_norms(both, cells, "max"), form.nbytes(count)
    codes = torch.empty(int(width.sum()), dtype=torch.uint8)
    round_levels(both, even(cells, scales, levels), keys, codes, starts(width), form)
    return (scales, 4 * cells.count), (codes, width)


def add_elements(
    message: Tensor, layout: BucketLayout, known: Tensor | None, levels: int | None, out: Tensor,
    weight: float, union: Tensor,
) -> Tensor:  # fmt: skip
    """Add weight * a worker's elements to `out` in place and set their bits in the bitmaps `union`.
    `known` is the worker's last V, or None; returns its current V. Raises `InputError` if the
    message is damaged."""
    segments, found = Segments.of(layout), read(message, layout, Codec.CE_SGD)
    nbytes, at = bytes_of(segments), found.at
    flags = taken(message, at, np.minimum(1, found.size), torch.uint8).numpy()
    _demand(len(flags) == len(nbytes) and flags <= 1, "a frame does not say whether V is new")
    _demand(known is not None or flags, "a worker keeps a selection it never sent")
    head = nbytes * flags
    _demand(found.size > head, "bodies of {} bytes end in bitmaps", found.size)
    chosen = torch.zeros_like(union) if known is None else known.clone()
    put(chosen, starts(nbytes), taken(message, at + 1, head, torch.uint8), head)
    begins, selected = _counted(chosen, segments)
    count, extra = found.nonzero, found.nonzero - selected
    parts = (4 * selected, torch.float32), (4 * extra, torch.int32), (4 * extra, torch.float32)
    if levels is not None:
        cells, form = Segments.behind(count).cells(None), fixed((2 * levels).bit_length())
        width = form.nbytes(count)
        parts = parts[1], (4 * cells.count, torch.float32), (width, torch.uint8)
    fits = (extra >= 0) & (found.size == 1 + head + sum(size for size, _ in parts))
    _demand(fits, "bodies of {} bytes for {} elements and {} more", found.size, selected, extra)
    brought = replace(found, at=at + 1 + head).parts(message, *parts)
    if levels is None:
        values, indices, speculative = brought
    else:
        indices, scales, codes = brought
        _demand((scales >= 0) & scales.isfinite(), "scales of {}", scales)
        both, begin = torch.zeros(int(count.sum())), starts(count)
        add_rounded(both, even(cells, scales, levels), codes, starts(width), form, 1.0)
        values, speculative = picked(both, begin, selected), picked(both, begin + selected, extra)
    places = flat_places(indices, segments, extra)
    inside = (indices >= 0) & (indices < each_of(segments.length, extra, indices))
    _demand(inside.all() and places.diff() > 0, "indices do not ascend below n")
    bitmap.add_at_bits(out, chosen, segments, begins, values, weight)
    out.index_add_(0, places, speculative, alpha=weight)
    bitmap.unite(union, chosen, indices.long() + each_of(8 * starts(nbytes), extra, indices))
    return chosen


def add_answer(message: Tensor, layout: BucketLayout, out: Tensor, weight: float) -> None:
    """Add weight * the server's means to `out` in place; `InputError` if the message is damaged."""
    segments, found = Segments.of(layout), read(message, layout, Codec.CE_SGD)
    nbytes, many = bytes_of(segments), 4 * found.nonzero
    found.demand_sizes(nbytes + many)
    union, values = found.parts(message, (nbytes, torch.uint8), (many, torch.float32))
    begins, count = _counted(union, segments)
    _demand(count == found.nonzero, "{} bits for {} values", count, found.nonzero)
    bitmap.add_at_bits(out, union, segments, begins, values, weight)


def _counted(bits: Tensor, segments: Segments) -> tuple[NDArray[np.int64], Column]:
    """Return (`bit_starts`; set bits per tensor); `InputError` for bits past a tensor's end."""
    packing.demand_no_stray(array(bits), starts(bytes_of(segments)), segments.length, 1)
    begins = bitmap.bit_starts(bits, segments)
    return begins, bits_each(begins, segments)


def _demand(fits: Any, fault: str, *numbers: object) -> None:
    if not np.all(np.asarray(fits)):
        raise packing.damaged(fault.format(*numbers))


@kernel("reduction")
def inner_product(a: Tensor, b: Tensor) -> float:
    """Return <a, b> of float32 `[n]`, in float64."""
    sums = partial_sums(a.numel())
    in_parallel(block_products, a.numel(), array(a), array(b), sums, grain=SUM_BLOCK)
    return float(sums.sum())
