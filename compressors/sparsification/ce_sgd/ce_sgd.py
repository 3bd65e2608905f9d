"""CE-SGD: a worker keeps sending the coordinates that served it well, until they do not.

Worker i holds, for each tensor, a selection V (one bit an element), a map M of how often each
element was in a rewarded selection, and how long each has not been sent. Before each step:
    f(x_{t-1}) > f(x_t): V stays, M += V;    otherwise: V_j = 1 with probability |g_j| / max |g|
(V_0 is drawn in that way too). What travels are g_V and `speculative` n elements outside of
V: those unsent for `unsent_limit` steps first, then by ascending M, ties at random. The server
knows each worker's V, averages over all workers (absent elements count as zero) and sends the mean
at the union of what arrived.

Body of a tensor: a flag byte; V as bitmap of n bits, only when it differs from the last one;
32 |V| bits of values; 64 a speculative element (index, value). Down: a bitmap of the union and its
values, n + 32 |union|. With `levels` l, values go as random roundings to 2 l + 1 levels,
ceil(log2(2 l + 1)) bits each, and a scale of 32 bits, as in Eq. 8. Biased: at the first
step E|Q(g) - g|^2 <= sum (1 - |g_j| / max |g|) g_j^2, with equality but for speculative elements.

The feedback f is the worker's own loss, which a bucket carries in live and recorded training; to
a DDP hook it is told (`hook.loss`). Where nobody knows it, the gradient stands in: a bucket has
improved when <g_t, u_{t-1}> > 0 with u the last update. For a convex f and plain gradient descent
that is sufficient: f(x_{t-1}) - f(x_t) >= <g_t, x_{t-1} - x_t> = lr <g_t, u_{t-1}>. In training on
mini-batches it agrees with the loss in half of the steps, which is chance: V then moves about as
often as it should, but not when it should. (`feedback: norm`: the averaged gradient's norm fell
from the last step but one to the last.) With nothing to compare yet, V stays and M is not changed.

The printed algorithm, by the letter, freezes. It draws V_j with probability M_j / max M (line 14),
and M sums selections: after the first reward M is a multiple of V's indicator, so that every later
draw is the same V, for ever. To count speculative elements as selected, as Fig. 2 may be read,
does not free it: who has the largest M is always drawn and rewarded again, so that nothing leaves
V_0, whose density is not given, and the share sent never falls. The text behind Definition 3 has
Bernoulli(|g_j| / max |g|), which is taken here: V follows the gradient, and M is left to say which
elements are rare.

What comes of it, on 4 workers with batches of 64 and Adam as in the paper, mean of 40 to 60 steps
from V_0 on: a worker sends 11 to 20 % of a dense gradient's bytes, the union has 31 to 56 %, both
directions together 21 to 38 % (LeNet, ResNet-20, a narrow VGG, two small networks). Table I has
32 % (21.1 of 66 MB, it is not said which way), Table II 44 and 49 % for WideResNet and VGG11.
MobileNet's 79 % are not met, and large networks with small batches come below (VGG-16, batches of
32: 10 and 32 % at the start, 4 and 16 % after 12 steps).

Further readings where the paper is open or slips:
* Both branches print f(x_{t-1}) > f(x_t); the second means "otherwise", as Algorithm 2 has it.
* Algorithm 2, line 7, masks the received average with each worker's own V: replicas would drift
  apart and speculative elements be lost. Left out; `mask_received` is the literal reading.
* M sums rewarded selections only (line 12 is in that branch).
* How many elements are speculative, and when, is not said: 1 % at each step.
* The index m - 1 of Algorithm 2 says that a layer is sent while the next one is differentiated:
  when tensors travel is the matter of buckets, not of this method.
* What is not sent is lost (`residual` keeps it for the next step).

The server averages element by element and needs of a worker's V what belongs to the element: where
there is no server, each worker serves a stripe of the elements. (The paper has a server.)

State beside V and marks (n bits each): M (int32), age (one byte), last update (n floats) where no
loss is known, with feedback "descent"; the server's V of each worker. Memory of a step: below 3 n
floats.

Source: Z. Tao, Q. Xia, Q. Li, S. Cheng, "CE-SGD: Communication-Efficient Distributed Machine
Learning", Algorithm 2, Definitions 1-3, Eq. 8.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Literal

import numpy as np
from pydantic import Field

from gcsim.compressors.base import About, CompressorParameters, Worker, add_all
from gcsim.compressors.bucket import Bucket, bucket_state
from gcsim.compressors.coding.indices.bitmap import as_mask, at_bits, bit_starts, bytes_of
from gcsim.compressors.coding.selecting.selection import counts_kept
from gcsim.compressors.error_feedback import ErrorFeedback
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.loops import SUM_BLOCK, array, in_parallel, partial_sums, summing_loop
from gcsim.compressors.meter import kernel
from gcsim.compressors.properties import Properties
from gcsim.compressors.random import stream
from gcsim.compressors.requests import Exchange, PushPull
from gcsim.compressors.segments import Segments, keys_of
from gcsim.compressors.sharing import fill_once
from gcsim.compressors.sparsification.ce_sgd.messages import (
    Parts,
    add_answer,
    add_parts,
    packed_answer,
    packed_parts,
    read_parts,
    unite_parts,
)
from gcsim.compressors.sparsification.ce_sgd.selection import Selection


class CeSgdParameters(CompressorParameters):
    speculative: float = Field(
        0.01, ge=0, le=1, description="fraction of the elements outside of V that travels as well"
    )
    unsent_limit: int = Field(
        100, ge=1, le=254, description="steps after which an unsent element goes first"
    )
    feedback: Literal["descent", "norm"] = Field(
        "descent",
        description="improved, where the loss is not known: the gradient agrees with the last "
        "update, or the update's norm fell",
    )
    mask_received: bool = Field(False, description="apply the average at the own V only (line 7)")
    residual: bool = Field(False, description="add what was not sent to the next gradient")
    levels: int | None = Field(
        None, ge=1, le=127, description="l: values rounded to 2 l + 1 levels; null: float32"
    )


class CeSgd(ErrorFeedback[CeSgdParameters]):
    """Coordinates that are kept while the feedback is good; a server that remembers them."""

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
        self._selections: dict[int, Selection] = {}
        """By bucket."""
        self._last: dict[int, Tensor] = {}
        """By bucket: the last update, with feedback "descent"."""
        self._norms: dict[int, list[float]] = {}
        """By bucket: norms of the last two averages, with feedback "norm"."""
        self._losses: dict[int, float] = {}
        """By bucket: the last step's."""
        self._known: dict[tuple[int, int], Tensor] = {}
        """The server's: V by (bucket, rank)."""

    @classmethod
    def properties(cls, parameters: CeSgdParameters) -> Properties:
        p = parameters

        def bound(values: Tensor) -> float:
            magnitudes = values.double().abs()
            highest = float(magnitudes.max()) if values.numel() else 0.0
            return float(((highest - magnitudes) * magnitudes**2).sum()) / (highest or 1.0)

        return Properties(
            error_bound=bound if p.levels is None else None,
            conserves=p.residual and not p.mask_received,
            replicas="differ" if p.mask_received else "identical",
        )

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        message = self.encode(bucket, step)

        def serve(payloads: Iterable[Tensor]) -> Tensor:
            return self._serve(bucket, payloads)

        answer = yield PushPull(
            payload=message, server=serve, without_server="alltoall_allgather", variable=True
        )
        update = torch.zeros_like(bucket.gradient)
        fill_once(add_all, answer, update, add_answer, bucket.layout, 1.0, {})
        self._remember(bucket, update)
        if self.parameters.mask_received:
            own = self._selections[bucket.layout.index].chosen
            update.mul_(as_mask(own, Segments.of(bucket.layout)).to(update.device))
        return update

    # --- feedback --------------------------------------------------------------------------

    def _improved(self, bucket: Bucket) -> bool | None:
        """Whether the last step did well; None when there is nothing to compare with."""
        index = bucket.layout.index
        if bucket.loss is not None:
            before = self._losses.get(index)
            self._losses[index] = bucket.loss
            return None if before is None else before > bucket.loss
        if self.parameters.feedback == "norm":
            norms = self._norms.get(index, [])
            return norms[0] > norms[1] if len(norms) > 1 else None
        last = self._last.get(index)
        return None if last is None else inner_product(bucket.gradient, last) > 0

    def _remember(self, bucket: Bucket, average: Tensor) -> None:
        index = bucket.layout.index
        if bucket.loss is not None:
            return
        if self.parameters.feedback == "norm":
            norm = math.sqrt(inner_product(average, average))
            self._norms[index] = [*self._norms.get(index, []), norm][-2:]
        else:
            bucket_state(self._last, bucket).copy_(average)

    # --- worker ----------------------------------------------------------------------------

    def encode(self, bucket: Bucket, step: int) -> Tensor:
        """Select and pack a step's elements: uint8, one frame a tensor."""
        p, me, layout = self.parameters, self.worker, bucket.layout
        segments, improved, given = (
            Segments.of(layout),
            self._improved(bucket),
            self.corrected(bucket),
        )
        state = self._selections.setdefault(layout.index, Selection(segments, p.unsent_limit))
        wanted = segments.column(0)
        if p.speculative:
            wanted = counts_kept(segments.length, p.speculative)
        values = given.cpu()

        def draws(t: int) -> np.random.Generator:
            return stream(me.seed, step, layout.slices[t].index, "ce_sgd speculative", me.rank)

        keys = keys_of(layout, me.seed, step, "ce_sgd selection", me.rank)
        new, indices, extra = state.renew(values, improved, wanted, keys, draws)
        begins = bit_starts(state.chosen, segments)
        places = indices.long() + torch.from_numpy(np.repeat(segments.begin, extra))
        parts = Parts(
            chosen=state.chosen, begins=begins, indices=indices, extra=extra,
            values=at_bits(values, state.chosen, segments, begins), speculative=values[places],
        )  # fmt: skip
        keys = keys_of(layout, me.seed, step, "ce_sgd levels", me.rank)
        message = packed_parts(parts, segments, new, p.levels, keys)
        if p.residual:  # less what was sent
            add_parts(read_parts(message, layout, state.chosen, p.levels), segments, given, -1.0)
        return message.to(given.device)

    # --- server ----------------------------------------------------------------------------

    def _serve(self, bucket: Bucket, payloads: Iterable[Tensor]) -> Tensor:
        """The mean over workers at the union of what they sent; remembers new selections."""
        layout, segments = bucket.layout, Segments.of(bucket.layout)
        total = torch.zeros(bucket.gradient.numel())
        union = torch.zeros(int(bytes_of(segments).sum()), dtype=torch.uint8)
        for rank, payload in enumerate(payloads):
            place = layout.index, rank
            known = self._known.get(place)
            parts = read_parts(payload.cpu(), layout, known, self.parameters.levels)
            self._known[place] = parts.chosen
            add_parts(parts, segments, total, 1.0 / self.worker.count)
            unite_parts(union, parts, segments)
        return packed_answer(total, union, segments).to(bucket.gradient.device)


@kernel("reduction")
def inner_product(a: Tensor, b: Tensor) -> float:
    """<a, b> of float32 `[n]`, in float64."""
    n = a.numel()
    sums = partial_sums(n)
    in_parallel(_multiply_and_add, n, array(a), array(b), sums, grain=SUM_BLOCK)
    return float(sums.sum())


@summing_loop
def _multiply_and_add(start: int, stop: int, a: Any, b: Any, sums: Any) -> None:
    for first in range(start, stop, SUM_BLOCK):
        last = min(first + SUM_BLOCK, stop)
        left, right = a[first:last], b[first:last]
        total = 0.0
        for i in range(left.size):
            total += np.float64(left[i]) * np.float64(right[i])
        sums[first // SUM_BLOCK] = total
