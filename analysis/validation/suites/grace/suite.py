"""Does the simulator predict GRACE's runs, with what GRACE's own code sends and computes?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gcsim.analysis.validation.interval import ends
from gcsim.analysis.validation.suite import DENSE, Bound, Factor, Findings, Point, Suite, given_step
from gcsim.analysis.validation.suites.grace.fit import Fit, bare_interval, fit, predicted
from gcsim.analysis.validation.suites.grace.models import networks
from gcsim.analysis.validation.suites.grace.payloads import counted
from gcsim.analysis.validation.suites.grace.runs import Run, selection, sent_bytes
from gcsim.analysis.validation.suites.grace.steps import Steps

VOLUMES = "bytes sent, all models"
COUNTED = "resnet20_v2_cifar10"
"""The model whose short tensors were found from the bytes counted of it."""
_SHOWN = frozenset({DENSE, "topk", "randomk", "qsgd", "terngrad", "signsgd", "powersgd"})
"""Compressors whose curves are drawn."""


def find() -> Findings:
    """All points, by one fit."""
    chosen = selection()
    models = dict.fromkeys(run.model for run in chosen.rates)
    steps = {model: Steps(model, networks()[model]) for model in models}
    found = fit(steps, chosen.rates)
    scaled = {(run.model, run.method) for run in chosen.rates if run.workers == 4}
    points = [_volume(run) for run in chosen.volumes]
    points += [
        _rate(steps[run.model], run, found, drawn=(run.model, run.method) in scaled)
        for run in chosen.rates
    ]
    return Findings(
        points=tuple(points), factors=tuple(_factors(steps, found)), excluded=chosen.excluded
    )


def _volume(run: Run) -> Point:
    return Point(
        name=f"{run.known.title}, {run.label}, bytes",
        series=VOLUMES,
        unit="bytes",
        measured=run.value,
        predicted=counted(run.method, run.model, run.known),
        unfitted=counted(run.method, run.model, run.known),
        fitted=run.model == COUNTED,
        source=run.source,
        workers=run.workers,
    )


def _rate(steps: Steps, run: Run, found: Fit, *, drawn: bool) -> Point:
    title = run.known.title
    network = f"{run.gbit or 10} Gbit/s" + (", NCCL" if run.library == "nccl" else "")
    drawn = (
        drawn
        and run.gbit == 10
        and run.workers > 1
        and run.library == "mpi"
        and run.method.compressor in _SHOWN
    )
    return Point(
        name=f"{title}, {run.label}, {run.workers} workers, {network}",
        series=title,
        unit="samples/s",
        measured=run.rate,
        predicted=predicted(steps, run, found),
        unfitted=predicted(steps, run, None),
        fitted=run.workers == 1 or run.row in found.served,
        source=run.source,
        workers=run.workers,
        nbytes=sent_bytes(run),
        setting=f"{title}, {network}, {run.workers} workers" if run.workers > 1 else "",
        method=(DENSE if run.method.compressor == DENSE else run.label) if run.workers > 1 else "",
        panel=f"{title}, {network}" if drawn else "",
        curve=run.label.removesuffix(", error feedback") if drawn else "",
        x=run.workers if drawn else None,
        **ends(bare_interval(steps, run)),
    )


def _factors(steps: Mapping[str, Steps], found: Fit) -> Iterator[Factor]:
    for model, own in steps.items():
        yield given_step(
            own.network.title,
            "forward and backward pass",
            found.alone[model],
            own.catalogue().compute,
        )
    count = len(found.served)
    prices = (
        ("a tensor, beside passes, kernels and exchange", found.per_tensor),
        ("host's thread, of a byte", found.per_byte),
    )
    for name, price in prices:
        yield Factor("all models", name, price, "s", count, catalogue=0.0)
    for kind, factor in found.slower.items():
        yield Factor(
            series="all models",
            name=f"kernels: {kind}, times",
            value=factor,
            unit="x",
            points=len(found.rows[kind]),
            catalogue=1.0,
        )


SUITE = Suite(
    name="grace",
    title="GRACE's released runs: 14 compressors on 1 to 8 V100, 1 and 10 Gbit/s",
    about=(
        "Xu et al. (ICDCS 2021) trained with 16 compressors, TensorFlow 1.x and Horovod over MPI, "
        "one V100 in each of up to 8 machines. The prediction is of their code: every tensor on "
        "its own, nothing packed (a sign is a byte), one unfused kernel for each operation of the "
        "public compressors. Bytes are compared with what the release's own parser counts. Rates "
        "of the LSTM are sequences: the release has iterations, of 20."
    ),
    fitted_on=(
        "Given is each model's step of one worker. Six factors, for all four models and all "
        "methods together, on 62 runs: on 8 workers at 10 Gbit/s the smallest payload of each "
        "method and the largest of top-k; on 4 workers dense training and QSGD. Nothing at 1 "
        "Gbit/s, on 2 workers or with NCCL. Non-negative least squares: seconds a tensor, host "
        "time a byte, and how many times as long as the catalogue's four kinds of kernels take, "
        "whoever launches them. Nothing is fitted to a method: without a method's own runs the "
        "fit predicts it 14.7 % off (median of all of them left out in turn), with them 12.0 %. "
        "Which kinds there are was chosen on the fitted runs alone. Beside the fit, from all of "
        "the data: that ResNet-50's batch is 128 (runs at 1 and 10 Gbit/s), and the sizes of "
        "ResNet-20's short tensors (bytes counted)."
    ),
    missing=(
        "DGC and AdaQ search their threshold in up to 20 rounds, the fewer the larger the share "
        "kept; here in as many for every share. Random-k's runs of the LSTM are of an older "
        "version that shuffles all indices on the host, whatever the share. What a tensor costs "
        "beside kernels and exchange (0.3 ms: TensorFlow's and Horovod's host code, probably) is "
        "one figure, where UNet pays less and ResNet-20 more; of ResNet-20 it grows with the "
        "number of workers. Kernels of TensorFlow 1 take 2.5 times as long as the catalogue's, "
        "scattered ones 8 times. That GRACE's methods exchange after the backward pass, not "
        "during it, is what each method of ResNet-50 says by itself (from 10 to 1 Gbit/s it slows"
        " down by what all its bytes take), so that any half of them chooses it for the other. "
        "Copies out of a fused buffer are not modelled."
    ),
    bounds=(
        Bound("throughput of all models", ("UNet", "ResNet-50", "ResNet-20", "LSTM"), limit=0.15),
        Bound(
            "faster than dense, yes or no",
            ("UNet", "ResNet-50", "ResNet-20", "LSTM"),
            statistic="decisions",
            limit=0.90,
        ),
        Bound(VOLUMES, (VOLUMES,), limit=0.01),
    ),
    find=find,
    figure_x="workers",
)
