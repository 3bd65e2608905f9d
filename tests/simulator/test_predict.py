"""Does a prediction follow from its profile, and is it the same however it is calculated?"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from gcsim.compressors.kernels import KernelCost
from gcsim.compressors.lockstep import CollectiveRecord
from gcsim.errors import InternalError
from gcsim.simulator.clock import seconds
from gcsim.simulator.cluster import Cluster, Collectives
from gcsim.simulator.collectives.dispatch import CollectiveMemo
from gcsim.simulator.device import Device, KernelRate
from gcsim.simulator.links import Link
from gcsim.simulator.predict import Prediction, predict
from gcsim.simulator.step import BucketWork, Job, simulate_iteration
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

MILLISECOND = 10**9
NETWORK = Link(name="network", bandwidth=Fraction(1_250_000_000), latency=Fraction(50, 10**6))
BUS = Link(name="bus", bandwidth=Fraction(10**10), latency=Fraction(10, 10**6))
# One byte of a streaming kernel takes 1 ps, a launch 1 us.
RATE = KernelRate(launch=1e-6, bandwidth=1e12, source="test")
TOY = Device(
    name="toy",
    title="Toy",
    kernels={"streaming": RATE},
    effective_flop_rate=1e12,
    source="test",
)
COMPUTE = ComputeTimes(
    forward=10 * MILLISECOND,
    backward=20 * MILLISECOND,
    parts=(5 * MILLISECOND, 15 * MILLISECOND),
    provenance="test",
)


def cluster(nodes: int, devices: int = 2, collectives: Collectives | None = None) -> Cluster:
    return Cluster(
        nodes=nodes,
        devices_per_node=devices,
        device=TOY,
        network=NETWORK,
        intra_node=BUS,
        collectives=collectives or Collectives(),
    )


def cost(nbytes: int) -> tuple[KernelCost, ...]:
    return (KernelCost(kind="streaming", launches=1, elements=1, nbytes=nbytes),)


ENCODE = Compute(stage="encode", fixed=cost(2_000_000))  # 1 + 2 = 3 us
DECODE = Compute(stage="decode", fixed=cost(0), per_payload=cost(1_000_000))  # 1 us + 2 us each
SERVER = Compute(stage="server", fixed=cost(0), per_payload=cost(8_000_000))


def reduce(nbytes: int) -> CollectiveRecord:
    return CollectiveRecord(kind="all_reduce", sent=(nbytes,) * 4, element=4)


def gather(*sent: int) -> CollectiveRecord:
    return CollectiveRecord(kind="all_gather", sent=sent)


def exchange(*collectives: CollectiveRecord, moments: bool = False) -> Exchange:
    return Exchange(
        computes=(ENCODE,) * len(collectives) + (DECODE if collectives else ENCODE,),
        collectives=collectives,
        moments=Compute(stage="moments", fixed=cost(9_000_000)) if moments else None,
        servers=tuple(SERVER if c.kind == "push_pull" else None for c in collectives),
    )


def profile(*phases: tuple[int, list[list[Exchange]]]) -> TrafficProfile:
    return TrafficProfile(
        compressor="toy",
        parameters={},
        model=ModelFacts(name="toy", parameters=1000, layers=(), samples_per_worker=1),
        buckets=(),
        workers=4,
        period=sum(count for count, _ in phases),
        phases=tuple(
            Phase(
                name=f"phase {number}",
                count=count,
                steps=tuple(Step(number=k, exchanges=tuple(step)) for k, step in enumerate(steps)),
            )
            for number, (count, steps) in enumerate(phases)
        ),
        quality=Quality(nmse=0.0, cosine_similarity=1.0),
    )


def ring(p: int, nbytes: int) -> float:
    """2 (p - 1)(n / p / bandwidth + latency), one device a node."""
    return 2 * (p - 1) * (nbytes / p / 1.25e9 + 50e-6)


def total(times: Prediction) -> float:
    return times.forward + times.backward + times.encode + times.exposed + times.decode


def test_dense_training_is_compute_plus_what_the_rings_cannot_hide() -> None:
    # Bucket 0 (40 MB) is ready at 15.003 ms; its ring of 8 takes 56.7 ms, until after backward;
    # then bucket 1's (4 MB). Decoding: 1 us + 8 * 2 us.
    steps = [[exchange(reduce(40_000_000)), exchange(reduce(4_000_000))]]
    times = predict(profile((1, steps)), cluster(8, 1), COMPUTE)
    first, second = ring(8, 40_000_000), ring(8, 4_000_000)
    assert times.communication == pytest.approx(first + second, rel=1e-12)
    # bucket 1's decode ends the iteration; bucket 0's is hidden behind bucket 1's ring
    assert times.iteration == pytest.approx(0.015003 + first + second + 17e-6, rel=1e-12)
    assert (times.forward, times.backward, times.encode) == (0.010, 0.020, 6e-6)
    assert times.decode == pytest.approx(34e-6, rel=1e-12)
    assert total(times) == pytest.approx(times.iteration, rel=1e-14)
    assert times.algorithms == ("ring all-reduce",)


def test_one_worker_alone_does_not_communicate() -> None:
    steps = [[exchange(reduce(40_000_000)), exchange(gather(4_000_000))]]
    times = predict(profile((1, steps)), cluster(1, 1), COMPUTE)
    assert (times.communication, times.exposed, times.algorithms) == (0.0, 0.0, ())
    assert times.iteration == pytest.approx(0.030 + 6e-6 + 2 * 3e-6, rel=1e-12)
    assert not any(span.resource == "network" for span in times.spans)


def test_phases_are_weighted_by_how_often_they_occur() -> None:
    dense = [exchange(reduce(40_000_000)), exchange(reduce(4_000_000))]
    short = [[exchange(reduce(400_000)), exchange(reduce(nbytes))] for nbytes in (4000, 8000)]
    local = [exchange(), exchange()]
    alone = [predict(profile((1, [step])), cluster(4), COMPUTE) for step in (dense, *short, local)]
    mixed = predict(profile((1, [dense]), (6, short), (3, [local])), cluster(4), COMPUTE)
    for part in ("iteration", "communication", "exposed", "encode", "decode", "backward"):
        values = [getattr(times, part) for times in alone]
        mean = (values[0] + 6 * (values[1] + values[2]) / 2 + 3 * values[3]) / 10
        assert getattr(mixed, part) == pytest.approx(mean, rel=1e-12)
    assert mixed.sample_phase == "phase 1"
    assert mixed.spans == alone[2].spans


def test_local_steps_cost_their_own_arithmetic_only() -> None:
    times = predict(profile((1, [[exchange(), exchange()]])), cluster(4), COMPUTE)
    assert times.iteration == pytest.approx(0.030 + 6e-6, rel=1e-12)
    assert (times.communication, times.exposed, times.decode) == (0.0, 0.0, 0.0)


def test_moments_are_encoding_and_delay_the_bucket() -> None:
    plain, moments = (
        predict(
            profile((1, [[exchange(), exchange(gather(100), moments=wanted)]])), cluster(4), COMPUTE
        )
        for wanted in (False, True)
    )
    assert moments.encode - plain.encode == pytest.approx(10e-6, rel=1e-9)
    assert moments.iteration - plain.iteration == pytest.approx(10e-6, rel=1e-9)
    assert any(span.name == "moments, bucket 1" for span in moments.spans)


def test_decoding_grows_with_the_workers_and_servers_share_theirs() -> None:
    steps = [[exchange(), exchange(CollectiveRecord(kind="push_pull", sent=(4000,), pulled=4000))]]
    small, large = (predict(profile((1, steps)), cluster(n), COMPUTE) for n in (2, 8))
    assert large.decode - small.decode == pytest.approx((16 - 4) * 2e-6, rel=1e-9)
    shared = predict(profile((1, steps)), cluster(8, 2, Collectives(servers=8)), COMPUTE)
    # 16 payloads of 8 MB at 1 ps/B: 128 us on one server, 16 us on each of eight
    assert large.exposed - shared.exposed >= 112e-6


def test_everything_adds_up_and_is_the_same_twice() -> None:
    steps = [
        [exchange(reduce(4_000_004), reduce(40_004)), exchange(gather(8), gather(900, 70_001))]
    ]
    traffic = profile((1, steps))
    for nodes in (1, 2, 5, 16):
        times = predict(traffic, cluster(nodes), COMPUTE)
        assert total(times) == pytest.approx(times.iteration, rel=1e-14)
        assert times == predict(traffic, cluster(nodes), COMPUTE)


GLOO = Collectives(transport="gloo")
CHOICES = [
    Collectives(),
    GLOO,
    replace(GLOO, all_reduce="hierarchical", all_gather="pipelined_ring"),
    replace(GLOO, servers=3),
]


@pytest.mark.parametrize("collectives", CHOICES)
@pytest.mark.parametrize("nodes", [1, 3, 8])
def test_ranks_that_behave_alike_may_be_simulated_once(
    collectives: Collectives, nodes: int
) -> None:
    """All kinds of requests on real algorithms, one rank a class against as few as possible."""
    records = [
        (reduce(4_000_004),),
        (reduce(12), gather(40_000)),
        (gather(8), gather(900, 70_001, 20_000)),
        (CollectiveRecord(kind="push_pull", sent=(40_001,), pulled=40_003),),
        (reduce(40_004), reduce(80_000)),
    ]
    work = [
        BucketWork(
            before=(Job(kind="encode", name="encode", duration=70_000 * k),),
            collectives=exchange,
            server_times=(5_000_000,) * len(exchange),
            after=tuple(
                Job(kind="decode" if n == 1 else "encode", name="after", duration=90_000)
                for n in range(len(exchange), 0, -1)
            ),
        )
        for k, exchange in enumerate(records)
    ]
    compute = ComputeTimes(forward=10**7, backward=5 * 10**8, parts=(10**8,) * 5, provenance="test")
    chosen = cluster(nodes, 2, collectives)
    few, many = (
        simulate_iteration(
            compute,
            work,
            ranks=chosen.workers,
            carry_out=CollectiveMemo(chosen),
            spans=True,
            collapse=collapse,
        )
        for collapse in (True, False)
    )
    assert few == many
    assert few.iteration == few.forward + few.backward + few.encode + few.exposed + few.decode


def test_spans_show_all_ranks_of_the_sample_step() -> None:
    steps = [[exchange(reduce(4_000_000)), exchange(gather(100, 90_000))]]
    times = predict(profile((1, steps)), cluster(3), COMPUTE)
    assert {span.rank for span in times.spans} == set(range(6))
    assert {span.resource for span in times.spans} == {"compute", "encode", "network", "decode"}
    assert seconds(max(span.end for span in times.spans)) == times.iteration


def test_phases_that_do_not_fill_the_period_are_our_bug() -> None:
    wrong = replace(profile((1, [[exchange(), exchange()]])), period=3)
    with pytest.raises(InternalError, match="do not fill its period"):
        predict(wrong, cluster(2), COMPUTE)


def test_computations_must_surround_collectives() -> None:
    broken = Exchange(computes=(ENCODE,), collectives=(gather(4),))
    with pytest.raises(InternalError, match="1 computations around 1 collectives"):
        predict(profile((1, [[broken, broken]])), cluster(2), COMPUTE)
