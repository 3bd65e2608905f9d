"""Progress of training when nodes fail: useful samples against time, at the largest size.

The top panel has a line per method, flat while no work counts (an iteration lost to a failure, a
restart, no node left). The middle panel shows it relative to undisturbed progress, so that slow
methods are legible. The bottom panel has a bar per failed node until its return.
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
from gcsim.analysis.plots.labels import write_labels
from gcsim.analysis.report.numbers import plural
from gcsim.analysis.report.selection import at_largest
from gcsim.errors import InternalError
from gcsim.scenarios.result import FaultyRuns, Outage, Progress, Result

UNITS = (("h", 3600.0, 2.0), ("min", 60.0, 2.0), ("s", 1.0, 0.0))
"""Time units: name, seconds, and the least number of units in a run for which the unit is used."""
INSTANTS = 1200  # points per line in the middle panel
NAMED = 12  # number of failed nodes up to which all are labelled

_LEFT, _PLOT, _GAP, _TOP, _BOTTOM = 1.08, 6.4, 0.16, 0.48, 0.62
_HEIGHTS = (3.6, 1.35)
_BAR, _LABEL = 0.24, 0.21  # inches

_DEATH: dict[str, Any] = {"color": style.VERMILION, "linewidth": 0.8, "linestyle": (0, (5, 2))}
_RETURN: dict[str, Any] = {"color": style.GREEN, "linewidth": 0.9, "linestyle": (0, (1, 1.5))}

Line = tuple[NDArray[np.float64], NDArray[np.float64]]  # seconds, and samples processed by then


def faults_figure(result: Result) -> Figure:
    """Draw progress, relative progress and outages; raises `InternalError` without faults."""
    faulty = result.faulty
    if faulty is None:
        raise InternalError("a figure of faults was asked for, of a run that has none")
    styles = style.line_styles(result)
    unit, seconds, _ = next(unit for unit in UNITS if faulty.horizon_s >= unit[1] * unit[2])
    nodes = sorted({outage.node for outage in faulty.outages})
    with style.settings():
        tall = max(_HEIGHTS[0], _LABEL * len(faulty.progress))
        bars = max(1.5, min(len(nodes), NAMED) + 0.5) * _BAR
        height = _TOP + tall + _GAP + _HEIGHTS[1] + _GAP + bars + _BOTTOM
        labels = _ends(faulty, result)
        width = _LEFT + _PLOT + 0.85 + 0.076 * max(len(text) for _, text in labels.values())
        figure = style.new_figure(width, height)
        axes = []
        top = height - _TOP
        for inches in (tall, _HEIGHTS[1], bars):
            place = (_LEFT / width, (top - inches) / height, _PLOT / width, inches / height)
            axes.append(figure.add_axes(place))
            top -= inches + _GAP
        _lines(axes[0], axes[1], faulty, styles, result)
        _outages(axes[2], faulty, nodes, seconds)
        for each in axes:
            each.set_xlim(0, faulty.horizon_s)
            each.grid(color="#E4E4E4", linewidth=0.7)
            each.xaxis.set_major_locator(_times(faulty.horizon_s / seconds, seconds))
            each.xaxis.set_major_formatter(FuncFormatter(lambda t, _: f"{t / seconds:g}"))
            _marks(each, faulty.outages)
        for above in axes[:2]:
            above.tick_params(axis="x", length=0, labelbottom=False)
        axes[2].grid(axis="y", visible=False)
        axes[2].set_xlabel(f"time [{unit}]")
        ends = {label: (faulty.horizon_s, done) for label, (done, _) in labels.items()}
        texts = {label: text for label, (_, text) in labels.items()}
        looks = {label: _look(own) for label, own in styles.items()}
        write_labels(axes[0], ends, texts, looks, gap=_LABEL / tall, size=9)
        axes[0].set_title(
            f"{result.scenario.get('name', 'scenario')}: training while nodes die, "
            f"{plural(faulty.nodes, 'node')}"
        )
        style.mark_synthetic(figure, result)
        return figure


def line(progress: Progress, horizon: float) -> Line:
    """Return the corners of a method's line of progress."""
    times, done = [0.0], [0.0]
    for start, end, count in progress.stretches:
        times += [start, end]
        done += [done[-1], done[-1] + count]
    return np.array([*times, horizon]), np.array([*done, done[-1]])


def undisturbed_rates(result: Result) -> dict[str, float]:
    """Return samples per second at the largest size without failures, by label."""
    return {row.label: row.throughput_samples_per_s for row in at_largest(result)}


def _lines(
    axes: Axes, shares: Axes, faulty: FaultyRuns, styles: dict[str, style.LineStyle], result: Result
) -> None:
    rates, first = undisturbed_rates(result), at_largest(result)[0]
    iteration = first.throughput_samples_per_s * first.iteration_s  # samples of all nodes
    instants = np.linspace(0, faulty.horizon_s, INSTANTS + 1)[1:]
    for one in faulty.progress:
        times, done = line(one, faulty.horizon_s)
        look = _look(styles[one.label])
        axes.plot(times, done, label=one.label, **look)
        share = 100 * np.interp(instants, times, done) / (instants * rates[one.label])
        whole = instants * rates[one.label] >= iteration  # no ratio before the first iteration ends
        shares.plot(instants[whole], share[whole], **look)
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _short(value)))
    axes.set_ylabel("useful samples")
    handles = [Line2D([], [], label="a node dies", **_DEATH)]
    if any(outage.end_s is not None for outage in faulty.outages):
        handles.append(Line2D([], [], label="it is back", **_RETURN))
    if faulty.outages:
        axes.legend(
            handles=handles, ncols=2, loc="lower left", bbox_to_anchor=(0.99, 0.985),
            frameon=False, fontsize=9,
        )  # fmt: skip
    shares.set_ylabel("share of a run\nwithout deaths [%]")
    shares.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))


def _outages(axes: Axes, faulty: FaultyRuns, nodes: Sequence[int], seconds: float) -> None:
    for outage in faulty.outages:
        end = faulty.horizon_s if outage.end_s is None else min(outage.end_s, faulty.horizon_s)
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
    """Mark failures with dashed lines and returns with dotted ones."""
    for outage in outages:
        axes.axvline(outage.start_s, zorder=1, **_DEATH)
        if outage.end_s is not None:
            axes.axvline(outage.end_s, zorder=1, **_RETURN)


def _short(samples: float) -> str:
    """Format a number with three digits: 870 k, 1.16 M."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if samples >= size:
            return f"{float(f'{samples / size:.3g}'):g} {unit}"
    return f"{samples:.0f}"


def _look(own: style.LineStyle) -> dict[str, Any]:
    return style.look_of(own) | {"marker": ""}


def _ends(faulty: FaultyRuns, result: Result) -> dict[str, tuple[float, str]]:
    """Return the processed samples and the text at the end of each line, by label."""
    rates, ends = undisturbed_rates(result), {}
    for one in faulty.progress:
        done = float(line(one, faulty.horizon_s)[1][-1])
        share = 100 * done / (faulty.horizon_s * rates[one.label])
        ends[one.label] = done, f"{_short(done)} ({share:.3g} %)  {one.label}"
    return ends


def _times(length: float, seconds: float) -> FixedLocator:
    """Return ticks at round numbers of a unit of `seconds`, in which the run lasts `length`."""
    found = MaxNLocator(nbins=8, steps=[1, 2, 3, 5, 10]).tick_values(0, length)
    return FixedLocator([seconds * each for each in found if each <= length * (1 + 1e-9)])
