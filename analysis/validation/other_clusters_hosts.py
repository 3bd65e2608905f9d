"""Does the simulator predict TensorFlow on several hosts? Amazon's, eight K80 each, over gRPC.

TensorFlow's page of May 2017: distributed_replicated on one to eight p2.8xlarge; the GPUs of a host
add their gradients up, one process a host exchanges them with parameter servers, which run on the
same hosts, as many as hosts but for the page's exceptions. So a host is the device here.

The network is taken for 10 Gbit/s, which is the class of this kind of machine; the page does not
say. Fitted: each model's step on one host, and the network's efficiency under gRPC, by ResNet-50
(batch 32, the smallest step for its gradient) on four hosts, the middle of two, four and eight.
"""

from __future__ import annotations

from collections.abc import Mapping

from gcsim.analysis.numbers import plural
from gcsim.analysis.validation.other_clusters_host import MODELS, VARIABLES
from gcsim.analysis.validation.other_clusters_prediction import (
    catalogue_seconds,
    cluster_of,
    iteration,
    matched,
    with_efficiency,
)
from gcsim.analysis.validation.other_clusters_runs import Run, bucketed, runs, served
from gcsim.analysis.validation.suite import Excluded, Factor, Findings, Point
from gcsim.scenarios import catalog
from gcsim.simulator.cluster import Collectives

SERIES = "TensorFlow, 1 to 8 EC2 hosts, K80"
NETWORK = "10gbe"
GPUS = 8
"""Of a host."""
SERVERS = {
    ("inception_v3", 64): 6,
    ("inception_v3", 32): 6,
    ("resnet50", 32): 4,
    ("resnet152", 32): 4,
}
"""By model and batch: on eight hosts, where there are not as many as hosts."""
FITTED = ("resnet50", 32, 4)
"""Model, batch, hosts."""
LEAST, MOST = 0.02, 1.0
"""Efficiencies among which the fit looks."""


def seconds(run: Run, step: float, efficiency: float | None) -> float:
    """Of an iteration, where one host takes `step` seconds; None: the catalogue's efficiency."""
    network = catalog.link(NETWORK)
    if efficiency is not None:
        network = with_efficiency(network, efficiency)
    servers = run.nodes
    if run.nodes == 8:
        servers = SERVERS.get((run.model, run.batch), run.nodes)
    cluster = cluster_of(
        run.nodes,
        run.nodes,
        network,
        catalog.link("pcie3_x16"),
        Collectives(host_staging=False, servers=servers),
    )
    buckets = bucketed(run.model, VARIABLES, VARIABLES)
    return iteration(served(run.model, run.batch, buckets, servers), cluster, step)


def findings() -> Findings:
    """Five models and batches."""
    own = [run for run in runs("tf") if run.method == "ec2dist synthetic"]
    several = [run for run in own if run.gpus >= GPUS]
    steps = {(run.model, run.batch): run.seconds for run in several if run.gpus == GPUS}
    fitted = next(run for run in several if (run.model, run.batch, run.nodes) == FITTED)
    step = steps[fitted.model, fitted.batch]
    efficiency = matched(lambda value: seconds(fitted, step, value), fitted.seconds, LEAST, MOST)
    return Findings(
        points=tuple(_point(run, steps, efficiency, fitted=run is fitted) for run in several),
        factors=(
            *(
                Factor(
                    series=SERIES,
                    name=f"step of {MODELS[model]} b{batch} on one host",
                    value=value,
                    unit="s",
                    points=1,
                    catalogue=catalogue_seconds("k80", model, batch),
                )
                for (model, batch), value in steps.items()
            ),
            Factor(
                series=SERIES,
                name="network efficiency, gRPC",
                value=efficiency,
                unit="goodput over line rate",
                points=1,
                catalogue=float(catalog.link(NETWORK).efficiency),
            ),
        ),
        excluded=(
            Excluded(
                what="rows of one GPU beside several hosts",
                count=len(own) - len(several),
                rule="the device there is a host of eight GPUs",
            ),
        ),
    )


def _point(
    run: Run, steps: Mapping[tuple[str, int], float], efficiency: float, *, fitted: bool
) -> Point:
    known = catalogue_seconds("k80", run.model, run.batch)
    predicted = seconds(run, steps[run.model, run.batch], efficiency)
    bare = None if known is None else seconds(run, known, None)
    return Point(
        name=f"{MODELS[run.model]} b{run.batch}, {plural(run.nodes, 'host')}, EC2 K80",
        series=SERIES,
        unit="samples/s",
        measured=run.value,
        predicted=run.published(predicted)[0],
        unfitted=None if bare is None else run.published(bare)[0],
        fitted=fitted or run.gpus == GPUS,
        source=run.source,
        workers=run.gpus,
        panel="EC2 hosts of eight K80",
        curve=f"{MODELS[run.model]} b{run.batch}",
        x=run.gpus,
    )
