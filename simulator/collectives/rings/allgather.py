"""Ring all-gather of whole, possibly unequal blocks: exact times of every rank.

In each of p - 1 steps a rank forwards the block that it received last. The largest block crosses
every link, so unequal blocks cost up to (p - 1) max n_i beta, in Gloo as well.

Assumptions: those of `rings/recurrence.py`; an empty block still costs a message's latency; sizes
are known (exchanging lengths is a collective of its own, `gather_variable`).

Source: Thakur, Rabenseifner and Gropp 2005 (Int. J. High Perform. Comput. Appl. 19), sec. 4.1.
"""

from __future__ import annotations

from collections.abc import Sequence

from gcsim.simulator.collectives.call import Call
from gcsim.simulator.collectives.rings.messages import Blocks
from gcsim.simulator.collectives.rings.program import Phase, Program
from gcsim.simulator.collectives.rings.recurrence import PreparedRing
from gcsim.simulator.network.links import Link


def ring_allgather(sizes: Sequence[int], links: Sequence[Link]) -> PreparedRing:
    """Prepare an all-gather of `sizes[r]` bytes from rank r, over `links[r]` to rank r + 1."""
    return PreparedRing(Blocks.of(sizes), links, steps=len(links) - 1)


def prepare(call: Call) -> PreparedRing:
    """Gather over all devices, node by node."""
    return ring_allgather(call.sent, call.ring_links())


def ring(call: Call) -> Program:
    """Program of every rank."""
    return Program.textbook(Blocks.of(call.sent), Phase())
