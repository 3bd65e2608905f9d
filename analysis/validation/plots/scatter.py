"""Where do predictions and measurements part? All points, predicted against measured.

Axes are logarithmic: an error of 10 % is as far from the diagonal at a microsecond as at a minute.
Points that served a fit are hollow.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import cycle, product

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from gcsim.analysis.plots.style import COLOURS, GREY, MARKERS, new_figure, plain_ticks, settings
from gcsim.analysis.validation.judge import Report
from gcsim.analysis.validation.report.table import percent
from gcsim.analysis.validation.statistics import by_series
from gcsim.analysis.validation.suite import Point
from gcsim.errors import InternalError

BAND = 0.1
"""Relative error that the grey band reaches to."""
NAMES = {"s": "time [s]", "samples/s": "throughput [samples/s]", "bytes": "size [B]", "x": "[x]"}
"""What an axis shows, by unit."""
_LINE_INCHES = 0.15
_MANY = 14
"""Series from which on a legend has two columns."""


def scatter_figure(reports: Sequence[Report]) -> Figure:
    """Predicted against measured, a panel for each suite and unit, a colour for each series."""
    groups = [
        (report, unit, points)
        for report in reports
        for unit, points in _by_unit(report.findings.points).items()
        if unit != "x"
    ]
    if not groups:
        raise InternalError("a scatter of nothing")
    groups.sort(key=lambda group: -_lines(group[2]))  # legends of a row are as long
    columns = min(3, len(groups))
    rows = math.ceil(len(groups) / columns)
    legend = [
        max(_lines(points) for _, _, points in groups[row * columns : (row + 1) * columns])
        for row in range(rows)
    ]
    below = [0.6 + _LINE_INCHES * lines for lines in legend]
    panel, gap = 3.6, 1.05
    width = 0.35 + columns * (panel + gap)
    height = 0.1 + sum(panel + 0.55 + each for each in below)
    with settings():
        figure = new_figure(width, height)
        top = height - 0.1
        for row in range(rows):
            bottom = top - 0.55 - panel
            for column, (report, unit, points) in enumerate(
                groups[row * columns : (row + 1) * columns]
            ):
                left = 0.75 + column * (panel + gap)
                axes = figure.add_axes(
                    (left / width, bottom / height, panel / width, panel / height)
                )
                _scatter(axes, report, unit, points, 1.15 * 0.45 / panel)
            top = bottom - below[row]
        return figure


def _lines(points: Sequence[Point]) -> int:
    """Of the legend."""
    series = len(by_series(points))
    return math.ceil(series / 2) if series > _MANY else series


def _by_unit(points: Sequence[Point]) -> dict[str, list[Point]]:
    found: dict[str, list[Point]] = {}
    for point in points:
        found.setdefault(point.unit, []).append(point)
    return found


def _scatter(axes: Axes, report: Report, unit: str, points: Sequence[Point], under: float) -> None:
    values = [number for point in points for number in (point.measured, point.predicted)]
    low, high = min(values) / 1.4, max(values) * 1.4
    line = [low, high]
    axes.fill_between(
        line, [v * (1 - BAND) for v in line], [v * (1 + BAND) for v in line],
        color="#EBEBEB", linewidth=0, zorder=0,
    )  # fmt: skip
    axes.plot(line, line, color=GREY, linewidth=0.8, zorder=1)
    looks = _looks()
    for name, own in by_series(points).items():
        colour, marker = next(looks)
        found = report.lines.get(name)
        error = "" if found is None else f", {percent(found.median)} %"
        for fitted in (False, True):
            chosen = [point for point in own if point.fitted is fitted]
            axes.plot(
                [point.measured for point in chosen], [point.predicted for point in chosen],
                linestyle="none", marker=marker, markersize=4.2, alpha=0.85,
                markerfacecolor="white" if fitted else colour, markeredgecolor=colour,
                markeredgewidth=0.7, zorder=2 + (not fitted),
                label=None if fitted else f"{name}{error}",
            )  # fmt: skip
    for axis, name in ((axes.xaxis, "measured"), (axes.yaxis, "predicted")):
        axis.set_label_text(f"{name} {NAMES[unit]}")
    axes.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high), aspect="equal")
    plain_ticks(axes.xaxis)
    plain_ticks(axes.yaxis)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_locator(NullLocator())
    title = report.suite.name if unit != "bytes" else f"{report.suite.name}: bytes sent"
    axes.set_title(title, y=1.0)
    many = len(by_series(points)) > _MANY
    axes.legend(
        loc="upper left", bbox_to_anchor=(-0.12, -under), frameon=False, borderpad=0.0,
        fontsize=6.4 if many else 7.2, ncols=2 if many else 1, columnspacing=0.8,
        handletextpad=0.2, labelspacing=0.22,
    )  # fmt: skip


def _looks() -> Iterator[tuple[str, str]]:
    """Colour and marker; with more series than colours, markers change."""
    return cycle((colour, marker) for marker, colour in product(MARKERS, COLOURS))
