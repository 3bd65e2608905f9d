"""`gcsim validate` as people and scripts use it: what is shown, what is left behind, exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.command import Finished, gcsim

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

def wrong(**changes):
    from dataclasses import replace
    return replace(suite(0.05), find=lambda: Findings(
        points=tuple(replace(point, **changes) for point in find().points)))

GOOD, BAD, NONE = suite(0.05), suite(0.02), 3
FITTED, ZERO, UNIT = wrong(fitted=True), wrong(measured=0.0), wrong(unit="ms")
LOST = Suite(name="lost", title="", about="", fitted_on="", bounds=(),
             find=lambda: open("nowhere.csv"))
"""


def validate(*arguments: str, folder: Path, code: int = 0, path: str | None = None) -> Finished:
    variables = {"COLUMNS": "80"} | ({} if path is None else {"PATH": path})
    ran = gcsim("validate", *arguments, folder=folder, **variables)
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
    assert "Written to runs/validation_mine_GOOD" in ran.stderr
    names = {path.name for path in (folder / "runs" / "validation_mine_GOOD").iterdir()}
    assert names == {
        "validation.md", "validation.json", "points.csv", "errors.png", "scatter.png",
    }  # fmt: skip


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


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("FITTED", "5 of the 5 points of 'my runs' serve the fit, more than a third"),
        ("ZERO", "suite mine: "),
        ("UNIT", "points in 'ms'; units are s, samples/s, bytes, x"),
        ("LOST", "suite lost: error: FileNotFoundError: "),
    ],
)
def test_what_is_wrong_with_ones_own_suite_is_not_called_a_bug(
    folder: Path, name: str, said: str
) -> None:
    ran = validate(f"mine:{name}", folder=folder, code=2)
    assert said in ran.stderr
    assert "please report" not in ran.stderr
    assert not (folder / "runs").exists()


def test_two_suites_of_one_name_and_quick_without_live_are_refused(folder: Path) -> None:
    assert (
        "two suites are called 'mine'"
        in validate("mine:GOOD", "mine:BAD", folder=folder, code=2).stderr
    )
    assert "--live is not given" in validate("--quick", folder=folder, code=2).stderr


def test_statements_alone_need_no_scatter(folder: Path) -> None:
    ran = validate("papers", "-o", "out", folder=folder)
    assert "kept   statements" in ran.stdout
    assert not (folder / "out" / "scatter.png").exists()
