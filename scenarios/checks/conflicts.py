"""Checks for settings that are valid alone but contradict each other.

Examples: nodes and workers outside the cluster, NVLink on a board without it, a transport without
algorithms, copies over a link whose rate changes, faults that leave no worker. Each problem has its
place; nothing is run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import get_args

from gcsim.compressors.options.method import method_of
from gcsim.errors import Problem
from gcsim.scenarios import catalog
from gcsim.scenarios.reading.document import Document, Keys, dotted
from gcsim.scenarios.reading.types import LARGEST_CLUSTER
from gcsim.scenarios.reading.values import Spelled
from gcsim.scenarios.scenario import CompressorChoice
from gcsim.scenarios.sections.cluster import group_key, links_of, random_settings
from gcsim.simulator.cluster import AllGatherAlgorithm, AllReduceAlgorithm, Cluster
from gcsim.simulator.training import Fault, Faults, Strategy, Training

MOST_OVERLAPPING = 256  # most workers with two collectives at a time
MOST_SHARING = 1024  # most different workers that share cores: each computation is an event
_SOME = 6  # algorithms named by a hint


def contradictions(
    document: Document,
    cluster: Cluster,
    training: Training,
    sizes: Sequence[int],
    train: Spelled | None,
) -> list[Problem]:
    """Return the contradictions between sections that are each valid. `sizes`: ascending numbers of
    nodes; `train`: the section, if any."""
    return [
        *_too_many(document, cluster, training),
        *_no_such_nodes(document, cluster, training),
        *_no_algorithm(document, cluster),
        *_switches(document, cluster),
        *_others_buses(document, cluster),
        *_media(document, cluster),
        *_times(document, cluster),
        *_pods(document, cluster),
        *_faults(document, training.faults, sizes),
        *_precision(document, cluster, training),
        *_between(document, cluster, training, sizes),
        *_strategy(document, cluster, training),
        *_groups(document, cluster, training),
        *_clients(document, train),
    ]


def _too_many(document: Document, cluster: Cluster, training: Training) -> Iterator[Problem]:
    key_path: Keys = ("cluster", "devices_per_node")
    if cluster.workers > LARGEST_CLUSTER:
        yield document.problem(
            key_path,
            f" = {cluster.devices_per_node}: {cluster.workers:,} workers in total",
            f"at most {LARGEST_CLUSTER:,}",
        )
    key_path = ("cluster", "collectives", "servers")
    if cluster.servers > LARGEST_CLUSTER:
        yield document.problem(
            key_path, f" = {cluster.servers}: too many", f"at most {LARGEST_CLUSTER:,}"
        )
    key_path = ("training", "concurrent_collectives")
    if training.concurrent_collectives == 2 and cluster.workers > MOST_OVERLAPPING:
        yield document.problem(
            key_path,
            f" = 2 with {cluster.workers:,} workers: overlapping collectives "
            "are simulated message by message, which would take hours",
            f"at most {MOST_OVERLAPPING} workers, or one collective at a time",
        )
    key_path = ("training", "on_host")
    random = random_settings(cluster, training)
    if random and cluster.workers > MOST_SHARING and training.machines(cluster):
        yield document.problem(
            key_path,
            f" with {cluster.workers:,} workers whose times are random "
            f"({', '.join(map(dotted, random))}): shared cores are simulated event by "
            "event, which would take hours",
            f"at most {MOST_SHARING:,} workers, or nothing random",
        )


def _no_such_nodes(document: Document, cluster: Cluster, training: Training) -> Iterator[Problem]:
    key_path: Keys = ("training", "slow_workers")
    for rank in training.slow_workers:
        if rank >= cluster.workers:
            yield Problem(
                place=document.location_of_key((*key_path, str(rank))),
                message=f"{dotted(key_path)}: there is no worker {rank}",
                hint=f"workers count from 0, node by node; the last of {cluster.workers} is "
                f"{cluster.workers - 1}",
            )
    named: list[tuple[str, str, int]] = []
    for table, nodes in (("nics", cluster.nics), ("slow_nodes", training.slow_nodes)):
        key_path = ("cluster" if table == "nics" else "training", table)
        for node in nodes:
            named.append((document.location_of_key((*key_path, str(node))), dotted(key_path), node))
    for number, death in enumerate(training.faults.deaths if training.faults else ()):
        key_path = ("training", "faults", "deaths", number, "node")
        named.append((document.place(key_path), dotted(key_path), death.node))
    for place, name, node in named:
        if node >= cluster.nodes:
            yield Problem(
                place=place,
                message=f"{name}: there is no node {node}",
                hint=f"nodes count from 0; the last of {cluster.nodes} is {cluster.nodes - 1}",
            )


_UNLIKE = "different numbers of devices per node"


def _groups(document: Document, cluster: Cluster, training: Training) -> Iterator[Problem]:
    """Find settings that do not work with groups of different nodes."""
    if not cluster.groups:
        return
    at: Keys = ("cluster", "groups")
    stated = document.data["cluster"]
    by_speed = stated.get("batch") == "by_speed"
    unlike = by_speed or any(group.batch != 1 for group in cluster.groups)
    processors = {group.device.processor for group in cluster.groups} - {None}
    one = "leave one of the two out"
    unsupported: list[tuple[bool, Keys, str, str]] = [
        (len(processors) > 1, at, ": CPUs and GPUs have no transport in common", "take one kind"),
        (
            training.machines(cluster) is not None,
            at,
            ": the workers of a node share its cores",
            "leave cluster.host.cores out",
        ),
        (
            document.data.get("compute") is not None,
            ("compute",),
            " is for one device, but the groups have several",
            "leave it out: each device has its own times",
        ),
        (training.faults is not None, ("training", "faults"), " with cluster.groups", one),
        (
            bool(cluster.sizes) and cluster.collectives.all_reduce == "hierarchical",
            ("cluster", "collectives", "all_reduce"),
            f" = 'hierarchical' with {_UNLIKE}",
            "leave it out: the transport chooses",
        ),
        (
            unlike and training.input is not None,
            ("training", "input"),
            ": groups load batches of different sizes",
            one,
        ),
    ]
    unsupported += [
        (by_speed and "batch_size" in group, (*at, number, "batch_size"), " with by_speed", one)
        for number, group in enumerate(stated["groups"])
    ]
    for so, key_path, message, hint in unsupported:
        if so:
            yield document.problem(key_path, message, hint)


def _no_algorithm(document: Document, cluster: Cluster) -> Iterator[Problem]:
    chosen = cluster.collectives
    if chosen.transport != "custom":
        return
    for key, known in (("all_reduce", AllReduceAlgorithm), ("all_gather", AllGatherAlgorithm)):
        if getattr(chosen, key) == "auto":
            key_path: Keys = ("cluster", "collectives", key)
            names = [name for name in get_args(known) if name != "auto"]
            yield document.problem(
                key_path,
                " = 'auto': the transport 'custom' chooses no algorithm",
                f"name one: {', '.join(names[:_SOME])}, ...",
            )


def _between(
    document: Document, cluster: Cluster, training: Training, sizes: Sequence[int]
) -> Iterator[Problem]:
    """Find settings that exchanges between nodes or racks do not support, and unfilled racks."""
    if training.between == "workers":
        return
    where, of_racks = ("training", "between"), training.between == "racks"
    if of_racks and cluster.racks is None:
        hint = "write cluster.racks: {nodes: 4, uplink: 10gbe}, or between: nodes"
        yield document.problem(where, " = 'racks': the cluster has none", hint)
    elif of_racks and cluster.racks is not None:
        full = cluster.racks.nodes
        if unfilled := [size for size in sizes if size > full and size % full]:
            message = f" = 'racks': {unfilled[0]} nodes do not fill racks of {full}"
            yield document.problem(
                where, message, "make cluster.nodes a multiple of cluster.racks.nodes"
            )
    unlike = "groups" if cluster.groups else "nics"
    others = (
        (cluster.servers > 0, ("cluster", "collectives", "servers"), "parameter servers"),
        (training.concurrent_collectives == 2, ("training", "concurrent_collectives"), "2"),
        (of_racks and getattr(cluster, unlike), ("cluster", unlike), "different nodes"),
        (bool(cluster.sizes), ("cluster", "groups"), _UNLIKE),
    )
    for stated, key_path, what in others:
        if stated:
            yield document.problem(
                where,
                f" = {training.between!r} with {dotted(key_path)} ({what}): not simulated together",
                "leave one of the two out",
            )


def _strategy(document: Document, cluster: Cluster, training: Training) -> Iterator[Problem]:
    copied = training.strategy == "zero3" and 1 not in (cluster.nodes, cluster.devices_per_node)
    copied &= not cluster.sizes
    for key, so, hint in (
        ("gathered", training.gathered == "stored" or training.strategy in ("zero2", "zero3"),
         "write strategy: zero3, or zero2"),
        ("secondary", copied or not training.secondary,
         "write strategy: zero3, with several nodes of several devices, as many in each"),
    ):  # fmt: skip
        if not so:
            why = f" with strategy {training.strategy}: it does not gather weights that way"
            yield document.problem(("training", key), why, hint)
    for key_path, why in against_sharding(cluster, training) if training.strategy != "ddp" else ():
        yield document.problem(
            ("training", "strategy"),
            f" = {training.strategy!r} with {dotted(key_path)}: {why}",
            "leave one of the two out",
        )


def against_sharding(cluster: Cluster, training: Training) -> Iterator[tuple[Keys, str]]:
    """Yield the settings that a sharded optimizer does not support, and why."""
    collectives: Keys = ("cluster", "collectives")
    if cluster.servers:
        yield (*collectives, "servers"), "parameter servers are not simulated with it"
    if training.local_steps > 1:
        yield ("training", "local_steps"), "a step without an exchange needs the whole optimizer"
    if training.concurrent_collectives == 2:
        yield ("training", "concurrent_collectives"), "the gather of weights runs alone"
    if training.faults is not None:
        yield ("training", "faults"), "a dead worker's part of the optimizer is lost"
    if training.strategy == "hsdp" and 1 in (cluster.nodes, cluster.devices_per_node):
        yield (
            ("cluster",),
            "it shards inside nodes, so it needs several nodes with several devices each",
        )
    if training.strategy == "hsdp" and cluster.sizes:
        yield ("cluster", "groups"), "its nodes have different numbers of devices"
    if training.sharded:
        conflicting: tuple[tuple[bool, Keys], ...] = (
            (training.input is not None, ("training", "input")),
            (training.between != "workers", ("training", "between")),
            (training.overlap in ("none", "by_tensor"), ("training", "overlap")),
            (training.encode_on != "compute", ("training", "encode_on")),
            (bool(training.on_host), ("training", "on_host")),
            (cluster.collectives.transport in ("mpich", "custom"), (*collectives, "transport")),
        )
        for so, key_path in conflicting:
            if so:
                yield key_path, "not simulated together"


def shardable(
    choice: CompressorChoice, cluster: Cluster, training: Training, strategy: Strategy
) -> bool:
    """Return whether gcsim can predict the method's time with this strategy."""
    training = replace(training, strategy=strategy)
    return unshardable(choice, strategy) is None and not any(against_sharding(cluster, training))


def unshardable(choice: CompressorChoice, strategy: Strategy) -> str | None:
    """Return the state of a method that a strategy cannot shard; None if it can shard all."""
    if strategy == "ddp":
        return None
    if has_optimizer(choice):
        return "own optimizer state"
    method, parameters = method_of(choice.kind, choice.parameters)
    state = method.memory(parameters)
    if strategy == "hsdp":
        return "matrices" if "matrix" in state else None
    if strategy != "zero1" and not state.startswith("none"):
        return "memory of the whole gradient"
    return None


def has_optimizer(choice: CompressorChoice) -> bool:
    """Return whether a method keeps optimizer state itself, unsharded on each worker: it has its
    own momentum, or local steps between exchanges."""
    method, parameters = method_of(choice.kind, choice.parameters)
    own, _ = method.momentum(parameters)
    return own > 0 or method.properties(parameters).replicas != "identical"


_NEEDS = {
    "nccl_nvls_simple": "intra_node",
    "nccl_nvls_tree_simple": "intra_node",
    "nccl_collnet_simple": "network",
}
"""Link whose switch does the additions, by algorithm."""


def _switches(document: Document, cluster: Cluster) -> Iterator[Problem]:
    """Find stated algorithms of NCCL that need in-network reduction, without a switch that adds."""
    for key in ("all_reduce", "all_gather"):
        chosen = getattr(cluster.collectives, key)
        if chosen not in _NEEDS:
            continue
        from gcsim.simulator.collectives import nccl  # of few scenarios

        if chosen in {mode.name for mode in nccl.enabled(key, cluster)}:
            continue
        place = _NEEDS[chosen]
        link = getattr(cluster.at_one_nic, place)
        if link.switch_adds is not None:
            yield document.problem(
                ("cluster", "collectives", key),
                f" = {chosen!r}: NCCL has it between nodes if their network sums (SHARP) and, for "
                "a gather, if each device has a NIC, at most 32 per node",
                "nccl_ring_simple",
            )
        else:
            yield document.problem(
                ("cluster", "collectives", key),
                f" = {chosen!r}: no switch of cluster.{place} ({link.name}) sums",
                f"nccl_ring_simple, or {_that_adds(cluster, place)}",
            )


def _that_adds(cluster: Cluster, place: str) -> str:
    """Return the setting with which a switch of the link at `place` adds."""
    if place == "network":
        link = f"{{like: {cluster.at_one_nic.network.name}, switch_adds: 1}}"
        return f"a link whose switch sums: cluster.network: {link}"
    if cluster.devices_per_node == 1:
        return "several devices in a node, whose switch sums"
    buses = [device.bus for _, _, device in cluster.kinds]
    if all(map(_adds, buses)):
        return f"a link whose switch sums: cluster.intra_node: {buses[0]}"
    names = (name for name, device in catalog.devices().items() if _adds(device.bus))
    return f"a device whose link sums, such as {next(names)}"


def _adds(bus: str | None) -> bool:
    return bus is not None and catalog.link(bus).switch_adds is not None


def _others_buses(document: Document, cluster: Cluster) -> Iterator[Problem]:
    """Find catalogue NVLink and xGMI links of other boards, and switches that add although the
    device's own link has none. PCIe fits all boards; other figures describe a user's own board."""
    for number, (first, _, device) in enumerate(cluster.kinds):
        link = cluster.buses.get(first, cluster.intra_node)
        if device.bus is None or link.name.removesuffix("_ideal") == device.bus:
            continue
        named = link.name.startswith(("nvlink", "xgmi")) and link.name in catalog.links()
        adds = link.switch_adds is not None and not _adds(device.bus)
        if named or adds:
            own = "" if named else ", whose switch does not sum"
            hint = f"write {device.bus}"
            if device.bus.startswith("pcie"):
                hint += ", or a bridge's own figures: {like: nvlink3, bandwidth: 56 GB/s}"
            message = f" = {link.name}: {device.name} has {device.bus}{own}"
            yield document.problem(group_key(number, "intra_node"), message, hint)


def _media(document: Document, cluster: Cluster) -> Iterator[Problem]:
    medium = cluster.network.shared
    for key_path, link in links_of(cluster).items():
        if key_path == ("cluster", "network"):
            continue
        if link.shared:
            message = f": {link.name} is one medium for all nodes"
            yield document.problem(key_path, message, "it can only be cluster.network", of_key=True)
        elif link.up is not None and key_path[-1] in {"intra_node", "uplink", "pod_uplink"}:
            message = f": {link.name} is an access link with two different directions"
            hint = "it connects a node, as cluster.network or a NIC"
            yield document.problem(key_path, message, hint, of_key=True)
    if not medium:
        return
    name, hint = cluster.network.name, "leave one of the two out"
    for key, so in (("racks", "there are no racks"), ("nics", "no NIC differs")):
        if getattr(cluster, key):
            message = f": all nodes share the medium of cluster.network ({name}), so {so}"
            yield document.problem(("cluster", key), message, hint, of_key=True)


def _pods(document: Document, cluster: Cluster) -> Iterator[Problem]:
    """Find `pod` or `pod_uplink` without the other, and several uplinks with a changing rate."""
    racks = cluster.racks
    if racks is None:
        return
    for key, other in (("pod", "pod_uplink"), ("pod_uplink", "pod")):
        if getattr(racks, key) is not None and getattr(racks, other) is None:
            hint = f"write racks.{other}, or leave both out"
            key_path = ("cluster", "racks", key)
            yield document.problem(key_path, f" without {other}", hint, of_key=True)
    for key, uplink in (("uplinks", racks.uplink), ("pod_uplinks", racks.pod_uplink)):
        if getattr(racks, key) > 1 and uplink is not None and uplink.trace is not None:
            message = f" = {getattr(racks, key)}: the rate of {uplink.name} changes over time"
            hint = "write one uplink with the rates of all"
            yield document.problem(("cluster", "racks", key), message, hint)


def _times(document: Document, cluster: Cluster) -> Iterator[Problem]:
    """Find links whose rate changes over time where that is not supported."""
    link, racks = cluster.intra_node, cluster.racks
    if link.timed and cluster.collectives.stages:
        message = f": {link.name} changes over time, but copies between device and host cannot"
        hint = "leave trace and grant out, or set cluster.collectives.host_staging to false"
        yield document.problem(("cluster", "intra_node"), message, hint, of_key=True)
    levels = racks.levels if racks else ()
    for key, (_, uplink) in zip(("uplink", "pod_uplink"), levels, strict=False):
        if uplink.grant:
            message = f": {uplink.name} waits for grants, which no switch does"
            key_path = ("cluster", "racks", key)
            yield document.problem(key_path, message, "leave grant out", of_key=True)


# --- faults --------------------------------------------------------------------------------------


def _faults(document: Document, faults: Faults | None, sizes: Sequence[int]) -> Iterator[Problem]:
    if faults is None:
        return
    for number, death in enumerate(faults.deaths):
        key_path: Keys = ("training", "faults", "deaths", number)
        if death.at >= faults.horizon:
            yield Problem(
                place=document.place((*key_path, "at")),
                message=f"{dotted((*key_path, 'at'))}: node {death.node} dies after the end of the "
                "run",
                hint="training.faults.horizon is the length of the run",
            )
        if any(_down(other, death.at) for other in _of(faults.deaths[:number], death.node)) or any(
            _down(death, other.at) for other in _of(faults.deaths[:number], death.node)
        ):
            yield document.problem(
                key_path,
                f": node {death.node} dies while it is down",
                "the deaths of a node must not overlap",
            )
    for nodes in sizes:
        last = next((death for death in faults.deaths if _alone(faults, death, nodes)), None)
        if last is not None:
            number = faults.deaths.index(last)
            key_path = ("training", "faults", "deaths", number)
            count = f"{nodes} node" + ("s" if nodes > 1 else "")
            yield document.problem(
                key_path,
                f": with {count} no node is left when node {last.node} dies",
                "have fewer nodes down at a time, or leave this cluster size out",
            )
            return


def _of(deaths: Iterable[Fault], node: int) -> Iterator[Fault]:
    return (death for death in deaths if death.node == node)


def _down(death: Fault, at: Fraction) -> bool:
    """Return whether the node is down at that time, including the instant of its death."""
    return death.at <= at and (death.down is None or at < death.at + death.down)


def _alone(faults: Faults, last: Fault, nodes: int) -> bool:
    """Return whether all of the first `nodes` nodes are down after this death."""
    down = {death.node for death in faults.deaths if _down(death, last.at)}
    return last.node < nodes and down >= set(range(nodes))


def _precision(document: Document, cluster: Cluster, training: Training) -> Iterator[Problem]:
    own = "" if cluster.groups else "; or state the measured times under `compute`"
    for _, _, device in cluster.kinds:
        known = device.precisions
        if training.timed_as not in known and document.data.get("compute") is None:
            key_path: Keys = ("training", "precision")
            yield document.problem(
                key_path,
                f" = {training.precision!r}: device {device.name!r} has no training times at it",
                f"write {' or '.join(known)}{own}",
            )


def _clients(document: Document, train: Spelled | None) -> Iterator[Problem]:
    clients = None if train is None else getattr(train.partition, "clients", None)
    if train is not None and clients is not None and clients < train.workers:
        yield document.problem(
            ("train", "partition", "clients"),
            f" = {clients}: fewer than the {train.workers} workers of a round",
            "raise it, or lower train.workers",
        )
