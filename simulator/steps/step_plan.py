"""A training step as plain data for both step engines.

Semantics for each rank and iteration i (times in integer picoseconds):

- All ranks begin iteration 0 at time 0, and iteration i + 1 when their own iteration i has
  finished; ranks wait for each other only in collectives.
- Input: each rank's loader makes batch 0, 1, 2, ... in turn, `input_batch` each. It begins batch b
  when batch b - 1 is made and batch b - prefetch taken (b < prefetch: at once). Each forward pass
  takes one batch, and waits until it is made (`input`).
- An iteration has `accumulation` micro-batches; only the last exchanges gradients, its backward
  pass interleaved with the buckets.
- Compute stream: one piece of work at a time, never interrupted, in the order explained below. The
  autograd thread issues forward, each bucket's part of backward, then the rest of backward, each
  when the one before is done. Without an exchange, backward is one job. A piece whose jobs take no
  time is done on arrival: nothing is launched, so nothing queues.
- Without a side stream a bucket's `before` jobs form one piece with its part of backward, and the
  `after` jobs of a collective arrive on the compute stream when it returns. With a side stream both
  run there: `before` arrives when the bucket's part of backward is done; each job takes
  `side_slowdown` times as long, rounded (half to even) before the rank's slowdown is applied.
- `in_turn`: `before` does not arrive before the end of the previous bucket's exchange.
- A bucket asks for its first collective when `before` is done, and for the next when the previous
  one's `after` is done; for a gather of weights, the step's last collective, when all exchanges
  before it and the backward pass are done.
- Communicator: all ranks run collectives in order of iteration, bucket, place in the bucket's
  exchange, whatever the order of requests. A rank enters a collective when it has asked for it and
  left the previous one; with two slots, when it has asked for it, entered the previous one and left
  all but one of those before it. `BucketWork.exit_delays` postpone every exit.
- A rank's optimiser runs on the compute stream when its exchanges and backward pass are done; then
  the iteration is finished.
- Ranks of a machine share its cores (`StepPlan.machines`): while n of their streams run jobs of
  `kinds`, each job progresses at speed min(1, cores / n), and ends at the first whole picosecond at
  which its work is done.
- A rank's slowdown f in an iteration stretches each of its jobs: `slowed_by(duration, f)`.

A stream has the same order of service on all ranks, whatever their slowdowns: first come, first
served on a cluster of equal ranks (`events/even_cluster.py`). If each rank served its own first
arrival, an early rank could run a long encoding before a short computation that all others wait
for, and one slow worker could cost more than all workers being slow. With a fixed order every time
is a sum or maximum of earlier times, so a shorter job never makes an iteration longer (F. Baccelli,
G. Cohen, G. J. Olsder, J.-P. Quadrat 1992, "Synchronization and Linearity", Wiley, sec. 1.3).

Source: Li et al. 2020 (PVLDB 13(12)), "PyTorch Distributed", sec. 3.2 and 4.2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gcsim.compressors.lockstep import CollectiveRecord
from gcsim.simulator.clock import Picoseconds, Times
from gcsim.simulator.cluster import Cluster
from gcsim.simulator.devices.training_time import ComputeTimes

CarryOut = Callable[[CollectiveRecord, Times, Picoseconds, int], Times]
"""Returns exit times `[p]` from record, entry times `[p]`, server time, `jitter.collective_key`."""
Slowdown = Callable[[int], "NDArray[np.float64] | None"]
"""Factor on each rank's computation by iteration, `[ranks]`; None: 1 for all."""
Kind = Literal["forward", "backward", "encode", "decode", "optimizer"]
_SIDE: frozenset[Kind] = frozenset({"encode", "decode"})
"""Kinds of jobs that run on the side stream, if there is one."""
Resource = Literal["loader", "compute", "side", "communicator"]
"""A rank's batch loader, compute stream, side stream if used, and communicator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightGather(CollectiveRecord):
    """All-gather of sharded weights: the last collective of a step with a sharded optimizer, or the
    first ones of a bucket, before its passes (`sharded.py`)."""

    what: ClassVar[str] = "gather of weights"


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientScatter(CollectiveRecord):
    """Reduce-scatter of gradients instead of an all-reduce. It is the first half of one, and takes
    as long as the second half, an all-gather of the same parts, as which it is simulated."""

    what: ClassVar[str] = "reduce-scatter"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job on a stream."""

    kind: Kind
    name: str
    duration: Picoseconds


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketWork:
    """One bucket's exchange, with the durations of its computations."""

    before: tuple[Job, ...]  # jobs once the bucket's part of the backward pass is done
    collectives: tuple[CollectiveRecord, ...] = ()
    server_times: tuple[Picoseconds, ...] = ()  # parameter servers' computation by collective
    exit_delays: tuple[Picoseconds, ...] = ()
    """Per collective, the delay of every rank's exit in addition to the network's time."""
    after: tuple[Job, ...] = ()  # job of each collective, once it has returned
    behind: tuple[int, ...] = ()
    """Per collective, the number of buckets (with the rest of backward) whose first pieces are
    served before its `after` job; never decreasing. Empty: up to its own bucket."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machines:
    """Machines whose ranks share cores."""

    cores: int
    of_rank: tuple[int, ...]
    kinds: frozenset[Kind]  # kinds of jobs that take one core each; others run on a device

    @staticmethod
    def of(cluster: Cluster, kinds: frozenset[Kind], *, side_stream: bool) -> Machines | None:
        """Return the machines whose ranks share cores in jobs of these kinds; None if there is a
        core for each stream (a rank that encodes on a side stream has two)."""
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
    """One step of every rank."""

    compute: ComputeTimes  # passes of one micro-batch
    buckets: tuple[BucketWork, ...]
    side_stream: bool = False
    side_slowdown: Fraction = Fraction(1)
    in_turn: bool = False
    slots: Literal[1, 2] = 1  # collectives that may run at a time
    optimizer: Picoseconds = 0
    accumulation: int = 1
    backward_alone: Picoseconds | None = None
    """Backward pass of the micro-batches without an exchange; None: the same as with one."""
    input_batch: Picoseconds = 0  # 0: batches are always ready
    prefetch: int = 2
    machines: Machines | None = None  # None: every stream has a device, or a core, of its own
    groups: tuple[tuple[int, StepPlan], ...] = ()
    """Numbers of consecutive ranks and their plans, which differ only in the durations of passes
    and jobs; empty: all ranks follow this plan."""

    def __hash__(self) -> int:
        """Hash a few fields that differ between plans, since hashing all buckets is slow."""
        return hash((self.compute.forward, self.compute.parts, self.buckets[-1:]))

    def of_rank(self, rank: int) -> StepPlan:
        """Return the plan that a rank follows."""
        for count, plan in self.groups:
            if rank < count:
                return plan
            rank -= count
        return self

    @property
    def gathers(self) -> bool:
        """Whether its last collective gathers weights."""
        last = self.buckets[-1].collectives[-1:] if self.buckets else ()
        return any(isinstance(record, WeightGather) for record in last)

    @property
    def sharded(self) -> bool:
        """Whether weights are sharded, so that the rules of `sharded.py` apply."""
        first = self.buckets[0].collectives[:1] if self.buckets else ()
        return any(isinstance(record, WeightGather) for record in first) and not self.gathers

    @property
    def backward(self) -> Picoseconds:
        """Backward pass of a micro-batch without an exchange."""
        return self.compute.backward if self.backward_alone is None else self.backward_alone


class CollectiveSpan(NamedTuple):
    """One rank's part in a collective."""

    record: CollectiveRecord
    place: int
    waited: Picoseconds  # from the rank's entry until the last rank's


class Span(NamedTuple):
    """One activity on one resource of one rank, in picoseconds. Spans of a stream, or of a
    communicator's slot, never overlap. A `wait` for a batch lies within that batch's `load`."""

    rank: int
    resource: Resource
    kind: str  # the job's, the collective's (`CollectiveRecord.kind`), `load` or `wait`
    name: str
    start: Picoseconds
    end: Picoseconds
    slot: int = 0  # slot of the communicator: 1 overlaps a collective in slot 0
    bucket: int | None = None
    carried: CollectiveSpan | None = None
    ranks: int = 1  # number of equal ranks that these spans represent


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Run:
    """Consecutive iterations of all ranks, in picoseconds."""

    finish: Times  # `[iterations, ranks]`: end of each rank's iteration
    parts: dict[str, Times]
    """`[iterations, ranks]` each. All but communication add up to the rank's iteration:

    - forward, backward, optimizer;
    - encode: moments, and computation before a bucket's last collective; on a side stream only
      while the compute stream is idle;
    - decode: the rest of the exchange's computation, likewise (time that both could claim is
      encode's);
    - communication: a collective of the rank is running, hidden or not;
    - exposed: no stream works, and none waits for input;
    - input: the compute stream waits for a batch.
    """
    spans: tuple[Span, ...] = ()
    """Spans of the last iteration and all ranks, by rank and start; empty unless asked for."""


def even(iteration: int) -> None:
    """Return no slowdown (None), whatever the iteration."""


def slowed_by(duration: Picoseconds, factor: float) -> Picoseconds:
    """Return a duration times a rank's slowdown, to the nearest picosecond, half to even."""
    return int(np.rint(duration * factor)) if factor != 1 else duration


Piece = tuple[int, int]
"""A bucket and the index of the collective after which the piece runs; -1: before the first, which
without a side stream includes its part of backward. The rest of backward counts as a bucket."""
BEFORE = -1


def order_of_service(plan: StepPlan) -> Iterator[Piece]:
    """Yield the pieces of the stream that runs `after` jobs in order, given `BucketWork.behind`."""
    pieces = len(plan.buckets) if plan.side_stream else len(plan.buckets) + 1
    coming = 0
    for bucket, work in enumerate(plan.buckets):
        behind = work.behind or (bucket + 1,) * len(work.collectives)
        for place, those in enumerate(behind):
            all_before = isinstance(work.collectives[place], WeightGather)
            while coming < (pieces if all_before else min(those, pieces)):
                yield coming, BEFORE
                coming += 1
            yield bucket, place
    for bucket in range(coming, pieces):
        yield bucket, BEFORE
