"""What a scenario says of training reaches the simulator, and what it predicts reaches the rows.

The simulator is replaced: these tests are about the seam. `test_end_to_end.py` runs all of it.
"""

from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

import pytest

from gcsim.compressors.bucket import BucketLayout, TensorSlice
from gcsim.compressors.lockstep import CollectiveRecord
from gcsim.scenarios import run as module
from gcsim.scenarios.load import load_scenario
from gcsim.scenarios.result import Result
from gcsim.scenarios.running import rows as rows_module
from gcsim.scenarios.running import simulate
from gcsim.scenarios.running.simulate import Stage2, Uncertainty
from gcsim.scenarios.uncertainty.worlds import Worlds
from gcsim.simulator.devices.pricing import PriceList
from gcsim.simulator.devices.training_time import ComputeTimes
from gcsim.simulator.predict import Prediction, predict
from gcsim.traces.profile import Compute, Exchange, Layer, ModelFacts, TrafficProfile
from tests.simulator.traffic import traffic

TEXT = """\
model: lenet
batch_size: 16
gradients: {workers: 2}
cluster: {nodes: [1, 4], devices_per_node: 2, device: p100_pcie, network: 10gbe}
training:
  accumulation: 3
  optimizer: 3 ms
  slow_nodes: {0: 2, 3: 4}
  noise: {variation: 0.1}
  iterations: 25
  faults: {horizon: 1 h, restart: 1 s, deaths: [{node: 3, at: 1 min}]}
compressors: [none, fp16]
seed: 7
"""
ITERATION = 0.125
STAGES: tuple[Literal["encode", "decode"], ...] = ("encode", "decode")


def profile(compressor: str) -> TrafficProfile:
    model = ModelFacts(
        name="lenet", parameters=10, samples_per_worker=16,
        layers=(Layer(name="all", parameters=(0,), forward_flops=1_000_000),),
    )  # fmt: skip
    piece = TensorSlice(index=0, name="w", shape=(10,), offset=0)
    sent = CollectiveRecord(kind="all_reduce", sent=(20, 20), element=2)
    alone = compressor == "none"  # the only one that sends nothing here
    exchange = Exchange(
        computes=tuple(Compute(stage=stage, fixed=()) for stage in STAGES[: 1 if alone else 2]),
        collectives=() if alone else (sent,),
    )
    buckets = (BucketLayout(index=0, slices=(piece,)),)
    return traffic(exchange, compressor=compressor, model=model, buckets=buckets)


class Simulator:
    """Predicts the same for everything, and tells what it was asked."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []

    def predict(self, profile: TrafficProfile, cluster: Any, compute: Any, **more: Any) -> Any:
        self.asked.append({"profile": profile, "cluster": cluster, **more})
        return Prediction(
            workers=cluster.workers, iteration=ITERATION, forward=0.01, backward=0.02, encode=0.0,
            communication=0.09, exposed=0.0815, decode=0.0, optimizer=0.003, input=0.0105,
            iteration_p5=0.11 if cluster.workers > 1 else None,
            iteration_p95=0.15 if cluster.workers > 1 else None,
            iteration_error=0.002 if cluster.workers > 1 else None,
            algorithms=("all-gather, ring", "ring"), sample_phase="step", spans=(),
        )  # fmt: skip


@pytest.fixture
def simulator(monkeypatch: pytest.MonkeyPatch) -> Simulator:
    found = Simulator()
    monkeypatch.setattr(simulate, "predict", found.predict)
    monkeypatch.setattr(
        module,
        "traffic_profiles",
        lambda scenario, keys, **_: [profile(choice.kind) for choice in scenario.compressors],
    )
    monkeypatch.setattr(TrafficProfile, "wire_bytes", lambda self, workers: 40.0)
    return found


def run(tmp_path: Path, *overrides: str) -> Result:
    path = tmp_path / "a.yaml"
    path.write_text(TEXT, encoding="utf-8")
    # what this simulator says is not to be kept for others
    return module.run(load_scenario(path, ("uncertainty.draws=0", *overrides)), cache=False)


def test_every_size_is_simulated_with_its_own_training_and_the_seed(
    tmp_path: Path, simulator: Simulator
) -> None:
    run(tmp_path)
    # two methods at each size, which luck does not tell apart: they are asked for again, for longer
    first = [asked for asked in simulator.asked if asked["training"].iterations == 25]
    one, _, four, *_ = first
    assert len(simulator.asked) > len(first)
    assert [one["cluster"].nodes, four["cluster"].nodes] == [1, 4]
    assert one["training"].slow_nodes == {0: Fraction(2)}
    assert one["training"].faults.deaths == ()
    assert four["training"].slow_nodes == {0: Fraction(2), 3: Fraction(4)}
    assert len(four["training"].faults.deaths) == 1
    for asked in (one, four):
        assert (asked["training"].accumulation, asked["training"].iterations) == (3, 25)
        assert asked["seed"] == 7
    assert (one["spans"], four["spans"]) == (False, True)


def test_rows_have_what_was_predicted(tmp_path: Path, simulator: Simulator) -> None:
    row = run(tmp_path).rows[1]
    assert (row.optimizer_s, row.input_s) == (0.003, 0.0105)
    assert (row.iteration_p5_s, row.iteration_p95_s) == (0.11, 0.15)
    parts = (row.forward_s, row.backward_s, row.encode_s, row.exposed_communication_s, row.decode_s)
    assert sum(parts) + row.optimizer_s + row.input_s == pytest.approx(row.iteration_s)
    assert (row.iteration_error_s, row.algorithms) == (0.002, "all-gather, ring; ring")
    assert Result.columns()[-36:] == (
        "optimizer_s", "input_s", "iteration_p5_s", "iteration_p95_s",
        "throughput_with_faults_samples_per_s", "lost_to_faults_s", "goodput", "iteration_error_s",
        "scaling_efficiency_error", "algorithms", "via", "iteration_low_s", "iteration_high_s",
        "speedup_low", "speedup_high", "probability_pays", "probability_fastest",
        "iteration_ring_s", "iteration_tree_s", "iteration_as_stated_s", "speedup_as_stated",
        "iterations", "seeds_trained", "seeds_at_target", "steps_to_target_vs_dense",
        "speedup_to_target", "speedup_to_target_low", "speedup_to_target_high",
        "probability_pays_to_target", "steps_to_target_error", "cost_per_1000_iterations",
        "cost_to_target", "wire_bytes_over_training", "device_memory_low_bytes",
        "device_memory_high_bytes", "fits",
    )  # fmt: skip


def test_an_iteration_trains_on_all_its_micro_batches(tmp_path: Path, simulator: Simulator) -> None:
    rows = run(tmp_path).rows
    # 8 workers with 3 micro-batches of 16 samples
    assert rows[1].throughput_samples_per_s == pytest.approx(8 * 3 * 16 / ITERATION)
    # a device alone takes as long here, so that nothing is lost
    assert rows[1].scaling_efficiency == pytest.approx(1.0)
    assert run(tmp_path, "training.accumulation=1").rows[1].throughput_samples_per_s == (
        pytest.approx(8 * 16 / ITERATION)
    )


@pytest.mark.parametrize("compressors", ["[none, fp16]", "[fp16]"])
def test_scaling_compares_with_a_device_alone_that_is_not_slow(
    tmp_path: Path, simulator: Simulator, compressors: str
) -> None:
    run(tmp_path, f"compressors={compressors}")
    alone = simulator.asked[-1]
    assert alone["cluster"].workers == 1
    assert (alone["training"].slow_nodes, alone["training"].faults) == ({}, None)
    noise, iterations = alone["training"].noise, alone["training"].iterations
    assert (noise, iterations) == (simulator.asked[0]["training"].noise, 25)
    assert alone["training"].accumulation == 3
    assert not any(e.collectives for p in alone["profile"].phases for s in p.steps
                   for e in s.exchanges)  # fmt: skip
    (phase,) = alone["profile"].phases
    assert len(phase.steps[0].exchanges) == len(alone["profile"].buckets)


def test_scaling_has_an_error_bar(tmp_path: Path, simulator: Simulator) -> None:
    # the replaced simulator's mean is off by 0.002, but of one device; there are no batches
    row = run(tmp_path).rows[1]
    assert row.scaling_efficiency_error == pytest.approx(0.002 / ITERATION)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "noise", ["{variation: 0.3}", "{variation: 0.02, slow_probability: 0.05, slow_factor: 9}"]
)
def test_many_workers_never_train_faster_than_as_many_alone(
    tmp_path: Path, noise: str, seed: int
) -> None:
    """Nothing replaced: by the same luck, a worker that talks is no faster than one that does
    not. (Against the expectation of one that is alone, 6 lucky iterations were 115 %.)"""
    times = ComputeTimes(
        forward=4 * 10**9, backward=6 * 10**9, parts=(6 * 10**9,), provenance="test"
    )
    path = tmp_path / "a.yaml"
    path.write_text(TEXT, encoding="utf-8")
    changes = [f"training.noise={noise}", "training.iterations=6", "training.slow_nodes={}"]
    scenario = load_scenario(path, changes, seed)
    found = predict(
        profile("fp16"),
        scenario.cluster_at(1),
        times,
        training=replace(scenario.training, faults=None),
        seed=seed,
        spans=False,
    )
    nothing = rows_module._without_exchange(profile("fp16"))
    prices = PriceList(scenario.cluster.device)
    subject = Stage2(scenario, [nothing], {"stated": times}, prices)
    alone = rows_module._OneDevice(
        subject, nothing, Uncertainty(inputs=(), worlds=Worlds({}, 1), draws=0)
    ).with_iterations_of(found)
    assert alone.iterations == found.iterations
    assert alone.iteration < found.iteration
    assert (rows_module._scaling_error(alone, found) or 0) > 0
