"""Are the stored coefficients those that the tables give, and is the page of devices up to date?"""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from gcsim.scenarios.catalog.rates import FOLDER, Processor, boards
from gcsim.simulator.devices.training_rates import Precision
from tests.benchmarks import layer_model_errors as validation
from tests.benchmarks.device_table import fitted, page
from tests.benchmarks.layer_model_fit import FAMILIES, fit, observations

ROOT = Path(__file__).parents[3]


@pytest.mark.long
def test_the_stored_coefficients_are_those_of_the_tables() -> None:
    # To a thousandth: sums over cores, and versions of scipy, move the last digits.
    stored = yaml.safe_load((FOLDER / "layer_times.yaml").read_text())
    again = yaml.safe_load(fitted())

    def compare(left: object, right: object, way: str) -> None:
        assert type(left) is type(right), way
        if isinstance(left, dict) and isinstance(right, dict):
            assert left.keys() == right.keys(), way
            for key in left:
                compare(left[key], right[key], f"{way}.{key}")
        elif isinstance(left, list) and isinstance(right, list):
            assert left == pytest.approx(right, abs=0.011), way
        elif isinstance(left, str) and isinstance(right, str):
            value, unit = left.split()
            assert float(value) == pytest.approx(float(right.split()[0]), rel=1e-3), way
            assert unit == right.split()[1]
        else:
            assert left == pytest.approx(right, rel=1e-3), way

    compare(stored, again, "layer_times")


@pytest.mark.long
def test_the_page_of_devices_is_up_to_date() -> None:
    text = (ROOT / "docs" / "devices.md").read_text()
    assert text == "\n".join(page()) + "\n", "run: make devices"


@pytest.mark.long
@pytest.mark.parametrize(("processor", "precision"), FAMILIES)
def test_a_fit_finds_the_coefficients_that_made_its_data(
    processor: Processor, precision: Precision
) -> None:
    seen = observations(processor, precision)
    truth = fit(seen, processor, precision)
    made = [
        replace(each, seconds=truth.seconds(each, boards()[each.board], precision)) for each in seen
    ]
    found = fit(made, processor, precision)
    for name in ("launch", "conv3x3", "other", "outputs"):
        assert getattr(found.costs, name) == pytest.approx(
            getattr(truth.costs, name), rel=1e-4, abs=1e-9
        )
    assert all(factor == pytest.approx(1, rel=1e-4) for factor in found.factors.values())


def test_slower_measurements_of_one_board_are_its_factor() -> None:
    seen = observations("gpu", "tf32")
    slow = [
        replace(each, seconds=each.seconds * (2 if each.board == "h100_pcie" else 1))
        for each in seen
    ]
    before, after = fit(seen, "gpu", "tf32"), fit(slow, "gpu", "tf32")
    others = [
        math.log(after.factors[board] / before.factors[board])
        for board in before.factors
        if board != "h100_pcie"
    ]
    own = math.log(after.factors["h100_pcie"] / before.factors["h100_pcie"])
    assert own > max(others) + 0.5


@pytest.mark.parametrize("precision", ["fp32", "tf32", "fp16"])
def test_the_layer_model_is_twice_as_good_as_flops_alone(precision: Precision) -> None:
    layers = validation.summary(validation.known("gpu", precision))
    flops = validation.summary(validation.flops("gpu", precision))
    assert layers.median < flops.median / 1.9
    assert layers.tenth < flops.tenth / 1.6  # 1.7 for TF32, of which there are 32 points
    assert layers.count == flops.count


def test_what_is_left_out_is_not_seen() -> None:
    # A model whose times are wrong by a factor of ten is found to be, by that much.
    errors = validation.known("gpu", "tf32")
    by_name = {error.name: error for error in errors}
    assert len(by_name) == len(errors)
    bert = [error for error in errors if "bert_large" in error.name]
    assert bert
    assert all(0.5 < error.ratio < 2 for error in bert)


def test_a_summary_counts_right() -> None:
    errors = [
        validation.Error(name=str(ratio), ratio=ratio) for ratio in (0.5, 0.8, 1.0, 1.25, 4.0)
    ]
    found = validation.summary(errors, worst=1)
    # relative errors: +1, +0.25, 0, -0.2, -0.75
    assert found.count == 5
    assert found.median == pytest.approx(0.25)
    assert found.bias == pytest.approx(0)
    assert found.tenth == pytest.approx(0.9)
    assert found.worst[0].name == "4.0"
    assert found.range == pytest.approx((0.549, 3.17), rel=1e-2)
