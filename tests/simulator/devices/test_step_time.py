"""Is the time of a training step the one that should be preferred, and right?"""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gcsim.errors import InputError
from gcsim.simulator.devices.device import Device, TrainingRate
from gcsim.simulator.devices.step_time import step_time
from gcsim.simulator.devices.training_rates import (
    LargeCosts,
    LayerCosts,
    LayerTimes,
    MeasuredTimes,
    curve,
)
from gcsim.traces.profile import Layer, ModelFacts

COSTS = LayerCosts(launch=1e-3, conv3x3=0.5, other=2.0, outputs=10.0)
LAYERED = LayerTimes(costs=COSTS, flop_rate=1e12, bandwidth=1e9, source="fit")
STEPS, _ = curve([(8, 0.010, "bench A"), (32, 0.034, "bench B"), (32, 0.030, "bench C")])
MEASURED = MeasuredTimes(
    model="toy", precision="fp32", steps=STEPS, source="all", between=(0.9, 1.2), beyond=(0.5, 2.0)
)


def model(batch: int, name: str = "toy", *, kinds: bool = True, tokens: int = 0) -> ModelFacts:
    layers: tuple[Layer, ...] = (
        Layer(name="a", parameters=(0, 1), forward_flops=10**9, kind="conv3x3", outputs=10**4),
        Layer(name="b", parameters=(2,), forward_flops=2 * 10**9, kind="linear", outputs=10**3),
    )
    if not kinds:
        layers = tuple(replace(layer, kind="", outputs=0) for layer in layers)
    return ModelFacts(
        name=name, parameters=100, layers=layers, samples_per_worker=batch, tokens=tokens
    )


def device(**fields: object) -> Device:
    values: dict[str, object] = {
        "name": "toy_device",
        "title": "Toy",
        "kernels": {},
        "effective_flop_rate": 3e12,
        "source": "invented",
        "measured": {("toy", "fp32", 0): MEASURED},
        "layer_times": {"fp32": LAYERED},
    }
    return Device(**(values | fields))  # type: ignore[arg-type]


def seconds(facts: ModelFacts, of: Device) -> float:
    return float(step_time(facts, of).seconds)


def test_the_layer_model_is_the_sum_of_its_terms() -> None:
    # 3 tensors of 1 ms; 4 samples: 3 * 4 GFLOP at 1 TFLOP/s times 0.5, 3 * 8 GFLOP times 2,
    # 4 * 4 * 11,000 bytes at 1 GB/s times 10.
    expected = 3e-3 + 0.5 * 0.012 + 2 * 0.024 + 10 * 176e-6
    assert LAYERED.seconds(model(4), 4) == pytest.approx(expected)
    assert replace(LAYERED, factor=1.5).seconds(model(4), 4) == pytest.approx(1.5 * expected)


def test_a_measured_batch_is_what_was_measured() -> None:
    found = step_time(model(8), device())
    assert float(found.seconds) == 0.010
    assert not found.estimate
    assert "measured at this batch: bench A" in found.provenance
    twice = step_time(model(32), device())  # two measurements: their mean
    assert float(twice.seconds) == pytest.approx(0.032)
    assert "bench B; bench C" in twice.provenance


def test_between_two_batches_lies_the_line() -> None:
    found = step_time(model(20), device())  # half-way between 8 and 32
    assert float(found.seconds) == pytest.approx(0.021)
    assert not found.estimate
    assert "on the line between measured batches (8, 32)" in found.provenance


@pytest.mark.parametrize(("batch", "edge"), [(4, 8), (64, 32)])
def test_beyond_them_the_layer_model_gives_the_shape(batch: int, edge: int) -> None:
    at = {8: 0.010, 32: 0.032}[edge]
    found = step_time(model(batch), device())
    shape = LAYERED.seconds(model(1), batch) / LAYERED.seconds(model(1), edge)
    assert float(found.seconds) == pytest.approx(at * shape)
    assert found.estimate
    alone = step_time(model(batch), device(layer_times={}))  # no shape: in proportion
    assert float(alone.seconds) == pytest.approx(at * batch / edge)


@given(
    points=st.lists(st.tuples(st.integers(1, 300), st.floats(1e-4, 10)), min_size=1, max_size=6),
    batches=st.lists(st.integers(1, 500), min_size=2, max_size=12),
)
def test_a_larger_batch_never_takes_less_time(
    points: list[tuple[int, float]], batches: list[int]
) -> None:
    steps, left_out = curve([(batch, time, "x") for batch, time in points])
    assert {step.batch for step in steps} | set(left_out) == {batch for batch, _ in points}
    assert all(a.batch < b.batch and a.seconds < b.seconds for a, b in pairwise(steps))
    times = replace(MEASURED, steps=steps)
    on = device(measured={("toy", "fp32", 0): times})
    found = [seconds(model(batch), on) for batch in sorted(batches)]
    assert all(a <= b * (1 + 1e-12) for a, b in pairwise(found))


def test_the_order_of_preference() -> None:
    stated = TrainingRate(model="toy", fixed=1.0, per_sample=1.0, source="the entry's word")
    everything = device(training={"toy": stated})
    assert seconds(model(8), everything) == 9.0
    assert seconds(model(8), device()) == 0.010
    unmeasured = model(8, "another")
    assert seconds(unmeasured, device()) == pytest.approx(LAYERED.seconds(unmeasured, 8))
    blind = model(8, "another", kinds=False)  # 3 * 8 * 3 GFLOP at 3 TFLOP/s
    assert seconds(blind, device()) == pytest.approx(0.024)
    assert step_time(blind, device()).estimate


def test_the_entrys_word_is_of_single_precision_alone() -> None:
    stated = TrainingRate(model="toy", fixed=1.0, per_sample=1.0, source="the entry's word")
    half = replace(LAYERED, flop_rate=1e13)
    on = device(training={"toy": stated}, layer_times={"fp16": half})
    assert float(step_time(model(8), on, "fp16").seconds) == half.seconds(model(8), 8)


def test_a_curve_of_other_lengths_is_not_taken() -> None:
    sentences = model(8, tokens=128)
    assert seconds(sentences, device()) == pytest.approx(LAYERED.seconds(sentences, 8))
    measured = device(measured={("toy", "fp32", 128): MEASURED})
    assert seconds(sentences, measured) == 0.010


def test_an_unknown_precision_is_refused_with_what_is_known() -> None:
    with pytest.raises(InputError) as caught:
        step_time(model(8), device(), "tf32")
    (problem,) = caught.value.problems
    assert problem.message.startswith("neither a measured rate of 'toy' on 'toy_device' at tf32")
    assert problem.place == "compute"
    assert "known on this device: fp32: toy, any model by its layers" in str(problem.hint)


def test_a_model_without_flops_is_refused() -> None:
    facts = model(8, "blank", kinds=False)
    layers = tuple(replace(layer, forward_flops=0) for layer in facts.layers)
    blank = replace(facts, layers=layers)
    with pytest.raises(InputError, match="nor the FLOPs of model 'blank' is known"):
        step_time(blank, device())


def test_large_products_alone_have_coefficients_of_their_own() -> None:
    """3 x 4 samples of 10 GFLOP at 1 TFLOP/s times 1.5, 4 x 4 x 10^6 bytes at 1 GB/s times 5; no
    factor of the device. With fewer FLOPs per output, or a convolution, the usual ones."""
    own = LargeCosts(other=1.5, outputs=5.0, time_range=(0.9, 1.2))
    times = replace(LAYERED, factor=1.7, large=own, time_range=(0.5, 2.0))

    def product(flops: int, kind: str = "linear") -> ModelFacts:
        layer = Layer(name="a", parameters=(0,), forward_flops=flops, kind=kind, outputs=10**6)
        return replace(model(4, "another"), layers=(layer,))

    large = product(10**10)
    assert times.seconds(large, 4) == pytest.approx(1.5 * 0.12 + 5 * 0.016)
    assert times.at("slowest").seconds(large, 4) == pytest.approx(1.2 * (1.5 * 0.12 + 5 * 0.016))
    for other in (product(10**9), product(10**10, "conv")):
        assert times.seconds(other, 4) == replace(times, large=None).seconds(other, 4)
        assert times.range_of(other) == (0.5, 2.0)


def test_the_ends_of_a_device_are_those_of_the_time_that_is_taken() -> None:
    def ends(facts: ModelFacts, of: Device) -> tuple[float, float]:
        middle = seconds(facts, of)
        fast = seconds(facts, of.at(kernels="slowest", training="fastest"))
        slow = seconds(facts, of.at(kernels="fastest", training="slowest"))
        return fast / middle, slow / middle

    on = device(layer_times={"fp32": replace(LAYERED, time_range=(0.8, 1.5))})
    assert ends(model(8), on) == (1, 1)  # one measurement
    assert ends(model(32), on) == pytest.approx((0.030 / 0.032, 0.034 / 0.032))
    assert ends(model(20), on) == pytest.approx((0.9, 1.2))
    assert ends(model(64), on) == pytest.approx((0.5, 2.0))
    assert ends(model(8, "another"), on) == pytest.approx((0.8, 1.5))
    wide = replace(LAYERED, time_range=(0.8, 1.5), strange_range=(0.7, 3), known_models=("seen",))
    strange = device(layer_times={"fp32": wide})
    assert ends(model(8, "seen"), strange) == pytest.approx((0.8, 1.5))  # on another device
    assert ends(model(8, "another"), strange) == pytest.approx((0.7, 3))
    assert "0.70 to 3.00 times that" in step_time(model(8, "another"), strange).provenance
    scaled = replace(MEASURED, estimate=True, time_range=(0.9, 1.1))
    of = device(measured={("toy", "fp32", 0): scaled})
    assert ends(model(8), of) == pytest.approx((0.9, 1.1))
    assert step_time(model(8), of).estimate
