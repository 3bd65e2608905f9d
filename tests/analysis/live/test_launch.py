"""The ranks' program on the machine's own loopback, without namespaces or rights."""

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from gcsim.analysis.live.launch import Loopback, environment, run_tasks, times_of
from gcsim.analysis.live.plan import (
    RANK_PLAN,
    AloneTask,
    CollectiveTask,
    RankPlan,
    Round,
    Task,
    TrainingTask,
    default_plan,
)
from gcsim.errors import InputError

if sys.platform != "linux":
    pytest.skip("Gloo's loopback interface is called lo on Linux", allow_module_level=True)


def _round(*tasks: Task, ranks: int = 2) -> Round:
    return Round(ranks=ranks, rate=0, tasks=tasks)


class _Noted(Loopback):
    """Notes what was started."""

    def __init__(self) -> None:
        self.commands: list[list[str]] = []

    def command(self, rank: int, command: Sequence[str]) -> list[str]:
        self.commands.append(list(command))
        return list(command)

    def left(self) -> list[str]:
        """Processes that still run one of the commands."""
        found = []
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit():
                try:
                    words = (folder / "cmdline").read_bytes().split(b"\0")
                except OSError:
                    continue
                if [w.decode(errors="replace") for w in words if w] in self.commands:
                    found.append(folder.name)
        return found


@pytest.mark.long
def test_collectives_and_training_give_a_time_for_each_repeat_and_step() -> None:
    place = _Noted()
    tasks = (
        CollectiveTask(kind="all_reduce", nbytes=40_000, repeats=3),
        CollectiveTask(kind="all_gather", nbytes=4_000, repeats=2),
        TrainingTask(compressor="topk", parameters={"ratio": 0.01}, label="top-k", steps=3),
    )
    told: list[int] = []
    begun = time.monotonic()
    of_tasks = run_tasks(place, _round(*tasks), batch=4, seed=1, seconds=90, advance=told.append)
    found = list(map(times_of, of_tasks))
    took = time.monotonic() - begun
    assert told == [0, 1, 2]
    assert [len(times.seconds) for times in found] == [3, 2, 3]
    assert all(second > 0 for times in found for second in times.seconds)
    assert sum(second for times in found for second in times.seconds) < took
    assert all(times.replicas_agree for times in found)
    assert place.left() == []


@pytest.mark.long
def test_one_rank_by_itself_times_its_passes_and_records_gradients(tmp_path: Path) -> None:
    from gcsim.traces.storage.manifest import read_manifest

    trace = tmp_path / "trace"
    method = TrainingTask(compressor="topk", label="top-k", steps=1)
    task = AloneTask(steps=3, workers=2, trace=str(trace), methods=(method,))
    [[found]] = run_tasks(Loopback(), _round(task, ranks=1), batch=4, seed=0, seconds=60)
    assert min(found["forward"], found["backward"], found["optimizer"]) > 0
    assert found["hooks"]["top-k"] >= 0
    assert 0 <= found["variation"] < 10
    manifest = read_manifest(trace)
    assert manifest.workers == 2


@pytest.mark.long
def test_a_rank_that_fails_ends_all_and_its_last_words_are_told() -> None:
    place = _Noted()
    task = TrainingTask(compressor="qsparse_local_sgd", label="local", steps=1)
    with pytest.raises(InputError, match="workers hold different models"):
        run_tasks(place, _round(task), batch=4, seed=0, seconds=60)
    assert len(place.commands) == 2
    assert place.left() == []


@pytest.mark.long
def test_time_is_bounded() -> None:
    place = _Noted()
    task = CollectiveTask(kind="all_reduce", nbytes=64_000_000, repeats=100_000)
    begun = time.monotonic()
    with pytest.raises(InputError, match="not done in time; task 1 of 1"):
        run_tasks(place, _round(task), batch=4, seed=0, seconds=2)
    assert time.monotonic() - begun < 12
    assert place.left() == []


def test_nothing_of_another_launcher_reaches_a_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LOCAL_WORLD_SIZE", "LOCAL_RANK", "RANK", "WORLD_SIZE"):
        monkeypatch.setenv(name, "2")
    monkeypatch.setenv("PYTHONPATH", "/mine")
    own = environment("net0")
    assert not {"LOCAL_WORLD_SIZE", "LOCAL_RANK", "RANK", "WORLD_SIZE"} & set(own)
    assert own["GLOO_SOCKET_IFNAME"] == "net0"
    assert own["OMP_NUM_THREADS"] == "1"
    assert own["PYTHONPATH"].split(os.pathsep)[-1] == "/mine"


@pytest.mark.parametrize("quick", [False, True])
def test_a_plan_reads_back_as_it_was_written(quick: bool) -> None:
    plan = default_plan(quick=quick)
    alone = AloneTask(steps=3, workers=2, trace="here", methods=plan.training)
    for tasks in (*(one.tasks for one in (*plan.rounds, *plan.calibration, *plan.links)), (alone,)):
        own = RankPlan(tasks=tasks, batch=7, seed=3)
        assert RANK_PLAN.validate_json(RANK_PLAN.dump_json(own)) == own


@pytest.mark.parametrize("quick", [False, True])
def test_what_the_host_is_fitted_on_is_not_judged(quick: bool) -> None:
    plan = default_plan(quick=quick)
    judged = {(one.rate, task.name) for one in plan.rounds for task in one.tasks}
    fitted = {(one.rate, task.name) for one in plan.calibration for task in one.tasks}
    assert not judged & fitted
    sizes = {name for _, name in judged} & {name for _, name in fitted}
    assert not sizes
