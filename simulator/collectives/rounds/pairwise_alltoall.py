"""How long does an all-to-all take in which each rank talks to one partner at a time?

The p - 1 steps of `direct_exchange.py`, in which each rank sends each other its part. Where parts
may differ in length, a round of 8 bytes a pair precedes them.

With one device a node and equal links, parts and entries: (p - 1)(alpha + n beta / p) for n bytes
that each rank hands over, its own part included.

Assumptions: those of `fabric/rounds.py`; a rank's parts are equal, 1/p of what it hands over, to
the byte, the longer first.

Source: the pairwise exchange of Thakur, Rabenseifner and Gropp 2005 (Int. J. High Perform. Comput.
Appl. 19), sec. 4.4.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gcsim.simulator.clock import Times
from gcsim.simulator.collectives.call import Call
from gcsim.simulator.collectives.rounds.direct_exchange import direct_traffic, exchange_directly
from gcsim.simulator.collectives.rounds.nic_exchange import Parts
from gcsim.simulator.fabric.rounds import Fabric
from gcsim.simulator.host import Traffic

LENGTH_BYTES = 8
"""What announces the length of a part."""


def pairwise_alltoall(
    starts: Times, sent: Sequence[int], fabric: Fabric, *, key: int = 0, first: int = 0
) -> Times:
    """Exit times `[p]` for entry times `[p]`, picoseconds.

    `sent[r]` is the bytes that rank r hands over for all p ranks together, itself included; `key`
    is that of the random delays, `first` the number of a rank's first message. p = 1 costs nothing.
    """
    return exchange_directly(starts, fabric, _parts, tuple(sent), key=key, first=first)


def _parts(ranks: int, sent: tuple[int, ...]) -> Parts:
    share, longer = np.divmod(np.array(sent, dtype=np.int64), ranks)
    return Parts(longer=longer, long=share + 1, short=share, last=share)


def execute(call: Call) -> Times:
    """The lengths where they differ, then the parts."""
    starts, ranks, first = call.starts, len(call.sent), 0
    if call.variable:
        lengths = (LENGTH_BYTES * ranks,) * ranks
        starts = pairwise_alltoall(starts, lengths, call.fabric, key=call.key)
        first = ranks - 1
    return pairwise_alltoall(starts, call.sent, call.fabric, key=call.key, first=first)


def traffic(call: Call) -> Traffic:
    """What the ranks handle in it."""
    ranks = len(call.sent)
    parts = direct_traffic(call.fabric, _parts, tuple(call.sent))
    if not call.variable:
        return parts
    return parts + direct_traffic(call.fabric, _parts, (LENGTH_BYTES * ranks,) * ranks)
