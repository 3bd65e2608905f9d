"""How long does the ring all-gather of whole, possibly unequal blocks take?

p - 1 steps; at each a rank forwards to its successor the whole block that it received last. The
largest block passes every link, so that unequal blocks cost up to (p - 1) max n_i beta; Gloo and
the textbook do it this way.

Assumptions: those of `rings/recurrence.py`. An empty block still costs a message's latency. Sizes
are known: an exchange of lengths is a collective of its own (`gather_variable`).

Source: Thakur, Rabenseifner and Gropp 2005 (Int. J. High Perform. Comput. Appl. 19), sec. 4.1.
"""

from __future__ import annotations

from collections.abc import Sequence

from gcsim.simulator.clock import Times
from gcsim.simulator.collectives.call import Call
from gcsim.simulator.collectives.rings.cache import Prepared
from gcsim.simulator.collectives.rings.messages import Blocks
from gcsim.simulator.collectives.rings.program import Phase, Program
from gcsim.simulator.collectives.rings.recurrence import PreparedRing
from gcsim.simulator.host import Traffic
from gcsim.simulator.network.links import Link

_RINGS: Prepared[PreparedRing] = Prepared()


def ring_allgather(
    starts: Times, sizes: Sequence[int], links: Sequence[Link], *, key: int = 0
) -> Times:
    """Exit times `[p]` for entry times `[p]`, picoseconds.

    `sizes[r]` is the bytes of rank r's block; `links[r]` leads from rank r to rank r + 1
    (mod p). p = 1 costs nothing. Message s of a rank is its send of step s; `key` is the
    collective's.
    """
    if len(starts) == 1:
        return starts.copy()
    return prepared(tuple(sizes), links)(starts, key)


def prepared(sizes: tuple[int, ...], links: Sequence[Link]) -> PreparedRing:
    """The all-gather of p > 1 ranks, to be called with entry times and key."""
    return _RINGS(sizes, links, lambda: PreparedRing(Blocks.of(sizes), links, steps=len(links) - 1))


def execute(call: Call) -> Times:
    """The ring over all devices, node by node."""
    return prepared_for(call)(call.starts, call.key)


def prepared_for(call: Call) -> PreparedRing:
    """For any entry times."""
    return prepared(call.sent, call.ring_links())


def ring(call: Call) -> Program:
    """What every rank does."""
    return Program.textbook(Blocks.of(call.sent), Phase())


def traffic(call: Call) -> Traffic:
    """What the ranks handle in it."""
    return ring(call).traffic(call.fabric.devices)
