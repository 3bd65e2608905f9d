"""Does a prediction follow from its profile, and is it the same however it is calculated?"""

import math
import statistics
from dataclasses import replace
from fractions import Fraction
from typing import Literal

import numpy as np
import pytest

from gcsim.compressors.bucket import BucketLayout, TensorSlice
from gcsim.compressors.kernels import KernelCost
from gcsim.compressors.lockstep import CollectiveRecord
from gcsim.compressors.queued import QUEUED
from gcsim.errors import InternalError
from gcsim.simulator import predict as predict_module
from gcsim.simulator.clock import seconds
from gcsim.simulator.cluster import Cluster, Collectives
from gcsim.simulator.collectives.dispatch import CollectiveMemo
from gcsim.simulator.devices.device import KernelRate
from gcsim.simulator.devices.training_time import ComputeTimes
from gcsim.simulator.host import Host
from gcsim.simulator.network.links import Jitter
from gcsim.simulator.network.rate_trace import RateTrace
from gcsim.simulator.plans import Planner
from gcsim.simulator.predict import Prediction, predict, schedule_of_period
from gcsim.simulator.steps import averages
from gcsim.simulator.steps.averages import Averager
from gcsim.simulator.steps.schedule import Schedule
from gcsim.simulator.training import (
    Framework,
    InputLoading,
    Interference,
    Noise,
    Overlap,
    SharedNode,
    Training,
)
from gcsim.traces.profile import Compute, Exchange, Phase, Step, TrafficProfile, every
from tests.simulator import world
from tests.simulator.traffic import traffic
from tests.simulator.world import BUS, NETWORK, gather, reduce

MILLISECOND = 10**9
COMPUTE = ComputeTimes(
    forward=10 * MILLISECOND,
    backward=20 * MILLISECOND,
    parts=(5 * MILLISECOND, 15 * MILLISECOND),
    provenance="test",
)


def cluster(nodes: int, devices: int = 2, collectives: Collectives | None = None) -> Cluster:
    return world.cluster(nodes, devices, collectives=collectives or Collectives())


def cost(nbytes: int) -> tuple[KernelCost, ...]:
    return (KernelCost(kind="streaming", launches=1, elements=1, nbytes=nbytes),)


ENCODE = Compute(stage="encode", fixed=cost(2_000_000))  # 1 + 2 = 3 us
DECODE = Compute(stage="decode", fixed=cost(0), per_payload=cost(1_000_000))  # 1 us + 2 us each
SERVER = Compute(stage="server", fixed=cost(0), per_payload=cost(8_000_000))


def exchange(*collectives: CollectiveRecord, moments: bool = False) -> Exchange:
    return Exchange(
        computes=(ENCODE,) * len(collectives) + (DECODE if collectives else ENCODE,),
        collectives=collectives,
        moments=Compute(stage="moments", fixed=cost(9_000_000)) if moments else None,
        servers=tuple(SERVER if c.kind == "push_pull" else None for c in collectives),
    )


def profile(*phases: tuple[int, list[list[Exchange]]]) -> TrafficProfile:
    return traffic(
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
    )


def ring(p: int, nbytes: int) -> float:
    """2 (p - 1)(n / p / bandwidth + latency), one device a node."""
    return 2 * (p - 1) * (nbytes / p / 1.25e9 + 50e-6)


def total(times: Prediction) -> float:
    return (
        times.forward
        + times.backward
        + times.encode
        + times.exposed
        + times.decode
        + times.optimizer
        + times.input
    )


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


@pytest.mark.parametrize(("stream", "expected"), [("compute", 40e-3), ("side", 35.1e-3)])
def test_a_ranks_buckets_and_its_backward_pass_have_one_host(
    stream: Literal["compute", "side"], expected: float
) -> None:
    """Encoding queues 300 operators of 10 us and no bytes, decoding 200; a ring takes 0.1 ms.

    In milliseconds: forward to 10, bucket 0's backward to 15, its encoding to 18, bucket 1's
    backward to 33, its encoding to 36; then bucket 0's decoding, whose ring returned at 18.1, to
    38, and bucket 1's to 40. With a host for each bucket it would be 38.1. On a side stream both
    passes end at 30, bucket 1's encoding at 33, its ring at 33.1, its decoding at 35.1.
    """
    rate = KernelRate(launch=10e-6, source="test")
    free = KernelRate(launch=0.0, source="test")
    device = replace(world.TOY, kernels={"streaming": free}, host=dict.fromkeys(QUEUED, rate))

    def queueing(operators: int) -> tuple[KernelCost, ...]:
        return (replace(cost(0)[0], name="aten.add", launches=operators),)

    one = Exchange(
        computes=(
            Compute(stage="encode", fixed=queueing(300)),
            Compute(stage="decode", fixed=queueing(200)),
        ),
        collectives=(reduce(8),),
    )
    where = replace(cluster(2, 1), device=device)
    training = Training(encode_on=stream)
    times = predict(profile((1, [[one, one]])), where, COMPUTE, training=training)
    assert times.iteration == pytest.approx(expected, abs=1e-6)


def test_one_worker_alone_does_not_communicate() -> None:
    steps = [[exchange(reduce(40_000_000)), exchange(gather(4_000_000))]]
    times = predict(profile((1, steps)), cluster(1, 1), COMPUTE)
    assert (times.communication, times.exposed, times.algorithms) == (0.0, 0.0, ())
    assert times.iteration == pytest.approx(0.030 + 6e-6 + 2 * 3e-6, rel=1e-12)
    assert not any(span.resource == "communicator" for span in times.spans)


def test_phases_are_weighted_by_how_often_they_occur() -> None:
    """All ranks are alike and nothing is random: no step leaves anything behind for another."""
    dense = [exchange(reduce(40_000_000)), exchange(reduce(4_000_000))]
    short = [[exchange(reduce(400_000)), exchange(reduce(nbytes))] for nbytes in (4000, 8000)]
    local = [exchange(), exchange()]
    where = cluster(4, 1)
    alone = [predict(profile((1, [step])), where, COMPUTE) for step in (dense, *short, local)]
    mixed = predict(profile((1, [dense]), (6, short), (3, [local])), where, COMPUTE)
    for part in ("iteration", "communication", "exposed", "encode", "decode", "backward"):
        values = [getattr(times, part) for times in alone]
        mean = (values[0] + 6 * (values[1] + values[2]) / 2 + 3 * values[3]) / 10
        assert getattr(mixed, part) == pytest.approx(mean, rel=1e-12)
    assert mixed.sample_phase == "phase 1"
    assert mixed.spans == alone[1].spans


def test_a_period_goes_round_in_its_own_order_and_uses_all_recorded_steps_alike() -> None:
    sizes = (4000, 8000, 12000)
    often = [[exchange(reduce(400_000)), exchange(reduce(nbytes))] for nbytes in sizes]
    local = [exchange(), exchange()]
    planner = Planner(cluster(4), COMPUTE, Training())
    traffic = profile((2, often), (1, [local]))

    def names(traffic: TrafficProfile) -> str:
        schedule = schedule_of_period(traffic, planner)
        sent = [plan.buckets[1].collectives for plan in schedule.plans]
        letters = ["-" if not found else "abc"[sizes.index(found[0].sent[0])] for found in sent]
        return "".join(letters[turn] for turn in schedule.turns)

    # two of three recorded steps a period: all have been used equally often after three periods
    assert names(replace(traffic, order=(0, 1, 0))) == "a-bc-ab-c"
    assert names(replace(traffic, order=(1, 0, 0))) == "-ab-ca-bc"
    assert names(traffic) == "ab-ca-bc-"  # no order: one phase after the other
    assert names(profile((1, [often[0], often[1]] * 2))) == "ab"
    assert names(profile((7, [often[0]] * 3))) == "a"
    for order in ((0, 1, 1), (0, 1)):
        with pytest.raises(InternalError, match="do not fill its period"):
            predict(replace(traffic, order=order), cluster(2), COMPUTE)


def test_rounds_that_would_be_too_long_use_all_recorded_steps_nearly_alike(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    often = [[exchange(reduce(400_000)), exchange(reduce(4000 * n))] for n in range(1, 8)]
    traffic = profile((5, often), (1, [[exchange(), exchange()]]))
    planner = Planner(cluster(4), COMPUTE, Training())
    assert len(schedule_of_period(traffic, planner)) == 7 * 6
    monkeypatch.setattr(predict_module, "LONGEST", 41)
    turns = schedule_of_period(traffic, planner).turns
    assert len(turns) == 2 * 6  # seven steps, five a period
    assert sorted(turns.count(turn) for turn in range(8)) == [1, 1, 1, 1, 2, 2, 2, 2]


NOISE_AND_LOADER = Training(
    noise=Noise(variation=Fraction(1, 5)), iterations=12, slow_nodes={1: Fraction(5, 4)},
    input=InputLoading(batch=Fraction(29, 1000)),
)  # fmt: skip


@pytest.mark.parametrize("training", [Training(), NOISE_AND_LOADER])
def test_a_period_of_one_kind_is_that_step_again_and_again(training: Training) -> None:
    step = [exchange(reduce(4_000_000)), exchange(gather(100, 90_000))]
    once, often = (
        predict(profile((count, [step] * steps)), cluster(3), COMPUTE, training=training)
        for count, steps in ((1, 1), (7, 4))
    )
    assert once == often


@pytest.mark.parametrize("k", [0, 1, 9, 40])
def test_local_steps_of_a_slow_worker_take_their_time_once(k: int) -> None:
    """Two workers, one 5/4 as slow: it computes all the time but for one ring a round."""
    sync, local = [exchange(), exchange(reduce(4))], [exchange(), exchange()]
    slow = Training(slow_nodes={1: Fraction(5, 4)})
    traffic = profile((1, [sync]), *([(k, [local])] if k else []))
    times = predict(traffic, cluster(2, 1), COMPUTE, training=slow)
    # 30 ms and two encodings, and once a decoding of 1 us and 2 us for each worker's payload
    expected = 1.25 * ((k + 1) * (0.030 + 6e-6) + 5e-6) + ring(2, 4)
    waiting = 4 / 1.25e9  # the fast one's element, if it has one, has come before
    assert (k + 1) * times.iteration == pytest.approx(expected, abs=1.01 * waiting)
    assert (k + 1) * times.exposed == pytest.approx(ring(2, 4), abs=1.01 * waiting)
    assert total(times) == pytest.approx(times.iteration, rel=1e-13)
    # of no importance to a mean over whole rounds is which comes first
    later = replace(traffic, order=(*[1] * k, 0))
    assert predict(later, cluster(2, 1), COMPUTE, training=slow).iteration == times.iteration


def test_noise_is_waited_for_as_the_root_of_the_number_of_local_steps() -> None:
    """Sums of n independent times differ by their root n: 9 local steps, one synchronisation and
    one barrier cost less than ten barriers, as often as they occur."""
    sync, local = [exchange(), exchange(reduce(4))], [exchange(), exchange()]
    training = Training(noise=Noise(variation=Fraction(1, 10)), iterations=2000)
    # E max(0, X - Y) = s sqrt(n / pi) for sums X and Y of n normal times
    one = 0.1 * 0.030 / math.sqrt(math.pi)
    for n in (1, 4, 10):
        traffic = profile((1, [sync]), *([(n - 1, [local])] if n > 1 else []))
        times = predict(traffic, cluster(2, 1), COMPUTE, training=training, spans=False)
        assert n * times.exposed - 100e-6 == pytest.approx(one * math.sqrt(n), rel=0.2)


def test_a_round_that_is_too_long_is_said_to_be(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    traffic = profile((1, [[exchange(), exchange(reduce(4))]]), (29, [[exchange(), exchange()]]))
    training = Training(noise=NOISE, iterations=10)
    schedule = schedule_of_period(traffic, Planner(cluster(2), COMPUTE, training))

    def number(most: int) -> int:
        monkeypatch.setattr(averages, "MOST_ITERATIONS", most)
        return len(Averager(cluster(2), training, 0).average(schedule).iterations)

    assert [number(most) for most in (1000, 150, 149, 30)] == [150, 150, 120, 30]
    assert not caplog.text
    assert number(29) == 29
    assert "repeat after 30 iterations, but the means include only the first 29" in caplog.text


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
    small, large = (
        predict(profile((1, steps)), cluster(n, 2, Collectives(servers=1)), COMPUTE) for n in (2, 8)
    )
    assert large.decode - small.decode == pytest.approx((16 - 4) * 2e-6, rel=1e-9)
    shared = predict(profile((1, steps)), cluster(8, 2, Collectives(servers=8)), COMPUTE)
    # 16 payloads of 8 MB at 1 ps/B: 128 us on one server, 16 us on each of eight
    assert large.exposed - shared.exposed >= 112e-6


GLOO = Collectives(transport="gloo", servers=1)


def test_spans_show_all_ranks_of_the_sample_step() -> None:
    steps = [[exchange(reduce(4_000_000)), exchange(gather(100, 90_000))]]
    times = predict(profile((1, steps)), cluster(3), COMPUTE)
    assert {span.rank for span in times.spans} == set(range(6))
    assert {span.resource for span in times.spans} == {"compute", "communicator"}
    kinds = {"forward", "backward", "encode", "decode", "all_reduce", "all_gather"}
    assert {span.kind for span in times.spans} == kinds
    # Times begin with the rank that begins first; the slowest one's iteration is its own.
    assert min(span.start for span in times.spans) == 0
    last = max(times.spans, key=lambda span: (span.end, -span.rank))
    begin = min(span.start for span in times.spans if span.rank == last.rank)
    assert seconds(last.end - begin) == times.iteration


def test_phases_that_do_not_fill_the_period_are_our_bug() -> None:
    wrong = replace(profile((1, [[exchange(), exchange()]])), period=3)
    with pytest.raises(InternalError, match="do not fill its period"):
        predict(wrong, cluster(2), COMPUTE)


def test_computations_must_surround_collectives() -> None:
    broken = Exchange(computes=(ENCODE,), collectives=(gather(4),))
    with pytest.raises(InternalError, match="1 computations around 1 collectives"):
        predict(profile((1, [[broken, broken]])), cluster(2), COMPUTE)


DENSE = profile((1, [[exchange(reduce(4_000_000)), exchange(reduce(400_000))]]))
GATHERED = profile((1, [[exchange(gather(100_000, 90_000)), exchange(gather(8), gather(900))]]))


def test_optimiser_accumulation_and_loader_are_in_the_iteration() -> None:
    plain = predict(DENSE, cluster(4), COMPUTE)
    assert (plain.optimizer, plain.input, plain.iteration_p5, plain.iteration_p95) == (
        0.0,
        0.0,
        None,
        None,
    )
    training = Training(
        optimizer=Fraction(2, 1000),
        accumulation=3,
        input=InputLoading(batch=Fraction(35, 1000), prefetch=4),
    )
    times = predict(DENSE, cluster(4), COMPUTE, training=training)
    assert times.optimizer == 0.002
    # The loader is slower than the micro-batches of 30 ms: it sets the pace, for ever.
    assert times.iteration == pytest.approx(3 * 0.035, rel=1e-12)
    assert times.input == pytest.approx(0.105 - plain.iteration - 0.060 - 0.002, abs=60e-6)
    assert (times.forward, times.backward) == (0.030, 0.060)
    assert total(times) == pytest.approx(times.iteration, rel=1e-14)
    assert {span.resource for span in times.spans} >= {"loader", "compute"}
    # A loader that keeps up costs nothing, although the first batch had to be waited for.
    fast = replace(training, input=InputLoading(batch=Fraction(10, 1000)))
    assert predict(DENSE, cluster(4), COMPUTE, training=fast).input == 0.0


def test_devices_that_share_a_node_take_longer_before_any_network() -> None:
    """Forward and backward are 30 ms; launches of 6 us do not move. A worker that has a
    node, or a CPU's core, to itself is as fast as alone."""
    training = Training(shared_node=SharedNode(slowdown=Fraction(1, 10)))
    silent = profile((1, [[exchange(), exchange()]]))
    assert predict(silent, cluster(1, devices=8), COMPUTE).iteration == pytest.approx(0.030006)
    for devices, longer in ((1, 1), (2, 1.1), (8, 1.1)):
        found = predict(silent, cluster(1, devices=devices), COMPUTE, training=training)
        assert found.forward + found.backward == pytest.approx(0.03 * longer)
        assert found.iteration == pytest.approx(0.03 * longer + 6e-6)
    on_cpu = cluster(1, devices=8)
    on_cpu = replace(on_cpu, device=replace(on_cpu.device, processor="cpu"))
    assert predict(silent, on_cpu, COMPUTE, training=training).iteration == pytest.approx(0.030006)


def test_a_slow_node_holds_up_everybody_and_a_side_stream_hides_encoding() -> None:
    plain = predict(DENSE, cluster(4), COMPUTE)
    slow = Training(slow_nodes={2: Fraction(3, 2)})
    times = predict(DENSE, cluster(4), COMPUTE, training=slow)
    assert times.iteration > plain.iteration + 0.0075
    assert total(times) == pytest.approx(times.iteration, rel=1e-14)
    # On the slow node itself nothing is waited for but the rings.
    assert times.forward in {0.010, 0.015}
    side = predict(DENSE, cluster(4), COMPUTE, training=Training(encode_on="side"))
    assert side.iteration < plain.iteration
    assert side.encode < plain.encode


def test_in_the_stream_of_collectives_two_buckets_never_overlap() -> None:
    """Two buckets, the first ready after 10 + 5 ms, each encoded in 3 ms, reduced by a ring, and
    decoded in 2 ms (and a launch of 1 us each): one after the other, and no later backward pass."""
    computes = (
        Compute(stage="encode", fixed=cost(3_000_000_000)),
        Compute(stage="decode", fixed=cost(2_000_000_000)),
    )
    each = replace(exchange(reduce(40_000_000)), computes=computes)
    two = profile((1, [[each, each]]))
    streamed = Training(encode_on="communicator")
    times = predict(two, cluster(4, devices=1), COMPUTE, training=streamed)
    exact = 0.015 + 2 * (ring(4, 40_000_000) + 0.005_002)
    assert times.iteration == pytest.approx(exact, abs=1e-11)
    assert times.encode == times.decode == 0.0
    assert total(times) == pytest.approx(times.iteration, rel=1e-14)
    side = predict(two, cluster(4, devices=1), COMPUTE, training=Training(encode_on="side"))
    assert side.iteration < times.iteration
    # Computations that take longer beside a collective do so beside all of the exchange.
    beside = replace(streamed, interference=Interference(computation=Fraction(1, 10)))
    slower = predict(two, cluster(4, devices=1), COMPUTE, training=beside)
    assert slower.iteration == pytest.approx(exact, abs=1e-11)
    assert slower.backward == pytest.approx(0.005 + 1.1 * 0.015, abs=1e-11)


def test_buckets_in_turn_share_the_cores_of_their_machine() -> None:
    """As above; four ranks encode and decode at the same time on three cores."""
    computes = (
        Compute(stage="encode", fixed=cost(3_000_000_000)),
        Compute(stage="decode", fixed=cost(2_000_000_000)),
    )
    each = replace(exchange(reduce(40_000_000)), computes=computes)
    two = profile((1, [[each, each]]))
    host = Host(cores=3, per_message=Fraction(0), ranks="all")
    shared = replace(cluster(4, devices=1), host=host)
    streamed = Training(encode_on="communicator", on_host=frozenset({"encode", "decode"}))
    times = predict(two, shared, COMPUTE, training=streamed)
    exact = 0.015 + 2 * (ring(4, 40_000_000) + 0.005_002 * 4 / 3)
    assert times.iteration == pytest.approx(exact, abs=1e-11)
    roomy = replace(shared, host=replace(host, cores=4))
    alone = predict(two, roomy, COMPUTE, training=streamed)
    plain = predict(two, roomy, COMPUTE, training=Training(encode_on="communicator"))
    assert alone.iteration == plain.iteration


def test_the_code_around_an_exchange_is_priced_by_bucket() -> None:
    """Two tensors of 3 and 1 elements at 20 us, a bucket at 100 us, 4 passes over 16 bytes at 1 ps:
    140,000,064 ps. Half before the collective, half behind it; dense pays the reducer's instead.
    """
    layout = BucketLayout(
        index=0,
        slices=(
            TensorSlice(name="a", shape=(3,), offset=0, index=0),
            TensorSlice(name="b", shape=(1,), offset=3, index=1),
        ),
    )
    hooked = replace(profile((1, [[exchange(reduce(16))]])), buckets=(layout,), compressor="topk")
    dense = replace(hooked, compressor="none")
    code = Framework(
        per_tensor=Fraction(20, 10**6), per_bucket=Fraction(100, 10**6), passes=Fraction(4)
    )
    compute = replace(COMPUTE, parts=(20 * MILLISECOND,))
    free, hook = Training(overlap="none"), Training(overlap="none", hook=code)
    times = [predict(p, cluster(2), compute, training=free) for p in (hooked, dense)]
    assert times[0].iteration == times[1].iteration
    paid = [predict(p, cluster(2), compute, training=hook) for p in (hooked, dense)]
    assert round((paid[0].iteration - times[0].iteration) * 1e12) == 140_000_064
    assert round((paid[0].encode - times[0].encode) * 1e12) == 70_000_032
    assert paid[1].iteration == times[1].iteration
    reducer = replace(hook, hook=Framework(), reducer=code)
    assert predict(dense, cluster(2), compute, training=reducer).iteration == paid[0].iteration
    alone = predict(hooked, cluster(1, devices=1), compute, training=hook)
    assert alone.iteration == predict(hooked, cluster(1, devices=1), compute).iteration


def test_a_bus_that_devices_use_while_they_compute_holds_a_collective() -> None:
    """Two devices of a node, a ring of 4 MB beside 15 ms of backward: on a bus of half the rate."""
    node = cluster(1, devices=2)
    one = replace(profile((1, [[exchange(reduce(4_000_000))]])), compressor="none")
    compute = replace(COMPUTE, parts=(5 * MILLISECOND,))
    slower = Training(interference=Interference(bus=Fraction(1)))
    free, held = predict(one, node, compute), predict(one, node, compute, training=slower)
    half = replace(node, intra_node=replace(BUS, efficiency=BUS.efficiency / 2))
    together = np.zeros(2, np.int64)
    longer = CollectiveMemo(half)(reduce(4_000_000), together).max()
    assert held.communication == pytest.approx(seconds(int(longer)), rel=1e-9)
    assert held.communication > 1.5 * free.communication
    # The slowed bus may be slower than any that the figure's range knows of.
    known = replace(BUS, efficiency_range=(BUS.efficiency * Fraction(9, 10), BUS.efficiency))
    ranged = replace(node, intra_node=known)
    assert predict(one, ranged, compute, training=slower).iteration == held.iteration
    # Over the network it takes no longer: a node of one device has no bus to share.
    apart = cluster(2, devices=1)
    assert predict(one, apart, compute, training=slower) == predict(one, apart, compute)


def test_without_overlap_the_exchange_follows_the_backward_pass() -> None:
    """Dense, 2 nodes of one device: forward, backward, then two rings one after the other."""
    alone = predict(DENSE, cluster(1, devices=1), COMPUTE)
    none = predict(DENSE, cluster(2, devices=1), COMPUTE, training=Training(overlap="none"))
    memo, together = CollectiveMemo(cluster(2, devices=1)), np.zeros(2, np.int64)
    records = [e.collectives[0] for e in DENSE.phases[0].steps[0].exchanges]
    rings = sum(seconds(int(memo(record, together).max())) for record in records)
    assert none.iteration == pytest.approx(alone.iteration + rings, rel=1e-3)
    assert none.iteration > predict(DENSE, cluster(2, devices=1), COMPUTE).iteration
    spans = [span for span in none.spans if span.rank == 0]
    backward = max(span.end for span in spans if span.kind == "backward")
    assert min(span.start for span in spans if span.resource == "communicator") >= backward


def test_a_step_between_nodes_takes_its_fixed_time_once() -> None:
    """However many buckets it has; a node by itself pays nothing."""
    code = Framework(per_step=Fraction(1, 500))
    without, with_it = Training(overlap="none"), Training(overlap="none", reducer=code)
    layouts = tuple(BucketLayout(index=n, slices=()) for n in range(2))
    named = replace(DENSE, buckets=layouts, compressor="none")

    def at(nodes: int, training: Training) -> float:
        return predict(named, cluster(nodes, devices=2), COMPUTE, training=training).iteration

    longer = at(2, with_it) - at(2, without)  # half of it beside the exchange before
    assert 1e-3 <= round(longer, 9) <= 2e-3
    assert at(1, with_it) == at(1, without)


@pytest.mark.parametrize("steps", [2, 5])
def test_local_steps_share_one_exchange(steps: int) -> None:
    """What an iteration takes beyond the passes is divided among the steps."""
    on = cluster(2, devices=1)
    alone = seconds(COMPUTE.total)
    each = predict(DENSE, on, COMPUTE).iteration - alone
    seldom = predict(every(DENSE, steps), on, COMPUTE).iteration - alone
    assert seldom == pytest.approx(each / steps, rel=1e-6)
    assert every(every(DENSE, steps), 3).period == 3 * steps * DENSE.period
    assert every(DENSE, 1) == DENSE


def test_an_exchange_waits_for_its_share_of_the_backward_pass() -> None:
    """The bucket that is ready after 5 of 20 ms and waits for a third of the rest starts at 10."""
    passes = ComputeTimes(forward=0, backward=20, parts=(5, 5), provenance="")
    assert passes.delayed(Fraction(1, 3)).parts == (10, 3)
    assert passes.delayed(Fraction(0)) == passes
    assert passes.delayed(Fraction(1)).parts == (20, 0)

    def at(overlap: Overlap | None = None, exposed: Fraction = Fraction(0)) -> float:
        training = Training(overlap=overlap, exposed=exposed)
        return predict(DENSE, cluster(2, devices=1), COMPUTE, training=training).iteration

    assert at(exposed=Fraction(0)) == at(overlap="ddp")
    assert at(exposed=Fraction(1)) == at(overlap="none") == at(overlap="none", exposed=Fraction(0))
    assert at(overlap="ddp") < at(exposed=Fraction(9, 10)) < at(overlap="none")


def test_two_collectives_at_a_time_hide_each_others_latency() -> None:
    short = [exchange(reduce(4_000)), exchange(reduce(4_000))]
    compute = replace(COMPUTE, parts=(20 * MILLISECOND, 0))
    one, two = (
        predict(
            profile((1, [short])),
            cluster(6, 1),
            compute,
            training=Training(concurrent_collectives=slots),
        )
        for slots in (1, 2)
    )
    assert one.exposed == pytest.approx(2 * ring(6, 4_000), abs=20e-6)
    assert two.exposed == pytest.approx(ring(6, 4_000), abs=30e-6)


NOISE = Noise(variation=Fraction(1, 10), slow_probability=Fraction(1, 20), slow_factor=Fraction(2))


@pytest.mark.parametrize("traffic", [DENSE, GATHERED])
@pytest.mark.parametrize("devices", [1, 2])
def test_events_and_vectors_give_the_same_random_times(
    traffic: TrafficProfile, devices: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = Training(
        noise=NOISE,
        iterations=12,
        slow_nodes={1: Fraction(5, 4)},
        optimizer=Fraction(1, 1000),
        input=InputLoading(batch=Fraction(29, 1000)),
    )
    seen = []
    for events in (False, True):
        monkeypatch.setattr(averages, "_only_events", lambda _, events=events: events)
        seen.append(
            predict(traffic, cluster(3, devices), COMPUTE, training=training, seed=5, spans=False)
        )
    assert seen[0] == seen[1]
    times = seen[0]
    assert times.iteration_p5 is not None
    assert times.iteration_p95 is not None
    assert times.iteration_p5 <= times.iteration <= times.iteration_p95
    assert times.iteration > predict(traffic, cluster(3, devices), COMPUTE).iteration
    assert total(times) == pytest.approx(times.iteration, rel=1e-13)


def test_a_seed_decides_on_random_times_and_on_nothing_else() -> None:
    training = Training(noise=NOISE, iterations=20)
    first, again, other = (
        predict(DENSE, cluster(3), COMPUTE, training=training, seed=seed) for seed in (1, 1, 2)
    )
    assert first == again
    assert first.iteration != other.iteration
    assert predict(DENSE, cluster(3), COMPUTE, seed=1) == predict(DENSE, cluster(3), COMPUTE)
    assert min(span.start for span in first.spans) >= 0
    without = Training(noise=Noise(), iterations=20)
    assert predict(DENSE, cluster(3), COMPUTE, training=without) == predict(
        DENSE, cluster(3), COMPUTE
    )


def test_jitter_makes_iterations_differ_unless_there_is_nobody_to_talk_to() -> None:
    jitter = Jitter(distribution="exponential", mean=Fraction(1, 1000))
    shaky = replace(cluster(4), network=replace(NETWORK, jitter=(jitter,)))
    times = predict(DENSE, shaky, COMPUTE, training=Training(iterations=10))
    assert times.iteration > predict(DENSE, cluster(4), COMPUTE).iteration
    assert times.iteration_p5 is not None
    assert times.iteration_p95 is not None
    assert times.iteration_p5 < times.iteration_p95
    alone = predict(DENSE, replace(shaky, nodes=1, devices_per_node=1), COMPUTE)
    assert alone.iteration_p5 is None


def test_local_steps_of_ranks_that_never_meet_take_as_long_as_the_slowest() -> None:
    local = profile((1, [[exchange(), exchange()]]))
    slow = Training(slow_nodes={1: Fraction(3), 2: Fraction(2)})
    times = predict(local, cluster(4), COMPUTE, training=slow)
    assert times.iteration == pytest.approx(3 * (0.030 + 6e-6), rel=1e-12)
    assert times.exposed == 0.0


def test_percentiles_weigh_iterations_by_how_often_they_occur() -> None:
    # 1 of 10 steps is dense and takes long; the 5th percentile is a local step's, the 95th not.
    dense = [exchange(reduce(40_000_000)), exchange(reduce(4_000_000))]
    local = [exchange(), exchange()]
    training = Training(noise=Noise(variation=Fraction(1, 1000)), iterations=10)
    times = predict(profile((1, [dense]), (9, [local])), cluster(4), COMPUTE, training=training)
    long, short = (
        predict(profile((1, [step])), cluster(4), COMPUTE, training=training)
        for step in (dense, local)
    )
    assert times.iteration_p5 == pytest.approx(short.iteration, rel=0.01)
    assert times.iteration_p95 == pytest.approx(long.iteration, rel=0.01)


# --- standard errors -----------------------------------------------------------------------------

JITTER = Jitter(distribution="exponential", mean=Fraction(1, 1000))
SHAKY = replace(cluster(4, 1), network=replace(NETWORK, jitter=(JITTER,)))
SHORT = [exchange(reduce(400_000)), exchange(reduce(4_000))]


def test_nothing_random_has_no_standard_error() -> None:
    trace = RateTrace(
        times=(Fraction(0), Fraction(1, 50)), rates=(Fraction(10**9), Fraction(5 * 10**8)),
        duration=Fraction(1, 25), after="repeat",
    )  # fmt: skip
    timed = replace(cluster(4, 1), network=replace(NETWORK, trace=trace))
    local = profile((1, [[exchange(), exchange()]]))
    assert predict(DENSE, cluster(4), COMPUTE).iteration_error is None
    changing = predict(DENSE, timed, COMPUTE)
    assert changing.iteration_p5 is not None
    assert changing.iteration_error is None
    # jitter, but nobody to talk to, or nothing to say
    alone = replace(SHAKY, nodes=1)
    assert predict(DENSE, alone, COMPUTE).iteration_error is None
    assert predict(local, SHAKY, COMPUTE).iteration_error is None
    one, two = (
        predict(DENSE, SHAKY, COMPUTE, training=Training(iterations=count)) for count in (1, 2)
    )
    assert one.iteration_error is None
    assert two.iteration_error is not None


@pytest.mark.parametrize(
    ("local", "iterations", "counted", "batches", "length"),
    [
        (0, 5, 5, 5, 1),
        (0, 14, 14, 14, 1),
        (0, 19, 19, 9, 2),
        (0, 100, 100, 10, 10),
        (3, 5, 20, 5, 4),  # rounds of four: five of them at least
        (3, 81, 84, 10, 8),  # 21 rounds, of which the last 20 are batches of two
    ],
)
def test_the_standard_error_is_that_of_batch_means(
    local: int, iterations: int, counted: int, batches: int, length: int
) -> None:
    """Against sums in plain Python; batches are whole rounds."""
    training = Training(noise=NOISE, iterations=iterations)
    kinds = [(local, [[exchange(), exchange()]])] if local else []
    traffic = profile((1, [SHORT]), *kinds)
    schedule = schedule_of_period(traffic, Planner(SHAKY, COMPUTE, training))
    times = averages.Averager(SHAKY, training, 7).average(schedule).iterations.tolist()
    assert len(times) == counted
    last = times[counted - batches * length :]
    means = [sum(last[b * length : (b + 1) * length]) / length for b in range(batches)]
    expected = math.sqrt(statistics.variance(means) / batches)
    found = predict(traffic, SHAKY, COMPUTE, training=training, seed=7, spans=False)
    assert found.iteration_error == pytest.approx(expected / 1e12, rel=1e-9)
    assert found.iteration == pytest.approx(statistics.mean(times) / 1e12, rel=1e-12)
    assert found.batches == pytest.approx([mean / 1e12 for mean in means], rel=1e-12)
    assert found.iterations == counted


@pytest.mark.parametrize("carry", [False, True])
def test_standard_errors_are_as_large_as_means_differ_between_seeds(carry: bool) -> None:
    """With `carry`, slow workers leave skew to the iterations after them."""
    noise = Noise(variation=Fraction(1, 5), slow_probability=Fraction(1, 10),
                  slow_factor=Fraction(3))  # fmt: skip
    loading = InputLoading(batch=Fraction(36, 1000), prefetch=4) if carry else None
    training = Training(noise=noise, iterations=100, input=loading)
    found = [
        predict(profile((1, [SHORT])), SHAKY, COMPUTE, training=training, seed=seed, spans=False)
        for seed in range(40)
    ]
    errors = [times.iteration_error or 0.0 for times in found]
    spread = statistics.stdev(times.iteration for times in found)
    # 40 seeds know their spread to 11 %, ten batches know less and correlate a little
    assert 0.7 < statistics.mean(errors) / spread < 1.3
    mean = statistics.mean(times.iteration for times in found)
    near = sum(
        abs(times.iteration - mean) < 2 * error for times, error in zip(found, errors, strict=True)
    )
    assert near >= 34  # 93 % of 40 are expected: Student's t with 9 degrees of freedom


def test_steps_that_meet_the_same_luck_do_not_cancel_each_others_errors() -> None:
    training = Training(noise=NOISE, iterations=100)
    like = [exchange(reduce(400_004)), exchange(reduce(4_004))]
    one, both = (
        predict(profile((1, steps)), cluster(4), COMPUTE, training=training, spans=False)
        for steps in ([SHORT], [SHORT, like])
    )
    assert both.iteration_error == pytest.approx(one.iteration_error, rel=0.01)


def test_local_steps_that_nothing_disturbs_take_as_long_as_their_arithmetic() -> None:
    """Only messages are late: of four iterations, the one that sends them is the one that differs.

    Ranks leave it at different times and meet again four iterations later, for better or worse.
    """
    training = Training(iterations=40)
    traffic = profile((1, [SHORT]), (3, [[exchange(), exchange()]]))
    schedule = schedule_of_period(traffic, Planner(SHAKY, COMPUTE, training))
    times = Averager(SHAKY, training, 0).average(schedule).iterations
    synchronisations = np.arange(averages.WARM_UP, averages.WARM_UP + 40) % 4 == 0
    assert set(times[~synchronisations].tolist()) == {30 * MILLISECOND + 6 * 10**6}
    assert len(set(times[synchronisations].tolist())) == 10


# --- a rough mean --------------------------------------------------------------------------------


@pytest.mark.parametrize("transport", ["textbook", "gloo"])
def test_a_second_slot_is_for_a_second_bucket(transport: Literal["textbook", "gloo"]) -> None:
    chosen = cluster(3, collectives=Collectives(transport=transport))
    training = Training(concurrent_collectives=2, slow_nodes={0: Fraction(5, 4)})
    planner = Planner(chosen, replace(COMPUTE, parts=COMPUTE.parts[:1]), training)
    toy = profile((1, [[exchange(reduce(40_000), gather(700, 30, 5, 900))]]))
    (alone,) = schedule_of_period(toy, planner).plans
    assert alone.slots == 1
    averager = Averager(chosen, training, 0)
    taken = averager.average(Schedule.of([replace(alone, slots=2)], [0]))
    assert taken.iteration == averager.average(Schedule.of([alone], [0])).iteration
    two = profile((1, [[exchange(reduce(40_000)), exchange(reduce(400))]]))
    both = schedule_of_period(two, Planner(chosen, COMPUTE, training))
    assert both.plans[0].slots == 2


def test_predictions_on_one_cluster_share_what_they_can() -> None:
    toy = profile((1, [[exchange(reduce(4_000_000)), exchange(reduce(400))]]))
    averager = Averager(cluster(4), Training(), 0)
    alone = predict(toy, cluster(4), COMPUTE)
    assert predict(toy, cluster(4), COMPUTE, averager=averager) == alone
    assert predict(toy, cluster(4), COMPUTE, averager=averager) == alone
