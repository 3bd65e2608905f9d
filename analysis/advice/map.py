"""Map of the winning method over two settings.

Methods are simulated with the stated inputs at every second grid point and in the drawn worlds at a
few; other points are interpolated between logarithms. A cell has the colour of the method with the
largest median speedup. It is hatched if the interval of that method's lead over the next includes
1. Lines mark where a method is as fast as uncompressed training.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from gcsim import units
from gcsim.analysis.page.charts import ticks_between
from gcsim.analysis.plots.style import BLACK, new_figure, save, settings
from gcsim.analysis.plots.winners import NOT_SAFE, colours_of, draw_winners, legend_of
from gcsim.analysis.report.numbers import bits, duration, significant
from gcsim.analysis.report.sections import HALF
from gcsim.analysis.report.selection import largest_verdict
from gcsim.errors import InputError, did_you_mean
from gcsim.files import replacing
from gcsim.scenarios.advice.engine import Engine
from gcsim.scenarios.advice.question import Question
from gcsim.scenarios.advice.slowest_link import nearest_link
from gcsim.scenarios.progress import Progress, SilentProgress
from gcsim.scenarios.scenario import Scenario
from gcsim.scenarios.uncertainty.ranges import interval
from gcsim.simulator.goodput import goodput

COLUMNS, ROWS = 24, 16
_SIMULATED = (12, 8)
_DRAWN = (_SIMULATED[0], 3)
_SHORT = ("bandwidth", "latency", "nodes", "gpus")
"""Settings with a default range."""
_TIMES = 16  # default ratio of an axis' ends to the scenario's value
_MOST_TICKS = 6  # most ticks of an axis
FORMATS = (".png", ".svg", ".pdf")

_DASHES: tuple[Literal["solid", "dashed", "dotted"], ...] = ("solid", "dashed", "dotted")
Values = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """A setting and the range of values along an axis."""

    key: str  # dotted key as in `--set`
    title: str
    low: float
    high: float
    unit: str  # unit as in a scenario; empty for a count
    own: float | None  # the scenario's value
    share: int = 1  # number of links whose sum is on the axis; each link gets an equal share

    def values(self, count: int) -> Values:
        """Return `count` values, evenly spaced in the logarithm."""
        found: Values = np.geomspace(self.low, self.high, count)
        return found if self.unit else np.unique(np.round(found))

    def setting(self, value: float) -> str:
        """Return the `--set` text of a value."""
        each = f"{value / self.share:.6g} {self.unit}" if self.unit else f"{value:.0f}"
        return f"{self.key}={each}"

    def shown(self, value: float) -> str:
        """Return a value with its unit as text."""
        if self.unit == "bit/s":
            return bits(value / 8)
        return duration(value) if self.unit == "s" else f"{value:.3g} {self.unit}".strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class Map:
    """Content of a map; arrays have the shape `[rows, columns]`."""

    x: Axis
    y: Axis
    labels: tuple[str, ...]  # methods, the uncompressed one first
    kinds: tuple[str, ...]  # their registered names
    gains: Values
    """`[methods, rows, columns]`: logarithm of the median speedup over uncompressed training."""
    winner: NDArray[np.int64]  # fastest method
    sure: NDArray[np.bool_]  # whether it surely beats dense training (dense: the next method)
    costs: Values | None  # cost of 1,000 iterations with the winner, if a node's cost is stated


def axes_of(text: str, scenario: Scenario) -> tuple[Axis, Axis]:
    """Parse two axes: bandwidth, latency, nodes, gpus or KEY=LOW..HIGH; raises `InputError`."""
    names = [one.strip() for one in text.split(",")]
    if len(names) != 2 or not all(names) or names[0] == names[1]:
        raise InputError(
            f"{text!r} does not name two settings",
            place="--map",
            hint="write --map bandwidth,latency",
        )
    one, other = (_axis(name, scenario) for name in names)
    return one, other


def _axis(text: str, scenario: Scenario) -> Axis:
    name, _, ends = text.partition("=")
    cluster = scenario.cluster
    own: float | None = None
    key, title, unit, share = name, name, "", 1
    near = nearest_link(cluster)
    link, holder = near.link, near.holders[0].removeprefix("cluster.")
    single = cluster.workers > 1 and not cluster.groups and not near.no_one_rate
    if name in ("bandwidth", "latency") and not single:
        message = f"the {holder} of this scenario has no single {name} to change"
        raise InputError(message, place="--map", hint="try --map nodes,gpus")
    if name == "bandwidth":
        key, title, unit = f"cluster.{holder}.bandwidth", f"{holder}: bandwidth", "bit/s"
        own, share = 8 * float(link.bandwidth), near.count
    elif name == "latency":
        key, title, unit = f"cluster.{holder}.latency", f"{holder}: latency", "s"
        own = float(link.latency)
    elif name == "nodes":
        key, own = "cluster.nodes", float(cluster.nodes)
    elif name == "gpus":
        key, title = "cluster.devices_per_node", "GPUs per node"
        own = float(cluster.devices_per_node)
    elif not ends:
        hint = did_you_mean(name, _SHORT, near=75)
        if not hint.endswith("?"):
            hint = f"write {name}=LOW..HIGH, or one of: {', '.join(_SHORT)}"
        raise InputError(f"{name!r} needs its ends", place="--map", hint=hint)
    if ends:
        low, high, unit = _ends(text, ends)
    else:
        middle = own or 1e-5
        low, high = middle / _TIMES, middle * _TIMES
        if not unit:
            low, high = 1.0, max(8.0, 4 * middle)
    return Axis(key=key, title=title, low=low, high=high, unit=unit, own=own, share=share)


def _ends(text: str, ends: str) -> tuple[float, float, str]:
    """Parse LOW..HIGH: two numbers, or two quantities of one dimension, and their unit."""
    parts = ends.split("..")
    hint = "write it like cluster.network.latency=10 us..1 ms"
    if len(parts) != 2:
        raise InputError(f"{text!r} needs two ends", place="--map", hint=hint)
    for dimension, unit in (("bandwidth", "bit/s"), ("time", "s"), ("size", "B")):
        try:
            low, high = (float(units.parse(part, dimension)) for part in parts)  # type: ignore[arg-type]
        except InputError:
            continue
        scale = 8 if unit == "bit/s" else 1
        return _ascending(text, low * scale, high * scale, unit)
    try:
        low, high = map(float, parts)
    except ValueError:
        raise InputError(f"{text!r} needs two numbers", place="--map", hint=hint) from None
    return _ascending(text, low, high, "")


def _ascending(text: str, low: float, high: float, unit: str) -> tuple[float, float, str]:
    if not (0 < low < high < math.inf):
        message = f"the ends of {text!r} must be above 0, the lower one first"
        raise InputError(message, place="--map", hint="write it like 10 us..1 ms")
    return low, high, unit


def map_of(question: Question, text: str, *, progress: Progress | None = None) -> Map:
    """Compute the map over two settings; raises `InputError`."""
    watcher = progress or SilentProgress()
    x, y = axes_of(text, question.scenario)
    engine = Engine(question, progress=watcher)
    verdict = largest_verdict(engine.result())
    if verdict.dense is None:
        raise InputError("a map needs uncompressed training", hint="add a compressor `none`")
    out = {row.label for row, _ in verdict.left_out}
    kinds = {row.label: row.compressor for row in verdict.rows}
    labels = [verdict.dense.label]
    labels += [c.label for c in engine.scenario.compressors if c.label not in {*labels, *out}]
    coarse = x.values(_SIMULATED[0]), y.values(_SIMULATED[1])
    few = x.values(_DRAWN[0]), y.values(_DRAWN[1])
    cells = len(coarse[0]) * len(coarse[1])
    with watcher.task("map", cells + 4 * len(few[0]) * len(few[1])) as task:

        def at(value: float, other: float, draws: bool) -> Values:
            found = engine.rows((x.setting(value), y.setting(other)), labels, draws=draws)
            if found is None:
                problem = f"{x.setting(value)} with {y.setting(other)} cannot be run"
                raise InputError(
                    problem, place="--map", hint="run it with gcsim run --set to see why"
                )
            task.advance(4 if draws else 1)
            rows = [found[label] for label in labels]
            if not draws:
                logs: Values = np.log(np.array([row.iteration_s for row in rows]))
                return logs
            empty = [row.iteration_as_stated_s or row.iteration_s for row in rows]
            # Estimates first: speedups over dense training and times. Then the drawn worlds.
            times = [
                (empty[0] / (row.speedup_vs_dense or 1), row.iteration_s,
                 *(row.iteration_draws_s or (one,)))
                for row, one in zip(rows, empty, strict=True)
            ]  # fmt: skip
            beside: Values = np.log(np.array(times)) - np.log(np.array(empty))[:, None]
            return beside

        stated = np.array([[at(a, b, draws=False) for a in coarse[0]] for b in coarse[1]])
        drawn = np.array([[at(a, b, draws=True) for a in few[0]] for b in few[1]])
    fine = np.geomspace(x.low, x.high, COLUMNS), np.geomspace(y.low, y.high, ROWS)
    logs = _between(stated, coarse, fine)
    times = logs[..., None] + _between(drawn, few, fine)
    relative, estimate, worlds = times[..., 0], times[..., 1], times[..., 2:]
    gains = relative[:, :, :1] - relative
    order = np.argsort(-gains, axis=2, kind="stable")
    winner = order[..., 0]
    rival = np.where(winner == 0, order[..., min(1, len(labels) - 1)], 0)
    rows, columns = np.indices(winner.shape)
    iterations = np.exp(estimate[rows, columns, winner])
    lead = worlds[rows, columns, rival] - worlds[rows, columns, winner]
    return Map(
        x=x,
        y=y,
        labels=tuple(labels),
        kinds=tuple(kinds[label] for label in labels),
        gains=np.moveaxis(gains, 2, 0),
        winner=winner,
        sure=interval(lead)[0] > 0,
        costs=_costs(engine.scenario, (x, y), fine, iterations),
    )


def _costs(
    scenario: Scenario, axes: tuple[Axis, Axis], at: tuple[Values, Values], iterations: Values
) -> Values | None:
    """Return the cost of 1,000 iterations on all nodes."""
    if scenario.cost_per_hour is None:
        return None
    number = [one.key == "cluster.nodes" for one in axes]
    nodes: Any = scenario.cluster.nodes
    if any(number):
        nodes = at[0][None, :] if number[0] else at[1][:, None]
    found: Values = scenario.cost_per_hour * nodes * iterations * 1000 / 3600
    failures = scenario.training.failures
    return found if failures is None else found / np.vectorize(partial(goodput, failures))(nodes)


def _between(values: Values, at: tuple[Values, Values], to: tuple[Values, Values]) -> Values:
    """Interpolate `[rows, columns, ...]` linearly in the logarithm of each axis."""
    x, y = (np.log(one) for one in at)
    along = _line(np.moveaxis(values, 1, 0), x, np.log(to[0]))
    return _line(np.moveaxis(along, 1, 0), y, np.log(to[1]))


def _line(values: Values, at: Values, to: Values) -> Values:
    """Interpolate linearly along the first axis."""
    if len(at) == 1:
        return np.repeat(values, len(to), axis=0)
    place = np.clip(np.searchsorted(at, to) - 1, 0, len(at) - 2)
    share = np.clip((to - at[place]) / (at[place + 1] - at[place]), 0, 1)
    share = share.reshape(-1, *[1] * (values.ndim - 1))
    found: Values = values[place] * (1 - share) + values[place + 1] * share
    return found


def draw_map(question: Question, text: str, path: Path, *, progress: Progress | None = None) -> Map:
    """Compute the map and write it in the format of the path's suffix; raises `InputError`."""
    if path.suffix not in FORMATS:
        raise InputError(
            f"{path.suffix or 'no ending'!r} is not a format for a map",
            place=str(path),
            hint=f"let it end in {', '.join(FORMATS)}",
        )
    found = map_of(question, text, progress=progress)
    with settings(), replacing(path) as temporary:
        save(map_figure(found, question.scenario), temporary, path.suffix[1:])
    return found


def map_figure(found: Map, scenario: Scenario) -> Any:
    """Draw the map; to be called inside `settings`."""
    from matplotlib.lines import Line2D
    from matplotlib.patheffects import withStroke

    figure = new_figure(9.0, 5.2)
    axes = figure.add_axes((0.09, 0.13, 0.6, 0.79))
    present = [number for number in range(len(found.labels)) if (found.winner == number).any()]
    colours = colours_of(present, dense={0})
    x, y = (_edges(axis, count) for axis, count in ((found.x, COLUMNS), (found.y, ROWS)))
    draw_winners(axes, (x, y), found.winner, found.sure, colours)
    handles = legend_of(found.labels, colours, sure=bool(found.sure.all()))
    middle = (np.geomspace(found.x.low, found.x.high, COLUMNS),
              np.geomspace(found.y.low, found.y.high, ROWS))  # fmt: skip
    for place, number in enumerate(_lined(found, present)):
        gains = found.gains[number]
        if gains.min() < 0 < gains.max():
            dashes = _DASHES[place % len(_DASHES)]
            axes.contour(*middle, gains, levels=[0.0], colors=BLACK, linewidths=1.6,
                         linestyles=dashes)  # fmt: skip
            words = f"{found.labels[number]} = {found.labels[0]}"
            handles.append(Line2D([], [], color=BLACK, linestyle=dashes, label=words))
    if found.x.own and found.y.own:
        axes.plot([found.x.own], [found.y.own], marker="*", markersize=15, color="white",
                  markeredgecolor=BLACK)  # fmt: skip
        handles.append(Line2D([], [], marker="*", linestyle="", markersize=12, color="white",
                              markeredgecolor=BLACK, label="asked for"))  # fmt: skip
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(x[0], x[-1])
    axes.set_ylim(y[0], y[-1])
    if found.costs is not None:  # labels are placed on the axes as they are now
        lowest, highest = float(found.costs.min()), float(found.costs.max())
        levels: Any = ticks_between(lowest, highest) if highest > 4 * lowest else 5
        lines = axes.contour(*middle, found.costs, levels=levels, colors=BLACK, linewidths=0.7)
        lines.set_path_effects([withStroke(linewidth=2.4, foreground="white")])
        for text in _apart(axes.clabel(lines, fontsize=8, fmt=significant, use_clabeltext=True)):
            text.set_bbox({"boxstyle": "round,pad=0.15", "facecolor": "white", "linewidth": 0})
        handles.append(Line2D([], [], color=BLACK, linewidth=0.7, label="cost of 1,000 iterations"))
    for axis, one in ((axes.xaxis, found.x), (axes.yaxis, found.y)):
        _ticks(axis, one)
        axis.set_label_text(one.title)
    cluster = scenario.cluster
    axes.set_title(
        f"Fastest method: {scenario.model.name} on {cluster.devices}, "
        f"{cluster.collectives.transport}"
    )
    figure.legend(handles=handles, loc="upper left", bbox_to_anchor=(0.7, 0.93), frameon=False,
                  fontsize=9)  # fmt: skip
    figure.text(0.99, 0.015, NOT_SAFE, ha="right", fontsize=8, style="italic")
    return figure


def _apart(labels: Sequence[Any]) -> list[Any]:
    """Remove labels that lie on earlier ones; return the others."""
    kept: list[Any] = []
    for label in labels:
        box = label.get_window_extent()
        if any(box.overlaps(other.get_window_extent()) for other in kept):
            label.remove()
        else:
            kept.append(label)
    return kept


def _lined(found: Map, present: Sequence[int]) -> list[int]:
    """Return the methods that get a line: half precision, then winners, three at most."""
    half = [n for n, kind in enumerate(found.kinds) if kind in HALF][:1]
    return list(dict.fromkeys([*half, *(number for number in present if number)]))[:3]


def _edges(axis: Axis, count: int) -> Values:
    """Return the edges of cells around values that are evenly spaced in the logarithm."""
    step = math.log(axis.high / axis.low) / (count - 1) / 2
    found: Values = np.geomspace(axis.low * math.exp(-step), axis.high * math.exp(step), count + 1)
    return found


def _ticks(axis: Any, one: Axis) -> None:
    """Set a few round ticks."""
    from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

    raw = np.geomspace(one.low, one.high, _MOST_TICKS)
    values = [float(f"{value:.1g}") if one.unit else round(value) for value in raw]
    powers = range(math.floor(math.log10(one.low)), math.ceil(math.log10(one.high)) + 1)
    for steps in ((1, 2, 5), (1, 3), (1,)) if one.unit else ():
        ticks = [float(f"{step}e{power}") for power in powers for step in steps]
        within = [tick for tick in ticks if one.low <= tick <= one.high]
        if 3 <= len(within) <= _MOST_TICKS:
            values = within
            break
    axis.set_major_locator(FixedLocator(values))
    axis.set_major_formatter(FixedFormatter([one.shown(value) for value in values]))
    axis.set_minor_locator(NullLocator())
