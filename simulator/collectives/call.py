"""Interface of a collective algorithm: bytes on a cluster in, exit times out."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

from gcsim.errors import InternalError
from gcsim.simulator.clock import Picoseconds, Times
from gcsim.simulator.cluster import Cluster
from gcsim.simulator.fabric.rounds import Fabric
from gcsim.simulator.network.links import Link


class Prepared(Protocol):
    """A collective of which all is known but when ranks enter."""

    def __call__(self, starts: Times, key: int = 0) -> Times:
        """Exit times `[p]` for entry times `[p]` of p > 1 ranks, int64, picoseconds.

        `key` is that of the random delays of its messages (`jitter.py`). Times are absolute where
        links change over time. Raises `InputError` when the clock cannot hold them.
        """

    @property
    def nbytes(self) -> int:
        """Memory, about."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Call:
    """One collective of all p workers of a cluster."""

    sent: tuple[int, ...]
    """Bytes that each rank hands over, `[p]`."""
    element: int = 1
    """All-reduce: bytes an element."""
    dtype: str = "float32"
    """All-reduce: type of the elements."""
    pulled: int = 0
    """Push-pull, tree merge: bytes of the result, which each rank receives."""
    variable: bool = False
    """All-to-all: lengths are exchanged first."""
    cluster: Cluster
    server_time: Picoseconds = 0
    """Push-pull: what each server computes between the last push and the first pull; tree merge:
    what one merge computes."""

    at_hand: Fabric | None = None
    """Fabric of the cluster where it is known already."""

    @property
    def nbytes(self) -> int:
        """All-reduce: bytes of the vector, the same on every rank."""
        first = self.sent[0]
        if self.sent.count(first) != len(self.sent):
            raise InternalError(f"all-reduce of vectors of unequal size: {set(self.sent)} bytes")
        return first

    @property
    def gamma(self) -> Fraction:
        """Reductions: seconds a byte that a rank adds to its own."""
        return self.cluster.sums.gamma(self.dtype)

    @property
    def reception(self) -> Fraction:
        """Gloo's all-reduce: seconds a byte that a rank needs to take in what has arrived."""
        host = self.cluster.host
        return Fraction(0) if host is None else host.per_received_byte

    @property
    def fabric(self) -> Fabric:
        """The links between any ranks."""
        return Fabric.of(self.cluster) if self.at_hand is None else self.at_hand

    def ring_links(self, *, backwards: bool = False) -> tuple[Link, ...]:
        """The hop from each rank to its successor in the flat ring, node by node.

        Between two devices of a node it is the node's own link, else the path between their NICs;
        what several hops pass (a rack's uplink, the air) each has its share of. `backwards`: the
        hop to the predecessor. The same tuple for all calls on one fabric.
        """
        return self.fabric.ring_links(backwards=backwards)
