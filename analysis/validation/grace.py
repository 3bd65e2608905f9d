"""Does the simulator predict GRACE's runs, with what GRACE's own code sends and computes?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from gcsim.analysis.validation.grace_fit import Fit, fit, predicted
from gcsim.analysis.validation.grace_models import networks
from gcsim.analysis.validation.grace_payloads import counted
from gcsim.analysis.validation.grace_runs import Run, selection
from gcsim.analysis.validation.grace_steps import Steps
from gcsim.analysis.validation.suite import DENSE, Bound, Factor, Findings, Point, Suite

VOLUMES = "bytes sent, all models"
COUNTED = "resnet20_v2_cifar10"
"""The model whose short tensors were found from the bytes counted of it."""
_SHOWN = frozenset({DENSE, "topk", "randomk", "qsgd", "terngrad", "signsgd", "powersgd"})
"""Compressors whose curves are drawn."""


def find() -> Findings:
    """All points; fits each model's factors."""
    chosen = selection()
    points = [_volume(run) for run in chosen.volumes]
    factors: list[Factor] = []
    for model in dict.fromkeys(run.model for run in chosen.rates):
        own = [run for run in chosen.rates if run.model == model]
        steps = Steps(model, networks()[model])
        found = fit(steps, own)
        scaled = {run.method for run in own if run.workers == 4}
        points += [_rate(steps, run, found, drawn=run.method in scaled) for run in own]
        factors += _factors(steps, found, own)
    return Findings(points=tuple(points), factors=tuple(factors), excluded=chosen.excluded)


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
        fitted=run.row in found.rows,
        source=run.source,
        workers=run.workers,
        setting=f"{title}, {network}, {run.workers} workers" if run.workers > 1 else "",
        method=(DENSE if run.method.compressor == DENSE else run.label) if run.workers > 1 else "",
        panel=f"{title}, {network}" if drawn else "",
        curve=run.label.removesuffix(", error feedback") if drawn else "",
        x=run.workers if drawn else None,
    )


def _factors(steps: Steps, found: Fit, own: Sequence[Run]) -> Iterator[Factor]:
    title, rates, bare = steps.network.title, found.rates, steps.catalogue()
    count = len(found.rows)
    of_method = Counter(run.method.compressor for run in own if run.row in found.rows)
    shared: Sequence[tuple[str, float, str, int, float]] = (
        ("forward and backward pass", rates.compute, "s", 1, bare.compute),
        ("beside passes and exchange", rates.beside, "s", count - 1, bare.beside),
        ("host's thread, of a byte", rates.per_byte, "s", count - 1, bare.per_byte),
        ("all kernels, times", found.usual, "x", count - 1, 1.0),
    )
    for name, value, unit, points, catalogue in shared:
        yield Factor(
            series=title, name=name, value=value, unit=unit, points=points, catalogue=catalogue
        )
    for compressor, value in found.slower.items():
        yield Factor(
            series=title,
            name=f"kernels of {compressor}, times",
            value=value,
            unit="x",
            points=of_method[compressor],
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
        "Each model's step of one worker; on 8 workers at 10 Gbit/s the smallest payload of each "
        "method and the largest of top-k; on 4 workers dense training and QSGD. Nothing at "
        "1 Gbit/s, on 2 workers or with NCCL. Non-negative least squares: seconds beside the "
        "exchange, host time a byte, and how many times as long as the catalogue's all kernels "
        "and each method's take. With the step that is one factor less than there are points (18 "
        "of 19 a model, 8 of 9 of ResNet-50): what is judged is how they carry over to other "
        "payloads, numbers of workers and networks. Beside the fit, from all of the data: that "
        "ResNet-50's batch is 128 (runs at 1 and 10 Gbit/s), and the sizes of ResNet-20's short "
        "tensors (bytes counted)."
    ),
    missing=(
        "DGC and AdaQ search their threshold in up to 20 rounds, the fewer the larger the share "
        "kept; here in as many for every share. Random-k's runs of the LSTM are of an older "
        "version that shuffles all indices on the host, whatever the share. A method's factor "
        "stands for whatever is its own, not for kernels alone: of the LSTM they are between 0 and "
        "162. What a worker pays "
        "beside passes and exchange once it has company is fitted, not explained. That GRACE's "
        "methods exchange after the backward pass, not during it, is read off judged runs (1 "
        "against 10 Gbit/s). Copies out of a fused buffer are not modelled."
    ),
    bounds=(
        Bound(
            name="throughput of all models",
            series=("UNet", "ResNet-50", "ResNet-20", "LSTM"),
            statistic="median",
            limit=0.15,
        ),
        Bound(
            name="faster than dense, yes or no",
            series=("UNet", "ResNet-50", "ResNet-20", "LSTM"),
            statistic="decisions",
            limit=0.90,
        ),
        Bound(name=VOLUMES, series=(VOLUMES,), statistic="median", limit=0.01),
    ),
    find=find,
    figure_x="workers",
)
