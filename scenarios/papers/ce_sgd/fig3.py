"""Does training with CE-SGD end where dense training ends, on several networks?"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean

from gcsim.scenarios.papers.ce_sgd.table1 import COST, QUICK
from gcsim.scenarios.papers.judge import at_most, monotone
from gcsim.scenarios.papers.preset import Outcome, Panel, Preset, Study, Verdict, cells
from gcsim.scenarios.papers.trained import (
    ACCURACY,
    accuracies,
    curves_of,
    ends,
    panel,
    percent,
    ratios,
)

_MODELS = {"ResNet-20": {}, "LeNet": {"model": "lenet"}, "CNN": {"model": "cnn_digits"}}
_STEPS = {"LeNet": {"train.steps": "120"}, "CNN": {"train.steps": "180"}}
"""Those that take more than ResNet-20 to learn digits with Adam at 0.001."""
_BOTH = {"compressors": "[{kind: none, label: BaseLine}, {kind: ce_sgd, label: CE-SGD}]"}
_LOST = 2.42
"""Points that CE-SGD loses against the baseline in Table I, the only place with both."""


def _obtain(study: Study, printed: Mapping[tuple[str, str], float]) -> Outcome:
    table: dict[str, dict[str, tuple[float, ...]]] = {}
    panels: list[Panel] = []
    notes: list[str] = []
    lost: dict[str, float] = {}
    falls: list[Verdict] = []
    for name, changes in _MODELS.items():
        result = study.train(
            study.scenario("ce_sgd_train", {**_BOTH, **changes, **_STEPS.get(name, {})})
        )
        accuracy, ratio = accuracies(result), ratios(result)
        for label, values in accuracy.items():
            cost = tuple(100 / seed for seed in ratio[label])
            table[f"{name}: {label}"] = {ACCURACY: values, COST: cost}
        lost[name] = fmean(accuracy["BaseLine"]) - fmean(accuracy["CE-SGD"])
        curves = curves_of(result)["CE-SGD"]
        quarters = [round(share * (len(curves[0].steps) - 1)) for share in (0, 0.33, 0.67, 1)]
        along = {f"{at}": [curve.loss[at] for curve in curves] for at in quarters}
        falls.append(monotone(f"{name}: the loss falls", "Fig. 3", along, falling=True))
        panels.append(panel(result, name, "accuracy held out [%]", percent))
        notes += [f"{name}: {said}" for said in ends(result)]
    return Outcome(
        cells=cells(table, printed),
        verdicts=(
            *falls,
            at_most(
                "CE-SGD ends where dense training ends", "Fig. 3, Table I", lost, _LOST, "points"
            ),
        ),
        panels=tuple(panels),
        notes=tuple(notes),
    )


PRESET = Preset(
    name="ce_sgd_fig3",
    title="Convergence of CE-SGD on three networks",
    source="Tao, Xia, Li and Cheng, CE-SGD, Figure 3",
    obtain=_obtain,
    quick={"ce_sgd_train": QUICK},
)
