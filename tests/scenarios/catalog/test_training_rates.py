"""The tables of training rates: every number has a citation, and devices have what they say."""

from pathlib import Path

import pytest

from gcsim.errors import InputError
from gcsim.scenarios import catalog
from gcsim.scenarios.catalog.rates import (
    boards,
    large_measurements,
    layer_times,
    measured_times,
    measurements,
    sources,
)
from gcsim.scenarios.load import load_scenario
from gcsim.scenarios.scenario import Scenario
from gcsim.simulator.devices.training_rates import PRECISIONS, PRODUCTS
from gcsim.traces.models.registry import MODELS
from gcsim.traces.models.table import table_facts
from gcsim.traces.profile import ModelFacts


def test_every_rate_has_a_citation_and_every_citation_a_rate() -> None:
    cited = {row.source for row in measurements()} | {row.source for row in large_measurements()}
    assert cited == set(sources())
    assert all(len(text) > 20 for text in sources().values())


def test_every_rate_is_of_a_shipped_model_on_a_known_board() -> None:
    for row in measurements():
        assert row.model in MODELS, row
        assert row.board in boards(), row
        assert row.precision in PRECISIONS
        assert row.batch >= 1
        assert row.samples_per_s > 0
        assert (row.tokens > 0) == (MODELS[row.model].input == "tokens"), row
        assert row.confidence in {
            "read", "batch assumed", "board assumed", "precision assumed"
        }  # fmt: skip


def test_no_rate_stands_twice() -> None:
    assert len(set(measurements())) == len(measurements())


def test_rates_that_sources_state_are_in_the_table() -> None:
    # TensorFlow "Benchmarks" page: DGX-1 (P100), synthetic data, batch 64 and 512; Apache MXNet
    # docs/faq/perf.md: K80, batch 32; lambdal/deeplearning-benchmark: H100 SXM5, batch 1280.
    rates = {
        (row.board, row.model, row.batch, row.precision, row.source): row.samples_per_s
        for row in measurements()
    }
    assert rates["p100_sxm2", "resnet50", 64, "fp32", "tensorflow_2017"] == 219
    assert rates["p100_sxm2", "alexnet", 512, "fp32", "tensorflow_2017"] == 2987
    assert rates["k80", "alexnet", 32, "fp32", "mxnet"] == 406.08
    assert rates["h100_sxm", "resnet50", 1280, "fp16", "lambda_pytorch"] == 2616


@pytest.mark.parametrize("name", sorted({row.board for row in measurements()}))
def test_curves_ascend_in_batch_and_time_and_pass_through_the_medians(name: str) -> None:
    for (model, precision, tokens), times in measured_times(name).items():
        batches = [step.batch for step in times.steps]
        seconds = [step.seconds for step in times.steps]
        assert batches == sorted(set(batches))
        assert seconds == sorted(set(seconds))
        for step in times.steps:
            found = sorted(
                row.seconds
                for row in measurements()
                if (row.board, row.model, row.precision, row.tokens, row.batch)
                == (name, model, precision, tokens, step.batch)
            )
            assert found[0] <= step.seconds <= found[-1]
            middle = (found[(len(found) - 1) // 2] + found[len(found) // 2]) / 2
            assert step.seconds == pytest.approx(middle)
            assert (step.spread is None) == (len(found) == 1)
            assert step.sources


def test_the_one_batch_that_is_left_out_took_longer_than_a_larger_one() -> None:
    # MXNet's AlexNet on a V100: 1024 images in 0.516 s; TensorFlow needed 0.299 s for 1536.
    batches = [step.batch for step in measured_times("v100")["alexnet", "fp32", 0].steps]
    assert batches == [16, 32, 64, 128, 256, 512, 1536]


def test_a_device_has_its_boards_curves_and_those_it_scales() -> None:
    sxm2, pcie = catalog.device("p100_sxm2"), catalog.device("p100_pcie")
    assert set(sxm2.measured) == set(pcie.measured)
    for key, own in pcie.measured.items():
        base = sxm2.measured[key]
        assert own.estimate
        assert not base.estimate
        assert own.time_range == (0.96, 1.04)
        assert "10.6/9.3" in own.source
        for step, measured in zip(own.steps, base.steps, strict=True):
            assert step.batch == measured.batch
            assert step.seconds == pytest.approx(measured.seconds * 10.6 / 9.3, rel=1e-4)


def test_a_factor_is_the_boards_own_or_that_of_the_board_it_is_scaled_from() -> None:
    own = layer_times(boards()["p100_sxm2"], "p100_sxm2")["fp32"]
    assert own.models == 5
    pcie = catalog.device("p100_pcie").layer_times["fp32"]
    assert (pcie.factor, pcie.models) == (own.factor, own.models)
    assert pcie.flop_rate < own.flop_rate
    unknown = catalog.device("p40").layer_times["fp32"]
    assert (unknown.factor, unknown.models) == (1.0, 0)


def test_large_transformers_have_half_precisions_rates_of_their_own() -> None:
    """MPT 13B on 128 H100 with full checkpointing: 5,080 tokens/s per GPU (llm-foundry); of the
    fit is another batch without it, on 8."""
    times = catalog.device("h100_sxm").layer_times
    assert times["fp16"].large is not None
    assert times["tf32"].large is None
    assert catalog.device("v100").layer_times["fp16"].large is None  # fuses no attention
    low, high = times["fp16"].large.time_range
    other = catalog.device("b200").layer_times["fp16"].large
    assert other is not None
    assert other.time_range[0] <= low + 0.05
    assert other.time_range[1] >= high
    entry = MODELS["mpt_13b"]
    assert entry.transformer is not None
    facts = table_facts(entry, 16)
    again = entry.transformer.computed_again("full", flash=True) / facts.forward_flops
    found = times["fp16"].seconds(facts, 16) * (1 + again / PRODUCTS)
    assert found == pytest.approx(16 * 2048 / 5080, rel=0.15)


def test_a_factor_of_few_models_has_a_wider_range_than_one_of_many() -> None:
    def width(name: str) -> float:
        bounds = catalog.device(name).layer_times["fp32"].time_range
        assert bounds is not None
        return bounds[1] / bounds[0]

    assert width("cpu_2core") > width("raspberry_pi_5")  # one model and four
    assert width("p40") > width("p100_sxm2")  # none and five


def test_only_where_device_and_model_are_unmeasured_the_range_is_that_of_strangers() -> None:
    def of(device: str, model: str, precision: str = "fp32") -> tuple[float, float] | None:
        facts = ModelFacts(name=model, parameters=1, layers=(), samples_per_worker=1)
        return catalog.device(device).layer_times[precision].range_of(facts)  # type: ignore[index]

    assert of("p40", "resnet50") == (0.77, 1.78)
    assert of("p40", "mine:build") == (0.74, 3.16)  # docs/devices.md
    assert of("v100", "mine:build") == of("v100", "resnet50") == (0.78, 1.37)


def test_precisions_are_those_that_the_board_has_products_for() -> None:
    known = {name: set(device.layer_times) for name, device in catalog.devices().items()}
    assert known["p100_pcie"] == {"fp32"}
    assert known["v100"] == {"fp32", "fp16"}
    assert known["h100_sxm"] == {"fp32", "tf32", "fp16"}
    assert known["raspberry_pi_5"] == {"fp32"}
    assert all("fp32" in precisions for precisions in known.values())


def scenario(folder: Path, text: str) -> Scenario:
    path = folder / "a.yaml"
    path.write_text(
        "model: resnet50\nbatch_size: 64\ncompressors: [none]\n"
        f"cluster: {{nodes: 2, device: v100, network: 10gbe}}\n{text}"
    )
    return load_scenario(path)


def test_a_scenarios_precision_is_kept(tmp_path: Path) -> None:
    assert scenario(tmp_path, "").training.precision == "fp32"
    assert scenario(tmp_path, "training: {precision: fp16}\n").training.precision == "fp16"


def test_a_precision_that_a_device_has_no_times_at_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        scenario(tmp_path, "training: {precision: tf32}\n")
    (problem,) = caught.value.problems
    assert str(problem.place).endswith("a.yaml:5:23")
    assert "device 'v100' has no training times at it" in problem.message
    assert "write fp32 or fp16" in str(problem.hint)


def test_a_precision_beside_stated_times_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    scenario(tmp_path, "training: {precision: tf32}\ncompute: {forward: 1 ms, backward: 2 ms}\n")
    assert "training.precision = 'tf32' has no effect: the times under `compute`" in caplog.text
