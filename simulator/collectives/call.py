"""What a collective algorithm is told: who enters when, with how many bytes, on which cluster."""

from __future__ import annotations

from dataclasses import dataclass

from gcsim.errors import InternalError
from gcsim.simulator.clock import Picoseconds, Times
from gcsim.simulator.cluster import Cluster
from gcsim.simulator.links import Link


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Call:
    """One collective of all p workers of a cluster."""

    entry: Times
    """When each rank enters, picoseconds, `[p]`."""
    sent: tuple[int, ...]
    """Bytes that each rank hands over, `[p]`."""
    element: int = 1
    """All-reduce: bytes an element."""
    pulled: int = 0
    """Push-pull, tree merge: bytes of the result, which each rank receives."""
    variable: bool = False
    """All-to-all: lengths are exchanged first."""
    cluster: Cluster
    server_time: Picoseconds = 0
    """Push-pull: what each server computes between the last push and the first pull; tree merge:
    what one merge computes."""

    @property
    def nbytes(self) -> int:
        """All-reduce: bytes of the vector, the same on every rank."""
        if len(set(self.sent)) != 1:
            raise InternalError(f"all-reduce of vectors of unequal size: {set(self.sent)} bytes")
        return self.sent[0]

    def ring_links(self) -> list[Link]:
        """The hop from each rank to its successor in the flat ring, node by node.

        Between two devices of a node it is the node's own link, else the network: each network
        card carries one flow out and one in.
        """
        cluster = self.cluster
        return [
            cluster.intra_node
            if cluster.node_of(rank) == cluster.node_of((rank + 1) % cluster.workers)
            else cluster.network
            for rank in range(cluster.workers)
        ]
