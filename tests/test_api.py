"""A result in a user's hands: rows, a frame, text, a notebook's table, a plot."""

import re
import sys
from dataclasses import fields, replace
from html.parser import HTMLParser
from types import SimpleNamespace
from typing import Any

import pytest

import gcsim
from gcsim.analysis.page.sweep import sweep_page
from gcsim.analysis.report.sweep import table_of
from gcsim.scenarios import result as of_run
from gcsim.scenarios.result import fastest_first
from gcsim.scenarios.sweeps.result import SweepPoint
from gcsim.scenarios.trained.known import _with_cost
from tests.analysis.conftest import METHODS, one_row

HOSTILE = "<script>alert('x')</script> & co"
ROWS = tuple(one_row(method, nodes) for method in METHODS[:3] for nodes in (2, 4))


def made(*rows: of_run.Row) -> gcsim.Result:
    return gcsim.Result(scenario={"name": "mine"}, provenance={}, rows=rows or ROWS, wall={})


def swept() -> gcsim.SweepResult:
    grid: dict[str, tuple[Any, ...]] = {"cluster.nodes": ([2, 4], 4), "seed": (0,)}
    points = tuple(
        SweepPoint(values={"cluster.nodes": nodes, "seed": 0}, result=made())
        for nodes in grid["cluster.nodes"]
    )
    return gcsim.SweepResult(grid=grid, versions={}, points=points)


class Cells(HTMLParser):
    """Texts by tag; a tag that no table has fails."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        assert tag in {"table", "caption", "thead", "tbody", "tr", "th", "td", "p"}, tag

    def handle_data(self, data: str) -> None:
        self.found.append(data)


def cells(text: str) -> list[str]:
    parser = Cells()
    parser.feed(text)
    parser.close()
    return parser.found


@pytest.fixture
def frames(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the place of pandas: what a frame is made of."""

    def frame(records: list[dict[str, Any]], columns: list[str]) -> Any:
        return columns, [[record[column] for column in columns] for record in records]

    monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(DataFrame=frame))


@pytest.mark.usefixtures("frames")
def test_a_frame_has_the_columns_and_rows_of_results_csv() -> None:
    columns, lines = made().to_frame()
    assert columns == list(gcsim.Result.columns())
    assert [dict(zip(columns, line, strict=True))["label"] for line in lines] == [
        row.label for row in ROWS
    ]
    run, own = columns[:5], columns[5:]
    assert run == ["scenario", "model", "seed", "device", "network"]
    assert lines[0][5:] == [getattr(ROWS[0], name) for name in own]


@pytest.mark.usefixtures("frames")
def test_a_sweeps_frame_begins_with_the_grids_keys() -> None:
    columns, lines = swept().to_frame()
    others = [name for name in gcsim.Result.columns() if name != "seed"]  # which is a grid's key
    assert columns == ["cluster.nodes", "seed", *others]
    # a list is a text in a cell, as in results.csv
    kind = columns.index("compressor")
    assert [[*line[:2], line[kind]] for line in lines] == [
        ["[2, 4]", 0, row.compressor] for row in ROWS
    ] + [[4, 0, row.compressor] for row in ROWS]


def test_rows_of_a_sweep_are_those_of_its_runs_with_their_point() -> None:
    names = [entry.name for entry in fields(of_run.Row)]
    for number, row in enumerate(swept().rows):
        assert isinstance(row, of_run.Row)
        plain = ROWS[number % len(ROWS)]
        assert [getattr(row, name) for name in names] == [getattr(plain, name) for name in names]
        assert row.point == {"cluster.nodes": ([2, 4], 4)[number // len(ROWS)], "seed": 0}


def test_without_pandas_a_frame_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(gcsim.InputError, match="pip install"):
        made().to_frame()
    with pytest.raises(gcsim.InputError, match="pip install"):
        swept().to_frame()


def test_a_repr_is_a_line_that_names_sizes_methods_and_the_fastest() -> None:
    best = fastest_first(row for row in ROWS if row.nodes == 4)[0]
    said = repr(made())
    assert "\n" not in said
    assert len(said) < 160
    for part in ("gcsim.Result mine", "methods 3", "nodes 2, 4", best.label):
        assert part in said
    known = [replace(row, speedup_to_target=1.0) for row in ROWS]
    assert f"; first to the target: {fastest_first(known)[0].label} (" in repr(made(*known))
    assert repr(swept()) == "<gcsim.SweepResult points 2; values: cluster.nodes 2, seed 1>"
    assert "nodes none" in repr(replace(made(), rows=()))


def test_a_notebook_shows_the_numbers_of_the_terminals_table_escaped() -> None:
    result = made(*(replace(row, label=HOSTILE) if row.nmse else row for row in ROWS[:4]))
    found = cells(result._repr_html_())
    assert HOSTILE in found
    words = result.summary(200).split()
    for text in found:
        for word in text.rstrip(".").split():
            assert any(word.strip(":;.") in one for one in (*words, HOSTILE, "[x]")), text


def test_a_sweeps_notebook_table_has_a_line_a_point() -> None:
    text = swept()._repr_html_()
    assert text.count("<tr>") == 1 + len(swept().points)
    assert "[2, 4]" in cells(text)
    assert "at 2 of 2 points (with a method known to train)." in swept().summary(100)


def test_the_speedup_plot_is_a_figure_with_a_line_for_each_method() -> None:
    from matplotlib.figure import Figure

    figure = made().plot_speedup()
    assert isinstance(figure, Figure)
    labels = {str(line.get_label()) for line in figure.axes[0].get_lines()}
    assert labels >= {row.label for row in ROWS}


def test_all_results_show_themselves_alike() -> None:
    names = ("rows", "to_frame", "summary", "to_json", "plot_speedup", "_repr_html_")
    for kind in (gcsim.Result, gcsim.SweepResult, gcsim.TrainingResult, gcsim.Advice):
        missing = [name for name in names if not hasattr(kind, name)]
        assert missing in ([], ["rows"])  # a dataclass's field with slots, or not on the class


def test_a_sweeps_page_has_a_row_per_point_and_all_rows() -> None:
    text = sweep_page(swept(), "gcsim sweep mine")
    points, rows = re.findall(r"<tbody>(.*?)</tbody>", text, re.DOTALL)
    assert points.count("<tr") == len(swept().points)
    assert rows.count("<tr") == len(swept().rows)
    assert "at 2 of 2 points (with a method known to train)." in text


def test_costs_stand_in_table_and_sweep() -> None:
    # 2 nodes at 3.6 an hour: 1,000 iterations of 0.5 s cost 2 x 3.6 x 500 / 3600 = 1
    rows = [
        replace(row, iteration_s=0.5, cost_per_1000_iterations=1.0 * row.nodes / 2) for row in ROWS
    ]
    result = made(*rows)
    assert "cost of 1000" in result.summary()
    assert "currency of cost.per_hour" in result.summary()
    points = (SweepPoint(values={"seed": 0}, result=result),)
    sweep = gcsim.SweepResult(grid={"seed": (0,)}, versions={}, points=points)
    headings, (line,) = table_of(sweep)
    assert headings[-1].startswith("cost/1000")
    assert line[-1] == "2.00"  # four nodes


def test_the_cost_to_a_target_is_dense_trainings_over_the_speedup() -> None:
    # 300 steps at 2 per 1,000 cost 0.6; reached three times as early, 0.2
    dense, other = replace(ROWS[0], cost_per_1000_iterations=2.0), ROWS[2]
    found = _with_cost(replace(other, speedup_to_target=3.0), dense, steps=300)
    assert found.cost_to_target == pytest.approx(0.2)
    assert _with_cost(other, dense, steps=300).cost_to_target is None
