"""What does an exchange cost on this machine, in copies of the tensor? `make bench`.

Two workers exchange one tensor of 10 million elements in lockstep; the yardstick is `copy_` into
a warm buffer in the same run, because the machine is noisy and its speed unknown. The ratio is in
`extra_info` as `copies_per_worker` (whole exchange: encode, collective, decode of two payloads).
"""

from __future__ import annotations

import time

import pytest
import torch
from pytest_benchmark.fixture import BenchmarkFixture

from gcsim.compressors.base import Compressor, Worker
from gcsim.compressors.bucket import Bucket, BucketLayout, TensorSlice
from gcsim.compressors.lockstep import lockstep
from gcsim.compressors.registry import REGISTRY, create

ROWS, COLUMNS = 2500, 4000
LAYOUT = BucketLayout(
    index=0, slices=(TensorSlice(name="weight", shape=(ROWS, COLUMNS), offset=0, index=0),)
)


def gradient(worker: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(worker)
    spread = torch.randn(ROWS * COLUMNS, generator=generator).mul_(0.8).exp_()
    return torch.randn(ROWS * COLUMNS, generator=generator).mul_(spread).mul_(1e-3)


def copy_seconds(source: torch.Tensor) -> float:
    target = torch.empty_like(source)
    best = float("inf")
    for _ in range(20):
        start = time.perf_counter()
        target.copy_(source)
        best = min(best, time.perf_counter() - start)
    return best


@pytest.mark.parametrize("name", REGISTRY)
def test_exchange(benchmark: BenchmarkFixture, name: str) -> None:
    gradients = [gradient(worker) for worker in range(2)]
    buckets = [Bucket(layout=LAYOUT, gradient=g, second_moment=g.square() * 2) for g in gradients]
    team: list[Compressor] = [create(name, Worker(rank=rank, count=2, seed=0)) for rank in range(2)]
    steps = iter(range(1000))

    def exchange() -> None:
        step = next(steps)
        with torch.no_grad():
            lockstep([m.exchange(b, step) for m, b in zip(team, buckets, strict=True)])

    benchmark.pedantic(exchange, rounds=4, warmup_rounds=2)
    assert benchmark.stats is not None
    best = benchmark.stats.stats.min
    benchmark.extra_info["copies_per_worker"] = best / 2 / copy_seconds(gradients[0])
    print(f"\n{name}: {benchmark.extra_info['copies_per_worker']:.1f} copies a worker")
