"""Trade-off between speed and error: error against time and against bytes sent.

A point is a method at the largest size; a line joins the Pareto front. Exact updates are placed
below the smallest error, and methods without a point are named in a note.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, LogLocator, NullLocator

from gcsim.analysis.plots import style
from gcsim.analysis.report.numbers import plural
from gcsim.analysis.report.selection import at_largest
from gcsim.analysis.report.table import SCALE_FREE
from gcsim.scenarios.result import Result, Row

Point = tuple[float, float]

_LETTERS = 150  # letters of a line below the axes


def pareto_figure(result: Result) -> Figure:
    """Draw NMSE against milliseconds and megabytes, with a note on updates without a scale."""
    every = at_largest(result)
    rows = [row for row in every if row.nmse is not None]
    exact = exact_at(rows)
    with style.settings():
        figure = style.new_figure(11.0, 4.9)
        styles = style.line_styles(result)
        left, right = figure.subplots(1, 2, sharey=True)
        _points(left, rows, [row.iteration_s * 1e3 for row in rows], styles, exact)
        _points(right, rows, [row.wire_bytes_per_worker / 1e6 for row in rows], styles, exact)
        left.set_xlabel("time of one iteration [ms]")
        right.set_xlabel("sent per worker and iteration [MB]")
        left.set_ylabel("error of an update (NMSE)")
        left.set_title(
            f"{result.scenario.get('name', 'scenario')}: speed against error, "
            f"{plural(every[0].nodes, 'node')}"
        )
        right.legend(
            *left.get_legend_handles_labels(), loc="upper left", bbox_to_anchor=(1.02, 1.0),
            borderaxespad=0.0, frameon=False, fontsize=8.5,
        )  # fmt: skip
        style.mark_synthetic(figure, result)
        figure.subplots_adjust(left=0.085, right=0.78, top=0.92, bottom=0.12, wspace=0.08)
        if said := _without_a_point(every):
            figure.text(0.01, -0.01, textwrap.fill(said, _LETTERS), va="top", fontsize=8.5)
        return figure


def exact_at(rows: Sequence[Row]) -> float:
    """Return the place of exact updates on the axis: one to two decades below all errors."""
    least = min((row.nmse for row in rows if row.nmse), default=1.0)
    return 10.0 ** (math.floor(math.log10(least)) - 1)


def _without_a_point(rows: Sequence[Row]) -> str:
    """Return a note that names methods without an error, or with nothing sent."""
    scaleless = ", ".join(row.label for row in rows if row.nmse is None)
    silent = [row.label for row in rows if row.nmse is not None and not row.wire_bytes_per_worker]
    said = [f"Not shown: {scaleless}: {SCALE_FREE.partition(': ')[2]}"] if scaleless else []
    said += [f"Nothing is sent, so not shown on the right: {', '.join(silent)}."] if silent else []
    return " ".join(said)


def front(points: Sequence[Point]) -> list[Point]:
    """Return the Pareto front, from left to right: no other point is lower in both coordinates."""
    found: list[Point] = []
    for point in sorted(points):
        if not found or point[1] < found[-1][1]:
            found.append(point)
    return found


def _points(
    axes: Axes, rows: Sequence[Row], at: Sequence[float], styles: dict[str, style.LineStyle],
    exact: float,
) -> None:  # fmt: skip
    drawn = [
        (place, row.nmse or exact, row)
        for place, row in zip(at, rows, strict=True)
        if place > 0  # nothing was sent
    ]
    best = front([(place, error) for place, error, _ in drawn])
    axes.plot(
        *zip(*best, strict=True), color=style.GREY, linewidth=1.0, zorder=1, drawstyle="steps-post"
    )
    for place, error, row in drawn:
        own = styles[row.label]
        axes.plot(
            [place], [error], linestyle="none", marker=own.marker or ".", color=own.colour,
            markersize=7, markeredgecolor="white", markeredgewidth=0.6,
            label="_" if own.muted else row.label,
        )  # fmt: skip
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    style.plain_ticks(axes.xaxis)
    decades = [10.0**power for power in range(round(math.log10(exact)) + 1, 10)]
    axes.yaxis.set_major_locator(FixedLocator([exact, *decades]))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(
        lambda value, _: "no error" if value < 2 * exact else style.short(value)
    )
    axes.grid(color="#E4E4E4", linewidth=0.7)
