"""Does a training's picture, or chart of its report, show the target, methods at it, and others
apart from them?"""

import itertools
import json
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from gcsim.analysis.plots import style
from gcsim.analysis.trained.charts import chart_sections
from gcsim.analysis.trained.curves import curves_figure
from gcsim.analysis.trained.intervals import gains_figure
from gcsim.scenarios.result import Curve
from gcsim.scenarios.trained.result import TrainedRow, TrainingResult

STEPS = (0, 10, 20)


def row(label: str, gain: float | None, p: float | None = None, **more: object) -> TrainedRow:
    """A method that needs 20 seconds over its speedup."""
    missed = gain is None
    low, high = (None, None) if gain is None else (gain / 2, gain * 2)
    made = TrainedRow(
        compressor="none" if label == "dense" else label, label=label, nodes=4, workers=4,
        learning_rate=0.1, iteration_s=1.0, speedup_per_iteration=gain, wire_bytes_per_worker=1e6,
        steps_to_target=(None,) * 3 if missed else (20,) * 3,
        seconds_to_target=(None,) * 3 if gain is None else (20 / gain,) * 3,
        steps_against_dense=None if missed else 1.0, speedup_to_target=gain,
        speedup_to_target_low=low, speedup_to_target_high=high, speedup_to_target_vs_half=None,
        final_accuracy=(0.9,) * 3, final_loss=(0.1,) * 3, ended=("finished",) * 3, why=("",) * 3,
        p_as_dense=p,
    )  # fmt: skip
    return replace(made, **more)  # type: ignore[arg-type]


@pytest.fixture
def result() -> TrainingResult:
    """Two methods told apart from dense training, one that is not, two without a speedup."""
    rows = (
        row("dense", 1.0, 1.0),
        row("fast", 4.0, 0.01, speedup_to_target_high=None),
        row("slow", 0.5, 0.02),
        row("like", 1.2, 0.8, speedup_to_target_low=0.0),
        row("short", None, delays=3.0, too_short="300 steps span only 3 delays; 10 are needed"),
        row("miss", None),
    )
    curves = tuple(
        Curve(
            label=one.label, seed=seed, learning_rate=0.1, steps=STEPS,
            seconds=(0.0, 10.0, 20.0), accuracy=(0.1, 0.8, 0.98 if one.speedup_to_target else 0.9),
            loss=(2.0, 1.0, 0.1), wire_bytes_per_worker=(1e6, 1e6), nmse=(None, None),
        )
        for one in rows
        for seed in range(3)
    )  # fmt: skip
    return TrainingResult(
        scenario={"name": "tiny"}, target="accuracy 0.97", measure="accuracy", trained_workers=4,
        data="points", rows=rows, curves=curves, wall={},
    )  # fmt: skip


def at(line: Line2D) -> list[tuple[float, float]]:
    """Points of a line."""
    return [(float(x), float(y)) for x, y in np.asarray(line.get_xydata())]


def texts(figure: Figure) -> list[list[str]]:
    """Texts of each panel."""
    return [[one.get_text() for one in axes.texts] for axes in figure.axes]


def test_methods_that_miss_the_target_stand_apart_and_say_why(result: TrainingResult) -> None:
    reach, others = texts(curves_figure(result))
    assert {*reach} == {"dense", "fast", "slow", "like", "target 97 %"}
    assert {*others} == {"short (3 delays)", "miss (0 of 3 seeds)", "target 97 %"}


def test_a_mark_is_where_the_median_seed_reaches_the_target(result: TrainingResult) -> None:
    """The axis is the distance from 100 %: of 0.97 it is 3, the best at the top."""
    axes = curves_figure(result).axes[0]
    marks = [at(line)[0] for line in axes.lines if len(at(line)) == 1]
    assert sorted(second for second, _ in marks) == pytest.approx([5, 20 / 1.2, 20, 40])
    assert [height for _, height in marks] == [1.0] * 4  # the top of the axes, off the lines
    assert any([y for _, y in at(line)] == [3.0, 3.0] for line in axes.lines)  # the target
    bottom, top = axes.get_ylim()
    assert top < 3 < bottom
    assert axes.yaxis.get_major_formatter()(3, 0) == "97"


def test_no_mark_covers_another(result: TrainingResult) -> None:
    """Two methods at the target at once: their centres are a mark's width apart."""
    rows = [replace(row, seconds_to_target=(5.0,) * 3) for row in result.rows]
    figure = curves_figure(replace(result, rows=tuple(rows)))
    figure.draw_without_rendering()
    marks = [line for line in figure.axes[0].lines if len(at(line)) == 1]
    places = [line.get_transform().transform(at(line)[0]) for line in marks]
    for one, other in itertools.combinations(places, 2):
        apart = float(np.hypot(*(one - other))) * 72 / figure.dpi
        assert apart >= float(marks[0].get_markersize()) - 0.1


def test_a_loss_has_its_own_axis(result: TrainingResult) -> None:
    shown = replace(result, target="loss 0.2", measure="loss")
    axes = curves_figure(shown).axes[0]
    assert any([y for _, y in at(line)] == [0.2, 0.2] for line in axes.lines)
    assert axes.get_ylim()[0] < axes.get_ylim()[1]


def test_a_name_is_joined_to_the_end_of_its_line(result: TrainingResult) -> None:
    """Lines of a loss have theirs too, where the target is beyond all lines."""
    shown = replace(result, target="loss 0.02", measure="loss")
    figure = curves_figure(shown)
    figure.draw_without_rendering()
    for axes in figure.axes:
        to_data = axes.transAxes + axes.transData.inverted()
        leaders = [line for line in axes.lines if len(at(line)) == 4]
        assert leaders
        for line in leaders:
            assert to_data.transform(at(line)[0]) == pytest.approx((20.0, 0.1))


def test_points_are_filled_where_methods_are_told_apart_from_dense_training(
    result: TrainingResult,
) -> None:
    axes = gains_figure(result).axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()[:4]] == [
        "fast", "like", "dense", "slow"
    ]  # fmt: skip
    points = {str(line.get_label()): line for line in axes.lines}
    filled = {name: points[name].get_markerfacecolor() for name in ("fast", "like", "slow")}
    assert filled == {"fast": style.BLUE, "like": "white", "slow": style.VERMILION}
    arrows = {str(line.get_marker()): at(line)[0][0] for line in axes.lines if len(at(line)) == 1}
    assert arrows["<"] == pytest.approx(axes.get_xlim()[0])  # down to 0
    assert arrows[">"] == pytest.approx(axes.get_xlim()[1])  # without an end
    (shown,) = texts(gains_figure(result))
    assert "4.00x (2.00-inf)" in shown
    assert "inconclusive: only 3 delays" in shown
    assert "0 of 3 seeds at the target" in shown


# --- charts of the report ------------------------------------------------------------------------


def charts(result: TrainingResult) -> dict[str, dict[str, Any]]:
    """Charts by heading."""
    found = {}
    for heading, inner in chart_sections(result):
        data = re.search(r'class="chart">(.*?)</script>', inner, re.DOTALL)
        assert data is not None
        found[heading] = json.loads(data.group(1))
    return found


def test_charts_show_what_the_pictures_show(result: TrainingResult) -> None:
    """The target, 3 from 100 %, and marks at the median seed's seconds and steps."""
    shown = charts(result)
    for at, places in (("simulated seconds", [20, 5, 40, 20 / 1.2]), ("steps", [20] * 4)):
        reach = shown[f"Accuracy over {at}: reach accuracy 0.97"]
        (line,) = reach["layout"]["shapes"]
        assert (line["y0"], line["y1"]) == (3, 3)
        lines = [one for one in reach["data"] if one["mode"] == "lines"]
        assert [one["name"] for one in lines] == ["dense", "fast", "slow", "like"]
        marks = [one for one in reach["data"] if one["y"] == [3]]
        assert [one["x"][0] for one in marks] == pytest.approx(places)
        miss = shown[f"Accuracy over {at}: miss it, or inconclusive"]
        lines = [one for one in miss["data"] if one["mode"] == "lines"]
        assert [one["name"] for one in lines] == ["short (3 delays)", "miss (0 of 3 seeds)"]
        assert not [one for one in miss["data"] if one["y"] == [3]]
        for chart, best in ((reach, 2), (miss, 3)):  # the end of the lines, and the target
            worst, top = (10**end for end in chart["layout"]["yaxis"]["range"])
            assert top < best < worst


def test_speedups_of_the_chart_are_those_of_the_picture(result: TrainingResult) -> None:
    chart = charts(result)["Speedup to the target"]
    points = {
        label: (point, trace["marker"]["symbol"], trace["name"])
        for trace in chart["data"]
        for label, point in zip(trace["y"], trace["x"], strict=True)
    }
    assert points == {
        "dense": (1.0, "circle", "dense"),
        "fast": (4.0, "circle", "faster"),
        "slow": (0.5, "circle", "slower"),
        "like": (1.2, "circle-open", "no significant difference"),
    }
    low, high = (10**end for end in chart["layout"]["xaxis"]["range"])
    assert (low, high) == pytest.approx(gains_figure(result).axes[0].get_xlim())
    (fast,) = [trace for trace in chart["data"] if trace["name"] == "faster"]
    # the whisker has no end above: it goes to the end of the axis
    assert fast["x"][0] + fast["error_x"]["array"][0] == pytest.approx(high)
    assert fast["x"][0] - fast["error_x"]["arrayminus"][0] == pytest.approx(2)


def test_methods_that_end_at_once_and_a_loss_of_zero_have_charts(result: TrainingResult) -> None:
    """A curve of one evaluation has no second after the start; zero has no logarithm."""

    def ended(one: Curve) -> Curve:
        if one.label not in ("miss", "short"):
            return replace(one, loss=(2.0, 1.0, 0.0))
        return replace(one, steps=(0,), seconds=(0.0,), accuracy=(0.1,), loss=(2.0,))

    curves = map(ended, result.curves)
    shown = charts(replace(result, curves=tuple(curves), measure="loss", target="loss 0.2"))
    assert len(shown) == 5
    assert shown["Loss over simulated seconds: miss it, or inconclusive"]["data"] == []
    lines = shown["Loss over steps: reach loss 0.2"]["data"]
    assert [one["customdata"][-1] for one in lines if one["mode"] == "lines"] == [0.0] * 4


def test_a_training_that_no_method_ends_has_no_chart_of_speedups(result: TrainingResult) -> None:
    missed = [replace(one, speedup_to_target=None) for one in result.rows]
    assert set(charts(replace(result, rows=tuple(missed)))) == {
        "Accuracy over simulated seconds: miss it, or inconclusive",
        "Accuracy over steps: miss it, or inconclusive",
    }
