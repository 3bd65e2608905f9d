"""Sweeps from Python: the language of grids, rows that are those of single runs, what is kept."""

import csv
import io
import json
import os
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gcsim
from gcsim import sweep, version
from gcsim.analysis.report.sweep import notes_on, table_of
from gcsim.errors import InputError
from gcsim.scenarios.checks.fits import DoesNotFitError
from gcsim.scenarios.load import load_scenario
from gcsim.scenarios.progress import SilentProgress
from gcsim.scenarios.reading.document import read
from gcsim.scenarios.result import LISTS, row_from
from gcsim.scenarios.run import run
from gcsim.scenarios.sweeps import store
from gcsim.scenarios.sweeps.grid import named, points, read_grid, split, written
from gcsim.scenarios.sweeps.processes import LocalWorkers, Workers, default_jobs, drive
from gcsim.scenarios.sweeps.store import read_sweep
from gcsim.scenarios.sweeps.sweep import Stage1
from gcsim.scenarios.sweeps.tasks import Failure, Outcome, PointOutput, Task, failure
from tests.process import printed

SCENARIO = """\
name: small
model: lenet
batch_size: 8
gradients: {source: live, workers: 2, warmup_steps: 1, iterations: 1, device: cpu}
cluster:
  nodes: [1, 4]
  devices_per_node: 2
  device: p100_pcie
  network: 10gbe
compressors: [none, fp16, {kind: topk, ratio: 0.01}]
"""
NETWORK: dict[str, list[Any]] = {
    "cluster.network.bandwidth": ["1 Gbit/s", "25 Gbit/s"],
    "cluster.nodes": [2, [1, 8]],
}


@pytest.fixture(autouse=True)
def _own_folder_and_cache(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GCSIM_CACHE_DIR", str(cache))
    # a process starts for seconds; a test asks for two where processes matter
    monkeypatch.setattr("gcsim.scenarios.sweeps.sweep.default_jobs", lambda: 1)
    monkeypatch.setattr("gcsim.scenarios.sweeps.sweep.LocalWorkers", workers)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.yaml").write_text(SCENARIO)


class Recording:
    """Workers in this process, which tell what they were asked for."""

    capacity = 2

    def __init__(
        self, outcome: Callable[[Task], Outcome] = lambda task: task.perform(SilentProgress())
    ) -> None:
        self.tasks: list[Task] = []
        self._waiting: deque[tuple[int, Task]] = deque()
        self._outcome = outcome

    def start(self, number: int, task: Task) -> None:
        assert len(self._waiting) < self.capacity
        self.tasks.append(task)
        self._waiting.append((number, task))

    def finished(self, note: Callable[[str], None]) -> list[tuple[int, Outcome]]:
        number, task = self._waiting.popleft()
        return [(number, self._outcome(task))]

    def close(self) -> None:
        pass


def workers(jobs: int, *, side_by_side: bool = False) -> Workers:
    return Recording() if jobs == 1 else LocalWorkers(jobs, side_by_side=side_by_side)


def refused(call: Callable[[], object]) -> list[str]:
    with pytest.raises(InputError) as caught:
        call()
    return [str(problem) for problem in caught.value.problems]


# --- the language of grids -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("1,2", ["1", "2"]),
        ("10Gbit/s, 1 Gbit/s", ["10Gbit/s", "1 Gbit/s"]),
        ("[1, 2],[4, 8]", ["[1, 2]", "[4, 8]"]),
        ("none,{kind: topk, ratio: 0.1}", ["none", "{kind: topk, ratio: 0.1}"]),
        ("{a: 'x,}', b: [1,{c: 2}]},3", ["{a: 'x,}', b: [1,{c: 2}]}", "3"]),
        ("'a, b','it''s, ok'", ["'a, b'", "'it''s, ok'"]),
        (r'"q\",",z', [r'"q\","', "z"]),
        ("it's,b", ["it's", "b"]),
        ("my.module:build,lenet", ["my.module:build", "lenet"]),
    ],
)
def test_commas_inside_quotes_and_brackets_belong_to_a_value(text: str, values: list[str]) -> None:
    assert split(text) == values


text = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Zl", "Zp"]))
plain = st.none() | st.booleans() | st.integers(-(10**9), 10**9) | text
nested = st.recursive(
    plain, lambda inner: st.lists(inner) | st.dictionaries(text, inner), max_leaves=6
)


@given(st.lists(nested, min_size=1, max_size=3))
def test_lists_and_mappings_are_written_as_the_yaml_that_they_were(values: list[Any]) -> None:
    assert read(written(values), "here").data == values


def test_the_last_key_changes_fastest() -> None:
    found = points("small.yaml", read_grid(["seed=1,2", "cluster.nodes=[1, 4], 8"]))
    assert [named(point.values) for point in found] == [
        "seed=1, cluster.nodes=[1, 4]", "seed=1, cluster.nodes=8",
        "seed=2, cluster.nodes=[1, 4]", "seed=2, cluster.nodes=8",
    ]  # fmt: skip
    assert [point.scenario.node_counts for point in found] == [(1, 4), (8,)] * 2


def test_python_values_and_yaml_texts_are_the_same_grid() -> None:
    import numpy as np

    asked: dict[str, Any] = {
        "cluster.nodes": [[1, 4], 8],
        "seed": np.arange(2),
        "cluster.network": "10gbe,1gbe",
    }
    as_options = ["cluster.nodes=[1, 4], 8", "seed=0,1", "cluster.network=10gbe,1gbe"]
    assert read_grid(asked) == read_grid(as_options)


@pytest.mark.parametrize(
    ("grid", "said"),
    [
        (["cluster.nodes=0"], ["--grid cluster.nodes=0: error: cluster.nodes = 0: must be at "
                               "least 1; for example [1, 2, 4]"]),
        # a wrong key is told once, a wrong value with the value
        (["cluster.nodez=1,2", "batch_size=8,x"],
         ["--grid cluster.nodez: error: unknown key 'nodez' in cluster; did you mean 'nodes'?",
          "--grid batch_size=x: error: batch_size = 'x': must be a whole number; for example 32"]),
        (["seed"], ["--grid seed: error: no values; write --grid key=value,value"]),
        (["seed=1,,2", "batch_size=[1"],
         ["--grid seed: error: a value is empty; write null for nothing",
          "--grid batch_size: error: ] is missing at the end of [1"]),
        (["seed=1", "seed=2"], ["--grid seed: error: is given twice; write all its values after "
                                "one"]),
        (["gradients.learning_rate=0.1,.inf"],
         ["--grid gradients.learning_rate=.inf: error: must be finite"]),
        (["seed=7,7"], ["--grid seed=7: error: appears twice"]),
        ([], ["--grid: error: nothing to sweep over; write --grid key=value,value"]),
        ({"seed": range(1000), "batch_size": range(1, 1001)},
         ["--grid: error: 1,000,000 points are too many; at most 100,000 are allowed"]),
        ({"seed": [{1, 2}]}, ["--grid seed: error: {1, 2} cannot be a value in a scenario"]),
        # two hundred wrong values are one mistake
        ({"cluster.nodes": range(-199, 1)},
         ["--grid cluster.nodes=-199: error: cluster.nodes = -199: must be at least 1; for "
          "example [1, 2, 4]",
          "--grid cluster.nodes=-198: error: cluster.nodes = -198: must be at least 1; for "
          "example [1, 2, 4]",
          "--grid cluster.nodes=-197: error: cluster.nodes = -197: must be at least 1 (and 197 "
          "more problems of this key); for example [1, 2, 4]"]),
        # the same bandwidth, and so the same scenario
        (["cluster.network.bandwidth=1 Gbit/s,1000 Mbit/s"],
         ["--grid cluster.network.bandwidth=1000 Mbit/s: error: is the same scenario as "
          "cluster.network.bandwidth=1 Gbit/s; leave one of them out"]),
    ],
)  # fmt: skip
def test_all_problems_are_told_before_anything_runs(
    grid: Any, said: list[str], tmp_path: Path
) -> None:
    assert refused(lambda: sweep("small.yaml", grid, output="out")) == said
    assert {path.name for path in tmp_path.iterdir()} == {"small.yaml"}


def test_a_combination_that_cannot_be_is_named() -> None:
    # each label is right alone; with `fp16` at the other place two rows would share it
    grid = ["compressors.1.label=a,b", "compressors.2.label=c,b", "seed=1,2"]
    (said,) = refused(lambda: sweep("small.yaml", grid))
    assert "two compressors are labelled 'b'" in said
    assert said.startswith(
        "--grid compressors.1.label=b --grid compressors.2.label=b --grid seed=1: error:"
    )
    assert "(and so in 1 other points)" in said


@pytest.mark.parametrize("options", [{"seed": 3}, {"overrides": ["seed=3"]}])
def test_a_key_has_one_value_or_a_grid(options: dict[str, Any]) -> None:
    said = refused(lambda: sweep("small.yaml", {"seed": [1, 2]}, **options))
    assert said == ["--grid seed: error: has one value already; give it once"]


@pytest.mark.parametrize("jobs", [0, -1])
def test_a_sweep_needs_a_process(jobs: int) -> None:
    said = refused(lambda: sweep("small.yaml", {"seed": [1]}, jobs=jobs))
    assert said == ["--jobs: error: must be at least 1"]


# --- rows ----------------------------------------------------------------------------------------


@pytest.mark.long
def test_every_row_is_that_of_a_single_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Expected: `gcsim.run`, for each point by itself and with another cache."""
    nics = ["{like: 10gbe, bandwidth: 1 Mbit/s}", "1gbe"]  # node 3 is there at 4 nodes alone
    grid: dict[str, list[Any]] = {"training.accumulation": [1, 2], "cluster.nics.3": nics}
    swept = sweep("small.yaml", grid, jobs=2)
    assert len(swept.points) == 4
    monkeypatch.setenv("GCSIM_CACHE_DIR", str(tmp_path / "cache of runs"))
    for point in swept.points:
        assert point.result is not None
        texts = {key: written(value) for key, value in point.values.items()}
        alone = run(load_scenario("small.yaml", texts))
        assert point.result.rows == alone.rows
        assert point.result.scenario == alone.scenario
        known = {key: alone.provenance[key] for key in alone.provenance if key != "from_cache"}
        assert point.result.provenance == known


@pytest.mark.long
def test_the_number_of_processes_changes_no_byte(tmp_path: Path) -> None:
    for jobs in (1, 2):
        sweep("small.yaml", NETWORK, jobs=jobs, output=f"jobs{jobs}")
    for name in ("results.json", "results.csv"):
        one, two = ((tmp_path / f"jobs{jobs}" / name).read_bytes() for jobs in (1, 2))
        assert one == two


def test_the_csv_has_all_rows_with_the_grids_keys_first() -> None:
    import csv

    swept = sweep("small.yaml", NETWORK, output="out")
    with Path("out/results.csv").open(encoding="utf-8") as file:
        reader = csv.DictReader(file)
        lines = list(reader)
    assert reader.fieldnames is not None
    of_run = ["scenario", "model", "seed", "device", "network"]
    assert list(reader.fieldnames[:8]) == [*NETWORK, *of_run, "compressor"]
    # 2 bandwidths, (1 + 2) cluster sizes, 3 compressors
    assert len(lines) == 2 * 3 * 3 == len(swept.rows)
    assert {line["cluster.nodes"] for line in lines} == {"2", "[1, 8]"}
    assert [float(line["iteration_s"]) for line in lines] == [
        row.iteration_s for p in swept.points for row in (p.result.rows if p.result else ())
    ]


@pytest.mark.long
def test_a_loaded_scenario_can_be_swept_too() -> None:
    loaded = load_scenario("small.yaml", ["cluster.nodes=4"])
    from_file = sweep("small.yaml", {"seed": [0]}, overrides=["cluster.nodes=4"])
    assert sweep(loaded, {"seed": [0]}).rows == from_file.rows


def test_a_point_that_does_not_fit_is_a_row_without_times(tmp_path: Path) -> None:
    grid = {"training.device_memory": ["16 GiB", "8 MiB"]}
    found = sweep("small.yaml", grid, overrides=["uncertainty.draws=0"], output=tmp_path / "out")
    fitting, (lost,) = found.points[0], found.failed
    overrides = ["uncertainty.draws=0", "training.device_memory=16 GiB"]
    alone = run(load_scenario("small.yaml", overrides))
    assert fitting.result is not None
    assert [row.iteration_s for row in fitting.result.rows] == [r.iteration_s for r in alone.rows]
    with pytest.raises(DoesNotFitError) as refusal:
        load_scenario("small.yaml", ["training.device_memory=8 MiB"])
    assert lost.failure is not None
    assert lost.failure.problems == refusal.value.problems
    (row,) = lost.unfit
    assert row.device_memory_low_bytes == refusal.value.misfit.memory.low
    *_, last = csv.DictReader(io.StringIO(found.to_csv()))
    assert (last["fits"], last["label"], last["iteration_s"]) == ("no", "dense", "")
    assert read_sweep(tmp_path / "out").to_csv() == found.to_csv()
    answer, notes = notes_on(found)
    assert answer.endswith("1 point cannot run: too little memory.")
    assert "would fit: " in notes[-1]
    assert [line[1] for line in table_of(found)[1]] == ["dense", "does not fit"]


def test_each_point_has_the_evidence_of_its_own_optimizer() -> None:
    """PowerSGD of rank 4 is published to train images with momentum SGD, not with Adam."""
    overrides = ["uncertainty.draws=0", "compressors=[none, {kind: powersgd, rank: 4}]",
                 "cluster.network.bandwidth=100 Mbit/s"]  # fmt: skip
    grid = {"training.optimizer_state": ["momentum", "adam"]}
    found = sweep("small.yaml", grid, overrides=overrides)
    assert [line[1] for line in table_of(found)[1]] == ["powersgd *", "dense"]


@pytest.mark.long
def test_the_public_function_gives_what_shows_itself() -> None:
    shown = sweep("small.yaml", {"cluster.nodes": [1]}, seed=3)
    assert isinstance(shown, gcsim.SweepResult)
    assert isinstance(shown.points[0].result, gcsim.Result)


@pytest.mark.long
def test_a_script_needs_no_main_guard_and_finds_the_users_compressor(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from gcsim.compressors.base import About, Compressor\n"
        "from gcsim.compressors.requests import AllReduce\n"
        "class Same(Compressor):\n"
        "    about = About(title='same', family='dense', collective='all-reduce', bits='32',\n"
        "                  unbiased=True, state='none', paper='none')\n"
        "    def exchange(self, bucket, step):\n"
        "        total = yield AllReduce(tensor=bucket.gradient.clone())\n"
        "        return total / self.worker.count\n"
    )
    (tmp_path / "script.py").write_text(
        "import gcsim\n"
        "grid = {'compressors.1': ['mine:Same'], 'cluster.nodes': [1, 2]}\n"
        "found = gcsim.sweep('small.yaml', grid, jobs=1)\n"
        "print(sorted({row.label for row in found.rows}), len(found.failed))\n"
    )
    assert printed("script.py") == "['Same', 'dense', 'topk'] 0\n"


@pytest.mark.long
def test_a_recorded_trace_is_swept_and_a_damaged_one_is_refused_at_once(tmp_path: Path) -> None:
    gcsim.record_scenario(load_scenario("small.yaml"), tmp_path / "trace")
    replay = {"gradients": "{source: recorded, trace: trace}"}
    grid: dict[str, list[Any]] = {"cluster.nodes": [1, 2]}
    recorded = sweep("small.yaml", grid, overrides=replay)
    assert recorded.rows == sweep("small.yaml", grid).rows
    victim = next((tmp_path / "trace").glob("*.safetensors"))
    victim.write_bytes(victim.read_bytes()[:-1])
    said = refused(lambda: sweep("small.yaml", grid, overrides=replay, output="out"))
    assert victim.name in said[0]
    assert not (tmp_path / "out").exists()


# --- stage 1 is done once ------------------------------------------------------------------------


def kinds(tasks: list[Task]) -> list[list[str]]:
    return [[choice.kind for choice in task.scenario.compressors] for task in tasks]


def made(task: Task) -> Outcome:
    return tuple((choice.label, "profile") for choice in task.scenario.compressors)


def stage1_of(grid: dict[str, list[Any]], workers: Recording) -> tuple[Stage1, list[Any]]:
    scenarios = [point.scenario for point in points("small.yaml", read_grid(grid))]
    stage1 = Stage1(scenarios, shared_cache=False)
    stage1.run(workers, SilentProgress())
    return stage1, scenarios


def test_points_that_differ_in_the_cluster_share_one_measurement() -> None:
    workers = Recording(made)
    stage1, scenarios = stage1_of({"cluster.nodes": [1, 2, 4], "cluster.device": ["v100"]}, workers)
    assert kinds(workers.tasks) == [["none", "fp16", "topk"]]
    assert [len(stage1.task(scenario, {}).profiles) for scenario in scenarios] == [3, 3, 3]


def test_gradients_are_made_once_for_all_values_of_a_parameter() -> None:
    workers = Recording(made)
    stage1_of({"compressors.2.ratio": [0.1, 0.01, 0.001]}, workers)
    assert kinds(workers.tasks) == [["none", "fp16", "topk", "topk", "topk"]]


def test_other_gradients_are_another_measurement() -> None:
    workers = Recording(made)
    stage1_of({"seed": [0, 1], "cluster.nodes": [1, 2]}, workers)
    assert kinds(workers.tasks) == [["none", "fp16", "topk"]] * 2


def test_a_compressor_that_fails_takes_only_its_own_points_with_it() -> None:
    def one_fails(task: Task) -> Outcome:
        ratios = [choice.parameters.get("ratio") for choice in task.scenario.compressors]
        return failure(InputError("too few")) if 0.5 in ratios else made(task)

    workers = Recording(one_fails)
    stage1, scenarios = stage1_of({"compressors.2.ratio": [0.5, 0.01]}, workers)
    # all four together, then each alone
    assert kinds(workers.tasks) == [
        ["none", "fp16", "topk", "topk"], ["none"], ["fp16"], ["topk"], ["topk"]
    ]  # fmt: skip
    bad, good = scenarios
    assert stage1.failure(good) is None
    found = stage1.failure(bad)
    assert found is not None
    assert [problem.message for problem in found.problems] == ["too few"]


def test_what_is_in_the_cache_is_not_measured_again() -> None:
    sweep("small.yaml", {"cluster.nodes": [1]})
    scenarios = [
        load_scenario("small.yaml", ["cluster.nodes=2", f"seed={seed}"]) for seed in (0, 9)
    ]
    assert Stage1(scenarios[:1], shared_cache=True).missing == 0
    assert Stage1(scenarios, shared_cache=True).missing == 3


# --- workers -------------------------------------------------------------------------------------


@pytest.fixture
def deadly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Task]:
    """A task with a compressor that does something to the process in which it is measured."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def task(deed: str) -> Task:
        name = f"deadly{abs(hash(deed))}"
        (tmp_path / f"{name}.py").write_text(
            "import os, signal, sys\n"
            "from gcsim.compressors.base import About, Compressor\n"
            "class Deadly(Compressor):\n"
            "    about = About(title='deadly', family='dense', collective='all-reduce',\n"
            "                  bits='32', unbiased=True, state='none', paper='none')\n"
            f"    def exchange(self, bucket, step):\n        {deed}\n        yield\n"
        )
        scenario = load_scenario("small.yaml", [f"compressors=['{name}:Deadly']"])
        return Task(scenario=scenario, measure_only=True)

    return task


DEEDS = {
    "os.kill(os.getpid(), signal.SIGKILL)": ("its process got SIGKILL", False),
    "os.abort()": ("its process died of SIGABRT", True),
    "sys.stderr.write('too bad'); sys.stderr.flush(); os._exit(7)": (
        "its process ended with code 7: too bad",
        True,
    ),
    "raise ZeroDivisionError('by nothing')": ("ZeroDivisionError: by nothing", False),
    "raise MemoryError": ("not enough memory", False),
}


@pytest.mark.long
def test_a_worker_that_dies_fails_its_task_alone(deadly: Callable[[str], Task]) -> None:
    sweep("small.yaml", {"cluster.nodes": [1]})
    fine = Task(scenario=load_scenario("small.yaml"))
    tasks = deque(enumerate([*map(deadly, DEEDS), fine]))
    outcomes: dict[int, Outcome] = {}
    workers = LocalWorkers(1)
    try:
        drive(workers, tasks, outcomes.__setitem__)
    finally:
        workers.close()
    for number, (said, bug) in enumerate(DEEDS.values()):
        outcome = outcomes[number]
        assert isinstance(outcome, Failure)
        assert (said in outcome.problems[0].message, outcome.is_bug) == (True, bug)
    assert isinstance(outcomes[len(DEEDS)], PointOutput)


def test_jobs_by_default_are_no_more_than_cores() -> None:
    assert 1 <= default_jobs() <= len(os.sched_getaffinity(0))


def test_short_memory_means_fewer_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gcsim.scenarios.sweeps.processes.free_memory", lambda: 100 << 20)
    assert default_jobs() == 1


# --- what is kept --------------------------------------------------------------------------------


def stamps(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in (folder / "points").glob("*.json")}


def test_a_point_that_is_done_is_not_run_again_and_new_values_extend(tmp_path: Path) -> None:
    out = tmp_path / "out"
    first = sweep("small.yaml", {"cluster.nodes": [1, 2]}, output=out)
    before = stamps(out)
    assert len(before) == 2
    again = sweep("small.yaml", {"cluster.nodes": [1, 2]}, output=out)
    assert stamps(out) == before
    assert again.to_json() == first.to_json()
    more = sweep("small.yaml", {"cluster.nodes": [1, 2, 4], "cluster.devices_per_node": [1, 2]},
                 output=out)  # fmt: skip
    assert stamps(out).items() > before.items()
    assert len(stamps(out)) == 6
    at_two = [row for row in more.rows if row.point["cluster.devices_per_node"] == 2]
    kept = [row for row in at_two if row.nodes != 4]
    assert [replace(row, point={}) for row in kept] == [
        replace(row, point={}) for row in first.rows
    ]


@pytest.mark.parametrize(
    "other", [{"cluster.nodes": [1, 4]}, {"seed": [1]}, {"cluster.nodes": [1], "seed": [1, 2]}]
)
def test_another_grid_in_the_folder_is_refused(other: dict[str, list[int]], tmp_path: Path) -> None:
    sweep("small.yaml", {"cluster.nodes": [1, 2]}, output="out")
    before = {path: path.read_bytes() for path in Path("out").rglob("*.*")}
    (said,) = refused(lambda: sweep("small.yaml", other, output="out"))
    assert said.startswith("out: error: holds points of another grid or scenario")
    assert "cluster.nodes=" in said
    assert said.endswith("add these values, or choose another folder with -o")
    assert {path: path.read_bytes() for path in Path("out").rglob("*.*")} == {
        **before, Path("out/.lock"): before[Path("out/.lock")]
    }  # fmt: skip


def test_another_scenario_in_the_folder_is_refused() -> None:
    sweep("small.yaml", {"cluster.nodes": [1]}, output="out")
    changed = SCENARIO.replace("batch_size: 8", "batch_size: 16")
    Path("small.yaml").write_text(changed)
    (said,) = refused(lambda: sweep("small.yaml", {"cluster.nodes": [1]}, output="out"))
    assert "another grid or scenario" in said


def test_the_folder_of_a_run_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "results.json").write_text("of a run")
    (said,) = refused(lambda: sweep("small.yaml", {"cluster.nodes": [1]}, output="out"))
    assert said.startswith("out: error: holds a results.json that is not of a sweep")
    assert (tmp_path / "out" / "results.json").read_text() == "of a run"


def test_a_damaged_point_is_run_again(tmp_path: Path) -> None:
    grid: dict[str, list[Any]] = {"cluster.nodes": [1, 2, 3, 4, 5, 6]}
    whole = sweep("small.yaml", grid, output="out")
    *victims, other = sorted((tmp_path / "out" / "points").glob("*.json"))
    texts = [victim.read_bytes() for victim in victims]
    more_workers = texts[-1].replace(b'"workers": ', b'"workers": 1')
    damages = [b"", b"{", b"[]", b'{"sha256": "0"}', more_workers]
    for victim, damage in zip(victims, damages, strict=True):
        victim.write_bytes(damage)
    untouched = other.stat().st_mtime_ns
    assert sweep("small.yaml", grid, output="out").to_json() == whole.to_json()
    for victim, text in zip(victims, texts, strict=True):
        assert json.loads(victim.read_text())["rows"] == json.loads(text)["rows"]
    assert other.stat().st_mtime_ns == untouched


@pytest.mark.long
def test_a_point_of_other_code_is_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep("small.yaml", {"cluster.nodes": [1]}, output="out")
    before = stamps(tmp_path / "out")
    monkeypatch.setattr(version, "__version__", "9.9")
    sweep("small.yaml", {"cluster.nodes": [1]}, output="out")
    assert stamps(tmp_path / "out").keys() == before.keys()
    assert stamps(tmp_path / "out") != before


def test_halves_of_files_are_removed_and_other_hidden_files_are_not(tmp_path: Path) -> None:
    points_folder = tmp_path / "out" / "points"
    points_folder.mkdir(parents=True)
    halves = [
        points_folder / ".0123.json.k2x4.json",
        tmp_path / "out" / ".results.csv.gcsim-abcd.csv",
        tmp_path / "out" / ".sweep.json.gcsim-abcd.json",
    ]
    for half in halves:
        half.write_text("{")
    mine = tmp_path / "out" / ".my.settings"
    mine.write_text("mine")
    sweep("small.yaml", {"cluster.nodes": [1]}, output="out")
    assert not any(half.exists() for half in halves)
    assert mine.read_text() == "mine"


def test_two_sweeps_do_not_share_a_folder(tmp_path: Path) -> None:
    with store.locked(tmp_path / "out"):
        (said,) = refused(lambda: sweep("small.yaml", {"cluster.nodes": [1]}, output="out"))
    assert said.startswith(f"out: error: another sweep (process {os.getpid()}) is running")
    sweep("small.yaml", {"cluster.nodes": [1]}, output="out")  # the lock went with its holder


@pytest.mark.long
def test_sweep_json_says_what_was_asked_for(tmp_path: Path) -> None:
    swept = sweep("small.yaml", NETWORK, overrides=["batch_size=4"], seed=5, output="out")
    header = json.loads((tmp_path / "out" / "sweep.json").read_text())
    assert header["grid"]["cluster.nodes"] == ["2", "[1, 8]"]
    assert header["points"] == 4
    assert header["overrides"] == ["batch_size=4"]
    assert header["seed"] == 5
    assert header["first_point"]["cluster"]["nodes"] == [2]
    assert {"gcsim", "python", "torch"} <= header["versions"].keys()
    document = json.loads((tmp_path / "out" / "results.json").read_text())
    for point, entry in zip(swept.points, document["points"], strict=True):
        assert point.result is not None
        stored = json.loads((tmp_path / "out" / entry["file"]).read_text())
        assert stored["point"] == entry["point"] == point.values
        whole = [{k: row[k] for k in row if k not in LISTS} for row in stored["rows"]]
        assert whole == entry["rows"]  # the draws stand in the point's file alone
        assert tuple(map(row_from, stored["rows"])) == point.result.rows
        assert stored["provenance"] == point.result.provenance


def test_a_sweep_of_any_size_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`results.json` grows with the points; what one file may hold does not."""
    swept = sweep("small.yaml", {"cluster.nodes": [1, 2, 3]}, output="out")
    largest = max(path.stat().st_size for path in (tmp_path / "out" / "points").iterdir())
    monkeypatch.setattr("gcsim.scenarios.sweeps.store.LARGEST", 100)
    monkeypatch.setattr("gcsim.json_file.LARGEST", largest)
    again = read_sweep(tmp_path / "out")
    assert [point.values for point in again.points] == [point.values for point in swept.points]
    assert again.rows == swept.rows


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_space(*arguments: object) -> None:
        raise InputError("cannot write: No space left on device")

    monkeypatch.setattr(store, "store", no_space)


@pytest.mark.usefixtures("full_disk")
def test_a_full_disk_ends_the_sweep_in_words() -> None:
    said = refused(lambda: sweep("small.yaml", {"cluster.nodes": [1, 2]}, output="out"))
    assert said == ["error: cannot write: No space left on device"]
