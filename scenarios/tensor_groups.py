"""Groups of tensors that other code sends together: MG-WFBP's merging, Horovod's fusion."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from gcsim.compressors.bucket import BucketLayout, TensorSlice
from gcsim.simulator.clock import PS_PER_SECOND, Picoseconds

SMALL = 8192  # elements below which MG-WFBP never sends alone


def merged_ends(
    elements: Sequence[int], ready: Sequence[Picoseconds], start_up: float, per_byte: float
) -> list[int]:
    """Return the tensors after which MG-WFBP sends, including the last one.

    A message is merged with the next tensor if the previous exchange will still run then, if
    waiting costs less than a start-up, or if it has fewer than `SMALL` elements (Shi et al.,
    "MG-WFBP", INFOCOM 2019, algorithm 1, as in mgwfbp/hv_distributed_optimizer.py).
    """
    ends, free, size = [], 0.0, 0
    last = len(elements) - 1
    for place in range(last):
        size += elements[place]
        start = max(free, ready[place] / PS_PER_SECOND)
        end = start + start_up + 4 * per_byte * size
        following = ready[place + 1] / PS_PER_SECOND
        waits = following < end and following - start < start_up
        if not waits and size >= SMALL:
            ends.append(place + 1)
            free, size = end, 0
    return [*ends, last + 1]


def grouped(sizes: Sequence[int], groups: Sequence[Sequence[int]]) -> tuple[BucketLayout, ...]:
    """Return buckets for these groups of tensors with `sizes` elements."""
    layouts = []
    for index, group in enumerate(groups):
        offset, slices = 0, []
        for n in group:
            slices.append(TensorSlice(name=str(n), shape=(sizes[n],), offset=offset, index=n))
            offset += sizes[n]
        layouts.append(BucketLayout(index=index, slices=tuple(slices)))
    return tuple(layouts)


def fused(
    sizes: Sequence[int],
    ready: Sequence[float],
    transfer: Callable[[int], float],
    *,
    cycle: float,
    threshold: int,
) -> list[list[int]]:
    """Return the groups of tensors that Horovod sends together, as indices in sending order.

    Every `cycle` seconds, or later when the previous communication ends, it reduces tensors that
    are ready, up to `threshold` bytes (a larger one alone). `sizes`: bytes in forward order;
    `ready`: seconds from the start of the backward pass; `transfer`: seconds of an all-reduce by
    bytes.

    Source: Horovod, docs/tensor-fusion.md and operations.cc (`RunLoopOnce`, FUSION_THRESHOLD).
    """
    order = sorted(range(len(sizes)), key=lambda n: (ready[n], -n))
    groups: list[list[int]] = []
    now = cycle
    place = 0
    while place < len(order):
        if ready[order[place]] > now:
            now += cycle * math.ceil((ready[order[place]] - now) / cycle)
        start, held = place, 0
        while place < len(order) and ready[order[place]] <= now:
            if place > start and held + sizes[order[place]] > threshold:
                break
            held += sizes[order[place]]
            place += 1
        groups.append(order[start:place])
        now += max(cycle, transfer(held))
    return groups
