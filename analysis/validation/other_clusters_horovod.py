"""Does the simulator predict Horovod's own benchmark? NCCL, MPI and TensorFlow's servers.

Horovod's README of September 2017: Inception V3, ResNet-101 and VGG-16 of tf_cnn_benchmarks, batch
64, on 4 and on 16 servers with four Pascal GPUs each, by tensor fusion over NCCL rings, over MPI on
the hosts, and by TensorFlow's parameter servers.

Fitted: each model's step on one GPU (the table's first rows), and the efficiency of the network,
by VGG-16, whose gradient is the largest: under NCCL, under MPI, and (25 Gbit/s only) under gRPC,
whose efficiency is taken for 40 Gbit/s too. RDMA under MPI has TCP's efficiency.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from gcsim.analysis.numbers import plural
from gcsim.analysis.validation.other_clusters_prediction import (
    catalogue_seconds,
    cluster_of,
    fused,
    iteration,
    matched,
    ready_times,
    with_efficiency,
)
from gcsim.analysis.validation.other_clusters_runs import (
    Run,
    all_reduced,
    bucketed,
    grouped,
    runs,
    served,
    tensor_sizes,
)
from gcsim.analysis.validation.suite import Factor, Findings, Point
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
LEAST, MOST = 0.02, 1.0
"""Efficiencies among which a fit looks."""
_TITLES = {"inception_v3": "Inception V3", "resnet101": "ResNet-101", "vgg16": "VGG-16"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """How gradients are exchanged."""

    title: str
    collectives: Collectives
    fusion: bool = True
    fitted_by: str = ""
    """Whose efficiency it takes; its own title where VGG-16's row of it is fitted."""


_NCCL = Collectives(
    transport="custom",
    all_reduce="nccl_ring_simple",
    all_gather="nccl_ring_simple",
    host_staging=False,
)
_MPI = Collectives(transport="custom", all_reduce="ring", all_gather="ring", host_staging=True)
_SERVERS = Collectives(host_staging=False)
WAYS = {
    "tcp-horovod-allreduce-on-gpu-with-nccl": Way(
        title="NCCL, TCP", collectives=_NCCL, fitted_by="NCCL, TCP"
    ),
    "rdma-horovod-allreduce-on-gpu-with-nccl": Way(
        title="NCCL, RDMA", collectives=_NCCL, fitted_by="NCCL, RDMA"
    ),
    "tcp-horovod-allreduce-on-cpu": Way(title="MPI, TCP", collectives=_MPI, fitted_by="MPI, TCP"),
    "rdma-horovod-allreduce-on-cpu": Way(title="MPI, RDMA", collectives=_MPI, fitted_by="MPI, TCP"),
    "distributed-tensorflow": Way(
        title="servers, GPU", collectives=_SERVERS, fusion=False, fitted_by="servers, CPU"
    ),
    "distributed-tensorflow-variables-on-cpu": Way(
        title="servers, CPU", collectives=_SERVERS, fusion=False, fitted_by="servers, CPU"
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
    handed_down: dict[str, float] = field(default_factory=dict)
    """Efficiencies fitted on the other table."""

    def steps(self) -> dict[str, float]:
        """By model: seconds of a step on one GPU."""
        return {run.model: run.seconds for run in runs(self.key) if run.gpus == 1}

    def seconds(self, run: Run, step: float, efficiency: float | None) -> float:
        """Of an iteration; None: the catalogue's efficiency."""
        way = WAYS[run.method]
        network = catalog.link(self.network)
        if efficiency is not None:
            network = with_efficiency(network, efficiency)
        collectives = way.collectives
        if not way.fusion:
            collectives = Collectives(host_staging=False, servers=run.nodes)
        cluster = cluster_of(run.nodes, run.gpus, network, catalog.link("pcie3_x16"), collectives)
        traffic = (
            fusion_profile(run.model, run.batch, cluster, step)
            if way.fusion
            else served(run.model, run.batch, bucketed(run.model, CAP_BYTES, CAP_BYTES), run.nodes)
        )
        return iteration(traffic, cluster, step)


def fusion_profile(model: str, batch: int, cluster: Cluster, step: float) -> TrafficProfile:
    """What Horovod would send on this cluster: its fusion goes by how long its transfers take."""
    memo = CollectiveMemo(cluster)
    together = np.zeros(cluster.workers, dtype=np.int64)

    def transfer(nbytes: int) -> float:
        record = CollectiveRecord(kind="all_reduce", sent=(nbytes,), element=4)
        return int(memo(record, together).max()) / PS_PER_SECOND

    groups = fused(
        [4 * size for size in tensor_sizes(model)],
        ready_times(model, batch, step),
        transfer,
        cycle=CYCLE,
        threshold=FUSION,
    )
    return all_reduced(model, batch, grouped(model, groups))


def findings() -> Findings:
    """Both tables."""
    small = _Table("hvd25", SMALL, "25gbe", "25 Gbit/s")
    factors, points, efficiencies = _of_table(small)
    servers = {name: value for name, value in efficiencies.items() if name.startswith("servers")}
    large = _Table("hvd40", LARGE, "40gbe", "40 Gbit/s", servers)
    more_factors, more_points, _ = _of_table(large)
    return Findings(points=(*points, *more_points), factors=(*factors, *more_factors))


def _of_table(table: _Table) -> tuple[list[Factor], list[Point], dict[str, float]]:
    steps = table.steps()
    factors = [
        Factor(
            series=table.series,
            name=f"step of {_TITLES[model]} on one GPU",
            value=step,
            unit="s",
            points=1,
            catalogue=catalogue_seconds(GPU, model, 64),
        )
        for model, step in steps.items()
    ]
    efficiencies = dict(table.handed_down)
    fitted = set()
    for run in runs(table.key):
        way = WAYS.get(run.method)
        if run.model != FITTED_MODEL or way is None or way.fitted_by != way.title:
            continue
        if way.title in efficiencies:
            continue
        value = matched(_with(table, run, steps[run.model]), run.seconds, LEAST, MOST)
        efficiencies[way.title] = value
        fitted.add(run.id)
        factors.append(
            Factor(
                series=table.series,
                name=f"network efficiency, {way.title}",
                value=value,
                unit="goodput over line rate",
                points=1,
                catalogue=float(catalog.link(table.network).efficiency),
            )
        )
    return factors, list(_points(table, steps, efficiencies, fitted)), efficiencies


def _with(table: _Table, run: Run, step: float) -> Callable[[float], float]:
    return lambda efficiency: table.seconds(run, step, efficiency)


def _points(
    table: _Table, steps: dict[str, float], efficiencies: dict[str, float], fitted: set[str]
) -> Iterator[Point]:
    for run in runs(table.key):
        catalogued = catalogue_seconds(GPU, run.model, run.batch)
        if run.gpus == 1:
            predicted, bare, title = steps[run.model], catalogued, "alone"
        else:
            way = WAYS[run.method]
            title = way.title
            predicted = table.seconds(run, steps[run.model], efficiencies[way.fitted_by])
            bare = None if catalogued is None else table.seconds(run, catalogued, None)
        judged = run.gpus > 1 and run.model != FITTED_MODEL
        yield Point(
            name=f"{_TITLES[run.model]}, {plural(run.gpus, 'GPU')}, {title}, {table.speed}",
            series=table.series,
            unit="samples/s",
            measured=run.value,
            predicted=run.published(predicted)[0],
            unfitted=None if bare is None else run.published(bare)[0],
            fitted=run.gpus == 1 or run.id in fitted,
            source=run.source,
            workers=run.gpus,
            setting=f"{table.key} {run.model}" if judged else "",
            method=title if judged else "",
        )
