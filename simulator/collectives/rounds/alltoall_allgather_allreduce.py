"""All-reduce that sends every chunk straight to the rank that sums it.

The vector is split into p chunks. Every rank sends chunk q to rank q, one partner at a time
(`direct_exchange.py`), adds what arrives to its own chunk, then sends its sum to all others.

With one device per node and equal links, chunks and entries:
2 (p - 1)(alpha + n beta / p) + (p - 1) n gamma / p, like a ring; but compressed chunks, which are
summed on one rank, are not compressed again at every step.

Assumptions: those of `fabric/rounds.py`; an empty chunk still costs a message's latency. The second
part's messages are numbers p - 1 to 2 p - 3.

Source: the all-reduce of Thakur, Rabenseifner and Gropp 2005 (Int. J. High Perform. Comput. Appl.
19), sec. 4.3 and 4.5, with pairwise exchanges for the reduce-scatter and for the all-gather; for
compressed chunks in H. Tang et al. 2021 (ICML), "1-bit Adam".
"""

from __future__ import annotations

import numpy as np

from gcsim.simulator.collectives.call import Call
from gcsim.simulator.collectives.rings.allreduce import chunks
from gcsim.simulator.collectives.rounds.direct_exchange import DirectExchange, Parts, TwoExchanges


def prepare(call: Call) -> TwoExchanges:
    """All-reduce over all devices, node by node."""
    fabric, whole = call.fabric, (len(call.sent), call.nbytes, call.element)
    return TwoExchanges(
        DirectExchange(fabric, _to_owners(*whole), gamma=call.gamma),
        DirectExchange(fabric, _to_all(*whole), first=len(call.sent) - 1),
    )


def _to_owners(ranks: int, nbytes: int, element: int) -> Parts:
    share, longer = divmod(nbytes // element, ranks)
    last = chunks(nbytes, ranks, element)[-1]
    sizes = longer, (share + 1) * element, share * element, last
    longest, long, short, rest = (np.full(ranks, size, dtype=np.int64) for size in sizes)
    return Parts(longer=longest, long=long, short=short, last=rest)


def _to_all(ranks: int, nbytes: int, element: int) -> Parts:
    split = np.array(chunks(nbytes, ranks, element), dtype=np.int64)
    return Parts(longer=np.zeros_like(split), long=split, short=split, last=split)
