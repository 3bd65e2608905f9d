"""Push, aggregation and pull through parameter servers.

Each of p workers cuts its payload into S equal stripes (fractions of a byte in the fluid model;
rounded up where the latency depends on the size) and sends stripe s to server s. A server that has
all stripes computes for `server_time`, then sends its stripe of the answer to every worker.

Server s is a process on node s mod nodes, whose NIC it shares in both directions (pushes cause
incast), or a dedicated machine at the switch or access point. Flows share the links of
`servers/topology.py` max-min fairly (`sharing/fair.py`), each on its path (`paths.py`), with

    start = next grant + overhead      arrival = end of the flow + latency + random delay

A push to server s is its worker's message s; a pull from it to worker r is message r of p + s.

Pushes or pulls between a class of workers and a class of servers form one class of flows if they
have the same distance: one node, one rack, one pod, or two pods. If the topology spreads flows
evenly (`Topology.spread_evenly`), receiving NICs are ignored, and all flows from one class to other
nodes form one class.

Assumptions: those of `sharing/fair.py`; the switch is no bottleneck; latency and overhead count
once per flow. With n workers on as many NICs, one server elsewhere and sorted sizes s, pushes that
start together end at t_i = sum over j <= i of (n - j + 1)(s_j - s_{j-1}) / C.

Source: Li et al. 2014 (OSDI), "Scaling distributed machine learning with the parameter server".
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil

import numpy as np
from numpy.typing import NDArray

from gcsim.errors import InternalError
from gcsim.simulator.clock import PS_PER_SECOND, Picoseconds, Times, check_range, picoseconds
from gcsim.simulator.cluster import Cluster
from gcsim.simulator.collectives.call import Call
from gcsim.simulator.collectives.servers.topology import (
    Loads,
    NodeKind,
    Placement,
    Topology,
    alike,
    server_nic,
)
from gcsim.simulator.host import Traffic
from gcsim.simulator.network.jitter import draw_jitter
from gcsim.simulator.network.links import Link
from gcsim.simulator.sharing.fair import share_fairly
from gcsim.simulator.sharing.model import Capacity, FlowClass


def parameter_server(
    starts: Times,
    pushed: Sequence[int],
    pulled: int,
    cluster: Cluster,
    *,
    server_time: Picoseconds = 0,
    key: int = 0,
) -> Times:
    """Exit times `[p]` for entry times `[p]`, int64 picoseconds, on the cluster's p workers.

    `pushed[r]`: bytes of rank r; `pulled`: bytes that each rank receives; `server_time`: each
    server's computation; `key` seeds random delays. Entries are absolute if a link's rate changes
    over time. A single worker on the server's node pays nothing. `InputError` beyond the clock.
    """
    if len(starts) != cluster.workers or len(pushed) != len(starts):
        raise InternalError(f"{len(starts)} entries and {len(pushed)} payloads in {cluster}")
    if not cluster.servers:
        raise InternalError("a push-pull to no parameter server (see `push_pull.py`)")
    if len(starts) == 1 and cluster.collectives.server_hosts != "dedicated":
        return starts.copy()
    apart = _random(cluster)  # with random delays no two workers are equal
    workers = list(zip(starts.tolist(), pushed, strict=True))
    # workers with equal entry, payload and place form a class with common classes of flows
    numbers = {worker: number for number, worker in enumerate(dict.fromkeys(workers))}
    kinds = [rank if apart else numbers[worker] for rank, worker in enumerate(workers)]
    places = alike(cluster, kinds, apart=apart)
    return _Exchange(starts, pushed, pulled, cluster, places, server_time, key, apart).run()


class _Exchange:
    def __init__(  # noqa: PLR0917 - handed through
        self,
        starts: Times,
        pushed: Sequence[int],
        pulled: int,
        cluster: Cluster,
        places: Placement,
        server_time: Picoseconds,
        key: int,
        apart: bool,
    ) -> None:
        self._starts, self._server_time, self._places = starts, server_time, places
        of = {kind: rank for rank, kind in enumerate(places.worker_class)}
        self._ranks = [of[worker] for worker in range(len(of))]  # one rank of each class
        self._flows = _Flows(cluster, places, [pushed[rank] for rank in self._ranks], pulled)
        ends = self._flows.ends
        self._after = self._latencies(key if apart else None)
        self._finishes: Times = np.zeros(len(self._ranks), dtype=np.int64)
        """Time at which each class of workers has the whole answer."""
        self._ready: Times = np.zeros(places.servers, dtype=np.int64)
        """Time at which each class of servers has received everything."""
        self._missing: NDArray[np.int64] = np.zeros(places.servers, dtype=np.int64)
        """Number of classes of pushes that each server still waits for."""
        self._pulls: list[list[int]] = [[] for _ in range(places.servers)]
        """Flows of each server class."""
        for place, end in enumerate(ends):
            if end.push:
                self._missing[end.targets] += 1
            else:
                self._pulls[end.source].append(place)

    def run(self) -> Times:
        """Exit times of all ranks."""
        pushes = {
            place: begins(end.link, int(self._starts[self._ranks[end.source]]))
            for place, end in enumerate(self._flows.ends)
            if end.push
        }
        share_fairly(pushes, self._flows.flows, self._flows.capacities, self._ended)
        if self._missing.any():
            raise InternalError(f"servers still wait for pushes: {self._missing}")
        self._check(int(self._finishes.max()))
        return self._finishes[self._places.worker_class]

    def _latencies(self, key: int | None) -> list[Picoseconds | Times]:
        """Return the time from the end of each flow to its arrival, or arrivals."""
        ends = self._flows.ends
        fixed = [end.link.latency_for(end.nbytes) for end in ends]
        if key is None:
            return list(fixed)
        lengths = [np.size(end.targets) for end in ends]
        links = {id(end.link): end.link for end in ends}
        numbers = {name: number for number, name in enumerate(links)}
        sender = [self._sender(end) for end in ends]
        receivers = [np.atleast_1d(self._receivers(end)) for end in ends]
        jitter = draw_jitter(
            list(links.values()),
            np.repeat([numbers[id(end.link)] for end in ends], lengths),
            np.repeat(np.array([end.nbytes for end in ends], dtype=np.int64), lengths),
            key=key,
            message=np.concatenate(receivers),
            rank=np.repeat(sender, lengths),
        )
        stops = np.cumsum(lengths).tolist()
        return [
            latency
            + (jitter[stop - 1] if isinstance(end.targets, int) else jitter[stop - n : stop])
            for latency, end, n, stop in zip(fixed, ends, lengths, stops, strict=True)
        ]

    def _sender(self, end: _Ends) -> int:
        return self._ranks[end.source] if end.push else len(self._starts) + end.source

    def _receivers(self, end: _Ends) -> NDArray[np.int64] | int:
        if end.push:
            return end.targets
        if isinstance(end.targets, int):
            return self._ranks[end.targets]
        return np.array(self._ranks, dtype=np.int64)[end.targets]

    def _ended(self, place: int, time: Picoseconds) -> Mapping[int, Picoseconds]:
        """Record the end of a class of flows; return the pulls that it starts."""
        self._check(time)
        end = self._flows.ends[place]
        to = end.targets
        arrived = time + self._after[place]
        if not end.push:
            self._finishes[to] = np.maximum(self._finishes[to], arrived)
            return {}
        self._ready[to] = np.maximum(self._ready[to], arrived)
        self._missing[to] -= 1
        # a server that has its last push computes, then answers all workers at once
        complete = np.atleast_1d(to)[np.atleast_1d(self._missing[to]) == 0]
        return {
            pull: begins(self._flows.ends[pull].link, int(self._ready[server]) + self._server_time)
            for server in complete.tolist()
            for pull in self._pulls[server]
        }

    def _check(self, time: Picoseconds) -> None:
        check_range(self._starts, time - int(self._starts.max()))


def begins(link: Link, time: Picoseconds) -> Picoseconds:
    """Return when a message's bytes begin to flow: the next grant plus the overhead."""
    if link.grant:
        grant: Fraction = link.grant * PS_PER_SECOND
        time = ceil(ceil(time / grant) * grant)
    return time + picoseconds(link.overhead)


def _random(cluster: Cluster) -> bool:
    links = {cluster.network, cluster.intra_node, *cluster.nics.values()}
    if cluster.racks is not None:
        links |= {uplink for _, uplink in cluster.racks.levels}
    if cluster.collectives.server_hosts == "dedicated":
        links.add(server_nic(cluster) or cluster.network)
    return any(link.random for link in links)


@dataclass(frozen=True, kw_only=True)
class PushPull:
    """A push-pull of known payloads, for any entry times."""

    pushed: Sequence[int]
    pulled: int
    cluster: Cluster
    server_time: Picoseconds

    @property
    def nbytes(self) -> int:
        """Memory kept: none."""
        return 0

    def __call__(self, starts: Times, key: int = 0) -> Times:
        """Exit times, as defined by `Prepared`."""
        return parameter_server(
            starts, self.pushed, self.pulled, self.cluster, server_time=self.server_time, key=key
        )


def prepare(call: Call, pulled: int | None = None, adding: Picoseconds = 0) -> PushPull:
    """Prepare a push-pull with the cluster's servers; `pulled` replaces the call's bytes."""
    return PushPull(
        pushed=call.sent,
        pulled=call.pulled if pulled is None else pulled,
        cluster=call.cluster,
        server_time=call.server_time + adding,
    )


def prepare_allgather(call: Call) -> PushPull:
    """Prepare an all-gather by parameter servers: push the own payload, pull all payloads."""
    return prepare(call, sum(call.sent))


def prepare_allreduce(call: Call) -> PushPull:
    """Prepare a dense all-reduce by parameter servers: push n bytes, aggregate, pull n bytes. Each
    server adds p - 1 stripes, which takes (p - 1) n gamma / S."""
    received = Fraction((len(call.sent) - 1) * call.nbytes, call.cluster.servers)
    return prepare(call, call.nbytes, picoseconds(received * call.gamma))


def traffic(call: Call, pulled: int | None = None) -> Traffic:
    """Return the traffic of all processes: a stripe each way between each worker and server."""
    pulled = call.pulled if pulled is None else pulled
    cluster, servers = call.cluster, call.cluster.servers
    stripes = [-(-size // servers) - (-pulled // servers) for size in call.sent]
    size = np.array(stripes, dtype=np.int64) * servers
    workers = Traffic.of_ranks([2 * servers] * len(stripes), size, cluster.devices_by_node)
    places = np.arange(servers, dtype=np.int64)
    dedicated = cluster.collectives.server_hosts == "dedicated"
    return Traffic(
        ends=np.append(workers.ends, np.full(servers, 2 * len(stripes))),
        nbytes=np.append(workers.nbytes, np.full(servers, sum(stripes))),
        machines=np.append(
            workers.machines, places + cluster.nodes if dedicated else places % cluster.nodes
        ),
    )


@dataclass(frozen=True, slots=True)
class _Ends:
    push: bool
    source: int  # sender's class
    targets: int | NDArray[np.int64]  # receivers' class or classes, all different
    link: Link  # path of a message
    nbytes: int  # bytes of a stripe, rounded up


class _Flows:
    def __init__(
        self, cluster: Cluster, places: Placement, pushed: Sequence[int], pulled: int
    ) -> None:
        """`pushed[w]`: bytes of a worker of class w; `pulled`: bytes that each worker receives."""
        self.flows: list[FlowClass] = []
        self.ends: list[_Ends] = []
        self._topology = Topology(cluster, places.kinds)
        self._servers = cluster.servers
        self._pushed, self._pulled = pushed, pulled
        if self._topology.spread_evenly():
            self._add_bundles(places.kinds)
        else:
            self._add_pairs(places.kinds)

    @property
    def capacities(self) -> dict[Hashable, Capacity]:
        """Capacities of the links crossed."""
        return self._topology.capacities

    def _add_pairs(self, kinds: Sequence[NodeKind]) -> None:
        hosts = [kind for kind in kinds if kind.servers]
        for at in [kind for kind in kinds if kind.workers]:
            self._add_local(at)
            for home in hosts:
                for above, homes, nodes in at.distances(home):
                    self._add_remote(at, home, homes, nodes, above)

    def _add_remote(self, at: NodeKind, home: NodeKind, homes: int, nodes: int, above: int) -> None:
        """Add flows of nodes `at` to servers on `homes` machines, each of which serves `nodes`,
        across the uplinks of `above` levels."""
        between = self._topology.between
        out = self._topology.link(at, home, above)
        back = self._topology.link(home, at, above)
        for worker, many in at.workers:
            for server, hosted in home.servers:
                one = many * hosted
                push = between(at, home, one * homes, one * nodes, above)
                pull = between(home, at, one * nodes, one * homes, above)
                self._add(True, worker, server, push, out)
                self._add(False, server, worker, pull, back)

    def _add_local(self, at: NodeKind) -> None:
        bus, inside = self._topology.cluster.intra_node, self._topology.inside
        for worker, many in at.workers:
            for server, hosted in at.servers:
                push = inside(at, worker, hosted, many * hosted, "to memory")
                pull = inside(at, worker, hosted, many * hosted, "from memory")
                self._add(True, worker, server, push, bus)
                self._add(False, server, worker, pull, bus)

    def _add_bundles(self, kinds: Sequence[NodeKind]) -> None:
        """Add one class of flows per sender; equal NICs make all paths between nodes equal."""
        for push in (True, False):
            senders = [kind.workers if push else kind.servers for kind in kinds]
            receivers = [kind.servers if push else kind.workers for kind in kinds]
            on_node = [sum(count for _, count in of) for of in receivers]
            total = sum(kind.nodes * n for kind, n in zip(kinds, on_node, strict=True))
            number = np.repeat(np.arange(len(kinds)), [len(of) for of in receivers])
            classes = np.array([to for of in receivers for to, _ in of], dtype=np.int64)
            for place, kind in enumerate(kinds):
                targets = classes if kind.nodes > 1 else classes[number != place]
                link = self._topology.link(kind, kind, 0)
                for source, count in senders[place] if targets.size else ():
                    loads: Loads = {("out", id(kind)): count * (total - on_node[place])}
                    self._add(push, source, targets, loads, link)
        for kind in kinds:
            self._add_local(kind)

    def _add(
        self, push: bool, source: int, targets: int | NDArray[np.int64], loads: Loads, link: Link
    ) -> None:
        payload = self._pushed[source] if push else self._pulled
        nbytes = -(-payload // self._servers)
        limit = self._topology.own_limit(link, nbytes)
        if limit is not None:
            own = "own", len(self.flows)
            self._topology.capacities[own] = limit
            loads = {**loads, own: 1}
        self.flows.append(FlowClass(Fraction(payload, self._servers), loads))
        self.ends.append(_Ends(push, source, targets, link, nbytes))
