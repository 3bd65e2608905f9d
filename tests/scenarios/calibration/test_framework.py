"""Does a calibration find what DDP and a hook cost around an exchange? Can a scenario take it?"""

from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gcsim.scenarios.calibration import device
from gcsim.scenarios.sections.file import TRAINING
from gcsim.simulator.training import Framework

costs = st.floats(1e-6, 1e-3)


@given(per_tensor=costs, per_bucket=costs, per_byte=st.floats(1e-11, 1e-8))
def test_planted_costs_are_found_again(
    per_tensor: float, per_bucket: float, per_byte: float
) -> None:
    seconds = [
        one.buckets * (one.tensors * per_tensor + per_bucket + one.nbytes * per_byte)
        for one in device.SHAPES
    ]
    found = device.fitted(device.SHAPES, seconds, [1e-3 + one for one in seconds])
    assert found.per_tensor == pytest.approx(per_tensor, rel=1e-3)
    assert found.per_bucket == pytest.approx(per_bucket, rel=1e-3)
    assert found.per_byte == pytest.approx(per_byte, rel=1e-3)


def test_no_cost_is_below_zero_and_free_code_is_free() -> None:
    shapes = (device.Shape(1, 1, 256), device.Shape(8, 1, 256), device.Shape(1, 8, 256))
    free = device.fitted(shapes, [0.0, 0.0, 0.0], [1e-3, 1e-3, 1e-3])
    assert (free.per_tensor, free.per_bucket, free.per_byte) == (0, 0, 0)
    odd = device.fitted(shapes, [3e-4, 1e-4, -1e-5], [1e-3, 1e-3, 1e-3])  # more tensors, less time
    assert min(odd.per_tensor, odd.per_bucket, odd.per_byte) >= 0


def test_a_scenario_takes_what_is_printed() -> None:
    costs: dict[Any, device.CodeCost] = dict.fromkeys(
        device.CODES, device.CodeCost(2e-5, 1.5e-4, 1e-10)
    )
    # the catalogue's where None; 100 passes: the short tensors of --quick stay in a fast cache
    costs_of_passes = ((2e10, {2.0}), (1e12, {100.0}), (None, {4.0, 8.0}))
    for streaming, passes in costs_of_passes:
        setting = yaml.safe_load(device.as_setting(costs, streaming))["training.framework"]
        section = TRAINING.section.model_validate({"framework": setting}).framework
        assert not isinstance(section, str)
        for code in (section.reducer, section.hook):
            assert (float(code.per_tensor), float(code.per_bucket)) == (2e-5, 1.5e-4)
            assert float(code.passes) in passes
    assert Framework().free
    assert device.as_setting({}, None) == ""


def test_ddp_and_a_hook_are_timed_here() -> None:
    shapes = (device.Shape(1, 1, 256), device.Shape(8, 2, 256))
    ticks = iter(range(10**9))
    found = device.time_framework(shapes=shapes, steps=4, clock=lambda: float(next(ticks)))
    # by that clock every step takes one tick, with DDP and without: nothing costs anything
    assert found == {code: device.CodeCost(0, 0, 0) for code in device.CODES}
