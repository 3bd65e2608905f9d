"""Values of presets from trajectories and updates, by method and seed.

A diverged run has the accuracy of guessing one of ten classes, as printed in the variance paper
(10.6 %). Updates are computed from a training's gradients, step by step and tensor by tensor.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from gcsim.compressors.base import Compressor, Worker
from gcsim.compressors.bucket import Bucket, BucketLayout, TensorSlice
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.lockstep import CollectiveRecord, Observer, lockstep
from gcsim.compressors.mistakes import new_member
from gcsim.compressors.participation import participate
from gcsim.compressors.registry import check_parameters, compressor_class
from gcsim.scenarios.papers.preset import Line, Panel
from gcsim.scenarios.progress import Progress
from gcsim.scenarios.result import Curve
from gcsim.scenarios.running.gradients import open_gradients
from gcsim.scenarios.scenario import CompressorChoice, Scenario
from gcsim.scenarios.trained.result import TrainedRow, TrainingResult
from gcsim.traces.buckets import bucket_layouts

ACCURACY, RATIO = "accuracy [%]", "ratio [x]"
GUESSED = 10.0  # percent
QUICK = {
    "train.steps": "4", "train.evaluate_every": "2", "train.seeds": "1",
    "train.target": "{of_dense: 0.1}",
}  # fmt: skip
"""Settings of the reduced size."""

Seeds = dict[str, tuple[float, ...]]  # values by seed, by method


def accuracies(result: TrainingResult) -> Seeds:
    """Return the final held-out accuracy in percent, by method and seed."""
    return {row.label: tuple(_accuracies(row)) for row in _rows(result)}


def _accuracies(row: TrainedRow) -> Iterable[float]:
    for accuracy, ended in zip(row.final_accuracy, row.ended, strict=True):
        yield GUESSED if ended == "diverged" else _percent(accuracy)


def _percent(accuracy: float | None) -> float:
    return math.nan if accuracy is None else 100 * accuracy


def ratios(result: TrainingResult) -> Seeds:
    """Return dense training's bytes over a worker's sent bytes, over the whole training."""
    kinds = {row.compressor: row.label for row in result.rows}
    dense = _mean(curves_of(result)[kinds["none"]][0].wire_bytes_per_worker)
    return {
        label: tuple(dense / _mean(curve.wire_bytes_per_worker) for curve in curves)
        for label, curves in curves_of(result).items()
    }


def logarithms(values: Seeds) -> Seeds:
    """Return logarithms, which turn factors into differences."""
    return {label: tuple(math.log(value) for value in seeds) for label, seeds in values.items()}


def ends(result: TrainingResult) -> tuple[str, ...]:
    """Return notes on runs that ended early, one sentence per method."""
    return tuple(
        f"{row.label}: {sum(map(bool, row.why))} of {len(row.why)} runs ended early: "
        f"{next(filter(None, row.why))}."
        for row in _rows(result)
        if any(row.why)
    )


def too_short(result: TrainingResult) -> tuple[str, ...]:
    """Return the methods whose training is too short for a verdict."""
    return tuple(row.label for row in _rows(result) if row.too_short)


def curves_of(result: TrainingResult) -> dict[str, list[Curve]]:
    """Return curves by method and seed."""
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
    """Return a panel of a quantity over steps, at evaluations common to all seeds."""
    lines = []
    shown = {label: curves for label, curves in curves_of(result).items() if label != without}
    whole = max((len(value(curve)) for curves in shown.values() for curve in curves), default=0)
    for label, curves in shown.items():
        values = [value(curve) for curve in curves]
        length = min(map(len, values))
        steps = curves[0].steps[-len(values[0]) :][:length]
        median_line = line(label, steps, [each[:length] for each in values])
        lines.append(replace(median_line, stopped=length < whole))
    return Panel(title=title, x="steps", y=quantity, lines=tuple(lines), log_y=log_y)


def line(label: str, x: Iterable[float], seeds: Sequence[Sequence[float]]) -> Line:
    """Return a line of the seeds' medians, with minimum and maximum."""
    several = len(seeds) > 1
    places = list(zip(*seeds, strict=True))
    return Line(
        label=label,
        x=tuple(map(float, x)),
        y=tuple(median(values) for values in places),
        low=tuple(map(min, places)) if several else (),
        high=tuple(map(max, places)) if several else (),
    )


def drawn(
    title: str, x: str, y: str, places: Iterable[float], seeds: Mapping[str, Any], **more: bool
) -> Panel:
    """Return a panel of each method's values at common positions, by seed."""
    at = tuple(places)
    lines = tuple(line(label, at, values) for label, values in seeds.items())
    return Panel(title=title, x=x, y=y, lines=lines, **more)


def percent(curve: Curve) -> list[float]:
    """Return a curve's accuracies in percent."""
    return [_percent(value) for value in curve.accuracy]


def points(first: Seeds, second: Seeds) -> tuple[Line, ...]:
    """Return one point per method: a quantity's median against another's."""
    return tuple(
        Line(label=label, x=(median(first[label]),), y=(median(second[label]),),
             low=(min(second[label]),), high=(max(second[label]),))
        for label in first
    )  # fmt: skip


def _rows(result: TrainingResult) -> list[TrainedRow]:
    largest = max(row.nodes for row in result.rows)
    return [row for row in result.rows if row.nodes == largest]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Seen:
    """Gradient and update of one tensor in one step: float32 `[n]` each."""

    name: str
    step: int  # from 0
    dense: Tensor  # mean of the workers' gradients
    updates: dict[str, tuple[Tensor, ...]]  # each method's updates, by seed


def updates(scenario: Scenario, *, tensors: int, seeds: int, progress: Progress) -> Iterator[_Seen]:
    """Yield the largest `tensors` tensors of every iteration under all methods, for the gradients
    of dense training; `InputError` as recording."""
    with open_gradients(scenario, second_moments=False, progress=progress) as trace:
        names = sorted(trace.parameters, key=lambda named: -torch.Size(named[1]).numel())
        layouts = bucket_layouts(names[:tensors][::-1], first=1, cap=1)  # a bucket a tensor
        members = {
            (choice.label, layout.index, seed): [
                new_member(
                    compressor_class(choice.kind),
                    Worker(rank=rank, count=trace.workers, seed=seed),
                    check_parameters(choice.kind, choice.parameters),
                )
                for rank in range(trace.workers)
            ]
            for choice in scenario.compressors
            for layout in layouts
            for seed in range(seeds)
        }
        for step in range(trace.iterations):
            for layout in layouts:
                buckets = [trace.bucket(layout, step, rank) for rank in range(trace.workers)]
                found = {
                    choice.label: tuple(
                        lockstep(
                            [
                                participate(member, bucket, step)
                                for member, bucket in zip(
                                    members[choice.label, layout.index, seed], buckets, strict=True
                                )
                            ]
                        )[0]
                        for seed in range(seeds)
                    )
                    for choice in scenario.compressors
                }
                yield _Seen(
                    name=layout.slices[0].name,
                    step=step,
                    dense=torch.stack([bucket.gradient for bucket in buckets]).mean(0),
                    updates=found,
                )


def whole_gradients(
    scenario: Scenario, progress: Progress, *, tensors: int | None = None
) -> Iterator[Bucket]:
    """Yield each worker's gradient in the first iteration, of the largest `tensors` tensors or of
    all, concatenated in the model's order; `InputError` as recording."""
    with open_gradients(scenario, second_moments=False, progress=progress) as trace:
        sizes = [torch.Size(shape).numel() for _, shape in trace.parameters]
        chosen = sorted(sorted(range(len(sizes)), key=lambda at: -sizes[at])[:tensors])
        numel = sum(sizes[at] for at in chosen)
        (layout,) = bucket_layouts(trace.parameters, chosen, first=4 * numel)
        piece = TensorSlice(name="gradient", shape=(numel,), offset=0, index=0)
        whole = BucketLayout(index=0, slices=(piece,))
        for worker in range(scenario.gradients.workers or trace.workers):
            yield Bucket(layout=whole, gradient=trace.bucket(layout, 0, worker).gradient)


def alone(choice: CompressorChoice, seed: int = 0) -> Compressor[Any]:
    """Create the only worker of a method."""
    parameters = check_parameters(choice.kind, choice.parameters)
    return new_member(compressor_class(choice.kind), Worker(rank=0, count=1, seed=seed), parameters)


def quantised(choice: CompressorChoice, bucket: Bucket) -> tuple[Tensor, int]:
    """Return a single worker's update of a bucket, float32 `[n]`, and bytes of its messages."""
    sent = _Sent()
    return lockstep([participate(alone(choice), bucket, 0)], sent)[0], sent.nbytes


class _Sent(Observer):
    """Counter of the first worker's bytes."""

    nbytes = 0

    def collective(self, record: CollectiveRecord) -> None:
        self.nbytes += record.sent[0]
