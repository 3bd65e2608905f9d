"""A method with options, as a compressor like any other.

Options are applied from the inside out: half-precision sums, a larger ratio at first, dense
tensors, dense steps. Dense parts are float32 and equal dense training to the last bit: the update
is the mean gradient or, if the method applies momentum (`Compressor.momentum`; the optimiser then
has none), its momentum buffer, which a method that starts after dense steps does not take over.
Settled steps are the method's own: stage 1 measures a long training without the dense steps.
"""

from __future__ import annotations

from collections.abc import Generator, Hashable, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any

from gcsim.compressors.base import About, Compressor, Properties, Worker
from gcsim.compressors.bucket import Bucket, BucketLayout
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.lockstep import in_rank_order, lockstep
from gcsim.compressors.mistakes import is_users, new_member, passed_on
from gcsim.compressors.options.method import Options
from gcsim.compressors.participation import participate
from gcsim.compressors.requests import AllReduce, Exchange, Operation, Request

_MOST_TRIED = 256
_TRIED = (("weight", 0, (32, 32)), ("bias", 1, (32,)))
_START, _BESIDE = "dense steps", "dense tensors"
"""Names of the momentum buffers of dense parts."""


class Optioned(Compressor[Options]):
    about = About(
        title="A method with options",
        family="option",
        collective="the method's; all-reduce of what stays dense",
        bits="the method's; 32 of what stays dense",
        state="the method's",
        paper="Vogels et al., PowerSGD, NeurIPS 2019, arXiv:1905.13727 (dense start and vectors)",
    )

    def __init__(self, worker: Worker, parameters: Options) -> None:
        super().__init__(worker, parameters)
        method, own = parameters.own
        self.about = method.about  # type: ignore[misc]  # what errors call it
        self._method = new_member(method, worker, own)

    @classmethod
    def period(cls, parameters: Options) -> int:
        method, own = parameters.own
        return method.period(own)

    @classmethod
    def momentum(cls, parameters: Options) -> tuple[float, bool]:
        method, own = parameters.own
        return method.momentum(own)

    @classmethod
    def window(cls, parameters: Options) -> int:
        method, own = parameters.own
        return method.window(own)

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        before = self.parameters.before
        if step < before:
            return (yield from self._dense_exchange(_START, bucket))
        self.state[_START].pop(bucket.layout.index, None)
        dense, rest = self._divided(bucket)
        if rest is None:
            return (yield from self._dense_exchange(_BESIDE, bucket))
        self._method.parameters = self.parameters.at(step - before)
        own = self._own_exchange(rest, step - before)
        if dense is None:
            return (yield from own)
        beside, update = yield from fused([self._dense_exchange(_BESIDE, dense), own])
        return _together(bucket, (dense, beside), (rest, update))

    def residual_of(self, bucket: Bucket) -> Tensor | None:
        dense, rest = self._divided(bucket)
        if rest is None:
            return torch.zeros_like(bucket.gradient)
        held = self._method.residual_of(rest)
        if dense is None or held is None:
            return held
        return _together(bucket, (dense, torch.zeros_like(dense.gradient)), (rest, held))

    def _own_exchange(self, bucket: Bucket, step: int) -> Exchange:
        """Run the method's exchange, sums in 16 bits; a user's errors get file and line."""
        if is_users(type(self._method)):
            exchange = participate(self._method, bucket, step, finite=False, unmodified=False)
        else:
            exchange = self._method.exchange(bucket, step)
        payload = self.parameters.payload
        if payload is None:
            return exchange
        narrow = torch.float16 if payload == "fp16" else torch.bfloat16

        def ask(request: Request) -> Generator[Request, Any, Any]:
            if isinstance(request, AllReduce) and _is_float_sum(request.tensor, request.op):
                return (yield AllReduce(tensor=request.tensor.to(narrow))).float()
            return (yield request)

        return passed_on(exchange, ask)

    def _dense_exchange(self, name: str, bucket: Bucket) -> Exchange:
        """Return the mean gradient, or the buffer `name` after the method's momentum."""
        mean: Tensor = yield AllReduce(tensor=bucket.gradient / self.worker.count)
        coefficient, nesterov = self.momentum(self.parameters)
        if not coefficient:
            return mean
        buffer = self.kept(name, bucket).mul_(coefficient).add_(mean)
        return mean.add_(buffer, alpha=coefficient) if nesterov else buffer.clone()

    def _divided(self, bucket: Bucket) -> tuple[Bucket | None, Bucket | None]:
        """Divide the bucket into the dense tensors and the others; None for an empty part."""
        kept = self.parameters.dense_tensors
        if kept is None:
            return None, bucket
        layout, key = bucket.layout, (_BESIDE, kept.names, kept.below)
        if key not in layout.facts:
            dense = [
                piece
                for piece in layout.slices
                if piece.numel < kept.below
                or any(fnmatchcase(piece.name, pattern) for pattern in kept.names)
            ]
            sides = dense, [piece for piece in layout.slices if piece not in dense]
            layout.facts[key] = [
                BucketLayout.behind(layout.index, ((p.name, p.index, p.shape) for p in side))
                if side
                else None
                for side in sides
            ]
        first, second = (_part(bucket, side) for side in layout.facts[key])
        return first, second

    @classmethod
    def properties(cls, parameters: Options) -> Properties:
        """Return the method's properties without those that rounded sums break."""
        method, own = parameters.own
        found = method.properties(own)
        if parameters.dense_tensors is not None:
            found = replace(found, error_is_exact=False)
        if parameters.payload is None:
            return found
        return Properties(replicas=found.replicas, scale_free=found.scale_free)

    @classmethod
    def memory(cls, parameters: Options) -> str:
        method, own = parameters.own
        return method.memory(own)

    @classmethod
    def warmup_steps(cls, parameters: Options) -> int:
        method, own = parameters.own
        return parameters.before + max(parameters.warming, method.warmup_steps(own))

    @classmethod
    def phase(cls, parameters: Options, step: int) -> str:
        if step < parameters.before:
            return "dense"
        method, own = parameters.own
        return method.phase(own, step - parameters.before)


class OptionedWithMoments(Optioned):
    """A method with options that needs second moments."""

    requires = frozenset({"second_moments"})


def fused(exchanges: Sequence[Exchange]) -> Generator[Request, Any, list[Tensor]]:
    """Run exchanges together and return their updates, in order. In each round all-reduces of the
    same operation and dtype become one, of their tensors behind each other; other requests are sent
    unchanged. The kinds of request must be the same on all workers, as for any collective."""
    updates: dict[int, Tensor] = {}
    replies: dict[int, Any] = dict.fromkeys(range(len(exchanges)))
    while replies:
        groups: dict[Hashable, dict[int, Any]] = {}
        for number, reply in sorted(replies.items()):
            try:
                request = exchanges[number].send(reply)
            except StopIteration as stop:
                updates[number] = stop.value
            else:
                kind: Hashable = number
                if isinstance(request, AllReduce):
                    kind = request.op, request.tensor.dtype
                groups.setdefault(kind, {})[number] = request
        replies = {}
        for members in groups.values():
            first, *others = members.values()
            if not others:
                replies |= dict.fromkeys(members, (yield first))
                continue
            tensors = [request.tensor for request in members.values()]
            total = yield replace(first, tensor=torch.cat([t.reshape(-1) for t in tensors]))
            pieces = total.split_with_sizes([t.numel() for t in tensors])
            shaped = (piece.view(t.shape) for piece, t in zip(pieces, tensors, strict=True))
            replies |= zip(members, shaped, strict=True)
    return [updates[number] for number in range(len(exchanges))]


def _part(bucket: Bucket, layout: BucketLayout | None) -> Bucket | None:
    """Return the part of the bucket with the tensors of `layout`; None without a layout."""
    if layout is None or len(layout.slices) == len(bucket.layout.slices):
        return None if layout is None else bucket
    taken = {piece.index for piece in layout.slices}
    pieces = [piece for piece in bucket.layout.slices if piece.index in taken]
    moment = bucket.second_moment
    return Bucket(
        layout=layout,
        gradient=torch.cat([piece.of(bucket.gradient) for piece in pieces]),
        second_moment=None if moment is None else torch.cat([p.of(moment) for p in pieces]),
        loss=bucket.loss,
        rate=bucket.rate,
    )


def _together(bucket: Bucket, *parts: tuple[Bucket, Tensor]) -> Tensor:
    """Join the vectors of the bucket's parts: float32 `[n]`."""
    found = {
        piece.index: values for part, flat in parts for piece, values in part.layout.views(flat)
    }
    return torch.cat([found[piece.index] for piece in bucket.layout.slices])


def _is_float_sum(tensor: Tensor, op: Operation) -> bool:
    return op == "sum" and tensor.dtype == torch.float32


@lru_cache(maxsize=256)
def adds_up_floats(method: type[Compressor], parameters: str) -> bool:
    """Whether a method all-reduces float32 sums in its settled steps, which may depend on its
    parameters (JSON). Tries it on small tensors."""
    layout, own = BucketLayout.behind(0, _TRIED), method.Parameters.model_validate_json(parameters)
    team = [method(Worker(rank=rank, count=2, seed=0), own) for rank in range(2)]
    heard = False

    def listening(tensors: Sequence[Tensor], op: Operation) -> Tensor:
        nonlocal heard
        heard = heard or _is_float_sum(tensors[0], op)
        return in_rank_order(tensors, op)

    first = method.warmup_steps(own)
    for step in range(first, first + min(method.period(own), _MOST_TRIED)):
        exchanges = []
        for member in team:
            draw = torch.Generator().manual_seed(2 * step + member.worker.rank)
            gradient = torch.randn(layout.numel, generator=draw)
            moment = gradient.square() if method.requires else None
            bucket = Bucket(layout=layout, gradient=gradient, second_moment=moment, loss=1.0)
            exchanges.append(participate(member, bucket, step))
        with torch.no_grad():
            lockstep(exchanges, reduction=listening)
        if heard:
            return True
    return False
