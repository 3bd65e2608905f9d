"""Which settings of a scenario change nothing beside the others, or not what they seem to?

None of them is wrong, so each is a warning that names the setting: a knob that is turned and
does nothing is worse than an error, and so are random settings that are drawn too few times.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from gcsim.errors import Problem
from gcsim.scenarios.checks.ineffective_processors import idle_processors, said
from gcsim.scenarios.reading.document import Document, Keys, dotted
from gcsim.scenarios.scenario import DdpBuckets
from gcsim.scenarios.sections.file import ScenarioFile
from gcsim.scenarios.sections.topology import matters, random_settings, slows, timed_settings
from gcsim.simulator.cluster import Cluster, Collectives
from gcsim.simulator.training import Training

FEWEST = 10
"""Iterations that are drawn, and events in all of them, below which a mean is mostly luck."""
_COLLECTIVES: Keys = ("cluster", "collectives")


def idle(
    document: Document, file: ScenarioFile, cluster: Cluster, training: Training
) -> list[Problem]:
    """Settings that change nothing, in the order of the text, as problems to warn of."""
    return document.sorted(
        [
            *_algorithms(document, cluster.collectives),
            *_servers(document, cluster.collectives),
            *_topology(document, cluster),
            *idle_processors(document, cluster, training),
            *_buckets(document, file),
            *_streams(document, cluster, training),
            *_randomness(document, cluster, training),
            *_draws(document, cluster, training),
            *_optimizer(document, file, cluster, training),
            *_precision(document, file, training),
        ]
    )


def _algorithms(document: Document, chosen: Collectives) -> Iterator[Problem]:
    if chosen.transport in {"nccl", "mpich"} and "auto" not in (
        chosen.all_reduce,
        chosen.all_gather,
    ):
        why = ": all_reduce and all_gather name their algorithms"
        yield said(document, (*_COLLECTIVES, "transport"), why, "leave them out, or write auto",
                    value=chosen.transport)  # fmt: skip
    cut = (
        chosen.all_gather in {"pipelined_ring", "pipelined_ring_sync"}
        or chosen.all_reduce == "double_tree"
        or (chosen.transport, chosen.all_gather) == ("mpich", "auto")
    )
    default = Collectives().pipeline_block
    if chosen.pipeline_block != default and not cut:
        why = (
            f" with transport {chosen.transport!r}, all_reduce {chosen.all_reduce!r} and "
            f"all_gather {chosen.all_gather!r}"
        )
        hint = "only pipelined rings (all_gather) and double_tree (all_reduce) cut messages so"
        yield said(document, (*_COLLECTIVES, "pipeline_block"), why, hint)


def _servers(document: Document, chosen: Collectives) -> Iterator[Problem]:
    if chosen.server_network is not None and chosen.server_hosts != "dedicated":
        why = ": the servers live on the nodes and use their NICs"
        hint = "write servers: dedicated"
        yield said(document, (*_COLLECTIVES, "server_network"), why, hint)


def _topology(document: Document, cluster: Cluster) -> Iterator[Problem]:
    racks = cluster.racks
    if racks is not None and racks.nodes >= cluster.nodes:
        why = f": one rack of {racks.nodes} holds all {cluster.nodes} nodes"
        hint = "let racks be smaller than the cluster"
        yield said(document, ("cluster", "racks", "nodes"), why, hint)
    if cluster.shared_bus and cluster.devices_per_node == 1:
        why = ": a node has one device, which shares its bus with nobody"
        yield said(document, ("cluster", "shared_bus"), why, "set cluster.devices_per_node")
    for node, nic in cluster.nics.items():
        if nic == cluster.network:
            why = f": it is {nic.name}, as cluster.network"
            yield said(document, ("cluster", "nics", str(node)), why, "leave it out")


def _buckets(document: Document, file: ScenarioFile) -> Iterator[Problem]:
    if file.training.overlap == "by_tensor" and file.ddp.value(DdpBuckets) != DdpBuckets():
        why = ": training.overlap is by_tensor, so that every tensor is a bucket"
        yield said(document, ("ddp",), why, "leave one of the two out")


def _streams(document: Document, cluster: Cluster, training: Training) -> Iterator[Problem]:
    if training.side_slowdown != 1 and training.encode_on != "side":
        why = ": encoding runs on the compute stream"
        yield said(document, ("training", "side_slowdown"), why, "write encode_on: side")
    if training.concurrent_collectives == 2 and cluster.collectives.transport == "nccl":
        key_path = ("training", "concurrent_collectives")
        yield document.problem(
            key_path,
            " = 2 is not what NCCL does: it carries out one collective after the other",
            "two are simulated; write 1 for NCCL",
        )


def _randomness(document: Document, cluster: Cluster, training: Training) -> Iterator[Problem]:
    noise, key_path = training.noise, ("training", "noise")
    if noise is not None and not matters(noise) and noise.skew_range is None:
        why = ": variation is 0 and no worker is ever slow"
        hint = "set variation, or slow_probability and slow_factor"
        yield said(document, key_path, why, hint)
    elif noise is not None and not slows(noise):
        if noise.slow_probability > 0:
            why, hint = ": slow_factor is 1", "set slow_factor"
            yield said(document, (*key_path, "slow_probability"), why, hint)
        if noise.slow_factor != 1:
            why, hint = ": slow_probability is 0", "set slow_probability"
            yield said(document, (*key_path, "slow_factor"), why, hint)
    default = Training().iterations
    differ = random_settings(cluster, training) or timed_settings(cluster)
    if training.iterations != default and not differ:
        why = ": nothing is random or changes with time, so one iteration tells all"
        hint = "set training.noise, or a link with jitter, sampled loss or a trace"
        yield said(document, ("training", "iterations"), why, hint)


def _draws(document: Document, cluster: Cluster, training: Training) -> Iterator[Problem]:
    """Means over so little that is random that they are luck."""
    random, iterations = random_settings(cluster, training), training.iterations
    if random and iterations < FEWEST:
        key_path: Keys = ("training", "iterations")
        yield document.problem(
            key_path,
            f" = {iterations}: means of so few are mostly luck where "
            f"iterations are random ({', '.join(map(dotted, random))})",
            f"write at least {FEWEST}; the more, the smaller the standard error",
        )
    noise = training.noise
    if noise is None or not slows(noise):
        return
    draws = cluster.workers * iterations
    expected = noise.slow_probability * draws
    if expected < FEWEST:
        key_path = ("training", "noise", "slow_probability")
        enough = math.ceil(FEWEST / (noise.slow_probability * cluster.workers))
        yield document.problem(
            key_path,
            f" = {float(noise.slow_probability):g}: only "
            f"{float(expected):.2g} slow workers are expected in all ({cluster.workers} workers, "
            f"{iterations} iterations), too few for their mean",
            f"write training.iterations: {enough} or more",
        )


def _optimizer(
    document: Document, file: ScenarioFile, cluster: Cluster, training: Training
) -> Iterator[Problem]:
    model = getattr(file.model, "name", file.model)  # of a table the name that it was given
    known = isinstance(model, str) and cluster.device.knows(model)
    if training.optimizer and file.compute is None and known:
        key_path = ("training", "optimizer")
        yield document.problem(
            key_path,
            f" counts twice: the measured rate of {model} on "
            f"{cluster.device.name} is of whole steps, the optimiser's included",
            "give `compute:` without it, or leave training.optimizer out",
        )


def _precision(document: Document, file: ScenarioFile, training: Training) -> Iterator[Problem]:
    if file.compute is not None and training.precision != "fp32":
        why = ": the times under `compute` are taken as they are"
        hint = "leave one of the two out"
        yield said(document, ("training", "precision"), why, hint, value=training.precision)
