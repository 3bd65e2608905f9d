"""Does `make same` see what differs, and nothing else?"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.same import _compare


def _files(folder: Path, name: str, old: str, new: str) -> tuple[Path, Path]:
    paths = folder / f"old-{name}", folder / f"new-{name}"
    for path, text in zip(paths, (old, new), strict=True):
        path.write_text(text, encoding="utf-8")
    return paths


def test_results_differ_in_anything_but_what_a_run_took(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = {"rows": [{"iteration_s": 0.1}], "wall": {"simulation_s": 3}}
    slower = results | {"wall": {"simulation_s": 9}}
    other = results | {"rows": [{"iteration_s": 0.2}]}
    texts = [json.dumps(one) for one in (results, slower, other)]
    assert _compare("a/results.json", *_files(tmp_path, "1", texts[0], texts[1])) == 0
    assert _compare("a/results.json", *_files(tmp_path, "2", texts[0], texts[2])) == 1
    assert "rows[0].iteration_s: 0.1 -> 0.2" in capsys.readouterr().out


def test_pages_differ_by_line_and_by_length(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _compare("page.md", *_files(tmp_path, "1", "a\nb\n", "a\nb\n")) == 0
    assert _compare("page.md", *_files(tmp_path, "2", "a\nb\n", "a\nc\nd\n")) == 1
    assert _compare("page.md", tmp_path / "old-2", tmp_path / "none") == 1
    told = capsys.readouterr().out
    assert "line 2: b -> c" in told
    assert "2 -> 3 lines" in told
    assert "MISSING  page.md" in told
