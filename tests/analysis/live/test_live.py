"""The whole live run, small: real namespaces, ranks and training."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from gcsim.analysis.live.live import MEASUREMENTS, run_live
from gcsim.analysis.live.namespaces import run
from gcsim.analysis.live.predict import PREDICTIONS


@pytest.mark.long
@pytest.mark.usefixtures("rights")
def test_a_quick_live_run_predicts_and_then_measures(tmp_path: Path) -> None:
    report = run_live(tmp_path, quick=True)
    predicted, measured = (
        json.loads((tmp_path / name).read_text(encoding="utf-8"))
        for name in (PREDICTIONS, MEASUREMENTS)
    )
    assert predicted["made"] < measured["made"]
    assert {p["name"] for p in predicted["predictions"]} == set(measured["measurements"])
    # The link decides here: a loaded machine moves these by less than a quarter.
    large = [p for p in report.findings.points if ">= 1 MB" in p.series]
    assert len(large) >= 3
    for point in large:
        # An all-gather of two ranks takes three halves of a block, as predicted, or two.
        modes = (1, 1.5) if point.workers == 2 and "all-gather" in point.series else (1,)
        errors = [(1 + point.error) / mode - 1 for mode in modes]
        assert min(map(abs, errors)) < 0.25, point.name
    dense = next(p for p in report.findings.points if p.method == "none")
    assert dense.measured > 0.5  # 7.4 MB at 12 MB/s
    assert report.decisions is not None
    assert report.decisions.share == 1.0
    assert f"gcsim-{os.getpid()}-" not in run(["ip", "netns", "list"])
