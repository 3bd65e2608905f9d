"""Which method is fastest on 2 to 64 GPUs over Gloo? The scenario `alexnet_32node`, its first six.

The paper's figure has no numbers; its text says which methods are faster, which lose speed with the
number of workers, and 2.5x.
"""

from __future__ import annotations

from collections.abc import Mapping

from gcsim.scenarios.papers.judge import near, order
from gcsim.scenarios.papers.preset import Line, Outcome, Panel, Preset, Study, cells
from gcsim.scenarios.result import Result, Row

METHODS = {
    "SGD": "none", "ours": "gradient_sampling_bayes", "CSER": "cser",
    "QL-SGD": "qsparse_local_sgd", "DGC": "dgc", "EB-SGD": "ef_block_sgdm",
}  # fmt: skip
"""The paper's name, ours."""
SPARSE = ("QL-SGD", "DGC", "EB-SGD")
"""Those that "must adopt sparse synchronization which is slow and inefficient" (sec. 4.4)."""
CHOSEN = {
    "compressors": (
        "[{kind: none, label: SGD}, {kind: gradient_sampling_bayes, label: ours}, "
        "{kind: cser, label: CSER}, {kind: qsparse_local_sgd, ratio: 0.08, interval: 3, "
        "label: QL-SGD}, {kind: dgc, ratio: 0.01, label: DGC}, "
        "{kind: ef_block_sgdm, label: EB-SGD}]"
    )
}
QUICK = {
    "model": "lenet", "batch_size": "4", "cluster.nodes": "[1, 2]", "gradients.warmup_steps": "1",
    "gradients.iterations": "1", "uncertainty.draws": "2",
}  # fmt: skip


def throughput(study: Study) -> Result:
    """The run that this figure and the clock of Figure 5b come from."""
    return study.run(study.scenario("alexnet_32node", CHOSEN))


def _obtain(study: Study, printed: Mapping[tuple[str, str], float]) -> Outcome:
    result = throughput(study)
    rows: dict[str, list[Row]] = {
        name: [row for row in result.rows if row.compressor == kind]
        for name, kind in METHODS.items()
    }
    last = {name: [of[-1].throughput_samples_per_s] for name, of in rows.items()}
    kept = {name: [_a_worker(of[-1]) / _a_worker(of[0])] for name, of in rows.items()}
    workers = [row.workers for row in rows["SGD"]]
    table = {
        name: {f"{row.workers} GPUs": [row.throughput_samples_per_s] for row in of}
        for name, of in rows.items()
    }
    return Outcome(
        cells=cells(table, printed),
        verdicts=(
            order(f"throughput on {workers[-1]} GPUs: ours is faster than all but CSER", "Fig. 5a",
                  last, (("CSER",), ("ours",), SPARSE)),
            order("DGC, QL-SGD and EB-SGD lose more speed with the number of GPUs", "sec. 4.4",
                  kept, (("CSER", "ours"), SPARSE)),
            near("ours over SGD [x]", "sec. 4.4", last["ours"][0] / last["SGD"][0],
                 printed["ours", "speedup [x]"], 1.25),
        ),
        panels=(
            Panel(title="Throughput", x="GPUs", y="images/s", log_x=True, log_y=True, lines=tuple(
                Line(label=name, x=tuple(map(float, workers)),
                     y=tuple(row.throughput_samples_per_s for row in of))
                for name, of in rows.items()
            )),
        ),
    )  # fmt: skip


def _a_worker(row: Row) -> float:
    return row.throughput_samples_per_s / row.workers


PRESET = Preset(
    name="sampling_fig5a",
    title="Throughput of AlexNet on 2 to 64 P100 over Gloo",
    source="Song et al., CVPR 2021, Figure 5a",
    obtain=_obtain,
    quick={"alexnet_32node": QUICK},
)
