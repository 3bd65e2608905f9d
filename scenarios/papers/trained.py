"""What do trajectories say, by method and by seed? Accuracies, compression ratios, lines.

A run that diverged has the accuracy of guessing one of ten classes, as the paper on variance-based
compression prints it (10.6 %).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from statistics import median

from gcsim.scenarios.papers.preset import Line, Panel
from gcsim.scenarios.result import Curve
from gcsim.scenarios.trained.result import TrainedRow, TrainingResult

ACCURACY, RATIO = "accuracy [%]", "ratio [x]"
GUESSED = 10.0
"""Percent."""

Seeds = dict[str, tuple[float, ...]]
"""By method: a value a seed."""


def accuracies(result: TrainingResult) -> Seeds:
    """On the samples held out, at the end, in percent."""
    return {row.label: tuple(_accuracies(row)) for row in _rows(result)}


def _accuracies(row: TrainedRow) -> Iterable[float]:
    for accuracy, ended in zip(row.final_accuracy, row.ended, strict=True):
        yield GUESSED if ended == "diverged" else _percent(accuracy)


def _percent(accuracy: float | None) -> float:
    """All tasks of the presets have classes, and so an accuracy."""
    return math.nan if accuracy is None else 100 * accuracy


def ratios(result: TrainingResult) -> Seeds:
    """Bytes of dense training over those that a worker handed to collectives, mean over the whole
    training."""
    kinds = {row.compressor: row.label for row in result.rows}
    dense = _mean(curves_of(result)[kinds["none"]][0].wire_bytes_per_worker)
    return {
        label: tuple(dense / _mean(curve.wire_bytes_per_worker) for curve in curves)
        for label, curves in curves_of(result).items()
    }


def logarithms(values: Seeds) -> Seeds:
    """What ratios are compared by: a factor is a difference."""
    return {label: tuple(math.log(value) for value in seeds) for label, seeds in values.items()}


def ends(result: TrainingResult) -> tuple[str, ...]:
    """What is to be said of runs that ended early, a sentence a method."""
    return tuple(
        f"{row.label}: {sum(map(bool, row.why))} of {len(row.why)} runs ended early: "
        f"{next(filter(None, row.why))}."
        for row in _rows(result)
        if any(row.why)
    )


def curves_of(result: TrainingResult) -> dict[str, list[Curve]]:
    """By method, a curve a seed."""
    found: dict[str, list[Curve]] = {}
    for curve in result.curves:
        found.setdefault(curve.label, []).append(curve)
    return found


def panel(
    result: TrainingResult,
    title: str,
    quantity: str,
    value: Callable[[Curve], Sequence[float]],
    *,
    log_y: bool = False,
    without: str = "",
) -> Panel:
    """A quantity over steps, by evaluation: what all seeds have; without a method, if so asked."""
    lines = []
    for label, curves in curves_of(result).items():
        if label == without:
            continue
        values = [value(curve) for curve in curves]
        length = min(map(len, values))
        steps = curves[0].steps[-len(values[0]) :][:length]
        lines.append(line(label, steps, [each[:length] for each in values]))
    return Panel(title=title, x="steps", y=quantity, lines=tuple(lines), log_y=log_y)


def line(label: str, x: Iterable[float], seeds: Sequence[Sequence[float]]) -> Line:
    """The median of the seeds, between the lowest and the highest."""
    several = len(seeds) > 1
    places = list(zip(*seeds, strict=True))
    return Line(
        label=label,
        x=tuple(map(float, x)),
        y=tuple(median(values) for values in places),
        low=tuple(map(min, places)) if several else (),
        high=tuple(map(max, places)) if several else (),
    )


def percent(curve: Curve) -> list[float]:
    """A curve's accuracy."""
    return [_percent(value) for value in curve.accuracy]


def points(first: Seeds, second: Seeds) -> tuple[Line, ...]:
    """A point a method: the median of one quantity against that of another."""
    return tuple(
        Line(label=label, x=(median(first[label]),), y=(median(second[label]),),
             low=(min(second[label]),), high=(max(second[label]),))
        for label in first
    )  # fmt: skip


def _rows(result: TrainingResult) -> list[TrainedRow]:
    """Of the largest size."""
    largest = max(row.nodes for row in result.rows)
    return [row for row in result.rows if row.nodes == largest]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
