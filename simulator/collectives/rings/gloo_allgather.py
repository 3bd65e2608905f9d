"""Gloo's ring all-gather, with equal or unequal blocks: exact times of every rank.

Blocks travel from rank to rank with announcements (`rings/announced.py`):

- Equal blocks (`allgather`): two halves per block, two messages in flight. With equal links and
  entries and halves of m bytes, m beta >= 2 alpha: 2 (p - 1) m beta + 2 alpha.
- Unequal blocks (`allgatherv`): whole blocks, one message in flight; every step costs its block and
  two latencies: (p - 1)(n beta + 2 alpha) for equal blocks of n bytes.

A rank posts its send before its receive. With two ranks, one that enters at least a latency later
sends at once, and its announcement queues behind its data. So the other rank sends half a block
later, and the all-gather takes three halves instead of two (unequal blocks: one after the other).

Assumptions: those of `rings/announced.py`; sizes are known; empty blocks, and empty halves of
one-byte blocks, are messages too, unless all blocks are empty.

Source: pytorch/gloo, gloo/allgather.cc and gloo/allgatherv.cc; PyTorch uses the first for tensors,
which must be of one size, and the second for sparse ones (torch/csrc/distributed/c10d,
ProcessGroupGloo.cpp, where all blocks are gathered in one buffer and copied from there).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gcsim.simulator.clock import Times
from gcsim.simulator.collectives.call import Call, Prepared
from gcsim.simulator.collectives.rings.announced import AnnouncedRing, EmptyCollective
from gcsim.simulator.collectives.rings.messages import classes
from gcsim.simulator.collectives.rings.program import Program
from gcsim.simulator.host import Traffic
from gcsim.simulator.network.links import Link


def gloo_ring_allgather(
    sizes: Sequence[int], links: Sequence[Link]
) -> AnnouncedRing | EmptyCollective:
    """Prepare an all-gather of `sizes[r]` bytes from rank r, over `links[r]` to rank r + 1."""
    return AnnouncedRing(program(sizes), links) if any(sizes) else EmptyCollective()


def program(sizes: Sequence[int]) -> Program:
    """Program for blocks of `sizes` bytes, by rank."""
    if len(set(sizes)) == 1:
        half = sizes[0] // 2
        pieces = np.tile(np.arange(2, dtype=np.int64), (len(sizes), 1))
        return Program(sizes=(half, sizes[0] - half), pieces=pieces, in_flight=2, sends_first=True)
    distinct, blocks = classes(sizes)
    return Program(sizes=tuple(distinct), pieces=blocks[:, None], sends_first=True)


class _LatencyApart:
    """All-gather of two ranks whose entries are moved apart to a latency or more (the later one, or
    rank 1, is delayed), since two machines never enter closer, and the behaviour depends on it."""

    nbytes = 4096

    def __init__(self, sizes: Sequence[int], links: Sequence[Link]) -> None:
        self._links, self._ring = links, gloo_ring_allgather(sizes, links)

    def __call__(self, starts: Times, key: int = 0) -> Times:
        first, late = (0, 1) if starts[0] <= starts[1] else (1, 0)
        starts = starts.copy()
        latency = max(1, self._links[first].latency_for(0))
        starts[late] = max(starts[late], starts[first] + latency)
        return self._ring(starts, key)


def prepare(call: Call) -> Prepared:
    """Gather over all devices, node by node."""
    if len(call.sent) == 2:
        return _LatencyApart(call.sent, call.ring_links())
    return gloo_ring_allgather(call.sent, call.ring_links())


def ring(call: Call) -> Program | None:
    """Program of every rank; None where nothing is sent."""
    return program(call.sent) if any(call.sent) else None


def traffic(call: Call) -> Traffic:
    """Traffic of the ranks."""
    found, devices = ring(call), call.fabric.devices
    if found is None:
        return Traffic.none(len(call.sent), devices)
    return found.traffic(devices, copied=sum(call.sent))
