"""The process that compiles beside a run: what it runs, when there is one, and that it ends."""

from __future__ import annotations

import io
import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gcsim.scenarios.load import load_scenario
from gcsim.scenarios.running import compiling


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Processes that `compiled_beside` started."""
    found: list[Any] = []

    class Noted(subprocess.Popen[bytes]):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            found.append(self)

    monkeypatch.setattr(subprocess, "Popen", Noted)
    return found


def _marks_in(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def marks(scenario: Any) -> list[Path]:
        return [folder / f"{name}.mark" for name in [*compiling._own(scenario), "cluster"]]

    monkeypatch.setattr(compiling, "_marks", marks)


def test_it_runs_the_cluster_and_all_methods_to_their_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mark stands for code that ran: without an error, on a bucket of 224,000 elements."""
    scenario = load_scenario("lenet_2node")
    _marks_in(tmp_path, monkeypatch)
    monkeypatch.setattr(compiling, "_leave_with_the_run", lambda: None)
    stdin = io.TextIOWrapper(io.BytesIO(pickle.dumps(scenario)))
    monkeypatch.setattr(sys, "stdin", stdin)
    compiling.serve()
    kinds = {choice.kind for choice in scenario.compressors}
    assert {path.stem for path in tmp_path.iterdir()} == {*kinds, "cluster"}


def test_one_process_while_something_is_left_and_two_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, started: list[Any]
) -> None:
    scenario = load_scenario("lenet_2node")
    _marks_in(tmp_path, monkeypatch)
    monkeypatch.setattr(compiling, "threads", lambda: 1)
    with compiling.compiled_beside(scenario):
        assert not started
    monkeypatch.setattr(compiling, "threads", lambda: 2)
    beside = compiling.compiled_beside(scenario)
    beside.__enter__()
    assert started[0].poll() is None
    assert not beside.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    assert started[0].returncode is not None
    for path in compiling._marks(scenario):
        path.touch()
    with compiling.compiled_beside(scenario):
        assert len(started) == 1


def test_it_leaves_when_the_run_is_killed() -> None:
    """The system closes the pipe of a process that is gone."""
    child = subprocess.Popen(
        [sys.executable, "-c", compiling._START, json.dumps(sys.path)], stdin=subprocess.PIPE
    )
    child.communicate(pickle.dumps(load_scenario("lenet_2node")), timeout=60)
    assert child.returncode == 0
