"""Tables of the variance-based paper, in miniature (Tsuzuku et al., arXiv:1802.06058)."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from statistics import fmean

from gcsim.scenarios.papers import preset, trained
from gcsim.scenarios.papers.judge import at_most, monotone, order, ranked
from gcsim.scenarios.result import Curve

_OURS = ("ours 1.0", "ours 1.5", "ours 2.0")
_STROM = ("Strom 0.001", "Strom 0.01", "Strom 0.1")
_NONE = "no compression"
_QUICK = {**trained.QUICK, "train.workers": "2", "batch_size": "8"}
_ADAM = {
    "train.optimizer": "{name: adam}", "train.learning_rate": "0.001",
    "train.schedule.shape": "constant",
}  # fmt: skip
_LOSES = {"SGD": 3.3, "Adam": 0.0}  # points that the paper's method loses at most (Table 1)


@preset.preset_of(
    source="Tsuzuku, Imachi and Akiba, arXiv:1802.06058, Table 1 (and Figure 3)",
    quick={"variance_train": _QUICK},
)
def table1(study: preset.Study, printed: preset.Printed) -> preset.Outcome:
    """Accuracy against compression, with momentum and with Adam.

    The compression ratio is the bytes of the float32 gradient over the sent bytes, over all steps.
    The paper counts 32 bits per sent parameter, index included; this is the same for all methods
    except QSGD, whose packed levels take far less, so its ratio is larger here.
    """
    table: dict[str, dict[str, tuple[float, ...]]] = {}
    verdicts: list[preset.Verdict] = []
    panels: list[preset.Panel] = []
    notes: list[str] = []
    for name, changes in (("SGD", {}), ("Adam", _ADAM)):
        result = study.train(study.scenario("variance_train", changes))
        accuracy, ratio = trained.accuracies(result), trained.ratios(result)
        for label in accuracy:
            table[f"{name}: {label}"] = {
                trained.ACCURACY: accuracy[label],
                trained.RATIO: ratio[label],
            }
        wanted = {row.removeprefix(f"{name}: "): row for row, _ in printed if row.startswith(name)}
        of_paper = {
            key: {label: printed[row, key] for label, row in wanted.items()}
            for key in (trained.ACCURACY, trained.RATIO)
        }
        short, where = trained.too_short(result), f"Table 1, {name}"
        verdicts += [
            *_shapes(where, accuracy, trained.logarithms(ratio), _LOSES[name], short),
            order(f"{name}: compression of all", where, trained.logarithms(ratio),
                  ranked(of_paper[trained.RATIO])),
            order(f"{name}: accuracy of all", where, accuracy,
                  ranked(of_paper[trained.ACCURACY]), too_short=short),
        ]  # fmt: skip
        panels.append(_scatter(name, ratio, accuracy))
        notes += [f"{name}: {said}" for said in trained.ends(result)]
    return preset.Outcome(
        cells=preset.cells(table, printed), verdicts=verdicts, panels=panels, notes=notes
    )


def _shapes(
    where: str, accuracy: trained.Seeds, ratio: trained.Seeds, loses: float, short: Collection[str]
) -> Iterator[preset.Verdict]:
    name = where.rpartition(" ")[2]
    yield _alpha(f"{name}: ", where, ratio)
    yield order(f"{name}: both together compress further than ours", where, ratio,
                (("hybrid 0.1, 2.0",), ("hybrid 0.01, 2.0",), ("ours 2.0",)))  # fmt: skip
    yield order(f"{name}: ours loses less accuracy than Strom's", where, accuracy, (_OURS, _STROM),
                too_short=short)  # fmt: skip
    lost = {label: fmean(accuracy[_NONE]) - fmean(accuracy[label]) for label in _OURS}
    yield at_most(f"{name}: ours loses little accuracy", where, lost, loses, "points",
                  too_short=short)  # fmt: skip
    for tau in ("0.01", "0.1"):
        yield order(f"{name}: both together are better than Strom's alone, {tau}", where, accuracy,
                    ((f"hybrid {tau}, 2.0",), (f"Strom {tau}",)), too_short=short)  # fmt: skip


def _alpha(prefix: str, where: str, ratio: trained.Seeds) -> preset.Verdict:
    return monotone(f"{prefix}compression grows with alpha", where, {n: ratio[n] for n in _OURS})


def _scatter(title: str, ratio: trained.Seeds, accuracy: trained.Seeds) -> preset.Panel:
    """Return accuracy against compression, as in the paper's Figure 3: upper right is best."""
    return preset.Panel(
        title=title, x="compression ratio [x]", y="accuracy held out [%]", log_x=True, points=True,
        lines=trained.points(ratio, accuracy),
    )  # fmt: skip


_STROM2 = ("Strom 0.01", "Strom 0.1")
_WHERE = "Table 2, Momentum SGD"
_LOSES_RESNET = 1.3  # points that any of the methods loses at most


@preset.preset_of(
    source="Tsuzuku, Imachi and Akiba, arXiv:1802.06058, Table 2", quick={"variance_resnet": _QUICK}
)
def table2(study: preset.Study, printed: preset.Printed) -> preset.Outcome:
    """Accuracy against compression, a residual network.

    The compression ratio is also shown over the training.
    """
    result = study.train(study.scenario("variance_resnet"))
    accuracy, ratio = trained.accuracies(result), trained.ratios(result)
    short = trained.too_short(result)
    dense = next(curve for curve in result.curves if curve.label == _NONE).wire_bytes_per_worker[0]

    def by_window(curve: Curve) -> list[float]:
        return [dense / sent for sent in curve.wire_bytes_per_worker]

    def lost(labels: tuple[str, ...]) -> dict[str, float]:
        return {label: fmean(accuracy[_NONE]) - fmean(accuracy[label]) for label in labels}

    return preset.Outcome(
        cells=preset.cells(
            {label: {trained.ACCURACY: accuracy[label], trained.RATIO: ratio[label]}
             for label in accuracy}, printed
        ),
        verdicts=(
            _alpha("", _WHERE, trained.logarithms(ratio)),
            order("both together compress further than ours", _WHERE, trained.logarithms(ratio),
                  (("hybrid 0.1, 2.0",), ("ours 2.0",))),
            at_most("ours loses little accuracy", _WHERE, lost(_OURS), _LOSES_RESNET, "points",
                    too_short=short),
            at_most("Strom's loses little either", _WHERE, lost(_STROM2), _LOSES_RESNET, "points",
                    too_short=short),
            order("compression of all", _WHERE, trained.logarithms(ratio),
                  ranked(preset.column(printed, trained.RATIO))),
        ),
        panels=(
            trained.panel(result, "Compression over steps", trained.RATIO, by_window, log_y=True,
                          without=_NONE),
            _scatter("Accuracy against compression", ratio, accuracy),
        ),
        notes=trained.ends(result),
    )  # fmt: skip
