"""Tables and figures of the CE-SGD paper, in miniature.

Tao, Xia, Li and Cheng, "CE-SGD: communication-efficient distributed machine learning", IEEE
Globecom 2021.
"""

from __future__ import annotations

from statistics import fmean

from gcsim.scenarios.papers import preset, trained
from gcsim.scenarios.papers.judge import at_most, monotone, near, order, overtakes, ranked
from gcsim.scenarios.result import Row

_COST = "cost [%]"
_QUICK = {**trained.QUICK, "train.workers": "2", "batch_size": "8"}


@preset.preset_of(
    title="Cost per round, and accuracy",
    source="Tao, Xia, Li and Cheng, CE-SGD, Table I",
    quick={"ce_sgd_train": _QUICK},
)
def table1(study: preset.Study, printed: preset.Printed) -> preset.Outcome:
    """Cost per round, and accuracy, of CE-SGD, gradient dropping and QSGD.

    *Cost* is the mean bytes per step that a worker sends, as a share of the dense gradient: in the
    paper, megabytes over 66.
    """
    result = study.train(study.scenario("ce_sgd_train"))
    accuracy, ratio = trained.accuracies(result), trained.ratios(result)
    table = {
        name: {_COST: [100 / seed for seed in ratio[name]], trained.ACCURACY: accuracy[name]}
        for name in accuracy
    }
    cheap, right = preset.column(printed, _COST), preset.column(printed, trained.ACCURACY)
    return preset.Outcome(
        cells=preset.cells(table, printed),
        verdicts=(
            order("CE-SGD's round is the cheapest, then QSGD's", "Table I",
                  trained.logarithms(ratio),
                  ranked({name: -value for name, value in cheap.items()})),
            order("CE-SGD loses the least accuracy", "Table I", accuracy, ranked(right)),
        ),
        panels=(trained.panel(result, "ResNet-20 on digits, Adam", "accuracy held out [%]",
                              trained.percent),),
        notes=trained.ends(result),
    )  # fmt: skip


_SIZE = "size [MB]"
_OF_TABLE_II = {
    "MobileNet": "mobilenet_v2", "VGG11": "vgg11", "WideResNet": "wrn28_10_cifar10",
}  # fmt: skip
_SAME = 1.05  # sizes of the same layers, up to the last one's classes


@preset.preset_of(
    title="Sizes of three networks, and bytes per round of CE-SGD",
    source="Tao, Xia, Li and Cheng, CE-SGD, Table II",
    quick={"ce_sgd_bytes": {"model": "resnet20_cifar10"}},
)
def table2(study: preset.Study, printed: preset.Printed) -> preset.Outcome:
    """Sizes of the catalogue's networks, and bytes that a CE-SGD worker sends to the server.

    The paper names three networks without their layers. Its accuracies are left out, because they
    have no baseline.
    """
    table: dict[str, dict[str, list[float]]] = {}
    for name, model in _OF_TABLE_II.items():
        scenario = study.scenario("ce_sgd_bytes", {"model": model})
        (row,) = study.run(scenario).rows
        size = 4 * (scenario.model.parameters or 0)
        table[name] = {_SIZE: [size / 1e6], _COST: [100 * row.wire_bytes_per_worker / size]}
    share = preset.column(printed, _COST)
    sizes = (
        near(f"{name}: size of {model} [MB]", "Table II", table[name][_SIZE][0],
             printed[name, _SIZE], _SAME)
        for name, model in _OF_TABLE_II.items()
    )  # fmt: skip
    return preset.Outcome(
        cells=preset.cells(table, printed),
        verdicts=(
            *sizes,
            order("share sent, by network", "Table II",
                  {name: of[_COST] for name, of in table.items()}, ranked(share)),
            at_most("share sent here over printed share", "Table II",
                    {name: of[_COST][0] / share[name] for name, of in table.items()}, 1, "x"),
        ),
        panels=(
            preset.Panel(title="Bytes sent by a worker", x=_SIZE, y=_COST, log_x=True, points=True,
                         lines=trained.points(
                             {name: (of[_SIZE][0],) for name, of in table.items()},
                             {name: (of[_COST][0],) for name, of in table.items()},
                         )),
        ),
    )  # fmt: skip


_TRAINED = {"ResNet-20": {}, "LeNet": {"model": "lenet"}, "CNN": {"model": "cnn_digits"}}
_STEPS = {"LeNet": {"train.steps": "120"}, "CNN": {"train.steps": "180"}}
"""Steps of models that learn digits more slowly than ResNet-20 with Adam at 0.001."""
_BOTH = {"compressors": "[{kind: none, label: BaseLine}, {kind: ce_sgd, label: CE-SGD}]"}
_LOST = 2.42  # points that CE-SGD loses against the baseline in Table I, the only place with both


@preset.preset_of(
    title="Convergence of CE-SGD on three networks",
    source="Tao, Xia, Li and Cheng, CE-SGD, Figure 3",
    quick={"ce_sgd_train": _QUICK},
)
def fig3(study: preset.Study, printed: preset.Printed) -> preset.Outcome:
    """Accuracy of CE-SGD and of dense training on several networks."""
    table: dict[str, dict[str, tuple[float, ...]]] = {}
    panels: list[preset.Panel] = []
    notes: list[str] = []
    lost: dict[str, float] = {}
    falls: list[preset.Verdict] = []
    for name, changes in _TRAINED.items():
        result = study.train(
            study.scenario("ce_sgd_train", {**_BOTH, **changes, **_STEPS.get(name, {})})
        )
        accuracy, ratio = trained.accuracies(result), trained.ratios(result)
        for label, values in accuracy.items():
            cost = tuple(100 / seed for seed in ratio[label])
            table[f"{name}: {label}"] = {trained.ACCURACY: values, _COST: cost}
        lost[name] = fmean(accuracy["BaseLine"]) - fmean(accuracy["CE-SGD"])
        curves = trained.curves_of(result)["CE-SGD"]
        quarters = [round(share * (len(curves[0].steps) - 1)) for share in (0, 0.33, 0.67, 1)]
        along = {f"{at}": [curve.loss[at] for curve in curves] for at in quarters}
        falls.append(monotone(f"{name}: the loss falls", "Fig. 3", along, falling=True))
        panels.append(trained.panel(result, name, "accuracy held out [%]", trained.percent))
        notes += [f"{name}: {said}" for said in trained.ends(result)]
    return preset.Outcome(
        cells=preset.cells(table, printed),
        verdicts=(
            *falls,
            at_most("CE-SGD ends near dense training", "Fig. 3, Table I", lost, _LOST, "points"),
        ),
        panels=panels,
        notes=notes,
    )


_TIMED = {"ResNet-20": "resnet20_cifar10", "VGG-16": "vgg16_bn_cifar10"}
"""Models for CIFAR's images, with 0.27 and 14.7 million parameters."""
_METHODS = ("CE-SGD", "QSGD", "TernGrad")
_ALIKE = 1.1  # batch times within a tenth are like one another


@preset.preset_of(
    title="Batch time on 4, 8 and 16 K80 over NCCL and TCP",
    source="Tao, Xia, Li and Cheng, CE-SGD, Figure 4",
    quick={
        "ce_sgd_cluster": {
            "batch_size": "2", "gradients.warmup_steps": "1", "gradients.iterations": "1",
            "cluster.nodes": "[2, 4]",
        }
    },
)  # fmt: skip
def fig4(study: preset.Study, printed: preset.Printed) -> preset.Outcome:
    """Time of a batch on 4, 8 and 16 K80s, with a small network and a large one.

    The paper's figure has no numbers; its text says that CE-SGD is as fast as the others for simple
    networks on few workers, and faster for larger networks and more workers, because TernGrad waits
    for a scalar that all workers share.
    """
    table: dict[str, dict[str, list[float]]] = {}
    verdicts: list[preset.Verdict] = []
    panels: list[preset.Panel] = []
    notes: list[str] = []
    for number, (title, model) in enumerate(_TIMED.items()):
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
                near(f"{title} on {first} GPUs: CE-SGD's time over the others' mean",
                     "sec. IV-B", own[first] / like, 1, _ALIKE)
            )  # fmt: skip
        verdicts += [
            order(f"{title} on {last} GPUs: CE-SGD has the shortest batch time", "Fig. 4",
                  {name: [of_name[last]] for name, of_name in times.items()},
                  (("CE-SGD",), ("QSGD", "TernGrad")), least=True),
            overtakes(f"{title}: with more GPUs CE-SGD is ahead", "sec. IV-B", own, others),
        ]  # fmt: skip
        panels.append(
            preset.Panel(title=title, x="GPUs", y="batch time [ms]", log_x=True, lines=tuple(
                preset.Line(label=name, x=tuple(float(r.workers) for r in of),
                     y=tuple(1e3 * r.iteration_s for r in of))
                for name, of in rows.items()
            ))
        )  # fmt: skip
        notes += [_parts(title, rows[name][-1]) for name in _METHODS]
    return preset.Outcome(
        cells=preset.cells(table, printed), verdicts=verdicts, panels=panels, notes=notes
    )


def _parts(title: str, row: Row) -> str:
    wait, collectives = 1e3 * row.exposed_communication_s, 1e3 * row.communication_s
    return (
        f"{title}, {row.label} on {row.workers}: {1e3 * row.iteration_s:.1f} ms, of which "
        f"{1e3 * (row.encode_s + row.decode_s):.1f} encoding and decoding, {wait:.1f} waiting for "
        f"{collectives:.1f} ms of collectives; {row.wire_bytes_per_worker / 1e6:.3g} MB sent."
    )
