"""Training with a sharded optimizer (ZeRO, stage 1), against the same training with a whole one and
the gather of its weights worked out by itself."""

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gcsim.compressors.bucket import BucketLayout, TensorSlice
from gcsim.compressors.kernels import KernelCost
from gcsim.compressors.lockstep import CollectiveRecord
from gcsim.simulator.as_trained import as_trained
from gcsim.simulator.cluster import Cluster
from gcsim.simulator.collectives.dispatch import execute, traffic_of
from gcsim.simulator.devices.training_time import ComputeTimes
from gcsim.simulator.memory import memory
from gcsim.simulator.predict import Prediction, predict
from gcsim.simulator.push_pull import as_collectives
from gcsim.simulator.training import Framework, Training
from gcsim.traces.models.registry import MODELS
from gcsim.traces.profile import Compute, Exchange, TrafficProfile
from tests.simulator.traffic import traffic
from tests.simulator.world import NETWORK, TOY, cluster, times

ZERO = Training(strategy="zero1")
SIZES = 300_000, 60_000  # elements of the buckets: 1.44 MB of float32 weights, in 4 parts or in 6
BUCKETS = tuple(
    BucketLayout(index=n, slices=(TensorSlice(index=n, name=str(n), shape=(size,), offset=0),))
    for n, size in enumerate(SIZES)
)
MS = 10**9
COMPUTE = ComputeTimes(
    forward=10 * MS, backward=20 * MS, parts=(15 * MS, 5 * MS), provenance="test"
)
OPTIMIZER_LAST = replace(COMPUTE, parts=(10 * MS, 2 * MS))
"""Eight milliseconds of the backward pass follow the last gradient."""


def priced(nbytes: int, stage: Any = "encode") -> Compute:
    cost = KernelCost(kind="streaming", launches=1, elements=1, nbytes=nbytes)
    return Compute(stage=stage, fixed=(cost,) if nbytes else ())


def method(kind: str) -> TrafficProfile:
    exchanges = []
    for size in SIZES:
        dense = CollectiveRecord(kind="all_reduce", sent=(4 * size,) * 2, element=4)
        computes, records = [priced(0)], [dense]
        if kind == "gathers":
            few = CollectiveRecord(kind="all_gather", sent=(size // 10,) * 2)
            computes, records = [priced(9 * size)], [few]
        if kind == "low rank":
            low = replace(dense, sent=(400, 400))
            computes, records = [priced(8 * size), priced(2 * size)], [low, low]
        if kind == "pushes":
            sent = CollectiveRecord(kind="push_pull", sent=(size, size), pulled=size,
                                    without_server="alltoall_allgather")  # fmt: skip
            computes, records = [priced(7 * size)], [sent]
        decode = priced(0 if kind == "none" else 5 * size, "decode")
        exchanges.append(Exchange(computes=(*computes, decode), collectives=tuple(records)))
    return traffic(*exchanges, compressor=kind, buckets=BUCKETS)


KINDS = "none", "gathers", "low rank", "pushes"


def predicted(
    kind: str, on: Cluster, training: Training, compute: ComputeTimes = COMPUTE, **more: Any
) -> Prediction:
    profile = as_collectives(as_trained(method(kind), training, on), on)
    return predict(profile, on, compute, training=training, **more)


def of_weights(on: Cluster, training: Training = ZERO) -> CollectiveRecord:
    (*_, last) = as_trained(method("none"), training, on).phases[0].steps[0].exchanges
    return last.collectives[-1]


def alone(on: Cluster, training: Training = ZERO) -> int:
    """Picoseconds of the gather that all ranks enter together."""
    return int(execute(of_weights(on, training), times([0] * on.workers), on).max())


SETTINGS: dict[str, dict[str, Any]] = {
    "as by default": {},
    "16 bits": {"gradients": "bf16"},
    "after backward": {"exposed": Fraction(1)},
    "on the communicator": {"encode_on": "communicator"},
    "with code around": {
        "reducer": Framework(per_bucket=Fraction(1, 100), passes=Fraction(3)),
        "hook": Framework(per_bucket=Fraction(1, 500)),
    },
    "in micro-batches": {"accumulation": 3, "optimizer": Fraction(1, 1000)},
}
EQUAL_LINKS = {
    "rings": cluster(4),
    "gloo": cluster(4, transport="gloo"),
    "nccl": cluster(4, transport="nccl"),
    "mpich": cluster(4, transport="mpich"),
}


@pytest.mark.parametrize("compute", [COMPUTE, OPTIMIZER_LAST])
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("name", EQUAL_LINKS)
def test_a_step_takes_the_gather_of_weights_longer(
    name: str, setting: str, compute: ComputeTimes
) -> None:
    """(Where links are unlike, ranks leave a collective one after another, and enter the gather
    so.)"""
    on, whole = EQUAL_LINKS[name], Training(**SETTINGS[setting])
    divided = replace(whole, strategy="zero1")
    for kind in KINDS:
        before, after = (
            round(predicted(kind, on, one, compute).iteration * 10**12) for one in (whole, divided)
        )
        assert after - before == alone(on, divided), kind


@pytest.mark.parametrize(("gradients", "nbytes"), [("fp32", 1_440_000), ("fp16", 720_000)])
@pytest.mark.parametrize("workers", [2, 4, 6])
def test_each_rank_sends_its_part_of_the_stored_weights(
    gradients: Any, nbytes: int, workers: int
) -> None:
    """A ring carries (p - 1) / p of all weights from each rank and as much to it, in p - 1 rounds,
    each of a latency and a part."""
    on = cluster(workers)
    record = of_weights(on, Training(strategy="zero1", gradients=gradients))
    part = nbytes // workers
    assert traffic_of(record, on).nbytes.tolist() == [2 * (workers - 1) * part] * workers
    one = NETWORK.serialization(part) + NETWORK.latency_for(part)
    found = execute(record, times([0] * workers), on).max()
    assert found == pytest.approx((workers - 1) * one, rel=1e-9)
    for kind in KINDS:
        plain = as_trained(method(kind), Training(gradients=gradients), on)
        divided = as_trained(method(kind), Training(strategy="zero1", gradients=gradients), on)
        assert divided.wire_bytes(workers) - plain.wire_bytes(workers) == part


def test_one_worker_and_steps_without_an_exchange_gather_nothing() -> None:
    plain = method("gathers")
    assert as_trained(plain, ZERO, cluster(1)) is plain
    nothing = Exchange(computes=(priced(0),), collectives=())
    silent = traffic(nothing, nothing, compressor="toy", buckets=BUCKETS)
    assert as_trained(silent, ZERO, cluster(4)).phases == silent.phases


def test_a_last_bucket_that_sends_nothing_gathers_behind_the_others() -> None:
    first, _ = method("gathers").phases[0].steps[0].exchanges
    nothing = Exchange(computes=(priced(0),), collectives=())
    profile = traffic(first, nothing, compressor="toy", buckets=BUCKETS)
    on = cluster(4)
    kept, last = as_trained(profile, ZERO, on).phases[0].steps[0].exchanges
    assert kept == first
    assert last.collectives == (of_weights(on),)


def test_a_node_that_sums_gathers_from_all_its_devices() -> None:
    on, training = cluster(2, 2), Training(strategy="zero1", between="nodes")
    (*_, last) = as_trained(method("gathers"), training, on).phases[0].steps[0].exchanges
    assert [one.scope for one in last.collectives] == ["node", "nodes", "all"]
    assert last.collectives[-1] == of_weights(on)


def test_computations_keep_their_kinds() -> None:
    """What was decoding before stays so: the parts of an iteration differ in communication."""
    for kind in KINDS:
        before, after = (predicted(kind, cluster(4), one) for one in (Training(), ZERO))
        for part in ("forward", "backward", "encode", "decode", "optimizer"):
            same = pytest.approx(getattr(before, part), abs=1e-12)
            assert getattr(after, part) == same
        assert after.communication > before.communication


def test_the_timeline_calls_it_a_gather_of_weights() -> None:
    spans = predicted("low rank", cluster(4), ZERO).spans
    names = [span.name for span in spans if span.rank == 0 and span.resource == "communicator"]
    assert names[-1] == "gather of weights, bucket 1"
    assert sum("weights" in name for name in names) == 1
    last = max(spans, key=lambda span: span.end)
    assert last.name == names[-1]


STREAMS = "compute", "side", "communicator"


def begin_of_gather(profile: TrafficProfile, encode_on: Any, compute: ComputeTimes) -> int:
    """Picoseconds from the begin of an iteration of four ranks."""
    on, training = cluster(4), replace(ZERO, encode_on=encode_on)
    spans = predict(as_trained(profile, training, on), on, compute, training=training).spans
    (begin,) = (span.start for span in spans if "weights" in span.name and span.rank == 0)
    return begin


@pytest.mark.parametrize("kind", KINDS)
def test_a_gather_waits_for_the_rest_of_the_backward_pass(kind: str) -> None:
    """On its own stream a last bucket that is ready after 22 ms is decoded before 23; forward and
    backward end after 30."""
    profile = as_collectives(method(kind), cluster(4))
    assert begin_of_gather(profile, "side", OPTIMIZER_LAST) == 30 * MS
    for stream in STREAMS:
        assert begin_of_gather(profile, stream, OPTIMIZER_LAST) >= 30 * MS


@pytest.mark.parametrize("stream", ["side", "communicator"])
def test_a_gather_waits_for_the_last_decoding(stream: Any) -> None:
    """The last bucket is ready after 30 ms. Encoding is a launch of 1 us and 9 * 60,000 bytes at 1
    ps, a ring of four ranks three rounds of 50 us and 6,000 bytes at 800 ps, decoding a launch and
    5 * 60,000 bytes."""
    microseconds = 1 + 0.54 + 3 * (50 + 4.8) + 1 + 0.3
    found = begin_of_gather(method("gathers"), stream, COMPUTE)
    assert found == 30 * MS + round(microseconds * 10**6)


@pytest.mark.parametrize("stream", STREAMS)
def test_a_gather_waits_for_the_decoding_of_an_earlier_bucket(stream: Any) -> None:
    """Its 40 ms begin after 15 ms of backward and outlast the last bucket, which has none."""
    first, last = method("none").phases[0].steps[0].exchanges
    decode = priced(40 * MS, "decode")
    long = replace(first, computes=(*first.computes[:-1], decode))
    profile = traffic(long, last, compressor="toy", buckets=BUCKETS)
    assert begin_of_gather(profile, stream, COMPUTE) >= (10 + 15 + 40) * MS


@given(
    kind=st.sampled_from(KINDS),
    nodes=st.integers(1, 5),
    devices=st.integers(1, 3),
    transport=st.sampled_from(["textbook", "gloo", "nccl", "mpich"]),
    setting=st.sampled_from([*SETTINGS]),
    side=st.booleans(),
    slow=st.floats(1, 3),
    rest=st.integers(0, 12 * MS),
)
def test_a_divided_optimizer_is_never_faster(
    kind: str, nodes: int, devices: int, transport: str, setting: str, side: bool, slow: float,
    rest: int,
) -> None:  # fmt: skip
    on = cluster(nodes, devices, transport=transport, device=TOY)
    given: dict[str, Any] = {"slow_nodes": {nodes - 1: Fraction(slow)}, **SETTINGS[setting]}
    if side:
        given["encode_on"] = "side"
    compute = replace(COMPUTE, backward=COMPUTE.backward + rest)
    whole, divided = (
        predicted(kind, on, Training(strategy=one, **given), compute, spans=False).iteration
        for one in ("ddp", "zero1")
    )
    assert divided >= whole * (1 - 1e-3)  # of a long cycle a mean is known so well (averages.py)
    if on.workers == 1:
        assert divided == whole


@given(
    model=st.sampled_from(["llama3_8b", "gpt2", "resnet50"]),
    workers=st.integers(1, 5000),
    gradients=st.sampled_from(["fp32", "bf16"]),
    precision=st.sampled_from(["fp32", "fp16", "bf16"]),
    state=st.sampled_from(["adam", "momentum", "none"]),
    dense=st.booleans(),
)
def test_a_divided_optimizer_needs_no_more_memory(
    model: str, workers: int, gradients: Any, precision: Any, state: Any, dense: bool
) -> None:
    """Less by 1 - 1/p of the optimizer and of masters in 32 bits (arXiv:1910.02054, sec. 5.1)."""
    entry = MODELS[model]
    assert entry.parameters is not None
    given = Training(gradients=gradients, precision=precision, optimizer_state=state)
    whole, divided = (
        memory(entry, 2, replace(given, strategy=one), workers=workers, device=None, dense=dense)
        for one in ("ddp", "zero1")
    )
    assert whole is not None
    assert divided is not None
    nbytes = 4 * {"adam": 2, "momentum": 1, "none": 0}[state] + 4 * (gradients == "bf16")
    saved = nbytes * entry.parameters * (1 - 1 / workers)
    assert whole.low - divided.low == pytest.approx(saved, abs=1, rel=1e-6)
    assert divided.high <= whole.high
