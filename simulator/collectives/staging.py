"""What does it cost to bring device tensors to the host's network stack and back?

Gloo moves host memory: PyTorch copies a device tensor to pinned host memory before the
collective and the result back after it. A copy takes latency + bytes / bandwidth of the link
between a device and its node's memory, and a copy is whole before the collective uses it.

| collective | host to device                                                         |
|------------|------------------------------------------------------------------------|
| all-reduce | the vector                                                             |
| all-gather | the blocks of all p ranks, the rank's own included: the whole output   |
| push-pull  | what was pulled                                                        |
| all-to-all | as much as was handed over                                             |
| tree merge | the result                                                             |

Assumption: the devices of a node do not slow down each other's copies.

Source: torch/csrc/distributed/c10d/ProcessGroupGloo.cpp (AsyncAllreduceCUDAWork,
AsyncAllgatherCUDAWork).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gcsim.simulator.clock import Picoseconds, Times
from gcsim.simulator.links import Link


def copy_time(nbytes: int, link: Link) -> Picoseconds:
    """One copy between a device and its node's memory."""
    return link.serialization(nbytes) + link.latency_ps


def after_copies(times: Times, sizes: Sequence[int], link: Link) -> Times:
    """When each rank's copy, begun at `times` `[p]`, is done; `sizes[r]` bytes for rank r."""
    prices = {size: copy_time(size, link) for size in set(sizes)}
    return times + np.array([prices[size] for size in sizes], dtype=np.int64)
