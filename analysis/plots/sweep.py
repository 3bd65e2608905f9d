"""Winning method and its gain at each point of a sweep: cells, or lines if one key is swept.

Failed points stay empty. Two keys span a panel; each combination of the others has its own panel.
"""

from __future__ import annotations

import itertools
import math
import textwrap
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Colormap, LinearSegmentedColormap, LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator
from numpy.typing import NDArray

from gcsim.analysis.plots import style, winners
from gcsim.analysis.plots.panels import Cell, Key, SweepPicture, picture_of
from gcsim.analysis.report.numbers import fixed, plural
from gcsim.analysis.report.sources import are_synthetic
from gcsim.scenarios.result import PERCENTILES, Row
from gcsim.scenarios.sweeps.grid import written
from gcsim.scenarios.sweeps.result import SweepResult
from gcsim.simulator.training import DENSE

_WIDEST = 9.5  # inches of all panels in a row
_TALLEST = 8.0  # inches of all panels in a column
_CELL = (1.15, 0.72)  # inches of a cell if space permits
_TOP = 0.55  # inches of the title
_RIGHT = 2.6  # inches of the legend
_ENTRY = 0.2  # inches of one legend entry
_LETTER = 0.078  # inches of a letter in a tick label
_LINE = 0.19  # inches of a caption line
_ABREAST = 4  # most panels in a row, if each row has one value of a key
_WORD = 0.5  # inches of a cell that has space for a word
_LIGHT = 0.55  # position on the colour scale above which numbers are white
_APART = 0.006  # distance of two methods' whiskers at one value, as a share of the axis
_FAR = 8  # ratio of a key's largest to least value from which its axis is logarithmic
_LINEAR = 4  # the same ratio for the heights of lines
Draw = Callable[[Axes, list[list[Cell | None]]], None]
"""Function that draws the cells of a panel, by row and column."""


def winner_figure(result: SweepResult) -> Figure:
    """Draw the fastest method at each point of a sweep over two keys or more; hatched if it may not
    beat dense training, or dense training may not beat the others."""
    shown = picture_of(result)
    labels = list(shown.kinds)
    number = {label: place for place, label in enumerate(labels)}
    found = [cell.winner for cell in shown.cells.values() if cell.winner is not None]
    present = sorted({number[row.label] for row in found})
    dense = {number[label] for label, kind in shown.kinds.items() if kind == DENSE}
    colours = winners.colours_of(present, dense)

    def draw(axes: Axes, cells: list[list[Cell | None]]) -> None:
        best = [
            [number[one.winner.label] if one and one.winner else winners.NONE for one in row]
            for row in cells
        ]
        sure = [[one is not None and one.sure for one in row] for row in cells]
        winners.draw_winners(axes, _edges(cells), np.array(best), np.array(sure), colours, gap=1.5)

    with style.settings():
        caption = f"The shortest iteration with the default inputs; {winners.NOT_SAFE}."
        sure = all(cell.sure for cell in shown.cells.values())
        handles = winners.legend_of(labels, colours, sure=sure)
        figure = _draw_panels(shown, "fastest method", draw, caption, len(handles))
        _legend(figure, handles)
        return figure


def gain_figure(result: SweepResult) -> Figure:
    """Draw the speedup of the method to use (throughput without dense training): a cell per point
    for two keys or more, lines of all methods for one."""
    shown = picture_of(result)
    return _lines(shown) if shown.y is None else _gains(shown)


def _gains(shown: SweepPicture) -> Figure:
    what = _quantity(shown)
    rows = [cell.recommended for cell in shown.cells.values()]
    values = [_value(row, what) for row in rows if row is not None] or [1.0]
    low = 1.0 if what == "speedup" else min(values)
    scale = LogNorm(vmin=low, vmax=max([*values, low * 1.01]), clip=True)
    colours = LinearSegmentedColormap.from_list("gains", [winners.DENSE_COLOUR, style.BLUE])

    def draw(axes: Axes, cells: list[list[Cell | None]]) -> None:
        _draw_gains(axes, cells, what, scale, colours)

    over = "over dense training" if what == "speedup" else "[samples/s]"
    caption = (
        f"Number: {what} {over} of the method to use, named below it where there is "
        "room; *: known to train."
    )
    with style.settings():
        figure = _draw_panels(shown, f"{what} of the method to use", draw, caption)
        width, height = figure.get_size_inches()
        bar = figure.add_axes(((width - _RIGHT + 0.3) / width, 1 - 2.55 / height, 0.16 / width,
                               1.9 / height))  # fmt: skip
        figure.colorbar(ScalarMappable(scale, colours), cax=bar)
        bar.yaxis.set_minor_locator(NullLocator())
        ticks = np.geomspace(low, float(scale.vmax or low), 4)
        bar.yaxis.set_major_locator(FixedLocator(ticks.tolist()))
        bar.yaxis.set_major_formatter(FixedFormatter([_number(tick, what) for tick in ticks]))
        bar.set_ylabel(f"{what} {'[x]' if what == 'speedup' else '[samples/s]'}")
        return figure


def _draw_gains(
    axes: Axes, cells: list[list[Cell | None]], what: str, scale: LogNorm, colours: Colormap
) -> None:
    rows = [[one.recommended if one else None for one in line] for line in cells]
    values = np.array([[_value(row, what) if row else np.nan for row in line] for line in rows])
    axes.pcolormesh(
        *_edges(cells), np.ma.masked_invalid(values), cmap=colours, norm=scale, linewidth=1.5,
        edgecolors="white", rasterized=True,
    )  # fmt: skip
    box = axes.get_window_extent()
    wide, tall = (box.width / style.DPI / len(cells[0]), box.height / style.DPI / len(cells))
    for y, line in enumerate(rows):
        for x, row in enumerate(line):
            cell = cells[y][x]
            if row is None or cell is None:
                continue
            text = _number(values[y, x], what) + ("*" if cell.risky else "")
            points = min(11.0, 72 * wide / 0.78 / max(4, len(text)), 72 * tall / 1.3)
            if points < 4:  # too small to read: the colours remain
                continue
            name = _fitted(row.label, wide, tall - points / 72)
            light = "white" if scale(values[y, x]) > _LIGHT else style.BLACK
            axes.text(x, y, text, ha="center", va="bottom" if name else "center_baseline",
                      fontsize=points, fontweight="bold", color=light)  # fmt: skip
            axes.annotate(name, (x, y), (0, -1.5), textcoords="offset points", ha="center",
                          va="top", fontsize=6.5, color=light, linespacing=1.0)  # fmt: skip


def _fitted(label: str, wide: float, tall: float) -> str:
    """Wrap a label at 6.5 points into this many inches; empty if it does not fit."""
    letters = int(wide / 0.056)
    if letters < 5:
        return ""
    lines = textwrap.wrap(label, letters, break_long_words=False)
    fits = max(map(len, lines)) <= letters and len(lines) * 0.1 < tall / 2
    return "\n".join(lines) if fits else ""


# --- panels --------------------------------------------------------------------------------------


def _draw_panels(
    shown: SweepPicture, title: str, draw: Draw, caption: str, entries: int = 0
) -> Figure:
    """Draw panels with their axes, and leave space at the right for a legend of `entries`."""
    x, y = shown.x, shown.y or shown.x
    panels = shown.panels()
    columns = len(shown.panel_keys[-1].values) if len(shown.panel_keys) > 1 else len(panels)
    if columns > _ABREAST:
        columns = min(len(panels), max(1, round(math.sqrt(len(panels) * 1.5))))
    lines = math.ceil(len(panels) / columns)
    wide = min(_CELL[0] * len(x.values), _WIDEST / columns - 0.2)
    tall = min(max(_CELL[1] * len(y.values), 1.1), _TALLEST / lines - 0.4)
    turned = _LETTER * max(map(len, x.shown)) > wide / len(x.values)
    left = 0.55 + _LETTER * max(map(len, y.shown))
    if turned:
        left = max(left, _tick_margin(x))
    below = 0.5 + (0.6 * _LETTER * max(map(len, x.shown)) if turned else 0.1)
    width = left + columns * (wide + 0.2) + _RIGHT
    said = textwrap.wrap(f"{caption} {_caption_notes(shown)}", int((width - 0.3) / 0.062))
    apart = 0.16 + 0.16 * len(shown.panel_keys)
    bottom = below + 0.15 + _LINE * len(said)
    height = max(_TOP + lines * (tall + apart) + bottom, 3.2, _TOP + _ENTRY * entries + 0.2)
    figure = style.new_figure(width, height)
    for place, values in enumerate(panels):
        line, column = divmod(place, columns)
        corner = (
            left + column * (wide + 0.2),
            height - _TOP - apart - line * (tall + apart) - tall,
        )
        axes = figure.add_axes((corner[0] / width, corner[1] / height, wide / width, tall / height))
        points = [[{**values, x.name: a, y.name: b} for a in x.values] for b in y.values]
        draw(axes, [[shown.cell(point) for point in line] for line in points])
        _mark_lost(axes, [[shown.lost(point) for point in line] for line in points],
                   wide / len(x.values))  # fmt: skip
        axes.set_xlim(-0.5, len(x.values) - 0.5)
        ends = (-0.5, len(y.values) - 0.5)  # numbers ascend, words read downwards
        axes.set_ylim(*(ends if y.numbers else reversed(ends)))
        axes.spines[:].set_visible(False)
        axes.tick_params(length=0)
        _ticks(axes.xaxis, x.shown, wide, turned=turned)
        _ticks(axes.yaxis, y.shown, tall, upright=True)
        last = place + columns >= len(panels)
        axes.tick_params(labelbottom=last, labelleft=column == 0)
        if shown.panel_keys:
            named = (f"{key.short}: {written(values[key.name])}" for key in shown.panel_keys)
            axes.set_title("\n".join(_cut(text, wide) for text in named), fontsize=9,
                           fontweight="normal")  # fmt: skip
    lowest = height - _TOP - lines * (tall + apart) - below + 0.25
    figure.text((left + columns * (wide + 0.2) / 2 - 0.1) / width, lowest / height,
                x.name, ha="center", va="top")  # fmt: skip
    middle = height - _TOP - lines * (tall + apart) / 2 - apart / 2
    figure.text(0.1 / width, middle / height, y.name, ha="left", va="center", rotation=90)
    _add_title(figure, shown, title)
    _add_caption(figure, said)
    return figure


def _tick_margin(key: Key) -> float:
    """Return the inches that rotated ticks need on the left."""
    return 0.2 + 0.82 * _LETTER * max(map(len, key.shown))


def _mark_lost(axes: Axes, reasons: list[list[str]], wide: float) -> None:
    for y, line in enumerate(reasons):
        for x, lost in enumerate(line):
            if lost and wide > _WORD:
                axes.text(x, y, lost.replace(" fit", "\nfit"), ha="center", va="center",
                          fontsize=8, color=style.GREY)  # fmt: skip


def _add_title(figure: Figure, shown: SweepPicture, title: str) -> None:
    name = shown.first.scenario.get("name", "scenario")
    height = float(figure.get_size_inches()[1])
    figure.text(0.1 / figure.get_size_inches()[0], 1 - 0.24 / height, f"{name}: {title}",
                va="top", fontsize=12, fontweight="bold")  # fmt: skip
    done = [point.result for point in shown.result.points if point.result is not None]
    style.mark_synthetic(figure, next(filter(are_synthetic, done), done[0]))


def _add_caption(figure: Figure, lines: Sequence[str]) -> None:
    width, height = figure.get_size_inches()
    figure.text(0.1 / width, 0.08 / height, "\n".join(lines), va="bottom", fontsize=8,
                style="italic", linespacing=1.25)  # fmt: skip


def _caption_notes(shown: SweepPicture) -> str:
    """Return notes on cluster sizes, fixed values and points without a result."""
    said = [shown.size[0].upper() + shown.size[1:] + "."]
    said += [
        f"{key.name} = {written(key.values[0])}, the first of {len(key.values)} values."
        for key in shown.fixed
    ]
    for lost in sorted({point.lost for point in shown.result.failed}):
        many = sum(point.lost == lost for point in shown.result.failed)
        why = lost if many == 1 else lost.replace("does", "do")
        said.append(f"{plural(many, 'point')} of {len(shown.result.points)} {why}: left empty.")
    return " ".join(said)


def _legend(figure: Figure, handles: Sequence[Any]) -> None:
    width, height = figure.get_size_inches()
    place = ((width - _RIGHT + 0.15) / width, 1 - _TOP / height)
    figure.legend(handles=handles, loc="upper left", bbox_to_anchor=place, frameon=False,
                  fontsize=9)  # fmt: skip


def _edges(cells: Sequence[Sequence[Any]]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the edges of cells around integers: of columns, of rows."""
    x, y = (np.arange(count + 1, dtype=np.float64) for count in (len(cells[0]), len(cells)))
    return x - 0.5, y - 0.5


def _ticks(
    axis: Axis, texts: Sequence[str], inches: float, at: Sequence[float] = (), *,
    turned: bool = False, upright: bool = False,
) -> None:  # fmt: skip
    """Set ticks (at integers without `at`) on `inches`, fewer if they would overlap."""
    places = list(at or range(len(texts)))
    ends = (min(places), max(places)) if at else (-0.5, len(texts) - 0.5)
    scale = inches / ((ends[1] - ends[0]) or 1.0)
    long = [2.2 if upright or turned else len(text) + 1 for text in texts]

    def fit(kept: range) -> bool:
        return all(
            (places[b] - places[a]) * scale >= (long[a] + long[b]) * _LETTER / 2
            for a, b in itertools.pairwise(kept)
        )

    steps = (range(0, len(places), step) for step in range(1, len(places) + 1))
    kept = next(filter(fit, steps))
    axis.set_major_locator(FixedLocator([places[number] for number in kept]))
    axis.set_major_formatter(FixedFormatter([texts[number] for number in kept]))
    axis.set_minor_locator(NullLocator())
    if turned:
        for label in axis.get_ticklabels():
            label.set(rotation=35, ha="right", rotation_mode="anchor")


def _cut(text: str, inches: float) -> str:
    letters = int(inches / 0.07)
    return text if len(text) <= letters else text[: letters - 1] + "…"


def _quantity(shown: SweepPicture) -> str:
    rows = (row for cell in shown.cells.values() for row in cell.verdict.rows)
    compared = any(row.speedup_vs_dense is not None for row in rows)
    return "speedup" if compared else "throughput"


def _value(row: Row, what: str) -> float:
    if what == "throughput":
        return row.throughput_samples_per_s
    return math.nan if row.speedup_vs_dense is None else row.speedup_vs_dense


def _number(value: float, what: str) -> str:
    return fixed(value, 2) if what == "speedup" else style.short(value)


# --- one key -------------------------------------------------------------------------------------


def _lines(shown: SweepPicture) -> Figure:
    """Draw all methods over one key; a ring marks the method to use, whiskers are ranges."""
    what, key = _quantity(shown), shown.x
    cells = [shown.cell({key.name: value}) for value in key.values]
    wide, tall = 6.4, 3.9
    texts = key.shown
    turned = sum(len(text) + 1 for text in texts) * _LETTER > wide
    left = max(0.75, _tick_margin(key)) if turned else 0.75
    below = 0.5 + (0.6 * _LETTER * max(map(len, texts)) if turned else 0.1)
    width = left + wide + _RIGHT + 0.4
    muted = "; thin and grey: other methods" if len(shown.kinds) > style.MANY else ""
    caption = (
        "Ring: the method to use, grey where it is not sure whether compression pays. "
        f"Whiskers: {PERCENTILES}, of methods to use or to try at some point{muted}."
    )
    said = textwrap.wrap(f"{caption} {_caption_notes(shown)}", int((width - 0.3) / 0.062))
    bottom = below + 0.25 + _LINE * len(said)
    height = _TOP + tall + bottom
    with style.settings():
        figure = style.new_figure(width, height)
        axes = figure.add_axes((left / width, bottom / height, wide / width, tall / height))
        at = _along(key)
        _draw_lines(axes, at, cells, shown, what)
        numbers = key.numbers or ()
        log = _far_apart(numbers)
        _ticks(axes.xaxis, texts, wide * 0.91, at, turned=turned)
        axes.yaxis.set_minor_locator(NullLocator())
        axes.set_xlabel(key.name + (" (logarithmic)" if log else ""))
        axes.set_ylabel("speedup over dense training [x]" if what == "speedup"
                        else "throughput [samples/s]")  # fmt: skip
        axes.grid(color="#E4E4E4", linewidth=0.7)
        handles, _ = axes.get_legend_handles_labels()
        _legend(figure, handles)
        _add_title(figure, shown, f"{what} of all methods")
        _add_caption(figure, said)
        return figure


def _along(key: Key) -> list[float]:
    """Return positions of values: linear for numbers, logarithmic if they are far apart."""
    numbers = key.numbers
    if numbers is None:
        return [float(place) for place in range(len(key.values))]
    if _far_apart(numbers):
        return [math.log(number) for number in numbers]
    return list(numbers)


def _far_apart(numbers: Sequence[float]) -> bool:
    return min(numbers, default=0.0) > 0 and max(numbers) >= _FAR * min(numbers)


def _draw_lines(
    axes: Axes, at: Sequence[float], cells: Sequence[Cell | None], shown: SweepPicture, what: str
) -> None:
    kinds = shown.kinds
    marked = {
        row.label
        for cell in cells
        if cell is not None
        for row in (cell.recommended, cell.verdict.to_try)
        if row is not None
    }
    styles = style.styles_of(kinds, set(kinds) if len(kinds) <= style.MANY else marked)
    apart = _APART * (max(at) - min(at))
    every: list[float] = []
    for number, (label, own) in enumerate(styles.items()):
        rows = [_row(cell, label) for cell in cells]
        heights = [math.nan if row is None else _value(row, what) for row in rows]
        axes.plot(at, heights, label="_others" if own.muted else label, **style.look_of(own))
        every += [height for height in heights if height > 0]
        if label in marked and what == "speedup":
            low = [(row and row.speedup_low) or math.nan for row in rows]
            high = [(row and row.speedup_high) or math.nan for row in rows]
            shifted = [place + apart * (number - len(styles) / 2) for place in at]
            axes.vlines(shifted, low, high, color=own.colour, linewidth=1.6, alpha=0.55)
            every += [end for end in (*low, *high) if end > 0]
    for sure in (True, False):
        rings = [
            (place, _value(cell.recommended, what))
            for place, cell in zip(at, cells, strict=True)
            if cell is not None and cell.recommended is not None
            and (cell.verdict.pays in ("yes", "no")) == sure
        ]  # fmt: skip
        if rings:
            axes.plot(
                *zip(*rings, strict=True), marker="o", markersize=12, markerfacecolor="none",
                markeredgecolor=style.BLACK if sure else style.GREY, markeredgewidth=1.3,
                linestyle="none", label="use" if sure else "use, not sure",
            )  # fmt: skip
    for place, value in zip(at, shown.x.values, strict=True):
        if lost := shown.lost({shown.x.name: value}):
            axes.axvline(place, color=style.FAINT, linewidth=1.0, linestyle=(0, (2, 2)), zorder=0)
            axes.text(place, 0.98, f"{lost} ", rotation=90, ha="right", va="top", fontsize=8,
                      color=style.GREY, transform=axes.get_xaxis_transform())  # fmt: skip
    if max(every) > _LINEAR * min(every):
        axes.set_yscale("log")
        ticks = [step * 10.0**power for power in range(-4, 10) for step in (1, 2, 5)]
        axes.yaxis.set_major_locator(FixedLocator(ticks))
        style.plain_ticks(axes.yaxis)


def _row(cell: Cell | None, label: str) -> Row | None:
    rows = cell.verdict.rows if cell is not None else ()
    return next((row for row in rows if row.label == label), None)
