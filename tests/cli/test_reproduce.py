"""`gcsim reproduce` as people use it: the screen, the files, a mistake."""

import json
from pathlib import Path
from statistics import median

import pytest

from tests.command import gcsim


@pytest.mark.long
def test_the_table_stands_on_stdout_and_files_in_the_folder(tmp_path: Path) -> None:
    done = gcsim("reproduce", "orq_fig1", "--quick", folder=tmp_path, COLUMNS="80",
                 GCSIM_CACHE_DIR=str(tmp_path / "cache"))  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[1] == "Xu, Huo and Huang, arXiv:2002.11082, Figure 1"
    assert max(map(len, lines)) <= 80
    assert "Reduced size" in done.stdout
    folder = tmp_path / "runs/orq_fig1_quick"
    names = {"reproduction.json", "numbers.csv", "figure.png"}
    names |= {f"scenario_{number}.yaml" for number in (1, 2, 3)}  # of three phases of a training
    assert {path.name for path in folder.iterdir()} == names
    assert f"Written to {folder.relative_to(tmp_path)}" in done.stderr
    outcome = json.loads((folder / "reproduction.json").read_text(encoding="utf-8"))["outcome"]
    error = {cell["row"]: median(cell["here"]) for cell in outcome["cells"]
             if cell["column"] == "error [%]"}  # fmt: skip
    shown = next(line for line in lines if line.startswith("ORQ-9")).split()
    assert float(shown[-1]) == pytest.approx(error["ORQ-9"], rel=5e-3)  # three digits
    words = [verdict["agrees"] for verdict in outcome["verdicts"]]
    assert [line.split()[0] for line in lines if line.startswith(("agrees", "disag"))] == words


def test_an_unknown_preset_is_told_with_a_suggestion(tmp_path: Path) -> None:
    done = gcsim("reproduce", "orq_figure1", folder=tmp_path)
    assert done.returncode == 2
    assert "unknown preset 'orq_figure1'; did you mean 'orq_fig1'?" in done.stderr
    assert not (tmp_path / "runs").exists()
