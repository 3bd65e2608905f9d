"""What is left when nodes die is the cluster without them."""

from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import pytest

from gcsim.scenarios.load import load_scenario
from gcsim.scenarios.run import run
from gcsim.scenarios.running.faults import needed_nodes, survivors

SCENARIO = """
model: lenet
batch_size: 8
gradients: {{workers: 2, warmup_steps: 1, iterations: 1, device: cpu}}
cluster:
  nodes: [1, 4]
  device: p100_pcie
  network: 1gbe
  nics: {{1: 10gbe, 3: 100mbit_ethernet}}
  collectives: {{all_reduce: {all_reduce}, servers: 1 dedicated}}
training:
  slow_nodes: {{2: 2, 3: 4}}
  faults: {{horizon: 100 s, restart: 10 s, deaths: [{{node: 3, at: 20.00001 s}}]}}
compute: {{forward: 100 ms, backward: 200 ms}}
compressors: [none]
"""


def scenario_file(folder: Path, all_reduce: str) -> Path:
    path = folder / "dying.yaml"
    path.write_text(SCENARIO.format(all_reduce=all_reduce))
    return path


def test_the_others_close_up_with_their_cards_and_their_slowness(tmp_path: Path) -> None:
    scenario = load_scenario(scenario_file(tmp_path, "ring"))
    cluster, training = survivors(scenario, 4, frozenset({1}))
    assert cluster.nodes == 3
    assert {node: nic.name for node, nic in cluster.nics.items()} == {2: "100mbit_ethernet"}
    assert training.slow_nodes == {1: Fraction(2), 2: Fraction(4)}
    assert training.faults is None


@pytest.mark.parametrize(("all_reduce", "waits"), [("ring", True), ("parameter_server", False)])
def test_a_run_is_faster_without_its_slowest_node_but_pays_for_its_death(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, all_reduce: str, waits: bool
) -> None:
    monkeypatch.setenv("GCSIM_CACHE_DIR", str(tmp_path / "cache"))
    alone, four = run(load_scenario(scenario_file(tmp_path, all_reduce))).rows
    # a node that a size does not have does not die there; 0.3 s an iteration, the last cut off
    assert alone.throughput_with_faults_samples_per_s == pytest.approx(333 * 8 / 100, abs=0.16)
    # four times as slow with node 3, twice with node 2: about 1.2 and 0.6 s an iteration
    before = int(20.00001 / four.iteration_s)
    left = 100 - 20.00001 - (10 if waits else 0)
    three = left / (four.iteration_s / 2)
    found = four.throughput_with_faults_samples_per_s
    assert found == pytest.approx((before * 4 + three * 3) * 8 / 100, rel=0.05)
    assert (four.lost_to_faults_s or 0) > (10 if waits else 0)


def test_a_server_that_dies_with_its_node_makes_everybody_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GCSIM_CACHE_DIR", str(tmp_path / "cache"))
    path = scenario_file(tmp_path, "parameter_server")
    lost = []
    for servers in (1, 4):  # on node 0; on every node, so on the one that dies
        changed = [f"cluster.collectives.servers={servers}"]
        row = run(load_scenario(path, changed)).rows[-1]
        lost.append(row.lost_to_faults_s or 0.0)
    assert lost[0] < 3
    assert lost[1] > 10


@pytest.mark.parametrize(
    ("algorithms", "servers", "missing", "needed"),
    [
        (["ring all-reduce"], "2", {1}, [0, 2, 3]),
        (["parameter server", "ring all-gather"], "2 dedicated", set(), [0, 1, 2, 3]),
        (["parameter server"], "2 dedicated", {1}, []),
        (["parameter server all-reduce"], "2", set(), [0, 1]),
        (["parameter server all-reduce"], "2", {0}, [1, 2]),  # they have moved on
        ([], "2", set(), []),  # it never communicates
    ],
)
def test_collectives_need_all_that_are_left_and_servers_the_nodes_that_they_are_on(
    tmp_path: Path, algorithms: list[str], servers: str, missing: set[int], needed: list[int]
) -> None:
    changed = [f"cluster.collectives.servers={servers}"]
    scenario = load_scenario(scenario_file(tmp_path, "parameter_server"), changed)
    of = needed_nodes(scenario.cluster_at(4), algorithms)
    assert list(of(frozenset(missing))) == needed


def test_what_is_drawn_is_what_the_row_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GCSIM_CACHE_DIR", str(tmp_path / "cache"))
    result = run(load_scenario(scenario_file(tmp_path, "ring")))
    told, row = result.faulty, result.rows[-1]
    assert told is not None
    assert (told.horizon_s, told.nodes, len(told.progress)) == (100.0, 4, 1)
    assert [(o.node, o.start_s, o.end_s) for o in told.outages] == [(3, 20.00001, None)]
    stretches = told.progress[0].stretches
    useful = sum(end - start for start, end, _ in stretches)
    assert 100 - useful == pytest.approx(row.lost_to_faults_s, abs=1e-9)
    # restarted for 10 s after the death, when the iteration under way was lost
    gaps = [two[0] - one[1] for one, two in pairwise(stretches)]
    assert max(gaps) == pytest.approx(20.00001 + 10 - stretches[0][1], abs=1e-9)
