"""The figures show the rows' own numbers, legibly, and as equal bytes each time."""

import struct
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.axes import Axes
from matplotlib.container import BarContainer
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from gcsim.analysis.plots.breakdown import breakdown_figure, parts_of, zoom_limit
from gcsim.analysis.plots.labels import spread
from gcsim.analysis.plots.speedup import IDEAL, speedup_figure
from gcsim.analysis.plots.style import PARTS, line_styles, save
from gcsim.analysis.report.selection import at_largest
from gcsim.scenarios.result import Result
from tests.analysis.drawn import between, busy, open_result


def sixteen(result: Result) -> Result:
    again = tuple(
        replace(row, label=f"{row.label}, again", scaling_efficiency=row.scaling_efficiency * 0.97)
        for row in result.rows
        if row.compressor in ("topk", "dgc", "qsgd", "powersgd")
    )
    return replace(result, rows=result.rows + again)


def single_size(result: Result) -> Result:
    rows = tuple(row for row in result.rows if row.nodes == 1 and row.compressor in ("none", "dgc"))
    return replace(result, rows=rows)


def texts(figure: Figure) -> list[str]:
    found = [text.get_text() for axes in figure.axes for text in axes.texts]
    return found + [text.get_text() for text in figure.texts]


def xs(line: Line2D) -> list[float]:
    return [float(value) for value in np.asarray(line.get_xdata())]


def ys(line: Line2D) -> list[float]:
    return [float(value) for value in np.asarray(line.get_ydata())]


# --- speedup -------------------------------------------------------------------------------------


def test_each_line_is_the_throughput_relative_to_one_device(result: Result) -> None:
    axes = speedup_figure(result).axes[0]
    lines = {str(line.get_label()): line for line in axes.lines}
    compute = result.rows[0].forward_s + result.rows[0].backward_s
    for label in {row.label for row in result.rows}:
        rows = [row for row in result.rows if row.label == label]
        assert xs(lines[label]) == [row.workers for row in rows]
        # one device alone: 32 samples in forward + backward
        expected = [row.throughput_samples_per_s / (32 / compute) for row in rows]
        assert ys(lines[label]) == pytest.approx(expected)


def test_the_ideal_line_is_the_diagonal_of_two_logarithmic_axes(result: Result) -> None:
    axes = speedup_figure(result).axes[0]
    ideal = next(line for line in axes.lines if line.get_label() == IDEAL)
    assert xs(ideal) == ys(ideal) == [2, 4, 8, 16, 32, 64]
    for axis in (axes.xaxis, axes.yaxis):
        assert axis.get_scale() == "log"
        assert axis.get_transform().base == 2  # type: ignore[attr-defined]


def test_every_worker_count_is_a_tick_with_its_nodes(result: Result) -> None:
    figure = speedup_figure(result)
    figure.canvas.draw()
    ticks = [tick.get_text() for tick in figure.axes[0].get_xticklabels()]
    assert ticks == ["2\n(1)", "4\n(2)", "8\n(4)", "16\n(8)", "32\n(16)", "64\n(32)"]


def test_labels_are_sorted_by_final_value_apart_and_outside_the_data(result: Result) -> None:
    for shown, count in ((result, 12), (sixteen(result), 16)):
        figure = speedup_figure(shown)
        figure.canvas.draw()
        axes = figure.axes[0]
        labels = sorted(axes.texts, key=lambda text: text.get_position()[1])
        assert len(labels) == count + 1  # and the ideal
        values = [float(text.get_text().split("x")[0]) for text in labels]
        assert values == sorted(values)
        renderer = figure.canvas.get_renderer()  # type: ignore[attr-defined]
        boxes = [text.get_window_extent(renderer) for text in labels]
        assert all(below.y1 <= above.y0 for below, above in pairwise(boxes))
        assert all(box.x0 > axes.get_window_extent(renderer).x1 for box in boxes)
        assert all(box.x1 <= figure.bbox.x1 for box in boxes)


def test_sixteen_lines_differ_in_more_than_colour_alone(result: Result) -> None:
    styles = list(line_styles(sixteen(result)).values())
    looks = {(s.colour, s.dashes) for s in styles}
    assert len(looks) == len({(s.marker, s.dashes) for s in styles}) == len(styles) == 16
    assert line_styles(result)["dense"].colour == "#000000"


def many(result: Result) -> Result:
    again = tuple(
        replace(row, label=f"{row.label}, {n}", scaling_efficiency=row.scaling_efficiency * 0.9**n,
                iteration_s=row.iteration_s / 0.9**n)
        for n in range(1, 6)
        for row in result.rows
    )  # fmt: skip
    return replace(result, rows=result.rows + again)


def test_of_many_methods_the_fastest_stand_out_and_all_are_named(result: Result) -> None:
    crowd = many(result)
    styles = line_styles(crowd)
    loud = {label for label, style in styles.items() if not style.muted}
    dense = {row.label for row in crowd.rows if row.compressor == "none"}
    assert loud == {row.label for row in at_largest(crowd)[:8]} | dense
    figure = speedup_figure(crowd)
    figure.canvas.draw()
    renderer = figure.canvas.get_renderer()  # type: ignore[attr-defined]
    boxes = sorted(
        (text.get_window_extent(renderer) for text in figure.axes[0].texts), key=lambda b: b.y0
    )
    assert len(boxes) == 72 + 1
    assert all(below.y1 <= above.y0 + 0.5 for below, above in pairwise(boxes))
    assert all(box.x1 <= figure.bbox.x1 for box in boxes)


def test_a_style_does_not_depend_on_the_speed(result: Result) -> None:
    slower = tuple(replace(row, iteration_s=1 / row.iteration_s) for row in result.rows)
    assert line_styles(replace(result, rows=slower)) == line_styles(result)


@given(
    st.lists(st.floats(min_value=0, max_value=1), min_size=1, max_size=16).map(sorted),
    st.floats(min_value=0, max_value=1 / 16),
)
def test_spread_keeps_order_gap_and_limits(wanted: list[float], gap: float) -> None:
    places = spread(wanted, gap=gap, low=0.0, high=1.0)
    assert all(above - below >= gap - 1e-9 for below, above in pairwise(places))
    assert places[0] >= -1e-9
    assert places[-1] <= 1 + 1e-9
    if all(above - below >= gap for below, above in pairwise(wanted)):
        assert places == pytest.approx(wanted, abs=1e-9)


def test_spread_moves_two_equal_labels_half_a_gap_each() -> None:
    # least squares: (x - 0.5)^2 + (x + 0.1 - 0.5)^2 is least at x = 0.45
    assert spread([0.5, 0.5], gap=0.1, low=0.0, high=1.0) == pytest.approx([0.45, 0.55])


# --- breakdown -----------------------------------------------------------------------------------


def bars(axes: Axes) -> list[BarContainer]:
    return [entry for entry in axes.containers if isinstance(entry, BarContainer)]


@pytest.mark.parametrize("make", [lambda result: result, busy])
def test_the_bars_are_the_parts_in_milliseconds_stacked_without_gap(
    result: Result, make: Callable[[Result], Result]
) -> None:
    rows = at_largest(make(result))
    for axes in breakdown_figure(make(result)).axes:
        containers, parts = bars(axes), parts_of(rows)
        assert [bar.get_label() for bar in containers] == [name for name, *_ in parts]
        ends = [0.0] * len(rows)
        for container, (_, field, *_) in zip(containers, parts, strict=True):
            widths = [patch.get_width() for patch in container]
            assert widths == pytest.approx([getattr(row, field) * 1e3 for row in rows])
            assert [patch.get_x() for patch in container] == pytest.approx(ends)
            ends = [end + width for end, width in zip(ends, widths, strict=True)]
        assert ends == pytest.approx([row.iteration_s * 1e3 for row in rows])


def test_parts_that_no_bar_has_are_left_out(result: Result) -> None:
    names = [name for name, *_ in parts_of(at_largest(result))]
    assert names == ["forward", "backward", "hooks, encode", "waiting for network", "decode, copy"]
    assert parts_of(at_largest(busy(result))) == list(PARTS)


@pytest.mark.parametrize("label", ["dense", "a method with a name of some length"])
def test_the_legend_of_all_parts_stays_in_the_picture(result: Result, label: str) -> None:
    rows = tuple(replace(row, label=f"{label} {n}") for n, row in enumerate(busy(result).rows))
    figure = breakdown_figure(replace(busy(result), rows=rows))
    figure.draw_without_rendering()
    (legend,) = figure.legends
    assert legend.get_window_extent().x1 <= figure.bbox.width


def test_a_line_from_the_5th_to_the_95th_percentile_where_something_is_random(
    result: Result,
) -> None:
    axes = breakdown_figure(busy(result)).axes[0]
    wanted = [(row.iteration_p5_s, row.iteration_p95_s) for row in at_largest(busy(result))]
    found = [tuple(value / 1e3 for value in xs(line)) for line in axes.lines]
    assert found == [pytest.approx(pair) for pair in wanted]
    assert axes.get_xlabel().startswith("means of 50 iterations [ms] (line: 5 to 95 %), and the ")
    assert not breakdown_figure(result).axes[0].lines
    assert "mean" not in breakdown_figure(result).axes[0].get_xlabel()


def test_the_fastest_is_on_top_with_its_total_and_speedup(result: Result) -> None:
    axes = breakdown_figure(result).axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == [
        row.label for row in at_largest(result)
    ]
    assert axes.yaxis_inverted()
    assert [text.get_text().split() for text in axes.texts][8] == ["438", "ms", "1.00x"]


def test_dwarfed_bars_get_their_own_linear_panel_that_says_where_it_ends(result: Result) -> None:
    whole, zoomed = breakdown_figure(result).axes
    rows = at_largest(result)
    limit = zoom_limit(rows)
    assert limit is not None
    # the fourth of twelve takes 71.9 ms, 8 % of room makes 77.7, the next round number is 100
    assert limit == pytest.approx(0.100)
    assert zoomed.get_xlim() == pytest.approx((0, 100))
    assert zoomed.get_xlabel() == "the first 100 ms of the same bars [ms]"
    assert whole.get_xlim()[0] == 0
    assert {axes.get_xscale() for axes in (whole, zoomed)} == {"linear"}
    cut = sum(row.iteration_s > limit for row in rows)
    assert len(zoomed.lines) == 2 * cut  # two strokes a cut bar


def test_equal_bars_need_one_panel(result: Result) -> None:
    assert len(breakdown_figure(single_size(result)).axes) == 1


def test_nothing_written_leaves_the_breakdown_figure(result: Result) -> None:
    ranged = open_result(
        result, none=between(0.4, 0.4), topk=between(0.035, 0.085), fp16=between(0.19, 0.21)
    )
    for shown in (result, sixteen(result), single_size(result), busy(result), ranged):
        figure = breakdown_figure(shown)
        figure.canvas.draw()
        renderer = figure.canvas.get_renderer()  # type: ignore[attr-defined]
        found = [*figure.texts, *figure.legends[0].get_texts()]
        for axes in figure.axes:
            found += [*axes.texts, *axes.get_yticklabels(), axes.xaxis.label]
        for text in found:
            if text.get_text():
                box = text.get_window_extent(renderer)
                assert figure.bbox.x0 <= box.x0
                assert box.x1 <= figure.bbox.x1
                assert figure.bbox.y0 <= box.y0
                assert box.y1 <= figure.bbox.y1


# --- files ---------------------------------------------------------------------------------------


def png_size(path: Path) -> tuple[int, int]:
    """Width and height from a PNG's first chunk (ISO/IEC 15948, 11.2.2)."""
    content = path.read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", content[16:24])
    return width, height


@pytest.mark.parametrize("figure", [speedup_figure, breakdown_figure])
def test_files_are_large_enough_for_print_and_equal_each_time(
    result: Result, tmp_path: Path, figure: Callable[[Result], Figure]
) -> None:
    save(figure(result), tmp_path / "a.png")
    with mpl.rc_context({"font.size": 30.0, "lines.linewidth": 9.0, "axes.grid": True}):
        save(figure(result), tmp_path / "b.png")  # a user's own settings change nothing
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
    assert b"Software" not in (tmp_path / "a.png").read_bytes()
    width, height = png_size(tmp_path / "a.png")
    assert width >= 1500
    assert height >= 800


def test_drawing_leaves_no_setting_changed(result: Result) -> None:
    before = dict(mpl.rcParams)
    speedup_figure(result)
    breakdown_figure(result)
    assert dict(mpl.rcParams) == before
