"""Traffic like that of real compressors, of any model's size, without recording any.

A compressor is a way to exchange a bucket; its computation is priced as a few kernels of each
class, its payloads are fractions of the bucket, different in each recorded step.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction

from gcsim.compressors.kernels import KERNEL_CLASSES, KernelCost
from gcsim.compressors.lockstep import CollectiveRecord
from gcsim.simulator.cluster import Cluster, Collectives
from gcsim.simulator.devices.device import Device, KernelRate
from gcsim.simulator.devices.training_time import ComputeTimes
from gcsim.simulator.network.links import Jitter, Link
from gcsim.traces.profile import Compute, Exchange, ModelFacts, Phase, Step, TrafficProfile
from tests.simulator.traffic import traffic

ELEVEN = (
    *(16_388_000, 67_125_248, 25_690_112, 26_214_400, 28_317_696, 18_882_560),
    *(9_441_280, 7_080_960, 4_720_640, 1_770_624, 1_048_580),
)
"""Buckets, bytes: of AlexNet's and VGG's sizes, smaller towards the input."""
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
NETWORK = Link(
    name="10GbE",
    bandwidth=Fraction(1_250_000_000),
    latency=Fraction(50, 10**6),
    efficiency=Fraction(1448, 1538),
)
PCIE = Link(name="PCIe", bandwidth=Fraction(12 * 10**9), latency=Fraction(10, 10**6))


def cluster(nodes: int, devices: int = 1, collectives: Collectives = Collectives()) -> Cluster:  # noqa: B008
    """Nodes on 10 Gb/s Ethernet."""
    return Cluster(
        nodes=nodes,
        devices_per_node=devices,
        device=TOY,
        network=NETWORK,
        intra_node=PCIE,
        collectives=collectives,
    )


def unlike(where: Cluster) -> Cluster:
    """The cluster with a rate of its own for each node's link, 7.5 to 10 Gb/s."""
    rates = [Fraction(1000 - (7919 * node) % 251, 1000) for node in range(where.nodes)]
    nics = {
        node: replace(NETWORK, name=f"NIC {node}", bandwidth=NETWORK.bandwidth * rate)
        for node, rate in enumerate(rates)
    }
    return replace(where, nics=nics)


def late(where: Cluster) -> Cluster:
    """The cluster with messages that are late at random, 20 us in the mean."""
    jitter = (Jitter(distribution="exponential", mean=Fraction(20, 10**6)),)
    return replace(where, network=replace(NETWORK, jitter=jitter))


def compute(buckets: Sequence[int]) -> ComputeTimes:
    """60 ms per iteration; a bucket's part as its place counts, so that early ones come soon."""
    total = 40 * 10**9
    weights = range(1, len(buckets) + 1)
    parts = tuple(total * weight // sum(weights) for weight in weights)
    return ComputeTimes(forward=total // 2, backward=sum(parts), parts=parts, provenance="test")


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


def profile(way: str, buckets: Sequence[int], steps: int = 4) -> TrafficProfile:
    """Some recorded steps, all different."""
    recorded = tuple(
        Step(number=k, exchanges=tuple(exchange(way, nbytes, k) for nbytes in buckets))
        for k in range(steps)
    )
    return traffic(
        compressor=way,
        model=ModelFacts(name="toy", parameters=sum(buckets), layers=(), samples_per_worker=32),
        workers=4,
        period=steps,
        phases=(Phase(name="step", count=steps, steps=recorded),),
    )


def profiles(ways: Mapping[str, int], buckets: Sequence[int], steps: int) -> list[TrafficProfile]:
    """One a compressor; those of one way differ by a few bytes, as compressors do."""
    return [
        profile(way, [nbytes + 4 * nth for nbytes in buckets], steps)
        for way, count in ways.items()
        for nth in range(count)
    ]


def messages(records: Iterable[CollectiveRecord], ranks: int) -> int:
    """Messages of these collectives on rings; the parameter server's on their own links."""
    counts = {"all_reduce": 2 * ranks * (ranks - 1), "all_gather": ranks * (ranks - 1)}
    return sum(counts.get(record.kind, 2 * ranks) for record in records) if ranks > 1 else 0
