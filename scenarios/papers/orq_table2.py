"""Do ORQ's levels train better than as many even ones (QSGD), and these better than quantiles?

No method clips, as in the paper: with clipping of one method alone the order says who clips.
"""

from __future__ import annotations

from collections.abc import Mapping

from gcsim.scenarios.papers.judge import order, ranked
from gcsim.scenarios.papers.orq_fig2 import LEVELS, QUICK
from gcsim.scenarios.papers.preset import Outcome, Preset, Study, cells, column
from gcsim.scenarios.papers.trained import ACCURACY, accuracies, ends, panel, percent


def _obtain(study: Study, printed: Mapping[tuple[str, str], float]) -> Outcome:
    result = study.train(study.scenario("orq_train"))
    found = accuracies(result)
    loss = {curve.label: [c.loss[-1] for c in result.curves if c.label == curve.label]
            for curve in result.curves}  # fmt: skip
    return Outcome(
        cells=cells({name: {ACCURACY: found[name], "loss": loss[name]} for name in found}, printed),
        verdicts=(
            *(
                order(f"accuracy of {levels} levels: ORQ, then {', then '.join(others)}", "Table 2",
                      found, ((f"ORQ-{levels}",), *((other,) for other in others)))
                for levels, others in LEVELS.items()
            ),
            order("accuracy of one bit: BinGrad-b, then BinGrad-pb and SignSGD", "Table 2", found,
                  (("BinGrad-b",), ("BinGrad-pb", "SignSGD"))),
            order("more levels train better, ORQ", "Table 2", found,
                  (("FP",), ("ORQ-9",), ("ORQ-5",), ("ORQ-3",))),
            order("accuracy of all twelve", "Table 2, ResNet-56", found,
                  ranked(column(printed, ACCURACY))),
        ),
        panels=(panel(result, "Quantised training", "accuracy held out [%]", percent),),
        notes=ends(result),
    )  # fmt: skip


PRESET = Preset(
    name="orq_table2",
    title="Accuracy with quantised gradients, one worker, nobody clips",
    source="Xu, Huo and Huang, arXiv:2002.11082, Table 2",
    obtain=_obtain,
    quick=QUICK,
)
