"""Charts of a training report: curves as in the figures, and speedups as points with whiskers.

Methods that miss the target have a separate chart with its own axis.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

from gcsim.analysis.page.charts import (
    CURVES,
    OF_SEEDS,
    ROW,
    TARGET,
    curves_chart,
    distance,
    figure,
    ticks_between,
    ticks_of,
    whiskers,
)
from gcsim.analysis.page.page import Chart, Html, chart, notes, plain
from gcsim.analysis.plots import style
from gcsim.analysis.report.numbers import fixed
from gcsim.analysis.trained.intervals import colour_of, ends_of, limits_of
from gcsim.analysis.trained.table import (
    coverage,
    groups_of,
    label_text,
    middle_of,
    ranking,
    speedup_range,
)
from gcsim.scenarios.trained.result import TrainedRow, TrainingResult

_AROUND = 150  # pixels above and below the rows of speedups


def level_of(result: TrainingResult) -> float:
    """Return the place of the target on the axis of the measure."""
    value = float(result.target.split()[1])  # "accuracy 0.97", possibly with its base
    return distance(result.measure, 100 * value if result.measure == "accuracy" else value)


def chart_sections(result: TrainingResult) -> list[tuple[str, Html]]:
    """Return headings and charts: speedups to the target, and curves over seconds and steps."""
    groups = groups_of(result)
    found: list[tuple[str, Html]] = []
    if rows := [row for row in ranking(result) if row.speedup_to_target]:
        under = f"Whisker: {coverage(len(rows[0].ended))}. Filled: differs from dense training."
        gains = chart(_gains(rows), _AROUND + ROW * len(rows))
        found.append(("Speedup to the target", gains + notes([under])))
    views: dict[Literal["steps", "seconds"], str] = {
        "seconds": "simulated seconds",
        "steps": "steps",
    }
    for at, words in views.items():
        for title, group in groups.items():
            drawn = chart(_curves(result, group, at), CURVES)
            heading = f"{result.measure.capitalize()} over {words}: {title}"
            found.append((heading, drawn))
    heading, drawn = found[-1]
    return [*found[:-1], (heading, drawn + notes([OF_SEEDS]))]


def _curves(
    result: TrainingResult, group: Sequence[TrainedRow], at: Literal["steps", "seconds"]
) -> Chart:
    reached = {row.label: middle_of(getattr(row, f"{at}_to_target")) for row in group}
    return curves_chart(
        {row.label: row.compressor for row in result.rows if not row.untrained},
        result.curves,
        result.measure,
        at,
        names={row.label: label_text(row) for row in group},
        target=level_of(result),
        marks={label: place for label, place in reached.items() if place is not None},
    )


def _gains(rows: Sequence[TrainedRow]) -> Chart:
    """Chart a point and a whisker per method at the target, cut at the ends of the axis."""
    low, high = limits_of(rows)
    kinds = {
        style.BLACK: "dense", style.BLUE: "faster", style.VERMILION: "slower",
        style.GREY: "no significant difference",
    }  # fmt: skip
    traces: list[dict[str, Any]] = []
    for colour, name in kinds.items():
        own = [row for row in rows if colour_of(row) == colour]
        gains = [row.speedup_to_target or 1.0 for row in own]
        ends = [ends_of(row) for row in own]
        spans = [
            (gain, max(least, low), min(most or high, high))
            for gain, (least, most) in zip(gains, ends, strict=True)
        ]
        symbol = "circle-open" if colour == style.GREY else "circle"
        traces.append(
            {
                "type": "scatter", "mode": "markers", "name": name, "x": gains,
                "y": [plain(row.label) for row in own],
                "marker": {"color": colour, "size": 10, "symbol": symbol},
                "error_x": whiskers(spans, colour),
                "text": [
                    f"{fixed(gain, 2)}x ({speedup_range(row)})"
                    for gain, row in zip(gains, own, strict=True)
                ],
                "hovertemplate": "%{text}<extra>%{y}</extra>",
            }
        )  # fmt: skip
    return figure(
        [trace for trace in traces if trace["x"]],
        {
            "xaxis": {
                "title": {"text": "speedup to the target [x]"}, "type": "log",
                "range": [math.log10(low), math.log10(high)], **ticks_of(ticks_between(low, high)),
            },
            "yaxis": {
                "type": "category", "categoryarray": [plain(row.label) for row in rows],
                "autorange": "reversed", "ticksuffix": " ",
            },
            "shapes": [TARGET | {"xref": "x", "x1": 1, "x0": 1, "yref": "paper", "y0": 0, "y1": 1}],
        },
    )  # fmt: skip
