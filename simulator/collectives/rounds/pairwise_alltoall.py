"""All-to-all in which each rank talks to one partner at a time (`direct_exchange.py`).

Where parts may differ in length, a round of 8 bytes per pair precedes them. With one device per
node and equal links, parts and entries: (p - 1)(alpha + n beta / p) for n bytes per rank, its own
part included.

Assumptions: those of `fabric/rounds.py`; a rank's parts are equal to the byte, the longer first.

Source: pairwise exchange, Thakur, Rabenseifner and Gropp 2005 (Int. J. High Perform. Comput. Appl.
19), sec. 4.4.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gcsim.simulator.collectives.call import Call
from gcsim.simulator.collectives.rounds.direct_exchange import DirectExchange, Parts, TwoExchanges

LENGTH_BYTES = 8  # bytes of a part's announced length


def prepare(call: Call) -> DirectExchange | TwoExchanges:
    """All-to-all of the lengths, where they differ, then of the parts of `sent[r]` bytes, rank r's
    own part included."""
    fabric, ranks = call.fabric, len(call.sent)
    if not call.variable:
        return DirectExchange(fabric, _parts(call.sent))
    lengths = DirectExchange(fabric, _parts((LENGTH_BYTES * ranks,) * ranks))
    return TwoExchanges(lengths, DirectExchange(fabric, _parts(call.sent), first=ranks - 1))


def _parts(sent: Sequence[int]) -> Parts:
    share, longer = np.divmod(np.array(sent, dtype=np.int64), len(sent))
    return Parts(longer=longer, long=share + 1, short=share, last=share)
