"""Style of the figures: colours that colour-blind readers can distinguish, reproducible bytes.

Colours are those of Okabe and Ito ("Color Universal Design", 2008) without yellow, which is hardly
visible on white; further lines differ in marker and dashes. The uncompressed exchange is always
solid black. Neither `pyplot` nor any global setting is touched. Matplotlib is imported on use, so
that charts of a page (`analysis/page/charts.py`) share the colours without it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gcsim.analysis.report.numbers import significant
from gcsim.analysis.report.selection import at_largest
from gcsim.analysis.report.sources import SYNTHETIC_NOTE, are_synthetic
from gcsim.scenarios.result import Result
from gcsim.simulator.training import DENSE

if TYPE_CHECKING:
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

BLUE, ORANGE, GREEN = "#0072B2", "#E69F00", "#009E73"
VERMILION, PURPLE, SKY = "#D55E00", "#CC79A7", "#56B4E9"
BLACK, GREY, FAINT = "#000000", "#8A8A8A", "#BDBDBD"

COLOURS = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY)
DASHES: tuple[str | tuple[float, tuple[float, ...]], ...] = (
    "solid", (0.0, (5.0, 1.6)), (0.0, (1.2, 1.2)), (0.0, (6.0, 1.4, 1.2, 1.4)),
)  # fmt: skip
MARKERS = "osD^vPX<>hd8pH"

PARTS = (
    ("input wait", "input_s", GREY, "\\\\\\\\"),
    ("forward", "forward_s", BLUE, ""),
    ("backward", "backward_s", SKY, ""),
    ("hooks, encode", "encode_s", ORANGE, "////"),
    ("waiting for network", "exposed_communication_s", VERMILION, ""),
    ("decode, copy", "decode_s", PURPLE, "...."),
    ("optimizer", "optimizer_s", GREEN, "--"),
)
"""Name, field in seconds, colour, and hatching that is legible without colour."""

_SETTINGS = {
    "font.family": "DejaVu Sans",
    "font.size": 10.0,
    "axes.titlesize": 12.0,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "svg.hashsalt": "gcsim",
    "text.parse_math": False,  # labels are the user's text
}
DPI = 160
_ABOUT: dict[str, dict[str, None]] = {
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}
"""Metadata by format that omits date and program."""
MANY = 16  # number of methods above which most are muted
FOREMOST = 8  # number of methods that are not muted then, besides the uncompressed exchange
_SHORT_AXIS = 100
"""Ratio of an axis' ends below which a logarithmic axis has several labels per decade."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LineStyle:
    """Style that distinguishes one method's line from the others."""

    colour: str
    marker: str
    dashes: str | tuple[float, tuple[float, ...]]
    muted: bool = False


def line_styles(result: Result) -> dict[str, LineStyle]:
    """Return styles by label, in the scenario's order, so that a scenario always has the same."""
    return styles_of({row.label: row.compressor for row in result.rows}, _foremost(result))


def styles_of(kinds: Mapping[str, str], foremost: AbstractSet[str]) -> dict[str, LineStyle]:
    """Return styles by label, in the order of `kinds`; thin and grey unless in `foremost`."""
    styles: dict[str, LineStyle] = {}
    number = 0
    for label, kind in kinds.items():
        if label not in foremost and kind != DENSE:
            styles[label] = LineStyle(colour=FAINT, marker="", dashes="solid", muted=True)
            continue
        if kind == DENSE and BLACK not in {s.colour for s in styles.values()}:
            styles[label] = LineStyle(colour=BLACK, marker="o", dashes="solid")
            continue
        styles[label] = LineStyle(
            colour=COLOURS[number % len(COLOURS)],
            marker=MARKERS[1 + number % (len(MARKERS) - 1)],
            dashes=DASHES[number // len(COLOURS) % len(DASHES)],
        )
        number += 1
    return styles


def _foremost(result: Result) -> set[str]:
    """Return the labels that stand out: all if there are few, else the fastest."""
    labels = {row.label for row in result.rows}
    if len(labels) <= MANY:
        return labels
    return {row.label for row in at_largest(result)[:FOREMOST]}


def side_by_side(labels: Sequence[str]) -> dict[str, float]:
    """Factor on a number of workers at which each method's point and whisker stand."""
    step = min(0.08, 0.56 / max(1, len(labels)))  # octaves between two, and from first to last
    middle = (len(labels) - 1) / 2
    return {label: 2 ** (step * (number - middle)) for number, label in enumerate(labels)}


def look_of(style: LineStyle, width: float = 1.7) -> dict[str, Any]:
    """Return the properties of a line, `width` points wide unless it is muted."""
    if style.muted:
        return {"color": style.colour, "linewidth": 0.9, "zorder": 1}
    return {
        "color": style.colour, "linestyle": style.dashes, "marker": style.marker,
        "linewidth": width, "markersize": 5.5, "markeredgecolor": "white", "markeredgewidth": 0.6,
    }  # fmt: skip


@contextmanager
def settings() -> Iterator[None]:
    """Apply matplotlib's defaults and gcsim's settings, whatever the user's matplotlibrc says."""
    from matplotlib.style import context

    with context(["default", _SETTINGS]):
        yield


def new_figure(width: float, height: float) -> Figure:
    """Make a figure of this size in inches, drawn to memory only; for use inside `settings`."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=DPI)
    FigureCanvasAgg(figure)
    return figure


def mark_synthetic(figure: Figure, result: Result) -> None:
    """Write a note on synthetic gradients into the upper right corner."""
    if are_synthetic(result):
        top = 1 - 0.06 / float(figure.get_size_inches()[1])
        figure.text(
            0.995, top, SYNTHETIC_NOTE, ha="right", va="top", fontsize=8, style="italic"
        )  # fmt: skip


def plain_ticks(axis: Axis) -> None:
    """Label powers of ten on a logarithmic axis with plain digits instead of matplotlib's formulas;
    on a short axis also label 2 and 5 times these."""

    from matplotlib.ticker import FuncFormatter

    def between(value: float, _: object) -> str:
        low, high = axis.get_view_interval()
        return short(value) if high < _SHORT_AXIS * low and f"{value:e}"[0] in "25" else ""

    axis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
    axis.set_minor_formatter(FuncFormatter(between))
    axis.set_tick_params(which="minor", pad=5)  # as far from the axis as the others


def short(value: float) -> str:
    """Format as 0.01, 64, 1.5k, 16M."""
    for suffix, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= 0.995 * size:
            return f"{significant(value / size, 2)}{suffix}".replace(".0", "")
    return f"{value:g}"


def save(figure: Figure, path: Path, form: str = "png") -> None:
    """Write a PNG, SVG or PDF without version or date, so that equal figures have equal bytes."""
    with settings():
        figure.savefig(
            path, format=form, dpi=DPI, metadata=_ABOUT[form], bbox_inches="tight", pad_inches=0.1
        )
