"""Do ORQ's levels train better than as many even ones (QSGD), and these better than quantiles?

No method clips, as in the paper: with clipping of one method alone the order says who clips. Digits
are soon learned, so the loss held out tells methods apart where the accuracy no longer does.
"""

from __future__ import annotations

from collections.abc import Mapping

from gcsim.scenarios.papers.judge import order, ranked
from gcsim.scenarios.papers.orq.fig2 import LEVELS, LOSS, QUICK
from gcsim.scenarios.papers.preset import Outcome, Preset, Study, Verdict, cells, column
from gcsim.scenarios.papers.trained import (
    ACCURACY,
    accuracies,
    curves_of,
    ends,
    logarithms,
    panel,
    percent,
)


def _obtain(study: Study, printed: Mapping[tuple[str, str], float]) -> Outcome:
    result = study.train(study.scenario("orq_train"))
    found = accuracies(result)
    loss = {
        name: tuple(curve.loss[-1] for curve in curves)
        for name, curves in curves_of(result).items()
    }
    finer = logarithms(loss)
    verdicts: list[Verdict] = []
    for levels, others in LEVELS.items():
        expected = ((f"ORQ-{levels}",), *((other,) for other in others))
        claim = f"{levels} levels: ORQ, then {', then '.join(others)}"
        verdicts += [
            order(f"{claim}: accuracy", "Table 2", found, expected),
            order(f"{claim}: loss held out", "Table 2", finer, expected, least=True),
        ]
    all_ = ranked(column(printed, ACCURACY))
    one_bit = (("BinGrad-b",), ("BinGrad-pb", "SignSGD"))
    return Outcome(
        cells=cells({name: {ACCURACY: found[name], LOSS: loss[name]} for name in found}, printed),
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
            panel(result, "Accuracy", "accuracy held out [%]", percent),
            panel(result, "Loss", LOSS, lambda curve: curve.loss, log_y=True),
        ),
        notes=ends(result),
    )  # fmt: skip


PRESET = Preset(
    name="orq_table2",
    title="Accuracy with quantised gradients, one worker, nobody clips",
    source="Xu, Huo and Huang, arXiv:2002.11082, Table 2",
    obtain=_obtain,
    quick=QUICK,
)
