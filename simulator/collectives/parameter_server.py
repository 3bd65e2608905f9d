"""How long do push, aggregation and pull through parameter servers take?

Each worker cuts its payload into as many stripes as there are servers (sizes differ by at most
one byte, the longer first) and sends stripe s to server s. A server that has every worker's
stripe computes for `server_time`, then sends its stripe of the answer to every worker.

Server s is a process on node s mod nodes: it shares that node's network card with the node's
workers, in both directions, so that pushes meet at the servers' cards (incast) and pulls leave
through them. Between a worker and a server on the same node bytes cross the link between the
device and the node's memory, not the card. All flows share links max-min fairly.

Assumptions: `fair_sharing.py`; the switch is not a bottleneck; latency passes once a flow.
With n workers on as many cards, one server elsewhere and sorted sizes s, pushes that start
together end at t_i = sum over j <= i of (n - j + 1)(s_j - s_{j-1}) / C.

Nodes that are alike (same entries, payloads and stripes) are calculated once.

Source: Li et al. 2014 (OSDI), "Scaling distributed machine learning with the parameter server".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product

import numpy as np

from gcsim.simulator.clock import PS_PER_SECOND, Picoseconds, Times
from gcsim.simulator.collectives.call import Call
from gcsim.simulator.collectives.fair_sharing import FlowClass, share_fairly
from gcsim.simulator.collectives.ring import check_range
from gcsim.simulator.collectives.ring_allreduce import chunks
from gcsim.simulator.links import Link

Worker = tuple[Picoseconds, int]
"""Entry time and bytes pushed: workers of a node with both equal are alike."""
Server = tuple[tuple[int, int], ...]
"""Bytes of its stripe by bytes of a payload: servers of a node with equal stripes are alike."""
Node = tuple[tuple[Worker, ...], tuple[Server, ...]]
"""Workers and servers in an order that does not say which is which."""


def parameter_server(
    entry: Times,
    pushed: Sequence[int],
    pulled: int,
    *,
    nodes: int,
    servers: int,
    network: Link,
    local: Link,
    server_time: Picoseconds = 0,
) -> Times:
    """Exit times `[p]` for entry times `[p]`, picoseconds.

    `pushed[r]` is the bytes of rank r, `pulled` what each rank receives; p is a multiple of
    `nodes` and ranks count node by node. `server_time` is each server's computation on its
    stripes. p = 1 costs nothing.
    """
    if len(entry) == 1:
        return entry.copy()
    kinds = _nodes(entry, pushed, pulled, nodes=nodes, servers=servers)
    count = Counter(kinds)
    exchange = _Exchange(
        count, pulled=pulled, network=network, local=local, server_time=server_time
    )
    number = {node: place for place, node in enumerate(count)}
    at = [number[node] for node in kinds]
    devices = len(entry) // nodes
    workers = enumerate(zip(entry.tolist(), pushed, strict=True))
    exits = [exchange.exits[at[rank // devices], worker] for rank, worker in workers]
    check_range(entry, max(exits) - int(entry.max()))
    return np.array(exits, dtype=np.int64)


def _nodes(
    entry: Times, pushed: Sequence[int], pulled: int, *, nodes: int, servers: int
) -> list[Node]:
    stripes = {nbytes: chunks(nbytes, servers) for nbytes in sorted({*pushed, pulled})}
    hosted: list[list[Server]] = [[] for _ in range(nodes)]
    for server in range(servers):
        shares = tuple((nbytes, parts[server]) for nbytes, parts in stripes.items())
        hosted[server % nodes].append(shares)
    workers = list(zip(entry.tolist(), pushed, strict=True))
    devices = len(workers) // nodes
    return [
        (tuple(sorted(workers[node * devices : (node + 1) * devices])), tuple(sorted(shares)))
        for node, shares in enumerate(hosted)
    ]


WorkerClass = tuple[int, Worker]
"""With the number of the kind of node that they are on."""
ServerClass = tuple[int, Server]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ends:
    """What is at the ends of a class of flows."""

    push: bool
    worker: WorkerClass
    server: ServerClass
    link: Link


class _Exchange:
    """Push and pull between classes of workers and classes of servers."""

    def __init__(
        self,
        nodes: Mapping[Node, int],
        *,
        pulled: int,
        network: Link,
        local: Link,
        server_time: Picoseconds,
    ) -> None:
        self.server_time = server_time
        self.exits: dict[WorkerClass, Picoseconds] = {}
        """When the workers of each class have their whole answer."""
        self.ready: dict[ServerClass, Picoseconds] = {}
        self.missing: Counter[ServerClass] = Counter()
        """Classes of pushes that a server has not received yet."""
        self.flows: list[FlowClass] = []
        self.ends: list[_Ends] = []
        self.capacities: dict[Hashable, Fraction] = {}
        self._plan(nodes, pulled, network, local)
        pushes = {place: ends.worker[1][0] for place, ends in enumerate(self.ends) if ends.push}
        share_fairly(pushes, self.flows, self.capacities, self._ended)

    def _plan(self, nodes: Mapping[Node, int], pulled: int, network: Link, local: Link) -> None:
        """All classes of flows, with how many of them cross one link of each class."""
        count = list(nodes.values())
        workers = [((k, w), n) for k, node in enumerate(nodes) for w, n in Counter(node[0]).items()]
        servers = [((k, s), n) for k, node in enumerate(nodes) for s, n in Counter(node[1]).items()]
        for (worker, alike), (server, hosted) in product(workers, servers):
            at, home = worker[0], server[0]
            stripes = dict(server[1])
            pair = stripes[worker[1][1]], stripes[pulled], worker, server
            same = at == home
            near = alike * hosted * (count[home] - same)  # on a worker's card
            far = alike * hosted * (count[at] - same)  # on a server's card
            if near:
                push: dict[Hashable, int] = {("out", at): near, ("in", home): far}
                pull: dict[Hashable, int] = {("out", home): far, ("in", at): near}
                self._add(*pair, push, pull, network)
            if same:
                push, pull = {("to memory", worker): hosted}, {("from memory", worker): hosted}
                self._add(*pair, push, pull, local)

    def _add(  # noqa: PLR0917 - two of each kind, in the same order
        self,
        pushed: int,
        pulled: int,
        worker: WorkerClass,
        server: ServerClass,
        push: dict[Hashable, int],
        pull: dict[Hashable, int],
        link: Link,
    ) -> None:
        capacity = link.bandwidth * link.efficiency / PS_PER_SECOND
        self.missing[server] += 1
        for is_push, nbytes, loads in ((True, pushed, push), (False, pulled, pull)):
            self.flows.append(FlowClass(nbytes=nbytes, loads=loads))
            self.ends.append(_Ends(push=is_push, worker=worker, server=server, link=link))
            self.capacities.update(dict.fromkeys(loads, capacity))

    def _ended(self, place: int, time: Picoseconds) -> Mapping[int, Picoseconds]:
        """Book the end of a class of flows; the pulls that it lets start."""
        ends = self.ends[place]
        arrival = time + ends.link.latency_ps
        if not ends.push:
            self.exits[ends.worker] = max(self.exits.get(ends.worker, 0), arrival)
            return {}
        server = ends.server
        self.ready[server] = max(self.ready.get(server, 0), arrival)
        self.missing[server] -= 1
        if self.missing[server]:
            return {}
        start = self.ready[server] + self.server_time
        return {
            pull: start
            for pull, ends in enumerate(self.ends)
            if ends.server == server and not ends.push
        }


def carry_out(call: Call) -> Times:
    """`Collectives.servers` servers on the cluster's nodes."""
    cluster = call.cluster
    return parameter_server(
        call.entry,
        call.sent,
        call.pulled,
        nodes=cluster.nodes,
        servers=cluster.collectives.servers,
        network=cluster.network,
        local=cluster.intra_node,
        server_time=call.server_time,
    )
