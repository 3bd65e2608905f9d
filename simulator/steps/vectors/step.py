"""How long do iterations take when every rank has a pace of its own? All ranks at once.

The same step as `events/step.py`, with one collective at a time (`StepPlan.slots == 1`), without an
event for each rank and piece of work. Both agree with `==`.

A loop over collectives, in the order of the queue. Once the exits of all collectives in front are
known, each rank's streams are run ahead with the arrivals that are known, which gives the instant
at which the rank asks for each collective that could be next: of each bucket the first that has
not been carried out. The candidate with the earliest such instant over all ranks (ties: bucket,
place) is next, and rank r enters it at max(asked[r], left the one in front). Why this is exact:

1. Let c be the collective that is truly next, asked for by rank r at a[r]. Whatever is behind c
   is entered by each rank after it has left c, and nobody leaves c before max(a). So what is not
   known arrives at max(a) at the earliest. An ask is the end of a piece of work that began
   earlier, or of none at all: an arrival at max(a) delays no ask at or before max(a). Hence a[r]
   is computed right for all ranks.
2. Any other candidate's ask on a rank is either before max(a), and then right as well, or not
   before max(a) in truth nor as computed. Its minimum over ranks is then either right or no less
   than max(a) >= min(a). In a tie at max(a) = min(a) both instants are right, for an arrival at
   that instant delays no ask of that instant. So c has the smallest minimum.
3. A rank that begins iteration i + 1 has left all collectives of iteration i, so that all ranks
   have entered those: no collective of i + 1 joins the queue before one of i. Iterations are
   simulated one after the other, though ranks are in different ones at the same time.
4. A rank's streams serve in the order of arrival, and nothing that is not known arrives before the
   rank has left the last known collective: pieces that arrived before are served for good
   (`run` keeps the state), and only the few after that are run again in the next
   round. Work is O(ranks x (pieces + collectives)) an iteration; with a side stream the pieces to
   come are looked at in every round.

Source: the rules are those of `step_plan.py`; a conservative parallel simulation with the
collective as barrier (Chandy and Misra 1979, IEEE Trans. Softw. Eng. 5(5)).
"""

from __future__ import annotations

import numpy as np

from gcsim.simulator.steps.schedule import Schedule, schedule_of
from gcsim.simulator.steps.step_plan import CarryOut, Run, Slowdown, StepPlan, even
from gcsim.simulator.steps.vectors.ranks import PARTS, Vectors


def simulate(
    plan: StepPlan | Schedule,
    *,
    ranks: int,
    execute: CarryOut,
    iterations: int = 1,
    slowdown: Slowdown = even,
    seed: int = 0,
) -> Run:
    """Simulate consecutive iterations of a plan, or of several in turn; all ranks begin at 0.

    `execute` gives a collective's exits; the key that it is given is made of `seed`, iteration,
    bucket and place. `slowdown(i)` are the ranks' factors in iteration i. Raises `InternalError`
    for two slots, and when a collective lets a rank leave before its last entry, `InputError` when
    the clock cannot hold the times.
    """
    vectors = Vectors(schedule_of(plan), ranks, execute, seed)
    finish, *rows_of_parts = np.empty((1 + len(PARTS), iterations, ranks), dtype=np.int64)
    parts = dict(zip(PARTS, rows_of_parts, strict=True))
    for iteration in range(iterations):
        rows = {part: times[iteration] for part, times in parts.items()}
        finish[iteration] = vectors.iteration(slowdown(iteration), rows)
    return Run(finish=finish, parts=parts)
