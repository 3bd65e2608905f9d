"""Collectives that were measured on shaped links, and what the simulator carries out for them.

The runs are those of `data/shaped_collectives.csv`. What Gloo does for a call of PyTorch 2.13:

| measured         | carried out                                                              |
|------------------|--------------------------------------------------------------------------|
| allreduce        | Gloo's ring all-reduce                                                   |
| reduce_scatter   | the same: PyTorch reduces the whole vector everywhere, and keeps a part  |
| allgather        | Gloo's ring all-gather of equal blocks                                   |
| allgather_padded | the same, of blocks as long as the longest                               |
| ring_allgatherv  | sends and receives in a ring, of whole blocks or of pieces on arrival    |
| broadcast        | Gloo's tree, all copies of a rank at once                                |
| gather, scatter  | straight to rank 0 or from it                                            |
| ps_push, ps_pull | the same, between p - 1 workers and a server                             |
| ps_pushpull      | a parameter server on node 0, which has no worker                        |
| send_0_to_1      | one message; the other ranks only call                                   |
| barrier          | empty messages, to rank r + 1, r + 2, r + 4, ...: Bruck's rounds         |

In a ring every NIC sends as much as it receives, and what it receives is acknowledged through the
queue that what it sends has to pass; elsewhere a NIC hardly does both at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cache
from itertools import pairwise

import numpy as np

from gcsim.analysis.validation.data_files import data_values
from gcsim.compressors.lockstep import CollectiveRecord
from gcsim.errors import InternalError
from gcsim.simulator.clock import PS_PER_SECOND
from gcsim.simulator.cluster import Cluster, Collectives
from gcsim.simulator.collectives.dispatch import CollectiveMemo, traffic_of
from gcsim.simulator.collectives.servers.gloo_rooted import (
    Message,
    broadcast_messages,
    carry_messages,
    gather_messages,
    messages_traffic,
    scatter_messages,
)
from gcsim.simulator.collectives.servers.parameter_server import parameter_server
from gcsim.simulator.devices.device import Device
from gcsim.simulator.host import Host, Traffic
from gcsim.simulator.network.links import Link

_DEVICE = Device(name="none", title="none", kernels={}, effective_flop_rate=1.0, source="")
RINGS = frozenset(
    {"allreduce", "reduce_scatter", "allgather", "allgather_padded", "ring_allgatherv"}
)
"""Every NIC sends and receives all the time."""
_ELEMENT = 4
"""Bytes: the vectors are float32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """Cluster of a setting, but for its rate."""

    link: Link
    """Link of all NICs; with another rate."""
    acknowledgements: Mapping[int, Fraction] = field(default_factory=dict)
    """Shares by Mbit/s: bytes on the wire that acknowledge a byte on the wire."""
    host: Host | None = None

    def acknowledged(self, mbit: int) -> Fraction:
        """The share at a rate: on the line between rates at which it was counted, beyond them that
        of the nearest one; 0 where none was."""
        known = sorted(self.acknowledgements.items())
        if not known or mbit <= known[0][0]:
            return known[0][1] if known else Fraction(0)
        for (low, first), (high, last) in pairwise(known):
            if mbit <= high:
                return first + (last - first) * Fraction(mbit - low, high - low)
        return known[-1][1]


def cluster_of(setting: Setting, conditions: Conditions) -> Cluster:
    """Its ranks, one a node."""
    link = conditions.link
    if setting.collective in RINGS:
        more = conditions.acknowledged(setting.rate_mbit)
        link = link.exactly(efficiency=link.efficiency / (1 + more)) if more else link
    network = _nic(link, setting.rate_mbit)
    slow = {setting.ranks - 1: _nic(link, setting.slow_mbit)} if setting.slow_mbit else {}
    collectives = Collectives(transport="gloo", servers=1, host_staging=False)
    if setting.collective == "ring_allgatherv":
        collectives = Collectives(
            all_gather="pipelined_ring" if setting.block else "ring",
            pipeline_block=setting.block or 1,
        )
    elif setting.collective == "barrier":
        collectives = Collectives(all_gather="bruck")
    return Cluster(
        nodes=setting.ranks,
        devices_per_node=1,
        device=_DEVICE,
        network=network,
        intra_node=network,
        collectives=collectives,
        nics=slow,
        host=conditions.host,
    )


@cache
def _nic(link: Link, mbit: int) -> Link:
    return replace(link, name=f"{mbit} Mbit/s", bandwidth=Fraction(mbit * 10**6, 8))


def predicted(setting: Setting, cluster: Cluster) -> float:
    """Seconds from a start that all ranks have in common to the end of the last one."""
    entry = np.zeros(setting.ranks, dtype=np.int64)
    host, messages = cluster.host, _messages(setting)
    if setting.collective == "ps_pushpull":
        pushed = _parts(setting)
        finishes = parameter_server(entry, pushed, pushed[-1], cluster, absent=frozenset({0}))
        if host is not None:
            finishes = host.finishes(entry, finishes, host.work(traffic(setting, cluster)))
    elif messages is not None:
        finishes = carry_messages(entry, messages, cluster)
    else:
        finishes = CollectiveMemo(cluster)(_record(setting), entry)
    copying = host.copying(copied(setting), setting.ranks) if host is not None else 0
    return (int(finishes.max()) + copying) / PS_PER_SECOND


def traffic(setting: Setting, cluster: Cluster) -> Traffic:
    """Traffic of its processes, without what PyTorch copies around the collective."""
    if setting.collective == "ps_pushpull":
        pushed = _parts(setting)
        messages = [*gather_messages(pushed), *scatter_messages(pushed)]
        return messages_traffic(messages, cluster)
    rooted = _messages(setting)
    if rooted is not None:
        return messages_traffic(rooted, cluster)
    return traffic_of(_record(setting), cluster)


def copied(setting: Setting) -> int:
    """Bytes that PyTorch copies on every rank, beside the copies of Gloo's all-gather."""
    return setting.nbytes if setting.collective == "reduce_scatter" else 0


def _parts(setting: Setting) -> list[int]:
    """Parts of the workers' bytes; rank 0 is the server."""
    others = setting.ranks - 1
    return [0] + [setting.nbytes // others] * others


def _messages(setting: Setting) -> list[Message] | None:
    """Messages of the collectives that have a root."""
    find = _ROOTED.get(setting.collective)
    return None if find is None else find(setting)


_ROOTED: dict[str, Callable[[Setting], list[Message]]] = {
    "broadcast": lambda setting: broadcast_messages(setting.nbytes, setting.ranks),
    "gather": lambda setting: gather_messages(setting.sizes()),
    "scatter": lambda setting: scatter_messages(setting.sizes()),
    "ps_push": lambda setting: gather_messages(_parts(setting)),
    "ps_pull": lambda setting: scatter_messages(_parts(setting)),
    "send_0_to_1": lambda setting: [Message(sender=0, receiver=1, nbytes=setting.nbytes)],
}


def _record(setting: Setting) -> CollectiveRecord:
    """The record of the others."""
    ranks = setting.ranks
    match setting.collective:
        case "allreduce" | "reduce_scatter":
            whole = (setting.nbytes,) * ranks
            return CollectiveRecord(kind="all_reduce", sent=whole, element=_ELEMENT)
        case "allgather" | "ring_allgatherv":
            return CollectiveRecord(kind="all_gather", sent=tuple(setting.sizes()))
        case "allgather_padded":
            longest = (max(setting.sizes()),) * ranks
            return CollectiveRecord(kind="all_gather", sent=longest)
        case "barrier":
            return CollectiveRecord(kind="all_gather", sent=(0,) * ranks)
    raise InternalError(f"no collective is called {setting.collective!r}")


UNSHAPED = 100_000
"""Mbit/s that stand for no shaper."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting, and what was measured of it; times in seconds."""

    collective: str
    shape: str
    """Blocks: equal, linear, heavy; "": there is no choice."""
    block: int | None
    """Bytes that a ring of sends and receives forwards at a time; 0: whole blocks."""
    ranks: int
    rate_mbit: int
    slow_mbit: int | None
    """Rate of the last node's NIC, where it is slower."""
    nbytes: int
    seconds: float
    repeats: int
    wire_bytes: int | None
    """Bytes of all NICs together, with headers and acknowledgements, where they were counted."""

    @property
    def name(self) -> str:
        """Unique, for a person."""
        slow = f", one of {self.slow_mbit}" if self.slow_mbit else ""
        return f"{self.label} {self.nbytes} B, {self.ranks} ranks, {self.rate_mbit} Mbit/s{slow}"

    @property
    def label(self) -> str:
        """Name of the collective."""
        pieces = f"by {self.block} B" if self.block else ""
        return " ".join(" ".join([self.collective, self.shape, pieces]).split())

    def sizes(self) -> list[int]:
        """Bytes of each rank's block."""
        ranks, total = self.ranks, self.nbytes
        if self.shape == "linear":
            unit = ranks * (ranks + 1) // 2
            return [total * (rank + 1) // unit for rank in range(ranks)]
        if self.shape == "heavy":
            rest = total // 2 // (ranks - 1)
            return [total - (ranks - 1) * rest] + [rest] * (ranks - 1)
        return [total // ranks] * ranks


@cache
def settings() -> tuple[Setting, ...]:
    """All of them, in the order of the file."""
    return tuple(
        data_values(
            "shaped_collectives", Setting, slow_mbit="slow", nbytes="bytes", seconds="median_s"
        )
    )
