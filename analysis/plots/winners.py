"""Map of winners: a cell has its method's colour, hatched unless it surely beats dense training."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap, to_hex, to_rgb
from matplotlib.patches import Patch, Rectangle
from numpy.typing import NDArray

from gcsim.analysis.plots.style import COLOURS, FAINT, GREY

NONE = -1  # number for no winner: the cell stays empty
NOT_SAFE = "fastest is not safe: train before you trust a method"
OPAQUE = 0.75
HATCH = "////"
DENSE_COLOUR = "#F2F2F2"
"""Colour of dense training, almost white."""
_TINTS = (0.0, 0.55, -0.45)
"""Tints from the seventh method on: share of white, or of black if negative."""


def colours_of(numbers: Sequence[int], dense: Collection[int]) -> dict[int, str]:
    """Return colours by method number, in this order; `dense`: numbers of uncompressed training."""
    found = {number: DENSE_COLOUR for number in numbers if number in dense}
    others = [number for number in numbers if number not in dense]
    return found | {number: _colour(place) for place, number in enumerate(others)}


def _colour(place: int) -> str:
    tint = _TINTS[place // len(COLOURS) % len(_TINTS)]
    towards = np.ones(3) if tint > 0 else np.zeros(3)
    own = np.array(to_rgb(COLOURS[place % len(COLOURS)]))
    return to_hex(own + abs(tint) * (towards - own)).upper()


def draw_winners(
    axes: Axes,
    edges: tuple[NDArray[np.float64], NDArray[np.float64]],
    winner: NDArray[np.int64],
    sure: NDArray[np.bool_],
    colours: Mapping[int, str],
    *,
    gap: float = 0.0,
) -> None:
    """Draw cells between `edges` (of columns, of rows): `winner` has method numbers `[rows,
    columns]` or `NONE`; `gap` is the distance between cells in points."""
    x, y = edges
    present = sorted(colours)
    index = np.ma.masked_array(np.searchsorted(present, winner), winner == NONE)
    axes.pcolormesh(
        x, y, index, cmap=ListedColormap([colours[n] for n in present]), vmin=-0.5,
        vmax=len(present) - 0.5, alpha=OPAQUE, linewidth=0, rasterized=True,
    )  # fmt: skip
    for row, column in zip(*np.nonzero(~sure & (winner != NONE)), strict=True):
        width, height = x[column + 1] - x[column], y[row + 1] - y[row]
        corner = (x[column], y[row])
        axes.add_patch(
            Rectangle(corner, width, height, fill=False, hatch=HATCH, edgecolor=GREY, linewidth=0)
        )
    if gap:
        axes.hlines(y, x[0], x[-1], color="white", linewidth=gap)
        axes.vlines(x, y[0], y[-1], color="white", linewidth=gap)


def legend_of(labels: Sequence[str], colours: Mapping[int, str], *, sure: bool) -> list[Any]:
    """Return the legend of the colours, and of hatching unless all are `sure`; labels by number."""
    found = [
        Patch(facecolor=colours[n], alpha=OPAQUE, edgecolor=FAINT, label=labels[n])
        for n in sorted(colours)
    ]
    if not sure:
        found.append(
            Patch(facecolor="white", edgecolor=GREY, hatch=HATCH, label="not sure against dense")
        )
    return found
