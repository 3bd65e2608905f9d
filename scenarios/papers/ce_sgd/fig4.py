"""How long is a batch on 4, 8 and 16 K80s, with a small network and a large one?

The paper's figure has no numbers; its text says that CE-SGD is like the others with simple networks
on few workers, and ahead when the network grows and more workers join, since TernGrad waits for a
scalar that all share.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean

from gcsim.scenarios.papers.judge import near, order, overtakes
from gcsim.scenarios.papers.preset import Line, Outcome, Panel, Preset, Study, Verdict, cells
from gcsim.scenarios.result import Row

_MODELS = {"ResNet-20": "resnet20_cifar10", "VGG-16": "vgg16_bn_cifar10"}
"""On CIFAR's images: 0.27 and 14.7 million parameters."""
_METHODS = ("CE-SGD", "QSGD", "TernGrad")
_ALIKE = 1.1
"""Batch times within a tenth are like one another."""


def _obtain(study: Study, printed: Mapping[tuple[str, str], float]) -> Outcome:
    table: dict[str, dict[str, list[float]]] = {}
    verdicts: list[Verdict] = []
    panels: list[Panel] = []
    notes: list[str] = []
    for number, (title, model) in enumerate(_MODELS.items()):
        result = study.run(study.scenario("ce_sgd_cluster", {"model": model}))
        rows: dict[str, list[Row]] = {}
        for row in result.rows:
            rows.setdefault(row.label, []).append(row)
        for name, of in rows.items():
            table[f"{title}: {name}"] = {
                f"{r.workers} GPUs [ms]": [1e3 * r.iteration_s] for r in of
            }
        times = {name: {str(r.workers): r.iteration_s for r in rows[name]} for name in _METHODS}
        first, last = (str(rows["CE-SGD"][at].workers) for at in (0, -1))
        own = times["CE-SGD"]
        others = {at: min(times[name][at] for name in _METHODS[1:]) for at in own}
        if number == 0:
            like = fmean(times[name][first] for name in _METHODS[1:])
            verdicts.append(
                near(f"{title} on {first} GPUs: CE-SGD's time is like the others', over their mean",
                     "sec. IV-B", own[first] / like, 1, _ALIKE)
            )  # fmt: skip
        verdicts += [
            order(f"{title} on {last} GPUs: CE-SGD has the shortest batch time", "Fig. 4",
                  {name: [of_name[last]] for name, of_name in times.items()},
                  (("CE-SGD",), ("QSGD", "TernGrad")), least=True),
            overtakes(f"{title}: with more GPUs CE-SGD is ahead", "sec. IV-B", own, others),
        ]  # fmt: skip
        panels.append(
            Panel(title=title, x="GPUs", y="batch time [ms]", log_x=True, lines=tuple(
                Line(label=name, x=tuple(float(r.workers) for r in of),
                     y=tuple(1e3 * r.iteration_s for r in of))
                for name, of in rows.items()
            ))
        )  # fmt: skip
        notes += [_parts(title, rows[name][-1]) for name in _METHODS]
    return Outcome(
        cells=cells(table, printed),
        verdicts=tuple(verdicts),
        panels=tuple(panels),
        notes=tuple(notes),
    )


def _parts(title: str, row: Row) -> str:
    """Where the time goes."""
    wait, collectives = 1e3 * row.exposed_communication_s, 1e3 * row.communication_s
    return (
        f"{title}, {row.label} on {row.workers}: {1e3 * row.iteration_s:.1f} ms, of which "
        f"{1e3 * (row.encode_s + row.decode_s):.1f} encoding and decoding, {wait:.1f} waiting for "
        f"{collectives:.1f} ms of collectives; {row.wire_bytes_per_worker / 1e6:.3g} MB sent."
    )


PRESET = Preset(
    name="ce_sgd_fig4",
    title="Batch time on 4, 8 and 16 K80 over NCCL and TCP",
    source="Tao, Xia, Li and Cheng, CE-SGD, Figure 4",
    obtain=_obtain,
    quick={
        "ce_sgd_cluster": {
            "batch_size": "2", "gradients.warmup_steps": "1", "gradients.iterations": "1",
            "cluster.nodes": "[2, 4]",
        }
    },
)  # fmt: skip
