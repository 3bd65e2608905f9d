"""Does `make same` see what differs, and nothing else?"""

import json
from pathlib import Path

import pytest

from tests.same import _compare


def _files(folder: Path, name: str, old: str, new: str) -> tuple[Path, Path]:
    paths = folder / f"old-{name}", folder / f"new-{name}"
    for path, text in zip(paths, (old, new), strict=True):
        path.write_text(text, encoding="utf-8")
    return paths


def test_results_differ_in_anything_but_what_a_run_took_and_which_code_ran(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = {"seed": 0, "profiles": {"dense": "1f"}}
    results = {"rows": [{"iteration_s": 0.1}], "wall": {"simulation_s": 3}, "provenance": made}
    slower = results | {"wall": {"simulation_s": 9}, "provenance": made | {"profiles": {}}}
    other = results | {"rows": [{"iteration_s": 0.2}]}
    texts = [json.dumps(one) for one in (results, slower, other)]
    assert _compare("a", *_files(tmp_path, "1.json", texts[0], texts[1])) == 0
    assert _compare("a", *_files(tmp_path, "2.json", texts[0], texts[2])) == 1
    assert "rows[0].iteration_s: 0.1 -> 0.2" in capsys.readouterr().out


def test_a_line_that_goes_shifts_no_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _compare("page.md", *_files(tmp_path, "1.md", "a\nb\n", "a\nb\n")) == 0
    assert _compare("page.md", *_files(tmp_path, "2.md", "a\nb\nc\nd\n", "b\nc\ne\n")) == 1
    assert _compare("page.md", tmp_path / "old-2.md", tmp_path / "none") == 1
    told = capsys.readouterr().out
    assert [line.strip() for line in told.splitlines() if line[0] == " "] == ["-a", "-d", "+e"]
    assert "MISSING  page.md" in told
