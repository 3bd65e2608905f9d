"""Gradients that a framework stores in 16 bits, against bytes and kernels counted by hand."""

from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

from gcsim.compressors.bucket import BucketLayout, TensorSlice
from gcsim.compressors.kernels import KernelCost
from gcsim.compressors.lockstep import CollectiveRecord
from gcsim.scenarios.load import load_scenario
from gcsim.scenarios.run import run
from gcsim.simulator.as_trained import as_stored
from gcsim.simulator.plans import Planner
from gcsim.simulator.training import Framework, GradientType, Training
from gcsim.traces.profile import Compute, Exchange, TrafficProfile
from tests.scenarios.files import check_mistake, load
from tests.simulator.one_bucket import COMPUTE
from tests.simulator.traffic import traffic
from tests.simulator.world import cluster

BUCKET = BucketLayout(index=0, slices=(TensorSlice(index=0, name="w", shape=(1000,), offset=0),))
SCENARIO = """
model: lenet
batch_size: 8
gradients: {source: synthetic, iterations: 1}
cluster: {nodes: 2, device: v100, network: 1gbe, collectives: {transport: nccl}}
compute: {forward: 1 ms, backward: 2 ms}
training: {gradients: fp16}
compressors: [none, fp16, {kind: topk, ratio: 0.01}]
"""


def method(kind: str) -> TrafficProfile:
    """Kernels and bytes of any method, of which none is left of dense training."""
    cast = KernelCost(kind="streaming", launches=3, elements=1000, nbytes=99_000)
    computes = (Compute(stage="encode", fixed=(cast,)), Compute(stage="decode", fixed=(cast,)))
    record = CollectiveRecord(kind="all_reduce", sent=(4000, 4000), element=4)
    exchange = Exchange(computes=computes, collectives=(record,))
    return traffic(exchange, compressor=kind, buckets=(BUCKET,))


@pytest.mark.parametrize(("named", "dtype"), [("fp16", "float16"), ("bf16", "bfloat16")])
def test_dense_and_the_cast_to_that_type_send_two_bytes_and_cast_nothing(
    named: GradientType, dtype: str
) -> None:
    """1000 elements: 2000 bytes; one pass that divides reads and writes them, nothing follows."""
    training = Training(gradients=named)
    found = as_stored(method("none"), training)
    (exchange,) = found.phases[0].steps[0].exchanges
    assert [(one.sent, one.element, one.dtype) for one in exchange.collectives] == [
        ((2000, 2000), 2, dtype)
    ]
    assert [(cost.launches, cost.nbytes) for one in exchange.computes for cost in one.fixed] == [
        (1, 4000)
    ]
    assert (
        as_stored(method(named), training) == found == as_stored(method(f"torch_{named}"), training)
    )


def test_other_methods_and_float32_are_as_measured() -> None:
    for kind, named in (("topk", "fp16"), ("bf16", "fp16"), ("none", "fp32"), ("fp16", "fp32")):
        known = method(kind)
        assert as_stored(known, Training(gradients=named)) is known  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["none", "topk"])
def test_passes_of_the_code_around_an_exchange_move_half_of_the_bytes(kind: str) -> None:
    """Four passes over 1000 elements at 1 ps a byte: 16 ns of float32, 8 of 16 bits."""
    code = Framework(passes=Fraction(4))
    training = Training(reducer=code, hook=code)
    for named, expected in (("fp32", 16_000), ("fp16", 8_000)):
        planner = Planner(cluster(2), COMPUTE, replace(training, gradients=named))  # type: ignore[arg-type]
        assert planner.exchange_code_times(method(kind)) == (expected,)


def test_in_a_run_half_precision_is_dense_and_top_k_gains_less(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GCSIM_CACHE_DIR", str(tmp_path / "cache"))
    path = tmp_path / "a.yaml"
    path.write_text(SCENARIO)
    narrow = run(load_scenario(path)).rows
    wide = run(load_scenario(path, ["training.gradients=fp32"])).rows
    parameters = 61_706  # LeNet's
    assert [row.wire_bytes_per_worker for row in narrow[:2]] == [2 * parameters] * 2
    assert narrow[0].compression_ratio == narrow[1].compression_ratio == 1
    assert narrow[0].iteration_draws_s == narrow[1].iteration_draws_s
    assert narrow[1].nmse == 0 < (wide[1].nmse or 0)
    assert narrow[2].wire_bytes_per_worker == wide[2].wire_bytes_per_worker
    gains = [rows[2].speedup_vs_dense or 0 for rows in (narrow, wide)]
    assert gains[0] < gains[1]


def test_passes_follow_the_gradients_where_nobody_says_and_the_device_can(tmp_path: Path) -> None:
    plain = SCENARIO.replace("compute: {forward: 1 ms, backward: 2 ms}\n", "")
    plain = plain.replace("lenet", "resnet50")
    assert load(tmp_path, plain).training.precision == "fp16"
    assert load(tmp_path, plain, "training.precision=fp32").training.precision == "fp32"
    assert load(tmp_path, SCENARIO).training.precision == "fp32"  # passes are stated
    old = load(tmp_path, plain, "cluster.device=k80")
    assert old.training.precision == "fp32"


def test_mistakes_say_where_it_belongs(tmp_path: Path) -> None:
    wrong = SCENARIO.replace("gradients: fp16", "gradients: int8")
    check_mistake(tmp_path, wrong, "'int8'")
    elsewhere = SCENARIO.replace("source: synthetic", "dtype: fp16, source: synthetic")
    check_mistake(tmp_path, elsewhere, "training: {gradients: fp16}")
