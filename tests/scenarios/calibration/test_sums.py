"""Does a calibration find the rate at which a process group adds, type by type?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from torch import Tensor

from gcsim.scenarios.calibration.sums import time_sums
from gcsim.simulator.host import DTYPES


class PlantedGroup:
    """A group of one process whose additions take a planted time, and whose clock tells it."""

    def __init__(self, rates: dict[str, float]) -> None:
        self.now, self.rates = 0.0, rates

    def allreduce(self, vectors: Sequence[Tensor], _options: Any) -> PlantedGroup:
        rate = self.rates[str(vectors[0].dtype).removeprefix("torch.")]
        self.now += 3e-5 + sum(vector.nbytes / rate for vector in vectors[1:])
        return self

    def wait(self) -> None:
        """Done at once."""


def test_planted_rates_are_found_again_whatever_a_call_costs() -> None:
    rates = {dtype: 1e9 * (place + 1) for place, dtype in enumerate(DTYPES)}
    group = PlantedGroup(rates)
    found = time_sums(nbytes=1 << 16, repeats=2, group=group, clock=lambda: group.now)
    assert found == {dtype: pytest.approx(rate) for dtype, rate in rates.items()}


def test_additions_that_drown_in_noise_have_no_rate() -> None:
    group = PlantedGroup(dict.fromkeys(DTYPES, -1e12))  # more vectors, less time
    assert time_sums(nbytes=1 << 16, repeats=2, group=group, clock=lambda: group.now) == {}


def test_this_machines_gloo_adds_every_type_that_a_scenario_may_price() -> None:
    found = time_sums(repeats=5)  # of the length that a calibration takes
    assert set(found) == set(DTYPES)
    assert all(1e7 < rate < 1e12 for rate in found.values())
