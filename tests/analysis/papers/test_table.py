"""Published and reproduced numbers are shown side by side, within 80 cells, and drawn."""

import csv
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

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


def test_accuracies_have_an_axis_of_the_distance_from_100_percent() -> None:
    """Equal factors of the error are equally far apart: 80 and 90 %, 90 and 95 %, 98 and 99 %. An
    accuracy of 100 % has a place."""
    lines = (Line(label="SGD", x=(0.0, 1.0), y=(80.0, 99.0)), Line(label="b", x=(0.0,), y=(100.0,)))
    panel = Panel(title="", x="steps", y="accuracy held out [%]", lines=lines)
    outcome = replace(FOUND.outcome, panels=(panel,))
    (axes,) = figure(replace(FOUND, outcome=outcome)).axes
    place = axes.transData.transform
    heights = [place((0, value))[1] for value in (80, 90, 95, 98, 99, 100)]
    steps = [after - before for before, after in pairwise(heights)]
    assert steps[0] == pytest.approx(steps[1]) == pytest.approx(steps[3])
    assert np.isfinite(heights).all()
    # twenty times the best final error, taken as half a percent at least
    assert axes.get_ylim()[0] == pytest.approx(90)
    assert axes.get_xlabel() == "steps"


def test_a_line_that_stops_has_a_cross_at_its_end_and_says_what_it_means() -> None:
    line = Line(label="ours", x=(0.0, 1.0, 2.0), y=(10.0, 50.0, 30.0), stopped=True)
    panel = Panel(title="", x="steps", y="loss", lines=(line,))
    (axes,) = figure(replace(FOUND, outcome=replace(FOUND.outcome, panels=(panel,)))).axes
    crosses = [[np.asarray(values).tolist() for values in drawn.get_data()]
               for drawn in axes.get_lines() if drawn.get_marker() == "x"]  # fmt: skip
    assert crosses == [[[2.0], [30.0]]]
    assert "cross: a run ends early" in axes.get_xlabel()


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
