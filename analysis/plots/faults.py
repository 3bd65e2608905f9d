"""Progress of training when nodes die: useful samples against time, at the largest size.

Above, a line per method, flat where nothing counts (an iteration destroyed by a death, a restart,
no node left); in the middle, the same over undisturbed progress, so that slow methods are legible;
below, a bar per dead node until its return.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator
from numpy.typing import NDArray

from gcsim.analysis.plots import style
from gcsim.analysis.plots.labels import joined
from gcsim.analysis.report.numbers import plural
from gcsim.analysis.report.selection import at_largest
from gcsim.errors import InternalError
from gcsim.scenarios.result import FaultyRuns, Outage, Progress, Result

UNITS = (("h", 3600.0, 2.0), ("min", 60.0, 2.0), ("s", 1.0, 0.0))
"""Time units: name, seconds, and the fewest that a run must last."""
INSTANTS = 1200  # points of the middle panel
NAMED = 12  # dead nodes up to which all are named

_LEFT, _PLOT, _GAP, _TOP, _BOTTOM = 1.08, 6.4, 0.16, 0.48, 0.62
_HEIGHTS = (3.6, 1.35)
_BAR, _LABEL = 0.24, 0.21  # inches

_DEATH: dict[str, Any] = {"color": style.VERMILION, "linewidth": 0.8, "linestyle": (0, (5, 2))}
_RETURN: dict[str, Any] = {"color": style.GREEN, "linewidth": 0.9, "linestyle": (0, (1, 1.5))}

Line = tuple[NDArray[np.float64], NDArray[np.float64]]  # seconds, and samples used by then


def faults_figure(result: Result) -> Figure:
    """Lines in the scenario's order, their shares, outages; `InternalError` without faults."""
    told = result.faulty
    if told is None:
        raise InternalError("a figure of faults was asked for, of a run that has none")
    styles = style.line_styles(result)
    unit, seconds, _ = next(unit for unit in UNITS if told.horizon_s >= unit[1] * unit[2])
    nodes = sorted({outage.node for outage in told.outages})
    with style.settings():
        tall = max(_HEIGHTS[0], _LABEL * len(told.progress))
        bars = max(1.5, min(len(nodes), NAMED) + 0.5) * _BAR
        height = _TOP + tall + _GAP + _HEIGHTS[1] + _GAP + bars + _BOTTOM
        labels = _ends(told, result)
        width = _LEFT + _PLOT + 0.85 + 0.076 * max(len(text) for _, text in labels.values())
        figure = style.new_figure(width, height)
        axes = []
        top = height - _TOP
        for inches in (tall, _HEIGHTS[1], bars):
            place = (_LEFT / width, (top - inches) / height, _PLOT / width, inches / height)
            axes.append(figure.add_axes(place))
            top -= inches + _GAP
        _lines(axes[0], axes[1], told, styles, result)
        _outages(axes[2], told, nodes, seconds)
        for each in axes:
            each.set_xlim(0, told.horizon_s)
            each.grid(color="#E4E4E4", linewidth=0.7)
            each.xaxis.set_major_locator(_times(told.horizon_s / seconds, seconds))
            each.xaxis.set_major_formatter(FuncFormatter(lambda t, _: f"{t / seconds:g}"))
            _marks(each, told.outages)
        for above in axes[:2]:
            above.tick_params(axis="x", length=0, labelbottom=False)
        axes[2].grid(axis="y", visible=False)
        axes[2].set_xlabel(f"time [{unit}]")
        ends = {label: (told.horizon_s, done) for label, (done, _) in labels.items()}
        texts = {label: text for label, (_, text) in labels.items()}
        looks = {label: _look(own) for label, own in styles.items()}
        joined(axes[0], ends, texts, looks, gap=_LABEL / tall, size=9)
        axes[0].set_title(
            f"{result.scenario.get('name', 'scenario')}: training while nodes die, "
            f"{plural(told.nodes, 'node')}"
        )
        style.mark_synthetic(figure, result)
        return figure


def line(progress: Progress, horizon: float) -> Line:
    """The corners of a method's line."""
    times, done = [0.0], [0.0]
    for start, end, count in progress.stretches:
        times += [start, end]
        done += [done[-1], done[-1] + count]
    return np.array([*times, horizon]), np.array([*done, done[-1]])


def undisturbed(result: Result) -> dict[str, float]:
    """Samples per second at the largest size without deaths, by label."""
    return {row.label: row.throughput_samples_per_s for row in at_largest(result)}


def _lines(
    axes: Axes, shares: Axes, told: FaultyRuns, styles: dict[str, style.LineStyle], result: Result
) -> None:
    rates, first = undisturbed(result), at_largest(result)[0]
    iteration = first.throughput_samples_per_s * first.iteration_s  # samples of all nodes
    instants = np.linspace(0, told.horizon_s, INSTANTS + 1)[1:]
    for one in told.progress:
        times, done = line(one, told.horizon_s)
        look = _look(styles[one.label])
        axes.plot(times, done, label=one.label, **look)
        share = 100 * np.interp(instants, times, done) / (instants * rates[one.label])
        whole = instants * rates[one.label] >= iteration  # before the first it tells nothing
        shares.plot(instants[whole], share[whole], **look)
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _short(value)))
    axes.set_ylabel("useful samples")
    handles = [Line2D([], [], label="a node dies", **_DEATH)]
    if any(outage.end_s is not None for outage in told.outages):
        handles.append(Line2D([], [], label="it is back", **_RETURN))
    if told.outages:
        axes.legend(
            handles=handles, ncols=2, loc="lower left", bbox_to_anchor=(0.99, 0.985),
            frameon=False, fontsize=9,
        )  # fmt: skip
    shares.set_ylabel("share of a run\nwithout deaths [%]")
    shares.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))


def _outages(axes: Axes, told: FaultyRuns, nodes: Sequence[int], seconds: float) -> None:
    for outage in told.outages:
        end = told.horizon_s if outage.end_s is None else min(outage.end_s, told.horizon_s)
        axes.barh(
            nodes.index(outage.node), end - outage.start_s, left=outage.start_s, height=0.62,
            color=style.VERMILION, alpha=0.85, linewidth=0,
        )  # fmt: skip
    every = max(1, -(-len(nodes) // NAMED))
    named = range(0, len(nodes), every)
    axes.set_yticks(named, [f"node {nodes[place]}" for place in named])
    axes.set_ylim(max(len(nodes), 1) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    if not nodes:
        axes.text(0.5, 0.5, "no node dies at this size", transform=axes.transAxes, ha="center",
                  va="center", fontsize=9)  # fmt: skip


def _marks(axes: Axes, outages: Sequence[Outage]) -> None:
    """Mark deaths with broken lines, returns with dotted ones."""
    for outage in outages:
        axes.axvline(outage.start_s, zorder=1, **_DEATH)
        if outage.end_s is not None:
            axes.axvline(outage.end_s, zorder=1, **_RETURN)


def _short(samples: float) -> str:
    """Number with three digits: 870 k, 1.16 M."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if samples >= size:
            return f"{float(f'{samples / size:.3g}'):g} {unit}"
    return f"{samples:.0f}"


def _look(own: style.LineStyle) -> dict[str, Any]:
    return style.look_of(own) | {"marker": ""}


def _ends(told: FaultyRuns, result: Result) -> dict[str, tuple[float, str]]:
    """Used samples and text at the lines' ends, by label."""
    rates, ends = undisturbed(result), {}
    for one in told.progress:
        done = float(line(one, told.horizon_s)[1][-1])
        share = 100 * done / (told.horizon_s * rates[one.label])
        ends[one.label] = done, f"{_short(done)} ({share:.3g} %)  {one.label}"
    return ends


def _times(length: float, seconds: float) -> FixedLocator:
    """Round numbers of a time unit of `seconds` seconds, of which the run lasts `length`."""
    found = MaxNLocator(nbins=8, steps=[1, 2, 3, 5, 10]).tick_values(0, length)
    return FixedLocator([seconds * each for each in found if each <= length * (1 + 1e-9)])
