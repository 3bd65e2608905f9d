"""In which order does a stream serve the pieces of a step?

In one order on all ranks, whatever their paces: first come, first served, as it would be on a
cluster whose ranks all compute alike (`events/even_cluster.py` finds it). A stream that took what
arrives first would let a rank that is a little early take a long encoding in front of a short
computation that all others wait for: then one slow worker could cost more than all of them slow.
With fixed orders, here and of collectives, every time is made of sums and maxima of those before,
so that nothing that takes less time makes an iteration longer (F. Baccelli, G. Cohen, G. J. Olsder,
J.-P. Quadrat 1992, "Synchronization and Linearity", Wiley, sec. 1.3).
"""

from __future__ import annotations

from collections.abc import Iterator

from gcsim.simulator.steps.step_plan import StepPlan

Piece = tuple[int, int]
"""A bucket, and the place among its collectives of the one that the piece follows; -1: the piece
before the first, which is the bucket's part of the backward pass unless a side stream serves. The
rest of the backward pass comes as one more bucket's."""
BEFORE = -1


def order_of_service(plan: StepPlan) -> Iterator[Piece]:
    """The pieces of the stream that serves what follows collectives, by `BucketWork.behind`."""
    pieces = len(plan.buckets) if plan.side_stream else len(plan.buckets) + 1
    coming = 0
    for bucket, work in enumerate(plan.buckets):
        behind = work.behind or (bucket + 1,) * len(work.collectives)
        for place, those in enumerate(behind):
            while coming < min(those, pieces):
                yield coming, BEFORE
                coming += 1
            yield bucket, place
    for bucket in range(coming, pieces):
        yield bucket, BEFORE
