"""Figures of a validation: scatter plots, the distribution of errors, and scaling curves.

Scatter plots have logarithmic axes, so that an error of 10 % is equally far from the diagonal at a
microsecond and at a minute. Points used in a fit are hollow.

In the distribution, a line is the share of points up to an absolute error: coloured per suite with
its fitted factors, black for all, dashed for all with the catalogue alone. Bytes and points used in
a fit are omitted.

Scaling curves show measured and predicted values, with a panel per cluster; throughputs are per
worker, so a curve without losses is flat.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle, product
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from gcsim.analysis.plots import style
from gcsim.analysis.report.numbers import plural
from gcsim.analysis.validation.judge import Report
from gcsim.analysis.validation.report.table import percent
from gcsim.analysis.validation.statistics import by_series, grouped, not_fitted
from gcsim.analysis.validation.suite import Point
from gcsim.errors import InternalError
from gcsim.simulator.training import DENSE

BAND = 0.1  # relative error at the edge of the grey band
NAMES = {"s": "time [s]", "samples/s": "throughput [samples/s]", "bytes": "size [B]", "x": "[x]"}
"""Axis titles, by unit."""
_LINE_INCHES = 0.15
_MANY = 14  # number of series from which a legend has two columns


def scatter_figure(reports: Sequence[Report]) -> Figure:
    """Draw predicted against measured, with a panel per suite and unit and a colour per series."""
    groups = [
        (report, unit, points)
        for report in reports
        for unit, points in grouped(report.findings.points, lambda point: point.unit).items()
        if unit != "x"
    ]
    if not groups:
        raise InternalError("a scatter of nothing")
    groups.sort(key=lambda group: -_lines(group[2]))  # then legends of a row have similar lengths
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
    with style.settings():
        figure = style.new_figure(width, height)
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
    """Return the number of lines of the legend."""
    series = len(by_series(points))
    return math.ceil(series / 2) if series > _MANY else series


def _scatter(axes: Axes, report: Report, unit: str, points: Sequence[Point], under: float) -> None:
    values = [number for point in points for number in (point.measured, point.predicted)]
    low, high = min(values) / 1.4, max(values) * 1.4
    line = [low, high]
    axes.fill_between(
        line, [v * (1 - BAND) for v in line], [v * (1 + BAND) for v in line],
        color="#EBEBEB", linewidth=0, zorder=0,
    )  # fmt: skip
    axes.plot(line, line, color=style.GREY, linewidth=0.8, zorder=1)
    # the marker changes when all colours are used
    looks = cycle((colour, marker) for marker, colour in product(style.MARKERS, style.COLOURS))
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
    style.plain_ticks(axes.xaxis)
    style.plain_ticks(axes.yaxis)
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


_LEAST, _MOST = 1e-3, 10.0  # range of errors in the plot; smaller ones are at the left edge
_TICKS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
_DASHES: tuple[Any, ...] = ("solid", (0, (1.2, 1.0)))
"""Dash styles for the first and the second use of the suites' colours."""
_SHARES = (0.0, 0.25, 0.5, 0.75, 0.9, 1.0)


def errors_figure(reports: Sequence[Report]) -> Figure:
    """Draw the distribution of errors of all suites."""
    with style.settings():
        figure = style.new_figure(8.6, 4.3)
        axes = figure.add_axes((0.085, 0.13, 0.6, 0.78))
        handles, together = [], []
        for number, report in enumerate(reports):
            points = [p for p in not_fitted(report.findings.points) if p.unit not in {"bytes", "x"}]
            if not points:
                continue
            together += points
            round_, place = divmod(number, len(style.COLOURS))
            look = {"color": style.COLOURS[place], "linestyle": _DASHES[round_ % len(_DASHES)]}
            _rising(axes, [abs(p.error) for p in points], linewidth=1.3, **look)
            label = f"{report.suite.name} ({plural(len(points), 'point')})"
            handles.append(Line2D([], [], linewidth=1.3, label=label, **look))
        bare = [abs(p.unfitted_error) for p in together if p.unfitted_error is not None]
        both: tuple[tuple[str, list[float], Any], ...] = (
            ("all, with what was fitted", [abs(p.error) for p in together], "solid"),
            ("all, catalogue alone", bare, "dashed"),
        )
        for label, errors, dashes in both:
            _rising(axes, errors, color="black", linestyle=dashes, linewidth=2.2)
            handles.append(
                Line2D([], [], color="black", linestyle=dashes, linewidth=2.2, label=label)
            )
        axes.set(xscale="log", xlim=(_LEAST, _MOST), ylim=(0, 1.01))
        axes.xaxis.set_major_locator(FixedLocator(_TICKS))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value * 100:g} %"))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_locator(FixedLocator(_SHARES))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0%}"))
        axes.grid(color="#E4E4E4", linewidth=0.7)
        axes.set_xlabel("absolute error of a prediction, at most")
        axes.set_ylabel("share of the measurements")
        axes.set_title("How far predictions are from what was measured")
        axes.legend(
            handles=handles, loc="upper left", bbox_to_anchor=(1.02, 1.0), frameon=False,
            fontsize=8.5, borderpad=0.0,
        )  # fmt: skip
        return figure


def _rising(axes: Axes, errors: Sequence[float], **look: Any) -> None:
    if errors:
        ordered = np.sort(np.maximum(errors, _LEAST))
        heights = np.arange(1, len(ordered) + 1) / len(ordered)
        axes.step([_LEAST, *ordered, _MOST], [0.0, *heights, 1.0], where="post", **look)


_LINEAR = 8  # ratio of largest to smallest value up to which an axis is linear from 0


@dataclass(frozen=True, slots=True)
class _Look:
    colour: str
    dashes: Any
    marker: str


def has_curves(report: Report) -> bool:
    """Whether a suite has points that form curves."""
    return bool(_on_curves(report))


def _on_curves(report: Report) -> list[Point]:
    return [point for point in report.findings.points if point.panel and point.x is not None]


def curves_figure(report: Report) -> Figure:
    """Draw small multiples: measured (markers) and predicted (lines), with a panel per cluster."""
    panels = grouped(_on_curves(report), lambda point: point.panel)
    looks = _curve_looks(list(dict.fromkeys(p.curve for own in panels.values() for p in own)))
    columns = min(4 if len(panels) > 6 else 3, len(panels))
    rows = math.ceil(len(panels) / columns)
    side, tall, gap, between = 2.75, 2.1, 0.75, 0.72
    across = max(1, int((columns * (side + gap)) / 2.3))
    footer = 0.3 + 0.2 * math.ceil((len(looks) + 2) / across)
    width = 0.1 + columns * (side + gap)
    height = 0.5 + rows * (tall + between) + footer
    with style.settings():
        figure = style.new_figure(width, height)
        figure.text(0.15 / width, 1 - 0.1 / height, report.suite.title, va="top", weight="bold")
        for number, (name, points) in enumerate(panels.items()):
            row, column = divmod(number, columns)
            left = 0.65 + column * (side + gap)
            bottom = height - 0.5 - (row + 1) * (tall + between) + 0.55
            axes = figure.add_axes((left / width, bottom / height, side / width, tall / height))
            _panel(axes, name, points, looks)
            if number + columns >= len(panels):
                axes.set_xlabel(report.suite.figure_x, fontsize=8)
        _curve_legend(figure, looks, across, height)
        return figure


def _curve_looks(names: Sequence[str]) -> dict[str, _Look]:
    """Return colour and dashes of curves; the dense exchange is black."""
    # neighbours also differ in dashes, so that both of two coinciding lines are visible
    markers = cycle(marker for marker in style.MARKERS for _ in style.COLOURS)
    drawn = zip(cycle(style.COLOURS), cycle(style.DASHES), markers, strict=False)
    return {
        name: _Look(style.BLACK, "solid", "o") if name in {DENSE, "dense"} else _Look(*next(drawn))
        for name in names
    }


def _panel(axes: Axes, name: str, points: Sequence[Point], looks: dict[str, _Look]) -> None:
    for curve, own in grouped(points, lambda point: point.curve).items():
        own.sort(key=lambda point: point.x or 0.0)
        look = looks[curve]
        x = [point.x or 0.0 for point in own]
        axes.plot(
            x, [_shown(point, point.predicted) for point in own], color=look.colour,
            linewidth=1.1, linestyle=look.dashes,
            marker="_" if len(set(x)) == 1 else "", markersize=14,
        )  # fmt: skip
        for fitted in (False, True):
            chosen = [point for point in own if point.fitted is fitted]
            axes.plot(
                [point.x or 0.0 for point in chosen],
                [_shown(point, point.measured) for point in chosen], linestyle="none",
                marker=look.marker, markersize=4.0, markeredgecolor=look.colour,
                markerfacecolor="white" if fitted else look.colour, markeredgewidth=0.8,
            )  # fmt: skip
    _panel_axes(axes, points)
    # a fixed place: matplotlib would lay out ticks again to find one
    axes.set_title(name, fontsize=9 if len(name) <= 34 else 8, y=1.0)
    throughput = points[0].unit == "samples/s"
    axes.set_ylabel("samples/s per worker" if throughput else NAMES[points[0].unit], fontsize=8)


def _panel_axes(axes: Axes, points: Sequence[Point]) -> None:
    heights = [
        _shown(point, each) for point in points for each in (point.measured, point.predicted)
    ]
    axes.set_xscale("log")
    if max(heights) > _LINEAR * min(heights):
        axes.set_yscale("log")
        style.plain_ticks(axes.yaxis)
        axes.yaxis.set_minor_locator(NullLocator())
    else:
        axes.set_ylim(0, max(heights) * 1.08)
        # no offset in the corner, which is the title's place
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    places = sorted({point.x or 0.0 for point in points})
    few = places if len(places) <= 7 else places[:: math.ceil(len(places) / 6)]
    axes.xaxis.set_major_locator(FixedLocator(few))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: style.short(value)))
    axes.xaxis.set_minor_locator(NullLocator())
    if len(places) == 1:
        axes.set_xlim(places[0] / 2, places[0] * 2)
    axes.grid(color="#E8E8E8", linewidth=0.6)
    axes.tick_params(labelsize=7.5)


def _shown(point: Point, value: float) -> float:
    return value / point.workers if point.unit == "samples/s" else value


def _curve_legend(figure: Figure, looks: dict[str, _Look], across: int, height: float) -> None:
    handles = [
        Line2D([], [], color=look.colour, marker=look.marker, linestyle=look.dashes, linewidth=1.1,
               markersize=4.0, label=name)
        for name, look in looks.items()
    ]  # fmt: skip
    handles.append(Line2D([], [], color=style.GREY, linewidth=1.1, label="line: predicted"))
    handles.append(
        Line2D([], [], color=style.GREY, linestyle="none", marker="o", markersize=4.0,
               label="marker: measured (hollow: in the fit)")
    )  # fmt: skip
    figure.legend(
        handles=handles, loc="lower left", bbox_to_anchor=(0.01, 0.06 / height), ncols=across,
        fontsize=7.5, frameon=False, handletextpad=0.5, columnspacing=1.2, handlelength=2.6,
    )  # fmt: skip
