"""Long trajectories are made one after another, and a kill loses none that was written."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from gcsim.scenarios.load import load_scenario
from gcsim.scenarios.trained import make_shipped
from gcsim.scenarios.trained import search as searching
from gcsim.scenarios.trained.horizon import foreseen
from gcsim.scenarios.trained.runs import plan_of
from gcsim.scenarios.trained.search import known_of
from gcsim.traces.training import shipped
from tests.benchmarks import shipped_trajectories as maker
from tests.scenarios.trained.here import SMALL, here

ROOT = Path(__file__).parents[3]
TEXT = SMALL.replace("steps: 20", "steps: 40").replace("seeds: 1", "seeds: 2")
SCRIPT = """
import sys
from pathlib import Path
from gcsim.scenarios.trained import make_shipped
from gcsim.traces.training import shipped
from tests.benchmarks import shipped_trajectories as maker
make_shipped.LONG = ((Path(sys.argv[1]) / "small.yaml", ()),)
shipped.FOLDER = Path(sys.argv[1]) / "shipped"
maker.make_long()
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "small.yaml").write_text(TEXT)
    (tmp_path / "shipped").mkdir()
    monkeypatch.setattr(make_shipped, "LONG", ((tmp_path / "small.yaml", ()),))
    monkeypatch.setattr(shipped, "FOLDER", tmp_path / "shipped")
    monkeypatch.setenv("GCSIM_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / "shipped").glob("*.json.xz")}


def made_here(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Methods and seeds that this process trained."""
    work: list[Any] = []
    monkeypatch.setattr(searching, "LocalWorkers", here(work))
    maker.make_long()
    return [(run.choice.kind, run.seed) for run in work]


@pytest.mark.long
def test_a_killed_one_continues_where_it_was(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first file is there when the second trajectory begins, and stays."""
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(folder)],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        end = time.monotonic() + 90
        while not contents(folder) and time.monotonic() < end and process.poll() is None:
            time.sleep(0.02)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait(10)
    (kept,) = contents(folder).items()
    trained = made_here(monkeypatch)
    assert ("none", 0) not in trained
    assert [*dict.fromkeys(trained)] == [("topk", 0), ("none", 1), ("topk", 1)]
    parts = contents(folder)
    assert kept[0] in parts
    scenario = load_scenario(folder / "small.yaml")
    assert all(known_of(scenario, choice) for choice in scenario.compressors)
    assert made_here(monkeypatch) == []
    assert contents(folder) == parts
    for path in (folder / "shipped").iterdir():
        path.unlink()
    shipped.read.cache_clear()
    monkeypatch.setenv("GCSIM_CACHE_DIR", str(folder / "whole"))
    assert len(made_here(monkeypatch)) > len(trained)
    assert contents(folder) == parts


def test_trajectories_of_other_code_are_not_written(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = iter((1.0, 2.0))
    monkeypatch.setattr(maker, "_changed", lambda: next(times))
    with pytest.raises(maker.ChangedError):
        made_here(monkeypatch)
    assert not contents(folder)


@pytest.mark.parametrize(
    "name",
    [
        "characters_sgd",
        "characters_adamw",
        "characters_long",
        "characters_long_sgd",
        "textures_long",
        "textures_long_sgd",
        "characters_widths",
    ],
)
def test_a_named_long_scenario_trains_nothing(name: str) -> None:
    scenario = load_scenario(name)
    assert [one.label for one in scenario.compressors if not known_of(scenario, one)] == []


def test_the_long_scenarios_tell() -> None:
    """No method is too short, as far as parameters say; a series differs in its model alone."""
    alone = list(maker.long_trainings())
    assert [plan_of(one).seeds for one in alone] == sorted(plan_of(one).seeds for one in alone)
    named: dict[str, list[str]] = {}
    for one in alone:
        assert foreseen(one, plan_of(one).steps) == []
        if plan_of(one).seeds == 1:
            named.setdefault(one.name, []).append(one.model.name)
    assert {name: len(models) for name, models in named.items()} == {
        "characters_sgd": 12,
        "characters_adamw": 10,
        "characters_long": 16,
        "characters_long_sgd": 7,
        "textures_long": 16,
        "textures_long_sgd": 11,
        "characters_widths": 24,
    }
    assert len({*named["characters_widths"]}) == 3
    model = maker.first_run(alone[0]).facts["model"]
    assert isinstance(model, dict)
    assert "transformer" not in model  # fields at their defaults are in no file's name
    paths = {shipped.path_of(maker.first_run(one).facts) for one in alone}
    assert len(paths) == 12 + 10 + 16 + 7 + 16 + 11 + 24
