"""What do the ranks of a ring handle when blocks go around it?

In a pass of p - 1 steps rank r passes on the blocks r + f, r + f - 1, ... (mod p), all but block
r + f + 1, and receives what its predecessor passes on, all but block r + f.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gcsim.simulator.host import Traffic


def ring_traffic(
    messages: NDArray[np.int64] | Sequence[int],
    nbytes: NDArray[np.int64] | Sequence[int],
    *,
    devices: int,
    firsts: Sequence[int] = (0,),
    backwards: bool = False,
    copied: int = 0,
) -> Traffic:
    """Of one pass for each f in `firsts`.

    `messages[b]` and `nbytes[b]` are those of block b, of p in all, on each hop; ranks are counted
    node by node, `devices` a node. `backwards`: rank r of the ring is rank p - 1 - r. `copied`
    bytes are copied afterwards by each.
    """
    ends, size = (
        np.sum([_both_ends(np.asarray(each, dtype=np.int64), first) for first in firsts], axis=0)
        for each in (messages, nbytes)
    )
    if backwards:
        ends, size = ends[::-1], size[::-1]
    return Traffic.of_ranks(ends, size, devices, copied=copied)


def _both_ends(blocks: NDArray[np.int64], first: int) -> NDArray[np.int64]:
    """`[p]`: of all blocks twice, without the one not sent and the one not received."""
    not_received = np.roll(blocks, -first)
    handled: NDArray[np.int64] = 2 * blocks.sum() - not_received - np.roll(not_received, -1)
    return handled
