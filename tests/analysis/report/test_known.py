"""What is not known is told as intervals: in the table, the figures, the sources."""

from dataclasses import replace

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gcsim.analysis.plots.breakdown import breakdown_figure
from gcsim.analysis.plots.speedup import speedup_figure
from gcsim.analysis.report.answer import answer
from gcsim.analysis.report.intervals import iteration_known, speedup_known
from gcsim.analysis.report.selection import at_largest
from gcsim.analysis.report.sources import provenance_notes
from gcsim.analysis.report.table import footnotes
from gcsim.scenarios.result import Result, Row
from tests.analysis.drawn import between, open_result, render

DENSE = between(0.4, 0.4)
WIDE = between(0.035, 0.085)
"""Of which the middle 80 % are 40 to 80 ms."""
SHARP = between(0.19, 0.21)
"""192 to 208 ms."""


def of(result: Result, compressor: str) -> Row:
    return next(row for row in at_largest(result) if row.compressor == compressor)


# --- intervals -----------------------------------------------------------------------------------


def test_an_interval_has_the_digits_of_its_value(result: Result) -> None:
    row = of(open_result(result, none=DENSE, topk=WIDE), "topk")
    assert speedup_known(row) == "5.00-10.0"
    assert iteration_known(row) == "40.0-80.0 ms"


def test_what_is_narrower_than_the_digits_is_not_told(result: Result) -> None:
    row = of(open_result(result, none=DENSE, topk=between(0.049999, 0.050001)), "topk")
    assert (speedup_known(row), iteration_known(row)) == ("", "")
    assert (speedup_known(result.rows[0]), iteration_known(result.rows[0])) == ("", "")


def test_a_result_without_draws_says_nothing_of_them(result: Result) -> None:
    said = " ".join([*answer(result), render(result, 120), *provenance_notes(result)])
    assert "range" not in said
    assert "80 %" not in said
    assert "[%]" not in said.split("[samples/s]")[0]


# --- the table -----------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [60, 80, 120, 240])
def test_the_interval_stands_beside_the_speedup(result: Result, width: int) -> None:
    shown = open_result(result, none=DENSE, topk=WIDE, fp16=SHARP)
    text = render(shown, width)
    assert all(len(line) <= width for line in text.splitlines())
    assert " 6.67 5.00-10.00 " in " ".join(text.split())  # 0.4 s / 0.06 s
    assert "10th to 90th percentile over 41 draws of the uncertain inputs" in " ".join(
        footnotes(shown)
    )


def test_probabilities_stand_at_every_width(result: Result) -> None:
    shown = open_result(result, none=DENSE, topk=between(0.3, 0.42), fp16=SHARP)
    for width in (120, 240):
        # in 34 of 41 worlds faster than dense, never the fastest; half precision always is
        (topk,) = [line for line in render(shown, width).splitlines() if "Top-k" in line][:1]
        assert topk.split()[4:6] == ["83", "0"]
    assert "than dense" in render(shown, 70)


def test_without_a_dense_row_the_iterations_interval_is_shown(result: Result) -> None:
    shown = open_result(result, topk=WIDE, fp16=SHARP)
    assert "60.0 40.0-80.0" in " ".join(render(shown, 240).split())


def test_those_that_may_be_fastest_are_marked(result: Result) -> None:
    shown = open_result(result, none=DENSE, topk=WIDE, dgc=between(0.055, 0.06), fp16=SHARP)
    lines = render(shown, 240).splitlines()
    assert [line[2:7] for line in lines if line.startswith("> ")][:2] == ["DGC 0", "Top-k"]
    assert "> may be the fastest: no other is clearly more than 1\xa0% faster" in lines
    assert [line[2:6] for line in lines if line.startswith("= ")][:1] == ["FP16"]
    assert "= fastest of those whose update is practically the dense one" in lines


def test_a_row_alone_with_the_mark_is_the_fastest_only_if_no_other_may_be(result: Result) -> None:
    """Top-k from 300 to 550 ms is faster than 400 ms in 40 % of the worlds, or in none."""
    for high, may in ((0.55, True), (0.401, False)):
        low = 0.3 if may else 0.4
        shown = open_result(result, none=DENSE, topk=between(low, high))
        for full in (False, True):
            lines = render(shown, 240, full=full).splitlines()
            assert any(line.startswith("> dense ") for line in lines)
            assert any(line.startswith("> may be the fastest") for line in lines) is may
            assert any(line.startswith("> fastest") for line in lines) is not may


def test_where_all_may_be_fastest_none_is_marked(result: Result) -> None:
    """FP16 is faster than 400 ms in half of the worlds, by up to a tenth."""
    shown = open_result(result, none=DENSE, fp16=between(0.36, 0.439))
    for full in (False, True):
        lines = render(shown, 240, full=full).splitlines()
        assert "too close to call: any of them may be the fastest" in lines
        assert not any(line.startswith(">") for line in lines)


# --- the figures ---------------------------------------------------------------------------------


def heights(axes: Axes) -> list[tuple[float, float]]:
    """Of each band at the largest size."""
    found = []
    for band in axes.collections:
        corners = np.asarray(band.get_paths()[0].vertices)
        last = corners[corners[:, 0] == corners[:, 0].max()][:, 1]
        found.append((float(last.min()), float(last.max())))
    return found


def test_whiskers_are_the_intervals_of_the_throughput(result: Result) -> None:
    shown = open_result(result, none=DENSE, topk=WIDE)
    (axes,) = speedup_figure(shown).axes
    row = of(shown, "topk")
    work = row.scaling_efficiency * row.workers * 0.06  # of 60 ms
    assert any(each == pytest.approx((work / 0.08, work / 0.04)) for each in heights(axes))


def test_bars_end_in_lines_that_can_be_seen(result: Result) -> None:
    shown = open_result(result, none=DENSE, topk=WIDE, fp16=between(0.1999, 0.2001))
    figure = breakdown_figure(shown)
    ends = [line.get_xdata() for line in figure.axes[0].lines]
    assert [list(map(float, np.asarray(end))) for end in ends] == [pytest.approx([40.0, 80.0])]
    texts = [text.get_text().strip() for text in figure.axes[0].texts]
    assert "60.0 ms   6.67x (5.00-10.0)" in texts


def figures(result: Result) -> list[Figure]:
    return [speedup_figure(result), breakdown_figure(result)]


def test_figures_without_ranges_have_no_bands_and_no_notes(result: Result) -> None:
    for figure in figures(result):
        assert not figure.axes[0].collections
        assert "percentile" not in figure.axes[0].get_xlabel()


# --- the sources ---------------------------------------------------------------------------------


def test_figures_with_ranges_are_listed_in_units_for_people(result: Result) -> None:
    device = {"setting": "cluster.device"}
    estimates = [
        {"setting": "cluster.network"},
        {**device, "kernels": "sort", "figure": "launch", "value": 1, "unit": "s", "range": None},
        {**device, "kernels": "sort", "figure": "launch", "value": 5e-5, "unit": "s",
         "range": [2e-5, 1e-4]},
        {**device, "kernels": "sort", "figure": "bandwidth", "value": 1e10, "unit": "B/s",
         "range": [1e10, 3e10]},
        {**device, "kernels": "random", "figure": "bandwidth", "value": 2e11, "unit": "B/s",
         "range": [1.5e11, 4.4e11]},
        {"setting": "compute", "figure": "forward and backward", "value": 0.0153, "unit": "s",
         "range": [0.011, 0.0212]},
    ]  # fmt: skip
    (note,) = [
        note
        for note in provenance_notes(replace(result, provenance={"estimates": estimates}))
        if note.startswith("uncertain inputs")
    ]
    assert note == (
        "uncertain inputs and their ranges: launch in us: sort 50 (20-100); bandwidth in GB/s: "
        "sort 10 (10-30), random 200 (150-440); forward and backward in ms: 15.3 (11-21.2)"
    )
