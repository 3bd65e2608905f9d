"""The subject of the checks: workers in lockstep on small buckets."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from gcsim.compressors.base import Compressor, CompressorParameters, Properties, Worker
from gcsim.compressors.bucket import Bucket, BucketLayout
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.lockstep import Observer, lockstep
from gcsim.compressors.mistakes import new_member, passed_on
from gcsim.compressors.options.method import checked
from gcsim.compressors.participation import participate
from gcsim.compressors.registry import compressor_class
from gcsim.compressors.requests import AllGather, AllToAll, Exchange, Request, tensors_sent
from gcsim.compressors.sharing import same

SHAPES: tuple[tuple[int, ...], ...] = ((16, 24), (24,), (8, 3, 3, 3), (), (0,))
STEPS = 4


def numel(shapes: Sequence[tuple[int, ...]]) -> int:
    """Return the number of elements of all tensors."""
    return sum(math.prod(shape) for shape in shapes)


N = numel(SHAPES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    name: str
    compressor: type[Compressor]
    parameters: CompressorParameters
    device: str = "cpu"
    """Device of the exchanged gradients; checks create and compare them on the host."""

    @property
    def properties(self) -> Properties:
        return self.compressor.properties(self.parameters)

    @property
    def title(self) -> str:
        return self.crew().members[0].about.title

    @property
    def first(self) -> int:
        """The first settled step."""
        return self.compressor.warmup_steps(self.parameters)

    def windows(self, at_least: int) -> int:
        """Return the least whole number of windows with at least so many steps, in steps."""
        window = self.compressor.window(self.parameters)
        return -(-at_least // window) * window

    def crew(
        self, shapes: Sequence[tuple[int, ...]] = SHAPES, *, workers: int = 2, seed: int = 3
    ) -> Crew:
        pieces = ((f"tensor {index}", index, shape) for index, shape in enumerate(shapes))
        return Crew(self, BucketLayout.behind(0, pieces), workers, seed)


class Crew:
    """The workers of one exchange; their state is kept between steps."""

    def __init__(self, subject: Subject, layout: BucketLayout, workers: int, seed: int) -> None:
        self.layout = layout
        self._device, self._first = subject.device, subject.first
        self.members = [
            new_member(
                subject.compressor, Worker(rank=rank, count=workers, seed=seed), subject.parameters
            )
            for rank in range(workers)
        ]

    def bucket(self, gradient: Tensor) -> Bucket:
        """Return a bucket with the gradient and the method's other required data: noise dominates
        the samples, so that the sum of (g_z / B)^2 is twice the squared mean."""
        gradient = gradient.to(self._device)
        moment = 2 * gradient.square() if self.members[0].requires else None
        return Bucket(layout=self.layout, gradient=gradient, second_moment=moment)

    def exchanges(self, gradients: Sequence[Tensor], step: int) -> list[Exchange]:
        pairs = zip(self.members, gradients, strict=True)
        return [participate(member, self.bucket(gradient), step) for member, gradient in pairs]

    def step(
        self, gradients: Sequence[Tensor], step: int, observer: Observer | None = None
    ) -> list[Tensor]:
        """Return the workers' updates; each computes by itself, as on a cluster."""
        with torch.no_grad():
            updates = lockstep(self.exchanges(gradients, step), observer, share=False)
        return [update.cpu() for update in updates]

    def heard(
        self, gradients: Sequence[Tensor], step: int, *, share: bool | Literal["checked"] = False
    ) -> tuple[list[Tensor], list[list[Heard]]]:
        """Return the updates, and per worker copies of its requests and replies."""
        logs: list[list[Heard]] = [[] for _ in self.members]
        pairs = zip(self.exchanges(gradients, step), logs, strict=True)
        with torch.no_grad():
            updates = lockstep([overheard(*pair) for pair in pairs], share=share)
        return [update.cpu() for update in updates], logs

    def updates(
        self, steps: int, given: Sequence[Tensor] | None = None, observer: Observer | None = None
    ) -> Iterator[tuple[int, list[Tensor]]]:
        """Yield the first settled steps and their updates, for drawn or `given` gradients."""
        for t in range(self._first, self._first + steps):
            drawn = given or gradients(self.layout.numel, len(self.members), t)
            yield t, self.step(drawn, t, observer)


def subject_of(compressor: type[Compressor] | str, given: Mapping[str, Any]) -> Subject:
    """Return the subject for a class, a registered name or `package.module:Class`."""
    if isinstance(compressor, str):
        name, cls = compressor, compressor_class(compressor)
    else:
        name, cls = compressor.__name__, compressor
    method = checked(name, cls, given)
    return Subject(name=name, compressor=method.compressor, parameters=method.parameters)


def normal(n: int, seed: int, scale: float = 0.1) -> Tensor:
    """Draw Gaussian float32 `[n]` from a separate generator."""
    return scale * torch.randn(n, generator=torch.Generator().manual_seed(seed))


def gradients(n: int, workers: int, step: int) -> list[Tensor]:
    """Draw a gradient for each worker, different in each step."""
    return [normal(n, 1000 * step + rank) for rank in range(workers)]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Heard:
    kind: type[Request]
    sent: list[Tensor]
    reply: Any


def overheard(exchange: Exchange, log: list[Heard]) -> Exchange:
    """Run an exchange and record its requests and replies."""

    def noting(request: Request) -> Generator[Request, Any, Any]:
        sent = [tensor.clone() for tensor in tensors_sent(request)]
        reply = yield request
        gathered = isinstance(request, AllGather | AllToAll)
        copies = [payload.clone() for payload in reply] if gathered else reply.clone()
        log.append(Heard(kind=type(request), sent=sent, reply=copies))
        return reply

    return passed_on(exchange, noting)


@contextmanager
def unchanged_global_generators() -> Iterator[None]:
    """Fail if torch's, numpy's or Python's global random state is used or set inside. The states
    are advanced first, so that setting the same seed again is noticed, and restored afterwards."""
    import random

    import numpy as np

    def states() -> tuple[Any, ...]:
        return torch.get_rng_state(), np.random.get_state(), random.getstate()  # noqa: NPY002

    own = states()
    torch.rand(3), np.random.rand(3), random.random()  # noqa: NPY002, S311
    before = states()
    try:
        yield
        after = states()
    finally:
        torch.set_rng_state(own[0])
        np.random.set_state(own[1])  # noqa: NPY002
        random.setstate(own[2])
    for what, old, new in zip(("torch", "numpy", "Python"), before, after, strict=True):
        assert same(old, new), f"{what}'s global random state was used"
