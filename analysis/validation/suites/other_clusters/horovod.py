"""Does the simulator predict Horovod's own benchmark? NCCL, MPI and TensorFlow's servers.

Horovod's README of September 2017: Inception V3, ResNet-101 and VGG-16 of tf_cnn_benchmarks, batch
64, on 4 and on 16 servers with four Pascal GPUs each, by tensor fusion over NCCL rings, over MPI on
the hosts, and by TensorFlow's parameter servers.

Given: each model's step on one GPU (the tables' first rows). Fitted: what MPI gets from a card,
bytes a second in both clusters, by VGG-16 over TCP, whose gradient is the largest. RDMA under MPI
has no more. NCCL and the servers have the catalogue's networks, RDMA under NCCL that of RoCE.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gcsim.analysis.report.numbers import plural
from gcsim.analysis.validation.interval import ends
from gcsim.analysis.validation.suite import Factor, Findings, Point, given_step
from gcsim.analysis.validation.suites.other_clusters.prediction import (
    NCCL_RINGS,
    Job,
    catalogue_seconds,
    cluster_of,
    fused,
    nearest,
    ready_times,
    with_efficiency,
)
from gcsim.analysis.validation.suites.other_clusters.runs import (
    Run,
    all_reduced,
    bucketed,
    gradient_bytes,
    grouped,
    runs,
    served,
    tensor_sizes,
)
from gcsim.compressors.lockstep import CollectiveRecord
from gcsim.scenarios import catalog
from gcsim.simulator.clock import PS_PER_SECOND
from gcsim.simulator.cluster import Cluster, Collectives
from gcsim.simulator.collectives.dispatch import CollectiveMemo
from gcsim.traces.buckets import CAP_BYTES
from gcsim.traces.profile import TrafficProfile

SMALL, LARGE = "Horovod 2017, 16 GPUs, 25 Gbit/s", "Horovod 2017, 64 GPUs, 40 Gbit/s"
FUSION = 64 * 1024 * 1024
"""Bytes that Horovod reduces together at most (its default)."""
CYCLE = 5e-3
"""Seconds between two looks at what is ready (its default until version 0.19)."""
GPU = "p100_pcie"
"""Of the catalogue, for the prediction without a fit; the README says "Pascal"."""
FITTED_MODEL = "vgg16"
LEAST, MOST = 2e8, 3e9
"""Bytes a second among which the fit looks: 1.6 to 24 Gbit/s."""
FITTED_VARIANT = "tcp-horovod-allreduce-on-cpu"
_TITLES = {"inception_v3": "Inception V3", "resnet101": "ResNet-101", "vgg16": "VGG-16"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """How gradients are exchanged."""

    title: str
    collectives: Collectives
    fusion: bool = True
    mpi: bool = False
    rdma: bool = False
    """Of NCCL's: the card does the work."""


_MPI = Collectives(transport="custom", all_reduce="ring", all_gather="ring", host_staging=True)
_SERVERS = Collectives(host_staging=False)
VARIANTS = {
    "tcp-horovod-allreduce-on-gpu-with-nccl": Variant(title="NCCL, TCP", collectives=NCCL_RINGS),
    "rdma-horovod-allreduce-on-gpu-with-nccl": Variant(
        title="NCCL, RDMA", collectives=NCCL_RINGS, rdma=True
    ),
    FITTED_VARIANT: Variant(title="MPI, TCP", collectives=_MPI, mpi=True),
    "rdma-horovod-allreduce-on-cpu": Variant(title="MPI, RDMA", collectives=_MPI, mpi=True),
    "distributed-tensorflow": Variant(title="servers, GPU", collectives=_SERVERS, fusion=False),
    "distributed-tensorflow-variables-on-cpu": Variant(
        title="servers, CPU", collectives=_SERVERS, fusion=False
    ),
}


@dataclass(frozen=True, slots=True)
class _Table:
    """One of the README's two tables."""

    key: str
    series: str
    network: str
    """Of the catalogue."""
    speed: str

    def steps(self) -> dict[str, float]:
        """By model: seconds of a step on one GPU."""
        return {run.model: run.seconds for run in runs(self.key) if run.gpus == 1}

    def job(self, run: Run, step: float, goodput: float | None) -> Job:
        """An iteration; `goodput` of MPI, bytes a second; None: the catalogue's."""
        variant = VARIANTS[run.method]
        network = catalog.link(self.network + "_roce" * variant.rdma, "nccl")
        if goodput is not None and variant.mpi:
            network = with_efficiency(network, goodput / float(network.bandwidth))
        collectives = variant.collectives
        if not variant.fusion:
            collectives = Collectives(host_staging=False, servers=run.nodes)
        cluster = cluster_of(
            run.nodes, run.gpus, network, catalog.link("pcie3_x16", "nccl"), collectives
        )
        traffic = (
            fusion_profile(run.model, run.batch, cluster, step)
            if variant.fusion
            else served(run.model, run.batch, bucketed(run.model, CAP_BYTES, CAP_BYTES), run.nodes)
        )
        return Job(profile=traffic, cluster=cluster, step=step)


def fusion_profile(
    model: str, batch: int, cluster: Cluster, step: float, width: int = 4
) -> TrafficProfile:
    """What Horovod would send on this cluster, `width` bytes an element: its fusion goes by how
    long its transfers take."""
    memo = CollectiveMemo(cluster)
    together = np.zeros(cluster.workers, dtype=np.int64)

    def transfer(nbytes: int) -> float:
        record = CollectiveRecord(kind="all_reduce", sent=(nbytes,), element=width)
        return int(memo(record, together).max()) / PS_PER_SECOND

    groups = fused(
        [width * size for size in tensor_sizes(model)],
        ready_times(model, batch, step),
        transfer,
        cycle=CYCLE,
        threshold=FUSION,
    )
    return all_reduced(model, batch, grouped(model, groups), width)


TABLES = (
    _Table("hvd25", SMALL, "25gbe", "25 Gbit/s"),
    _Table("hvd40", LARGE, "40gbe", "40 Gbit/s"),
)


def findings() -> Findings:
    """Both tables."""
    rows = [(table, run) for table in TABLES for run in runs(table.key)]
    served = [
        row for row in rows if (row[1].model, row[1].method) == (FITTED_MODEL, FITTED_VARIANT)
    ]
    steps = {table.key: table.steps() for table in TABLES}
    goodput = nearest(
        lambda value: [
            table.job(run, steps[table.key][run.model], value).seconds for table, run in served
        ],
        [run.seconds for _, run in served],
        LEAST,
        MOST,
    )
    fitted = {run.id for _, run in served}
    return Findings(
        points=tuple(
            _point(table, run, steps[table.key][run.model], goodput, fitted=run.id in fitted)
            for table, run in rows
        ),
        factors=(
            *(
                given_step(
                    table.series,
                    f"step of {_TITLES[model]} on one GPU",
                    step,
                    catalogue_seconds(GPU, model, 64),
                )
                for table in TABLES
                for model, step in steps[table.key].items()
            ),
            Factor(
                series=f"{SMALL}; {LARGE}",
                name="goodput of MPI",
                value=goodput,
                unit="bytes/s",
                points=len(served),
                catalogue=float(catalog.link(TABLES[0].network, "nccl").rate),
            ),
        ),
    )


def _point(table: _Table, run: Run, step: float, goodput: float, *, fitted: bool) -> Point:
    catalogued, within = catalogue_seconds(GPU, run.model, run.batch), None
    if run.gpus == 1:
        predicted, bare, title = step, catalogued, "alone"
    else:
        title = VARIANTS[run.method].title
        predicted = table.job(run, step, goodput).seconds
        bare = None
        if catalogued:
            alone = table.job(run, catalogued, None).unfitted(GPU)
            bare = alone.seconds
            within = alone.interval(lambda time: run.published(time)[0])
    judged = run.gpus > 1 and run.model != FITTED_MODEL
    return Point(
        name=f"{_TITLES[run.model]}, {plural(run.gpus, 'GPU')}, {title}, {table.speed}",
        series=table.series,
        unit="samples/s",
        measured=run.value,
        predicted=run.published(predicted)[0],
        unfitted=None if bare is None else run.published(bare)[0],
        fitted=run.gpus == 1 or fitted,
        source=run.source,
        workers=run.gpus,
        nbytes=gradient_bytes(run.model),
        setting=f"{table.key} {run.model}" if judged else "",
        method=title if judged else "",
        **ends(within),
    )
