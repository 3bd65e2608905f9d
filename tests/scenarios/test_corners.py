"""What is not known of a device reaches the rows: what is tried, and what that leaves open.

The oracle is the simulator itself: every device that lies within the ranges is predicted on its
own and compared with what the corners say.
"""

from __future__ import annotations

import random
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from gcsim.compressors.bucket import BucketLayout, TensorSlice
from gcsim.compressors.kernels import KernelClass, KernelCost
from gcsim.compressors.lockstep import CollectiveRecord
from gcsim.scenarios import run as module
from gcsim.scenarios.corners import Corner, corners, favouring, use
from gcsim.scenarios.load import load_scenario
from gcsim.scenarios.result import Result, Row
from gcsim.scenarios.scenario import Scenario
from gcsim.simulator.devices.device import Device, KernelRate
from gcsim.simulator.devices.training_time import ComputeTimes, training_times
from gcsim.simulator.predict import predict
from gcsim.traces.profile import (
    Compute,
    Exchange,
    Layer,
    ModelFacts,
    Phase,
    Quality,
    Step,
    TrafficProfile,
)

TEXT = """\
model: lenet
batch_size: 16
gradients: {workers: 2}
cluster: {nodes: [1, 8], device: p100_pcie, network: 10gbe}
compressors: [none, topk, qsgd]
"""
MODEL = ModelFacts(
    name="toy",
    parameters=2_000_000,
    samples_per_worker=16,
    layers=(
        Layer(name="first", parameters=(0,), forward_flops=40_000_000),
        Layer(name="last", parameters=(1,), forward_flops=60_000_000),
    ),
)
BUCKETS = tuple(
    BucketLayout(
        index=n, slices=(TensorSlice(index=1 - n, name="w", shape=(1_000_000,), offset=0),)
    )
    for n in range(2)
)
TOY = Device(
    name="toy",
    title="Toy",
    kernels={
        "streaming": KernelRate(launch=5e-6, bandwidth=4e11, source="measured"),
        "selection": KernelRate(
            launch=5e-5, bandwidth=1e10, bandwidth_range=(4e9, 3e10), source="guess", estimate=True
        ),
        "random": KernelRate(
            launch=5e-6,
            launch_range=(4e-6, 9e-6),
            bandwidth=1e10,
            bandwidth_range=(5e9, 2e10),
            source="guess",
            estimate=True,
        ),
    },
    effective_flop_rate=5e12,
    effective_flop_rate_range=(2.5e12, 1e13),
    source="test",
)


def cost(kind: KernelClass, nbytes: int, name: str = "") -> tuple[KernelCost, ...]:
    return (KernelCost(kind=kind, name=name, launches=2, elements=1, nbytes=nbytes),)


def profile(
    kind: str, sent: int, encode: tuple[KernelCost, ...], decode: tuple[KernelCost, ...] = ()
) -> TrafficProfile:
    exchange = Exchange(
        computes=(
            Compute(stage="encode", fixed=encode),
            Compute(stage="decode", fixed=(), per_payload=decode),
        ),
        collectives=(CollectiveRecord(kind="all_reduce", sent=(sent, sent), element=4),),
    )
    step = Step(number=0, exchanges=(exchange, exchange))
    return TrafficProfile(
        compressor=kind, parameters={}, model=MODEL, workers=2, period=1, buckets=BUCKETS,
        phases=(Phase(name="step", count=1, steps=(step,)),),
        quality=Quality(nmse=0.0, cosine_similarity=1.0),
    )  # fmt: skip


DENSE = profile("none", 4_000_000, ())
SELECTING = profile("topk", 40_000, cost("selection", 4_000_000), cost("streaming", 40_000))
DRAWING = profile("qsgd", 40_000, cost("random", 4_000_000), cost("streaming", 100_000))


def passes(device: Device) -> ComputeTimes:
    return training_times(MODEL, BUCKETS, device)


def of(device: Device, *profiles: TrafficProfile) -> tuple[Corner, ...]:
    return corners(device, profiles, 8, passes)


def exact(device: Device) -> Device:
    """Without its ranges."""
    kernels = {
        kind: replace(rate, launch_range=None, bandwidth_range=None, flop_rate_range=None)
        for kind, rate in device.kernels.items()
    }
    return replace(device, kernels=kernels, effective_flop_rate_range=None)


def within(device: Device, rng: random.Random) -> Device:
    """A device somewhere in the ranges: each coefficient on its own, often at an end."""

    def drawn(value: float | None, bounds: tuple[float, float] | None) -> Any:
        if bounds is None:
            return value
        share = rng.choice([0.0, 1.0, rng.random()])
        return bounds[0] * (bounds[1] / bounds[0]) ** share

    return replace(
        exact(device),
        kernels={
            kind: KernelRate(
                launch=drawn(rate.launch, rate.launch_range),
                bandwidth=drawn(rate.bandwidth, rate.bandwidth_range),
                source="drawn",
            )
            for kind, rate in device.kernels.items()
        },
        effective_flop_rate=drawn(device.effective_flop_rate, device.effective_flop_rate_range),
    )


# --- which devices -------------------------------------------------------------------------------


def test_nothing_is_tried_of_a_device_without_ranges() -> None:
    assert of(exact(TOY), DENSE, SELECTING, DRAWING) == ()


def test_ranges_that_no_method_needs_do_not_count() -> None:
    tried = of(TOY, DENSE)  # which has no kernels here
    assert [(corner.kernels, corner.training) for corner in tried] == [
        (None, "fastest"), (None, "slowest"),
    ]  # fmt: skip
    assert all(corner.device is TOY for corner in tried)


def test_measured_passes_have_no_ends() -> None:
    measured = passes(TOY)
    tried = corners(TOY, (DENSE, SELECTING), 8, lambda device: measured)
    assert [(corner.kernels, corner.training) for corner in tried] == [
        ("fastest", None), ("slowest", None),
    ]  # fmt: skip


def test_a_kernel_that_was_measured_needs_nothing_of_its_class() -> None:
    named = profile("topk", 40_000, cost("selection", 4_000_000, "aten.topk"))
    known = replace(TOY, primitives={"aten.topk": ((1000, 1e-5),)})
    assert any(corner.kernels for corner in of(TOY, named))
    assert not any(corner.kernels for corner in of(known, named))


def test_corners_are_all_pairs_of_ends() -> None:
    tried = {(corner.kernels, corner.training): corner for corner in of(TOY, DENSE, SELECTING)}
    levels = ("fastest", "slowest", None)
    assert set(tried) == {(k, t) for k in levels for t in levels} - {(None, None)}
    # 3 x 100 MFLOP x 16 samples at 10 and 2.5 TFLOP/s
    assert tried["fastest", "fastest"].compute.total == pytest.approx(4.8e9 / 1e13 * 1e12)
    assert tried["fastest", "slowest"].compute.total == pytest.approx(4.8e9 / 2.5e12 * 1e12)
    assert tried["slowest", "fastest"].device.kernels["selection"].bandwidth == 4e9
    assert tried["slowest", None].device.kernels["random"].launch == 9e-6
    assert tried[None, "slowest"].device.kernels == TOY.kernels


def test_what_a_method_needs_is_counted_over_payloads_and_period() -> None:
    half = replace(
        DRAWING,
        period=4,
        phases=(
            replace(DRAWING.phases[0], count=3),
            Phase(name="local", count=1, steps=(Step(number=1, exchanges=()),)),
        ),
    )
    # two buckets in three of four iterations; decoding once for each of 8 payloads
    assert use(half, TOY, 8) == {
        ("random", "launch"): 0.75 * 2 * 2,
        ("random", "bandwidth"): 0.75 * 2 * 4_000_000,
        ("streaming", "launch"): 0.75 * 2 * 8 * 2,
        ("streaming", "bandwidth"): 0.75 * 2 * 8 * 100_000,
    }


def test_a_device_favours_what_it_needs_least_of() -> None:
    found = favouring(TOY, use(DRAWING, TOY, 8), use(SELECTING, TOY, 8)).kernels
    assert (found["random"].launch, found["random"].bandwidth) == (4e-6, 2e10)
    assert found["selection"].bandwidth == 4e9
    assert found["streaming"] == TOY.kernels["streaming"]  # has no range


# --- what they leave open ------------------------------------------------------------------------


@pytest.fixture
def scenario(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scenario:
    path = tmp_path / "a.yaml"
    path.write_text(TEXT, encoding="utf-8")
    monkeypatch.setattr(module, "traffic_profiles", lambda *_, **__: [DENSE, SELECTING, DRAWING])
    return on(load_scenario(path), TOY)


def on(scenario: Scenario, device: Device) -> Scenario:
    return replace(scenario, cluster=replace(scenario.cluster, device=device))


def rows(result: Result, nodes: int = 8) -> dict[str, Row]:
    return {row.compressor: row for row in result.rows if row.nodes == nodes}


def test_without_ranges_rows_are_what_they_were(scenario: Scenario) -> None:
    ranged, plain = module.run(scenario), module.run(on(scenario, exact(TOY)))
    blank = dict.fromkeys(
        (
            "iteration_fastest_s", "iteration_slowest_s", "speedup_lowest", "speedup_highest",
            "over_fastest_lowest",
        )
    )  # fmt: skip
    for row, bare in zip(ranged.rows, plain.rows, strict=True):
        assert replace(row, **blank) == bare  # type: ignore[arg-type]
        assert row.iteration_fastest_s is not None
    alone = predict(SELECTING, scenario.cluster_at(8), passes(TOY)).iteration
    assert rows(plain)["topk"].iteration_s == alone
    assert [entry for entry in plain.provenance["estimates"] if entry.get("range")] == []


def test_every_device_within_the_ranges_lies_within_the_intervals(scenario: Scenario) -> None:
    found = {nodes: rows(module.run(scenario), nodes) for nodes in (1, 8)}
    rng = random.Random(3)
    for _ in range(60):
        device = within(TOY, rng)
        for nodes, of_size in found.items():
            cluster = replace(scenario.cluster_at(nodes), device=device)
            times = {
                one.compressor: predict(one, cluster, passes(device), spans=False).iteration
                for one in (DENSE, SELECTING, DRAWING)
            }
            first = min(of_size.values(), key=lambda row: row.iteration_s).compressor
            for kind, row in of_size.items():
                near = 2e-4  # corners are rough means, to 1e-4
                assert row.iteration_fastest_s
                assert row.iteration_slowest_s
                assert row.iteration_fastest_s * (1 - near) <= times[kind]
                assert times[kind] <= row.iteration_slowest_s * (1 + near)
                assert row.speedup_lowest
                assert row.speedup_highest
                speedup = times["none"] / times[kind]
                assert row.speedup_lowest * (1 - near) <= speedup
                assert speedup <= row.speedup_highest * (1 + near)
                if row.over_fastest_lowest is not None and row.over_fastest_lowest < 1.5:
                    assert row.over_fastest_lowest * (1 - near) <= times[kind] / times[first]


def test_one_class_may_be_fast_while_another_is_slow(scenario: Scenario) -> None:
    """Which no corner is: there both are fast, or both are slow, and the order stays."""
    found = rows(module.run(scenario))
    first, second = found["qsgd"], found["topk"]
    assert first.iteration_s < second.iteration_s
    assert first.over_fastest_lowest is None
    tried = of(TOY, DENSE, SELECTING, DRAWING)
    cluster = scenario.cluster_at(8)
    for corner in tried:
        there = replace(cluster, device=corner.device)
        drawing, selecting = (
            predict(one, there, corner.compute, spans=False).iteration
            for one in (DRAWING, SELECTING)
        )
        if corner.kernels == "slowest":
            assert drawing < selecting
    assert second.over_fastest_lowest is not None
    assert second.over_fastest_lowest < 1


def test_estimates_that_were_used_stand_with_their_ranges(scenario: Scenario) -> None:
    estimates = module.run(scenario).provenance["estimates"]
    of_device = [entry for entry in estimates if entry["setting"] == "cluster.device"]
    assert {(e["kernels"], e["figure"]): e["range"] for e in of_device} == {
        ("selection", "launch"): None,  # an estimate of which nobody said how good it is
        ("selection", "bandwidth"): [4e9, 3e10],
        ("random", "launch"): [4e-6, 9e-6],
        ("random", "bandwidth"): [5e9, 2e10],
    }
    (times,) = [entry for entry in estimates if entry["setting"] == "compute"]
    assert times["range"] == pytest.approx([4.8e-4, 4.8e9 / 2.5e12])
    assert times["value"] == pytest.approx(4.8e9 / 5e12)


def test_without_a_dense_row_there_is_no_speedup_to_be_open(
    scenario: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "traffic_profiles", lambda *_, **__: [SELECTING, DRAWING])
    found = module.run(replace(scenario, compressors=scenario.compressors[1:]))
    for row in found.rows:
        assert (row.speedup_vs_dense, row.speedup_lowest, row.speedup_highest) == (None,) * 3
        assert row.iteration_fastest_s is not None


def test_slow_nodes_and_noise_meet_every_device(scenario: Scenario) -> None:
    training = replace(scenario.training, slow_nodes={0: Fraction(2)})
    slowed = rows(module.run(replace(scenario, training=training)))["topk"]
    plain = rows(module.run(scenario))["topk"]
    assert slowed.iteration_slowest_s is not None
    assert plain.iteration_slowest_s is not None
    # the slow node's passes alone: as much longer as they take
    longer = 4.8e9 / 2.5e12
    assert slowed.iteration_slowest_s > plain.iteration_slowest_s + 0.9 * longer
