"""`gcsim validate` as people and scripts use it: what is shown, what is left behind, exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SUITE = """\
from gcsim.analysis.validation.suite import Bound, Findings, Point, Suite

def find():
    return Findings(points=tuple(
        Point(name=f"run {n}", series="my runs", unit="s", measured=1.0, predicted=1.0 + n / 100,
              unfitted=None, source="my notebook", workers=2)
        for n in range(1, 6)))

def suite(limit):
    return Suite(name="mine", title="My cluster", about="", fitted_on="", find=find,
                 bounds=(Bound(name="my runs", limit=limit),))

GOOD, BAD, NONE = suite(0.05), suite(0.02), 3
"""


def validate(
    *arguments: str, folder: Path, code: int = 0, path: str | None = None
) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "COLUMNS": "80", "OMP_NUM_THREADS": "1"}
    if path is not None:
        environment["PATH"] = path
    ran = subprocess.run(
        [sys.executable, "-m", "gcsim", "validate", *arguments], cwd=folder, env=environment,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == code, ran.stderr
    return ran


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where a user's own suite lies."""
    (tmp_path / "mine.py").write_text(SUITE)
    return tmp_path


def test_ones_own_suite_is_run_shown_and_written(folder: Path) -> None:
    ran = validate("mine:GOOD", folder=folder)
    # errors of 1, 2, 3, 4 and 5 %
    assert "kept   my runs: median 3.0 % of 5 points, at most 5 % asked" in ran.stdout
    assert "Written to runs/validation" in ran.stderr
    names = {path.name for path in (folder / "runs" / "validation").iterdir()}
    assert names == {"validation.md", "validation.json", "points.csv", "scatter.png"}


def test_a_broken_bound_is_exit_code_1_and_nothing_is_lost(folder: Path) -> None:
    ran = validate("mine:BAD", "-o", "out", folder=folder, code=1)
    assert "BROKEN my runs: median 3.0 %" in ran.stdout
    assert ran.stderr.splitlines()[-1] == "error: 1 of 1 bounds are broken: my runs"
    assert (folder / "out" / "validation.json").is_file()


def test_json_is_all_of_stdout(folder: Path) -> None:
    content = json.loads(validate("mine:GOOD", "--json", folder=folder).stdout)
    assert content["suites"][0]["series"]["my runs"]["median"] == pytest.approx(0.03)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("grase", "SUITE: no suite is called 'grase'; did you mean 'grace'?"),
        ("nowhere:SUITE", "SUITE: cannot import suite 'nowhere:SUITE': ModuleNotFoundError"),
        ("mine:NONE", "SUITE: 'mine:NONE' is a int, not a suite"),
    ],
)
def test_a_name_that_is_no_suite_is_exit_code_2(folder: Path, name: str, said: str) -> None:
    ran = validate(name, folder=folder, code=2)
    assert said in ran.stderr.replace("error: ", "")
    assert not (folder / "runs").exists()


def test_live_is_skipped_beside_other_suites_where_it_cannot_run(folder: Path) -> None:
    # no `ip` and no `tc` in an empty folder of commands
    ran = validate("mine:GOOD", "--live", folder=folder, path=str(folder))
    assert "the live suite is skipped: there is no command 'ip'; install" in ran.stderr
    assert "kept   my runs" in ran.stdout


def test_live_alone_without_its_commands_is_exit_code_2(folder: Path) -> None:
    ran = validate("--live", folder=folder, code=2, path=str(folder))
    assert "--live: " in ran.stderr
    assert not (folder / "runs").exists()
