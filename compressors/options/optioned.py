"""A method with options, as a compressor like any other.

They compose from the inside out: half-precision sums, then dense tensors, then dense steps. Dense
parts are float32 and equal dense training to the last bit, whatever else is asked for: the mean
gradient, or, of a method that applies a momentum of its own, the momentum buffer of the mean
gradient (`Compressor.momentum`), since the optimiser then has none. A method that starts after
dense steps does not take that buffer over.

A settled step is one of the method: stage 1 measures what a long training consists of, without the
dense steps.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any, Protocol, TypeGuard

from gcsim.compressors.base import About, Compressor, CompressorParameters, Worker
from gcsim.compressors.bucket import Bucket, BucketLayout, TensorSlice, bucket_state
from gcsim.compressors.controllers.fusing import fused
from gcsim.compressors.dense import Dense
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.lockstep import lockstep
from gcsim.compressors.mistakes import is_users, new_member, passed_on
from gcsim.compressors.options.method import HalfFormat, Options
from gcsim.compressors.participation import participate
from gcsim.compressors.properties import Properties
from gcsim.compressors.requests import AllReduce, Exchange, Request

_NOTHING = CompressorParameters()
_MOST_TRIED = 256
"""Steps of a trial."""
_TRIED = (("weight", 0, (32, 32)), ("bias", 1, (32,)))
"""Tensors of a trial: a matrix and a vector."""


class Optioned(Compressor[Options]):
    """A method with options."""

    about = About(
        title="A method with options",
        family="controller",
        collective="the method's; all-reduce of what stays dense",
        bits="the method's; 32 of what stays dense",
        state="the method's",
        paper="Vogels et al., PowerSGD, NeurIPS 2019, arXiv:1905.13727 (dense start and vectors)",
    )

    def __init__(self, worker: Worker, parameters: Options) -> None:
        super().__init__(worker, parameters)
        self.about = parameters.method.about  # type: ignore[misc]  # what errors call it
        momentum = self.momentum(parameters)
        found: Member = _Guarded(new_member(parameters.method, worker, parameters.own))
        if parameters.payload is not None:
            found = HalfSums(found, parameters.payload)
        if (kept := parameters.dense_tensors) is not None:
            found = DenseTensors(found, DenseUpdate(worker, momentum), kept.names, kept.below)
        if parameters.before:
            found = DenseSteps(found, DenseUpdate(worker, momentum), parameters.before)
        self._member = found

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        return (yield from self._member.exchange(bucket, step))

    def residual_of(self, bucket: Bucket) -> Tensor | None:
        return self._member.residual_of(bucket)

    @classmethod
    def properties(cls, parameters: Options) -> Properties:
        """Properties of the method, without those that rounded sums break."""
        found = parameters.method.properties(parameters.own)
        if parameters.dense_tensors is not None:
            found = replace(found, error_is_exact=False)
        if parameters.payload is None:
            return found
        return Properties(replicas=found.replicas, scale_free=found.scale_free)

    @classmethod
    def memory(cls, parameters: Options) -> str:
        return parameters.method.memory(parameters.own)

    @classmethod
    def period(cls, parameters: Options) -> int:
        return parameters.method.period(parameters.own)

    @classmethod
    def warmup_steps(cls, parameters: Options) -> int:
        """Warm-up steps of the method, after the dense steps."""
        return parameters.before + parameters.method.warmup_steps(parameters.own)

    @classmethod
    def phase(cls, parameters: Options, step: int) -> str:
        """Phase of a step: "dense" first, then the method's."""
        if step < parameters.before:
            return "dense"
        return parameters.method.phase(parameters.own, step - parameters.before)

    @classmethod
    def momentum(cls, parameters: Options) -> tuple[float, bool]:
        return parameters.method.momentum(parameters.own)

    @classmethod
    def window(cls, parameters: Options) -> int:
        return parameters.method.window(parameters.own)


class OptionedWithMoments(Optioned):
    """A method with options that needs second moments."""

    requires = frozenset({"second_moments"})


class _Guarded:
    """A method whose mistakes are told with its own file and line, where it is a user's."""

    def __init__(self, member: Compressor) -> None:
        self._member = member

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        if not is_users(type(self._member)):
            return self._member.exchange(bucket, step)
        return participate(self._member, bucket, step, finite=False, unmodified=False)

    def residual_of(self, bucket: Bucket) -> Tensor | None:
        return self._member.residual_of(bucket)


class Member(Protocol):
    """One worker's side of a method, or of a method with options."""

    def exchange(self, bucket: Bucket, step: int) -> Exchange: ...

    def residual_of(self, bucket: Bucket) -> Tensor | None: ...


class DenseUpdate:
    """The uncompressed update, under a momentum (coefficient, Nesterov)."""

    def __init__(self, worker: Worker, momentum: tuple[float, bool]) -> None:
        self._mean = Dense(worker, _NOTHING)
        self._coefficient, self._nesterov = momentum
        self._buffers: dict[int, Tensor] = {}
        """Momentum buffer by bucket."""

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        mean: Tensor = yield from self._mean.exchange(bucket, step)
        if not self._coefficient:
            return mean
        buffer = bucket_state(self._buffers, bucket).mul_(self._coefficient).add_(mean)
        return mean.add_(buffer, alpha=self._coefficient) if self._nesterov else buffer.clone()

    def forget(self, bucket: Bucket) -> None:
        """Free the bucket's momentum buffer."""
        self._buffers.pop(bucket.layout.index, None)


class DenseSteps:
    """A method that starts after `steps` dense ones."""

    def __init__(self, inner: Member, dense: DenseUpdate, steps: int) -> None:
        self._inner, self._dense, self._steps = inner, dense, steps

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        if step < self._steps:
            return (yield from self._dense.exchange(bucket, step))
        self._dense.forget(bucket)
        return (yield from self._inner.exchange(bucket, step - self._steps))

    def residual_of(self, bucket: Bucket) -> Tensor | None:
        return self._inner.residual_of(bucket)


class DenseTensors:
    """A method beside tensors that stay dense: those whose name matches a pattern, and those of
    fewer than `below` elements."""

    def __init__(self, inner: Member, dense: DenseUpdate, names: Sequence[str], below: int) -> None:
        self._inner, self._dense, self._names, self._below = inner, dense, tuple(names), below

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        dense, rest = self._divided(bucket)
        if dense is None or rest is None:
            member = self._inner if dense is None else self._dense
            return (yield from member.exchange(bucket, step))
        updates = yield from fused(
            [self._dense.exchange(dense, step), self._inner.exchange(rest, step)]
        )
        return _together(bucket, (dense, updates[0]), (rest, updates[1]))

    def residual_of(self, bucket: Bucket) -> Tensor | None:
        dense, rest = self._divided(bucket)
        if rest is None:
            return torch.zeros_like(bucket.gradient)
        held = self._inner.residual_of(rest)
        if dense is None or held is None:
            return held
        return _together(bucket, (dense, torch.zeros_like(dense.gradient)), (rest, held))

    def _divided(self, bucket: Bucket) -> tuple[Bucket | None, Bucket | None]:
        """Buckets of the dense tensors and of the others; None for none."""
        facts, key = bucket.layout.facts, ("dense tensors", self._names, self._below)
        if key not in facts:
            dense = [p for p in bucket.layout.slices if matches(p, self._names, self._below)]
            others = [p for p in bucket.layout.slices if p not in dense]
            facts[key] = [_layout(bucket.layout.index, part) for part in (dense, others)]
        first, second = (_part(bucket, layout) for layout in facts[key])
        return first, second


def matches(piece: TensorSlice, names: Sequence[str], below: int) -> bool:
    """Whether a tensor stays dense."""
    return piece.numel < below or any(fnmatchcase(piece.name, pattern) for pattern in names)


def _layout(index: int, slices: Sequence[TensorSlice]) -> BucketLayout | None:
    """A bucket's layout with some of its tensors, one behind the other; None for none."""
    pieces = ((piece.name, piece.index, piece.shape) for piece in slices)
    return BucketLayout.behind(index, pieces) if slices else None


def _part(bucket: Bucket, layout: BucketLayout | None) -> Bucket | None:
    """The bucket's tensors that a layout has; None for none."""
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
    )


def _together(bucket: Bucket, *parts: tuple[Bucket, Tensor]) -> Tensor:
    """A vector of the bucket from vectors of its parts: float32 `[n]`."""
    found = {
        piece.index: values for part, flat in parts for piece, values in part.layout.views(flat)
    }
    return torch.cat([found[piece.index] for piece in bucket.layout.slices])


class HalfSums:
    """A method whose float32 sums travel in 16 bits."""

    def __init__(self, inner: Member, payload: HalfFormat) -> None:
        self._inner, self._payload = inner, payload

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        narrow = torch.float16 if self._payload == "fp16" else torch.bfloat16

        def ask(request: Request) -> Generator[Request, Any, Any]:
            if not is_float_sum(request):
                return (yield request)
            return (yield AllReduce(tensor=request.tensor.to(narrow))).float()

        return passed_on(self._inner.exchange(bucket, step), ask)

    def residual_of(self, bucket: Bucket) -> Tensor | None:
        return self._inner.residual_of(bucket)


def is_float_sum(request: Request) -> TypeGuard[AllReduce]:
    """Whether a request adds up float32 numbers."""
    return (
        isinstance(request, AllReduce)
        and request.op == "sum"
        and request.tensor.dtype == torch.float32
    )


def adds_up_floats(method: type[Compressor], parameters: Any) -> bool:
    """Whether a method all-reduces sums of float32 in its settled steps; a trial on small tensors
    says so, since that may depend on its parameters, a controller's on its inner compressor."""
    layout = BucketLayout.behind(0, _TRIED)
    team = [method(Worker(rank=rank, count=2, seed=0), parameters) for rank in range(2)]
    first, heard = method.warmup_steps(parameters), False

    def listening(request: Request) -> Generator[Request, Any, Any]:
        nonlocal heard
        heard = heard or is_float_sum(request)
        return (yield request)

    for step in range(first, first + min(method.period(parameters), _MOST_TRIED)):
        exchanges = []
        for member in team:
            draw = torch.Generator().manual_seed(2 * step + member.worker.rank)
            gradient = torch.randn(layout.numel, generator=draw)
            moment = gradient.square() if method.requires else None
            bucket = Bucket(layout=layout, gradient=gradient, second_moment=moment, loss=1.0)
            exchanges.append(passed_on(participate(member, bucket, step), listening))
        with torch.no_grad():
            lockstep(exchanges)
        if heard:
            return True
    return False
