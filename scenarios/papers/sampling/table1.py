"""Does sampling by the gradient help, does the Bayes prior, and are both together the best?

RS draws 1 % of the coordinates at random, GS by the last whole gradient's squares; RSB and "ours"
(GSB) lower the chance of what was sent. The paper's baseline RS has no whole gradients between.
"""

from __future__ import annotations

from collections.abc import Mapping

from gcsim.scenarios.papers.judge import order, ranked
from gcsim.scenarios.papers.preset import Outcome, Preset, Study, cells, column
from gcsim.scenarios.papers.trained import ACCURACY, accuracies, ends, panel, percent


def _obtain(study: Study, printed: Mapping[tuple[str, str], float]) -> Outcome:
    result = study.train(study.scenario("sampling_train"))
    found = accuracies(result)
    verdicts = [order("accuracy of the four strategies", "Table 1", found,
                      ranked(column(printed, ACCURACY)))]  # fmt: skip
    for claim, better, worse in (
        ("sampling by the gradient helps", "GS", "RS"),
        ("the Bayes prior helps random sampling", "RSB", "RS"),
        ("the Bayes prior helps gradient sampling", "ours", "GS"),
    ):
        verdicts.append(order(claim, "Table 1, sec. 4.1", found, ((better,), (worse,))))
    return Outcome(
        cells=cells({label: {ACCURACY: found[label]} for label in found}, printed),
        verdicts=tuple(verdicts),
        panels=(panel(result, "Sampling strategies", "accuracy held out [%]", percent),),
        notes=ends(result),
    )


PRESET = Preset(
    name="sampling_table1",
    title="Sampling strategies: random, by the gradient, with a Bayes prior",
    source="Song et al., CVPR 2021, Table 1",
    obtain=_obtain,
    quick={
        "sampling_train": {
            "train.steps": "4", "train.evaluate_every": "4", "train.seeds": "1",
            "train.target": "{of_dense: 0.1}", "train.workers": "2",
        }
    },
)  # fmt: skip
