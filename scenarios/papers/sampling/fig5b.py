"""Which method reaches an accuracy first? Steps of a small network on the clock of AlexNet.

A step takes what it takes on 64 P100s in Figure 5a's run, mean over a method's period. *Speed to
target*: SGD's seconds until nine tenths of its last accuracy are reached and stay (median) over a
method's, by seed; where a seed does not reach it, 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from statistics import fmean, median

from gcsim.scenarios.papers.judge import order
from gcsim.scenarios.papers.preset import Outcome, Preset, Study, Verdict, cells
from gcsim.scenarios.papers.sampling.fig5a import METHODS, QUICK, throughput
from gcsim.scenarios.papers.trained import ACCURACY, accuracies, ends, panel, percent
from gcsim.scenarios.trained.result import TrainedRow

SPEED = "speed to target [x]"
_NAMES = {kind: name for name, kind in METHODS.items()}
_LOSS = 0.5
"""Points of accuracy that count as comparable (sec. 4.4)."""


def _obtain(study: Study, printed: Mapping[tuple[str, str], float]) -> Outcome:
    run = throughput(study)
    largest = max(row.workers for row in run.rows)
    step = {_NAMES[r.compressor]: r.iteration_s for r in run.rows if r.workers == largest}
    result = study.train(study.scenario("sampling_time"))
    rows: dict[str, TrainedRow] = {row.label: row for row in result.rows}
    seconds = {name: _seconds(row, step[name]) for name, row in rows.items()}
    base = median(seconds["SGD"])
    speed = {name: [base / each for each in of_seeds] for name, of_seeds in seconds.items()}
    accuracy = accuracies(result)
    lost = {name: fmean(accuracy["SGD"]) - fmean(values) for name, values in accuracy.items()}
    table = {
        name: {"step [ms]": [1e3 * step[name]], ACCURACY: accuracy[name], SPEED: speed[name]}
        for name in rows
    }
    steps = panel(result, "Accuracy over time", "accuracy held out [%]", percent)
    timed = tuple(
        replace(one, x=tuple(step[one.label] * at for at in one.x)) for one in steps.lines
    )
    return Outcome(
        cells=cells(table, printed),
        verdicts=(
            order("ours reaches the accuracy first of those that come near SGD's", "Fig. 5b", speed,
                  (("ours",), ("QL-SGD", "DGC", "EB-SGD", "SGD"))),
            _comparable(lost),
        ),
        panels=(replace(steps, x=f"seconds on {largest} P100", lines=timed),),
        notes=ends(result),
    )  # fmt: skip


def _seconds(row: TrainedRow, step: float) -> list[float]:
    return [float("inf") if n is None else max(1, n) * step for n in row.steps_to_target]


def _comparable(lost: Mapping[str, float]) -> Verdict:
    """CSER alone loses more than half a point, the paper says."""
    beyond = [name for name, points in lost.items() if points > _LOSS]
    wrong = set(beyond) ^ {"CSER"}
    return Verdict(
        claim=f"CSER alone loses more than {_LOSS} points of accuracy",
        where="sec. 4.4",
        printed="CSER",
        here=", ".join(f"{name} {lost[name]:.1f}" for name in beyond) or "none",
        agrees="agrees" if not wrong else ("in part" if "CSER" in beyond else "disagrees"),
    )


PRESET = Preset(
    name="sampling_fig5b",
    title="Accuracy against seconds: steps of a small network on AlexNet's clock",
    source="Song et al., CVPR 2021, Figure 5b",
    obtain=_obtain,
    quick={
        "alexnet_32node": QUICK,
        "sampling_time": {
            "train.steps": "4", "train.evaluate_every": "4", "train.workers": "2",
            "train.seeds": "1", "train.target": "{of_dense: 0.1}",
        },
    },
)  # fmt: skip
