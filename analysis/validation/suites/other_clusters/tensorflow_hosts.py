"""TensorFlow on several hosts: Amazon's, eight K80 each, over gRPC.

TensorFlow's page of May 2017: distributed_replicated on one to eight p2.8xlarge; the GPUs of a host
add their gradients up, one process a host exchanges them with parameter servers, which run on the
same hosts, as many as hosts but for the page's exceptions. So a host is the device here.

The network is taken for 10 Gbit/s, which is the class of this kind of machine; the page does not
say. Nothing is fitted; given is each model's step on one host.
"""

from __future__ import annotations

from collections.abc import Mapping

from gcsim.analysis.report.numbers import plural
from gcsim.analysis.validation.suite import Excluded, Findings, Point
from gcsim.analysis.validation.suites.other_clusters.prediction import (
    Job,
    catalogue_seconds,
    cluster_of,
    compared_step,
)
from gcsim.analysis.validation.suites.other_clusters.runs import (
    Run,
    bucketed,
    gradient_bytes,
    runs,
    served,
)
from gcsim.analysis.validation.suites.other_clusters.tensorflow import (
    MODELS,
    VARIABLES,
    given_steps,
)
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


def job(run: Run, step: float) -> Job:
    """An iteration, where one host takes `step` seconds."""
    servers = run.nodes
    if run.nodes == 8:
        servers = SERVERS.get((run.model, run.batch), run.nodes)
    cluster = cluster_of(
        run.nodes,
        run.nodes,
        catalog.link(NETWORK),
        catalog.link("pcie3_x16"),
        Collectives(host_staging=False, servers=servers),
    )
    buckets = bucketed(run.model, VARIABLES, VARIABLES)
    return Job(profile=served(run.model, run.batch, buckets, servers), cluster=cluster, step=step)


def findings() -> Findings:
    """Five models and batches."""
    own = [run for run in runs("tf") if run.method == "ec2dist synthetic"]
    several = [run for run in own if run.gpus >= GPUS]
    steps = {(run.model, run.batch): run.seconds for run in several if run.gpus == GPUS}
    return Findings(
        points=tuple(_point(run, steps) for run in several),
        factors=tuple(given_steps(SERIES, steps, "host", "k80")),
        excluded=(
            Excluded(
                "rows of one GPU beside several hosts",
                len(own) - len(several),
                "the device there is a host of eight GPUs",
            ),
        ),
    )


def _point(run: Run, steps: Mapping[tuple[str, int], float]) -> Point:
    known = catalogue_seconds("k80", run.model, run.batch)
    predicted = job(run, steps[run.model, run.batch]).seconds
    bare = None if known is None else job(run, known).unfitted("k80")
    return compared_step(
        run,
        predicted,
        bare,
        name=f"{MODELS[run.model]} b{run.batch}, {plural(run.nodes, 'host')}, EC2 K80",
        series=SERIES,
        fitted=run.gpus == GPUS,
        nbytes=gradient_bytes(run.model),
        panel="EC2 hosts of eight K80",
        curve=f"{MODELS[run.model]} b{run.batch}",
        x=run.gpus,
    )
