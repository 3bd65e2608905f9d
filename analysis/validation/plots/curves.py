"""Does the simulator scale as the cluster did? Measured and predicted curves, a panel a cluster.

Points that served a fit are hollow. Of throughputs a worker's share is shown: it would be the same
at any size if nothing were lost.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from gcsim.analysis.plots.style import (
    BLACK,
    COLOURS,
    DASHES,
    GREY,
    MARKERS,
    new_figure,
    plain_ticks,
    settings,
    short,
)
from gcsim.analysis.validation.judge import Report
from gcsim.analysis.validation.plots.scatter import NAMES
from gcsim.analysis.validation.suite import DENSE, Point

_LINEAR = 8
"""Ratio of the largest to the smallest value up to which an axis is linear, from 0."""


@dataclass(frozen=True, slots=True)
class _Look:
    colour: str
    dashes: Any
    marker: str


def has_curves(report: Report) -> bool:
    """Whether a suite's points form curves."""
    return any(point.panel and point.x is not None for point in report.findings.points)


def curves_figure(report: Report) -> Figure:
    """Small multiples: measured (markers) and predicted (lines), a panel for each cluster."""
    panels: dict[str, list[Point]] = {}
    for point in report.findings.points:
        if point.panel and point.x is not None:
            panels.setdefault(point.panel, []).append(point)
    looks = _curve_looks(list(dict.fromkeys(p.curve for own in panels.values() for p in own)))
    columns = min(4 if len(panels) > 6 else 3, len(panels))
    rows = math.ceil(len(panels) / columns)
    side, tall, gap, between = 2.75, 2.1, 0.75, 0.72
    across = max(1, int((columns * (side + gap)) / 2.3))
    footer = 0.3 + 0.2 * math.ceil((len(looks) + 2) / across)
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
            _panel(axes, name, points, looks)
            if number + columns >= len(panels):
                axes.set_xlabel(report.suite.figure_x, fontsize=8)
        _curve_legend(figure, looks, across, height)
        return figure


def _curve_looks(names: Sequence[str]) -> dict[str, _Look]:
    """Colour and dashes tell curves apart; the dense exchange is black."""
    # neighbours differ in dashes, too: lines that lie on each other both show
    drawn = zip(cycle(COLOURS), cycle(DASHES), _markers(), strict=False)
    return {
        name: _Look(BLACK, "solid", "o") if name in {DENSE, "dense"} else _Look(*next(drawn))
        for name in names
    }


def _markers() -> Iterator[str]:
    """The next one with each round of colours."""
    return cycle(marker for marker in MARKERS for _ in COLOURS)


def _panel(axes: Axes, name: str, points: Sequence[Point], looks: dict[str, _Look]) -> None:
    curves: dict[str, list[Point]] = {}
    for point in points:
        curves.setdefault(point.curve, []).append(point)
    for curve, own in curves.items():
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
    # a place of its own: else ticks are laid out once more to find one
    axes.set_title(name, fontsize=9 if len(name) <= 34 else 8, y=1.0)
    throughput = points[0].unit == "samples/s"
    axes.set_ylabel("samples/s a worker" if throughput else NAMES[points[0].unit], fontsize=8)


def _panel_axes(axes: Axes, points: Sequence[Point]) -> None:
    heights = [
        _shown(point, each) for point in points for each in (point.measured, point.predicted)
    ]
    axes.set_xscale("log")
    if max(heights) > _LINEAR * min(heights):
        axes.set_yscale("log")
        plain_ticks(axes.yaxis)
        axes.yaxis.set_minor_locator(NullLocator())
    else:
        axes.set_ylim(0, max(heights) * 1.08)
    places = sorted({point.x or 0.0 for point in points})
    few = places if len(places) <= 7 else places[:: math.ceil(len(places) / 6)]
    axes.xaxis.set_major_locator(FixedLocator(few))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
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
    handles.append(Line2D([], [], color=GREY, linewidth=1.1, label="line: predicted"))
    handles.append(
        Line2D([], [], color=GREY, linestyle="none", marker="o", markersize=4.0,
               label="marker: measured (hollow: in the fit)")
    )  # fmt: skip
    figure.legend(
        handles=handles, loc="lower left", bbox_to_anchor=(0.01, 0.06 / height), ncols=across,
        fontsize=7.5, frameon=False, handletextpad=0.5, columnspacing=1.2, handlelength=2.6,
    )  # fmt: skip
