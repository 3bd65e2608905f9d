"""A row says what carries it, and dense training has a row of its own through the same servers."""

import json
from pathlib import Path

import numpy as np
import pytest

from gcsim.scenarios.load import load_scenario
from gcsim.scenarios.result import Result
from gcsim.scenarios.run import run

SCENARIO = """
model: lenet
batch_size: 8
gradients: {workers: 2, warmup_steps: 1, iterations: 1, device: cpu}
cluster:
  nodes: [1, 4]
  device: p100_pcie
  network: 1gbe
  collectives: {transport: gloo}
compute: {forward: 1 ms, backward: 2 ms}
compressors: [{kind: none, label: dense}, {kind: topk, ratio: 0.01}, signsgd]
uncertainty: {discrepancy: false}
"""
SERVED = "dense, parameter servers"


@pytest.fixture
def result_of(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    monkeypatch.setenv("GCSIM_CACHE_DIR", str(cache))

    def result(*changes: str) -> Result:
        path = tmp_path / "a.yaml"
        path.write_text(SCENARIO)
        return run(load_scenario(path, changes))

    return result


def test_a_run_beside_another_is_the_run_with_its_share_by_hand(  # type: ignore[no-untyped-def]
    result_of, tmp_path: Path
) -> None:
    """To the picosecond. Share: c / (i + c) of the other's dense row at its largest size."""
    other = result_of()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "results.json").write_text(other.to_json())
    (dense,) = (row for row in other.rows if (row.label, row.nodes) == ("dense", 4))
    period = dense.iteration_as_stated_s
    assert period is not None
    share = f"{dense.communication_s / (period + dense.communication_s):.4f}"
    assert 0 < float(share) < 0.5
    beside = result_of(f"cluster.network.background={tmp_path}/other:dense")
    by_hand = result_of(f"cluster.network.background={share}")
    assert beside.rows == by_hand.rows
    alone = {(row.label, row.nodes): row.iteration_s for row in other.rows}
    assert all(row.iteration_s > alone[row.label, 4] for row in beside.rows if row.nodes == 4)


def via(result: Result) -> dict[str, str]:
    return {row.label: row.via for row in result.rows}


def test_without_servers_rows_name_the_collectives_that_carry_them(result_of) -> None:  # type: ignore[no-untyped-def]
    usual = result_of()
    assert via(usual) == {"dense": "", "topk": "", "signsgd": "all-to-all and all-gather"}
    other = result_of("cluster.collectives.push_pull=all_gather")
    assert via(other)["signsgd"] == "all-gather"
    by_label = {row.label: row for row in other.rows if row.nodes == 4}
    assert by_label["signsgd"].algorithms == "Gloo ring all-gather"
    assert "parameter server" not in usual.to_json()


def test_dense_through_the_same_servers_is_a_row_and_no_reference(result_of) -> None:  # type: ignore[no-untyped-def]
    found = result_of("cluster.collectives.servers=per_node")
    assert via(found) == {
        "dense": "", "topk": "", "signsgd": "parameter servers", SERVED: "parameter servers",
    }  # fmt: skip
    rows = {row.label: row for row in found.rows if row.nodes == 4}
    assert rows["dense"].algorithms == "Gloo ring all-reduce"
    assert rows["dense"].speedup_vs_dense == 1
    served = rows[SERVED]
    assert served.compressor == "none"
    assert served.algorithms == "parameter server all-reduce"
    ratios = np.divide(rows["dense"].iteration_draws_s, served.iteration_draws_s)
    assert served.speedup_vs_dense == np.median(ratios)
    # it is what a scenario gets that names the servers for all-reduces
    named = result_of(
        "cluster.collectives.servers=per_node", "cluster.collectives.all_reduce=parameter_server"
    )
    (all_served,) = [row for row in named.rows if row.nodes == 4 and row.label == "dense"]
    assert all_served.iteration_s == served.iteration_s
    assert SERVED not in via(named)
    assert SERVED in {row["label"] for row in json.loads(found.to_json())["rows"]}
    assert SERVED in {timeline.label for timeline in found.timelines}


def test_servers_that_nobody_uses_have_no_row(result_of) -> None:  # type: ignore[no-untyped-def]
    found = result_of("cluster.collectives.servers=per_node", "compressors=[none, topk]")
    assert SERVED not in via(found)
    assert "none, parameter servers" not in via(found)
