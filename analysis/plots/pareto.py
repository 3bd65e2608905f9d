"""Price of speed: error, or accuracy where trained, against time and bytes.

A point is a method at the largest size; those unbeaten in both are joined, the Pareto front. Dense
training, without error, is at the lower edge.
"""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator

from gcsim.analysis.plots import style
from gcsim.analysis.report.numbers import plural
from gcsim.analysis.report.selection import at_largest
from gcsim.scenarios.result import Result, Row

Point = tuple[float, float]

LEAST = 1e-8  # NMSE of an exact update as drawn, or the smallest above zero if smaller


def pareto_figure(result: Result) -> Figure:
    """NMSE against milliseconds and megabytes, without updates that have no scale."""
    rows = [row for row in at_largest(result) if row.nmse is not None]
    with style.settings():
        figure = style.new_figure(11.0, 4.9)
        styles = style.line_styles(result)
        left, right = figure.subplots(1, 2, sharey=True)
        _points(left, rows, [row.iteration_s * 1e3 for row in rows], styles)
        _points(right, rows, [row.wire_bytes_per_worker / 1e6 for row in rows], styles)
        left.set_xlabel("time of one iteration [ms]")
        right.set_xlabel("sent per worker and iteration [MB]")
        left.set_ylabel("error of an update (NMSE)")
        first = at_largest(result)[0]
        left.set_title(
            f"{result.scenario.get('name', 'scenario')}: speed against error, "
            f"{plural(first.nodes, 'node')}"
        )
        right.legend(
            loc="upper left", bbox_to_anchor=(1.02, 1.0), borderaxespad=0.0, frameon=False,
            fontsize=8.5,
        )  # fmt: skip
        style.mark_synthetic(figure, result)
        figure.subplots_adjust(left=0.075, right=0.78, top=0.92, bottom=0.12, wspace=0.08)
        return figure


def errors(rows: Sequence[Row]) -> list[float]:
    """NMSE as drawn, 0 at the lower edge."""
    above = [row.nmse for row in rows if row.nmse]
    least = min([LEAST, *above])
    return [row.nmse or least for row in rows]


def front(points: Sequence[Point]) -> list[Point]:
    """Points that none has less of both of, from left to right."""
    found: list[Point] = []
    for point in sorted(points):
        if not found or point[1] < found[-1][1]:
            found.append(point)
    return found


def _points(
    axes: Axes, rows: Sequence[Row], at: Sequence[float], styles: dict[str, style.LineStyle]
) -> None:
    drawn = [
        (place, error, row)
        for place, error, row in zip(at, errors(rows), rows, strict=True)
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
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0e}"))
    axes.grid(color="#E4E4E4", linewidth=0.7)
