"""Names of lines to the right of the axes, in the order of the lines' ends and joined to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from gcsim.analysis.plots.style import FAINT


def write_labels(
    axes: Axes,
    ends: Mapping[str, tuple[float, float]],
    texts: Mapping[str, str],
    looks: Mapping[str, dict[str, Any]],
    *,
    gap: float,
    size: float,
) -> None:
    """Write `texts` in font size `size` next to axes whose limits are set, each with a sample of
    its line (`style.look_of`) and a leader from the line's end in data coordinates. `gap` is the
    least distance of two texts as a share of the axes' height."""
    to_axes = axes.transData + axes.transAxes.inverted()
    places = {label: tuple(map(float, to_axes.transform(end))) for label, end in ends.items()}
    ordered = sorted(ends, key=lambda label: places[label][1])
    wanted = [places[label][1] for label in ordered]
    placed = spread(wanted, gap=min(gap, 1 / len(ordered)), low=0.0, high=1.0)
    for label, place in zip(ordered, placed, strict=True):
        x, y = places[label]
        outside: dict[str, Any] = {"transform": axes.transAxes, "clip_on": False}
        leader = Line2D(
            [x, 1.015, 1.045, 1.055], [y, y, place, place], color="#BBBBBB", linewidth=0.7,
            zorder=0.5, **outside,
        )  # fmt: skip
        axes.add_artist(leader)
        sample = Line2D([1.06, 1.085, 1.11], [place] * 3, markevery=[1], **outside)
        sample.set(**looks[label])
        axes.add_artist(sample)
        muted = looks[label]["color"] == FAINT
        axes.text(
            1.125, place, texts[label], transform=axes.transAxes, va="center", fontsize=size,
            color="#777777" if muted else "black",
        )  # fmt: skip


def spread(wanted: Sequence[float], *, gap: float, low: float, high: float) -> list[float]:
    """Return the places nearest (least squares) to ascending `wanted` that are at least `gap`
    apart. Subtracting `gap` per place makes this isotonic regression, solved by pooling adjacent
    violators (Barlow et al., "Statistical Inference under Order Restrictions", 1972)."""
    blocks: list[tuple[float, int]] = []
    for number, value in enumerate(wanted):
        mean, size = value - number * gap, 1
        while blocks and blocks[-1][0] >= mean:
            before, count = blocks.pop()
            mean = (mean * size + before * count) / (size + count)
            size += count
        blocks.append((mean, size))
    highest = high - (len(wanted) - 1) * gap
    places = [max(low, min(mean, highest)) for mean, size in blocks for _ in range(size)]
    return [place + number * gap for number, place in enumerate(places)]
