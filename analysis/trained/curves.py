"""Curves of training with each method: the target's measure over steps and seconds.

A line is the median over seeds, whiskers reach from the lowest to the highest seed. Seconds are
those of the largest cluster, as stated.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator
from numpy.typing import NDArray

from gcsim.analysis.plots import style
from gcsim.analysis.trained.table import ranked
from gcsim.scenarios.trained.result import TrainingResult

_POINTS = 200  # points over seconds at which a line's seeds are compared
FOREMOST = 16
"""Methods that stand out."""
_WHISKERS = 8
"""Per line, at places of its own."""
_APART = 1.02
"""Between the whiskers of two methods at one number of workers."""
_NAMES = {"accuracy": "accuracy [%]", "loss": "loss"}
Points = NDArray[np.float64]


def styles(result: TrainingResult) -> dict[str, style.LineStyle]:
    """Styles by label of a trained method, the same in all figures of a result."""
    kinds = {row.label: row.compressor for row in result.rows if not row.untrained}
    return style.styles_of(kinds, {row.label for row in ranked(result)[:FOREMOST]})


def curves_figure(result: TrainingResult) -> Figure:
    """The target's measure on the held-out samples over steps and over seconds."""
    with style.settings():
        figure = style.new_figure(11.0, 4.9)
        left, right = figure.subplots(1, 2, sharey=True)
        looks = styles(result)
        for label, look in looks.items():
            curves = [curve for curve in result.curves if curve.label == label]
            judged = [curve.judged(result.measure) for curve in curves]
            for axes, at in (
                (left, [curve.steps for curve in curves]),
                (right, [curve.seconds for curve in curves]),
            ):
                places, lines = _over(judged, at)
                axes.plot(
                    places, np.median(lines, axis=0), label=label, **(_look(look) | {"marker": ""})
                )
                if not look.muted and len(lines) > 1:
                    first = list(looks).index(label) / len(looks)  # between the others' whiskers
                    some = ((np.arange(_WHISKERS) + first) * len(places) / _WHISKERS).astype(int)
                    ends = lines[:, some].min(axis=0), lines[:, some].max(axis=0)
                    _whiskers(axes, places[some], *ends, look)
        largest = ranked(result)[0]
        left.set_xlabel("steps (whiskers: lowest to highest seed)")
        right.set_xlabel(f"simulated seconds on {largest.nodes} nodes, {largest.workers} workers")
        right.set_xscale("log")
        style.plain_ticks(right.xaxis)
        left.set_ylabel(f"{_NAMES[result.measure]} on samples held out")
        left.set_title(f"{result.scenario.get('name', 'scenario')}: {result.measure} over steps")
        right.set_title("and over time")
        for axes in (left, right):
            axes.grid(color="#E4E4E4", linewidth=0.7)
        _legend(figure, right, looks)
        figure.subplots_adjust(left=0.065, right=0.78, top=0.92, bottom=0.12, wspace=0.08)
        return figure


def gains_figure(result: TrainingResult) -> Figure:
    """Speedup to the target and its range against the number of workers, if it is reached."""
    with style.settings():
        figure = style.new_figure(8.6, 4.9)
        axes = figure.subplots()
        looks = styles(result)
        workers = sorted({row.workers for row in result.rows})
        for number, (label, look) in enumerate(looks.items()):
            rows = [row for row in result.rows if row.label == label and row.speedup_to_target]
            if not rows:
                continue
            at = [row.workers * _APART ** (number - len(looks) / 2) for row in rows]
            gains = [row.speedup_to_target or 0.0 for row in rows]
            axes.plot(at, gains, label=label, **_look(look))
            if not look.muted:
                low = [row.speedup_to_target_low or 0.0 for row in rows]
                high = [
                    row.speedup_to_target_high or gain
                    for row, gain in zip(rows, gains, strict=True)
                ]
                _whiskers(axes, at, low, high, look)
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_locator(FixedLocator(workers))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_ylim(bottom=0)
        axes.set_xlabel("number of workers\nwhisker: holds a further seed in 8 of 10 cases")
        axes.set_ylabel("speedup to the target, over dense")
        name = result.scenario.get("name", "scenario")
        axes.set_title(f"{name}: speedup to {result.target}")
        axes.grid(color="#E4E4E4", linewidth=0.7)
        _legend(figure, axes, looks)
        figure.subplots_adjust(left=0.085, right=0.7, top=0.92, bottom=0.16)
        return figure


def ratio_figure(result: TrainingResult) -> Figure:
    """Final accuracy or loss against the reduction of traffic; bars span the seeds."""
    with style.settings():
        figure = style.new_figure(8.6, 4.9)
        axes = figure.subplots()
        looks = styles(result)
        rows = [row for row in ranked(result) if not row.untrained]
        dense = max(row.wire_bytes_per_worker for row in rows)
        for row in sorted(rows, key=lambda row: list(looks).index(row.label)):
            if row.wire_bytes_per_worker:
                last = row.final(result.measure)
                _point(axes, dense / row.wire_bytes_per_worker, last, looks[row.label], row.label)
        axes.set_xscale("log")
        style.plain_ticks(axes.xaxis)
        axes.set_xlabel("compression ratio to the method that sends most, mean over training")
        axes.set_ylabel(f"final {_NAMES[result.measure]} on samples held out")
        name = result.scenario.get("name", "scenario")
        axes.set_title(f"{name}: {result.measure} against compression")
        axes.grid(color="#E4E4E4", linewidth=0.7)
        _legend(figure, axes, looks)
        figure.subplots_adjust(left=0.085, right=0.7, top=0.92, bottom=0.12)
        return figure


def _point(
    axes: Axes, ratio: float, last: Sequence[float], look: style.LineStyle, label: str
) -> None:
    axes.vlines(ratio, min(last), max(last), color=look.colour, linewidth=1.0)
    axes.plot([ratio], [median(last)], label=label, **{**_look(look), "linestyle": "none"})


def _over(
    judged: Sequence[Sequence[float]], at: Sequence[Sequence[float]]
) -> tuple[Points, Points]:
    """Common places, and each seed's values there `[seeds, places]`."""
    ends = [places[-1] for places in at]
    starts = [places[min(1, len(places) - 1)] for places in at]
    if min(ends) <= 0:
        return np.zeros(1), np.array([[values[0]] for values in judged])
    common = np.geomspace(max(1e-12, min(starts)), min(ends), _POINTS)
    lines = [np.interp(common, places, values) for values, places in zip(judged, at, strict=True)]
    return common, np.array(lines)


def _whiskers(
    axes: Axes, at: Sequence[float] | Points, low: Any, high: Any, look: style.LineStyle
) -> None:
    axes.vlines(at, low, high, color=look.colour, alpha=0.5, linewidth=1.6)


def _look(look: style.LineStyle) -> dict[str, Any]:
    return style.look_of(look, 1.6) | ({"marker": "."} if look.muted else {})


def _legend(figure: Figure, axes: Axes, looks: dict[str, style.LineStyle]) -> None:
    lines, labels = axes.get_legend_handles_labels()
    order = sorted(range(len(labels)), key=lambda number: list(looks).index(labels[number]))
    axes.legend(
        [lines[n] for n in order], [labels[n] for n in order], loc="upper left",
        bbox_to_anchor=(1.02, 1.0), borderaxespad=0.0, frameon=False, fontsize=8.5,
    )  # fmt: skip
