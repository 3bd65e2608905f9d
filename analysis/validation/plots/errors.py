"""How large are the errors, not only in the middle? Their distribution.

A line rises to the share of points whose absolute error is at most so large: a coloured one for
each suite, with its fitted factors; in black all suites together, and dashed the same with the
catalogue alone. Points that served a fit, and bytes, have no part in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from gcsim.analysis.plots.style import COLOURS, new_figure, settings
from gcsim.analysis.report.numbers import plural
from gcsim.analysis.validation.judge import Report
from gcsim.analysis.validation.statistics import judged
from gcsim.analysis.validation.suite import Point

_LEAST, _MOST = 1e-3, 10.0
"""Errors between which they are drawn; smaller ones stand at the left edge."""
_TICKS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
_DASHES: tuple[Any, ...] = ("solid", (0, (1.2, 1.0)))
"""Of the suites, in turn; a second round of colours is dotted."""
_SHARES = (0.0, 0.25, 0.5, 0.75, 0.9, 1.0)


def errors_figure(reports: Sequence[Report]) -> Figure:
    """One axes for all suites."""
    with settings():
        figure = new_figure(8.6, 4.3)
        axes = figure.add_axes((0.085, 0.13, 0.6, 0.78))
        handles, together = [], []
        for number, report in enumerate(reports):
            points = [p for p in judged(report.findings.points) if p.unit not in {"bytes", "x"}]
            if not points:
                continue
            together += points
            round_, place = divmod(number, len(COLOURS))
            style = {"color": COLOURS[place], "linestyle": _DASHES[round_ % len(_DASHES)]}
            _rising(axes, [abs(p.error) for p in points], linewidth=1.3, **style)
            label = f"{report.suite.name} ({plural(len(points), 'point')})"
            handles.append(Line2D([], [], linewidth=1.3, label=label, **style))
        both: tuple[tuple[str, list[float], Any], ...] = (
            ("all, with what was fitted", [abs(p.error) for p in together], "solid"),
            ("all, catalogue alone", _unfitted(together), "dashed"),
        )
        for label, errors, dashes in both:
            _rising(axes, errors, color="black", linestyle=dashes, linewidth=2.2)
            handles.append(
                Line2D([], [], color="black", linestyle=dashes, linewidth=2.2, label=label)
            )
        axes.set(xscale="log", xlim=(_LEAST, _MOST), ylim=(0, 1.01))
        axes.xaxis.set_major_locator(FixedLocator(_TICKS))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value * 100:g} %"))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_locator(FixedLocator(_SHARES))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0%}"))
        axes.grid(color="#E4E4E4", linewidth=0.7)
        axes.set_xlabel("absolute error of a prediction, at most")
        axes.set_ylabel("share of the measurements")
        axes.set_title("How far predictions are from what was measured")
        axes.legend(
            handles=handles, loc="upper left", bbox_to_anchor=(1.02, 1.0), frameon=False,
            fontsize=8.5, borderpad=0.0,
        )  # fmt: skip
        return figure


def _unfitted(points: Sequence[Point]) -> list[float]:
    return [abs(p.unfitted_error) for p in points if p.unfitted_error is not None]


def _rising(axes: Axes, errors: Sequence[float], **style: Any) -> None:
    if errors:
        ordered = np.sort(np.maximum(errors, _LEAST))
        heights = np.arange(1, len(ordered) + 1) / len(ordered)
        axes.step([_LEAST, *ordered, _MOST], [0.0, *heights, 1.0], where="post", **style)
