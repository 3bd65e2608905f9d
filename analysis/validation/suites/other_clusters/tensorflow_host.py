"""How does one of TensorFlow's hosts train? Servers in it or NCCL, two dies a board.

The measurements of a host give what is fitted (`other_clusters/tensorflow.py` says how); an
iteration is the simulator's. Replicas without NCCL move as much over the same bus as parameter
servers do, and are simulated as servers.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache, cached_property

from gcsim.analysis.validation.suites.other_clusters.prediction import (
    KNOWN,
    NCCL_RINGS,
    Job,
    cluster_of,
)
from gcsim.analysis.validation.suites.other_clusters.runs import (
    Run,
    all_reduced,
    bucketed,
    runs,
    served,
)
from gcsim.scenarios import catalog
from gcsim.simulator.cluster import Collectives
from gcsim.simulator.network.links import Link

VARIABLES = 4 * 1024 * 1024
"""Bytes from which on variables that become ready one after the other are one exchange."""
NVLINK = 20 * 10**9
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
class Host:
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


@cache
def _one_host(  # noqa: PLR0917 - remembered by them
    model: str,
    batch: int,
    gpus: int,
    nccl: bool,
    step: float,
    slower: float,
) -> Job:
    buckets = bucketed(model, VARIABLES, VARIABLES)
    inside: Link = catalog.link("pcie3_x16")
    if nccl:
        inside = replace(catalog.link("nvlink2"), bandwidth=Fraction(NVLINK))
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
    Host("dgx1p100", "DGX-1", "p100_sxm2", nccl=("alexnet", "vgg16")),
    Host("gcek80", "GCE K80", "k80", two_dies=True),
    Host("ec2k80", "EC2 K80", "k80", two_dies=True),
)
