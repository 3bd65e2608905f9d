"""NCCL's rings and trees on many clusters at once, where all ranks enter together.

The clusters differ only in the figures of their links (`fabric/in_worlds.py`), so they exchange the
same messages. Messages are priced for all clusters at once; compiled loops then run each cluster.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from gcsim.compressors.lockstep import CollectiveRecord
from gcsim.simulator.collectives import nccl
from gcsim.simulator.collectives.dispatch import algorithm_name, call_of
from gcsim.simulator.collectives.rings.messages import classes
from gcsim.simulator.fabric.in_worlds import Column, PathsInWorlds
from gcsim.simulator.fabric.rounds import Fabric


def last_exits(
    record: CollectiveRecord, worlds: PathsInWorlds, algorithm: str = ""
) -> Column | None:
    """Return the last exit `[clusters]` with an algorithm ("": the stated cluster's choice),
    picoseconds. None unless it is one of NCCL's rings or trees over the network, with the same
    tuner's rates on all clusters, and no other cost takes time."""
    cluster, kind = worlds.cluster, record.kind
    if record.scope != "all" or record.by_servers or kind not in {"all_reduce", "all_gather"}:
        return None
    if cluster.nodes == 1 or cluster.host is not None or cluster.collectives.stages:
        return None
    call = call_of(record, cluster, Fabric.of(cluster))
    name = algorithm or algorithm_name(kind, call.sent, record.element, cluster)
    mode = next((mode for mode in nccl.MODES if mode.name == name), None)
    if mode is None or {each.shape for each in nccl.enabled(kind, cluster)} - {"ring", "tree"}:
        return None
    base, framing = nccl.start_delay_and_framing(mode, cluster)
    fabric, price = call.fabric.with_framing(framing), partial(worlds.paths, framing=framing)
    if mode.shape == "tree":
        last = nccl.tree(call, mode, fabric).last_in_worlds(price)
        return None if last is None else (base + last).astype(np.float64)
    links, (paths, place) = fabric.ring_links(), fabric.ring_paths()
    _, kinds = classes([id(link) for link in links])
    first = np.unique(kinds, return_index=True)[1]
    if len(first) != len(paths):  # paths with equal stated figures may differ in other worlds
        return None
    last = nccl.ring(call, kind, fabric).last_in_worlds(
        price([paths[number] for number in place[first].tolist()])
    )
    return (base + last).astype(np.float64)
