"""Interface of a collective algorithm: bytes on a cluster in, exit times out."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Protocol

from gcsim.errors import InternalError
from gcsim.simulator.clock import Picoseconds, Times
from gcsim.simulator.cluster import Cluster
from gcsim.simulator.fabric.rounds import Fabric
from gcsim.simulator.network.links import Link


class Prepared(Protocol):
    """A collective prepared for any entry times."""

    def __call__(self, starts: Times, key: int = 0) -> Times:
        """Return exit times `[p]` for entry times `[p]` of p > 1 ranks, int64, picoseconds. `key`
        seeds the messages' random delays (`jitter.py`). Times are absolute if links change over
        time. Raises `InputError` when the clock cannot hold them."""

    @property
    def nbytes(self) -> int:
        """Approximate memory."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Call:
    """One collective of all p workers of a cluster."""

    sent: tuple[int, ...]  # bytes from each rank, `[p]`
    element: int = 1  # all-reduce: bytes per element
    dtype: str = "float32"  # all-reduce: element type
    pulled: int = 0  # push-pull, tree merge: bytes of the result
    variable: bool = False  # all-to-all: lengths are exchanged first
    cluster: Cluster
    server_time: Picoseconds = 0
    """Push-pull: each server's computation from last push to first pull; tree merge: one merge."""

    known_fabric: Fabric | None = None  # fabric of the cluster, if known

    @cached_property
    def nbytes(self) -> int:
        """All-reduce: bytes of the vector, equal on all ranks."""
        first = self.sent[0]
        if self.sent.count(first) != len(self.sent):
            raise InternalError(f"all-reduce of vectors of unequal size: {set(self.sent)} bytes")
        return first

    @property
    def gamma(self) -> Fraction:
        """Reductions: seconds per added byte."""
        return self.cluster.sums.gamma(self.dtype)

    @property
    def reception(self) -> Fraction:
        """Gloo's all-reduce: seconds per byte to take in a message that has arrived."""
        host = self.cluster.host
        return Fraction(0) if host is None else host.per_received_byte

    @property
    def fabric(self) -> Fabric:
        """Links between any ranks."""
        return Fabric.of(self.cluster) if self.known_fabric is None else self.known_fabric

    def ring_links(self, *, backwards: bool = False) -> tuple[Link, ...]:
        """Return the hop from each rank to its successor (`backwards`: predecessor), node by node:
        inside a node its bus, else the path between both NICs, with its share of a rack's uplink or
        of the air. The same tuple is returned for all calls on one fabric."""
        return self.fabric.ring_links(backwards=backwards)
