"""Throughput relative to one device, against the number of workers.

Both axes are logarithmic with base 2, so ideal scaling is the diagonal. Labels are at the right in
the order of final values, each joined to its line.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from gcsim.analysis.plots import style
from gcsim.analysis.plots.labels import write_labels
from gcsim.analysis.report.intervals import has_ranges
from gcsim.analysis.report.numbers import significant
from gcsim.scenarios.result import PERCENTILES, Result, Row

IDEAL = "ideal"
_IDEAL_LOOK: dict[str, Any] = {"color": style.GREY, "linewidth": 1.2, "linestyle": (0, (2, 2))}
LABEL_INCHES = 0.23  # distance of two labels; smaller with many methods
SMALL_LABEL_INCHES = 0.135


def speedup_figure(result: Result) -> Figure:
    """Draw a line per method, in the order of the rows, then the ideal line.

    Heights are `scaling_efficiency * workers`; whiskers cover the middle 80 % of the draws of the
    iteration. Methods with whiskers are shifted sideways at each size.
    """
    styles = style.line_styles(result)
    with style.settings():
        # axes of 5.9 x 5.2 inches, plus the space that the longest label needs
        small = any(own.muted for own in styles.values())
        width = 0.75 + 5.9 + 1.3 + (0.065 if small else 0.083) * max(map(len, styles))
        tall = max(5.18, SMALL_LABEL_INCHES * (len(styles) + 1)) if small else 5.18
        below = 0.92 if has_ranges(result.rows) else 0.74  # the label has a second line
        height = tall + 0.48 + below
        figure = style.new_figure(width, height)
        axes = figure.add_axes((0.75 / width, below / height, 5.9 / width, tall / height))
        shifts = _places(result, styles)
        for label, own in styles.items():
            rows = _of(result, label)
            places = [row.workers * shifts[label] for row in rows]
            axes.plot(
                places, list(map(relative_throughput, rows)), label=label, **style.look_of(own)
            )
            if not own.muted and has_ranges(rows):
                low, high = zip(*map(_ends, rows), strict=True)
                axes.vlines(
                    places, low, high, color=own.colour, linewidth=1.6, alpha=0.55, zorder=1.5
                )
        workers = sorted({row.workers for row in result.rows})
        reach = workers if len(workers) > 1 else [workers[0] / 2**0.5, workers[0] * 2**0.5]
        axes.plot(reach, reach, zorder=1, label=IDEAL, **_IDEAL_LOOK)
        _axes(axes, result, workers)
        _labels(
            axes, result, styles, shifts, (SMALL_LABEL_INCHES if small else LABEL_INCHES) / tall
        )
        style.mark_synthetic(figure, result)
        return figure


def relative_throughput(row: Row) -> float:
    """Return throughput over that of one device without communication."""
    return row.scaling_efficiency * row.workers


def _of(result: Result, label: str) -> list[Row]:
    return sorted((row for row in result.rows if row.label == label), key=lambda row: row.workers)


def _places(result: Result, styles: Mapping[str, style.LineStyle]) -> dict[str, float]:
    """Return the factor on the number of workers by which a method's points are shifted."""
    ranged = [
        label for label in styles if not styles[label].muted and has_ranges(_of(result, label))
    ]
    return dict.fromkeys(styles, 1.0) | style.side_by_side(ranged)


def _ends(row: Row) -> tuple[float, float]:
    """Return the heights of a point's middle 80 % of draws."""
    unit = relative_throughput(row) * row.iteration_s
    return (
        unit / (row.iteration_high_s or row.iteration_s),
        unit / (row.iteration_low_s or row.iteration_s),
    )


def _axes(axes: Axes, result: Result, workers: Sequence[int]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    values = [height for row in result.rows for height in _ends(row)]
    low = math.ceil(math.log2(min(*values, workers[0])))
    high = math.floor(math.log2(max(*values, workers[-1])))
    if len(workers) > 1:
        axes.set_xlim(workers[0] / 2**0.4, workers[-1] * 2**0.4)
    else:
        axes.set_xlim(workers[0] / 2**0.5, workers[0] * 2**0.5)
    low = min(low, high - 1)
    axes.set_ylim(min(*values, 2.0**low) / 2**0.3, max(*values, workers[-1]) * 2**0.25)
    nodes = {row.workers: row.nodes for row in result.rows}
    axes.xaxis.set_major_locator(FixedLocator(list(workers)))
    axes.xaxis.set_major_formatter(
        FuncFormatter(lambda value, _: f"{round(value)}\n({nodes[round(value)]})")
    )
    axes.yaxis.set_major_locator(FixedLocator([2.0**power for power in range(low, high + 1)]))
    axes.yaxis.set_major_formatter(
        FuncFormatter(lambda value, _: f"{value:g}" if value >= 1 else f"1/{round(1 / value)}")
    )
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_locator(NullLocator())
    axes.grid(color="#E4E4E4", linewidth=0.7)
    whisker = f"\nwhisker: {PERCENTILES} over the draws, one device at its median"
    axes.set_xlabel("number of workers (of nodes)" + whisker * has_ranges(result.rows))
    axes.set_ylabel("throughput relative to one device")
    axes.set_title(f"{result.scenario.get('name', 'scenario')}: throughput at each cluster size")


def _labels(
    axes: Axes,
    result: Result,
    styles: dict[str, style.LineStyle],
    places: Mapping[str, float],
    gap: float,
) -> None:
    """Draw names and final values next to the axes; `gap` is a share of the axes' height."""
    last = {label: _of(result, label)[-1] for label in styles}
    ends = {
        label: (row.workers * places[label], relative_throughput(row))
        for label, row in last.items()
    }
    most = float(max(row.workers for row in result.rows))
    ends[IDEAL] = most, most
    texts = {label: f"{significant(height)}x  {label}" for label, (_, height) in ends.items()}
    looks = {**{label: style.look_of(own) for label, own in styles.items()}, IDEAL: _IDEAL_LOOK}
    small = any(own.muted for own in styles.values())
    write_labels(axes, ends, texts, looks, gap=gap, size=7.5 if small else 9.5)
