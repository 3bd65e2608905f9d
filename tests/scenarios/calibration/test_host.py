"""The host's price of a launch, fitted to whole stages."""

from __future__ import annotations

import pytest

from gcsim.scenarios.calibration.host import fitted, time_host


def test_prices_are_those_that_made_the_times() -> None:
    counts = [(1, 0, 0), (0, 3, 0), (2, 5, 1), (4, 1, 3)]
    exact = [(each, 300e-6 * each[0] + 20e-6 * each[1] + 70e-6 * each[2]) for each in counts]
    nothing = ((0, 0, 0), 5e-6)
    found = fitted([*exact, nothing], "four stretches", "A GPU.")
    assert found["kernel"].launch == pytest.approx(300e-6, rel=1e-3)
    assert found["operator"].launch == pytest.approx(20e-6, rel=1e-3)
    assert found["wait"].launch == pytest.approx(70e-6, rel=1e-3)
    assert "median error 0%" in found["kernel"].source


def test_a_range_holds_what_most_stretches_say() -> None:
    # one kernel each, from half to twice the middle
    others = [((0, 1, 0), 1e-5), ((0, 0, 1), 1e-5)]
    found = fitted([((1, 0, 0), 1e-4 * 2 ** (n / 10 - 1)) for n in range(21)] + others, "", "")
    low, high = found["kernel"].launch_range or (0, 0)
    assert low < 1e-4 * 2**-0.7
    assert high > 1e-4 * 2**0.7


def test_methods_are_timed_where_they_run() -> None:
    found = time_host("cpu", "Here.", methods=("fp16", "topk", "cser"), elements=2500)
    assert all(rate.launch > 0 for rate in found.values())
    assert "of fp16, topk, cser" in found["wait"].source
