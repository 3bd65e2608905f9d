"""`gcsim validate` as people and scripts use it: what is shown, what is left behind, exit codes."""

import json
import re
from pathlib import Path

import pytest

from tests.command import Finished, gcsim

YAML = """\
title: My cluster
source: my notebook
layers: [layers.csv]
scenario:
  model: two
  batch_size: 10
  cluster: {{nodes: 1, device: v100, network: 1gbe}}
groups: {{alone: {{traffic.grouping: none}}}}
bounds: [{{name: my runs, limit: {limit}}}]
"""
FILES = {
    "suite.yaml": YAML.format(limit=0.05),
    "layers.csv": "model,elements,forward_flops\ntwo,500000,0\ntwo,500000,0\n",
    "rows.csv": "# steps of one device\nname,group,series,measured,unit,compute.step\n"
    + "".join(f"run {n},alone,my runs,1.0,s,{1 + n / 100} s\n" for n in range(1, 6)),
    "page.md": "# Mine\n\n## Measured\n\nBy hand.\n",
}


def validate(*arguments: str, folder: Path, code: int = 0, path: str | None = None) -> Finished:
    variables = {"COLUMNS": "80"} | ({} if path is None else {"PATH": path})
    ran = gcsim("validate", *arguments, folder=folder, **variables)
    assert ran.returncode == code, ran.stderr
    return ran


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with two suites, of which one breaks its bound."""
    for name, limit in (("mine", 0.05), ("strict", 0.02)):
        (tmp_path / name).mkdir()
        files = FILES | {"suite.yaml": YAML.format(limit=limit)}
        for file, text in files.items():
            (tmp_path / name / file).write_text(text)
    return tmp_path


def test_ones_own_suite_is_run_shown_and_written(folder: Path) -> None:
    ran = validate("mine/", folder=folder)
    # errors of 1, 2, 3, 4 and 5 %
    assert "my runs  median 3.0 % of 5 points (catalogue alone: 3.0 %)" in ran.stdout
    assert "Written to runs/validation_mine" in ran.stderr
    names = {path.name for path in (folder / "runs" / "validation_mine").iterdir()}
    assert names == {
        "validation.md", "validation.json", "points.csv", "errors.png", "scatter.png",
    }  # fmt: skip


def test_a_broken_bound_is_exit_code_1_and_nothing_is_lost(folder: Path) -> None:
    ran = validate("strict", "-o", "out", folder=folder, code=1)
    assert re.search(r"^my runs  median 3.0 % .* BROKEN$", ran.stdout, re.MULTILINE)
    assert ran.stderr.splitlines()[-1] == "error: 1 of 1 bounds are broken: my runs"
    assert (folder / "out" / "validation.json").is_file()


def test_json_is_all_of_stdout(folder: Path) -> None:
    content = json.loads(validate("mine", "--json", folder=folder).stdout)
    assert content["suites"][0]["series"]["my runs"]["median"] == pytest.approx(0.03)


def test_a_name_that_is_no_suite_is_exit_code_2(folder: Path) -> None:
    ran = validate("grase", folder=folder, code=2)
    assert "SUITE: error: no suite is called 'grase'; did you mean 'grace'?" in ran.stderr
    assert not (folder / "runs").exists()
    ran = validate("zzz", folder=folder, code=2)  # as no suite: all are named, in a sentence
    assert "; known: " in ran.stderr
    assert ". Or name a folder of your own" in " ".join(ran.stderr.split())


def test_live_is_skipped_beside_other_suites_where_it_cannot_run(folder: Path) -> None:
    # no `ip` and no `tc` in an empty folder of commands
    ran = validate("mine", "--live", folder=folder, path=str(folder))
    assert "the live suite is skipped: there is no command 'ip'; install" in ran.stderr
    assert re.search(r"^my runs  median 3.0 % .* yes$", ran.stdout, re.MULTILINE)


def test_live_alone_without_its_commands_is_exit_code_2(folder: Path) -> None:
    ran = validate("--live", folder=folder, code=2, path=str(folder))
    assert "--live: " in ran.stderr
    assert not (folder / "runs").exists()


@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        ("rows.csv", "run 2", "run 1", "suite mine: error: two points are called 'run 1'"),
        ("rows.csv", "1.0,s,1.02", "0.0,s,1.02", "suite mine: error: 'run 2' has no error"),
        ("rows.csv", "1.0,s,1.02", "1.0,ms,1.02", "mine/rows.csv:4:5: error: unit: 'ms'"),
        ("suite.yaml", "layers.csv", "nowhere.csv", "nowhere.csv"),
    ],
)
def test_what_is_wrong_with_ones_own_suite_is_not_called_a_bug(
    folder: Path, file: str, old: str, new: str, said: str
) -> None:
    text = FILES[file]
    assert old in text
    (folder / "mine" / file).write_text(text.replace(old, new))
    ran = validate("mine", folder=folder, code=2)
    assert said in ran.stderr
    assert "please report" not in ran.stderr
    assert not (folder / "runs").exists()


def test_two_suites_of_one_name_and_quick_without_live_are_refused(folder: Path) -> None:
    (folder / "other").mkdir()
    (folder / "strict").rename(folder / "other" / "mine")
    ran = validate("mine", "other/mine", folder=folder, code=2)
    assert "two suites are called 'mine'" in ran.stderr
    assert "--live is not given" in validate("--quick", folder=folder, code=2).stderr


def test_statements_alone_need_no_scatter(folder: Path) -> None:
    ran = validate("papers", "-o", "out", folder=folder)
    assert re.search(r"^statements: .* all +yes$", ran.stdout, re.MULTILINE)
    assert not (folder / "out" / "scatter.png").exists()
