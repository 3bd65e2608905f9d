"""Does the simulator predict TensorFlow's benchmarks page? One host with P100 or K80.

TensorFlow's page of May 2017: five image models on a DGX-1 (eight P100) and on hosts of Google and
Amazon (eight K80 each), with synthetic and with real data. What each model used is the page's word:
parameter servers in the host, or (DGX-1, AlexNet and VGG-16) replicas with NCCL.

Fitted, of synthetic data: each model's step on one GPU. A K80 is two processors on one board, and
slower when both work: that factor, by Inception V3 and ResNet-50 (batch 64) on two GPUs, whose
gradients are the smallest for their work (median). Real data are predicted as synthetic ones: what
loading, copies and preprocessing cost is not modelled (with AlexNet it is no constant rate).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gcsim.analysis.report.numbers import plural
from gcsim.analysis.validation.suite import Excluded, Factor, Findings, Point, given_step
from gcsim.analysis.validation.suites.other_clusters.prediction import (
    catalogue_seconds,
    compared_step,
)
from gcsim.analysis.validation.suites.other_clusters.runs import Run, gradient_bytes, runs
from gcsim.analysis.validation.suites.other_clusters.tensorflow_host import HOSTS, MODELS, Host

SHOWN = (("alexnet", 512), ("inception_v3", 64), ("resnet50", 64), ("vgg16", 32))
"""What the figure has."""


def findings() -> Findings:
    """All three hosts, and both kinds of data."""
    points: list[Point] = []
    factors: list[Factor] = []
    alone = 0
    for host in map(replace, HOSTS):  # without what an earlier call has remembered
        points += _points(host)
        factors += _factors(host)
        alone += sum(run.gpus == 1 for run in host.runs("real"))
    return Findings(
        points=tuple(points),
        factors=tuple(factors),
        excluded=(
            Excluded(
                "rows of one GPU with real data",
                alone,
                "nothing is exchanged; the step is that of the row with synthetic data",
            ),
            Excluded(
                "rows of tensorflow#5683",
                len(runs("tf5683")),
                "the thread does not state a batch, so that neither the step nor the "
                "gradients a second are known",
            ),
        ),
    )


def _points(host: Host) -> Iterator[Point]:
    """Of synthetic data all rows, of real data those of several GPUs."""
    fitted = {run.id for run in host.shared_power_runs}
    for run in host.runs("synthetic"):
        series = host.series("NCCL" if run.model in host.nccl else "synthetic")
        yield _point(run, host, series, fitted=run.gpus == 1 or run.id in fitted)
    for run in host.runs("real"):
        if run.gpus > 1:
            yield _point(run, host, host.series("real data"), fitted=False)


def _point(run: Run, host: Host, series: str, *, fitted: bool) -> Point:
    predicted = host.seconds(run, host.steps[run.model, run.batch], host.shared_power)
    known = catalogue_seconds(host.device, run.model, run.batch)
    bare = None if known is None else host.job(run, known, 1.0).unfitted(host.device)
    data = run.method.partition(" ")[2]
    shown = data == "synthetic" and (run.model, run.batch) in SHOWN
    return compared_step(
        run,
        predicted,
        bare,
        name=f"{MODELS[run.model]} b{run.batch}, {plural(run.gpus, 'GPU')}, {host.title}, {data}",
        series=series,
        fitted=fitted,
        nbytes=gradient_bytes(run.model),
        panel=f"{MODELS[run.model]} b{run.batch}, one host" if shown else "",
        curve=host.title if shown else "",
        x=run.gpus if shown else None,
    )


def _factors(host: Host) -> Iterator[Factor]:
    for (model, batch), step in host.steps.items():
        yield given_step(
            "; ".join((host.series("synthetic"), host.series("real data"))),
            f"step of {MODELS[model]} b{batch} on one GPU",
            step,
            catalogue_seconds(host.device, model, batch),
        )
    if host.two_dies:
        yield Factor(
            series="; ".join((host.series("synthetic"), host.series("real data"))),
            name="step with both processors of a board",
            value=host.shared_power,
            unit="times that of one",
            points=len(host.shared_power_runs),
        )
