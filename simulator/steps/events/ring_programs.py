"""What is a collective in messages? The programs of those that may overlap.

| algorithm               | pieces of a block          | in flight | announced | direction |
|-------------------------|----------------------------|-----------|-----------|-----------|
| ring all-reduce         | the chunk                  | 1         | no        | r to r+1  |
| ring all-gather         | the contribution           | 1         | no        | r to r+1  |
| Gloo's ring all-reduce  | segments, two phases       | 2         | yes       | r to r-1  |
| Gloo's all-gather       | two halves of equal blocks | 2         | yes       | r to r+1  |
| Gloo's all-gatherv      | unequal blocks whole       | 1         | yes       | r to r+1  |

Everything else has no program, nor have Gloo's rings of two ranks, whose announcements wait behind
data on the one connection, nor those with nothing to send, nor anything where messages cost the
hosts' processors (`host.py`): what two collectives need of them adds up, as when each runs alone.

Source: `rings/allreduce.py`, `rings/allgather.py`, `rings/gloo_allreduce.py`,
`rings/gloo_allgather.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from gcsim.compressors.lockstep import CollectiveRecord
from gcsim.simulator.cluster import Cluster
from gcsim.simulator.collectives.choice import algorithm_name
from gcsim.simulator.collectives.dispatch import sizes_sent, traffic_of
from gcsim.simulator.collectives.rings.allreduce import chunks
from gcsim.simulator.collectives.rings.gloo_allreduce import segments
from gcsim.simulator.collectives.staging import copy_link, copy_times
from gcsim.simulator.fabric.rounds import Fabric
from gcsim.simulator.network.links import Link
from gcsim.simulator.steps.events.message_ring import NOTHING, RingProgram


class RingPrograms:
    """Of the collectives on one cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    @cached_property
    def _fabric(self) -> Fabric:
        return Fabric.of(self._cluster)

    def __call__(self, record: CollectiveRecord) -> RingProgram | None:
        """The program of a collective; None: it has none, and runs alone."""
        cluster, ranks = self._cluster, self._cluster.workers
        if ranks == 1 or record.by_servers or record.kind not in {"all_reduce", "all_gather"}:
            return None
        host = cluster.host
        if host is not None and host.interleaved:
            return None
        sent = sizes_sent(record, ranks)
        name = algorithm_name(record.kind, sent, record.element, cluster)
        links = self._fabric.ring_links()
        if name == "ring" and record.kind == "all_reduce":
            program = _textbook(chunks(sent[0], ranks, record.element), links, 2 * (ranks - 1))
        elif name == "ring":
            program = _textbook(sent, links, ranks - 1)
        elif name != "gloo_ring" or ranks == 2 or not any(sent):
            return None
        elif record.kind == "all_reduce":
            back = self._fabric.ring_links(backwards=True)
            program = gloo_allreduce(sent[0], back, record.element)
        else:
            program = gloo_allgather(sent, links)
        if record.kind == "all_reduce":
            program = replace(program, gamma=cluster.sums.gamma(record.dtype))
        if program.announced and record.kind == "all_reduce" and host is not None:
            program = replace(program, reception=host.per_received_byte)
        if not cluster.collectives.stages and host is None:
            return program
        after = np.zeros(ranks, dtype=np.int64)
        if host is not None:
            after += host.work(traffic_of(record, cluster)).after
        if not cluster.collectives.stages:
            return replace(program, after=after)
        link = copy_link(cluster)
        received = sent if record.kind == "all_reduce" else [sum(sent)] * ranks
        return replace(
            program, before=copy_times(sent, link), after=after + copy_times(received, link)
        )


def _textbook(blocks: Sequence[int], links: Sequence[Link], steps: int) -> RingProgram:
    return RingProgram(
        pieces=np.array(blocks, dtype=np.int64)[:, None],
        phases=((0, steps),),
        in_flight=1,
        announced=False,
        links=tuple(links),
    )


def gloo_allreduce(nbytes: int, links: Sequence[Link], element: int = 1) -> RingProgram:
    """Gloo's ring all-reduce of a vector; `links[r]` leads from rank r to rank r - 1 (mod p)."""
    ranks = len(links)
    count, segment = segments(nbytes, ranks, element)
    start = np.arange(count, dtype=np.int64) * segment
    sizes = np.minimum(nbytes - start, segment)
    by_chunk: NDArray[np.int64] = np.where(sizes > 0, sizes, NOTHING).reshape(ranks, -1)
    # Place k is rank p - 1 - k and begins with that rank's own chunk plus one, chunk p - k.
    return RingProgram(
        backwards=True,
        pieces=np.roll(by_chunk[::-1], 1, axis=0),
        phases=((0, ranks - 1), (1, ranks - 1)),
        in_flight=2,
        announced=True,
        links=tuple(links)[::-1],
    )


def gloo_allgather(sizes: Sequence[int], links: Sequence[Link]) -> RingProgram:
    """Gloo's all-gather of blocks; `links[r]` leads from rank r to rank r + 1."""
    blocks = np.array(sizes, dtype=np.int64)[:, None]
    equal = len(set(sizes)) == 1
    return RingProgram(
        pieces=np.hstack((blocks // 2, blocks - blocks // 2)) if equal else blocks,
        phases=((0, len(sizes) - 1),),
        in_flight=2 if equal else 1,
        announced=True,
        links=tuple(links),
    )
