"""The table shows every number whole, at every width."""

from dataclasses import replace

import pytest
from rich.cells import cell_len

from gcsim.analysis.report import table
from gcsim.analysis.report.selection import at_largest
from gcsim.scenarios.result import Result, Row
from tests.analysis.drawn import busy, render

WIDTHS = (60, 80, 100, 120, 160, 240)


@pytest.fixture(params=["plain", "busy"])
def shown(request: pytest.FixtureRequest, result: Result) -> Result:
    return result if request.param == "plain" else busy(result)


def columns(result: Result) -> tuple[table.Column, ...]:
    rows = at_largest(result)
    return (*table.answer_columns(rows), *table.other_columns(rows))


def table_lines(text: str, label: str) -> str:
    """The first lines of a label's rows, joined: stacked tables repeat the label, and long ones
    go on below."""
    return " | ".join(
        line for line in text.splitlines() if line[2:].startswith(label.split(maxsplit=1)[0])
    )


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("width", [30, 45, *WIDTHS])
def test_no_line_is_longer_than_the_terminal(shown: Result, width: int, full: bool) -> None:
    text = render(shown, width, full=full)
    assert max(cell_len(line) for line in text.splitlines()) <= width


@pytest.mark.parametrize("width", [80, 120, 240])
def test_in_brief_it_is_one_table_with_at_most_three_notes(shown: Result, width: int) -> None:
    text = render(shown, width, full=False)
    rows = at_largest(shown)
    assert text.count("method  ") == 1
    for column in table.brief_columns(rows):
        for row, cell in zip(rows, column.cells(rows), strict=True):
            assert f" {cell} " in f" {table_lines(text, row.label)} "
    _, _, notes = text.partition("\u2500\n")[2].partition("\n\n")
    assert 0 < len(notes.splitlines()) <= 3
    assert table.PERIODIC not in text
    random = any(row.iteration_p5_s is not None for row in rows)
    assert ("means of 50 iterations" in text) == random


def test_in_brief_the_speedup_to_the_target_stands_for_the_error(result: Result) -> None:
    facts = {"training": {"target": "accuracy 0.9"}}
    rows = tuple(
        replace(row, seeds_trained=1, seeds_at_target=1, speedup_to_target=3.25,
                speedups_to_target=(3.25,))
        if row.compressor == "topk" else row
        for row in result.rows
    )  # fmt: skip
    text = render(replace(result, rows=rows, provenance=facts), 80, full=False)
    assert "NMSE" not in text
    assert table_lines(text, "Top-k").split()[3:5] == ["3.25", "-"]
    assert table_lines(text, "DGC").split()[2:4] == ["-", "-"]
    assert "to target: speedup to accuracy 0.9" in text


@pytest.mark.parametrize("width", [45, 80, 100, 120, 160, 240])
def test_every_number_of_every_row_is_there_whole(shown: Result, width: int) -> None:
    text = render(shown, width)
    rows = at_largest(shown)
    for column in columns(shown):
        for row, cell in zip(rows, column.cells(rows), strict=True):
            assert f" {cell} " in f" {table_lines(text, row.label)} "
    assert "\N{HORIZONTAL ELLIPSIS}" not in text


@pytest.mark.parametrize("width", WIDTHS)
def test_every_heading_and_unit_is_there_whole(shown: Result, width: int) -> None:
    words = render(shown, width).replace("\n", " ").split()
    for column in columns(shown):
        assert set(column.heading.split()) <= set(words)


def test_one_table_on_a_wide_terminal_and_two_at_120_and_80(result: Result) -> None:
    assert render(result, 160).count("method  ") == 1
    for width in (80, 100, 120):
        text = render(result, width)
        assert text.count("method  ") == 2
        # the first has the answer: how fast, at what error
        first, _, _ = text.partition("scaling")
        assert {"speedup", "iteration", "sent", "NMSE", "cosine"} <= set(first.split())


@pytest.mark.parametrize("width", [20, 30, *WIDTHS])
def test_short_labels_do_not_break_the_heading_above_them(result: Result, width: int) -> None:
    rows = tuple(replace(row, label=row.label[:2], period=1) for row in result.rows)
    assert "method" in render(replace(result, rows=rows), width)


def test_the_winner_is_marked_without_colour(result: Result) -> None:
    # synthetic numbers: random-k is faster, and has next to nothing of the gradient
    lines = render(result, 120).splitlines()
    assert next(line for line in lines if line.startswith("> ")).startswith("> PowerSGD rank 4 ")
    assert next(line for line in lines if line.startswith("! ")).startswith("! random-k 1% ")
    assert next(line for line in lines if line.startswith("= ")).startswith("= FP16 ")
    said = " ".join(" ".join(lines).split())
    assert "! not counted: random-k 1%: its update contains almost none of the gradient" in said
    assert "! not counted: TernGrad: a zero update would be as close (NMSE 3.21" in said
    assert "\x1b" not in render(result, 120)


def test_methods_with_a_period_are_marked_and_explained(result: Result) -> None:
    text = " ".join(render(result, 120).split())
    assert f"gradient sampling, Bayes prior{table.PERIODIC} " in text
    assert (
        "* mean over whole periods: gradient sampling, Bayes prior (100 iterations); "
        "QSparse-local-SGD 8 %, 8 bit (4 iterations)"
    ) in text


def test_times_of_a_row_add_up_as_printed(shown: Result) -> None:
    rows = at_largest(shown)
    cells = {c.heading.replace("\n", " "): c.cells(rows) for c in columns(shown)}
    names = ("input wait", "compute", "encode", "network wait", "decode", "optimizer")
    parts = [cells[f"{name} [ms]"] for name in names if f"{name} [ms]" in cells]
    assert len(parts) in (4, 6)
    for total, *pieces in zip(cells["iteration [ms]"], *parts, strict=True):
        # numbers rounded to 0.1 ms differ by at most 7 x 0.05 ms from the rounded sum
        assert float(total) == pytest.approx(sum(map(float, pieces)), abs=0.35)


def test_columns_that_say_nothing_are_left_out(result: Result) -> None:
    headings = [column.heading for column in columns(result)]
    assert not {"+-\n[ms]", "p5\n[ms]", "p95\n[ms]", "input\nwait\n[ms]", "optimizer\n[ms]"} & set(
        headings
    )
    assert len(columns(busy(result))) == len(headings) + 5
    said = " ".join(table.footnotes(result))
    assert "which differ" not in said
    assert "= compute (forward + backward) + encode + network wait (exposed communication: " in said
    assert "micro-batches" not in said


def test_random_times_input_and_accumulation_are_explained(result: Result) -> None:
    said = " ".join(table.footnotes(busy(result)))
    assert (
        "times are means of 50 iterations, which differ. +-: standard error of the mean "
        "iteration. p5, p95: 5 % of the" in said
    )
    assert "iteration = input wait + compute" in said
    assert "+ decode + optimizer. An iteration has 4 micro-batches." in said
    words = render(busy(result), 120)
    row = at_largest(busy(result))[0]
    assert f" {row.iteration_p5_s * 1e3:.1f} " in words  # type: ignore[operator]


@pytest.mark.parametrize(("width", "said"), [(0.2, False), (0.001, True)])
def test_a_dash_for_a_narrow_range_is_explained_where_it_stands(
    result: Result, width: float, said: bool
) -> None:
    """The dense row's speedup of 1 has no range, and a range of 0.001 is none of two decimals."""
    rows = tuple(
        replace(
            row, iteration_low_s=row.iteration_s, iteration_high_s=row.iteration_s,
            speedup_low=1.0, speedup_high=1.0 if row.compressor == "none" else 1.0 + width,
        )
        for row in result.rows
    )  # fmt: skip
    notes = " ".join(table.footnotes(replace(result, rows=rows)))
    assert ("-: smaller than the last digit" in notes) is said


def test_without_a_dense_row_there_is_no_speedup(result: Result) -> None:
    rows = tuple(
        replace(row, speedup_vs_dense=None) for row in result.rows if row.compressor != "none"
    )
    line = table_lines(render(replace(result, rows=rows), 160), "FP16")
    assert line.split()[2] == "-"  # after the mark and the label


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
    assert table.SCALE_FREE not in " ".join(table.footnotes(result))
    rows = tuple(replace(r, nmse=None) if r.compressor == "qsgd" else r for r in result.rows)
    shown = render(replace(result, rows=rows), 160)
    (line,) = [line for line in shown.splitlines() if "QSGD" in line]
    assert line.split().count("-") == 1
    assert table.SCALE_FREE in " ".join(shown.split())


def test_standard_errors_stand_beside_the_mean(result: Result) -> None:
    shown = busy(result)
    headings = [column.heading.split("\n")[0] for column in table.answer_columns(at_largest(shown))]
    assert headings == ["speedup", "iteration", "+-", "p5", "p95", "sent", "NMSE", "cosine"]
    assert "+-: standard error of the mean iteration." in " ".join(table.footnotes(shown))
    # 1.6 ms, with the decimals of the iterations
    assert " 1.6 " in table_lines(render(shown, 240), "dense")
    timed = replace(shown, rows=tuple(replace(row, iteration_error_s=None) for row in shown.rows))
    assert "+-" not in render(timed, 240)
    assert "p95" in render(timed, 240)


@pytest.mark.parametrize("width", [60, 80, 120, 240])
def test_what_carries_a_method_stands_below_its_label_once(result: Result, width: int) -> None:
    rows = tuple(
        replace(row, via="all-to-all of stripes + all-gather") if row.compressor == "dgc" else row
        for row in result.rows
    )
    text = render(replace(result, rows=rows), width)
    assert max(map(cell_len, text.splitlines())) <= width
    assert "via all-to-all" in " ".join(text.split())
    assert text.count("via all") == 1
    assert "via" not in render(result, width)


def test_nothing_sent_is_a_result(result: Result) -> None:
    rows = tuple(
        replace(row, wire_bytes_per_worker=0.0, compression_ratio=None)
        if row.compressor == "dgc" else row
        for row in result.rows
    )  # fmt: skip
    text = render(replace(result, rows=rows), 240)
    (line,) = [line for line in text.splitlines() if line.startswith("! DGC")]
    assert "nothing" in line.split()
    assert "! not counted: DGC 0.1%: it sent nothing in 4 steps" in text
