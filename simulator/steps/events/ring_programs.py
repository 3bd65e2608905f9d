"""What is a collective in messages? The programs of those that may overlap.

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

from gcsim.compressors.lockstep import CollectiveRecord
from gcsim.simulator.clock import NO_COST
from gcsim.simulator.cluster import Cluster
from gcsim.simulator.collectives.dispatch import algorithm_of, call_of, traffic_of
from gcsim.simulator.collectives.rings.program import Program
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
        cluster, ranks, host = self._cluster, self._cluster.workers, self._cluster.host
        ring = algorithm_of(record, cluster).ring
        if ranks == 1 or ring is None or (host is not None and host.interleaved):
            return None
        call = call_of(record, cluster, self._fabric)
        found = ring(call)
        if found is None or (found.announced and ranks == 2):
            return None
        sent, program = call.sent, in_messages(found, call.ring_links(backwards=found.backwards))
        if record.kind == "all_reduce":
            reception = call.reception if found.announced else NO_COST
            program = replace(program, gamma=call.gamma, reception=reception)
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


def in_messages(program: Program, links: Sequence[Link]) -> RingProgram:
    """Message by message; `links[r]` leads from rank r to rank r + 1, or r - 1 if `backwards`."""
    sizes = np.array(program.sizes, dtype=np.int64)
    if program.skips_empty:
        sizes = np.where(sizes > 0, sizes, NOTHING)
    return RingProgram(
        backwards=program.backwards,
        pieces=sizes[program.pieces],
        phases=tuple((phase.first, len(links) - 1) for phase in program.phases),
        in_flight=program.in_flight,
        announced=program.announced,
        links=tuple(links)[::-1] if program.backwards else tuple(links),
    )
