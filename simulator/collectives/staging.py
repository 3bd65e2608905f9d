"""Copies of device tensors to host memory and back, and distribution from a node's first rank.

PyTorch copies a device tensor to pinned host memory before Gloo's collective and the result back
after it. A copy takes latency + bytes / bandwidth of their link, and ends before the collective
uses it.

| collective | host to device                                                         |
|------------|------------------------------------------------------------------------|
| all-reduce | the vector                                                             |
| all-gather | the blocks of all p ranks, the rank's own included: the whole output   |
| push-pull  | the pulled payload                                                     |
| all-to-all | as many bytes as were sent                                             |
| tree merge | the result                                                             |

All devices of a node copy at once, and share a shared bus (`Cluster.shared_bus`). No random delays.

A rack's first rank broadcasts to the rack's other nodes: with Gloo or MPI along a binomial tree,
each level of which takes the time of a whole message; otherwise in a pipeline from node to node,
where each node adds only a latency. Then each node distributes the result to its devices.

Source: torch/csrc/distributed/c10d/ProcessGroupGloo.cpp (AsyncAllreduceCUDAWork,
AsyncAllgatherCUDAWork); pytorch/gloo, gloo/broadcast.cc; NVIDIA/nccl, src/device/broadcast.h.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gcsim.simulator.clock import COLLECTIVE_LIMIT, Picoseconds, Times, too_long
from gcsim.simulator.cluster import Cluster
from gcsim.simulator.network.links import Link
from gcsim.simulator.network.paths import share_link


def copy_link(cluster: Cluster) -> Link:
    """Return the link between a device and its node's memory while all devices copy."""
    sharing = cluster.devices_per_node if cluster.shared_bus else 1
    return share_link(cluster.intra_node, sharing)


def copy_time(nbytes: int, link: Link) -> Picoseconds:
    """Return the time of one copy."""
    return link.serialization(nbytes) + link.latency_for(nbytes)


def copy_times(sizes: Sequence[int], link: Link) -> Times:
    """Return the time of each rank's copy, `[p]`; `InputError` if too long."""
    prices = {size: copy_time(size, link) for size in set(sizes)}
    if (longest := max(prices.values(), default=0)) >= COLLECTIVE_LIMIT:
        raise too_long(longest)
    if len(prices) == 1:
        return np.full(len(sizes), longest, dtype=np.int64)
    return np.array([prices[size] for size in sizes], dtype=np.int64)


def handing_out_times(sizes: Sequence[int], cluster: Cluster, ranks: int) -> Times:
    """Return the times that first ranks need to send `sizes` bytes to all `ranks` of their node or
    rack, `[p]`."""
    devices = cluster.devices_per_node
    times = np.zeros(len(sizes), dtype=np.int64)
    if devices > 1:
        times += copy_times(sizes, copy_link(cluster))
    if (nodes := ranks // devices) > 1:
        link = cluster.network
        whole = copy_times(sizes, link)
        if cluster.collectives.transport in {"gloo", "mpich"}:
            return times + (nodes - 1).bit_length() * whole
        delays = [link.latency_for(size) for size in sizes]
        times += whole + (nodes - 2) * np.array(delays, dtype=np.int64)
    return times
