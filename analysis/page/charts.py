"""Charts of a report, as Plotly's plain data: speedups, parts, accuracies.

Hover texts are the table's.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

from gcsim.analysis.page.page import Chart, Html, chart, notes, plain
from gcsim.analysis.plots import style
from gcsim.analysis.report.intervals import speedup_known, within
from gcsim.analysis.report.numbers import elapsed, times
from gcsim.analysis.report.selection import at_largest
from gcsim.scenarios.result import Curve, Measure, Result, Row
from gcsim.scenarios.sweeps.result import SweepPoint

DASHES = dict(zip(style.DASHES, ("solid", "dash", "dot", "dashdot"), strict=True))
"""Plotly's dashes by matplotlib's."""
STEPS = (
    (1, 2, 5),
    (1, 1.5, 2, 3, 5, 7),
    (1, 1.1, 1.2, 1.3, 1.4, 1.6, 1.8, 2, 2.5, 3, 3.5, 4, 5, 6, 7, 8, 9),
)
"""Ticks of a logarithmic axis within a decade, coarse to fine."""
WHISKERS = 8  # number per curve of training
APART, REACH = 0.08, 0.56
"""Octaves between the points of two methods at a size, and between the first and the last."""
LEGEND = 0.25  # largest share of a chart's height: on a phone long legends scroll
CURVES = 480  # pixels of a chart of training
ROW = 26  # pixels of a bar


def speedup_chart(result: Result, ranged: Sequence[str]) -> Chart:
    """Speedup over dense training, or throughput without a dense row, by number of workers; methods
    labelled in `ranged` with their range, side by side."""
    compared = any(row.speedup_vs_dense is not None for row in result.rows)
    traces: list[dict[str, Any]] = []
    known = [
        label
        for label in ranged
        if all(row.speedup_low and row.speedup_high for row in result.rows if row.label == label)
    ]
    step = min(APART, REACH / max(1, len(known)))
    heights: list[float] = []
    beside = {one: 2 ** (step * (n - (len(known) - 1) / 2)) for n, one in enumerate(known)}
    for label, line in _lines({row.label: row.compressor for row in result.rows}).items():
        rows = sorted(
            (row for row in result.rows if row.label == label), key=lambda row: row.workers
        )
        at = [row.workers * beside.get(label, 1.0) for row in rows]
        traces.append(
            {
                "type": "scatter", "mode": "lines+markers", "name": plain(label), "x": at,
                "line": line,
                "y": [
                    row.speedup_vs_dense if compared else row.throughput_samples_per_s
                    for row in rows
                ],
                "text": [_told(row) for row in rows],
                "customdata": [row.workers for row in rows],
                "hovertemplate": "%{text}<extra>%{fullData.name}, %{customdata} workers</extra>",
            }
        )  # fmt: skip
        if label in beside:
            ends = [
                (row.speedup_vs_dense or 0.0, row.speedup_low or 0.0, row.speedup_high or 0.0)
                for row in rows
            ]
            traces[-1]["error_y"] = _whiskers(ends, line["color"])
            heights += [height for row in ends for height in row]
    sizes = sorted({row.workers for row in result.rows})
    what = "speedup over dense training [x]" if compared else "throughput [samples/s]"
    heights += [height for trace in traces for height in trace["y"]]
    ticks = ticks_between(min(heights), max(heights))
    return _figure(
        traces,
        {
            "xaxis": {
                "title": {"text": "workers"}, "type": "log", "tickvals": sizes,
                "ticktext": list(map(str, sizes)),
            },
            "yaxis": {
                "title": {"text": what}, "type": "log", "tickvals": ticks,
                "ticktext": [f"{tick:g}" for tick in ticks],
            },
        },
    )  # fmt: skip


def ticks_between(low: float, high: float) -> list[float]:
    """Ticks of a logarithmic axis, at least three if steps are fine enough."""
    found: list[float] = []
    for steps in STEPS:
        ticks = [round(step * 10.0**power, 6) for power in range(-4, 8) for step in steps]
        found = [tick for tick in ticks if low / 1.1 <= tick <= high * 1.1]
        if len(found) >= 3:
            break
    return found


def breakdown_chart(result: Result) -> tuple[Chart, int]:
    """Parts of an iteration at the largest size, fastest first, and the height in pixels."""
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
    stated = ""
    if any(row.iteration_low_s is not None for row in rows):
        stated = "; bars: default inputs"
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
                "error_x": _whiskers([tuple(one * 1e3 for one in row) for row in ends], style.BLACK)
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
        "xaxis": {"title": {"text": f"time [ms]{stated}"}},
        "yaxis": {  # labels are names, also where they look like numbers
            "type": "category",
            "autorange": "reversed",
            "automargin": True,
            "ticksuffix": " ",
        },
    }
    return _figure(traces, layout), 150 + ROW * len(rows)


def points_chart(points: Sequence[SweepPoint]) -> Chart:
    """Speedups by point, at its largest size, with ranges."""
    by_label: dict[str, list[tuple[str, Row]]] = {}
    for point in points:
        for row in at_largest(point.result) if point.result else ():
            by_label.setdefault(row.label, []).append((point.name, row))
    kinds = {label: found[0][1].compressor for label, found in by_label.items()}
    traces: list[dict[str, Any]] = []
    for label, line in _lines(kinds).items():
        rows = [row for _, row in by_label[label]]
        ends = [
            (row.speedup_vs_dense or 0.0, row.speedup_low or row.speedup_vs_dense or 0.0,
             row.speedup_high or row.speedup_vs_dense or 0.0)
            for row in rows
        ]  # fmt: skip
        traces.append(
            {
                "type": "scatter", "mode": "markers", "name": plain(label),
                "x": [plain(name).replace(", ", "<br>") for name, _ in by_label[label]],
                "y": [row.speedup_vs_dense for row in rows], "marker": {"color": line["color"]},
                "error_y": _whiskers(ends, line["color"]),
                "text": [_told(row) for row in rows],
                "hovertemplate": "%{text}<extra>%{fullData.name}, %{x}</extra>",
            }
        )  # fmt: skip
    return _figure(
        traces,
        {
            "xaxis": {"type": "category", "automargin": True},
            "yaxis": {"title": {"text": "speedup over dense training [x]"}},
            "scattermode": "group", "scattergap": 0.5,
        },
    )  # fmt: skip


def training_sections(
    kinds: dict[str, str], every: Sequence[Curve], measure: Measure
) -> list[tuple[str, Html]]:
    """Headings and charts over steps and seconds; `kinds`: registered names by label."""
    said = ["Median over seeds; whiskers from the lowest seed to the highest."]
    over_steps, over_seconds = (
        chart(_judged_chart(kinds, every, measure, at), CURVES) for at in ("steps", "seconds")
    )
    name = measure.capitalize()
    return [
        (f"{name} over steps", over_steps),
        (f"{name} over simulated seconds", over_seconds + notes(said)),
    ]


def _judged_chart(
    kinds: dict[str, str], found: Sequence[Curve], measure: Measure, at: str
) -> Chart:
    """Held-out accuracy or loss against steps or simulated seconds (`at`): median over seeds, and
    whiskers from lowest to highest, at places of their own for each method."""
    traces: list[dict[str, Any]] = []
    for number, (label, line) in enumerate(_lines(kinds).items()):
        curves = [curve for curve in found if curve.label == label]
        places = [getattr(curve, at) for curve in curves]
        judged = [curve.judged(measure) for curve in curves]
        length = min(map(len, judged), default=0)
        if not length:
            continue
        x = [median(each) for each in zip(*(place[:length] for place in places), strict=True)]
        by_place = list(zip(*(values[:length] for values in judged), strict=True))
        if len(curves) > 1:
            every = max(1, length // WHISKERS)
            some = range(number * every // max(1, len(kinds)), length, every)
            ends = [(median(by_place[n]), min(by_place[n]), max(by_place[n])) for n in some]
            traces.append(
                {
                    "type": "scatter", "mode": "markers", "legendgroup": plain(label),
                    "x": [x[n] for n in some], "y": [middle for middle, *_ in ends],
                    "marker": {"color": line["color"], "size": 1}, "opacity": 0.6,
                    "error_y": _whiskers(ends, line["color"]),
                    "showlegend": False, "hoverinfo": "skip",
                }
            )  # fmt: skip
        traces.append(
            {
                "type": "scatter", "mode": "lines", "name": plain(label),
                "legendgroup": plain(label), "x": x, "y": list(map(median, by_place)),
                "line": line,
                "hovertemplate": f"%{{y:.4~g}} at %{{x:.4~g}} {at}"
                "<extra>%{fullData.name}</extra>",
            }
        )  # fmt: skip
    what = "accuracy [%]" if measure == "accuracy" else "loss"
    named = "steps" if at == "steps" else "simulated seconds"
    return _figure(
        traces, {"xaxis": {"title": {"text": named}}, "yaxis": {"title": {"text": what}}}
    )


def _told(row: Row) -> str:
    """Hover text of a point."""
    took = f"{elapsed(row.iteration_s)} per iteration"
    if row.speedup_vs_dense is None:
        return took
    return f"{times(row.speedup_vs_dense)}{within(speedup_known(row))}, {took}"


def _lines(kinds: dict[str, str]) -> dict[str, dict[str, Any]]:
    """Colour and dash by label."""
    styles = style.styles_of(kinds, set(kinds))
    return {
        label: {"color": one.colour, "dash": DASHES[one.dashes]} for label, one in styles.items()
    }


def _whiskers(ends: Sequence[tuple[float, ...]], colour: str) -> dict[str, Any]:
    """Error bars of points given as middle, low and high."""
    return {
        "type": "data", "symmetric": False, "color": colour, "thickness": 1.5, "width": 0,
        "array": [max(0.0, high - middle) for middle, _, high in ends],
        "arrayminus": [max(0.0, middle - low) for middle, low, _ in ends],
    }  # fmt: skip


def _figure(traces: list[dict[str, Any]], layout: dict[str, Any]) -> Chart:
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
