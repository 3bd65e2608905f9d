"""The host's price of a launch, fitted to whole stages."""

from __future__ import annotations

import pytest

from gcsim.scenarios.calibration.host import fitted, time_host


def test_prices_are_those_that_made_the_times() -> None:
    counts = [(1, 0), (0, 3), (2, 5), (4, 1)]
    exact = [(each, 300e-6 * each[0] + 20e-6 * each[1]) for each in counts]
    found = fitted(
        [*exact, ((0, 0), 5e-6)], "four stretches", "A GPU."
    )  # the last launches nothing
    assert found["kernel"].launch == pytest.approx(300e-6, rel=1e-3)
    assert found["operator"].launch == pytest.approx(20e-6, rel=1e-3)
    assert "median error 0%" in found["kernel"].source


def test_a_range_holds_what_most_stretches_say() -> None:
    # one kernel each, from half to twice the middle
    found = fitted(
        [((1, 0), 1e-4 * 2 ** (n / 10 - 1)) for n in range(21)] + [((0, 1), 1e-5)], "", ""
    )
    low, high = found["kernel"].launch_range or (0, 0)
    assert low < 1e-4 * 2**-0.7
    assert high > 1e-4 * 2**0.7


def test_methods_are_timed_where_they_run() -> None:
    found = time_host("cpu", "Here.", methods=("fp16", "cser"), elements=2500)
    assert found["operator"].launch > 0
    assert "of fp16, cser" in found["operator"].source
