"""What do encoding and decoding cost, in copies of the tensor? The figures of the speed page.

    make speed        # half an hour: runs this file and writes docs/compressor-speed.md

`timing.py` says how it is measured. One benchmark a compressor, size and number of threads; the
ratios are in `extra_info`, one entry a kind of step.
"""

from collections.abc import Iterator
from dataclasses import asdict
from functools import lru_cache, partial
from typing import Any

import pytest
import torch
from pytest_benchmark.fixture import BenchmarkFixture

from gcsim.compressors.registry import REGISTRY
from gcsim.traces.timing.allocator import keep_freed_memory
from gcsim.traces.timing.kernels import gradient
from tests.benchmarks.timing import SEED, timings

SIZES = (1_000_000, 10_000_000, 61_000_000)
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in REGISTRY},
    "topk, rice": ("topk", {"indices": "rice"}),
}
"""Label to name and parameters."""

source = lru_cache(maxsize=1)(partial(gradient, seed=SEED))


@pytest.fixture
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.parametrize("label", VARIANTS)
@pytest.mark.parametrize("threads", [2, 1], indirect=True)
@pytest.mark.parametrize("n", SIZES)  # slowest: the data are made once for each size
def test_compressor(benchmark: BenchmarkFixture, label: str, threads: int, n: int) -> None:
    keep_freed_memory()
    name, parameters = VARIANTS[label]
    data = source(n)
    rows = benchmark.pedantic(timings, args=(name, parameters, data), rounds=1)
    benchmark.extra_info.update(
        label=label, n=n, threads=threads, phases=[asdict(row) for row in rows]
    )
    for row in rows:
        print(
            f"\n{label}, {row.phase}, {n / 1e6:g} M, {threads} threads: encode {row.encode:.2f}, "
            f"decode {row.decode:.2f} copies, {row.bits:.4f} bits"
        )
