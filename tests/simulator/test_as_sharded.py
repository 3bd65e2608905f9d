"""Profiles of a training with sharded gradients and weights: bytes by ZeRO's formulas, collectives
as PyTorch's FSDP2 really calls them."""

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gcsim.compressors.bucket import BucketLayout
from gcsim.compressors.kernels import KernelCost
from gcsim.compressors.lockstep import CollectiveRecord
from gcsim.simulator.as_trained import as_trained, gradient_bytes_sent
from gcsim.simulator.collectives.dispatch import ShardExchange, execute
from gcsim.simulator.devices.training_time import ComputeTimes
from gcsim.simulator.predict import predict
from gcsim.simulator.training import Strategy, Training
from gcsim.traces.profile import Compute, Exchange, TrafficProfile
from tests.process import OVER_LOOPBACK, printed
from tests.simulator.traffic import traffic
from tests.simulator.world import cluster, times

TENSORS = [
    ("output.weight", 48 * 16), ("output.bias", 48),
    *(
        (f"layers.{n}.{name}", size)
        for n in (2, 1, 0)
        for name, size in (("down.bias", 16), ("down.weight", 512), ("up.bias", 32),
                           ("up.weight", 512))
    ),
    ("embedding.weight", 48 * 16),
]  # fmt: skip
"""The network of `fsdp_ranks.py`, a bucket per tensor, in backward order."""
BUCKETS = tuple(
    BucketLayout.behind(n, [(name, len(TENSORS) - 1 - n, (size,))])
    for n, (name, size) in enumerate(TENSORS)
)
UNITS = [816, 1072, 1072, 1072, 768]  # elements: output, three blocks, embedding
WHOLE = sum(UNITS)


def kernel(nbytes: int) -> KernelCost:
    return KernelCost(kind="streaming", name="toy", launches=1, elements=nbytes // 4, nbytes=nbytes)


def method(kind: str) -> TrafficProfile:
    """Dense; a method whose payloads of a byte per element are gathered; one that pushes them."""
    exchanges = []
    for layout in BUCKETS:
        size = layout.numel
        encode = Compute(stage="encode", fixed=(kernel(4 * size),))
        decode = Compute(stage="decode", fixed=())
        if kind == "dense":
            record = CollectiveRecord(kind="all_reduce", sent=(4 * size,) * 2, element=4)
        else:
            record = CollectiveRecord(kind="all_gather", sent=(size,) * 2)
            decode = Compute(stage="decode", fixed=(), per_payload=(kernel(5 * size),))
        if kind == "pushed":
            record = CollectiveRecord(kind="push_pull", sent=(size,) * 2, pulled=size,
                                      without_server="alltoall_allgather")  # fmt: skip
        exchanges.append(Exchange(computes=(encode, decode), collectives=(record,)))
    return traffic(*exchanges, compressor=kind, buckets=BUCKETS)


def units(kind: str, strategy: Strategy, **more: Any) -> tuple[Exchange, ...]:
    training = Training(strategy=strategy, **more)
    return as_trained(method(kind), training, cluster(4)).phases[0].steps[0].exchanges


def asked(exchange: Exchange) -> list[tuple[str, int]]:
    """Kind and bytes of each collective, of parts all together."""
    return [
        (getattr(record, "what", record.kind), sum(record.sent) if record.part else record.sent[0])
        for record in exchange.collectives
    ]


@pytest.mark.parametrize(("strategy", "gathers"), [("zero2", 1), ("zero3", 2)])
def test_units_are_blocks_and_what_lies_between(strategy: Strategy, gathers: int) -> None:
    """The last unit of the forward pass, the first of the backward, keeps its weights."""
    found = [asked(exchange) for exchange in units("dense", strategy)]
    for number, (size, of_unit) in enumerate(zip(UNITS, found, strict=True)):
        gathered = [("gather of weights", 4 * size)] * (gathers if number else 1)
        assert of_unit == [*gathered, ("reduce-scatter", 4 * size)]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_step_sends_as_much_as_zero_says(precision: Any) -> None:
    """Rajbhandari et al., sec. 7: all-gather and reduce-scatter carry M each, an all-reduce 2 M; a
    second stage as much as an all-reduce, the third half as much again. Weights of 2 bytes halve
    the gathers; here the output is not gathered again."""
    width = 4 if precision == "fp32" else 2
    stages: dict[Strategy, int] = {"zero2": 0, "zero3": WHOLE - UNITS[0]}
    for strategy, again in stages.items():
        found = [
            one for unit in units("dense", strategy, precision=precision) for one in asked(unit)
        ]
        gathered = sum(size for what, size in found if what == "gather of weights")
        scattered = sum(size for what, size in found if what == "reduce-scatter")
        assert (gathered, scattered) == (width * (WHOLE + again), 4 * WHOLE)


def test_gradients_are_counted_as_they_are_handed_over() -> None:
    for kind in ("dense", "gathered", "pushed"):
        whole = gradient_bytes_sent(as_trained(method(kind), Training(), cluster(4)), 4)
        stages: tuple[Strategy, ...] = ("zero2", "zero3")
        for strategy in stages:
            training = Training(strategy=strategy)
            profile = as_trained(method(kind), training, cluster(4))
            assert gradient_bytes_sent(profile, 4) == whole


def test_payloads_are_cut_into_parts() -> None:
    """Each rank receives, and decodes, a part of every payload: as many bytes as one payload has,
    in as many launches as there are ranks."""
    for unit, size in zip(units("gathered", "zero2"), UNITS, strict=True):
        assert asked(unit)[-1] == ("all_to_all", size)
        *_, decode = unit.computes
        (part,) = decode.per_part
        assert not decode.per_payload
        assert (part.launches, part.nbytes) == (1, 5 * size)
        assert unit.computes[0].fixed == (kernel(4 * size),)  # launched as for one bucket


def test_on_nodes_of_several_devices_payloads_take_two_hops() -> None:
    """Inside a node each of four devices decodes its quarter of four payloads, all together one
    payload's bytes, and encodes the sum once more, a quarter of a gradient; between nodes each
    decodes its part of a quarter. One payload per node crosses its NICs."""
    profile = as_trained(method("gathered"), Training(strategy="zero2"), cluster(2, 4))
    for unit, size in zip(profile.phases[0].steps[0].exchanges, UNITS, strict=True):
        _, inside, between = unit.collectives
        assert [inside.kind, between.kind] == ["all_to_all"] * 2
        assert [inside.scope, between.scope] == ["node", "nodes"]
        assert inside.sent == between.sent == (size, size)
        assert isinstance(between, ShardExchange)
        encode, _, again, decode = unit.computes
        assert again.fixed == (replace(encode.fixed[0], elements=size // 4, nbytes=size),)
        assert again.per_part == (kernel(5 * size),)
        assert decode.per_part[0].nbytes == -(-5 * size // 4)
    assert gradient_bytes_sent(profile, 8) == WHOLE


def test_weights_travel_in_a_byte_and_from_a_copy_in_the_node() -> None:
    """ZeRO++: of weights of 2 bytes, M / 2 for the forward pass, nothing between nodes for the
    backward pass. The copy behind a gather reads what came, and writes weights of 2 bytes."""
    training = Training(strategy="zero3", precision="bf16", gathered="int8", secondary=True)
    profile = as_trained(method("dense"), training, cluster(2, 4))
    between = 0
    for number, unit in enumerate(profile.phases[0].steps[0].exchanges):
        first, *again, _ = unit.collectives
        assert first.scope == "all"
        assert unit.computes[1].fixed[0].nbytes == 3 * UNITS[number]
        between += sum(first.sent)
        assert len(again) == (1 if number else 0)
        for gather, unpack in zip(again, unit.computes[2:], strict=False):
            assert gather.scope == "node"
            assert sum(gather.sent) == 2 * UNITS[number]
            assert unpack.fixed[0].nbytes == 4 * UNITS[number]
    assert between == WHOLE


def test_of_pushed_payloads_the_first_half_is_left() -> None:
    for unit, size in zip(units("pushed", "zero2"), UNITS, strict=True):
        assert asked(unit)[1:] == [("all_to_all", size)]


def test_gloo_all_reduces() -> None:
    training = Training(strategy="zero2")
    profile = as_trained(method("dense"), training, cluster(4, transport="gloo"))
    for unit, size in zip(profile.phases[0].steps[0].exchanges, UNITS, strict=True):
        assert asked(unit)[-1] == ("all_reduce", 4 * size)


@pytest.mark.parametrize("kind", ["dense", "gathered"])
def test_inside_nodes_shards_and_between_them_the_methods_own_exchange(kind: str) -> None:
    """Each of four devices encodes a quarter, in as many launches; as many bytes as one worker's
    cross a node's NICs, and take as long, without a hand-over inside the node."""
    on = cluster(2, 4)
    profile = as_trained(method(kind), Training(strategy="hsdp"), on)
    exchanged = {"dense": ("all_reduce", 4), "gathered": ("all_gather", 1)}[kind]
    for number, (unit, size) in enumerate(
        zip(profile.phases[0].steps[0].exchanges, UNITS, strict=True)
    ):
        *gathered, scattered, between = unit.collectives
        assert [one.scope for one in unit.collectives] == ["node"] * (len(gathered) + 1) + ["nodes"]
        assert len(gathered) == (2 if number else 1)
        assert asked(unit)[len(gathered) :] == [
            ("reduce-scatter", 4 * size), (exchanged[0], exchanged[1] * size),
        ]  # fmt: skip
        encode = unit.computes[len(gathered) + 1]
        assert encode.fixed == (replace(kernel(4 * size), elements=size // 4, nbytes=size),)
        plain = CollectiveRecord(**{
            field.name: getattr(between, field.name) for field in fields(between)
        })  # fmt: skip
        starts = times([0] * 8)
        found = execute(between, starts, on)
        alone = execute(replace(plain, scope="all"), times([0, 0]), cluster(2))
        assert found.tolist() == np.repeat(alone, 4).tolist()
        handed_on = execute(plain, starts, on)
        assert (handed_on > found).all()
        assert scattered.part


def test_gradients_between_nodes_are_counted_alone() -> None:
    for kind, nbytes in (("dense", 4), ("gathered", 1)):
        profile = as_trained(method(kind), Training(strategy="hsdp"), cluster(2, 4))
        assert gradient_bytes_sent(profile, 8) == nbytes * WHOLE


def test_one_worker_shards_nothing() -> None:
    profile = method("dense")
    assert as_trained(profile, Training(strategy="zero3"), cluster(1)) is profile


COMPUTE = ComputeTimes(forward=10**9, backward=2 * 10**9, parts=(4 * 10**8,) * 5, provenance="test")


@pytest.mark.long
@pytest.mark.parametrize(("strategy", "stage"), [("zero2", 2), ("zero3", 3)])
def test_fsdp_calls_the_same_collectives_in_the_same_order(
    tmp_path: Path, strategy: Strategy, stage: int
) -> None:
    """Two processes of PyTorch's `fully_shard` over Gloo, one training step."""
    printed(Path(__file__).with_name("fsdp_ranks.py"), tmp_path, stage, **OVER_LOOPBACK)
    called = json.loads((tmp_path / "called.json").read_text())
    on, training = cluster(2), Training(strategy=strategy)
    profile = as_trained(method("dense"), training, on)
    found = predict(profile, on, COMPUTE, training=training)
    order = sorted(
        (span for span in found.spans if span.rank == 0 and span.resource == "communicator"),
        key=lambda span: span.start,
    )
    names = {"gather of weights": "gather", "reduce-scatter": "scatter"}
    simulated = []
    for span in order:
        assert span.carried is not None
        record: Any = span.carried.record
        simulated.append([names[record.what], sum(record.sent) // 4])
    assert simulated == called
