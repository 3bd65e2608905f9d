"""Tables and figures of the ORQ paper, in miniature (Xu, Huo and Huang, arXiv:2002.11082)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from gcsim.compressors.bucket import Bucket
from gcsim.scenarios.papers import preset, trained
from gcsim.scenarios.papers.judge import at_most, monotone, order, ranked
from gcsim.scenarios.result import Curve
from gcsim.scenarios.scenario import Scenario
from gcsim.scenarios.trained.result import TrainingResult

USED, AWAY, RANGE, ERROR = "levels [bits]", "away [%]", "range [sd]", "error [%]"
_FULL = "FP"
_BUCKET = 2048
_PHASES = ("early", "middle", "late")
"""Phases of training of the shipped ResNet-20 gradients."""
_ONE_WORKER = {"orq_gradients": {"gradients.workers": "1"}}
_BINS, _REACH = 101, 2.5
"""Bins of a histogram, and its limits in standard deviations, as in the figure."""

_Values = NDArray[np.float32]


@preset.preset_of(source="Xu, Huo and Huang, arXiv:2002.11082, Figure 1", quick=_ONE_WORKER)
def fig1(study: preset.Study, printed: preset.Printed) -> preset.Outcome:
    """A quantised gradient: use of levels, and shape.

    Whole gradients of ResNet-20 in buckets of 2048, quantised to nine and two levels: from four
    workers early, in the middle and late in training on images of CIFAR's size.
    """
    table: dict[str, dict[str, list[float]]] = {}
    panels: tuple[preset.Panel, ...] = ()
    for scenario, gradient in _gradients(study):
        dense: _Values = gradient.gradient.numpy()
        quantised: dict[str, _Values] = {}
        for choice in scenario.compressors:
            values: _Values = trained.quantised(choice, gradient)[0].numpy()
            quantised[choice.label] = values
            own = table.setdefault(choice.label, {key: [] for key in (USED, AWAY, RANGE, ERROR)})
            own[USED].append(_entropy(values))
            own[AWAY].append(100 * _away(values, dense) / _away(dense, dense))
            own[RANGE].append(float(np.abs(values).mean() / dense.std()))
            own[ERROR].append(_lost(values, dense))
        panels = panels or _histograms({_FULL: dense, **quantised}, float(dense.std()))
    used, away, reach, error = (
        {name: of_name[key] for name, of_name in table.items()}
        for key in (USED, AWAY, RANGE, ERROR)
    )
    return preset.Outcome(
        cells=preset.cells(table, printed),
        verdicts=(
            order("ORQ uses its levels more than QSGD", "sec. 5.1.2", used,
                  (("ORQ-9",), ("QSGD-9",))),
            order("QSGD has the fewest elements at levels away from zero", "sec. 5.1.2", away,
                  (("ORQ-9",), ("QSGD-9",))),
            order("ORQ keeps the shape better than QSGD and Linear: error", "sec. 5.1.2", error,
                  (("ORQ-9",), ("QSGD-9", "Linear-9")), least=True),
            order("BinGrad-b has a smaller error than BinGrad-pb", "sec. 5.1.2",
                  error, (("BinGrad-b",), ("BinGrad-pb",)), least=True),
            order("BinGrad-pb has the wider range", "sec. 5.1.2", reach,
                  (("BinGrad-pb",), ("BinGrad-b",))),
        ),
        panels=panels,
        draws="gradient",
    )  # fmt: skip


def _gradients(
    study: preset.Study, changes: Mapping[str, str] | None = None
) -> Iterator[tuple[Scenario, Bucket]]:
    """Yield each worker's shipped gradient of each phase as one tensor, with its scenario."""
    for phase in _PHASES:
        scenario = study.scenario(
            "orq_gradients", {"gradients.trace": f"resnet20_cifar10-{phase}", **(changes or {})}
        )
        for gradient in trained.whole_gradients(scenario, study.progress):
            yield scenario, gradient


def _lost(values: _Values, dense: _Values) -> float:
    """Return the energy of the error in percent of the gradient's."""
    return 100 * float(((values - dense) ** 2).sum() / (dense**2).sum())


def _entropy(values: _Values) -> float:
    """Return the mean entropy over buckets, in bits."""
    bits = []
    for start in range(0, values.size, _BUCKET):
        share = np.unique(values[start : start + _BUCKET], return_counts=True)[1]
        share = share / share.sum()
        bits.append(float(-(share * np.log2(share)).sum()))
    return fmean(bits)


def _away(values: _Values, dense: _Values) -> float:
    """Return the share of elements beyond half the standard deviation of their bucket."""
    beyond = 0
    for start in range(0, values.size, _BUCKET):
        part = slice(start, start + _BUCKET)
        beyond += int((np.abs(values[part]) > dense[part].std() / 2).sum())
    return beyond / values.size


def _histograms(gradients: Mapping[str, _Values], deviation: float) -> tuple[preset.Panel, ...]:
    """Return frequencies relative to the highest, as in the figure; one panel per method."""
    found = []
    for name, values in gradients.items():
        clipped = np.clip(values / deviation, -_REACH, _REACH)
        counts, edges = np.histogram(clipped, bins=_BINS, range=(-_REACH, _REACH))
        x = tuple(map(float, (edges[:-1] + edges[1:]) / 2))
        y = tuple(map(float, counts / counts.max()))
        found.append(
            trained.drawn(name, "gradient [standard deviations]", "frequency / highest", x,
                          {name: [y]})
        )  # fmt: skip
    return tuple(found)


_LOSS = "loss held out [nats]"
_LEVELS = {3: ("TernGrad-noclip",), 5: ("QSGD-5", "Linear-5"), 9: ("QSGD-9", "Linear-9")}
"""ORQ's counterparts with as many levels, the better one in print first."""
_QUICK = {"orq_train": {**trained.QUICK, "batch_size": "16"}}


@preset.preset_of(source="Xu, Huo and Huang, arXiv:2002.11082, Figure 2", quick=_QUICK)
def fig2(study: preset.Study, printed: preset.Printed) -> preset.Outcome:
    """Quantisation error over a training, by the number of levels.

    Error of the first step after each evaluation: |Q(g) - g|^2 / |g|^2 with one worker. Each method
    uses its own trained weights.
    """
    result = study.train(study.scenario("orq_train"))
    curves = {name: found for name, found in trained.curves_of(result).items() if name != "FP"}
    error = {name: [fmean(_errors(curve)) for curve in found] for name, found in curves.items()}
    gap = {
        f"{levels} levels": [
            a - b for a, b in zip(error[others[0]], error[f"ORQ-{levels}"], strict=True)
        ]
        for levels, others in _LEVELS.items()
    }
    logs = trained.logarithms({name: tuple(values) for name, values in error.items()})
    return preset.Outcome(
        cells=preset.cells({name: {ERROR: error[name]} for name in error}, printed),
        verdicts=(
            *(
                order(f"ORQ has the least error with {levels} levels", "Fig. 2, sec. 5.1.3", logs,
                      ((f"ORQ-{levels}",), others), least=True)
                for levels, others in _LEVELS.items()
            ),
            order("BinGrad-b's error is smaller than BinGrad-pb's", "sec. 5.1.3", logs,
                  (("BinGrad-b",), ("BinGrad-pb",)), least=True),
            order("BinGrad's error is smaller than with three levels", "sec. 5.1.3", logs,
                  (("BinGrad-b", "BinGrad-pb"), ("ORQ-3", "TernGrad-noclip")), least=True),
            order("the gap from ORQ's error to even levels' grows with fewer levels", "sec. 5.1.3",
                  gap, (("3 levels",), ("5 levels",), ("9 levels",))),
        ),
        panels=(
            trained.panel(result, "Quantisation error", ERROR, _errors, log_y=True, without="FP"),
            trained.panel(result, "Loss", _LOSS, lambda curve: curve.loss),
        ),
        notes=trained.ends(result),
    )  # fmt: skip


def _errors(curve: Curve) -> list[float]:
    """Return a curve's errors by window, in percent."""
    return [100 * value for value in curve.nmse if value is not None]


@preset.preset_of(source="Xu, Huo and Huang, arXiv:2002.11082, Table 2", quick=_QUICK)
def table2(study: preset.Study, printed: preset.Printed) -> preset.Outcome:
    """Accuracy with quantised gradients, one worker, no clipping.

    Levels are ORQ's, evenly spaced (QSGD) or quantiles. No method clips, as in the paper: if only
    one did, the order would show which method clips. Digits are learned soon, so the held-out loss
    separates methods better than the accuracy.
    """
    result = study.train(study.scenario("orq_train"))
    found = trained.accuracies(result)
    loss = _losses(result)
    finer = trained.logarithms(loss)
    verdicts: list[preset.Verdict] = []
    for levels, others in _LEVELS.items():
        expected = ((f"ORQ-{levels}",), *((other,) for other in others))
        claim = f"{levels} levels: ORQ, then {', then '.join(others)}"
        verdicts += [
            order(f"{claim}: accuracy", "Table 2", found, expected),
            order(f"{claim}: loss held out", "Table 2", finer, expected, least=True),
        ]
    all_ = ranked(preset.column(printed, trained.ACCURACY))
    one_bit = (("BinGrad-b",), ("BinGrad-pb", "SignSGD"))
    return preset.Outcome(
        cells=preset.cells(
            {name: {trained.ACCURACY: found[name], _LOSS: loss[name]} for name in found}, printed
        ),
        verdicts=(
            *verdicts,
            order("one bit: BinGrad-b is better than BinGrad-pb and SignSGD: loss held out",
                  "Table 2", finer, one_bit, least=True),
            order("ORQ trains better with more levels: loss held out", "Table 2", finer,
                  (("ORQ-9",), ("ORQ-5",), ("ORQ-3",)), least=True),
            order("all twelve: accuracy", "Table 2, ResNet-56", found, all_),
            order("all twelve: loss held out", "Table 2, ResNet-56", finer, all_, least=True),
        ),
        panels=(
            trained.panel(result, "Accuracy", "accuracy held out [%]", trained.percent),
            trained.panel(result, "Loss", _LOSS, lambda curve: curve.loss, log_y=True),
        ),
        notes=trained.ends(result),
    )  # fmt: skip


def _losses(result: TrainingResult) -> trained.Seeds:
    """Return the loss after the last step, by method and seed."""
    curves = trained.curves_of(result)
    return {name: tuple(curve.loss[-1] for curve in of) for name, of in curves.items()}


_SIZES = (128, 512, 1024, 2048, 4096, 8192, 16384, 32768)
_THREE = {
    "ORQ-3": "kind: orq, levels: 3", "TernGrad-noclip": "kind: qsgd, steps: 1, coding: digits",
}  # fmt: skip
_DEGRADES = "degrades [points]"


@preset.preset_of(source="Xu, Huo and Huang, arXiv:2002.11082, Table 3", quick=_ONE_WORKER)
def table3(study: preset.Study, printed: preset.Printed) -> preset.Outcome:
    """Three levels in buckets of 128 to 32,768 elements: error and bytes.

    The gradients are those of Figure 1. The paper has accuracies, and explains them by the loss of
    information in larger buckets, which is measured here.
    """
    choices = ", ".join(
        f"{{{method}, bucket: {size}, label: '{name}, {size}'}}"
        for name, method in _THREE.items()
        for size in _SIZES
    )
    error: dict[str, list[float]] = {}
    ratio: dict[str, list[float]] = {}
    for scenario, gradient in _gradients(study, {"compressors": f"[{choices}]"}):
        dense: _Values = gradient.gradient.numpy()
        for choice in scenario.compressors:
            values, nbytes = trained.quantised(choice, gradient)
            error.setdefault(choice.label, []).append(_lost(values.numpy(), dense))
            ratio.setdefault(choice.label, []).append(dense.nbytes / nbytes)
    logs = {name: [math.log(value) for value in values] for name, values in error.items()}
    along = {name: {f"{size}": logs[f"{name}, {size}"] for size in _SIZES} for name in _THREE}
    small, large = _SIZES[0], _SIZES[-1]
    grown, factor = (
        {
            name: [
                b - a for a, b in zip(of[f"{name}, {small}"], of[f"{name}, {large}"], strict=True)
            ]
            for name in _THREE
        }
        for of in (error, logs)
    )
    fewest = ranked({n: -v for n, v in preset.column(printed, _DEGRADES).items()})
    where = f"sec. 5.1.3, by accuracy, {small} to {large}"
    return preset.Outcome(
        cells=preset.cells(
            {name: {ERROR: error[name], trained.RATIO: ratio[name]} for name in error}, {}
        ),
        verdicts=(
            *(
                monotone(f"{name}: the larger the bucket, the larger the error", "sec. 5.1.3", of)
                for name, of in along.items()
            ),
            order("buckets of 16,384: ORQ-3 loses less than even levels", "Table 3, by accuracy",
                  {name: error[f"{name}, 16384"] for name in _THREE},
                  ranked(preset.column(printed, trained.ACCURACY)), least=True),
            order("ORQ-3's error grows by fewer points", where, grown, fewest, least=True),
            order("ORQ-3's error grows by a smaller factor", where, factor, fewest, least=True),
        ),
        panels=(
            trained.drawn(
                "Error by bucket size", "elements per bucket", ERROR, _SIZES,
                {name: list(zip(*(error[f"{name}, {size}"] for size in _SIZES), strict=True))
                 for name in _THREE}, log_x=True,
            ),
        ),
        draws="gradient",
    )  # fmt: skip


_CLIPS = ("1.7", "2.5")
_LOSE = {"1.7": 0.68, "2.5": 2.36}  # points that a method loses at most, CIFAR-100


@preset.preset_of(
    source="Xu, Huo and Huang, arXiv:2002.11082, Table 4", quick={"orq_clip": _QUICK["orq_train"]}
)
def table4(study: preset.Study, printed: preset.Printed) -> preset.Outcome:
    """Accuracy by clipping factor.

    ORQ clips at 1.7 and 2.5 standard deviations, or does not clip. The printed accuracies without
    clipping are from Table 2, with larger buckets.
    """
    result = study.train(study.scenario("orq_clip"))
    found, loss = trained.accuracies(result), _losses(result)
    error = {
        name: tuple(fmean(_errors(curve)) for curve in of)
        for name, of in trained.curves_of(result).items()
    }
    finer = trained.logarithms(loss)
    accuracy = preset.column(printed, trained.ACCURACY)
    lost = {name: fmean(found[_FULL]) - fmean(values) for name, values in found.items()}
    return preset.Outcome(
        cells=preset.cells(
            {name: {trained.ACCURACY: found[name], _LOSS: loss[name], ERROR: error[name]}
             for name in found}, printed
        ),
        verdicts=(
            *(
                order(f"{levels} levels, by clipping factor: {what}", "Tables 2 and 4", values,
                      ranked({name: accuracy[name] for name in _clipped(levels)}), least=least)
                for levels in _LEVELS
                for what, values, least in (("accuracy", found, False),
                                            ("loss held out", finer, True))
            ),
            *(
                at_most(f"clipped at {clip}, ORQ ends near FP", "Table 4",
                        {f"ORQ-{n}": lost[f"ORQ-{n}, c = {clip}"] for n in _LEVELS},
                        _LOSE[clip], "points")
                for clip in _CLIPS
            ),
        ),
        panels=(
            trained.panel(result, "Accuracy", "accuracy held out [%]", trained.percent),
            trained.panel(result, "Loss", _LOSS, lambda curve: curve.loss, log_y=True),
        ),
        notes=trained.ends(result),
    )  # fmt: skip


def _clipped(levels: int) -> tuple[str, ...]:
    return (*(f"ORQ-{levels}, c = {clip}" for clip in _CLIPS), f"ORQ-{levels}")
