"""Settings without effect beside the others, or with another than it seems.

Each is a warning that names the setting: a knob that does nothing is worse than an error, and so
are random settings drawn too few times. Settings of processors stand last.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import Path

from gcsim.compressors.registry import compressor_class
from gcsim.errors import Problem
from gcsim.scenarios.catalog import loops
from gcsim.scenarios.reading.document import Document, Keys, dotted
from gcsim.scenarios.scenario import CompressorChoice, DdpBuckets, Scenario
from gcsim.scenarios.sections.cluster import (
    group_key,
    matters,
    random_settings,
    slows,
    timed_settings,
)
from gcsim.scenarios.sections.file import ScenarioFile
from gcsim.scenarios.sections.recorded import warn_once
from gcsim.scenarios.sections.transports import NONE, defaults, servers_add, transports
from gcsim.simulator.cluster import Cluster, Collectives
from gcsim.simulator.host import DTYPES, MANY, PRICES, Host
from gcsim.simulator.training import Framework, Training
from gcsim.traces.models.registry import ModelEntry
from gcsim.traces.profile import TrafficProfile, weighted

FEWEST = 10  # iterations, and events in them, below which a mean is mostly luck
_COLLECTIVES: Keys = ("cluster", "collectives")
_OVERLAPPING = {"ring", "gloo_ring"}
"""Algorithms of which two may run at a time; MPICH chooses one where blocks are equal and long."""


def idle(
    document: Document,
    file: ScenarioFile,
    cluster: Cluster,
    training: Training,
    *,
    model: ModelEntry,
    buckets: DdpBuckets,
    compressors: Sequence[CompressorChoice],
) -> list[Problem]:
    """Settings without effect, in text order, as problems to warn of."""
    return document.sorted(
        [
            *_algorithms(document, cluster.collectives),
            *_servers(document, cluster.collectives, compressors),
            *_racks(document, cluster),
            *_topology(document, cluster, training),
            *_nics(document, cluster),
            *_bus(document, cluster, training),
            *_idle_processors(document, cluster, training),
            *_buckets(document, file),
            *_streams(document, training),
            *_two_at_a_time(document, cluster, training),
            *_one_bucket(document, cluster, training, model, buckets),
            *_randomness(document, cluster, training),
            *_draws(document, cluster, training),
            *_optimizer(document, file, cluster, training),
            *_precision(document, file, cluster, training),
            *_strategy(document, cluster, training),
            *_cost(document, file),
        ]
    )


def _algorithms(document: Document, chosen: Collectives) -> Iterator[Problem]:
    named = "auto" not in (chosen.all_reduce, chosen.all_gather)
    stated = (*_COLLECTIVES, "transport") in document.values
    if stated and named and chosen.transport in {"nccl", "mpich"}:
        why = ": all_reduce and all_gather name their algorithms"
        yield _said(document, (*_COLLECTIVES, "transport"), why, "leave them out, or write auto",
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
        hint = "only pipelined rings (all_gather) and double_tree (all_reduce) cut messages"
        yield _said(document, (*_COLLECTIVES, "pipeline_block"), why, hint)


def _servers(
    document: Document, chosen: Collectives, compressors: Sequence[CompressorChoice]
) -> Iterator[Problem]:
    served = {chosen.all_reduce, chosen.all_gather}
    pushes = any(compressor_class(each.kind).about.without_server for each in compressors)
    if not pushes:
        why, hint = (
            ": no method here pushes to servers",
            "gcsim list compressors names those that do",
        )
        if chosen.push_pull != "auto":
            yield _said(document, (*_COLLECTIVES, "push_pull"), why, hint, value=chosen.push_pull)
        if chosen.names_servers and "parameter_server" not in served:
            hint += ", or set all_reduce or all_gather to parameter_server"
            yield _said(document, (*_COLLECTIVES, "servers"), why, hint)
    if chosen.server_network is not None and chosen.server_hosts != "dedicated":
        why = ": the servers run on the nodes and use their NICs"
        hint = "write servers: dedicated"
        yield _said(document, (*_COLLECTIVES, "server_network"), why, hint)


def _racks(document: Document, cluster: Cluster) -> Iterator[Problem]:
    racks = cluster.racks
    if racks is None:
        return
    if racks.nodes >= cluster.nodes:
        why = f": one rack of {racks.nodes} holds all {cluster.nodes} nodes"
        hint = "make racks smaller than the cluster"
        yield _said(document, ("cluster", "racks", "nodes"), why, hint)
    elif racks.pod and racks.nodes * racks.pod >= cluster.nodes:
        why = f": one pod of {racks.pod} racks holds all {cluster.nodes} nodes"
        yield _said(document, ("cluster", "racks", "pod"), why, "make pods smaller")
    if racks.pod is None and racks.pod_uplinks > 1:
        hint = "write racks.pod and racks.pod_uplink, or leave it out"
        yield _said(document, ("cluster", "racks", "pod_uplinks"), ": there are no pods", hint)


def _topology(document: Document, cluster: Cluster, training: Training) -> Iterator[Problem]:
    transport = cluster.collectives.transport
    if cluster.shared_bus and cluster.devices_per_node == 1:
        why = ": a node has one device, which has its bus to itself"
        yield _said(document, ("cluster", "shared_bus"), why, "set cluster.devices_per_node")
    nics = document.data["cluster"].get("nics_per_node", 1)
    for number, group in enumerate(document.data["cluster"].get("groups") or ()):
        own, used = nics if number == 0 else group.get("nics_per_node", 1), cluster.nics_per_node
        if own > used:
            key_path: Keys = ("cluster", "groups", number, "nics_per_node")
            few = f": in all nodes, NCCL uses the number of the node with the fewest ({used})"
            why = few if transport == "nccl" else f": the transport {transport!r} uses one NIC"
            yield _said(document, key_path, why, "leave it out", value=own)
    if document.data["cluster"].get("batch", "equal") != "equal" and not cluster.groups:
        why = ": there are no groups"
        yield _said(document, ("cluster", "batch"), why, "leave it out", value="by_speed")
    if not cluster.groups and nics != 1 and (cluster.nodes == 1 or nics != cluster.nics_per_node):
        alone = ": there is one node"
        why = alone if cluster.nodes == 1 else f": the transport {transport!r} uses one NIC"
        yield _said(document, ("cluster", "nics_per_node"), why, "leave it out")
    for node, nic in cluster.nics.items():
        if nic == cluster.network:
            why = f": it is {nic.name}, as cluster.network"
            yield _said(document, ("cluster", "nics", str(node)), why, "leave it out")
    if training.between != "workers" and cluster.ranks_in(training.between) == cluster.workers > 1:
        why = f": a {training.between[:-1]} has one device"
        yield _said(document, ("training", "between"), why, "set cluster.devices_per_node")
    fixed = {Fraction(0), loops.between_nodes(Framework(), transport).per_step}
    for code in ("reducer", "hook"):
        if cluster.nodes == 1 and getattr(training, code).per_step not in fixed:
            where = ("training", "framework", code, "per_step")
            yield _said(document, where, ": it applies between nodes only", "set cluster.nodes")


_LANES = dict.fromkeys(("pcie3", "nvlink1", "nvlink2"), 12)
_LANES |= dict.fromkeys(("pcie4", "nvlink3", "nvlink_8_links"), 24)
_LANES |= dict.fromkeys(("pcie5", "nvlink4", "nvlink4_8_links", "xgmi"), 48)
"""GB/s of the 16 PCIe lanes of a board by its bus, as NCCL counts them (src/graph/topo.cc: 60, 120
and 240 x 100 Mbit/s a lane, over 80). A GB200's GPU has another way to its NICs."""


def _nics(document: Document, cluster: Cluster) -> Iterator[Problem]:
    """NICs without a channel: NCCL's search (src/graph/search.cc, `ncclTopoSearchRec`) leads each
    channel from a NIC through a GPU's lanes and takes its rate off both, so a GPU's lanes, once
    full, feed no further NIC."""
    if cluster.nodes == 1 or cluster.collectives.transport != "nccl":
        return
    for number, (first, _, device) in enumerate(cluster.kinds):
        nic = cluster.nic(first).bandwidth / cluster.nics_per_node
        bus = device.bus or ""
        lanes = _LANES.get(bus.partition("_")[0] if bus.startswith("pcie") else bus)
        if lanes is None:
            continue
        devices = len(cluster.ranks_of(first))
        used = devices * math.ceil(lanes * 10**9 / nic)
        if cluster.nics_per_node > used:
            boards = f"{devices} {device.name} ({lanes} GB/s each)"
            message = (
                f" = {cluster.nics_per_node}: NCCL's channels use only {used}, "
                f"which fill the PCIe lanes of {boards}"
            )
            yield document.problem(group_key(number, "nics_per_node"), message, f"write {used}")


def _bus(document: Document, cluster: Cluster, training: Training) -> Iterator[Problem]:
    """Warnings about links inside a node that nothing crosses, or about its other devices."""
    chosen = cluster.collectives
    usual = loops.interference(chosen.transport)
    alone = cluster.devices_per_node == 1
    why, hint = ": a node has one device", "set cluster.devices_per_node, or leave it out"
    by_cores = cluster.device.processor == "cpu" or training.machines(cluster) is not None
    if training.shared_node != loops.shared_node(chosen.transport) and not alone and by_cores:
        why_cpu = ": the ranks of a node share its cores (cluster.host.cores)"
        yield _said(document, ("training", "shared_node"), why_cpu, "leave it out")
    if not cluster.crosses_intra_node and "intra_node" in document.data["cluster"]:
        why_bus = f"{why}, and nothing is copied through its host"
        yield _said(document, ("cluster", "intra_node"), why_bus, hint)
    if alone and training.shared_node.slowdown not in {
        0,
        loops.shared_node(chosen.transport).slowdown,
    }:
        yield _said(document, ("training", "shared_node", "slowdown"), why, hint)
    if training.interference.bus not in {0, usual.bus}:
        key_path = ("training", "interference", "bus")
        if alone and not chosen.stages:
            yield _said(document, key_path, f"{why}, whose collectives cross no bus", hint)
        elif training.concurrent_collectives == 2:
            why, hint = ": two collectives at a time are simulated at the bus's own rate", "write 1"
            yield _said(document, ("training", "interference", "bus"), why, hint)
    network = document.data["cluster"].get("network")
    if cluster.nodes == 1 and isinstance(network, dict) and chosen.server_hosts == "nodes":
        why = ": one node sends nothing over it"
        yield _said(document, ("cluster", "network"), why, "name any link, or set cluster.nodes")


def _buckets(document: Document, file: ScenarioFile) -> Iterator[Problem]:
    if file.training.overlap == "by_tensor" and file.ddp.value(DdpBuckets) != DdpBuckets():
        why = ": training.overlap is by_tensor, which makes every tensor a bucket"
        yield _said(document, ("ddp",), why, "leave one of the two out")


def _streams(document: Document, training: Training) -> Iterator[Problem]:
    if training.side_slowdown != 1 and training.encode_on != "side":
        why = ": encoding runs on the compute stream"
        yield _said(document, ("training", "side_slowdown"), why, "write encode_on: side")


def _two_at_a_time(document: Document, cluster: Cluster, training: Training) -> Iterator[Problem]:
    if training.concurrent_collectives == 1:
        return
    key_path: Keys = ("training", "concurrent_collectives")
    chosen = cluster.collectives
    by_library = {"textbook": "ring", "gloo": "gloo_ring", "mpich": "ring"}
    algorithms: set[str] = {chosen.all_reduce, chosen.all_gather}
    if chosen.all_gather == "auto" or (chosen.all_reduce == "auto" and chosen.transport != "mpich"):
        algorithms.add(by_library.get(chosen.transport, ""))
    if not algorithms & _OVERLAPPING:
        why = f": no algorithm here is a ring, and {chosen.transport} runs all others one by one"
        hint = "write 1, or set all_reduce or all_gather to ring or gloo_ring"
        yield _said(document, key_path, why, hint, value=2)
    elif cluster.workers == 2 and "ring" not in algorithms:
        why = ": Gloo's rings of two ranks run one by one here"
        yield _said(document, key_path, why, "write 1, or set cluster.nodes", value=2)


def _one_bucket(
    document: Document, cluster: Cluster, training: Training, model: ModelEntry, buckets: DdpBuckets
) -> Iterator[Problem]:
    """Warning for a gradient in a single bucket; a user's model is counted only when built."""
    count = sum(math.prod(layer.shape) for layer in model.layers) or model.parameters
    if count is None:
        return
    if buckets.cap != DdpBuckets().cap and 4 * count < buckets.cap:
        above = f" is above the gradient ({4 * count:,} bytes), which is one bucket"
        yield document.problem(("ddp", "bucket"), above, "set it below that, or leave it out")
    if 4 * count > buckets.first:
        return
    why = f": the gradient ({4 * count:,} bytes) is a single bucket"
    hint = "set ddp.bucket below that, or leave it out"
    if training.overlap == "none":
        yield _said(document, ("training", "overlap"), why, hint, value="none")
    if training.concurrent_collectives == 2:
        yield _said(document, ("training", "concurrent_collectives"), why, hint, value=2)
    if training.encode_on != "compute" and training.side_slowdown == 1:
        yield _said(document, ("training", "encode_on"), why, hint, value=training.encode_on)
    usual = loops.interference(cluster.collectives.transport)
    for name in ("computation", "bus"):
        if getattr(training.interference, name) not in {0, getattr(usual, name)}:
            yield _said(document, ("training", "interference", name), why, hint)


def _randomness(document: Document, cluster: Cluster, training: Training) -> Iterator[Problem]:
    noise, key_path = training.noise, ("training", "noise")
    stated = (document.data.get("training") or {}).get("noise") or {}
    if stated and not matters(noise) and not {"skew", "skew_range"} & {*stated}:
        why = ": variation is 0 and no worker is ever slow"
        hint = "set variation, or slow_probability and slow_factor"
        yield _said(document, key_path, why, hint)
    elif noise is not None and not slows(noise):
        if noise.slow_probability > 0:
            why, hint = ": slow_factor is 1", "set slow_factor"
            yield _said(document, (*key_path, "slow_probability"), why, hint)
        if noise.slow_factor != 1:
            why, hint = ": slow_probability is 0", "set slow_probability"
            yield _said(document, (*key_path, "slow_factor"), why, hint)
    default = Training().iterations
    differ = random_settings(cluster, training) or timed_settings(cluster)
    if training.iterations != default and not differ:
        why = ": nothing is random or changes with time, so one iteration is enough"
        hint = "set training.noise, or a link with jitter, sampled loss or a trace"
        yield _said(document, ("training", "iterations"), why, hint)


def _draws(document: Document, cluster: Cluster, training: Training) -> Iterator[Problem]:
    """Warnings for means over too few random events."""
    random, iterations = random_settings(cluster, training), training.iterations
    if random and iterations < FEWEST:
        key_path: Keys = ("training", "iterations")
        yield document.problem(
            key_path,
            f" = {iterations}: the mean of so few random iterations is mostly chance "
            f"({', '.join(map(dotted, random))})",
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
            f"{float(expected):.2g} slow workers are expected in total ({cluster.workers} workers, "
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
            f"{cluster.device.name} is for whole steps, including the optimiser",
            "give `compute:` without it, or leave training.optimizer out",
        )


def _precision(
    document: Document, file: ScenarioFile, cluster: Cluster, training: Training
) -> Iterator[Problem]:
    if file.compute is None and training.precision == "bf16":
        for _, _, device in cluster.kinds:
            if device.processor == "gpu" and "tf32" not in device.precisions:
                why = f" = 'bf16': no times are known for {device.name}, so it gets those of fp16"
                hint = "write fp16 if the board has no bfloat16, as NVIDIA's before Ampere"
                yield document.problem(("training", "precision"), why, hint)
    if file.compute is not None and training.precision != "fp32":
        why = ": the times under `compute` are taken as they are"
        hint = "leave one of the two out"
        yield _said(document, ("training", "precision"), why, hint, value=training.precision)


def _strategy(document: Document, cluster: Cluster, training: Training) -> Iterator[Problem]:
    nothing = training.optimizer_state == "none" and training.gradients == "fp32"
    nothing = nothing and training.strategy == "zero1"
    if training.strategy != "ddp" and (cluster.workers == 1 or nothing):
        alone = ": one worker has the whole optimizer"
        why = alone if cluster.workers == 1 else " on memory: the optimizer has no state"
        key_path: Keys = ("training", "strategy")
        yield _said(document, key_path, why, "leave it out", value=training.strategy)


def _idle_processors(document: Document, cluster: Cluster, training: Training) -> Iterator[Problem]:
    """Warnings about `cluster.host`, `cluster.sums`, `library` and `training.on_host`."""
    stated = document.data["cluster"]
    if stated.get("host") not in (None, NONE):
        yield from _host(document, cluster, training)
    if stated.get("sums") not in (None, NONE):
        yield from _sums(document, cluster)
    yield from _library(document, cluster.collectives)
    yield from _on_host(document, cluster, training)


def warn_of_idle_sums(scenario: Scenario, profiles: Sequence[TrafficProfile]) -> None:
    """Warn of changed rates for types that no method adds, known only from the traffic."""
    added = {
        record.dtype if record.dtype in DTYPES else "float32"
        for profile in profiles
        for _, _, exchange in weighted(profile)
        for record in exchange.collectives
        if record.kind == "all_reduce"
    }
    usual, _ = defaults(scenario.cluster.collectives)
    for dtype in DTYPES:
        if dtype not in added and getattr(scenario.cluster.sums, dtype) not in {
            None,
            getattr(usual, dtype),
        }:
            text = f"cluster.sums.{dtype} has no effect: no method here adds {dtype}; leave it out"
            warn_once(Path(scenario.name), text)


def _said(
    document: Document, key_path: Keys, why: str, hint: str, *, value: object = None
) -> Problem:
    shown = "" if value is None else f" = {value!r}"
    return document.problem(key_path, f"{shown} has no effect{why}", hint)


def _host(document: Document, cluster: Cluster, training: Training) -> Iterator[Problem]:
    host, key_path = cluster.host, ("cluster", "host")
    stated = document.data["cluster"]["host"]
    named = isinstance(stated, str)
    if host is None:
        if named:
            why = ": this transport's messages cost the host nothing"
            yield _said(document, key_path, why, "leave it out", value=stated)
        return
    if cluster.workers == 1:
        yield _said(document, key_path, ": one worker alone sends nothing", "set cluster.nodes")
    elif not any(getattr(host, price) for price in PRICES):
        why, hint = ": nothing costs any time", "set per_message, per_byte, per_call or dispatch"
        yield _said(document, key_path, why, hint)
    chosen = cluster.collectives
    gathers = chosen.transport if chosen.all_gather == "auto" else chosen.all_gather
    if (
        "per_copied_byte" in stated
        and host.per_copied_byte
        and gathers not in {"gloo", "gloo_ring"}
    ):
        why = ": only Gloo's all-gather copies what it gathered"
        hint = "leave it out, or set all_gather to gloo_ring"
        yield _said(document, (*key_path, "per_copied_byte"), why, hint)
    reduces = chosen.transport if chosen.all_reduce == "auto" else chosen.all_reduce
    if (
        (named or "per_received_byte" in stated)
        and host.per_received_byte
        and reduces not in {"gloo", "gloo_ring"}
    ):
        why = ": only the segments of Gloo's ring all-reduce wait for it"
        hint = "leave it out, or set all_reduce to gloo_ring"
        place = key_path if named else (*key_path, "per_received_byte")
        yield _said(document, place, why, hint)
    if host.in_flight != Host().in_flight and not host.interleaved:
        why = ": no message costs any processor time"
        hint = "set per_message, per_byte or per_call, or leave it out"
        yield _said(document, (*key_path, "in_flight"), why, hint, value=host.in_flight)
    if host.ranks == "all" and host.cores == MANY and cluster.nodes > 1:
        why = ": each process has its own core"
        yield _said(document, (*key_path, "ranks"), why, "set cores, or leave it out", value="all")
    if host.ranks == "all" and cluster.nodes == 1:
        why = ": there is only one machine"
        yield _said(document, (*key_path, "ranks"), why, "leave it out", value="all")
    if host.interleaved and training.concurrent_collectives == 2:
        why = ": with cluster.host, collectives run one at a time"
        hint = "write 1, or leave cluster.host out"
        yield _said(document, ("training", "concurrent_collectives"), why, hint, value=2)


def _library(document: Document, chosen: Collectives) -> Iterator[Problem]:
    if f"{chosen.transport}_{chosen.library}" not in transports():
        newest = Collectives().library
        if chosen.library != newest:
            key_path = ("cluster", "collectives", "library")
            why = f": no known figure of {chosen.transport} differs between generations"
            yield _said(document, key_path, why, "leave it out", value=chosen.library)


def _cost(document: Document, file: ScenarioFile) -> Iterator[Problem]:
    groups = file.cluster.groups
    if file.cost is not None and groups and all(group.per_hour for group in groups):
        why = ": each of cluster.groups has its own"
        hint = "leave it out, or leave out per_hour in the groups that it is meant for"
        yield _said(document, ("cost", "per_hour"), why, hint)


def _sums(document: Document, cluster: Cluster) -> Iterator[Problem]:
    chosen, key_path = cluster.collectives, ("cluster", "sums")
    reduces: str = chosen.transport if chosen.all_reduce == "auto" else chosen.all_reduce
    if cluster.workers == 1:
        why = ": one worker alone receives nothing"
        yield _said(document, key_path, why, "set cluster.nodes")
    elif reduces.startswith("nccl") and not servers_add(chosen):
        why = ": the bandwidths of NCCL's tuner include it"
        hint = "leave it out, or set all_reduce to another algorithm"
        yield _said(document, key_path, why, hint)


def _on_host(document: Document, cluster: Cluster, training: Training) -> Iterator[Problem]:
    host, key_path = cluster.host, ("training", "on_host")
    if not (document.data.get("training") or {}).get("on_host"):
        return
    if host is None or host.cores == MANY:
        why, hint = ": the number of cores is unknown", "set cluster.host.cores"
        yield _said(document, key_path, why, hint)
    elif training.machines(cluster) is None:
        together = cluster.workers if host.ranks == "all" else cluster.devices_per_node
        why = f": each worker of a machine ({together} on {host.cores} cores) has one to itself"
        yield _said(document, key_path, why, "leave it out, or set cluster.host.cores")
    elif "optimizer" in training.on_host and not training.optimizer:
        why = " on the optimizer: its time is 0, or part of the backward pass"
        yield _said(document, key_path, why, "set training.optimizer, or leave optimizer out")
