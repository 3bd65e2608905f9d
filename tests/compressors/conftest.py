"""How do tests run a compressor? As workers in lockstep, on a bucket of tensors of given shapes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from gcsim.compressors.base import Compressor, Worker
from gcsim.compressors.bucket import Bucket, BucketLayout
from gcsim.compressors.lockstep import CollectiveRecord, Observer, lockstep
from gcsim.compressors.meter import Meter
from gcsim.compressors.participation import participate
from gcsim.compressors.registry import create
from tests.compressors import shared
from tests.compressors.shared import layout_of_shapes


class Listener(Observer):
    """An observer that keeps the collectives and the payloads."""

    def __init__(self) -> None:
        self.collectives: list[CollectiveRecord] = []
        self.received: list[list[Tensor]] = []
        self.as_sent: list[list[Tensor]] = []
        """Copies of `received`, made before anybody decoded."""

    def payloads(self, received: list[Tensor]) -> Iterable[Tensor]:
        if not any(received is seen for seen in self.received):
            self.received.append(received)
            self.as_sent.append([payload.clone() for payload in received])
        return received

    def collective(self, record: CollectiveRecord) -> None:
        self.collectives.append(record)


class Team:
    """Workers of one compressor that keep their state from step to step."""

    def __init__(
        self,
        name: str,
        shapes: Sequence[tuple[int, ...]],
        *,
        workers: int = 2,
        seed: int = 7,
        **parameters: Any,
    ) -> None:
        self.layout = layout_of_shapes(shapes)
        self.workers = [
            create(name, Worker(rank=rank, count=workers, seed=seed), parameters)
            for rank in range(workers)
        ]
        self.listener = Listener()

    def step(self, gradients: Sequence[Tensor], number: int = 0) -> list[Tensor]:
        """The workers' updates; `listener` holds what happened in this step."""
        self.listener = Listener()
        exchanges = []
        for worker, gradient in zip(self.workers, gradients, strict=True):
            # noise-dominated samples: the sum of (g_z / B)^2 is twice the squared mean
            moment = 2 * gradient.square() if worker.requires else None
            bucket = Bucket(layout=self.layout, gradient=gradient, second_moment=moment)
            exchanges.append(participate(worker, bucket, number))
        return lockstep(exchanges, self.listener)

    @property
    def sent(self) -> list[tuple[int, ...]]:
        """Bytes by collective and rank in the last step."""
        return [record.sent for record in self.listener.collectives]


@pytest.fixture
def team() -> Callable[..., Team]:
    """Make a team: `team("topk", [(100,)], workers=2, ratio=0.1)`."""
    return Team


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    """Set torch's number of threads; it is put back afterwards."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.fixture
def same_on_any_threads(threads: Callable[[int], None]) -> Callable[..., tuple[Any, ...]]:
    """What `run()` returns, tensors or numbers, after a check that 1, 2 and 3 threads agree."""

    def check(run: Callable[[], tuple[Any, ...]]) -> tuple[Any, ...]:
        found = []
        for count in (1, 2, 3):
            threads(count)
            found.append(run())
        for other in found[1:]:
            for one, two in zip(found[0], other, strict=True):
                assert torch.equal(one, two) if isinstance(one, Tensor) else one == two
        return found[0]

    return check


@pytest.fixture
def normal() -> Callable[..., Tensor]:
    """Draw a float32 N(0, 1) vector: `normal(n, seed)`."""

    def draw(n: int, seed: int = 0) -> Tensor:
        return torch.randn(n, generator=torch.Generator().manual_seed(seed))

    return draw


@pytest.fixture
def layout_of() -> Callable[..., BucketLayout]:
    """The layout of a bucket of vectors: `layout_of(200, 30)`."""
    return shared.layout_of


@pytest.fixture
def bucket_of() -> Callable[..., Bucket]:
    """A bucket that holds the given tensors: `bucket_of(matrix, bias)`."""

    def fill(*tensors: Tensor) -> Bucket:
        layout = layout_of_shapes(tuple(tensor.shape) for tensor in tensors)
        return Bucket(layout=layout, gradient=torch.cat([t.reshape(-1) for t in tensors]))

    return fill


@pytest.fixture
def exchange() -> Callable[..., list[Tensor]]:
    """The updates of workers that exchange one bucket each: `exchange(workers, buckets, step)`."""

    def run(
        group: Sequence[Compressor],
        buckets: Sequence[Bucket],
        step: int = 0,
        meter: Meter | None = None,
    ) -> list[Tensor]:
        return lockstep(
            [participate(w, b, step) for w, b in zip(group, buckets, strict=True)], meter
        )

    return run


@pytest.fixture
def step_of(exchange: Callable[..., list[Tensor]]) -> Callable[..., list[Tensor]]:
    """As `exchange`, of gradients in one layout: `step_of(workers, layout, gradients, step)`."""

    def run(
        group: Sequence[Compressor],
        layout: BucketLayout,
        gradients: Sequence[Tensor],
        step: int = 0,
        meter: Meter | None = None,
    ) -> list[Tensor]:
        buckets = [Bucket(layout=layout, gradient=gradient) for gradient in gradients]
        return exchange(group, buckets, step, meter)

    return run
