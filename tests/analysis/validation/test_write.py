"""Files of a validation: complete, cited, and the same each time."""

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from gcsim.analysis.validation.report.table import point_rows
from gcsim.analysis.validation.report.write import page_text, points_csv, to_json, write
from tests.analysis.validation.reports import SOURCE, point, report


def test_everything_is_there(tmp_path: Path) -> None:
    paths = write([report()], tmp_path / "new")
    assert {path.name for path in paths} == {
        "validation.md", "validation.json", "points.csv", "errors.png", "scatter.png",
        "example.png",
    }  # fmt: skip
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == sorted(
        path.name for path in paths
    )
    assert all(path.stat().st_size > 0 for path in paths)


def test_figures_are_the_same_bytes_each_time(tmp_path: Path) -> None:
    first, second = write([report()], tmp_path / "a"), write([report()], tmp_path / "b")
    for one, other in zip(first, second, strict=True):
        assert one.read_bytes() == other.read_bytes(), one.name


def test_no_text_of_a_figure_is_a_formula(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Labels are not parsed as mathtext, so ticks must not be written in it."""
    written: list[str] = []
    save = Figure.savefig

    def watched(self: Figure, *args: Any, **options: Any) -> None:
        save(self, *args, **options)
        texts = self.findobj(Text)
        written.extend(text.get_text() for text in texts if isinstance(text, Text))

    monkeypatch.setattr(Figure, "savefig", watched)
    write([report()], tmp_path)
    assert "0.1" in written  # ticks are among them
    assert not [text for text in written if "$" in text]


def test_every_point_keeps_its_citation_and_full_precision() -> None:
    rows = list(csv.DictReader(points_csv([report()]).splitlines()))
    assert len(rows) == 7
    assert {row["source"] for row in rows} == {SOURCE}
    assert float(rows[1]["error"]) == 1.01 / 1.0 - 1
    assert [row["fitted"] for row in rows] == ["True"] + ["False"] * 6


def test_json_holds_points_bounds_errors_and_verdicts() -> None:
    content = json.loads(to_json([report(limit=0.02)]))
    assert content["kept"] is False
    (suite,) = content["suites"]
    assert [bound["kept"] for bound in suite["bounds"]] == [False, False, True]
    assert suite["series"]["ring"]["points"] == 4
    assert suite["series"]["ring"]["worst"][0] == "ring 4"
    assert suite["statements"][0]["agrees"] is False
    assert len(suite["points"]) == 7


def test_the_page_names_sources_fits_exclusions_and_what_is_missing() -> None:
    text = page_text([report()], "images/")
    for part in (
        SOURCE,
        "| ring | goodput | 950 MB/s | 940 MB/s | 2 |",
        "| ring | step | 100 ms |  | given |",
        "12 rows: they contradict themselves",
        "everything else",
        "**wrong**",
        "![Rings somewhere: curves](images/example.png)",
        f"| ring 4 | 1.00 s | 1.10 s | +10.0 | {SOURCE} |",
    ):
        assert part in text


def test_a_citation_with_an_address_is_a_link() -> None:
    cited = "nccl-tests issue 212, by hand, https://example.org/212, 2024-05-06, read-in-source"
    (row,) = point_rows([replace(point(1, 0.0), source=cited)])
    assert row[-1] == "[nccl-tests issue 212, by hand](https://example.org/212)"
