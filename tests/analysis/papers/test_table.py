"""Published and reproduced numbers are shown side by side, within 80 cells, and drawn."""

import csv
from pathlib import Path

from gcsim.analysis.papers.picture import figure
from gcsim.analysis.papers.table import draw_reproduction, parts, summary, write_reproduction
from gcsim.analysis.report.answer import plain
from gcsim.scenarios.papers.preset import Cell, Line, Outcome, Panel, Reproduction, Verdict

LONG = "a method whose name takes half of a line, and some"


def verdict(agrees: str) -> Verdict:
    return Verdict(
        claim="a claim " * 15, where="Table 1", printed="a > b", here="1 of 1 pairs kept",
        agrees=agrees,  # type: ignore[arg-type]
    )  # fmt: skip


FOUND = Reproduction(
    name="mine_table1",
    title="Accuracy and ratio",
    source="Somebody, 2020, Table 1",
    quick=False,
    scenarios=({"name": "mine"},),
    outcome=Outcome(
        cells=(
            Cell(row=LONG, column="accuracy [%]", printed=76.41, here=(90.0, 92.0, 97.0)),
            Cell(row=LONG, column="ratio [x]", printed=12822.4, here=(100.0, 300.0, 200.0)),
            Cell(row="short", column="accuracy [%]", printed=None, here=(1.0,)),
        ),
        verdicts=(verdict("agrees"), verdict("disagrees"), verdict("agrees")),
        panels=(
            Panel(title="lines", x="steps", y="accuracy", lines=(
                Line(label=LONG, x=(1.0, 2.0), y=(3.0, 4.0), low=(2.0, 3.0), high=(4.0, 5.0)),
                Line(label="short", x=(1.0, 2.0), y=(3.0, 3.5)),
            )),
            Panel(title="points", x="ratio", y="accuracy", log_x=True, points=True, lines=(
                Line(label=LONG, x=(200.0,), y=(92.0,), low=(90.0,), high=(97.0,)),
            )),
        ),
        notes=("what is not as in the paper",),
    ),
)  # fmt: skip


def test_printed_and_here_stand_side_by_side_within_80_cells() -> None:
    text = plain(parts(FOUND), 80)
    assert max(map(len, text.splitlines())) <= 80
    rows = [line.split() for line in text.splitlines()]
    first = next(row for row in rows if "76.41" in row)
    assert first[-4:] == ["76.41", "92.0", "12822.4", "200"]  # medians of the seeds
    assert next(row for row in rows if row[:1] == ["short"]) == ["short", "-", "1.00", "-", "-"]
    assert "median of 3 seeds" in text
    assert "ratio: bytes of float32 gradients over the bytes sent." in text
    assert "2 agree, 1 disagrees" in " ".join(text.split())
    assert "what is not as in the paper" in text


def test_the_summary_counts_each_kind() -> None:
    assert summary(FOUND.outcome.verdicts) == "2 agree, 1 disagrees"


def test_the_picture_has_every_panel_and_every_line() -> None:
    axes = figure(FOUND).axes
    assert [one.get_title(loc="left") for one in axes] == ["lines", "points"]
    drawn = {line.get_label() for one in axes for line in one.get_lines()}
    assert {LONG, "short"} <= drawn
    assert axes[1].get_xscale() == "log"


def test_files_hold_the_numbers_by_seed(tmp_path: Path) -> None:
    paths = write_reproduction(FOUND, tmp_path) + draw_reproduction(FOUND, tmp_path)
    names = {"reproduction.json", "numbers.csv", "scenario_1.yaml", "figure.png"}
    assert {path.name for path in paths} == names == {p.name for p in tmp_path.iterdir()}
    with (tmp_path / "numbers.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert lines[0] == {
        "row": LONG, "column": "accuracy [%]", "printed": "76.41", "here": "90.0 92.0 97.0",
    }  # fmt: skip
    assert lines[2]["printed"] == ""
