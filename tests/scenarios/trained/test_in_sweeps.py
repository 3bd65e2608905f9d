"""Sweeps know the trainings that single runs know. Expected: `gcsim run` of each point."""

from pathlib import Path

import pytest

import gcsim
from gcsim.analysis.advice.advice import advised_run
from gcsim.analysis.report.sections import Recommendation
from gcsim.analysis.report.selection import largest_verdict
from gcsim.analysis.report.sweep import TRAINED, notes_on, table_of
from gcsim.scenarios.load import load_scenario
from gcsim.scenarios.sweeps.store import read_sweep
from gcsim.scenarios.sweeps.sweep import execute, prepare
from gcsim.scenarios.sweeps.tasks import Judge
from gcsim.scenarios.trained.known import TrainingJudge

SOME = {  # shipped trajectories; the variance-based method's traffic falls over its training
    "compressors": "[none, fp16, {kind: ef_signsgd}, {kind: variance}]",
    "cost.per_hour": "3",
}
GRID = {"cluster.nodes": [2, 8]}


def test_every_row_is_that_of_a_run_with_its_training(tmp_path: Path) -> None:
    swept = gcsim.sweep("digits_8", GRID, overrides=SOME, output=tmp_path / "out")
    headings, lines = table_of(swept)
    assert headings[-1] == "cost to\ntarget"
    for point, line in zip(swept.points, lines, strict=True):
        nodes = {"cluster.nodes": str(point.values["cluster.nodes"])}
        alone = advised_run(load_scenario("digits_8", {**SOME, **nodes}))
        assert point.result is not None
        assert point.result.rows == alone.rows
        assert any(row.wire_bytes_over_training for row in alone.rows)
        found = Recommendation(result=alone, verdict=largest_verdict(alone))
        assert found.use is not None
        assert found.verdict.to_try is not None
        tried = found.verdict.to_try.label
        assert (line[1], line[headings.index("try")]) == (found.use.label, tried)
        assert float(line[-1]) == pytest.approx(found.use.cost_to_target, rel=0.02)  # two digits
    assert TRAINED in notes_on(swept)[1]
    assert read_sweep(tmp_path / "out").to_csv() == swept.to_csv()


def test_a_point_without_a_training_that_is_known_by_now_is_run_again(tmp_path: Path) -> None:
    told: list[str] = []
    plan = prepare("digits_8", GRID, overrides=SOME)
    before = execute(plan, tmp_path, judge=Judge)
    assert not any(row.seeds_trained for row in before.rows)
    after = execute(plan, tmp_path, judge=TrainingJudge, tell=told.append)
    assert all(row.seeds_trained for row in after.rows)
    execute(plan, tmp_path, judge=TrainingJudge, tell=told.append)
    assert told == [f"2 of 2 points are done already, in {tmp_path}"]
