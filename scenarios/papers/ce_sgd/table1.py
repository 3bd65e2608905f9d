"""What does a round of CE-SGD cost beside gradient dropping and QSGD, at which accuracy?

*Cost* is what a worker sends in a step, mean over a training, as a share of the dense gradient: the
paper's megabytes over its 66.
"""

from __future__ import annotations

from collections.abc import Mapping

from gcsim.scenarios.papers.judge import order, ranked
from gcsim.scenarios.papers.preset import Outcome, Preset, Study, cells, column
from gcsim.scenarios.papers.trained import (
    ACCURACY,
    accuracies,
    ends,
    logarithms,
    panel,
    percent,
    ratios,
)

COST = "cost [%]"
QUICK = {
    "train.steps": "4", "train.evaluate_every": "4", "train.seeds": "1", "train.workers": "2",
    "train.target": "{of_dense: 0.1}", "batch_size": "8",
}  # fmt: skip


def _obtain(study: Study, printed: Mapping[tuple[str, str], float]) -> Outcome:
    result = study.train(study.scenario("ce_sgd_train"))
    accuracy, ratio = accuracies(result), ratios(result)
    table = {
        name: {COST: [100 / seed for seed in ratio[name]], ACCURACY: accuracy[name]}
        for name in accuracy
    }
    cheap, right = column(printed, COST), column(printed, ACCURACY)
    return Outcome(
        cells=cells(table, printed),
        verdicts=(
            order("CE-SGD's round is the cheapest, then QSGD's", "Table I", logarithms(ratio),
                  ranked({name: -value for name, value in cheap.items()})),
            order("CE-SGD loses the least accuracy", "Table I", accuracy, ranked(right)),
        ),
        panels=(panel(result, "ResNet-20 on digits, Adam", "accuracy held out [%]", percent),),
        notes=ends(result),
    )  # fmt: skip


PRESET = Preset(
    name="ce_sgd_table1",
    title="Cost of a round, and accuracy",
    source="Tao, Xia, Li and Cheng, CE-SGD, Table I",
    obtain=_obtain,
    quick={"ce_sgd_train": QUICK},
)
