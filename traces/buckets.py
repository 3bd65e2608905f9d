"""Buckets of parameters by PyTorch DDP's rules, after its rebuild in the first iteration.

Buckets are filled in the order in which gradients become ready (`models/ready_order.py`) and closed
at their limit: the first at 1 MiB, so that communication starts early, the others at 25 MiB; if
`bucket_cap_mb` is set, all at that (torch 2.13, nn/parallel/distributed.py,
`BucketCapacityConfig`). A parameter is never split, so a large one makes a large bucket.

Source: S. Li et al., "PyTorch Distributed", VLDB 2020, section 3.2.3; tests compare with torch's
Reducer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from gcsim.compressors.bucket import BucketLayout

FIRST_BYTES = 1024 * 1024
CAP_BYTES = 25 * 1024 * 1024
_FLOAT32 = 4


def bucket_layouts(
    parameters: Sequence[tuple[str, tuple[int, ...]]],
    ready_order: Sequence[int] = (),
    *,
    first: int = FIRST_BYTES,
    cap: int = CAP_BYTES,
) -> tuple[BucketLayout, ...]:
    """Return the layouts in the order in which buckets become ready. `parameters` are names and
    shapes in the order of `model.parameters()`, `ready_order` their indices as gradients become
    ready; the default is the reverse order, as in a chain of layers whose biases come first. Limits
    are in bytes."""
    buckets: list[list[tuple[str, int, tuple[int, ...]]]] = [[]]
    elements = 0
    for index in ready_order or reversed(range(len(parameters))):
        name, shape = parameters[index]
        buckets[-1].append((name, index, tuple(shape)))
        elements += math.prod(shape)
        if _FLOAT32 * elements >= (cap if len(buckets) > 1 else first):
            buckets.append([])
            elements = 0
    filled = filter(None, buckets)
    return tuple(BucketLayout.behind(number, pieces) for number, pieces in enumerate(filled))
