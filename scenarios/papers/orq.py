"""Tables and figures of the ORQ paper, in miniature (Xu, Huo and Huang, arXiv:2002.11082)."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from gcsim.scenarios.papers import preset, trained
from gcsim.scenarios.papers.judge import order, ranked
from gcsim.scenarios.result import Curve

USED, AWAY, RANGE, ERROR = "levels [bits]", "away [%]", "range [sd]", "error [%]"
_FULL = "FP"
_BUCKET = 2048
_SEEDS = 3
_TENSORS = 3
_BINS, _REACH = 101, 2.5
"""Bins of a histogram, and its ends in standard deviations, as in the figure."""

_Values = NDArray[np.float32]


@preset.preset_of(
    title="A quantised gradient: levels that are used, shape that is kept",
    source="Xu, Huo and Huang, arXiv:2002.11082, Figure 1",
    quick={
        "orq_gradients": {
            "gradients.warmup_steps": "5", "gradients.iterations": "1", "batch_size": "8",
        }
    },
)  # fmt: skip
def fig1(study: preset.Study, printed: preset.Printed) -> preset.Outcome:
    """A quantised gradient: levels that are used, and the shape.

    The gradient of one step in buckets of 2048, through nine levels and two. *Levels used*: entropy
    of the levels that a bucket's elements are at, of log2 9 = 3.17 bits at most. *Error*: of the
    quantised gradient, as a share of the gradient's energy. *Away from zero*: elements at levels
    that are farther from zero than half of the bucket's standard deviation, as a share of those of
    the gradient itself. *Range*: mean magnitude of the levels, of two their distance from zero, in
    standard deviations.
    """
    scenario = study.scenario("orq_gradients")
    labels = [choice.label for choice in scenario.compressors]
    found: dict[str, dict[str, list[list[float]]]] = {
        name: {key: [[] for _ in range(_SEEDS)] for key in (USED, AWAY, RANGE, ERROR)}
        for name in labels
    }
    panels: tuple[preset.Panel, ...] = ()
    for seen in trained.updates(scenario, tensors=_TENSORS, seeds=_SEEDS, progress=study.progress):
        dense = seen.dense.numpy()
        for name in labels:
            for seed, update in enumerate(seen.updates[name]):
                values = update.numpy()
                lost = float(((values - dense) ** 2).sum() / (dense**2).sum())
                found[name][ERROR][seed].append(100 * lost)
                found[name][USED][seed].append(_entropy(values))
                found[name][AWAY][seed].append(100 * _away(values, dense) / _away(dense, dense))
                found[name][RANGE][seed].append(float(np.abs(values).mean() / dense.std()))
        if not panels:
            quantised = {name: seen.updates[name][0].numpy() for name in labels}
            panels = _histograms({_FULL: dense, **quantised}, float(dense.std()))
    table = {
        name: {key: [fmean(values) for values in seeds] for key, seeds in of_name.items()}
        for name, of_name in found.items()
    }
    used, away, reach, error = (
        {name: table[name][key] for name in labels} for key in (USED, AWAY, RANGE, ERROR)
    )
    return preset.Outcome(
        cells=preset.cells(table, printed),
        verdicts=(
            order("levels are used more by ORQ than by QSGD", "sec. 5.1.2", used,
                  (("ORQ-9",), ("QSGD-9",))),
            order("of QSGD the fewest elements are at levels away from zero", "sec. 5.1.2", away,
                  (("ORQ-9",), ("QSGD-9",))),
            order("ORQ keeps the shape, QSGD and Linear do not: error", "sec. 5.1.2", error,
                  (("ORQ-9",), ("QSGD-9", "Linear-9")), least=True),
            order("BinGrad-b has a smaller error than BinGrad-pb", "sec. 5.1.2",
                  error, (("BinGrad-b",), ("BinGrad-pb",)), least=True),
            order("BinGrad-pb has the wider range", "sec. 5.1.2", reach,
                  (("BinGrad-pb",), ("BinGrad-b",))),
        ),
        panels=panels,
    )  # fmt: skip


def _entropy(values: _Values) -> float:
    """Bits, mean over buckets."""
    bits = []
    for start in range(0, values.size, _BUCKET):
        share = np.unique(values[start : start + _BUCKET], return_counts=True)[1]
        share = share / share.sum()
        bits.append(float(-(share * np.log2(share)).sum()))
    return fmean(bits)


def _away(values: _Values, dense: _Values) -> float:
    """Share of the elements beyond half of the standard deviation of their bucket."""
    beyond = 0
    for start in range(0, values.size, _BUCKET):
        part = slice(start, start + _BUCKET)
        beyond += int((np.abs(values[part]) > dense[part].std() / 2).sum())
    return beyond / values.size


def _histograms(gradients: Mapping[str, _Values], deviation: float) -> tuple[preset.Panel, ...]:
    """Frequencies over the highest one, as in the figure; a panel a method."""
    found = []
    for name, values in gradients.items():
        clipped = np.clip(values / deviation, -_REACH, _REACH)
        counts, edges = np.histogram(clipped, bins=_BINS, range=(-_REACH, _REACH))
        x = tuple(map(float, (edges[:-1] + edges[1:]) / 2))
        y = tuple(map(float, counts / counts.max()))
        found.append(
            preset.Panel(title=name, x="gradient [standard deviations]", y="frequency / highest",
                  lines=(preset.Line(label=name, x=x, y=y),))
        )  # fmt: skip
    return tuple(found)


_LOSS = "loss held out [nats]"
_LEVELS = {3: ("TernGrad-noclip",), 5: ("QSGD-5", "Linear-5"), 9: ("QSGD-9", "Linear-9")}
"""ORQ's counterparts of as many levels, the printed better one first."""
_QUICK = {"orq_train": {**trained.QUICK, "batch_size": "16"}}


@preset.preset_of(
    title="Quantisation error over a training, by the number of levels",
    source="Xu, Huo and Huang, arXiv:2002.11082, Figure 2",
    quick=_QUICK,
)
def fig2(study: preset.Study, printed: preset.Printed) -> preset.Outcome:
    """Quantisation error over a training, by the number of levels.

    The error of the first step behind each evaluation: |Q(g) - g|^2 / |g|^2 with one worker. Each
    method is on the weights that it has trained itself.
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
                order(f"ORQ has the least error of {levels} levels", "Fig. 2, sec. 5.1.3", logs,
                      ((f"ORQ-{levels}",), others), least=True)
                for levels, others in _LEVELS.items()
            ),
            order("the error of BinGrad-b is less than that of BinGrad-pb", "sec. 5.1.3", logs,
                  (("BinGrad-b",), ("BinGrad-pb",)), least=True),
            order("BinGrad has less error than three levels", "sec. 5.1.3", logs,
                  (("BinGrad-b", "BinGrad-pb"), ("ORQ-3", "TernGrad-noclip")), least=True),
            order("the gap between ORQ's error and even levels' is wider with fewer", "sec. 5.1.3",
                  gap, (("3 levels",), ("5 levels",), ("9 levels",))),
        ),
        panels=(
            trained.panel(result, "Quantisation error", ERROR, _errors, log_y=True, without="FP"),
            trained.panel(result, "Loss", _LOSS, lambda curve: curve.loss),
        ),
        notes=trained.ends(result),
    )  # fmt: skip


def _errors(curve: Curve) -> list[float]:
    """Percent, by window."""
    return [100 * value for value in curve.nmse if value is not None]


@preset.preset_of(
    title="Accuracy with quantised gradients, one worker, nobody clips",
    source="Xu, Huo and Huang, arXiv:2002.11082, Table 2",
    quick=_QUICK,
)
def table2(study: preset.Study, printed: preset.Printed) -> preset.Outcome:
    """Training with ORQ's levels, even ones (QSGD) and quantiles.

    No method clips, as in the paper: with clipping of one method alone the order says who clips.
    Digits are soon learned, so the loss held out tells methods apart where the accuracy no longer
    does.
    """
    result = study.train(study.scenario("orq_train"))
    found = trained.accuracies(result)
    loss = {
        name: tuple(curve.loss[-1] for curve in curves)
        for name, curves in trained.curves_of(result).items()
    }
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
