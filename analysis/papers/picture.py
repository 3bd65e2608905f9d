"""Reproduction of a paper's figure: lines are medians over seeds, bands or bars the range."""

from __future__ import annotations

import textwrap
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from gcsim.analysis.plots import style
from gcsim.scenarios.papers.preset import Line, Panel, Reproduction
from gcsim.simulator.training import DENSE

_ACROSS = 3  # most panels in a row
_WIDTH, _HEIGHT, _LEGEND = 4.1, 3.5, 1.9  # inches of a panel, and of the legend
_LETTERS = 10  # letters of the title per inch
_BASELINES = ("dense", "SGD", "FP", "no compression", "BaseLine")
"""Names in papers for training without compression: drawn black and solid."""
_FEW_LINES = 6  # most lines whose bands do not hide each other
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
    axes.set_title(panel.title, fontsize=10)
    axes.set_xlabel(panel.x)
    axes.set_ylabel(panel.y)
    axes.grid(color="#E4E4E4", linewidth=0.7)


def _line(axes: Axes, panel: Panel, line: Line, look: style.LineStyle) -> None:
    shown: dict[str, Any] = {"color": look.colour, "label": line.label}
    if panel.points:
        axes.vlines(line.x, line.low, line.high, color=look.colour, linewidth=1.0)
        axes.plot(line.x, line.y, linestyle="none", marker=look.marker, markersize=6, **shown)
        return
    marker = look.marker if len(line.x) <= _FEW_PLACES else ""
    axes.plot(
        line.x, line.y, linestyle=look.dashes, linewidth=1.5, marker=marker, markersize=5, **shown
    )
    if line.low and len(panel.lines) <= _FEW_LINES:
        axes.fill_between(line.x, line.low, line.high, color=look.colour, alpha=0.12, linewidth=0)
