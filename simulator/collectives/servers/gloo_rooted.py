"""Gloo's broadcast, gather and scatter: exact times of every rank.

- Broadcast: rank v receives from v - 2^i, where 2^i is its highest bit, then sends to v + 2^j for
  all j > i at once (the root, rank 0, for all j), so ceil(log2 p) copies share the root's NIC. With
  p = 2^k, equal links and entries the last rank leaves after k (k + 1)/2 n beta + (k + 1) alpha,
  instead of k n beta if the copies were sent one after the other.
- Gather and scatter: every rank sends its part directly to the root, or receives it from there, all
  at once, so the root's NIC carries (p - 1)/p of the whole.

Data leave when the sender has them and has received the receiver's announcement. Messages share
NICs max-min fairly (`sharing/fair.py`); an announcement and the last byte take a latency. A rank
leaves when it has received everything and its own messages have left.

Assumptions: an ideal switch (no racks, no shared medium); messages inside a node share no link; TCP
is fair immediately (real broadcasts are up to a tenth faster, as early copies are forwarded early).

Source: pytorch/gloo, gloo/broadcast.cc, gloo/gather.cc, gloo/scatter.cc.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gcsim.errors import InternalError
from gcsim.simulator.clock import Picoseconds, Times
from gcsim.simulator.cluster import Cluster
from gcsim.simulator.collectives.servers.topology import own_limit
from gcsim.simulator.host import Traffic
from gcsim.simulator.network.links import Link
from gcsim.simulator.network.paths import path
from gcsim.simulator.sharing.fair import share_fairly
from gcsim.simulator.sharing.model import Capacity, FlowClass


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """Message from one rank to another."""

    sender: int
    receiver: int
    nbytes: int


def broadcast_messages(nbytes: int, ranks: int) -> list[Message]:
    """Return the messages of a broadcast from rank 0."""
    return [
        Message(sender=rank, receiver=rank + distance, nbytes=nbytes)
        for rank in range(ranks)
        for distance in (1 << bit for bit in range(rank.bit_length(), ranks.bit_length()))
        if rank + distance < ranks
    ]


def gather_messages(sizes: Sequence[int]) -> list[Message]:
    """Return messages of `sizes[r]` bytes from each rank r > 0 to rank 0."""
    return [
        Message(sender=rank, receiver=0, nbytes=size) for rank, size in enumerate(sizes) if rank > 0
    ]


def scatter_messages(sizes: Sequence[int]) -> list[Message]:
    """Return messages of `sizes[r]` bytes from rank 0 to each rank r > 0."""
    return [
        Message(sender=0, receiver=rank, nbytes=size) for rank, size in enumerate(sizes) if rank > 0
    ]


def messages_traffic(messages: Sequence[Message], cluster: Cluster) -> Traffic:
    """Traffic of the ranks."""
    ends, nbytes = np.zeros((2, cluster.workers), dtype=np.int64)
    for message in messages:
        for rank in (message.sender, message.receiver):
            ends[rank] += 1
            nbytes[rank] += message.nbytes
    return Traffic.of_ranks(ends, nbytes, cluster.devices_by_node)


def carry_messages(starts: Times, messages: Sequence[Message], cluster: Cluster) -> Times:
    """Return exit times `[p]` for entry times `[p]`, picoseconds, including the hosts' work. A rank
    sends after it has received everything. Raises `InternalError` with racks or a shared medium."""
    if cluster.racks is not None or any(link.shared for link in cluster.links()):
        raise InternalError("rooted collectives know neither racks nor shared media")
    finishes = _Exchange(starts, messages, cluster).run()
    if cluster.host is None or len(starts) == 1:
        return finishes
    work = cluster.host.work(messages_traffic(messages, cluster))
    return cluster.host.exit_times(starts, finishes, work)


class _Exchange:
    def __init__(self, starts: Times, messages: Sequence[Message], cluster: Cluster) -> None:
        self._starts, self._messages, self._cluster = starts.tolist(), messages, cluster
        self._finishes: list[Picoseconds] = starts.tolist()
        self._missing = [0] * len(self._finishes)  # messages that each rank still waits for
        self._outgoing: list[list[int]] = [[] for _ in self._finishes]
        for place, message in enumerate(messages):
            self._missing[message.receiver] += 1
            self._outgoing[message.sender].append(place)
        self._links = [self._link(message) for message in messages]
        self._capacities: dict[Hashable, Capacity] = {}
        self._flows = [self._flow(place) for place in range(len(messages))]

    def run(self) -> Times:
        """Exit times of all ranks."""
        begins: dict[int, Picoseconds] = {}
        for rank, missing in enumerate(self._missing):
            if not missing:
                begins |= self._begin(rank, self._starts[rank])
        share_fairly(begins, self._flows, self._capacities, self._ended)
        return np.array(self._finishes, dtype=np.int64)

    def _begin(self, rank: int, ready: Picoseconds) -> dict[int, Picoseconds]:
        """Starts of a rank's messages, once it has their contents."""
        return {
            place: max(
                ready,
                self._starts[self._messages[place].receiver] + self._links[place].latency_for(0),
            )
            for place in self._outgoing[rank]
        }

    def _ended(self, place: int, time: Picoseconds) -> Mapping[int, Picoseconds]:
        message = self._messages[place]
        arrival = time + self._links[place].latency_for(message.nbytes)
        receiver = message.receiver
        self._finishes[message.sender] = max(self._finishes[message.sender], time)
        self._finishes[receiver] = max(self._finishes[receiver], arrival)
        self._missing[receiver] -= 1
        return {} if self._missing[receiver] else self._begin(receiver, self._finishes[receiver])

    def _link(self, message: Message) -> Link:
        nodes = [self._cluster.node_of(rank) for rank in (message.sender, message.receiver)]
        if nodes[0] == nodes[1]:
            return self._cluster.intra_node
        return path(*(self._cluster.nic(node) for node in nodes))

    def _flow(self, place: int) -> FlowClass:
        message, cluster = self._messages[place], self._cluster
        sender, receiver = cluster.node_of(message.sender), cluster.node_of(message.receiver)
        ways: list[tuple[Hashable, Link]] = [(("inside", place), cluster.intra_node)]
        if sender != receiver:
            ends = ("out", sender), ("in", receiver)
            ways = [(end, cluster.nic(end[1])) for end in ends]
        self._capacities |= {way: link.line_goodput for way, link in ways}
        loads = {way: 1 for way, _ in ways}
        limit = own_limit(self._links[place], message.nbytes)
        if limit is not None:
            self._capacities["connection", place] = limit
            loads["connection", place] = 1
        return FlowClass(message.nbytes, loads)
