"""Does the same hold on a residual network, and how does the ratio go over a training?"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean

from gcsim.scenarios.papers.judge import at_most, order, ranked
from gcsim.scenarios.papers.preset import Outcome, Preset, Study, cells, column
from gcsim.scenarios.papers.trained import (
    ACCURACY,
    RATIO,
    accuracies,
    ends,
    logarithms,
    panel,
    ratios,
)
from gcsim.scenarios.papers.variance.table1 import NONE, OURS, QUICK, alpha, scatter
from gcsim.scenarios.result import Curve

STROM = ("Strom 0.01", "Strom 0.1")
_WHERE = "Table 2, Momentum SGD"
_LOSES = 1.3
"""Points that any of the methods loses at most."""


def _obtain(study: Study, printed: Mapping[tuple[str, str], float]) -> Outcome:
    result = study.train(study.scenario("variance_resnet"))
    accuracy, ratio = accuracies(result), ratios(result)
    dense = next(curve for curve in result.curves if curve.label == NONE).wire_bytes_per_worker[0]

    def by_window(curve: Curve) -> list[float]:
        return [dense / sent for sent in curve.wire_bytes_per_worker]

    def lost(labels: tuple[str, ...]) -> dict[str, float]:
        return {label: fmean(accuracy[NONE]) - fmean(accuracy[label]) for label in labels}

    return Outcome(
        cells=cells(
            {label: {ACCURACY: accuracy[label], RATIO: ratio[label]} for label in accuracy}, printed
        ),
        verdicts=(
            alpha("", _WHERE, logarithms(ratio)),
            order("both together compress further than ours", _WHERE, logarithms(ratio),
                  (("hybrid 0.1, 2.0",), ("ours 2.0",))),
            at_most("ours loses little accuracy", _WHERE, lost(OURS), _LOSES, "points"),
            at_most("Strom's loses little either", _WHERE, lost(STROM), _LOSES, "points"),
            order("compression of all", _WHERE, logarithms(ratio), ranked(column(printed, RATIO))),
        ),
        panels=(
            panel(result, "Compression over steps", RATIO, by_window, log_y=True, without=NONE),
            scatter("Accuracy against compression", ratio, accuracy),
        ),
        notes=ends(result),
    )  # fmt: skip


PRESET = Preset(
    name="variance_table2",
    title="Accuracy against compression, a residual network",
    source="Tsuzuku, Imachi and Akiba, arXiv:1802.06058, Table 2",
    obtain=_obtain,
    quick={"variance_resnet": QUICK},
)
