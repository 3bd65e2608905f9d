"""Is ORQ's quantisation error the least of its number of levels, all through training?

The error of the first step behind each evaluation: |Q(g) - g|^2 / |g|^2 with one worker. Each
method is on the weights that it has trained itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean

from gcsim.scenarios.papers.judge import order
from gcsim.scenarios.papers.preset import Outcome, Preset, Study, cells
from gcsim.scenarios.papers.trained import curves_of, ends, logarithms, panel
from gcsim.scenarios.result import Curve

ERROR = "error [%]"
LOSS = "loss held out [nats]"
LEVELS = {3: ("TernGrad-noclip",), 5: ("QSGD-5", "Linear-5"), 9: ("QSGD-9", "Linear-9")}
"""ORQ's counterparts of as many levels, the printed better one first."""
QUICK = {
    "orq_train": {
        "train.steps": "4", "train.evaluate_every": "4", "train.seeds": "1",
        "train.target": "{of_dense: 0.1}", "batch_size": "16",
    }
}  # fmt: skip


def _obtain(study: Study, printed: Mapping[tuple[str, str], float]) -> Outcome:
    result = study.train(study.scenario("orq_train"))
    curves = {name: found for name, found in curves_of(result).items() if name != "FP"}
    error = {name: [fmean(_errors(curve)) for curve in found] for name, found in curves.items()}
    gap = {
        f"{levels} levels": [
            a - b for a, b in zip(error[others[0]], error[f"ORQ-{levels}"], strict=True)
        ]
        for levels, others in LEVELS.items()
    }
    logs = logarithms({name: tuple(values) for name, values in error.items()})
    return Outcome(
        cells=cells({name: {ERROR: error[name]} for name in error}, printed),
        verdicts=(
            *(
                order(f"ORQ has the least error of {levels} levels", "Fig. 2, sec. 5.1.3", logs,
                      ((f"ORQ-{levels}",), others), least=True)
                for levels, others in LEVELS.items()
            ),
            order("the error of BinGrad-b is less than that of BinGrad-pb", "sec. 5.1.3", logs,
                  (("BinGrad-b",), ("BinGrad-pb",)), least=True),
            order("BinGrad has less error than three levels", "sec. 5.1.3", logs,
                  (("BinGrad-b", "BinGrad-pb"), ("ORQ-3", "TernGrad-noclip")), least=True),
            order("the gap between ORQ's error and even levels' is wider with fewer", "sec. 5.1.3",
                  gap, (("3 levels",), ("5 levels",), ("9 levels",))),
        ),
        panels=(
            panel(result, "Quantisation error", ERROR, _errors, log_y=True, without="FP"),
            panel(result, "Loss", LOSS, lambda curve: curve.loss),
        ),
        notes=ends(result),
    )  # fmt: skip


def _errors(curve: Curve) -> list[float]:
    """Percent, by window."""
    return [100 * value for value in curve.nmse if value is not None]


PRESET = Preset(
    name="orq_fig2",
    title="Quantisation error over a training, by the number of levels",
    source="Xu, Huo and Huang, arXiv:2002.11082, Figure 2",
    obtain=_obtain,
    quick=QUICK,
)
