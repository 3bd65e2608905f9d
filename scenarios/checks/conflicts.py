"""Checks for settings that are valid alone but contradict each other.

Examples: nodes and workers outside the cluster, NVLink on a board without it, a transport without
algorithms, copies over a link whose rate changes, faults that leave no worker. Each problem has its
place; nothing is run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any, get_args

from gcsim.compressors.options.method import method_of
from gcsim.errors import Problem
from gcsim.scenarios import catalog
from gcsim.scenarios.reading.document import Document, Keys, dotted
from gcsim.scenarios.reading.types import LARGEST_CLUSTER
from gcsim.scenarios.reading.values import Spelled
from gcsim.scenarios.scenario import CompressorChoice
from gcsim.scenarios.sections.cluster import group_key, links_of, random_settings
from gcsim.scenarios.sections.link import entry_name
from gcsim.simulator.cluster import AllGatherAlgorithm, AllReduceAlgorithm, Cluster, Collectives
from gcsim.simulator.training import Fault, Faults, Strategy, Training

MOST_OVERLAPPING = 256  # most workers with two collectives at a time
MOST_SHARING = 1024  # most different workers that share cores: each computation is an event
_SOME = 6  # algorithms named by a hint
Conflict = tuple[Keys | str, str, str] | tuple[Keys | str, str, str, bool]
"""Arguments of `Document.problem`."""


def contradictions(
    document: Document,
    cluster: Cluster,
    training: Training,
    sizes: Sequence[int],
    train: Spelled | None,
) -> list[Problem]:
    """Return the contradictions between sections that are each valid. `sizes`: ascending numbers of
    nodes; `train`: the section, if any."""
    found = [
        *_too_many(cluster, training),
        *_no_such_nodes(document, cluster, training),
        *_no_algorithm(cluster.collectives),
        *_switches(cluster),
        *_others_buses(cluster),
        *_without_sharp(cluster),
        *_media(cluster),
        *_times(cluster),
        *_pods(cluster),
        *_faults(document, training.faults, sizes),
        *_precision(document, cluster, training),
        *_between(cluster, training, sizes),
        *_strategy(cluster, training),
        *_groups(document.data, cluster, training),
        *_clients(train),
    ]
    return [one if isinstance(one, Problem) else document.problem(*one) for one in found]


def _too_many(cluster: Cluster, training: Training) -> Iterator[Conflict]:
    workers, most = cluster.workers, f"at most {LARGEST_CLUSTER:,}"
    if workers > LARGEST_CLUSTER:
        said = f" = {cluster.devices_per_node}: {workers:,} workers in total"
        yield "cluster.devices_per_node", said, most
    if cluster.servers > LARGEST_CLUSTER:
        yield "cluster.collectives.servers", f" = {cluster.servers}: too many", most
    if training.concurrent_collectives == 2 and workers > MOST_OVERLAPPING:
        said = (
            f" = 2 with {workers:,} workers: overlapping collectives are simulated message by "
            "message, which would take hours"
        )
        hint = f"at most {MOST_OVERLAPPING} workers, or one collective at a time"
        yield "training.concurrent_collectives", said, hint
    random = random_settings(cluster, training)
    if random and workers > MOST_SHARING and training.machines(cluster):
        said = (
            f" with {workers:,} workers whose times are random ({', '.join(map(dotted, random))}): "
            "shared cores are simulated event by event, which would take hours"
        )
        yield "training.on_host", said, f"at most {MOST_SHARING:,} workers, or nothing random"


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


def _groups(stated: Mapping[str, Any], cluster: Cluster, training: Training) -> Iterator[Conflict]:
    """Find settings that do not work with groups of different nodes."""
    if not cluster.groups:
        return
    by_speed = stated["cluster"].get("batch") == "by_speed"
    unlike = by_speed or any(group.batch != 1 for group in cluster.groups)
    at, one = "cluster.groups", "leave one of the two out"
    if len({group.device.processor for group in cluster.groups} - {None}) > 1:
        yield at, ": CPUs and GPUs have no transport in common", "take one kind"
    if training.machines(cluster) is not None:
        yield at, ": the workers of a node share its cores", "leave cluster.host.cores out"
    if stated.get("compute") is not None:
        hint = "leave it out: each device has its own times"
        yield "compute", " is for one device, but the groups have several", hint
    if training.faults is not None:
        yield "training.faults", " with cluster.groups", one
    if cluster.sizes and cluster.collectives.all_reduce == "hierarchical":
        said = f" = 'hierarchical' with {_UNLIKE}"
        yield "cluster.collectives.all_reduce", said, "leave it out: the transport chooses"
    if unlike and training.input is not None:
        yield "training.input", ": groups load batches of different sizes", one
    for number, group in enumerate(stated["cluster"]["groups"]):
        if by_speed and "batch_size" in group:
            yield ("cluster", "groups", number, "batch_size"), " with by_speed", one


def _no_algorithm(chosen: Collectives) -> Iterator[Conflict]:
    for key, known in (("all_reduce", AllReduceAlgorithm), ("all_gather", AllGatherAlgorithm)):
        if chosen.transport == "custom" and getattr(chosen, key) == "auto":
            names = [name for name in get_args(known) if name != "auto"]
            said = " = 'auto': the transport 'custom' chooses no algorithm"
            yield f"cluster.collectives.{key}", said, f"name one: {', '.join(names[:_SOME])}, ..."


def _between(cluster: Cluster, training: Training, sizes: Sequence[int]) -> Iterator[Conflict]:
    """Find settings that exchanges between nodes or racks do not support, and unfilled racks."""
    if training.between == "workers":
        return
    where, of_racks = "training.between", training.between == "racks"
    if of_racks and cluster.racks is None:
        hint = "write cluster.racks: {nodes: 4, uplink: 10gbe}, or between: nodes"
        yield where, " = 'racks': the cluster has none", hint
    elif of_racks and cluster.racks is not None:
        full = cluster.racks.nodes
        if unfilled := [size for size in sizes if size > full and size % full]:
            said = f" = 'racks': {unfilled[0]} nodes do not fill racks of {full}"
            yield where, said, "make cluster.nodes a multiple of cluster.racks.nodes"
    unlike = "groups" if cluster.groups else "nics"
    for stated, setting, what in (
        (cluster.servers > 0, "cluster.collectives.servers", "parameter servers"),
        (training.concurrent_collectives == 2, "training.concurrent_collectives", "2"),
        (of_racks and getattr(cluster, unlike), f"cluster.{unlike}", "different nodes"),
        (bool(cluster.sizes), "cluster.groups", _UNLIKE),
    ):
        if stated:
            said = f" = {training.between!r} with {setting} ({what}): not simulated together"
            yield where, said, "leave one of the two out"


def _strategy(cluster: Cluster, training: Training) -> Iterator[Conflict]:
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
            yield f"training.{key}", why, hint
    for setting, why in against_sharding(cluster, training) if training.strategy != "ddp" else ():
        said = f" = {training.strategy!r} with {setting}: {why}"
        yield "training.strategy", said, "leave one of the two out"


def against_sharding(cluster: Cluster, training: Training) -> Iterator[tuple[str, str]]:
    """Yield the settings that a sharded optimizer does not support, and why."""
    if cluster.servers:
        yield "cluster.collectives.servers", "parameter servers are not simulated with it"
    if training.local_steps > 1:
        yield "training.local_steps", "a step without an exchange needs the whole optimizer"
    if training.concurrent_collectives == 2:
        yield "training.concurrent_collectives", "the gather of weights runs alone"
    if training.faults is not None:
        yield "training.faults", "a dead worker's part of the optimizer is lost"
    if training.strategy == "hsdp" and 1 in (cluster.nodes, cluster.devices_per_node):
        why = "it shards inside nodes, so it needs several nodes with several devices each"
        yield "cluster", why
    if training.strategy == "hsdp" and cluster.sizes:
        yield "cluster.groups", "its nodes have different numbers of devices"
    conflicting = {
        "training.input": training.input is not None,
        "training.between": training.between != "workers",
        "training.overlap": training.overlap in ("none", "by_tensor"),
        "training.encode_on": training.encode_on != "compute",
        "training.on_host": bool(training.on_host),
        "cluster.collectives.transport": cluster.collectives.transport in ("mpich", "custom"),
    }
    for setting, so in conflicting.items():
        if training.sharded and so:
            yield setting, "not simulated together"


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


def _switches(cluster: Cluster) -> Iterator[Conflict]:
    """Find stated algorithms of NCCL that need in-network reduction, without a switch that adds."""
    for key in ("all_reduce", "all_gather"):
        chosen = getattr(cluster.collectives, key)
        if chosen not in _NEEDS:
            continue
        from gcsim.simulator.collectives import nccl  # of few scenarios

        if chosen in {mode.name for mode in nccl.enabled(key, cluster)}:
            continue
        setting, place = f"cluster.collectives.{key}", _NEEDS[chosen]
        link = getattr(cluster.at_one_nic, place)
        if link.switch_adds is not None:
            said = (
                f" = {chosen!r}: NCCL has it between nodes if their network sums (SHARP) and, for "
                "a gather, if each device has a NIC, at most 32 per node"
            )
            yield setting, said, "nccl_ring_simple"
        else:
            said = f" = {chosen!r}: no switch of cluster.{place} ({link.name}) sums"
            yield setting, said, f"nccl_ring_simple, or {_that_adds(cluster, place)}"


def _that_adds(cluster: Cluster, place: str) -> str:
    """Return the setting with which a switch of the link at `place` adds."""
    if place == "network":
        return f"a link whose switch sums: cluster.network: {_with_sharp(cluster)}"
    if cluster.devices_per_node == 1:
        return "several devices in a node, whose switch sums"
    buses = [device.bus for _, _, device in cluster.kinds]
    if all(map(_adds, buses)):
        return f"a link whose switch sums: cluster.intra_node: {buses[0]}"
    names = (name for name, device in catalog.devices().items() if _adds(device.bus))
    return f"a device whose link sums, such as {next(names)}"


_SHARP = ("infiniband_edr", "infiniband_hdr", "infiniband_ndr", "100gb_infiniband")
"""Catalogue networks whose switches add, from Switch-IB 2 on."""


def _with_sharp(cluster: Cluster) -> str:
    """Return the network of the nearest rate with switches that add."""
    rate = cluster.at_one_nic.network.bandwidth
    name = min(_SHARP, key=lambda name: abs(catalog.link(name).bandwidth - rate))
    return f"{{like: {name}, switch_adds: 1}}"


def _without_sharp(cluster: Cluster) -> Iterator[Conflict]:
    """Find another catalogue network whose switches are to add. Other figures describe a user's own
    network."""
    name = entry_name(cluster.at_one_nic.network)
    known = catalog.links().get(name)
    own = name.removesuffix("_ideal") in _SHARP or known is None or known.switch_adds is not None
    if own or cluster.network.switch_adds is None:
        return
    said = f" with {name}, which has no SHARP, NCCL's sums in switches between nodes"
    hint = f"leave it out, or write network: {_with_sharp(cluster)}"
    yield "cluster.network.switch_adds", said, hint


def _adds(bus: str | None) -> bool:
    return bus is not None and catalog.link(bus).switch_adds is not None


def _others_buses(cluster: Cluster) -> Iterator[Conflict]:
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
            said = f" = {link.name}: {device.name} has {device.bus}{own}"
            yield group_key(number, "intra_node"), said, hint


def _media(cluster: Cluster) -> Iterator[Conflict]:
    for key_path, link in links_of(cluster).items():
        if key_path == ("cluster", "network"):
            continue
        if link.shared:
            said = f": {link.name} is one medium for all nodes"
            yield key_path, said, "it can only be cluster.network", True
        elif link.up is not None and key_path[-1] in {"intra_node", "uplink", "pod_uplink"}:
            said = f": {link.name} is an access link with two different directions"
            yield key_path, said, "it connects a node, as cluster.network or a NIC", True
    name = cluster.network.name
    for key, so in (("racks", "there are no racks"), ("nics", "no NIC differs")):
        if cluster.network.shared and getattr(cluster, key):
            said = f": all nodes share the medium of cluster.network ({name}), so {so}"
            yield f"cluster.{key}", said, "leave one of the two out", True


def _pods(cluster: Cluster) -> Iterator[Conflict]:
    """Find `pod` or `pod_uplink` without the other, and several uplinks with a changing rate."""
    racks = cluster.racks
    if racks is None:
        return
    for key, other in (("pod", "pod_uplink"), ("pod_uplink", "pod")):
        if getattr(racks, key) is not None and getattr(racks, other) is None:
            hint = f"write racks.{other}, or leave both out"
            yield f"cluster.racks.{key}", f" without {other}", hint, True
    for key, uplink in (("uplinks", racks.uplink), ("pod_uplinks", racks.pod_uplink)):
        if getattr(racks, key) > 1 and uplink is not None and uplink.trace is not None:
            said = f" = {getattr(racks, key)}: the rate of {uplink.name} changes over time"
            yield f"cluster.racks.{key}", said, "write one uplink with the rates of all"


def _times(cluster: Cluster) -> Iterator[Conflict]:
    """Find links whose rate changes over time where that is not supported."""
    link, racks = cluster.intra_node, cluster.racks
    if link.timed and cluster.collectives.stages:
        said = f": {link.name} changes over time, but copies between device and host cannot"
        hint = "leave trace and grant out, or set cluster.collectives.host_staging to false"
        yield "cluster.intra_node", said, hint, True
    levels = racks.levels if racks else ()
    for key, (_, uplink) in zip(("uplink", "pod_uplink"), levels, strict=False):
        if uplink.grant:
            said = f": {uplink.name} waits for grants, which no switch does"
            yield f"cluster.racks.{key}", said, "leave grant out", True


# --- faults --------------------------------------------------------------------------------------


def _faults(document: Document, faults: Faults | None, sizes: Sequence[int]) -> Iterator[Problem]:
    if faults is None:
        return
    for number, death in enumerate(faults.deaths):
        key_path: Keys = ("training", "faults", "deaths", number)
        if death.at >= faults.horizon:
            said = f": node {death.node} dies after the end of the run"
            hint = "training.faults.horizon is the length of the run"
            yield document.problem((*key_path, "at"), said, hint)
        if any(_down(other, death.at) for other in _of(faults.deaths[:number], death.node)) or any(
            _down(death, other.at) for other in _of(faults.deaths[:number], death.node)
        ):
            said = f": node {death.node} dies while it is down"
            yield document.problem(key_path, said, "the deaths of a node must not overlap")
    for nodes in sizes:
        last = next((death for death in faults.deaths if _alone(faults, death, nodes)), None)
        if last is not None:
            number = faults.deaths.index(last)
            key_path = ("training", "faults", "deaths", number)
            count = f"{nodes} node" + ("s" if nodes > 1 else "")
            said = f": with {count} no node is left when node {last.node} dies"
            hint = "have fewer nodes down at a time, or leave this cluster size out"
            yield document.problem(key_path, said, hint)
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


def _precision(document: Document, cluster: Cluster, training: Training) -> Iterator[Conflict]:
    own = "" if cluster.groups else "; or state the measured times under `compute`"
    for _, _, device in cluster.kinds:
        known = device.precisions
        if training.timed_as not in known and document.data.get("compute") is None:
            said = f" = {training.precision!r}: device {device.name!r} has no training times at it"
            yield "training.precision", said, f"write {' or '.join(known)}{own}"


def _clients(train: Spelled | None) -> Iterator[Conflict]:
    clients = None if train is None else getattr(train.partition, "clients", None)
    if train is not None and clients is not None and clients < train.workers:
        said = f" = {clients}: fewer than the {train.workers} workers of a round"
        yield "train.partition.clients", said, "raise it, or lower train.workers"
