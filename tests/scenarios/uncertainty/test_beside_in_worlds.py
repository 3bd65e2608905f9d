"""Worlds have interference, shared nodes, noise and the code around an exchange. Oracle: the exact
prediction with the world's own figures; ranks are alike, so one rank's step is all there is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from gcsim.compressors.bucket import BucketLayout, TensorSlice
from gcsim.compressors.kernels import KernelCost
from gcsim.compressors.lockstep import CollectiveRecord
from gcsim.compressors.queued import Queued
from gcsim.scenarios.uncertainty.approximation import Approximation
from gcsim.scenarios.uncertainty.drawn import Drawn
from gcsim.scenarios.uncertainty.figures import Column, Input, uncertain_inputs
from gcsim.scenarios.uncertainty.worlds import World, Worlds, cluster_in, training_in
from gcsim.simulator.as_trained import as_trained
from gcsim.simulator.cluster import Cluster, Racks
from gcsim.simulator.devices.device import KernelRate
from gcsim.simulator.devices.pricing import PriceList
from gcsim.simulator.predict import predict
from gcsim.simulator.training import (
    Framework,
    InputLoading,
    Interference,
    Noise,
    SharedNode,
    Training,
)
from gcsim.traces.profile import Compute, Exchange
from tests.scenarios.uncertainty.shared import just
from tests.simulator.test_predict import COMPUTE, DENSE, cluster
from tests.simulator.traffic import traffic
from tests.simulator.world import NETWORK

TRAINING = Training(
    overlap="ddp",
    interference=Interference(
        computation=Fraction(1, 10),
        computation_range=(Fraction(0), Fraction(1, 4)),
        bus=Fraction(1),
        bus_range=(Fraction(0), Fraction(2)),
    ),
    hook=Framework(
        per_tensor=Fraction(1, 10**5),
        per_tensor_range=(Fraction(1, 10**6), Fraction(1, 10**4)),
        per_bucket=Fraction(1, 10**4),
        per_bucket_range=(Fraction(1, 10**5), Fraction(1, 10**3)),
        passes=Fraction(4),
        passes_range=(Fraction(2), Fraction(8)),
    ),
    shared_node=SharedNode(slowdown=Fraction(1, 25), slowdown_range=(Fraction(0), Fraction(1, 10))),
    noise=Noise(skew=Fraction(1, 50), skew_range=(Fraction(0), Fraction(1, 10))),
)
LAYOUTS = tuple(
    BucketLayout(index=index, slices=(TensorSlice(name="", shape=(numel,), offset=0, index=index),))
    for index, numel in enumerate((1_000_000, 100_000))
)
HOOKED = replace(DENSE, compressor="fp16", buckets=LAYOUTS)
NODE = cluster(1, devices=4)


def in_worlds(
    node: Cluster, training: Training, inputs: Sequence[Input], end: float
) -> tuple[World, Column]:
    """The world at an end of all inputs; iterations [ps] as stated, in it, and further ones."""
    world = {one.name: end for one in inputs}
    drawn = Drawn(node, training, inputs, just(world).with_stated(inputs))
    about = Approximation(
        drawn, node.nodes, training, COMPUTE, [HOOKED], prices=PriceList(node.device), seed=0,
    )  # fmt: skip
    return world, about.iteration(HOOKED)


@pytest.mark.parametrize("end", [0.0, 1.0])
@pytest.mark.parametrize(
    "field", ["computation", "bus", "per_tensor", "per_bucket", "passes", "skew", "slowdown", "all"]
)
def test_a_world_at_an_end_takes_what_is_predicted_there(field: str, end: float) -> None:
    inputs = [
        one
        for one in uncertain_inputs(NODE, TRAINING, {"stated": COMPUTE})
        if one.main.key_path[0] == "training" and field in {one.main.field, "all"}
    ]
    assert len(inputs) == (7 if field == "all" else 1)
    world, (as_stated, there, *_) = in_worlds(NODE, TRAINING, inputs, end)
    moved = training_in(world, TRAINING, inputs)
    exact = [predict(HOOKED, NODE, COMPUTE, training=one).iteration for one in (TRAINING, moved)]
    assert there / as_stated == pytest.approx(exact[1] / exact[0], rel=5e-3)
    assert (exact[1] > exact[0]) == (end == 1.0)


@pytest.mark.parametrize("stream", ["compute", "side", "communicator"])
@pytest.mark.parametrize("rest", [0.0, 0.5])
def test_a_gather_of_weights_begins_as_in_a_prediction(stream: Any, rest: float) -> None:
    """With a share of the backward pass after the last bucket, or nothing."""
    parts = tuple(round((1 - rest) * part) for part in COMPUTE.parts)
    compute = replace(COMPUTE, parts=parts)
    training = replace(TRAINING, strategy="zero1", encode_on=stream)
    profile = as_trained(HOOKED, training, NODE)
    stated = Approximation(
        Drawn(NODE, training, [], Worlds({}, 1)), NODE.nodes, training, compute, [profile],
        prices=PriceList(NODE.device), seed=0,
    )  # fmt: skip
    exact = predict(profile, NODE, compute, training=training).iteration
    assert stated.iteration(profile)[0] / 1e12 == pytest.approx(exact, rel=1e-9)


@pytest.mark.parametrize("strategy", ["zero2", "zero3", "hsdp"])
@pytest.mark.parametrize("end", [0.0, 1.0])
def test_gathers_gate_passes_as_in_a_prediction(strategy: Any, end: float) -> None:
    """As stated, and where nodes slow each other at an end of the range."""
    training = replace(TRAINING, strategy=strategy, accumulation=2, noise=None)
    blocks = [(f"h.{n}.weight", n, (layout.numel,)) for n, layout in enumerate(LAYOUTS)]
    layouts = tuple(BucketLayout.behind(n, [block]) for n, block in enumerate(blocks))
    node = cluster(2, devices=4) if strategy == "hsdp" else NODE
    profile = as_trained(replace(HOOKED, buckets=layouts), training, node)
    inputs = [
        one
        for one in uncertain_inputs(node, training, {"stated": COMPUTE})
        if one.main.field == "slowdown"
    ]
    world = {one.name: end for one in inputs}
    about = Approximation(
        Drawn(node, training, inputs, just(world).with_stated(inputs)),
        node.nodes, training, COMPUTE, [profile], prices=PriceList(node.device), seed=0,
    )  # fmt: skip
    found = about.iteration(profile) / 1e12
    moved = training_in(world, training, inputs)
    for drawn, one in zip(found, (training, moved), strict=False):
        exact = predict(profile, node, COMPUTE, training=one).iteration
        assert drawn == pytest.approx(exact, rel=1e-6)
    assert (found[1] > found[0]) == (end == 1.0)


@pytest.mark.parametrize(
    ("training", "payloads"),
    [
        ({}, "16"),
        ({"between": "nodes"}, "8"),
        ({"between": "racks"}, "4"),
        ({"strategy": "zero2"}, "2 and 8"),
        ({"strategy": "hsdp"}, "8"),
    ],
    ids=["workers", "nodes", "racks", "zero2", "hsdp"],
)
@pytest.mark.parametrize("end", [0.0, 1.0])
def test_slower_launches_count_once_per_payload(
    training: dict[str, Any], payloads: str, end: float
) -> None:
    """A payload per worker, node, rack or, in two hops, device and node: each launch takes 1 to
    9 ms in the place of 5. Bytes, and so all other prices, are nothing."""
    rate = KernelRate(launch=5e-3, launch_range=(1e-3, 9e-3), source="test")
    racks = Racks(nodes=2, uplink=NETWORK)
    node = replace(cluster(8, devices=2), racks=racks)
    node = replace(node, device=replace(node.device, kernels={"streaming": rate}))
    settings = replace(Training(overlap="none", noise=Noise()), **training)
    each = (KernelCost(kind="streaming", launches=1, elements=0, nbytes=0),)
    exchange = Exchange(
        computes=(
            Compute(stage="encode", fixed=each),
            Compute(stage="decode", fixed=(), per_payload=each),
        ),
        collectives=(CollectiveRecord(kind="all_gather", sent=(1000,) * 4),),
    )
    blocks = [(f"h.{n}.weight", n, (layout.numel,)) for n, layout in enumerate(LAYOUTS)]
    layouts = tuple(BucketLayout.behind(n, [block]) for n, block in enumerate(blocks))
    profile = as_trained(
        traffic(exchange, exchange, compressor="qsgd", buckets=layouts), settings, node
    )
    found = uncertain_inputs(node, settings, {"stated": COMPUTE})
    (one,) = (each for each in found if each.main.key_path[-1] == "streaming")
    world = {one.name: end}
    about = Approximation(
        Drawn(node, settings, [one], just(world).with_stated([one])),
        node.nodes, settings, COMPUTE, [profile], prices=PriceList(node.device), seed=0,
    )  # fmt: skip
    times = about.iteration(profile) / 1e12
    moved = cluster_in(world, node, [one])
    for drawn, there in zip(times, (node, moved), strict=False):
        exact = predict(profile, there, COMPUTE, training=settings).iteration
        assert drawn == pytest.approx(exact, rel=3e-3), payloads


@pytest.mark.parametrize("end", [0.0, 1.0])
def test_a_loader_limits_the_worlds_in_which_it_is_slow(end: float) -> None:
    """The stated loader is as slow as it can be, or nothing waits for it."""
    loader = InputLoading(batch=Fraction(1), batch_range=(Fraction(0), Fraction(2)))
    training = replace(TRAINING, input=loader)
    found = uncertain_inputs(NODE, training, {"stated": COMPUTE})
    (one,) = (each for each in found if each.measure == "training.input.batch")
    assert one.name == "the loader's time per batch"
    world, iterations = in_worlds(NODE, training, [one], end)
    moved = training_in(world, training, [one])
    exact = predict(HOOKED, NODE, COMPUTE, training=moved).iteration
    assert iterations[1] / 1e12 == pytest.approx(exact, rel=0.05)
    assert (exact == 2.0) == (end == 1.0)


@pytest.mark.parametrize("end", [0.0, 1.0])
@pytest.mark.parametrize(("what", "times"), [("kernel", 2), ("wait", 1)])
def test_a_gpus_host_that_is_slower_queues_the_hooks_checks_more_slowly(
    end: float, what: Queued, times: int
) -> None:
    """It takes 1 to 9 ms in the place of 5: a launch of both buckets' checks, a wait of a step."""
    rate = KernelRate(launch=5e-3, launch_range=(1e-3, 9e-3), source="test")
    free = KernelRate(launch=0.0, source="test")
    host: dict[Queued, KernelRate] = {"kernel": free, "operator": free, "wait": free, what: rate}
    node = replace(NODE, device=replace(NODE.device, host=host))
    found = uncertain_inputs(node, TRAINING, {"stated": COMPUTE})
    (one,) = (each for each in found if each.main.key_path[:3] == ("cluster", "device", "host"))
    world, iterations = in_worlds(node, TRAINING, [one], end)
    moved = cluster_in(world, node, [one])
    exact = predict(HOOKED, moved, COMPUTE, training=TRAINING).iteration
    assert iterations[1] / 1e12 == pytest.approx(exact, rel=5e-3)
    stated = predict(HOOKED, node, COMPUTE, training=TRAINING).iteration
    assert abs(exact - stated) > times * 3.9e-3
