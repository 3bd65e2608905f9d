"""Push-pulls by collectives of Gloo, NCCL and MPI, without a parameter server.

| way                | collectives                         | the server's computation          |
|--------------------|-------------------------------------|-----------------------------------|
| alltoall_allgather | all-to-all of stripes; all-gather   | each rank's, on 1 / p of the      |
|                    | of the stripes of the answer        | elements, between the two         |
| all_gather         | all-gather of the whole payloads    | each rank's, all of it, before it |
|                    |                                     | decodes what it would have pulled |

The workers' devices do the server's computation. The first way is for methods whose server treats
each element or block independently, the second for all others (`requests.WithoutServer`). If
payloads differ in length, their lengths of 8 bytes are exchanged first.

Assumptions: stripes are 1 / p of a payload to the byte, regardless of its tensors; repeated headers
or scales do not count. Each stripe costs all launches of the server's kernels and 1 / p of their
bytes and FLOPs, as with p servers.

Source: DeepSpeed, runtime/comm (compressed_allreduce: all-to-all of chunks, average and compress
anew, all-gather), which H. Tang et al. 2021 (ICML), "1-bit Adam", describe as their MPI backend.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gcsim.compressors.lockstep import CollectiveRecord
from gcsim.simulator.cluster import Cluster, PushPullAlgorithm
from gcsim.simulator.devices.clocks import as_timed, with_exchanges
from gcsim.traces.profile import Compute, Exchange, Phase, TrafficProfile, weighted

SERVED: PushPullAlgorithm = "parameter_server"
LENGTH_BYTES = 8
WAYS: dict[PushPullAlgorithm, str] = {
    SERVED: "parameter servers",
    "alltoall_allgather": "all-to-all and all-gather",
    "all_gather": "all-gather",
}
"""Names of the ways in reports."""
_NOTHING = Compute(stage="encode", fixed=())


def way(record: CollectiveRecord, cluster: Cluster) -> PushPullAlgorithm:
    """Return the way in which the cluster carries a push-pull; never "auto"."""
    asked = cluster.collectives.push_pull
    if asked == "auto" and cluster.servers:
        return SERVED
    return record.without_server if asked in {"auto", "alltoall_allgather"} else asked


def ways(profile: TrafficProfile, cluster: Cluster) -> tuple[PushPullAlgorithm, ...]:
    """Return the ways that carry a method's push-pulls; servers also if others go through them."""
    found: dict[PushPullAlgorithm, None] = {}
    for record in _records(profile):
        if record.kind == "push_pull":
            found[way(record, cluster)] = None
        elif record.by_servers or getattr(cluster.collectives, record.kind, "") == SERVED:
            found[SERVED] = None
    return tuple(found)


def as_collectives(profile: TrafficProfile, cluster: Cluster) -> TrafficProfile:
    """Replace push-pulls by the cluster's collectives, and name the stages that were timed on a
    device; return the same object if nothing changes. Does not depend on the number of workers."""
    stages = dict(cluster.device.stages)
    for group in cluster.groups:
        stages |= group.device.stages
    profile = as_timed(profile, stages)
    if set(ways(profile, cluster)) <= {SERVED}:
        return profile
    return with_exchanges(profile, lambda exchange, _: _without_server(exchange, cluster))


def by_servers(profile: TrafficProfile) -> TrafficProfile:
    """Return the profile with all-reduces through parameter servers."""

    def served(exchange: Exchange, phase: Phase) -> Exchange:
        records = [
            replace(record, by_servers=record.kind == "all_reduce")
            for record in exchange.collectives
        ]
        return replace(exchange, collectives=tuple(records))

    return with_exchanges(profile, served)


def _records(profile: TrafficProfile) -> Iterator[CollectiveRecord]:
    for _, _, exchange in weighted(profile):
        yield from exchange.collectives


def _without_server(exchange: Exchange, cluster: Cluster) -> Exchange:
    """Replace an exchange's push-pulls; computations and collectives alternate."""
    computes = [exchange.computes[0]]
    collectives: list[CollectiveRecord] = []
    servers: list[Compute | None] = []

    def add(record: CollectiveRecord, then: Compute, server: Compute | None = None) -> None:
        collectives.append(record)
        servers.append(server)
        computes.append(then)

    def add_lengths(record: CollectiveRecord) -> None:
        if record.variable:
            sizes = (LENGTH_BYTES,) * len(record.sent)
            add(CollectiveRecord(kind="all_gather", sent=sizes, scope=record.scope), _NOTHING)

    served = exchange.servers or (None,) * len(exchange.collectives)
    for record, server, then in zip(
        exchange.collectives, served, exchange.computes[1:], strict=True
    ):
        chosen = way(record, cluster) if record.kind == "push_pull" else SERVED
        whole = CollectiveRecord(kind="all_gather", sent=record.sent, scope=record.scope)
        if chosen == SERVED:
            add(record, then, server)
        elif chosen == "all_gather":
            add_lengths(record)
            add(whole, _one(server, then))
        else:
            stripes = replace(whole, kind="all_to_all", variable=record.variable)
            add(stripes, replace(server or _NOTHING, striped=True))
            add_lengths(record)
            count = len(record.sent)
            answers = (-(-record.pulled // count),) * count
            add(replace(whole, sent=answers, part=True), then)
    return replace(
        exchange, computes=tuple(computes), collectives=tuple(collectives), servers=tuple(servers)
    )


def _one(first: Compute | None, then: Compute) -> Compute:
    """Return both computations as one."""
    if first is None:
        return then
    return replace(
        then,
        fixed=first.fixed + then.fixed,
        per_payload=first.per_payload + then.per_payload,
        per_part=first.per_part + then.per_part,
    )
