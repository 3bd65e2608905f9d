"""`gcsim reproduce` as people use it: the screen, the files, a mistake."""

from __future__ import annotations

import json
from pathlib import Path

from tests.command import gcsim


def test_the_table_stands_on_stdout_and_files_in_the_folder(tmp_path: Path) -> None:
    where = {"GCSIM_CACHE_DIR": str(tmp_path / "cache")}
    done = gcsim("reproduce", "ce_sgd_table1", "--quick", "--jobs", 1, folder=tmp_path,
                 COLUMNS="80", **where)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("ce_sgd_table1: Cost of a round, and accuracy\n")
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert "The reduced size" in done.stdout
    dense = next(line for line in done.stdout.splitlines() if line.startswith("BaseLine"))
    assert dense.split()[1:4] == ["100", "100", "77.55"]  # Table I prints 66 MB, 77.55 %
    folder = tmp_path / "runs/ce_sgd_table1_quick"
    names = {"reproduction.json", "numbers.csv", "scenario_1.yaml", "figure.png"}
    assert {path.name for path in folder.iterdir()} == names
    again = gcsim("reproduce", "ce_sgd_table1", "--quick", "-q", "--json", folder=tmp_path, **where)
    assert again.stderr == ""
    assert again.stdout == (folder / "reproduction.json").read_text(encoding="utf-8")
    assert json.loads(again.stdout)["name"] == "ce_sgd_table1"


def test_an_unknown_preset_is_told_with_a_suggestion(tmp_path: Path) -> None:
    done = gcsim("reproduce", "orq_figure1", folder=tmp_path)
    assert done.returncode == 2
    assert "unknown preset 'orq_figure1'; did you mean 'orq_fig1'?" in done.stderr
    assert not (tmp_path / "runs").exists()
