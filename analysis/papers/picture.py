"""Reproduction of a paper's figure: lines are medians over seeds, bands or bars the range.

Accuracy is shown as the distance from 100 %, logarithmically.
"""

from __future__ import annotations

import textwrap
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from gcsim.analysis.page.charts import LEAST, ROOM, cut, error_ticks
from gcsim.analysis.plots import style
from gcsim.scenarios.papers.preset import Line, Panel, Reproduction
from gcsim.simulator.training import DENSE

_ACROSS = 3  # most panels in a row
_WIDTH, _HEIGHT, _LEGEND = 4.1, 3.5, 1.9  # inches of a panel, and of the legend
_LETTERS = 10  # letters of the title per inch
_BASELINES = ("dense", "SGD", "FP", "no compression", "BaseLine")
"""Names in papers for training without compression: drawn black and solid."""
_FEW_LINES = 6  # most lines whose bands do not hide each other
_FINEST = 0.5  # least final error in percent that sets the axis of accuracy
_FEW_PLACES = 7  # most places on the axis that all get a label


def figure(found: Reproduction) -> Figure:
    """Draw all panels of a reproduction."""
    panels = found.outcome.panels
    across = min(_ACROSS, len(panels))
    down = -(-len(panels) // across)
    labels = dict.fromkeys(line.label for panel in panels for line in panel.lines)
    one_each = all(len(panel.lines) == 1 for panel in panels)
    kinds = {label: DENSE if label in _BASELINES else "" for label in labels}
    looks = style.styles_of(kinds, set(labels))
    legend = 0.0 if one_each else _LEGEND
    width = _WIDTH * across + legend
    title = textwrap.wrap(f"{found.name}: {found.title}", int(_LETTERS * width))
    above = 0.2 + 0.2 * len(title)
    height = _HEIGHT * down + above
    with style.settings():
        drawn = style.new_figure(width, height)
        grid = drawn.subplots(down, across, squeeze=False)
        for number, axes in enumerate(grid.flat):
            if number < len(panels):
                _panel(axes, panels[number], looks)
            else:
                axes.set_axis_off()
        drawn.suptitle("\n".join(title), x=0.01, ha="left", fontsize=11, fontweight="bold")
        drawn.tight_layout(rect=(0, 0, 1 - legend / width, 1))
        if legend:
            handles = {
                text: handle
                for axes in grid.flat
                for handle, text in zip(*axes.get_legend_handles_labels(), strict=True)
            }
            drawn.legend(
                [handles[label] for label in labels if label in handles],
                [label for label in labels if label in handles], loc="upper right",
                bbox_to_anchor=(0.995, 1 - (above + 0.1) / height), frameon=False, fontsize=8.5,
            )  # fmt: skip
        return drawn


def _panel(axes: Axes, panel: Panel, looks: dict[str, style.LineStyle]) -> None:
    for line in panel.lines:
        _line(axes, panel, line, looks[line.label])
    if panel.log_x:
        axes.set_xscale("log")
        style.plain_ticks(axes.xaxis)
        places = sorted({x for line in panel.lines for x in line.x})
        if len(places) <= _FEW_PLACES and not panel.points:
            axes.xaxis.set_major_locator(FixedLocator(places))
            axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: style.short(value)))
            axes.xaxis.set_minor_locator(NullLocator())
    if panel.log_y:
        axes.set_yscale("log")
        style.plain_ticks(axes.yaxis)
    if panel.y.startswith("accuracy"):
        _accuracy_axis(axes, panel)
    axes.set_title(panel.title, fontsize=10)
    stopped = any(line.stopped for line in panel.lines)
    axes.set_xlabel(panel.x + ("\ncross: a run ends early" if stopped else ""))
    axes.set_ylabel(panel.y)
    axes.grid(color="#E4E4E4", linewidth=0.7)


def _accuracy_axis(axes: Axes, panel: Panel) -> None:
    """Set up an axis of the distance from 100 %, with the best at the top."""
    every = [max(LEAST, 100 - value) for line in panel.lines for value in line.y]
    last = [max(_FINEST, 100 - line.y[-1]) for line in panel.lines]
    far, near = cut(min(every) / ROOM, max(every) * ROOM, last, None)
    axes.set_yscale(
        "function",
        functions=(
            lambda value: -np.log(np.maximum(LEAST, 100 - value)),
            lambda height: 100 - np.exp(-height),
        ),
    )
    axes.set_ylim(100 - far, 100 - near)
    axes.yaxis.set_major_locator(FixedLocator([100 - tick for tick in error_ticks(far, near)]))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_locator(NullLocator())


def _line(axes: Axes, panel: Panel, line: Line, look: style.LineStyle) -> None:
    shown: dict[str, Any] = {"color": look.colour, "label": line.label}
    if panel.points:
        axes.vlines(line.x, line.low, line.high, color=look.colour, linewidth=1.0)
        axes.plot(line.x, line.y, linestyle="none", marker=look.marker, markersize=6, **shown)
        return
    marker = look.marker if len(line.x) <= _FEW_PLACES and not line.stopped else ""
    axes.plot(
        line.x, line.y, linestyle=look.dashes, linewidth=1.5, marker=marker, markersize=5, **shown
    )
    if line.stopped:
        axes.plot(line.x[-1:], line.y[-1:], color=look.colour, marker="x", markersize=7, zorder=5)
    if line.low and len(panel.lines) <= _FEW_LINES:
        axes.fill_between(line.x, line.low, line.high, color=look.colour, alpha=0.12, linewidth=0)
