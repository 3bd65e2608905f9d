"""`cluster.sums`, `training.slow_workers` and `training.on_host`: do they arrive, read back,
warn where they do nothing, and change a run by what they say?"""

import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from gcsim.errors import InputError
from gcsim.scenarios.load import load_scenario
from gcsim.scenarios.reading.document import write
from gcsim.scenarios.run import run
from gcsim.scenarios.running.faults import survivors
from gcsim.scenarios.running.keys import profile_key
from gcsim.scenarios.sections.transports import defaults
from gcsim.scenarios.sweeps.grid import points, read_grid
from gcsim.simulator.cluster import Collectives
from tests.command import invoked
from tests.scenarios.files import load, reread, warnings

TEXT = """\
name: small
model: lenet
batch_size: 32
cluster:
  nodes: [2, 4]
  devices_per_node: 4
  device: p100_pcie
  network: 10gbe
  collectives: {transport: gloo}
  host: {cores: 2, per_message: 60 us}
  sums: {float32: 40 GB/s}
training:
  optimizer: 1 ms
  on_host: [optimizer, encode]
  slow_nodes: {1: 1.25}
  slow_workers: {3: 1.5, 7: 7/3, 9: 2}
compressors: [none, {kind: topk, ratio: 0.01}]
"""


GLOO = Collectives(transport="gloo")


def test_they_become_the_engines_own_values_and_read_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    scenario = load(tmp_path, TEXT)
    assert scenario.cluster.sums.float32 == 40 * 10**9
    assert scenario.cluster.sums.float32_range is None
    # what is not stated is the transport's
    assert scenario.cluster.sums == replace(
        defaults(GLOO)[0], float32=Fraction(4 * 10**10), float32_range=None
    )
    assert scenario.training.on_host == frozenset({"encode", "optimizer"})
    slow = {3: Fraction(3, 2), 7: Fraction(7, 3), 9: Fraction(2)}
    assert scenario.training.slow_workers == slow
    bits = load(tmp_path, TEXT, "cluster.sums.float32=320 Gbit/s")
    assert bits.cluster == scenario.cluster
    again = reread(tmp_path, scenario)
    assert (again.cluster, again.training) == (scenario.cluster, scenario.training)
    resolved: Any = again.resolved
    assert resolved["cluster"]["sums"]["float32"] == "40 GB/s"
    assert resolved["training"]["on_host"] == ["encode", "optimizer"]
    assert resolved["training"]["slow_workers"] == {"3": 1.5, "7": "7/3", "9": 2}
    assert not caplog.records


def test_without_them_nothing_is_said_of_them_and_recorded_traffic_is_shared(
    tmp_path: Path,
) -> None:
    plain = "\n".join(
        line
        for line in TEXT.splitlines()
        if not any(key in line for key in ("sums", "on_host", "slow_workers"))
    )
    scenario, full = load(tmp_path, plain), load(tmp_path, TEXT)
    assert scenario.cluster.sums == defaults(GLOO)[0]
    written = write(scenario.resolved)
    assert "on_host: []" in written
    assert "slow_workers" not in written
    choice = full.compressors[1]
    assert profile_key(full, choice) == profile_key(scenario, choice)


def test_a_point_of_the_sweep_has_only_its_own_workers(tmp_path: Path) -> None:
    scenario = load(tmp_path, TEXT)
    two, four = scenario.training_at(2), scenario.training_at(4)
    assert two.slow_workers == {3: Fraction(3, 2), 7: Fraction(7, 3)}
    assert four == scenario.training


def test_workers_of_the_nodes_that_are_left_keep_their_slowness(tmp_path: Path) -> None:
    scenario = load(tmp_path, TEXT, "training.slow_workers={3: 1.5, 5: 3, 9: 2, 15: 4}")
    _, training = survivors(scenario, 4, frozenset({1}))
    # node 1 with ranks 4 to 7 is gone, and those behind it move up by four
    assert training.slow_workers == {3: Fraction(3, 2), 5: Fraction(2), 11: Fraction(4)}


def test_a_grid_may_hold_them(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(TEXT, encoding="utf-8")
    grid = read_grid([
        "cluster.sums=none,{float32: 20 GB/s}", "training.slow_workers.3=1,2",
        "training.on_host=[],[encode]",
    ])  # fmt: skip
    found = points(path, grid)
    assert len({point.key for point in found}) == 8
    assert {point.scenario.training.slow_workers[3] for point in found} == {1, 2}
    assert {point.scenario.cluster.sums.float32 for point in found} == {None, 2 * 10**10}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("40 GB/s", "40", "a.yaml:11:19: error: cluster.sums.float32: 40 has no unit; write it "),
        ("40 GB/s", "0 GB/s", "a.yaml:11:19: error: cluster.sums.float32: 0 GB/s is zero"),
        ("40 GB/s", "-1 GB/s", "a.yaml:11:19: error: cluster.sums.float32: -1 GB/s is negative"),
        ("40 GB/s", "25 ps", "a.yaml:11:19: error: cluster.sums.float32: unknown unit 'ps'"),
        ("float32: 40 GB/s", "half: 40 GB/s", "a.yaml:11:10: error: unknown key 'half' in "
         "cluster.sums"),
        ("{float32: 40 GB/s}", "40 GB/s", "a.yaml:11:9: error: cluster.sums = '40 GB/s': "
         "must be a mapping"),
        ("40 GB/s}", "40 GB/s, float16_range: [1 GB/s, 2 GB/s]}", "a.yaml:11:3: error: "
         "cluster.sums: float16_range is given without float16; state float16 or leave the"),
        ("9: 2}", "16: 2}", "a.yaml:16:34: error: training.slow_workers: there is no worker 16; "
         "workers count from 0, node by node; the last of 16 is 15"),
        ("9: 2}", "-1: 2}", "a.yaml:16:34: error: training.slow_workers.-1: '-1' is not the "
         "number of a worker; workers count from 0"),
        ("9: 2}", "9: 0}", "a.yaml:16:37: error: training.slow_workers.9: 0 must be greater than "
         "0"),
        ("9: 2}", "9: half}", "a.yaml:16:37: error: training.slow_workers.9: half is not a number"),
        ("{3: 1.5, 7: 7/3, 9: 2}", "[3, 7]", "a.yaml:16:17: error: training.slow_workers: must be "
         "a mapping"),
        ("[optimizer, encode]", "encode", "a.yaml:14:12: error: training.on_host = 'encode': must "
         "be a list; write [encode]"),
        ("[optimizer, encode]", "[encod]", "a.yaml:14:13: error: training.on_host.0 = 'encod': is "
         "not a choice; did you mean 'encode'?"),
        ("[optimizer, encode]", "[encode, encode]", "a.yaml:14:12: error: training.on_host: "
         "'encode' appears 2 times; name it once"),
    ],
)  # fmt: skip
def test_mistakes_are_told_with_their_places(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    assert TEXT.count(old) == 1
    with pytest.raises(InputError) as caught:
        load(tmp_path, TEXT.replace(old, new))
    (problem,) = caught.value.problems
    assert str(problem).replace(f"{tmp_path}/", "").startswith(message)


def test_many_workers_that_differ_on_shared_cores_would_run_for_ever(tmp_path: Path) -> None:
    many = ["cluster.nodes=257", "training.noise={variation: 0.1}"]
    with pytest.raises(InputError) as caught:
        load(tmp_path, TEXT, *many)
    (problem,) = caught.value.problems
    assert str(problem).replace(f"{tmp_path}/", "") == (
        "a.yaml:14:12: error: training.on_host with 1,028 workers whose times are random "
        "(training.noise): shared cores are simulated event by event, which would take "
        "hours; at most 1,024 workers, or nothing random"
    )
    load(tmp_path, TEXT, many[0])  # alike, they are few classes
    load(tmp_path, TEXT, *many, "cluster.host.cores=4", "training.on_host=[]")


@pytest.mark.parametrize(
    ("settings", "warning"),
    [
        (
            ["cluster.nodes=1", "cluster.devices_per_node=1", "cluster.host=none",
             "training={}"],
            "a.yaml:11:9: warning: cluster.sums has no effect: one worker alone receives "
            "nothing; set cluster.nodes",
        ),
        (
            ["cluster.collectives.transport=nccl"],
            "a.yaml:11:9: warning: cluster.sums has no effect: the bandwidths of NCCL's "
            "tuner include it; leave it out, or set all_reduce to another algorithm",
        ),
        (
            ["cluster.collectives.all_reduce=nccl_tree_ll"],
            "a.yaml:11:9: warning: cluster.sums has no effect: the bandwidths of NCCL's "
            "tuner include it; leave it out, or set all_reduce to another algorithm",
        ),
        (
            ["cluster.host=none"],
            "a.yaml:14:12: warning: training.on_host has no effect: the number of cores is "
            "unknown; set cluster.host.cores",
        ),
        (
            ["cluster.host.cores=4"],
            "a.yaml:14:12: warning: training.on_host has no effect: each worker of a machine (4 "
            "on 4 cores) has one to itself; leave it out, or set cluster.host.cores",
        ),
        (
            ["cluster.host={cores: 16, per_message: 60 us, ranks: all}"],
            "a.yaml:14:12: warning: training.on_host has no effect: each worker of a machine (16 "
            "on 16 cores) has one to itself; leave it out, or set cluster.host.cores",
        ),
        (
            ["training.optimizer=0 s"],
            "a.yaml:14:12: warning: training.on_host has no effect on the optimizer: its time is "
            "0, or part of the backward pass; set training.optimizer, or leave optimizer out",
        ),
    ],
)  # fmt: skip
def test_what_changes_nothing_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, settings: list[str], warning: str
) -> None:
    load(tmp_path, TEXT, *settings)
    assert warnings(tmp_path, caplog) == [warning]


@pytest.mark.parametrize(
    "settings",
    [
        ["cluster.collectives.transport=nccl", "cluster.collectives.all_reduce=ring"],
        ["cluster.collectives={transport: nccl, all_reduce: ring, all_gather: auto}"],
        ["cluster.host={cores: 15, per_message: 60 us, ranks: all}"],
        ["training.on_host=[]", "cluster.host=none"],
        ["training.slow_workers={3: 1}"],
    ],
)
def test_what_has_an_effect_is_no_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, settings: list[str]
) -> None:
    load(tmp_path, TEXT, *settings)
    assert not caplog.records


# --- on a shipped scenario -----------------------------------------------------------------------

FAST = (
    "compressors=[none]", "gradients={source: synthetic, workers: 2, iterations: 1}",
    "cluster.collectives={transport: textbook}", "cluster.nodes=4",
    "compute={forward: 10 ms, backward: 20 ms}",
    "uncertainty.draws=0",  # what is stated, not the median of worlds
    "training.framework=none",  # a slow worker would take three times as long for it, too
)  # fmt: skip


def gcsim(command: str, *settings: str, more: tuple[str, ...] = ()) -> Result:
    options = [word for each in (*FAST, *settings) for word in ("--set", each)]
    return invoked([command, "lenet_2node", *options, *more])


def iteration(*settings: str) -> float:
    (row,) = run(load_scenario("lenet_2node", [*FAST, *settings])).rows
    return row.iteration_s


@pytest.fixture
def cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GCSIM_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path


def test_a_run_of_a_shipped_scenario_takes_longer_by_what_they_say(cached: Path) -> None:
    """LeNet's gradient is one bucket: a ring of four adds 3/4 of it, here 1 us a byte. A worker
    that is three times as slow keeps the others waiting for twice the 30 ms of the passes."""
    plain = iteration()
    folder = cached / "run"
    settings = ("cluster.sums={float32: 1 MB/s}", "training.slow_workers={2: 3}")
    done = gcsim("run", *settings, more=("-q", "-o", str(folder)))
    assert done.exit_code == 0, done.output
    results = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    (row,) = results["rows"]
    longer = row["iteration_s"] - plain
    slower = iteration(settings[1]) - plain
    assert slower == pytest.approx(0.06, abs=1e-3)  # the code around the exchange is slow, too
    assert longer - slower == pytest.approx(0.75e-6 * row["wire_bytes_per_worker"], rel=1e-3)
    assert results["scenario"]["cluster"]["sums"] == {"float32": "1 MB/s"}
    assert results["scenario"]["training"]["slow_workers"] == {"2": 3}
    # what stands beside the results runs again to the same times
    (again,) = run(load_scenario(folder / "scenario.yaml")).rows
    assert again.iteration_s == row["iteration_s"]


def test_the_optimisers_of_workers_that_share_a_core_take_turns(cached: Path) -> None:
    """Four on one core: three times 4 ms more, but for the 0.1 us by which they leave the ring one
    after the other."""
    host = "cluster.host={cores: 1, per_message: 0 s, per_call: 1 us, per_byte: 0 s, ranks: all}"
    alone, shared = (
        iteration(host, "training.optimizer=4 ms", f"training.on_host={kinds}")
        for kinds in ("[]", "[optimizer]")
    )
    assert shared - alone == pytest.approx(0.012, abs=2e-7)


@pytest.mark.parametrize("columns", [80, 120])
def test_check_describes_them(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    done = gcsim(
        "check", "cluster.sums={float32: 40 GB/s}", "training.slow_workers={3: 1.5, 1: 2}",
        "training.slow_nodes={2: 1.25}", "training.on_host=[decode, encode]",
        "cluster.host={cores: 2, per_message: 60 us, ranks: all}",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    text = " ".join(done.stdout.split())
    assert "summation float32 40 GB/s" in text
    assert "on the host encode, decode: the workers of a machine share its cores" in text
    assert "compute takes node 2 1.25x as long" in text
    assert "worker 1 2.00x, worker 3 1.50x as long, times its node's" in text
    assert max(map(len, done.stdout.splitlines())) <= columns


def test_a_replaced_training_section_leaves_nothing_behind(tmp_path: Path) -> None:
    scenario = load(tmp_path, TEXT, "training={}")
    assert replace(scenario.training, optimizer=Fraction(0)) == scenario.training
    assert not scenario.training.slow_workers
