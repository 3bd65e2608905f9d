"""Stacked bars of the parts of an iteration at the largest size, fastest first.

The left panel shows whole iterations on one linear scale from zero. If slow methods dwarf others, a
right panel repeats the bars, cut off at a marked time, so that the small parts of fast methods are
legible.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from gcsim.analysis.plots import style
from gcsim.analysis.report.intervals import (
    has_ranges,
    in_brackets,
    iterations_vary,
    means_text,
    speedup_known,
)
from gcsim.analysis.report.numbers import elapsed, plural, significant, times
from gcsim.analysis.report.selection import at_largest
from gcsim.scenarios.result import PERCENTILES, Result, Row

NOW_AND_THEN = ("input_s", "optimizer_s")  # parts that are drawn only if a row has them

DOT = 0.008  # share of the axis below which a range is too short to draw

KNOWN = f"\n(upper line, in brackets: {PERCENTILES} over draws of the uncertain inputs)"

DWARFED = 1.8  # ratio of slowest iteration to zoomed scale above which it is drawn


def breakdown_figure(result: Result) -> Figure:
    """Draw a bar per method, stacked from the parts of `parts_of`. If iterations vary, bars are
    means with a thin line from the 5th to the 95th percentile. A line above it covers the middle 80
    % of the draws."""
    rows = at_largest(result)
    parts = parts_of(rows)
    cut = zoom_limit(rows)
    with style.settings():
        pitch = 0.36 if len(rows) <= style.MANY else 0.26
        below = 0.62 if not has_ranges(rows) else 0.8  # the label has a second line
        figure = style.new_figure(10.0 if cut is None else 12.4, 1.08 + below + pitch * len(rows))
        width, height = figure.get_size_inches()
        label_inches = 0.25 + 0.083 * max(len(row.label) for row in rows)
        left = min(0.35, label_inches / width)
        bottom, top = below / height, 1 - 0.82 / height
        share = 1.0 if cut is None else 0.56
        room = 0.985 - left
        axes = figure.add_axes((left, bottom, room * share - 0.012, top - bottom))
        _bars(axes, rows, limit=None, numbers=cut is None)
        _totals(axes, rows)
        axes.set_yticks(range(len(rows)), [row.label for row in rows])
        what = "time of one iteration [ms]"
        if iterations_vary(rows):
            what = f"{means_text(result)} [ms] (line: 5 to 95 %)"
        if has_ranges(rows):
            what = f"{what}, bars: default inputs"
        axes.set_xlabel(f"{what}, and the speedup against dense{KNOWN if has_ranges(rows) else ''}")
        if cut is not None:
            zoomed = figure.add_axes(
                (left + room * share + 0.012, bottom, room * (1 - share) - 0.012, top - bottom)
            )
            _bars(zoomed, rows, limit=cut, numbers=True)
            zoomed.set_yticks(range(len(rows)), [""] * len(rows))
            zoomed.set_xlabel(f"the first {cut * 1e3:g} ms of the same bars [ms]")
        named = sum(0.5 + 0.083 * len(name) for name, *_ in parts)  # inches
        figure.legend(
            handles=[
                Patch(facecolor=colour, hatch=hatch, edgecolor="white", linewidth=0.5, label=name)
                for name, _, colour, hatch in parts
            ],
            ncols=len(parts), loc="upper left",
            bbox_to_anchor=(max(0.0, min(left - 0.012, 1 - named / width)), 1 - 0.36 / height),
            frameon=False, handlelength=1.4,
            columnspacing=1.6 if len(parts) < len(style.PARTS) else 1.2,
        )  # fmt: skip
        figure.text(
            left, 1 - 0.22 / height, _title(result, rows), fontsize=12, fontweight="bold",
            va="center",
        )  # fmt: skip
        style.mark_synthetic(figure, result)
        return figure


def parts_of(rows: Sequence[Row]) -> list[tuple[str, str, str, str]]:
    """Return the entries of `style.PARTS` that these rows have."""
    return [
        part
        for part in style.PARTS
        if part[1] not in NOW_AND_THEN or any(getattr(row, part[1]) for row in rows)
    ]


def zoom_limit(rows: Sequence[Row]) -> float | None:
    """Return the end of the zoomed panel's scale in seconds: it fits the fastest third of the bars,
    rounded up in milliseconds. Returns None if one panel is enough."""
    totals = sorted(row.iteration_s for row in rows)
    needed = 1.08 * totals[(len(totals) - 1) // 3] * 1e3
    power = 10.0 ** math.floor(math.log10(needed))
    limit = next(step * power for step in (1, 1.5, 2, 3, 4, 5, 7.5, 10) if step * power >= needed)
    return limit / 1e3 if totals[-1] > DWARFED * limit / 1e3 else None


def _title(result: Result, rows: Sequence[Row]) -> str:
    first = rows[0]
    return (
        f"{result.scenario.get('name', 'scenario')}: where an iteration goes, "
        f"{plural(first.nodes, 'node')}, {plural(first.workers, 'worker')}"
    )


def _bars(axes: Axes, rows: Sequence[Row], *, limit: float | None, numbers: bool) -> None:
    """Draw stacked bars in milliseconds, with marks if they are cut at `limit`."""
    end = (limit or max(row.iteration_s for row in rows)) * 1e3
    starts = [0.0] * len(rows)
    for name, field, colour, hatch in parts_of(rows):
        widths = [getattr(row, field) * 1e3 for row in rows]
        axes.barh(
            range(len(rows)), widths, left=starts, height=0.7, color=colour, hatch=hatch,
            edgecolor="white", linewidth=0.5, label=name,
        )  # fmt: skip
        if numbers:
            _numbers(axes, starts, widths, end)
        starts = [start + width for start, width in zip(starts, widths, strict=True)]
    for place, row in enumerate(rows):
        if row.iteration_p5_s is not None and row.iteration_p95_s is not None:
            _line(axes, row.iteration_p5_s, row.iteration_p95_s, place + 0.22)
    for place, row in enumerate(rows):
        low, high = row.iteration_low_s or 0, row.iteration_high_s or 0
        if high * 1e3 - low * 1e3 > DOT * end:  # the middle 80 % of the draws
            _line(axes, low, high, place - 0.22)
    axes.set_ylim(len(rows) - 0.45, -0.55)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", color="#E4E4E4", linewidth=0.7)
    if limit is not None:
        axes.set_xlim(0, end)
        for place, total in enumerate(starts):
            if total > end:
                _cut_mark(axes, place)


def _line(axes: Axes, low: float, high: float, place: float) -> None:
    """Draw a thin line with end marks between two times in seconds."""
    axes.plot(
        [low * 1e3, high * 1e3], [place] * 2, color="black", linewidth=1.0, marker="|",
        markersize=5, clip_on=True,
    )  # fmt: skip


def _numbers(axes: Axes, starts: Sequence[float], widths: Sequence[float], limit: float) -> None:
    """Write the milliseconds into each part that is wide enough."""
    for place, (start, width) in enumerate(zip(starts, widths, strict=True)):
        shown = min(start + width, 0.96 * limit) - start
        if shown > 0.072 * limit:
            axes.text(
                start + shown / 2, place, significant(width), ha="center", va="center", fontsize=8,
                bbox={"boxstyle": "round,pad=0.12", "facecolor": "white", "edgecolor": "none"},
            )  # fmt: skip


def _cut_mark(axes: Axes, place: int) -> None:
    """Draw two white strokes across a bar that is cut off."""
    for shift in (0.0, 0.014):
        axes.plot(
            [0.968 + shift, 0.98 + shift], [place + 0.42, place - 0.42],
            transform=axes.get_yaxis_transform(), color="white", linewidth=2.2, clip_on=True,
        )  # fmt: skip


def _totals(axes: Axes, rows: Sequence[Row]) -> None:
    ends = [
        max(row.iteration_s, row.iteration_p95_s or 0.0, row.iteration_high_s or 0.0) * 1e3
        for row in rows
    ]
    axes.set_xlim(0, (1.6 if any(map(speedup_known, rows)) else 1.27) * max(ends))
    for place, (row, end) in enumerate(zip(rows, ends, strict=True)):
        speedup = "" if row.speedup_vs_dense is None else f"   {times(row.speedup_vs_dense)}"
        speedup += in_brackets(speedup_known(row))
        text = f" {elapsed(row.iteration_s)}{speedup}"
        axes.text(end, place, text, va="center", fontsize=9)
