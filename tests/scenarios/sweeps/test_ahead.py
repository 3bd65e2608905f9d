"""Loops are compiled ahead where that saves time, and by a scenario that runs."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gcsim.scenarios.load import load_scenario, shipped_scenarios
from gcsim.scenarios.progress import SilentProgress
from gcsim.scenarios.sweeps import ahead
from gcsim.scenarios.sweeps.tasks import Failure, Task

LARGE = "alexnet_32node"


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Tasks given to other processes, on a machine of two cores without compiled loops."""
    tasks: list[Any] = []

    class Workers:
        def __init__(self, jobs: int, *, side_by_side: bool) -> None:
            assert (jobs, side_by_side) == (1, True)

        def start(self, number: int, task: Any) -> None:
            tasks.append(task)

        def close(self) -> None:
            tasks.append("closed")

    monkeypatch.setattr(ahead, "LocalWorkers", Workers)
    monkeypatch.setattr(ahead, "usable", lambda: [0, 1])
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "loops"))
    return tasks


def test_a_second_process_compiles_until_the_first_is_done(started: list[Any]) -> None:
    scenario = load_scenario(LARGE)
    with ahead.compiling_ahead(scenario):
        assert len(started) == 1
    task, closed = started
    assert closed == "closed"
    assert task.scenario.compressors == scenario.compressors
    assert task.scenario.model.name == "lenet"


@pytest.mark.parametrize("why", ["compiled already", "a small model", "one core"])
def test_nothing_is_started_where_it_saves_no_time(
    started: list[Any], why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if why == "compiled already":
        (tmp_path / "loops").mkdir()
    if why == "one core":
        monkeypatch.setattr(ahead, "usable", lambda: [0])
    with ahead.compiling_ahead(load_scenario("lenet_2node" if "small" in why else LARGE)):
        assert not started


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(shipped_scenarios()))
def test_the_small_scenario_runs(name: str, own_cache: None) -> None:
    small = ahead.small_like(load_scenario(name))
    if small is not None:
        found = Task(scenario=replace(small, draws=4)).perform(SilentProgress())
        assert not isinstance(found, Failure), found
