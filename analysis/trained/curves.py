"""Training curves of all methods: the target's measure over simulated seconds.

A line is the median over seeds on the largest cluster with stated inputs. Methods that reach the
target have a separate panel; each is named at its end. The target is a line; a mark above the axes
is where a method's median seed reaches it. Accuracy is shown as the distance from 100 %,
logarithmically.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator
from matplotlib.transforms import ScaledTranslation
from numpy.typing import NDArray

from gcsim.analysis.page.charts import ERRORS, cut, distance
from gcsim.analysis.plots import style
from gcsim.analysis.plots.labels import write_labels
from gcsim.analysis.report.numbers import plural
from gcsim.analysis.trained.charts import level_of
from gcsim.analysis.trained.table import groups_of, label_text, middle_of, ranking
from gcsim.scenarios.result import Measure
from gcsim.scenarios.trained.result import TrainedRow, TrainingResult

_POINTS = 200  # points in time at which a line's seeds are compared
FOREMOST = 16  # methods that are not muted
_NAMES = {"accuracy": "accuracy [%]", "loss": "loss"}
_GRID: dict[str, Any] = {"color": "#E4E4E4", "linewidth": 0.7}
_TARGET: dict[str, Any] = {
    "color": style.GREY, "linewidth": 1.0, "linestyle": (0, (4, 2)), "zorder": 0.8,
}  # fmt: skip
_WIDE, _TALL, _BEFORE = 4.4, 4.1, 0.62  # inches of a panel's axes, and left of them
_MARK = 7.0  # size in points of a mark at the target
_LABEL, _LETTER = 0.2, 0.072  # inches of a name's height, and of a letter
Points = NDArray[np.float64]


def styles(result: TrainingResult) -> dict[str, style.LineStyle]:
    """Return styles by label of trained methods, the same in all figures of a result."""
    kinds = {row.label: row.compressor for row in result.rows if not row.untrained}
    return style.styles_of(kinds, {row.label for row in ranking(result)[:FOREMOST]})


def curves_figure(result: TrainingResult) -> Figure:
    """Draw the measure on held-out samples over seconds: methods that reach the target; others."""
    shown = groups_of(result)
    rooms = [_room(group) for group in shown.values()]
    width = sum(_BEFORE + _WIDE + room for room in rooms)
    with style.settings():
        figure = style.new_figure(width, _TALL + 1.0)
        left, titles, most = 0.0, [], 0
        for (title, group), room in zip(shown.items(), rooms, strict=True):
            x, y = (left + _BEFORE) / width, 0.6 / (_TALL + 1.0)
            axes = figure.add_axes((x, y, _WIDE / width, _TALL / (_TALL + 1.0)))
            most = max(most, _curves(figure, axes, result, group))
            name = "" if left else f"{result.scenario.get('name', 'scenario')}: "
            titles.append((axes, f"{name}{title}"))
            axes.set_ylabel(f"{_NAMES[result.measure]} on samples held out")
            left += _BEFORE + _WIDE + room
        for axes, text in titles:
            axes.set_title(text, pad=_MARK * (most + 1))
        return figure


def _room(rows: Sequence[TrainedRow]) -> float:
    """Return the inches of the longest name next to the axes."""
    return 0.72 + _LETTER * max(len(label_text(row)) for row in rows)


def _curves(figure: Figure, axes: Axes, result: TrainingResult, rows: Sequence[TrainedRow]) -> int:
    """Draw the lines of a panel, and return the number of rows of marks above it."""
    looks, ends, marks = styles(result), {}, []
    level = level_of(result)
    for row in rows:
        curves = [curve for curve in result.curves if curve.label == row.label]
        judged = [
            [distance(result.measure, value) for value in curve.judged(result.measure)]
            for curve in curves
        ]
        places, lines = _interpolated(judged, [curve.seconds for curve in curves])
        middle = np.median(lines, axis=0)
        look = style.look_of(looks[row.label], 1.6)
        axes.plot(places, middle, label=row.label, **(look | {"marker": ""}))
        ends[row.label] = float(places[-1]), float(middle[-1])
        if (at := middle_of(row.seconds_to_target)) is not None and at > 0:
            marks.append((at, look | {"linestyle": "none", "markersize": _MARK, "zorder": 5}))
    axes.set_xscale("log")
    rows_of_marks = _draw_marks(figure, axes, marks)
    style.plain_ticks(axes.xaxis)
    _measure_axis(axes, result.measure, level, [end for _, end in ends.values()])
    seeds = plural(len(rows[0].ended), "seed")
    axes.set_xlabel(
        f"simulated seconds on {plural(rows[0].workers, 'worker')}, median of {seeds}"
        + ("\nmark above: target reached for good" if rows[0].speedup_to_target else "")
    )
    axes.grid(**_GRID)
    texts = {row.label: label_text(row) for row in rows}
    own = {label: style.look_of(looks[label], 1.6) for label in ends}
    write_labels(axes, ends, texts, own, gap=_LABEL / _TALL, size=8.5)
    return rows_of_marks


def _draw_marks(figure: Figure, axes: Axes, marks: Sequence[tuple[float, dict[str, Any]]]) -> int:
    """Draw marks above the axes, off the lines; one that would cover an earlier one is placed above
    it. Return the number of their rows."""
    low, high = axes.set_xlim(*axes.get_xlim())
    last: list[float] = []  # place in points of the last mark in each row of marks
    for at, look in sorted(marks, key=lambda mark: mark[0]):
        place = 72 * _WIDE * np.log(at / low) / np.log(high / low)
        lines = (line for line, before in enumerate(last) if place - before >= _MARK)
        line = next(lines, len(last))
        last[line : line + 1] = [place]
        above = ScaledTranslation(0, _MARK * (line + 0.7) / 72, figure.dpi_scale_trans)
        axes.plot([at], [1], transform=axes.get_xaxis_transform() + above, clip_on=False, **look)
    return len(last)


def _measure_axis(axes: Axes, measure: Measure, level: float, ends: Sequence[float]) -> None:
    """Set up a logarithmic axis of the loss, or of the distance from 100 % with the best at the
    top, with its limits and a line at the target."""
    axes.set_yscale("log")
    axes.axhline(level, **_TARGET)
    shown = f"{level:g}" if measure == "loss" else f"{100 - level:g} %"
    axes.annotate(
        f"target {shown}", (0, level), (3, 3), xycoords=axes.get_yaxis_transform(),
        textcoords="offset points", size=8, color=style.GREY, annotation_clip=False,
    )  # fmt: skip
    axes.yaxis.set_minor_locator(NullLocator())
    if measure == "loss":
        low, high = axes.set_ylim(*axes.get_ylim())
        ticks = [tick for tick in np.linspace(0, 10, 51) if low <= tick <= high]
        axes.yaxis.set_major_locator(FixedLocator(ticks[:: max(1, len(ticks) // 8)]))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        return
    axes.yaxis.set_major_locator(FixedLocator(ERRORS))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 - value:g}"))
    axes.set_ylim(*cut(*axes.get_ylim(), ends, level))


def _interpolated(
    judged: Sequence[Sequence[float]], at: Sequence[Sequence[float]]
) -> tuple[Points, Points]:
    """Return common places, and each seed's values there, `[seeds, places]`."""
    ends = [places[-1] for places in at]
    starts = [places[min(1, len(places) - 1)] for places in at]
    if min(ends) <= 0:
        return np.zeros(1), np.array([[values[0]] for values in judged])
    common = np.geomspace(max(1e-12, min(starts)), min(ends), _POINTS)
    lines = [np.interp(common, places, values) for values, places in zip(judged, at, strict=True)]
    return common, np.array(lines)
