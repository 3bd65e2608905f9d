"""TensorFlow's benchmarks page: one host with P100 or K80.

TensorFlow's page of May 2017: five image models on a DGX-1 (eight P100) and on hosts of Google and
Amazon (eight K80 each), with synthetic and with real data. What each model used is the page's word:
parameter servers in the host, or (DGX-1, AlexNet and VGG-16) replicas with NCCL.

Fitted, of synthetic data: each model's step on one GPU. A K80 is two processors on one board, and
slower when both work: that factor, by Inception V3 and ResNet-50 (batch 64) on two GPUs, whose
gradients are the smallest for their work (median). Real data are predicted as synthetic ones: what
loading, copies and preprocessing cost is not modelled (with AlexNet it is no constant rate).

Replicas without NCCL move as much over the same bus as parameter servers do, and are simulated as
servers.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache, cached_property

from gcsim.analysis.report.numbers import plural
from gcsim.analysis.validation.suite import Excluded, Factor, Findings, Point, given_step
from gcsim.analysis.validation.suites.other_clusters.prediction import (
    KNOWN,
    NCCL_RINGS,
    Job,
    catalogue_seconds,
    cluster_of,
    compared_step,
)
from gcsim.analysis.validation.suites.other_clusters.runs import (
    Run,
    all_reduced,
    bucketed,
    gradient_bytes,
    runs,
    served,
)
from gcsim.scenarios import catalog
from gcsim.simulator.cluster import Collectives
from gcsim.simulator.network.links import Link

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


def _points(host: _Host) -> Iterator[Point]:
    """Of synthetic data all rows, of real data those of several GPUs."""
    fitted = {run.id for run in host.shared_power_runs}
    for run in host.runs("synthetic"):
        series = host.series("NCCL" if run.model in host.nccl else "synthetic")
        yield _point(run, host, series, fitted=run.gpus == 1 or run.id in fitted)
    for run in host.runs("real"):
        if run.gpus > 1:
            yield _point(run, host, host.series("real data"), fitted=False)


def _point(run: Run, host: _Host, series: str, *, fitted: bool) -> Point:
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


def _factors(host: _Host) -> Iterator[Factor]:
    series = "; ".join((host.series("synthetic"), host.series("real data")))
    yield from given_steps(series, host.steps, "GPU", host.device)
    if host.two_dies:
        runs = host.shared_power_runs
        name = "step with both processors of a board"
        yield Factor(series, name, host.shared_power, "times that of one", len(runs))


VARIABLES = 4 * 1024 * 1024
"""Bytes from which on variables that become ready one after the other are one exchange."""
_NVLINK = 20 * 10**9
"""Bytes a second of one NVLink of a P100, each way, which is what a ring inside a DGX-1 crosses:
four have 80 GB/s (Microway, "NVIDIA Tesla P100 NVLink 16GB GPU Accelerator (Pascal GP100 SXM2) up
close"). The catalogue has no link of that generation: efficiency and latency are its nvlink2's."""
MODELS = {
    "alexnet": "AlexNet",
    "inception_v3": "Inception V3",
    "resnet50": "ResNet-50",
    "resnet152": "ResNet-152",
    "vgg16": "VGG-16",
}
_TWO_DIES = (("inception_v3", 64), ("resnet50", 64))


@dataclass(frozen=True)
class _Host:
    """A kind of host, with its measurements."""

    key: str
    """Of the configurations' names in the data."""
    title: str
    device: str
    """Of the catalogue."""
    nccl: tuple[str, ...] = ()
    """Models whose replicas use NCCL."""
    two_dies: bool = False

    def series(self, what: str) -> str:
        """Of its points with "synthetic" data, with "NCCL", with "real data"."""
        return f"TensorFlow, {self.title}, {what}"

    @property
    def all_series(self) -> tuple[str, ...]:
        """Of all its points."""
        kinds = ("synthetic", *(("NCCL",) if self.nccl else ()), "real data")
        return tuple(map(self.series, kinds))

    def runs(self, data: str) -> list[Run]:
        """Of "synthetic" or "real" data."""
        return [run for run in runs("tf") if run.method == f"{self.key} {data}"]

    @cached_property
    def steps(self) -> dict[tuple[str, int], float]:
        """By model and batch: seconds on one GPU, synthetic data."""
        alone = [run for run in self.runs("synthetic") if run.gpus == 1]
        return {(run.model, run.batch): run.seconds for run in alone}

    @cached_property
    def shared_power(self) -> float:
        """How many times as long a step takes where both processors of a board work."""
        if not self.two_dies:
            return 1.0
        found = []
        for run in self.shared_power_runs:
            step = self.steps[run.model, run.batch]
            factor = run.seconds / self.seconds(run, step, 1.0)
            found.append(max(1.0, factor))
        return statistics.median(found)

    @property
    def shared_power_runs(self) -> list[Run]:
        """That it is fitted on."""
        return [
            run
            for run in self.runs("synthetic")
            if self.two_dies and run.gpus == 2 and (run.model, run.batch) in _TWO_DIES
        ]

    def seconds(self, run: Run, step: float, shared_power: float) -> float:
        """Of an iteration."""
        return self.job(run, step, shared_power).seconds

    def job(self, run: Run, step: float, shared_power: float) -> Job:
        """That iteration."""
        shared_power = shared_power if run.gpus > 1 else 1.0
        nccl = run.model in self.nccl
        return _one_host(run.model, run.batch, run.gpus, nccl, step, shared_power)


def given_steps(
    series: str, steps: Mapping[tuple[str, int], float], what: str, device: str
) -> Iterator[Factor]:
    """By model and batch: the step on one device, as measured."""
    for (model, batch), step in steps.items():
        name = f"step of {MODELS[model]} b{batch} on one {what}"
        yield given_step(series, name, step, catalogue_seconds(device, model, batch))


@cache
def _one_host(  # noqa: PLR0917 - remembered by them
    model: str, batch: int, gpus: int, nccl: bool, step: float, slower: float
) -> Job:
    buckets = bucketed(model, VARIABLES, VARIABLES)
    inside: Link = catalog.link("pcie3_x16")
    if nccl:
        inside = replace(catalog.link("nvlink2"), bandwidth=Fraction(_NVLINK))
        collectives = NCCL_RINGS
        traffic = all_reduced(model, batch, buckets)
    else:
        collectives = Collectives(host_staging=False, servers=1)
        traffic = served(model, batch, buckets, 1)
    slow = {0: Fraction(round(slower * 10**6), 10**6)} if slower > 1 else {}
    cluster = cluster_of(1, gpus, inside, inside, collectives)
    training = replace(KNOWN, slow_nodes=slow)
    return Job(profile=traffic, cluster=cluster, step=step, training=training)


HOSTS = (
    _Host("dgx1p100", "DGX-1", "p100_sxm2", nccl=("alexnet", "vgg16")),
    _Host("gcek80", "GCE K80", "k80", two_dies=True),
    _Host("ec2k80", "EC2 K80", "k80", two_dies=True),
)
