"""Does a training's picture show the target, methods at it, and others apart from them?"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from gcsim.analysis.plots import style
from gcsim.analysis.trained.curves import curves_figure, ratio_figure
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
    assert {*reach} == {"dense", "fast", "slow", "like"}
    assert {*others} == {"short (3 delays)", "miss (0 of 3 seeds)"}


def test_a_mark_is_where_the_median_seed_reaches_the_target(result: TrainingResult) -> None:
    """The axis is the distance from 100 %: of 0.97 it is 3, the best at the top."""
    axes = curves_figure(result).axes[0]
    marks = [at(line)[0] for line in axes.lines if len(at(line)) == 1]
    assert sorted(second for second, _ in marks) == pytest.approx([5, 20 / 1.2, 20, 40])
    assert [height for _, height in marks] == [3.0] * 4
    assert any([y for _, y in at(line)] == [3.0, 3.0] for line in axes.lines)  # the target
    bottom, top = axes.get_ylim()
    assert top < 3 < bottom
    assert axes.yaxis.get_major_formatter()(3, 0) == "97"


def test_a_loss_has_its_own_axis(result: TrainingResult) -> None:
    shown = replace(result, target="loss 0.2", measure="loss")
    for figure in (curves_figure(shown), ratio_figure(shown)):
        axes = figure.axes[0]
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


def test_points_of_too_few_steps_are_hollow_and_the_legend_says_so(result: TrainingResult) -> None:
    axes = ratio_figure(result).axes[0]
    points = [line for line in axes.lines if len(at(line)) == 1]
    hollow = {str(line.get_label()): line.get_markerfacecolor() == "white" for line in points}
    assert hollow == {row.label: row.label == "short" for row in result.rows}
    legend = axes.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()][-1] == "hollow: inconclusive"


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
