"""The table shows every number whole, at every width."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rich.cells import cell_len

from gcsim.analysis.selection import at_largest
from gcsim.analysis.table import ONE_TABLE, PERIODIC, SCALE_FREE, footnotes, render
from gcsim.scenarios.result import Result, Row

WIDTHS = (60, 80, 100, 120, 160, 240)


def table_lines(text: str, label: str) -> str:
    """All lines of a label's rows, joined: stacked tables repeat the label."""
    return " | ".join(line for line in text.splitlines() if line[2:].startswith(label))


@pytest.mark.parametrize("width", [30, 45, *WIDTHS])
def test_no_line_is_longer_than_the_terminal(result: Result, width: int) -> None:
    assert max(cell_len(line) for line in render(result, width).splitlines()) <= width


@pytest.mark.parametrize("width", [80, 100, 120, 160, 240])
def test_every_number_of_every_row_is_there_whole(result: Result, width: int) -> None:
    text = render(result, width)
    rows = at_largest(result)
    for column in ONE_TABLE[0]:
        for row, cell in zip(rows, column.cells(rows), strict=True):
            assert f" {cell} " in f" {table_lines(text, row.label)} "
    assert "\N{HORIZONTAL ELLIPSIS}" not in text


@pytest.mark.parametrize("width", WIDTHS)
def test_every_heading_and_unit_is_there_whole(result: Result, width: int) -> None:
    words = render(result, width).replace("\n", " ").split()
    for column in ONE_TABLE[0]:
        assert set(column.heading.split()) <= set(words)


def test_narrow_terminals_lose_no_number(result: Result) -> None:
    words = render(result, 45).split()
    rows = at_largest(result)
    cells = [cell for column in ONE_TABLE[0] for cell in column.cells(rows)]
    assert set(cells) <= set(words)


def test_one_table_at_120_columns_and_two_at_80(result: Result) -> None:
    assert render(result, 120).count("compressor  ") == 1
    assert render(result, 80).count("compressor  ") == 2


@pytest.mark.parametrize("width", [20, 30, *WIDTHS])
def test_short_labels_do_not_break_the_heading_above_them(result: Result, width: int) -> None:
    rows = tuple(replace(row, label=row.label[:2], period=1) for row in result.rows)
    assert "compressor" in render(replace(result, rows=rows), width)


def test_rows_are_ordered_by_speedup(result: Result) -> None:
    text = render(result, 120)
    rows = sorted(
        (row for row in result.rows if row.nodes == 32),
        key=lambda row: -(row.speedup_vs_dense or 0),
    )
    places = [text.index(f"  {row.label}" if number else row.label) for number, row in
              enumerate(rows)]  # fmt: skip
    assert places == sorted(places)


def test_the_winner_is_marked_without_colour(result: Result) -> None:
    # synthetic numbers: the shared mask of random-k sends least through an all-reduce
    marked = [line for line in render(result, 120).splitlines() if line.startswith("> ")]
    assert marked[0].startswith("> random-k 1% ")
    assert "\x1b" not in render(result, 120)


def test_methods_with_a_period_are_marked_and_explained(result: Result) -> None:
    text = " ".join(render(result, 120).split())
    assert f"gradient sampling, Bayes prior{PERIODIC} " in text
    assert (
        "* mean over whole periods: gradient sampling, Bayes prior (100 iterations); "
        "QSparse-local-SGD 8 %, 8 bit (4 iterations)"
    ) in text


def test_without_periods_there_is_no_footnote_on_periods(result: Result) -> None:
    rows = tuple(replace(row, period=1) for row in result.rows)
    assert "whole periods" not in render(replace(result, rows=rows), 120)


def test_times_of_a_row_add_up_as_printed(result: Result) -> None:
    rows = at_largest(result)
    columns = {c.heading.replace("-\n", "").split("\n")[0]: c.cells(rows) for c in ONE_TABLE[0]}
    parts = [columns[name] for name in ("compute", "encode", "exposed", "decode")]
    for total, *pieces in zip(columns["iteration"], *parts, strict=True):
        # four numbers rounded to 0.1 ms differ by at most 5 x 0.05 ms from the rounded sum
        assert float(total) == pytest.approx(sum(map(float, pieces)), abs=0.25)


def test_only_the_largest_size_is_shown(result: Result) -> None:
    assert "32 nodes, 64 workers" in render(result, 120)
    assert len(at_largest(result)) == 12


def test_without_a_dense_row_there_is_no_speedup(result: Result) -> None:
    rows = tuple(
        replace(row, speedup_vs_dense=None) for row in result.rows if row.compressor != "none"
    )
    line = table_lines(render(replace(result, rows=rows), 120), "FP16")
    assert line.split()[1] == "-"


def test_labels_with_markup_and_wide_characters_come_through(result: Result) -> None:
    labels = iter(["[bold]x[/bold]", "压缩器 " * 9, "a" * 90])

    def renamed(row: Row) -> Row:
        return replace(row, label=next(labels))

    rows = tuple(
        renamed(row)
        for row in result.rows
        if row.nodes == 32 and row.compressor in ("none", "fp16", "dgc")
    )
    text = render(replace(result, rows=rows), 80)
    assert "[bold]x[/bold]" in text
    assert text.count("压缩器") >= 9
    assert sum(line.count("a" * 10) for line in text.splitlines()) >= 6
    assert max(map(cell_len, text.splitlines())) <= 80


def test_an_update_without_a_scale_has_no_nmse_and_a_note(result: Result) -> None:
    assert SCALE_FREE not in " ".join(footnotes(result.rows))
    rows = tuple(replace(r, nmse=None) if r.compressor == "qsgd" else r for r in result.rows)
    shown = render(replace(result, rows=rows), 120)
    (line,) = [line for line in shown.splitlines() if "QSGD" in line]
    assert line.split()[-1] == "-"
    assert SCALE_FREE in " ".join(shown.split())
