"""Where do predictions and measurements part? A scatter of all points, and scaling curves.

Both figures have logarithmic axes: an error of 10 % is as far from the diagonal at a microsecond as
at a minute. Points that served a fit are hollow.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import cycle, product
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator

from gcsim.analysis.numbers import significant
from gcsim.analysis.plot_style import BLACK, COLOURS, GREY, MARKERS, new_figure, settings
from gcsim.analysis.validation.judge import Report
from gcsim.analysis.validation.statistics import by_series
from gcsim.analysis.validation.suite import DENSE, Point
from gcsim.analysis.validation.table import percent

BAND = 0.1
"""Relative error that the scatter's grey band reaches to."""
_LINE_INCHES = 0.165
_NAMES = {"s": "time [s]", "samples/s": "throughput [samples/s]", "bytes": "size [B]", "x": "[x]"}


# --- the scatter ---------------------------------------------------------------------------------


def scatter_figure(reports: Sequence[Report]) -> Figure:
    """Predicted against measured, a panel for each suite and unit, a colour for each series."""
    groups = [
        (report, unit, points)
        for report in reports
        for unit, points in _by_unit(report.findings.points).items()
        if unit != "x"
    ]
    groups.sort(key=lambda group: -len(by_series(group[2])))  # legends of a row are as long
    columns = min(3, len(groups))
    rows = math.ceil(len(groups) / columns)
    legend = [max(len(by_series(p)) for _, _, p in groups[r * columns : (r + 1) * columns])
              for r in range(rows)]  # fmt: skip
    below = [0.75 + _LINE_INCHES * lines for lines in legend]
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
        found = report.series.get(name)
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
        axis.set_label_text(f"{name} {_NAMES[unit]}")
    axes.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high), aspect="equal")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_formatter(NullFormatter())
    axes.set_title(report.suite.name if unit != "bytes" else f"{report.suite.name}: bytes sent")
    axes.legend(
        loc="upper left", bbox_to_anchor=(-0.12, -under), fontsize=7.2, frameon=False,
        handletextpad=0.2, labelspacing=0.22, borderpad=0.0,
    )  # fmt: skip


def _looks() -> Any:
    """Colour and marker; with more series than colours, markers change."""
    return cycle((colour, marker) for marker, colour in product(MARKERS, COLOURS))


# --- scaling curves ------------------------------------------------------------------------------


def has_curves(report: Report) -> bool:
    """Whether a suite's points form curves."""
    return any(point.panel and point.x is not None for point in report.findings.points)


def curves_figure(report: Report) -> Figure:
    """Small multiples: measured (markers) and predicted (lines), a panel for each cluster."""
    panels: dict[str, list[Point]] = {}
    for point in report.findings.points:
        if point.panel and point.x is not None:
            panels.setdefault(point.panel, []).append(point)
    names = list(dict.fromkeys(p.curve for own in panels.values() for p in own))
    looks = _looks()
    styles = {name: next(looks) for name in names if name not in {DENSE, "dense"}}
    styles |= {name: (BLACK, "o") for name in names if name in {DENSE, "dense"}}
    columns = min(4 if len(panels) > 6 else 3, len(panels))
    rows = math.ceil(len(panels) / columns)
    side, tall, gap, between = 2.75, 2.1, 0.75, 0.72
    across = max(1, int((columns * (side + gap)) / 2.3))
    footer = 0.3 + 0.2 * math.ceil((len(names) + 2) / across)
    width = 0.1 + columns * (side + gap)
    height = 0.5 + rows * (tall + between) + footer
    with settings():
        figure = new_figure(width, height)
        figure.text(0.15 / width, 1 - 0.1 / height, report.suite.title, va="top", weight="bold")
        for number, (name, points) in enumerate(panels.items()):
            row, column = divmod(number, columns)
            left = 0.65 + column * (side + gap)
            bottom = height - 0.5 - (row + 1) * (tall + between) + 0.55
            axes = figure.add_axes((left / width, bottom / height, side / width, tall / height))
            _panel(axes, name, points, styles)
            last = number + columns >= len(panels)
            if last:
                axes.set_xlabel(report.suite.figure_x, fontsize=8)
        _curve_legend(figure, styles, across, height)
        return figure


def _panel(
    axes: Axes, name: str, points: Sequence[Point], styles: dict[str, tuple[str, str]]
) -> None:
    curves: dict[str, list[Point]] = {}
    for point in points:
        curves.setdefault(point.curve, []).append(point)
    for curve, own in curves.items():
        own.sort(key=lambda point: point.x or 0.0)
        colour, marker = styles[curve]
        x = [point.x or 0.0 for point in own]
        axes.plot(x, [point.predicted for point in own], color=colour, linewidth=1.1)
        for point in own:
            axes.plot(
                [point.x or 0.0], [point.measured], linestyle="none", marker=marker, markersize=4.0,
                markerfacecolor="white" if point.fitted else colour, markeredgecolor=colour,
                markeredgewidth=0.8,
            )  # fmt: skip
    axes.set(xscale="log", yscale="log")
    places = sorted({point.x or 0.0 for point in points})
    few = places if len(places) <= 7 else places[:: math.ceil(len(places) / 6)]
    axes.xaxis.set_major_locator(FixedLocator(few))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _short(value)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_minor_formatter(NullFormatter())
    if len(places) == 1:
        axes.set_xlim(places[0] / 2, places[0] * 2)
    axes.grid(color="#E8E8E8", linewidth=0.6)
    axes.tick_params(labelsize=7.5)
    axes.set_title(name, fontsize=9)
    axes.set_ylabel(_NAMES[points[0].unit], fontsize=8)


def _curve_legend(
    figure: Figure, styles: dict[str, tuple[str, str]], across: int, height: float
) -> None:
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], color=colour, marker=marker, linewidth=1.1, markersize=4.0, label=name)
        for name, (colour, marker) in styles.items()
    ]
    handles.append(Line2D([], [], color=GREY, linewidth=1.1, label="line: predicted"))
    handles.append(
        Line2D([], [], color=GREY, linestyle="none", marker="o", markersize=4.0,
               label="marker: measured (hollow: in the fit)")
    )  # fmt: skip
    figure.legend(
        handles=handles, loc="lower left", bbox_to_anchor=(0.01, 0.06 / height), ncols=across,
        fontsize=7.5, frameon=False, handletextpad=0.5, columnspacing=1.2,
    )  # fmt: skip


def _short(value: float) -> str:
    for suffix, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= 0.995 * size:
            return f"{significant(value / size, 2)}{suffix}".replace(".0", "")
    return f"{value:g}"
