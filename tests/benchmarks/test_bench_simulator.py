"""How fast is the second stage? `make bench`.

The twelve-compressor sweep on synthetic traffic of AlexNet's size (four buckets, four different
steps, 2 to 64 workers, Gloo), and single collectives at 64 and 4096 ranks.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from gcsim.compressors.kernels import KERNEL_CLASSES, KernelCost
from gcsim.compressors.lockstep import CollectiveRecord
from gcsim.simulator.cluster import Cluster, Collectives
from gcsim.simulator.collectives.dispatch import carry_out
from gcsim.simulator.device import Device, KernelRate
from gcsim.simulator.links import Link
from gcsim.simulator.predict import predict
from gcsim.simulator.training_time import ComputeTimes
from gcsim.traces.profile import (
    Compute,
    Exchange,
    ModelFacts,
    Phase,
    Quality,
    Step,
    TrafficProfile,
)

BUCKETS = (16_400_000, 151_000_000, 67_000_000, 9_800_004)
COMPUTE = ComputeTimes(
    forward=20 * 10**9,
    backward=40 * 10**9,
    parts=(4 * 10**9, 8 * 10**9, 12 * 10**9, 16 * 10**9),
    provenance="test",
)
TOY = Device(
    name="toy",
    title="Toy",
    kernels={
        kind: KernelRate(launch=5e-6, bandwidth=5e11, flop_rate=5e12, source="bench")
        for kind in KERNEL_CLASSES
    },
    effective_flop_rate=5e12,
    source="bench",
)
CLUSTER = Cluster(
    nodes=32,
    devices_per_node=2,
    device=TOY,
    network=Link(
        name="10GbE",
        bandwidth=Fraction(1_250_000_000),
        latency=Fraction(50, 10**6),
        efficiency=Fraction(1448, 1538),
    ),
    intra_node=Link(name="PCIe", bandwidth=Fraction(12 * 10**9), latency=Fraction(10, 10**6)),
    collectives=Collectives(transport="gloo"),
)
WAYS = {
    "dense": 4,
    "gather": 2,
    "lengths and gather": 2,
    "push-pull": 1,
    "two reductions": 1,
    "maximum and gather": 1,
    "local": 1,
}


def collectives(way: str, nbytes: int, step: int) -> tuple[CollectiveRecord, ...]:
    def reduce(size: int) -> CollectiveRecord:
        return CollectiveRecord(kind="all_reduce", sent=(size // 4 * 4,) * 4, element=4)

    def gather(*sent: int) -> CollectiveRecord:
        return CollectiveRecord(kind="all_gather", sent=sent)

    small = nbytes // 100
    return {
        "dense": (reduce(nbytes),),
        "gather": (gather(*[small] * 4),),
        "lengths and gather": (
            gather(*[8] * 4),
            gather(*(small + 997 * k + step for k in range(4))),
        ),
        "push-pull": (
            CollectiveRecord(kind="push_pull", sent=(nbytes // 32,) * 4, pulled=nbytes // 32),
        ),
        "two reductions": (reduce(small), reduce(nbytes // 90)),
        "maximum and gather": (reduce(12), gather(*[nbytes // 16] * 4)),
        "local": (),
    }[way]


def costs(nbytes: int) -> tuple[KernelCost, ...]:
    return tuple(
        KernelCost(kind=kind, launches=7, elements=nbytes // 4, nbytes=nbytes)
        for kind in KERNEL_CLASSES[:4]
    )


def exchange(way: str, nbytes: int, step: int) -> Exchange:
    sent = collectives(way, nbytes, step)
    encode = Compute(stage="encode", fixed=costs(nbytes))
    decode = Compute(stage="decode", fixed=costs(nbytes + step), per_payload=costs(nbytes // 100))
    server = Compute(stage="server", fixed=costs(nbytes))
    return Exchange(
        computes=(encode,) * len(sent) + (decode,),
        collectives=sent,
        servers=tuple(server if record.kind == "push_pull" else None for record in sent),
    )


def profile(way: str) -> TrafficProfile:
    steps = tuple(
        Step(number=k, exchanges=tuple(exchange(way, nbytes, k) for nbytes in BUCKETS))
        for k in range(4)
    )
    return TrafficProfile(
        compressor=way,
        parameters={},
        model=ModelFacts(name="toy", parameters=sum(BUCKETS), layers=(), samples_per_worker=32),
        buckets=(),
        workers=4,
        period=4,
        phases=(Phase(name="step", count=4, steps=steps),),
        quality=Quality(nmse=0.0, cosine_similarity=1.0),
    )


def test_sweep_of_twelve_compressors_and_six_sizes(benchmark: BenchmarkFixture) -> None:
    profiles = [profile(way) for way, times in WAYS.items() for _ in range(times)]

    def sweep() -> None:
        for traffic in profiles:
            for nodes in (1, 2, 4, 8, 16, 32):
                predict(traffic, replace(CLUSTER, nodes=nodes), COMPUTE)

    assert len(profiles) == 12
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
    cluster = replace(CLUSTER, nodes=ranks // 2, collectives=servers)
    entry = np.zeros(ranks, dtype=np.int64)
    benchmark.pedantic(carry_out, args=(RECORDS[name], entry, cluster), rounds=3)
