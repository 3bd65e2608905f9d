"""Settings without effect beside the others, or with another than it seems, and values that
probably have a wrong unit.

Each is a warning that names the setting: a knob that does nothing is worse than an error, and so
are random settings drawn too few times. Settings of processors stand last.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

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
from gcsim.scenarios.sections.network_words import ETHERNET
from gcsim.scenarios.sections.recorded import warn_once
from gcsim.scenarios.sections.transports import NONE, defaults, servers_add, transports
from gcsim.simulator.cluster import Cluster, Collectives
from gcsim.simulator.host import DTYPES, MANY, PRICES, Host
from gcsim.simulator.training import Framework, Training
from gcsim.traces.models.registry import ModelEntry
from gcsim.traces.profile import TrafficProfile, weighted

FEWEST = 10  # iterations, and events in them, below which a mean is mostly luck
Idle = tuple[str | Keys, str, str] | tuple[str | Keys, str, str, object]
"""Setting without effect, dotted or as keys, reason, suggestion, and its value if it is shown."""
FASTEST_NIC = 200_000_000_000  # bytes per second: 1.6 Tbit/s, twice the fastest Ethernet on sale
LONGEST_PASSES = 3600  # seconds of the passes of one iteration
_OVERLAPPING = {"ring", "gloo_ring"}
"""Algorithms of which two may run at a time; MPICH chooses one where blocks are equal and long."""


def doubtful(
    document: Document,
    file: ScenarioFile,
    cluster: Cluster,
    training: Training,
    *,
    model: ModelEntry,
    buckets: DdpBuckets,
    compressors: Sequence[CompressorChoice],
) -> list[Problem]:
    """Return such settings in text order, as problems to warn of."""
    found = [
        *_algorithms(document, cluster.collectives),
        *_servers(cluster.collectives, compressors),
        *_racks(cluster),
        *_topology(document.data["cluster"], cluster, training),
        *_nics(document, cluster),
        *_bus(document.data["cluster"], cluster, training),
        *_idle_processors(document.data, cluster, training),
        *_training(file, cluster, training),
        *_two_at_a_time(cluster, training),
        *_one_bucket(document, cluster, training, model, buckets),
        *_randomness(document, cluster, training),
        *_draws(document, cluster, training),
        *_optimizer(document, file, cluster, training),
        *_precision(document, file, cluster, training),
        *_cost(file),
        *_implausible(document, file, cluster),
    ]
    return document.sorted(
        one if isinstance(one, Problem) else _said(document, *one) for one in found
    )


def _said(
    document: Document, setting: str | Keys, why: str, hint: str, value: object = None
) -> Problem:
    shown = "" if value is None else f" = {value!r}"
    return document.problem(setting, f"{shown} has no effect{why}", hint)


def _algorithms(document: Document, chosen: Collectives) -> Iterator[Idle]:
    named = "auto" not in (chosen.all_reduce, chosen.all_gather)
    stated = ("cluster", "collectives", "transport") in document.values
    if stated and named and chosen.transport in {"nccl", "mpich"}:
        why = ": all_reduce and all_gather name their algorithms"
        hint = "leave them out, or write auto"
        yield "cluster.collectives.transport", why, hint, chosen.transport
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
        yield "cluster.collectives.pipeline_block", why, hint


def _servers(chosen: Collectives, compressors: Sequence[CompressorChoice]) -> Iterator[Idle]:
    served = {chosen.all_reduce, chosen.all_gather}
    pushes = any(compressor_class(each.kind).about.without_server for each in compressors)
    if not pushes:
        why = ": no method here pushes to servers"
        hint = "gcsim list compressors names those that do"
        if chosen.push_pull != "auto":
            yield "cluster.collectives.push_pull", why, hint, chosen.push_pull
        if chosen.names_servers and "parameter_server" not in served:
            hint += ", or set all_reduce or all_gather to parameter_server"
            yield "cluster.collectives.servers", why, hint
    if chosen.server_network is not None and chosen.server_hosts != "dedicated":
        why = ": the servers run on the nodes and use their NICs"
        yield "cluster.collectives.server_network", why, "write servers: dedicated"


def _racks(cluster: Cluster) -> Iterator[Idle]:
    racks = cluster.racks
    if racks is None:
        return
    if racks.nodes >= cluster.nodes:
        why = f": one rack of {racks.nodes} holds all {cluster.nodes} nodes"
        yield "cluster.racks.nodes", why, "make racks smaller than the cluster"
    elif racks.pod and racks.nodes * racks.pod >= cluster.nodes:
        why = f": one pod of {racks.pod} racks holds all {cluster.nodes} nodes"
        yield "cluster.racks.pod", why, "make pods smaller"
    if racks.pod is None and racks.pod_uplinks > 1:
        hint = "write racks.pod and racks.pod_uplink, or leave it out"
        yield "cluster.racks.pod_uplinks", ": there are no pods", hint


def _topology(stated: Mapping[str, Any], cluster: Cluster, training: Training) -> Iterator[Idle]:
    transport = cluster.collectives.transport
    one_nic = f": the transport {transport!r} uses one NIC"
    if cluster.shared_bus and cluster.devices_per_node == 1:
        why = ": a node has one device, which has its bus to itself"
        yield "cluster.shared_bus", why, "set cluster.devices_per_node"
    nics = stated.get("nics_per_node", 1)
    for number, group in enumerate(stated.get("groups") or ()):
        own, used = nics if number == 0 else group.get("nics_per_node", 1), cluster.nics_per_node
        if own > used:
            few = f": in all nodes, NCCL uses the number of the node with the fewest ({used})"
            why = few if transport == "nccl" else one_nic
            yield ("cluster", "groups", number, "nics_per_node"), why, "leave it out", own
    if stated.get("batch", "equal") != "equal" and not cluster.groups:
        yield "cluster.batch", ": there are no groups", "leave it out", "by_speed"
    if not cluster.groups and nics != 1 and (cluster.nodes == 1 or nics != cluster.nics_per_node):
        why = ": there is one node" if cluster.nodes == 1 else one_nic
        yield "cluster.nics_per_node", why, "leave it out"
    for node, nic in cluster.nics.items():
        if nic == cluster.network:
            why = f": it is {nic.name}, as cluster.network"
            yield ("cluster", "nics", str(node)), why, "leave it out"
    if training.between != "workers" and cluster.ranks_in(training.between) == cluster.workers > 1:
        why = f": a {training.between[:-1]} has one device"
        yield "training.between", why, "set cluster.devices_per_node"
    fixed = {Fraction(0), loops.between_nodes(Framework(), transport).per_step}
    for code in ("reducer", "hook"):
        if cluster.nodes == 1 and getattr(training, code).per_step not in fixed:
            where = f"training.framework.{code}.per_step"
            yield where, ": it applies between nodes only", "set cluster.nodes"


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


def _bus(stated: Mapping[str, Any], cluster: Cluster, training: Training) -> Iterator[Idle]:
    """Find links inside a node that nothing crosses, and settings of its other devices."""
    chosen = cluster.collectives
    usual = loops.interference(chosen.transport)
    alone = cluster.devices_per_node == 1
    why, hint = ": a node has one device", "set cluster.devices_per_node, or leave it out"
    by_cores = cluster.device.processor == "cpu" or training.machines(cluster) is not None
    shared = loops.shared_node(chosen.transport)
    if training.shared_node != shared and not alone and by_cores:
        why_cpu = ": the ranks of a node share its cores (cluster.host.cores)"
        yield "training.shared_node", why_cpu, "leave it out"
    if not cluster.crosses_intra_node and "intra_node" in stated:
        yield "cluster.intra_node", f"{why}, and nothing is copied through its host", hint
    if alone and training.shared_node.slowdown not in {0, shared.slowdown}:
        yield "training.shared_node.slowdown", why, hint
    if training.interference.bus not in {0, usual.bus}:
        bus = "training.interference.bus"
        if alone and not chosen.stages:
            yield bus, f"{why}, whose collectives cross no bus", hint
        elif training.concurrent_collectives == 2:
            why_two = ": two collectives at a time are simulated at the bus's own rate"
            yield bus, why_two, "write 1"
    network = stated.get("network")
    if cluster.nodes == 1 and isinstance(network, dict) and chosen.server_hosts == "nodes":
        why = ": one node sends nothing over it"
        yield "cluster.network", why, "name any link, or set cluster.nodes"


def _training(file: ScenarioFile, cluster: Cluster, training: Training) -> Iterator[Idle]:
    if file.training.overlap == "by_tensor" and file.ddp.value(DdpBuckets) != DdpBuckets():
        why = ": training.overlap is by_tensor, which makes every tensor a bucket"
        yield "ddp", why, "leave one of the two out"
    if training.side_slowdown != 1 and training.encode_on != "side":
        why = ": encoding runs on the compute stream"
        yield "training.side_slowdown", why, "write encode_on: side"
    nothing = training.optimizer_state == "none" and training.gradients == "fp32"
    nothing = nothing and training.strategy == "zero1"
    if training.strategy != "ddp" and (cluster.workers == 1 or nothing):
        alone = ": one worker has the whole optimizer"
        why = alone if cluster.workers == 1 else " on memory: the optimizer has no state"
        yield "training.strategy", why, "leave it out", training.strategy


def _two_at_a_time(cluster: Cluster, training: Training) -> Iterator[Idle]:
    if training.concurrent_collectives == 1:
        return
    setting, chosen = "training.concurrent_collectives", cluster.collectives
    by_library = {"textbook": "ring", "gloo": "gloo_ring", "mpich": "ring"}
    algorithms: set[str] = {chosen.all_reduce, chosen.all_gather}
    if chosen.all_gather == "auto" or (chosen.all_reduce == "auto" and chosen.transport != "mpich"):
        algorithms.add(by_library.get(chosen.transport, ""))
    if not algorithms & _OVERLAPPING:
        why = f": no algorithm here is a ring, and {chosen.transport} runs all others one by one"
        yield setting, why, "write 1, or set all_reduce or all_gather to ring or gloo_ring", 2
    elif cluster.workers == 2 and "ring" not in algorithms:
        why = ": Gloo's rings of two ranks run one by one here"
        yield setting, why, "write 1, or set cluster.nodes", 2


def _one_bucket(
    document: Document, cluster: Cluster, training: Training, model: ModelEntry, buckets: DdpBuckets
) -> Iterator[Problem | Idle]:
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
        yield "training.overlap", why, hint, "none"
    if training.concurrent_collectives == 2:
        yield "training.concurrent_collectives", why, hint, 2
    if training.encode_on != "compute" and training.side_slowdown == 1:
        yield "training.encode_on", why, hint, training.encode_on
    usual = loops.interference(cluster.collectives.transport)
    for name in ("computation", "bus"):
        if getattr(training.interference, name) not in {0, getattr(usual, name)}:
            yield f"training.interference.{name}", why, hint


def _randomness(document: Document, cluster: Cluster, training: Training) -> Iterator[Idle]:
    noise = training.noise
    stated = (document.data.get("training") or {}).get("noise") or {}
    if stated and not matters(noise) and not {"skew", "skew_range"} & {*stated}:
        why = ": variation is 0 and no worker is ever slow"
        yield "training.noise", why, "set variation, or slow_probability and slow_factor"
    elif noise is not None and not slows(noise):
        if noise.slow_probability > 0:
            yield "training.noise.slow_probability", ": slow_factor is 1", "set slow_factor"
        if noise.slow_factor != 1:
            yield "training.noise.slow_factor", ": slow_probability is 0", "set slow_probability"
    default = Training().iterations
    differ = random_settings(cluster, training) or timed_settings(cluster)
    if training.iterations != default and not differ:
        why = ": nothing is random or changes with time, so one iteration is enough"
        hint = "set training.noise, or a link with jitter, sampled loss or a trace"
        yield "training.iterations", why, hint


def _draws(document: Document, cluster: Cluster, training: Training) -> Iterator[Problem]:
    """Warnings for means over too few random events."""
    random, iterations = random_settings(cluster, training), training.iterations
    if random and iterations < FEWEST:
        yield document.problem(
            ("training", "iterations"),
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
        enough = math.ceil(FEWEST / (noise.slow_probability * cluster.workers))
        yield document.problem(
            ("training", "noise", "slow_probability"),
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
        yield document.problem(
            ("training", "optimizer"),
            f" counts twice: the measured rate of {model} on "
            f"{cluster.device.name} is for whole steps, including the optimiser",
            "give `compute:` without it, or leave training.optimizer out",
        )


def _precision(
    document: Document, file: ScenarioFile, cluster: Cluster, training: Training
) -> Iterator[Problem | Idle]:
    if file.compute is None and training.precision == "bf16":
        for _, _, device in cluster.kinds:
            if device.processor == "gpu" and "tf32" not in device.precisions:
                why = f" = 'bf16': no times are known for {device.name}, so it gets those of fp16"
                hint = "write fp16 if the board has no bfloat16, as NVIDIA's before Ampere"
                yield document.problem(("training", "precision"), why, hint)
    if file.compute is not None and training.precision != "fp32":
        why = ": the times under `compute` are taken as they are"
        yield "training.precision", why, "leave one of the two out", training.precision


def _idle_processors(
    stated: Mapping[str, Any], cluster: Cluster, training: Training
) -> Iterator[Idle]:
    """Find settings of `cluster.host`, `cluster.sums`, `library` and `training.on_host`."""
    if stated["cluster"].get("host") not in (None, NONE):
        yield from _host(stated["cluster"]["host"], cluster, training)
    if stated["cluster"].get("sums") not in (None, NONE):
        yield from _sums(cluster)
    chosen, newest = cluster.collectives, Collectives().library
    if f"{chosen.transport}_{chosen.library}" not in transports() and chosen.library != newest:
        why = f": no known figure of {chosen.transport} differs between generations"
        yield "cluster.collectives.library", why, "leave it out", chosen.library
    if (stated.get("training") or {}).get("on_host"):
        yield from _on_host(stated.get("compute") or {}, cluster, training)


_UNSTABLE = 2  # ratio of a warm-up's highest loss to its first one that is warned of


def warn_of_traffic(scenario: Scenario, profiles: Sequence[TrafficProfile]) -> None:
    """Warn of what only the traffic shows: a warm-up whose loss rises, and changed rates for types
    that no method adds."""
    losses = profiles[0].gradients.get("warmup_losses")
    if isinstance(losses, list | tuple) and losses and max(losses) > _UNSTABLE * losses[0]:
        rate = profiles[0].gradients.get("learning_rate")
        warn_once(
            Path(scenario.name),
            f"the loss rises from {losses[0]:.3g} to {max(losses):.3g} in the warm-up, so update "
            "errors, and bytes that depend on gradients, are not those of a training that learns; "
            f"choose a lower gradients.learning_rate than {rate}",
        )
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


def _host(stated: Any, cluster: Cluster, training: Training) -> Iterator[Idle]:
    host, setting = cluster.host, "cluster.host"
    named = isinstance(stated, str)
    if host is None:
        if named:
            why = ": this transport's messages cost the host nothing"
            yield setting, why, "leave it out", stated
        return
    if cluster.workers == 1:
        yield setting, ": one worker alone sends nothing", "set cluster.nodes"
    elif not any(getattr(host, price) for price in PRICES):
        hint = "set per_message, per_byte, per_call or dispatch"
        yield setting, ": nothing costs any time", hint
    chosen = cluster.collectives
    gathers = chosen.transport if chosen.all_gather == "auto" else chosen.all_gather
    gloo = {"gloo", "gloo_ring"}
    if "per_copied_byte" in stated and host.per_copied_byte and gathers not in gloo:
        why = ": only Gloo's all-gather copies what it gathered"
        yield f"{setting}.per_copied_byte", why, "leave it out, or set all_gather to gloo_ring"
    reduces = chosen.transport if chosen.all_reduce == "auto" else chosen.all_reduce
    received = named or "per_received_byte" in stated
    if received and host.per_received_byte and reduces not in gloo:
        why = ": only the segments of Gloo's ring all-reduce wait for it"
        place = setting if named else f"{setting}.per_received_byte"
        yield place, why, "leave it out, or set all_reduce to gloo_ring"
    if host.in_flight != Host().in_flight and not host.interleaved:
        why = ": no message costs any processor time"
        hint = "set per_message, per_byte or per_call, or leave it out"
        yield f"{setting}.in_flight", why, hint, host.in_flight
    if host.ranks == "all" and host.cores == MANY and cluster.nodes > 1:
        why = ": each process has its own core"
        yield f"{setting}.ranks", why, "set cores, or leave it out", "all"
    if host.ranks == "all" and cluster.nodes == 1:
        yield f"{setting}.ranks", ": there is only one machine", "leave it out", "all"
    if host.interleaved and training.concurrent_collectives == 2:
        why = ": with cluster.host, collectives run one at a time"
        yield "training.concurrent_collectives", why, "write 1, or leave cluster.host out", 2


def _cost(file: ScenarioFile) -> Iterator[Idle]:
    groups = file.cluster.groups
    if file.cost is not None and groups and all(group.per_hour for group in groups):
        why = ": each of cluster.groups has its own"
        hint = "leave it out, or leave out per_hour in the groups that it is meant for"
        yield "cost.per_hour", why, hint


def _sums(cluster: Cluster) -> Iterator[Idle]:
    chosen = cluster.collectives
    reduces: str = chosen.transport if chosen.all_reduce == "auto" else chosen.all_reduce
    if cluster.workers == 1:
        yield "cluster.sums", ": one worker alone receives nothing", "set cluster.nodes"
    elif reduces.startswith("nccl") and not servers_add(chosen):
        why = ": the bandwidths of NCCL's tuner include it"
        yield "cluster.sums", why, "leave it out, or set all_reduce to another algorithm"


def _on_host(compute: Mapping[str, Any], cluster: Cluster, training: Training) -> Iterator[Idle]:
    host, setting = cluster.host, "training.on_host"
    if host is None or host.cores == MANY:
        yield setting, ": the number of cores is unknown", "set cluster.host.cores"
    elif training.machines(cluster) is None:
        together = cluster.workers if host.ranks == "all" else cluster.devices_per_node
        why = f": each worker of a machine ({together} on {host.cores} cores) has one to itself"
        yield setting, why, "leave it out, or set cluster.host.cores"
    elif (
        "optimizer" in training.on_host
        and not training.optimizer
        and not compute.keys() & {"recorded", "profile"}
    ):
        why = " on the optimizer: its time is 0, or part of the backward pass"
        yield setting, why, "set training.optimizer, or leave optimizer out"


def _implausible(document: Document, file: ScenarioFile, cluster: Cluster) -> Iterator[Problem]:
    """Find NIC rates and times of passes that no real system has."""
    one = cluster.at_one_nic
    links = [one.network, *one.nics.values()] if cluster.nodes > 1 else []
    most = max((link.bandwidth for link in links if ETHERNET.match(link.name)), default=0)
    if most > FASTEST_NIC:
        rate = ("cluster", "network", "bandwidth")
        yield Problem(
            place=document.place(rate if rate in document.values else rate[:-1]),
            message=f"no NIC has {float(most) * 8e-12:g} Tbit/s",
            hint="the fastest have 0.8 Tbit/s; GB/s are bytes, Gbit/s bits",
        )
    passes = file.compute
    if passes and passes.forward and passes.backward:
        seconds = passes.forward + passes.backward
        if seconds > LONGEST_PASSES:
            yield Problem(
                place=document.place(("compute", "backward")),
                message=f"forward and backward take {float(seconds) / 3600:g} h",
                hint="state the times of one iteration",
            )
