"""Speedup to the target of every method on the largest cluster: a point and a whisker each.

Filled points differ significantly from dense training, hollow ones do not. Methods without a
speedup are at the bottom, with the reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gcsim.analysis.plots import style
from gcsim.analysis.report.numbers import fixed, plural
from gcsim.analysis.trained.table import coverage, like_dense, ranking, speedup_range
from gcsim.scenarios.trained.horizon import in_words
from gcsim.scenarios.trained.result import TrainedRow, TrainingResult
from gcsim.simulator.training import DENSE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ROW = 0.29  # inches per row
_AROUND = 1.15  # inches above and below the rows
_WIDEST = 8.0  # largest ratio of the axis' end to the extreme speedup; arrows mark longer whiskers


def gains_figure(result: TrainingResult) -> Figure:
    """Draw speedups to the target over dense training, the largest first."""
    rows = [row for row in ranking(result) if not row.untrained]
    with style.settings():
        tall = _ROW * len(rows)
        height = tall + _AROUND
        figure = style.new_figure(8.6, height)
        axes = figure.add_axes((0.29, 0.66 / height, 0.53, tall / height))
        low, high = limits_of(rows)
        axes.set_xscale("log")
        axes.set_xlim(low, high)
        style.plain_ticks(axes.xaxis)
        for place, row in enumerate(rows):
            _interval(axes, place, row, (low, high))
        axes.axvline(1, color=style.BLACK, linewidth=1.0, zorder=1)
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.set_yticks(range(len(rows)), [row.label for row in rows])
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)
        axes.grid(axis="x", color="#E4E4E4", linewidth=0.7)
        axes.set_xlabel(
            f"speedup to the target over dense training, {plural(rows[0].workers, 'worker')}\n"
            f"whisker: {coverage(len(rows[0].ended))}; filled: differs from dense"
        )
        name = result.scenario.get("name", "scenario")
        axes.set_title(f"{name}: speedup to {result.target}")
        return figure


def limits_of(rows: Sequence[TrainedRow]) -> tuple[float, float]:
    """Return the ends of the axis of speedups."""
    gains = [row.speedup_to_target for row in rows if row.speedup_to_target]
    least, most = min(gains), max(gains)
    ends = [end for row in rows if row.speedup_to_target for end in ends_of(row) if end]
    low = max(min([least, 1.0, *ends]), min(least, 1.0) / _WIDEST)
    high = min(max([most, 1.0, *ends]), max(most, 1.0) * _WIDEST)
    return low / 1.25, high * 1.25


def ends_of(row: TrainedRow) -> tuple[float, float | None]:
    """Return the ends of a row's range; the upper one is None if there is none."""
    return row.speedup_to_target_low or 0.0, row.speedup_to_target_high


def colour_of(row: TrainedRow) -> str:
    """Return the colour of a speedup: faster, slower, or not significant."""
    if like_dense(row) is not False:
        return style.BLACK if row.compressor == DENSE else style.GREY
    return style.BLUE if (row.speedup_to_target or 0.0) > 1 else style.VERMILION


def _interval(axes: Axes, place: int, row: TrainedRow, limits: tuple[float, float]) -> None:
    """Draw one row: whisker, point and numbers, or why it has none."""
    beside: dict[str, Any] = {"transform": axes.get_yaxis_transform(), "va": "center"}
    if row.speedup_to_target is None:
        why = f"{row.reached} of {plural(len(row.ended), 'seed')} at the target"
        if row.too_short:
            why = f"inconclusive: only {in_words(row.delays or 0)}"
        axes.text(0.02, place, why, color=style.GREY, fontsize=8.5, **beside)
        return
    gain = row.speedup_to_target
    if row.compressor == DENSE:
        axes.plot([gain], [place], "o", color=style.BLACK, markersize=6, label=row.label, zorder=3)
        return
    low, high = ends_of(row)
    apart, colour = like_dense(row) is False, colour_of(row)
    start, end = max(low, limits[0]), min(high or limits[1], limits[1])
    axes.hlines(place, start, end, color=colour, linewidth=1.8, zorder=2)
    if start > low:
        axes.plot([start], [place], "<", color=colour, markersize=5, clip_on=False)
    if high is None or end < high:
        axes.plot([end], [place], ">", color=colour, markersize=5, clip_on=False)
    axes.plot(
        [gain], [place], "o", markersize=7, zorder=3, label=row.label, markeredgecolor=colour,
        markerfacecolor=colour if apart else "white", markeredgewidth=1.6,
    )  # fmt: skip
    axes.text(1.02, place, f"{fixed(gain, 2)}x ({speedup_range(row)})", fontsize=8.5, **beside)
