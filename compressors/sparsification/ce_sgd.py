"""CE-SGD: what if a worker keeps sending the coordinates that served it well, until they do not?

Worker i holds, for each tensor, a selection V (one bit an element), a map M of how often each
element was in a rewarded selection, and how long each has not been sent. Before each step:
    improved:      V stays,  M += V;          otherwise:  V_j = 1 with probability M_j / max M
(V_0, and V while M is zero everywhere, are drawn with `start_density`). What travels are g_V and
`speculative` n elements outside of V: those unsent for `unsent_limit` steps first, then by
ascending M, ties at random. The server knows each worker's V, averages over all workers (absent
elements count as zero) and sends the mean at the union of what arrived.

Body of a tensor: a flag byte; V as bitmap of n bits, only when it is new; 32 |V| bits of values;
64 a speculative element (index, value). Down: a bitmap of the union and its values, n + 32 |union|.
With `levels` l, values go as random roundings to 2 l + 1 levels, ceil(log2(2 l + 1)) bits each,
and a scale of 32 bits, as in Eq. 8. Biased; by default V_0 misses half of the elements:
E|Q(g) - g|^2 = (1 - start_density - speculative) |g|^2 at the first step, because every element is
as likely to be missed; the bound adds the (tiny) chance of fewer than `speculative` n free ones.

The feedback. The paper's is the worker's loss, f(x_{t-1}) > f(x_t). An exchange sees gradients
only, so this package reads it from those: a bucket has improved when <g_t, u_{t-1}> > 0 with u the
last update. For a convex f and plain gradient descent that is sufficient: f(x_{t-1}) - f(x_t) >=
<g_t, x_{t-1} - x_t> = lr <g_t, u_{t-1}>. (`feedback: norm`: the averaged gradient's norm fell from
the last step but one to the last.) Should a bucket come to carry a `loss`, that is used. With
nothing to compare yet, V stays and M is not changed.

Readings where the paper is open or slips:
* Both branches print f(x_{t-1}) > f(x_t); the second means "otherwise", as Algorithm 2 has it.
* Algorithm 2, line 7, masks the received average with each worker's own V: replicas would drift
  apart and speculative elements be lost. Left out; `mask_received` is the literal reading.
* The probabilities are of M (Algorithm 2, Fig. 2), not of |g|; M sums rewarded selections only, so
  elements that no rewarded V held travel as speculative ones alone.
* How many elements are speculative, and when, is not said: 1 % at each step.
* What is not sent is lost (`residual` keeps it for the next step).

State beside V (n bits): M (int32), age (one byte), last update (n floats) with feedback "descent";
the server's V of each worker. Memory of a step: below 3 n floats.

Source: Z. Tao, Q. Xia, Q. Li, S. Cheng, "CE-SGD: Communication-Efficient Distributed Machine
Learning", Algorithm 2, Definitions 1-3, Eq. 8.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import Field

from gcsim.compressors.base import About, Compressor, CompressorParameters, Ratio, Worker
from gcsim.compressors.bucket import Bucket, BucketLayout, TensorSlice
from gcsim.compressors.coding.frame import Codec, Frame, as_bytes, from_bytes, pack_frame
from gcsim.compressors.coding.levels import add_packed_levels, bucket_norms, encode_levels
from gcsim.compressors.coding.messages import bucket_state, frames_of
from gcsim.compressors.coding.packing import check_packed, packed_bytes
from gcsim.compressors.coding.selection import count_kept
from gcsim.compressors.coding.sparse import energy
from gcsim.compressors.laws import Laws
from gcsim.compressors.lazy_torch import torch
from gcsim.compressors.loops import (
    SUM_BLOCK,
    array,
    in_parallel,
    loop,
    partial_sums,
    summing_loop,
    tensor,
    written_back,
)
from gcsim.compressors.meter import count_random, kernel, unpriced
from gcsim.compressors.random import bits64, random_key, stream
from gcsim.compressors.requests import Exchange, PushPull
from gcsim.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

BLOCK = 1 << 14
"""Elements that are selected together; a multiple of eight."""
_NEVER = np.int32(2**31 - 1)
_AGED = -1
"""Stands before all values of M: unsent for too long."""
_REWARD, _KEEP, _DRAW, _START = range(4)


class CeSgdParameters(CompressorParameters):
    """Hyper-parameters of `CeSgd`."""

    start_density: Ratio = Field(0.5, description="chance of each element to be in the first V")
    speculative: float = Field(
        0.01, ge=0, le=1, description="fraction of the elements outside of V that travels as well"
    )
    unsent_limit: int = Field(
        100, ge=1, le=254, description="steps after which an unsent element goes first"
    )
    feedback: Literal["descent", "norm"] = Field(
        "descent",
        description="improved: the gradient agrees with the last update, or the update's norm fell",
    )
    mask_received: bool = Field(False, description="apply the average at the own V only (line 7)")
    residual: bool = Field(False, description="add what was not sent to the next gradient")
    levels: int | None = Field(
        None, ge=1, le=127, description="l: values rounded to 2 l + 1 levels; null: float32"
    )


@dataclass(slots=True, kw_only=True, eq=False)
class Selection:
    """One tensor's state on one worker; arrays in host memory."""

    chosen: NDArray[np.uint8]
    """V: one bit an element, `[ceil(n / 8)]`."""
    rewards: NDArray[np.int32]
    """M `[n]`."""
    age: NDArray[np.uint8]
    """0: in V, or speculative at the last step; else 1 + steps unsent, up to 255. `[n]`"""
    highest: int = 0
    """max M."""


class CeSgd(Compressor):
    """Coordinates that are kept while the feedback is good; a server that remembers them."""

    Parameters = CeSgdParameters
    about = About(
        title="CE-SGD",
        family="sparsification",
        collective="push-pull (parameter server)",
        bits="8 a tensor + (new V: 1) + 32 |V| / n + 64 speculative; down 1 + 32 |union| / n",
        unbiased=False,
        state="V (n bits), M (n), age (n bytes), last update (n); server: V of each worker",
        paper="Tao et al., CE-SGD",
    )

    def __init__(self, worker: Worker, parameters: CompressorParameters) -> None:
        super().__init__(worker, parameters)
        assert isinstance(parameters, CeSgdParameters)
        self.parameters = parameters
        self._selections: dict[int, Selection] = {}
        """By tensor."""
        self._residual: dict[int, Tensor] = {}
        self._last: dict[int, Tensor] = {}
        """By bucket: the last update, with feedback "descent"."""
        self._norms: dict[int, list[float]] = {}
        """By bucket: norms of the last two averages, with feedback "norm"."""
        self._losses: dict[int, float] = {}
        self._known: dict[tuple[int, int], NDArray[np.uint8]] = {}
        """The server's: V by (tensor, rank)."""

    @classmethod
    def laws(cls, parameters: CompressorParameters) -> Laws:
        """See `Compressor.laws`."""
        assert isinstance(parameters, CeSgdParameters)
        p = parameters

        def bound(values: Tensor) -> float:
            # X missed elements, a binomial less k, cut at 0: E max(X, 0) <= (m + |(m, s)|) / 2
            n = max(1, values.numel())
            mean = n * (1 - p.start_density) - speculative_count(n, p.speculative)
            deviation = math.sqrt(n * p.start_density * (1 - p.start_density))
            return (mean + math.hypot(mean, deviation)) / 2 / n * energy(values)

        return Laws(
            error_bound=bound if p.levels is None else None,
            conserves=p.residual and not p.mask_received,
            replicas="differ" if p.mask_received else "identical",
        )

    def owed(self, bucket: Bucket) -> Tensor | None:
        """See `Compressor.owed`."""
        if not self.parameters.residual:
            return None
        return bucket_state(self._residual, bucket).clone()

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        """See `Compressor.exchange`."""
        message = self.encode(bucket, step)

        def serve(payloads: Iterable[Tensor]) -> Tensor:
            return self._serve(bucket, payloads)

        answer = yield PushPull(payload=message, server=serve)
        update = torch.zeros_like(bucket.gradient)
        read_answer(answer, bucket.layout, update)
        self._remember(bucket, update)
        if self.parameters.mask_received:
            for piece, part in bucket.layout.views(update):
                part.mul_(as_mask(self._selections[piece.index].chosen, part))
        return update

    # --- feedback --------------------------------------------------------------------------

    def _improved(self, bucket: Bucket) -> bool | None:
        """Whether the last step did well; None when there is nothing to compare with."""
        index = bucket.layout.index
        loss: float | None = getattr(bucket, "loss", None)
        if loss is not None:
            before = self._losses.get(index)
            self._losses[index] = float(loss)
            return None if before is None else before > loss
        if self.parameters.feedback == "norm":
            norms = self._norms.get(index, [])
            return norms[0] > norms[1] if len(norms) > 1 else None
        last = self._last.get(index)
        return None if last is None else inner_product(bucket.gradient, last) > 0

    def _remember(self, bucket: Bucket, average: Tensor) -> None:
        index = bucket.layout.index
        if self.parameters.feedback == "norm":
            norm = math.sqrt(inner_product(average, average))
            self._norms[index] = [*self._norms.get(index, []), norm][-2:]
        else:
            bucket_state(self._last, bucket).copy_(average)

    # --- worker ----------------------------------------------------------------------------

    def encode(self, bucket: Bucket, step: int) -> Tensor:
        """Select and pack a step's elements: uint8, one frame a tensor."""
        improved = self._improved(bucket)
        source = bucket.gradient
        if self.parameters.residual:
            source = bucket_state(self._residual, bucket).add_(source)
        frames = []
        for piece, values in bucket.layout.views(source):
            body, travelling = self._encode(piece, values, improved, step)
            frames.append(pack_frame(Codec.CE_SGD, body, numel=piece.numel, nonzero=travelling))
            if self.parameters.residual:
                own = self._selections[piece.index].chosen
                parts = self._read(body, piece.numel, travelling, own)
                add_parts(parts, values, -1.0)
        return torch.cat(frames)

    def _encode(
        self, piece: TensorSlice, values: Tensor, improved: bool | None, step: int
    ) -> tuple[Tensor, int]:
        p, n, rank = self.parameters, piece.numel, self.worker.rank
        state = self._selections.get(piece.index)
        if state is None:
            state = self._selections[piece.index] = Selection(
                chosen=np.zeros(packed_bytes(n, 1), dtype=np.uint8),
                rewards=np.zeros(n, dtype=np.int32),
                age=np.zeros(n, dtype=np.uint8),
            )
            mode = _START
        elif improved is None:
            mode = _KEEP
        elif improved:
            mode = _REWARD
        else:
            mode = _DRAW if state.highest else _START
        key = random_key(self.worker.seed, step, piece.index, "ce_sgd selection", rank)
        found = _select(values, state, mode, key, p)
        wanted = speculative_count(n, p.speculative)
        draws = stream(self.worker.seed, step, piece.index, "ce_sgd speculative", rank)
        plan = _plan(state, found, wanted, p.unsent_limit, draws)
        selected, indices, speculative = _gather(values, state, found, plan, key, p)
        parts = [torch.tensor([int(mode in {_DRAW, _START})], dtype=torch.uint8)]
        if mode in {_DRAW, _START}:
            parts.append(torch.from_numpy(state.chosen))
        if p.levels is None:
            parts += [as_bytes(selected), as_bytes(indices), as_bytes(speculative)]
        else:
            parts.append(as_bytes(indices))
            both = torch.cat((selected, speculative))
            rounding = random_key(self.worker.seed, step, piece.index, "ce_sgd levels", rank)
            scale = bucket_norms(both, max(1, both.numel()), "max")
            if both.numel():
                codes = encode_levels(
                    both, scale, rounding, size=both.numel(), steps=p.levels, bits=self._bits
                )
                parts += [as_bytes(scale), codes]
        body = torch.cat([part.to(values.device) for part in parts])
        return body, selected.numel() + indices.numel()

    @property
    def _bits(self) -> int:
        """Of a value that is rounded to levels."""
        assert self.parameters.levels is not None
        return (2 * self.parameters.levels).bit_length()

    # --- server ----------------------------------------------------------------------------

    def _serve(self, bucket: Bucket, payloads: Iterable[Tensor]) -> Tensor:
        """The mean over workers at the union of what they sent; remembers new selections."""
        total = torch.zeros_like(bucket.gradient)
        unions = {
            piece.index: np.zeros(packed_bytes(piece.numel, 1), dtype=np.uint8)
            for piece in bucket.layout.slices
        }
        for rank, payload in enumerate(payloads):
            for piece, frame in frames_of(payload, bucket.layout, Codec.CE_SGD):
                parts = self._received(piece, frame, rank)
                part = total[piece.offset : piece.offset + piece.numel]
                add_parts(parts, part, 1.0 / self.worker.count)
                _join_union(unions[piece.index], parts.chosen, parts.indices)
        frames = []
        for piece, part in bucket.layout.views(total):
            union = unions[piece.index]
            values = taken(part, union, _starts(union, piece.numel))
            body = torch.cat((tensor(union, part), as_bytes(values)))
            frames.append(pack_frame(Codec.CE_SGD, body, numel=piece.numel, nonzero=values.numel()))
        return torch.cat(frames)

    def _received(self, piece: TensorSlice, frame: Frame, rank: int) -> Parts:
        """A worker's frame, read with the V that it brings or that is known."""
        place = piece.index, rank
        body = frame.body
        if not body.numel() or int(body[0]) > 1:
            raise InputError(f"damaged payload: no flag in the frame of {piece.name}")
        if int(body[0]):
            bitmap = body[1 : 1 + packed_bytes(piece.numel, 1)]
            self._known[place] = array(bitmap).copy()
            check_packed(self._known[place], piece.numel, 1)
        elif place not in self._known:
            raise InputError(f"damaged payload: worker {rank} keeps a selection it never sent")
        return self._read(body, piece.numel, frame.nonzero, self._known[place])

    def _read(self, body: Tensor, n: int, travelling: int, chosen: NDArray[np.uint8]) -> Parts:
        """The parts of a body whose flag and bitmap are known to be right."""
        starts = _starts(chosen, n)
        selected = int(starts[-1])
        extra = travelling - selected
        at = 1 + (packed_bytes(n, 1) if int(body[0]) else 0)
        exact = self.parameters.levels is None
        width = 4 * travelling if exact else 0
        if not exact and travelling:
            width = 4 + packed_bytes(travelling, self._bits)
        if extra < 0 or body.numel() != at + 4 * extra + width:
            raise InputError(
                f"damaged payload: {body.numel()} bytes for {selected} selected elements "
                f"and {extra} more of {n}"
            )
        if exact:
            values = from_bytes(body[at : at + 4 * selected], torch.float32, selected)
            at += 4 * selected
        indices = from_bytes(body[at : at + 4 * extra], torch.int32, extra)
        at += 4 * extra
        if exact:
            speculative = from_bytes(body[at:], torch.float32, extra)
        else:
            both = self._rounded(body[at:], travelling)
            values, speculative = both[:selected], both[selected:]
        _check_indices(indices, n)
        return Parts(
            chosen=chosen, starts=starts, values=values, indices=indices, speculative=speculative
        )

    def _rounded(self, body: Tensor, count: int) -> Tensor:
        out = torch.zeros(count, dtype=torch.float32, device=body.device)
        if count:
            assert self.parameters.levels is not None
            scale = from_bytes(body[:4], torch.float32, 1)
            if not float(scale) < math.inf:
                raise InputError("damaged payload: a scale is not finite")
            add_packed_levels(
                out, body[4:], scale, size=count, steps=self.parameters.levels, bits=self._bits,
                weight=1.0,
            )  # fmt: skip
        return out


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Parts:
    """What one worker sent of one tensor."""

    chosen: NDArray[np.uint8]
    """V."""
    starts: NDArray[np.int64]
    """See `_starts`."""
    values: Tensor
    """float32 `[|V|]`."""
    indices: Tensor
    """int32, ascending, outside of V."""
    speculative: Tensor
    """float32, at the indices."""


def speculative_count(n: int, fraction: float) -> int:
    """max(1, round(n fraction)); 0 of nothing."""
    return count_kept(n, fraction) if fraction else 0


def read_answer(message: Tensor, layout: BucketLayout, out: Tensor) -> None:
    """Add the server's answer to `out`, float32 `[layout.numel]`; `InputError` when damaged."""
    for piece, frame in frames_of(message, layout, Codec.CE_SGD):
        cut = packed_bytes(piece.numel, 1)
        union = np.ascontiguousarray(array(frame.body[:cut]))
        check_packed(union, piece.numel, 1)
        starts = _starts(union, piece.numel)
        if int(starts[-1]) != frame.nonzero:
            raise InputError(f"damaged payload: {starts[-1]} bits for {frame.nonzero} values")
        values = from_bytes(frame.body[cut:], torch.float32, frame.nonzero)
        add_at_bits(out[piece.offset : piece.offset + piece.numel], union, starts, values, 1.0)


def add_parts(parts: Parts, out: Tensor, weight: float) -> None:
    """out += weight * what a worker sent, in place; float32 `[n]`."""
    add_at_bits(out, parts.chosen, parts.starts, parts.values, weight)
    out.index_add_(0, parts.indices, parts.speculative, alpha=weight)


@unpriced
def _check_indices(indices: Tensor, n: int) -> None:
    if indices.numel() and (
        int(indices[0]) < 0 or int(indices[-1]) >= n or bool((indices.diff() <= 0).any())
    ):
        raise InputError("damaged payload: indices do not ascend below n")


@kernel("streaming")
def as_mask(bits: NDArray[np.uint8], like: Tensor) -> Tensor:
    """The bits as float32 0 and 1, of the shape of `like`."""
    return tensor(np.unpackbits(bits, count=like.numel(), bitorder="little"), like).float()


@kernel("reduction")
def inner_product(a: Tensor, b: Tensor) -> float:
    """<a, b> of float32 `[n]`: blocks in float32, their sums in float64."""
    n = a.numel()
    sums = partial_sums(n)
    in_parallel(_multiply_and_add, n, array(a), array(b), sums, grain=SUM_BLOCK)
    return float(sums.sum())


@summing_loop
def _multiply_and_add(start: int, stop: int, a: Any, b: Any, sums: Any) -> None:
    for first in range(start, stop, SUM_BLOCK):
        left, right = (
            a[first : min(first + SUM_BLOCK, stop)],
            b[first : min(first + SUM_BLOCK, stop)],
        )
        total = 0.0
        for i in range(left.size):
            total += np.float64(left[i]) * np.float64(right[i])
        sums[first // SUM_BLOCK] = total


# --- selecting -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Found:
    """Of each block: int64 `[ceil(n / BLOCK)]`."""

    chosen: NDArray[np.int64]
    """Elements in V."""
    aged: NDArray[np.int64]
    """Elements outside of V that were not sent for too long."""
    lowest: NDArray[np.int64]
    """The smallest M of the other elements outside of V."""
    ties: NDArray[np.int64]
    """How many have it."""


@kernel("streaming")
def _select(
    values: Tensor, state: Selection, mode: int, key: np.uint64, parameters: CeSgdParameters
) -> _Found:
    """Reward or draw V, count everybody's age, and look at what is outside of V.

    `values` only stands for the bytes of M that are read, the same number.
    """
    n = state.rewards.size
    counts = np.zeros((5, -(-n // BLOCK)), dtype=np.int64)
    if mode in {_DRAW, _START}:
        count_random(n, 16)
    in_parallel(
        _choose,
        n,
        mode,
        state.chosen,
        state.rewards,
        state.age,
        key,
        np.int64(state.highest),
        np.int64(math.ceil(parameters.start_density * 65536)),
        np.uint8(parameters.unsent_limit),
        counts,
        grain=BLOCK,
    )
    state.highest = int(counts[4].max(initial=state.highest))
    return _Found(chosen=counts[0], aged=counts[1], lowest=counts[2], ties=counts[3])


@loop
def _choose(  # noqa: PLR0917 - a loop has no keywords
    start: int,
    stop: int,
    mode: int,
    selection: Any,
    rewards: Any,
    ages: Any,
    key: Any,
    highest: Any,
    threshold: Any,
    limit: Any,
    counts: Any,
) -> None:
    chosen = np.zeros(BLOCK, dtype=np.uint8)
    free = np.empty(BLOCK, dtype=np.int32)
    words = np.empty(BLOCK // 4, dtype=np.uint64)
    random = words.view(np.uint16)
    for first in range(start, stop, BLOCK):
        block = first // BLOCK
        last = min(first + BLOCK, stop)
        m, age = rewards[first:last], ages[first:last]
        bits = selection[first // 8 : (last + 7) // 8]
        chosen[m.size :] = 0
        if mode == _DRAW or mode == _START:
            for j in range((m.size + 3) // 4):
                words[j] = bits64(key, first // 4 + j)
            if mode == _DRAW:
                for i in range(m.size):  # r / 65536 < M / max M, in whole numbers
                    chosen[i] = np.int64(random[i]) * highest < np.int64(m[i]) << np.int64(16)
            else:
                for i in range(m.size):
                    chosen[i] = np.int64(random[i]) < threshold
            for b in range(bits.size):
                byte = np.uint8(0)
                for j in range(8):
                    byte |= chosen[8 * b + j] << np.uint8(j)
                bits[b] = byte
        else:
            for b in range(bits.size):
                for j in range(8):
                    chosen[8 * b + j] = (bits[b] >> np.uint8(j)) & np.uint8(1)
        if mode == _REWARD:
            top = np.int32(0)
            for i in range(m.size):
                m[i] += np.int32(chosen[i])
                top = max(top, m[i])
            counts[4, block] = top
        held = np.int32(0)
        aged = np.int32(0)
        lowest = _NEVER
        for i in range(m.size):
            inside = chosen[i] != 0
            late = (not inside) & (age[i] >= limit)
            older = age[i] + np.uint8(age[i] < np.uint8(255))
            age[i] = np.uint8(0) if inside else older
            held += np.int32(inside)
            aged += np.int32(late)
            value = _NEVER if inside | late else m[i]
            free[i] = value
            lowest = min(lowest, value)
        ties = np.int32(0)
        for i in range(m.size):
            ties += np.int32(free[i] == lowest)
        counts[0, block] = held
        counts[1, block] = aged
        counts[2, block] = lowest
        counts[3, block] = ties if lowest < _NEVER else np.int32(0)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Plan:
    """Which elements outside of V travel: all below a level of M, and some at it."""

    level: int
    """`_AGED` stands below all M."""
    below: NDArray[np.int64]
    """Elements below the level, by block: all travel."""
    ties: NDArray[np.int64]
    """Elements at the level, by block."""
    drawn: NDArray[np.int64]
    """How many of these travel, by block."""


def _plan(
    state: Selection, found: _Found, wanted: int, limit: int, draws: np.random.Generator
) -> _Plan:
    """Divide the wanted number among the blocks so that every set of ties is as likely."""
    none = np.zeros_like(found.aged)
    aged = int(found.aged.sum())
    lowest = int(found.lowest.min(initial=int(_NEVER)))
    level, below, ties = _AGED, none, found.aged
    if aged < wanted:
        at_lowest = np.where(found.lowest == lowest, found.ties, 0)
        level, below, ties = lowest, found.aged, at_lowest
        free = state.rewards.size - int(found.chosen.sum())
        wanted = min(wanted, free)
        if aged + int(at_lowest.sum()) < wanted:
            level, below, ties = _level_of(state, wanted, limit)
    missing = min(wanted - int(below.sum()), int(ties.sum()))
    drawn = none
    if missing > 0:
        drawn = draws.multivariate_hypergeometric(ties, missing, method="marginals")
    return _Plan(level=level, below=below, ties=ties, drawn=drawn)


def _level_of(
    state: Selection, wanted: int, limit: int
) -> tuple[int, NDArray[np.int64], NDArray[np.int64]]:
    """The level of the wanted-th element outside of V: (level, numbers below, numbers at it).

    The slow way, for when fewer than wanted have the lowest M: about 3 n words of memory.
    """
    levels = np.where(state.age > limit, np.int32(_AGED), state.rewards)
    levels[state.age == 0] = _NEVER
    level = int(np.partition(levels, wanted - 1)[wanted - 1])
    firsts = np.arange(0, levels.size, BLOCK)
    below = np.add.reduceat(levels < level, firsts, dtype=np.int64)
    return level, below, np.add.reduceat(levels == level, firsts, dtype=np.int64)


@kernel("gather_scatter")
def _gather(
    values: Tensor,
    state: Selection,
    found: _Found,
    plan: _Plan,
    key: np.uint64,
    parameters: CeSgdParameters,
) -> tuple[Tensor, Tensor, Tensor]:
    """(values in V, speculative indices int32, values there); what travels is zero steps old."""
    sizes = plan.below + plan.drawn
    starts = np.cumsum(sizes) - sizes
    indices = np.empty(int(sizes.sum()), dtype=np.int32)
    picked = np.empty(indices.size, dtype=np.float32)
    source = array(values)
    in_parallel(
        _speculate,
        source.size,
        source,
        state.rewards,
        state.age,
        np.int64(plan.level),
        np.uint8(parameters.unsent_limit),
        plan.below,
        plan.ties,
        plan.drawn,
        starts,
        key,
        indices,
        picked,
        grain=BLOCK,
    )
    ends = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(found.chosen)))
    selected = _taken(values, state.chosen, ends)
    return selected, tensor(indices, values), tensor(picked, values)


@loop
def _level(age: Any, reward: Any, limit: Any) -> Any:
    """Of an element outside of V."""
    return np.int64(_AGED) if age > limit else np.int64(reward)


@loop
def _speculate(  # noqa: PLR0917 - a loop has no keywords
    start: int,
    stop: int,
    values: Any,
    rewards: Any,
    ages: Any,
    level: Any,
    limit: Any,
    below: Any,
    ties: Any,
    drawn: Any,
    starts: Any,
    key: Any,
    indices: Any,
    picked: Any,
) -> None:
    """Each block's speculative elements; a random subset of the ties is found by trying places.

    Of which size does not matter: more than half of the ties are all of them less some.
    """
    marks = np.zeros(BLOCK, dtype=np.uint8)
    eights = marks.view(np.uint64)
    for first in range(start, stop, BLOCK):
        block = first // BLOCK
        last = min(first + BLOCK, stop)
        m, age, piece = rewards[first:last], ages[first:last], values[first:last]
        most = 2 * drawn[block] > ties[block]
        if below[block] > 0 or most:
            for i in range(m.size):
                at = _level(age[i], m[i], limit)
                marks[i] = (age[i] > 0) & ((at < level) | (most & (at == level)))
        change = ties[block] - drawn[block] if most else drawn[block]
        number = block << 40
        while change > 0:
            place = np.int64(((bits64(~key, number) >> np.uint64(32)) * np.uint64(m.size)) >> 32)
            number += 1
            is_tie = (age[place] > 0) & (_level(age[place], m[place], limit) == level)
            if is_tie and marks[place] == most:
                marks[place] = not most
                change -= 1
        at = starts[block]
        for j in range((m.size + 7) // 8):
            if eights[j]:
                for i in range(8 * j, 8 * j + 8):
                    if marks[i]:
                        indices[at] = first + i
                        picked[at] = piece[i]
                        age[i] = 0
                        at += 1
                eights[j] = 0


# --- bits and values -----------------------------------------------------------------------------


@unpriced  # a count of the bits that somebody reads anyway
def _starts(bits: NDArray[np.uint8], n: int) -> NDArray[np.int64]:
    """Set bits before each block of `BLOCK` elements, then of all: int64 `[blocks + 1]`."""
    counts = np.zeros(1 + -(-n // BLOCK), dtype=np.int64)
    in_parallel(_count_bits, n, bits, counts, grain=BLOCK)
    return np.cumsum(counts)


@loop
def _count_bits(start: int, stop: int, bits: Any, counts: Any) -> None:
    for first in range(start, stop, BLOCK):
        part = bits[first // 8 : (min(first + BLOCK, stop) + 7) // 8]
        total = np.int64(0)
        for b in range(part.size):
            byte = part[b]
            byte = byte - ((byte >> np.uint8(1)) & np.uint8(0x55))
            byte = (byte & np.uint8(0x33)) + ((byte >> np.uint8(2)) & np.uint8(0x33))
            total += np.int64((byte + (byte >> np.uint8(4))) & np.uint8(0x0F))
        counts[1 + first // BLOCK] = total


@kernel("gather_scatter")
def taken(values: Tensor, bits: NDArray[np.uint8], starts: NDArray[np.int64]) -> Tensor:
    """The values where a bit is set: float32."""
    return _taken(values, bits, starts)


def _taken(values: Tensor, bits: NDArray[np.uint8], starts: NDArray[np.int64]) -> Tensor:
    out = np.empty(int(starts[-1]) + 1, dtype=np.float32)  # one more: see the loop
    in_parallel(_take, values.numel(), array(values), bits, starts, out, grain=BLOCK)
    return tensor(out[:-1], values)


@loop
def _take(start: int, stop: int, values: Any, bits: Any, starts: Any, out: Any) -> None:
    for first in range(start, stop, BLOCK):
        at = starts[first // BLOCK]
        room = starts[first // BLOCK + 1]
        part = values[first : min(first + BLOCK, stop)]
        packed = bits[first // 8 : (min(first + BLOCK, stop) + 7) // 8]
        for i in range(part.size):
            bit = (packed[i >> 3] >> np.uint8(i & 7)) & np.uint8(1)
            if bit:
                out[at] = part[i]
                at += 1
        assert at == room


@kernel("gather_scatter", updates=("out",))
def add_at_bits(
    out: Tensor, bits: NDArray[np.uint8], starts: NDArray[np.int64], values: Tensor, weight: float
) -> None:
    """out += weight * values, one value for each set bit, in place; float32 `[n]`."""
    with written_back(out) as target:
        in_parallel(
            _add_at_bits, out.numel(), target, bits, starts, array(values), np.float32(weight),
            grain=BLOCK,
        )  # fmt: skip


@loop
def _add_at_bits(
    start: int, stop: int, out: Any, bits: Any, starts: Any, values: Any, weight: Any
) -> None:
    for first in range(start, stop, BLOCK):
        at = starts[first // BLOCK]
        part = out[first : min(first + BLOCK, stop)]
        packed = bits[first // 8 : (min(first + BLOCK, stop) + 7) // 8]
        for i in range(part.size):
            if (packed[i >> 3] >> np.uint8(i & 7)) & np.uint8(1):
                part[i] += weight * values[at]
                at += 1


def _join_union(union: NDArray[np.uint8], chosen: NDArray[np.uint8], indices: Tensor) -> None:
    """Set the bits of V and of the indices, in place."""
    np.bitwise_or(union, chosen, out=union)
    _set_bits(array(indices), union)


@loop
def _set_bits(indices: Any, bits: Any) -> None:
    for i in range(indices.size):
        bits[indices[i] >> 3] |= np.uint8(1) << np.uint8(indices[i] & 7)
