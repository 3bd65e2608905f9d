"""Charts of a report as plain Plotly data: speedups, parts of an iteration, training curves.

Hover texts have the same numbers as the tables.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, Literal

from gcsim.analysis.page.page import Chart, Html, chart, notes, plain
from gcsim.analysis.plots import style
from gcsim.analysis.plots.panels import Key
from gcsim.analysis.report.intervals import in_brackets, speedup_known
from gcsim.analysis.report.numbers import elapsed, times
from gcsim.analysis.report.selection import at_largest
from gcsim.analysis.report.sweep import short_names
from gcsim.scenarios.result import Curve, Measure, Result, Row
from gcsim.scenarios.sweeps.result import SweepResult

DASHES = dict(zip(style.DASHES, ("solid", "dash", "dot", "dashdot"), strict=True))
"""Plotly's dash styles by matplotlib's."""
STEPS = (
    (1, 2, 5),
    (1, 1.5, 2, 3, 5, 7),
    (1, 1.1, 1.2, 1.3, 1.4, 1.6, 1.8, 2, 2.5, 3, 3.5, 4, 5, 6, 7, 8, 9),
)
"""Ticks within a decade of a logarithmic axis, from coarse to fine."""
WHISKERS = 4  # number of whiskers per training curve
LEGEND = 0.25  # largest share of a chart's height: longer legends scroll on a phone
CURVES = 480  # height in pixels of a training chart
OF_SEEDS = "Median over seeds; whiskers from the lowest seed to the highest."
ERRORS = (90, 80, 70, 60, 50, 40, 30, 20, 10, 5, 3, 2, 1, 0.5, 0.2, 0.1)
"""Errors in percent at which an axis of accuracy has ticks."""
ROOM = 1.06  # margin factor beyond the data on a logarithmic axis
APART_TICKS = 0.06  # least distance of two ticks as a share of the axis
LEAST = 0.05  # smallest error in percent that is drawn
LEAST_LOSS = 1e-9  # smallest loss that is drawn
FAR = 20.0
"""Errors beyond this multiple of the target's error are cut off if methods reach the target."""
TARGET = {
    "type": "line", "xref": "paper", "x0": 0, "x1": 1, "layer": "between",
    "line": {"color": style.GREY, "width": 1.5, "dash": "dash"},
}  # fmt: skip
"""Plotly shape of the line at the target."""
ROW = 26  # height in pixels of a bar
LABEL = 30  # most letters of the label of a sweep's point
POINTS = 48  # most points of a sweep that are drawn with whiskers


def speedup_chart(result: Result, ranged: Sequence[str]) -> Chart:
    """Chart speedup over dense training (throughput without a dense row) by number of workers;
    methods labelled in `ranged` are shifted sideways and have whiskers."""
    compared = any(row.speedup_vs_dense is not None for row in result.rows)
    traces: list[dict[str, Any]] = []
    known = [
        label
        for label in ranged
        if all(row.speedup_low and row.speedup_high for row in result.rows if row.label == label)
    ]
    heights: list[float] = []
    shifts = style.side_by_side(known)
    for label, line in lines_of({row.label: row.compressor for row in result.rows}).items():
        rows = sorted(
            (row for row in result.rows if row.label == label), key=lambda row: row.workers
        )
        at = [row.workers * shifts.get(label, 1.0) for row in rows]
        traces.append(
            {
                "type": "scatter", "mode": "lines+markers", "name": plain(label), "x": at,
                "line": line,
                "y": [
                    row.speedup_vs_dense if compared else row.throughput_samples_per_s
                    for row in rows
                ],
                "text": [_hover_text(row) for row in rows],
                "customdata": [row.workers for row in rows],
                "hovertemplate": "%{text}<extra>%{fullData.name}, %{customdata} workers</extra>",
            }
        )  # fmt: skip
        if label in shifts:
            ends = [
                (row.speedup_vs_dense or 0.0, row.speedup_low or 0.0, row.speedup_high or 0.0)
                for row in rows
            ]
            traces[-1]["error_y"] = whiskers(ends, line["color"])
            heights += [height for row in ends for height in row]
    sizes = sorted({row.workers for row in result.rows})
    what = "speedup over dense training [x]" if compared else "throughput [samples/s]"
    heights += [height for trace in traces for height in trace["y"]]
    ticks = ticks_between(min(heights), max(heights))
    return figure(
        traces,
        {
            "xaxis": {"title": {"text": "workers"}, "type": "log", **ticks_of(sizes)},
            "yaxis": {"title": {"text": what}, "type": "log", **ticks_of(ticks)},
        },
    )  # fmt: skip


def ticks_between(low: float, high: float) -> list[float]:
    """Return ticks of a logarithmic axis, at least three unless the range is too short."""
    found: list[float] = []
    for steps in STEPS:
        ticks = [round(step * 10.0**power, 6) for power in range(-4, 8) for step in steps]
        found = [tick for tick in ticks if low / 1.1 <= tick <= high * 1.1]
        if len(found) >= 3:
            break
    return found


def ticks_of(ticks: Sequence[float]) -> dict[str, Any]:
    """Return the layout of an axis with these ticks, without exponents."""
    return {"tickvals": ticks, "ticktext": [f"{tick:.10g}" for tick in ticks]}


def breakdown_chart(result: Result) -> tuple[Chart, int]:
    """Chart the parts of an iteration at the largest size, fastest first; also return pixels."""
    rows = at_largest(result)
    labels = [plain(row.label) for row in rows]
    traces: list[dict[str, Any]] = [
        {
            "type": "bar", "orientation": "h", "name": name, "y": labels,
            "x": [getattr(row, field) * 1e3 for row in rows], "marker": {"color": colour},
            "hovertemplate": f"{name}: %{{x:.3g}} ms<extra>%{{y}}</extra>",
        }
        for name, field, colour, _ in style.PARTS
        if any(getattr(row, field) for row in rows)
    ]  # fmt: skip
    if any(row.iteration_low_s is not None for row in rows):
        ends = [
            (row.iteration_s, row.iteration_low_s or row.iteration_s,
             row.iteration_high_s or row.iteration_s)
            for row in rows
        ]  # fmt: skip
        traces.append(
            {
                "type": "scatter", "mode": "markers", "name": "range", "y": labels,
                "x": [middle * 1e3 for middle, _, _ in ends],
                "marker": {"color": style.BLACK, "size": 1},
                "error_x": whiskers([tuple(one * 1e3 for one in row) for row in ends], style.BLACK)
                | {"thickness": 1, "width": 3},
                "text": [
                    f"{elapsed(row.iteration_s)}: {elapsed(low)} to {elapsed(high)}"
                    for row, (_, low, high) in zip(rows, ends, strict=True)
                ],
                "hovertemplate": "%{text}<extra>%{y}</extra>",
            }
        )  # fmt: skip
    layout: dict[str, Any] = {
        "barmode": "stack",
        "xaxis": {"title": {"text": "time [ms]"}, "nticks": 4},
        "yaxis": {  # labels are names even if they look like numbers
            "type": "category",
            "autorange": "reversed",
            "automargin": True,
            "ticksuffix": " ",
        },
    }
    return figure(traces, layout), 150 + ROW * len(rows)


def points_chart(result: SweepResult) -> Chart:
    """Chart the speedup at the largest size of each point that has a result, with ranges if points
    are few. Labels have the values of the keys that vary; Plotly drops labels that do not fit."""
    points = [point for point in result.points if point.result]
    few = len(points) <= POINTS
    keys = [key for key, values in result.grid.items() if len(values) > 1]
    values = (
        Key(name=key, short=key, values=tuple(one.values[key] for one in points), numbers=None)
        for key in keys
    )
    letters = LABEL // len(keys)
    labels = [
        plain(
            ", ".join(text if len(text) <= letters else f"{text[: letters - 1]}…" for text in each)
        )
        for each in zip(*(one.shown for one in values), strict=True)
    ]
    by_label: dict[str, list[tuple[int, Row]]] = {}
    for place, point in enumerate(points):
        for row in at_largest(point.result) if point.result else ():
            by_label.setdefault(row.label, []).append((place, row))
    kinds = {label: found[0][1].compressor for label, found in by_label.items()}
    traces: list[dict[str, Any]] = []
    for label, line in lines_of(kinds).items():
        rows = [row for _, row in by_label[label]]
        ends = [
            (row.speedup_vs_dense or 0.0, row.speedup_low or row.speedup_vs_dense or 0.0,
             row.speedup_high or row.speedup_vs_dense or 0.0)
            for row in rows
        ]  # fmt: skip
        traces.append(
            {
                "type": "scatter", "mode": "markers", "name": plain(label),
                "x": [str(place) for place, _ in by_label[label]],
                "y": [row.speedup_vs_dense for row in rows],
                "marker": {"color": line["color"], "size": 6 if few else 4},
                **({"error_y": whiskers(ends, line["color"])} if few else {}),
                "text": [_hover_text(row) for row in rows],
                "customdata": [plain(points[place].name) for place, _ in by_label[label]],
                "hovertemplate": "%{text}<extra>%{fullData.name}, %{customdata}</extra>",
            }
        )  # fmt: skip
    return figure(
        traces,
        {
            "xaxis": {
                "type": "category", "title": {"text": plain(", ".join(short_names(keys)))},
                "categoryarray": list(map(str, range(len(points)))),
                "autotickangles": [0, 90],
                "labelalias": dict(zip(map(str, range(len(points))), labels, strict=True)),
            },
            "yaxis": {"title": {"text": "speedup over dense training [x]"}},
            "scattermode": "group", "scattergap": 0.5,
        },
    )  # fmt: skip


def training_sections(
    kinds: dict[str, str], every: Sequence[Curve], measure: Measure
) -> list[tuple[str, Html]]:
    """Return headings and charts over steps and seconds; `kinds`: registered names by label."""
    name = measure.capitalize()
    names = {label: label for label in kinds}
    over_steps, over_seconds = (
        chart(curves_chart(kinds, every, measure, at, names=names), CURVES)
        for at in ("steps", "seconds")
    )
    return [
        (f"{name} over steps", over_steps),
        (f"{name} over simulated seconds", over_seconds + notes([OF_SEEDS])),
    ]


def curves_chart(
    kinds: dict[str, str],
    found: Sequence[Curve],
    measure: Measure,
    at: Literal["steps", "seconds"],
    *,
    names: Mapping[str, str],
    target: float | None = None,
    marks: Mapping[str, float] | None = None,
) -> Chart:
    """Chart held-out accuracy or loss against steps or the logarithm of simulated seconds, for the
    methods in `names` (by label): the median over seeds, with whiskers from the lowest to the
    highest that are shifted between methods. `target` is the place (`distance`) of a horizontal
    line, and `marks` tells where on it methods reach the target."""
    traces: list[dict[str, Any]] = []
    heights: list[float] = []
    last: list[float] = []
    for number, (label, line) in enumerate(lines_of(kinds).items()):
        curves = [curve for curve in found if curve.label == label and label in names]
        start = 1 if at == "seconds" else 0  # a logarithmic axis has no zero
        x = [median(each) for each in zip(*(getattr(curve, at) for curve in curves), strict=False)]
        by_place = list(zip(*(curve.judged(measure) for curve in curves), strict=False))[start:]
        x, length = x[start:], len(by_place)
        if not length:
            continue
        ends = [
            tuple(distance(measure, one) for one in (median(each), min(each), max(each)))
            for each in by_place
        ]
        own = {"legendgroup": plain(label), "name": plain(names[label])}
        if len(curves) > 1:
            every = max(1, length // WHISKERS)
            some = range(number * every // max(1, len(kinds)), length, every)
            traces.append(
                {
                    "type": "scatter", "mode": "markers", **own, "x": [x[n] for n in some],
                    "y": [ends[n][0] for n in some],
                    "marker": {"color": line["color"], "size": 1}, "opacity": 0.4,
                    "error_y": whiskers(
                        [(middle, *sorted(both)) for middle, *both in (ends[n] for n in some)],
                        line["color"],
                    ),
                    "showlegend": False, "hoverinfo": "skip",
                }
            )  # fmt: skip
        traces.append(
            {
                "type": "scatter", "mode": "lines", **own, "x": x,
                "y": [middle for middle, *_ in ends], "line": line,
                "customdata": list(map(median, by_place)),
                "hovertemplate": f"%{{customdata:.4~g}} at %{{x:.4~g}} {at}"
                "<extra>%{fullData.name}</extra>",
            }
        )  # fmt: skip
        if marks and label in marks:
            traces.append(
                {
                    "type": "scatter", "mode": "markers", **own, "x": [marks[label]],
                    "y": [target], "marker": {"color": line["color"], "size": 10},
                    "showlegend": False,
                    "hovertemplate": f"the target at %{{x:.4~g}} {at}"
                    "<extra>%{fullData.name}</extra>",
                }
            )  # fmt: skip
        heights += [one for each in ends for one in each]
        last.append(ends[-1][0])
    x_axis: dict[str, Any] = {"title": {"text": at}}
    if at == "seconds":
        shown = [place for trace in traces for place in trace["x"]]
        ticks = ticks_between(min(shown, default=1), max(shown, default=1))
        x_axis = {"title": {"text": "simulated seconds"}, "type": "log", **ticks_of(ticks)}
    layout: dict[str, Any] = {
        "xaxis": x_axis,
        "yaxis": _measure_axis(measure, heights, last, target),
    }
    if target is not None:
        layout["shapes"] = [TARGET | {"y0": target, "y1": target}]
    return figure(traces, layout)


def distance(measure: Measure, value: float) -> float:
    """Return the place of a loss, or of an accuracy in percent, on a logarithmic axis."""
    return max(LEAST_LOSS, value) if measure == "loss" else max(LEAST, 100 - value)


def cut(
    near: float, far: float, last: Sequence[float], target: float | None
) -> tuple[float, float]:
    """Return the ends of an axis of errors in percent whose data go from `near` to `far`; `last`
    are the final errors of the trained methods."""
    level = min(last) if target is None else target
    far = min(far, FAR * min(*last, level))
    return max(far, 1.15 * max(last)), min(near, level / 1.3)


def error_ticks(far: float, near: float) -> list[float]:
    """Return the ticks of an axis of errors in percent."""
    room = math.log(far / near) * APART_TICKS
    ticks: list[float] = []
    for tick in ERRORS:
        if near < tick < far / ROOM and (not ticks or math.log(ticks[-1] / tick) > room):
            ticks.append(tick)
    return ticks


def _measure_axis(
    measure: Measure, heights: Sequence[float], last: Sequence[float], target: float | None
) -> dict[str, Any]:
    """Return a logarithmic axis of the loss, or of the error in percent, the best at the top."""
    low, high = min(heights, default=1.0) / ROOM, max(heights, default=1.0) * ROOM
    if measure == "loss":
        low = min(low, (target or low) / ROOM)
        return {
            "title": {"text": "loss"}, "type": "log", **ticks_of(ticks_between(low, high)),
            "range": [math.log10(low), math.log10(high)],
        }  # fmt: skip
    far, near = cut(low, high, last or [low], target)
    ticks = error_ticks(far, near)
    return {
        "title": {"text": "accuracy [%]"}, "type": "log", "tickvals": ticks,
        "range": [math.log10(far), math.log10(near)],
        "ticktext": [f"{100 - tick:g}" for tick in ticks],
    }  # fmt: skip


def _hover_text(row: Row) -> str:
    """Return the hover text of a point."""
    took = f"{elapsed(row.iteration_s)} per iteration"
    if row.speedup_vs_dense is None:
        return took
    return f"{times(row.speedup_vs_dense)}{in_brackets(speedup_known(row))}, {took}"


def lines_of(kinds: dict[str, str]) -> dict[str, dict[str, Any]]:
    """Return colour and dash style by label."""
    styles = style.styles_of(kinds, set(kinds))
    return {
        label: {"color": one.colour, "dash": DASHES[one.dashes]} for label, one in styles.items()
    }


def whiskers(ends: Sequence[tuple[float, ...]], colour: str) -> dict[str, Any]:
    """Return error bars for points given as (middle, low, high)."""
    return {
        "type": "data", "symmetric": False, "color": colour, "thickness": 1.5, "width": 0,
        "array": [max(0.0, high - middle) for middle, _, high in ends],
        "arrayminus": [max(0.0, middle - low) for middle, low, _ in ends],
    }  # fmt: skip


def figure(traces: list[dict[str, Any]], layout: dict[str, Any]) -> Chart:
    """Return a figure of `traces`; `layout` overrides the layout common to all charts."""
    return {
        "data": traces,
        "layout": {
            "margin": {"l": 60, "r": 10, "t": 40, "b": 50}, "hovermode": "closest",
            "legend": {
                "orientation": "h", "y": 1.02, "yanchor": "bottom", "traceorder": "normal",
                "maxheight": LEGEND,
            },
            "font": {"family": "system-ui, sans-serif"},
            **{
                key: {"automargin": True, **entry} if isinstance(entry, dict) else entry
                for key, entry in layout.items()
            },
        },
        "config": {"responsive": True, "displayModeBar": False},
    }  # fmt: skip
