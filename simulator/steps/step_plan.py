"""A training step as plain data that both step engines share.

Semantics, for each rank r and iteration i (all times in integer picoseconds):

- Iteration i + 1 of a rank begins when its iteration i is finished; nobody waits for anybody
  except in collectives. All ranks begin iteration 0 at 0.
- Input: the loader of each rank makes batch 0, 1, 2, ... one after the other, `input_batch` each.
  It begins batch b when batch b - 1 is made and batch b - prefetch has been taken (b < prefetch: at
  once). A micro-batch's forward pass takes one batch; it waits until one is made (`input`).
- An iteration has `accumulation` micro-batches: forward and backward without any exchange, but for
  the last one, whose backward pass is interleaved with the buckets'.
- Compute stream: one piece of work at a time, never interrupted, in an order that is the same on
  all ranks, whatever their paces. The autograd thread issues forward; then for each
  bucket its part of backward; then the rest of backward; each when the one before is done. In a
  micro-batch without exchange backward is one job. A piece whose jobs take no time is done when it
  arrives: nothing is launched, so nothing queues.
- Without a side stream a bucket's `before` jobs are one piece with its part of backward, and what
  follows a collective (`after`) is a piece that arrives on the compute stream when that collective
  returns. With a side stream both go there: `before` arrives when the bucket's backward part is
  done, `after` when the collective returns; in such an order too; each job takes `side_slowdown`
  times as long, rounded to the nearest picosecond (halves to the even one) before the rank's pace.
- `in_turn`: `before` arrives no sooner than when the exchange of the bucket in front is done.
- A bucket asks for its first collective when `before` is done, and for the next when the `after`
  of the one before is done.
- Communicator: all ranks carry out collectives by iteration, then bucket, then place in the
  bucket's exchange, whoever asks first. One slot: rank r enters a collective when it has asked for
  it and has left the one in front of it. Two slots: when it has asked for it, has entered the one
  in front, and has left all but one of those in front. With one slot every rank leaves a collective
  `BucketWork.held` after the exit that the network makes.
- A rank's optimiser runs on the compute stream when all its exchanges and its backward pass are
  done; then the iteration is finished.
- Ranks of a machine share its cores (`StepPlan.machines`): while n streams of a machine do jobs of
  `kinds`, each of these jobs gets on at the speed min(1, cores / n); it ends at the first whole
  picosecond at which it has had its duration, and counts until then.
- A rank's pace f in an iteration stretches everything that its streams do in it:
  `slowed_by(duration, f)`, each job on its own.

Source: Li et al. 2020 (PVLDB 13(12)), "PyTorch Distributed", sec. 3.2 and 4.2.

The order of a stream. One order on all ranks, whatever their paces: first come, first served, as it
would be on a cluster whose ranks all compute alike (`events/even_cluster.py` finds it). A stream
that took what arrives first would let a rank that is a little early take a long encoding in front
of a short computation that all others wait for: then one slow worker could cost more than all of
them slow. With fixed orders, here and of collectives, every time is made of sums and maxima of
those before, so that nothing that takes less time makes an iteration longer (F. Baccelli, G. Cohen,
G. J. Olsder, J.-P. Quadrat 1992, "Synchronization and Linearity", Wiley, sec. 1.3).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from gcsim.compressors.lockstep import CollectiveRecord
from gcsim.simulator.clock import Picoseconds, Times
from gcsim.simulator.cluster import Cluster
from gcsim.simulator.devices.training_time import ComputeTimes

CarryOut = Callable[[CollectiveRecord, Times, Picoseconds, int], Times]
"""A collective's exit times `[p]`, given its record, entry times `[p]`, server time, and the key
of its random numbers (`jitter.collective_key`)."""
Slowdown = Callable[[int], "NDArray[np.float64] | None"]
"""Factor on each rank's computation by iteration, `[ranks]`; None: 1 for all."""
Kind = Literal["forward", "backward", "encode", "decode", "optimizer"]
_SIDE: frozenset[Kind] = frozenset({"encode", "decode"})
"""Kinds of jobs on a side stream, where there is one."""
Resource = Literal["loader", "compute", "side", "communicator"]
"""Resources of a rank: the loader of its batches, its compute stream, its side stream (where one is
used), its communicator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Something that a stream does."""

    kind: Kind
    name: str
    duration: Picoseconds


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketWork:
    """One bucket's exchange, with the prices of its computations."""

    before: tuple[Job, ...]
    """Computed when the bucket's part of the backward pass is done."""
    collectives: tuple[CollectiveRecord, ...] = ()
    server_times: tuple[Picoseconds, ...] = ()
    """Parameter servers' computation by collective."""
    held: tuple[Picoseconds, ...] = ()
    """Delay by collective: how much later every rank leaves it than the network alone would let it.
    """
    after: tuple[Job, ...] = ()
    """Computation by collective, once it has returned."""
    behind: tuple[int, ...] = ()
    """Number of buckets by collective whose pieces (parts of the backward pass and its rest; on a
    side stream `before`) the stream serves before that computation; no fewer than for any
    collective in front. Empty: the bucket's own and those in front, so that the next one waits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machines:
    """Machines whose ranks share cores."""

    cores: int
    """Cores of a machine."""
    of_rank: tuple[int, ...]
    """Number of each rank's machine."""
    kinds: frozenset[Kind]
    """Kinds of jobs that run on these cores, one core each; all others have devices of their own.
    """

    @staticmethod
    def of(cluster: Cluster, kinds: frozenset[Kind], *, side_stream: bool) -> Machines | None:
        """Machines that share cores in jobs of these kinds; None where there is one for each that
        may run at a time: a rank that encodes on a side stream computes on two."""
        host = cluster.host
        if host is None or not kinds:
            return None
        together = host.ranks == "all"
        streams = len({kind in _SIDE for kind in kinds}) if side_stream else 1
        if streams * (cluster.workers if together else cluster.devices_per_node) <= host.cores:
            return None
        of_rank = tuple(0 if together else cluster.node_of(r) for r in range(cluster.workers))
        return Machines(cores=host.cores, of_rank=of_rank, kinds=kinds)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """One step, as every rank does it."""

    compute: ComputeTimes
    """Compute times of one micro-batch."""
    buckets: tuple[BucketWork, ...]
    side_stream: bool = False
    side_slowdown: Fraction = Fraction(1)
    in_turn: bool = False
    slots: Literal[1, 2] = 1
    """Collectives that may be under way at a time."""
    optimizer: Picoseconds = 0
    accumulation: int = 1
    backward_alone: Picoseconds | None = None
    """A backward pass beside no exchange, of the micro-batches before the last; None: as long as
    the last one's."""
    input_batch: Picoseconds = 0
    """0: batches are always ready."""
    prefetch: int = 2
    machines: Machines | None = None
    """None: every stream has a device, or a core, of its own."""

    @property
    def backward(self) -> Picoseconds:
        """Backward pass of a micro-batch without exchange."""
        return self.compute.backward if self.backward_alone is None else self.backward_alone


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveSpan:
    """A collective as one rank was in it."""

    record: CollectiveRecord
    place: int
    """Among the bucket's collectives."""
    waited: Picoseconds
    """From its own entry until the last rank entered; 0 for the last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """One thing that happened on one resource of one rank, in picoseconds.

    What a stream does never overlaps; neither does what the communicator does in one slot. A wait
    for a batch (`wait`) lies within the making of that batch (`load`).
    """

    rank: int
    resource: Resource
    slot: int = 0
    """Slot of the communicator: 1 for a collective that runs beside one in slot 0."""
    kind: str
    """The job's, the collective's (`CollectiveRecord.kind`), `load` or `wait`."""
    name: str
    start: Picoseconds
    end: Picoseconds
    bucket: int | None = None
    """None: of no bucket's exchange or backward pass."""
    carried: CollectiveSpan | None = None
    """Collective of a communicator's span."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Run:
    """Consecutive iterations of all ranks, in picoseconds."""

    finish: Times
    """`[iterations, ranks]`: end of each rank's iteration."""
    parts: dict[str, Times]
    """`[iterations, ranks]` each. All but communication add up to the time from the end of the
    rank's iteration before (0 before the first) to the end of this one:

    - forward, backward, optimizer;
    - encode: moments, and all computation before a bucket's last collective; on a side stream only
      the time during which the compute stream has nothing to do;
    - decode: the rest of the exchange's computation; on a side stream as encode (where both
      streams' idle and busy times overlap, an instant at which the side stream encodes is encode);
    - communication: a collective of the rank is under way, hidden or not; summed;
    - exposed: no stream has anything to do, but for waiting for input;
    - input: the compute stream waits for a batch.
    """
    spans: tuple[Span, ...] = ()
    """Spans of the last iteration and all ranks, by rank and start; empty unless asked for."""


def even(iteration: int) -> None:
    """The pace at which everybody computes equally fast in every iteration."""


def slowed_by(duration: Picoseconds, factor: float) -> Picoseconds:
    """A duration at a rank's pace; nearest picosecond, halves to the even one."""
    return int(np.rint(duration * factor)) if factor != 1 else duration


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
