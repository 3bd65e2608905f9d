"""How fast is the second stage? `make bench`.

The twelve-compressor sweep on synthetic traffic of AlexNet's size (four buckets, four different
steps, 2 to 64 workers, Gloo), and single collectives at 64 and 4096 ranks. The engine's own
figures are in `test_bench_engine.py`.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from gcsim.compressors.lockstep import CollectiveRecord
from gcsim.simulator.cluster import Collectives
from gcsim.simulator.collectives.dispatch import execute
from gcsim.simulator.predict import predict
from tests.benchmarks.synthetic_traffic import ALEXNET, WAYS, cluster, compute, profiles

CLUSTER = cluster(32, 2, Collectives(transport="gloo"))


def test_sweep_of_twelve_compressors_and_six_sizes(benchmark: BenchmarkFixture) -> None:
    traffic = profiles(WAYS, ALEXNET, 4)

    def sweep() -> None:
        for profile in traffic:
            for nodes in (1, 2, 4, 8, 16, 32):
                predict(profile, replace(CLUSTER, nodes=nodes), compute(ALEXNET))

    assert len(traffic) == 12
    benchmark.pedantic(sweep, rounds=3, warmup_rounds=1)


RECORDS = {
    "all-reduce, 25 MiB": CollectiveRecord(kind="all_reduce", sent=(25 * 2**20,), element=4),
    "all-reduce, unequal chunks": CollectiveRecord(
        kind="all_reduce", sent=(26_214_404,), element=4
    ),
    "all-gather, four sizes": CollectiveRecord(kind="all_gather", sent=(2500, 2600, 2700, 2801)),
    "push-pull": CollectiveRecord(kind="push_pull", sent=(820_000,), pulled=820_000),
}


@pytest.mark.parametrize("ranks", [64, 4096])
@pytest.mark.parametrize("name", RECORDS)
def test_one_collective(benchmark: BenchmarkFixture, ranks: int, name: str) -> None:
    servers = replace(CLUSTER.collectives, servers=ranks // 2)
    many = replace(CLUSTER, nodes=ranks // 2, collectives=servers)
    entry = np.zeros(ranks, dtype=np.int64)
    benchmark.pedantic(execute, args=(RECORDS[name], entry, many), rounds=3)
