"""How does training go on for ever, when every rank differs? `steady.py` with all ranks at once.

The same search for a state that comes again, of which `steady.py` says why it tells the rest; both
agree with `==`. States are compared by a digest of 128 bits.
"""

from __future__ import annotations

from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from gcsim.simulator.clock import Times
from gcsim.simulator.steady import MOST, Steady
from gcsim.simulator.step_plan import CarryOut, StepPlan
from gcsim.simulator.vector_ranks import Vectors
from gcsim.simulator.vector_step import Rows


def simulate_steady(
    plan: StepPlan,
    *,
    ranks: int,
    carry_out: CarryOut,
    pace: NDArray[np.float64] | None = None,
    most: int = MOST,
) -> Steady:
    """Simulate until iterations repeat, `most` at most; as `steady.simulate_steady`.

    `carry_out` must depend neither on the key nor on absolute time; `pace` `[ranks]` is that of
    all iterations. Raises `InternalError` as `vector_step.simulate`.
    """
    vectors, together = Vectors(plan, ranks, carry_out, 0), any(b.collectives for b in plan.buckets)
    rows = Rows(most, ranks)
    seen = {_digest(np.zeros(ranks, dtype=np.int64), vectors.ahead(), together): -1}
    period, count = 0, 0
    while count < most and not period:
        finish = vectors.iteration(pace, rows.parts_of(count))
        rows.finish[count] = finish
        state = _digest(rows.finish[count], vectors.ahead(), together)
        period = count - seen.get(state, count)
        seen[state] = count
        count += 1
    run, exact = rows.first(count), period > 0
    period = period or (count + 1) // 2
    before = count - period - 1
    begin = run.finish[before] if before >= 0 else np.zeros(ranks, dtype=np.int64)
    return Steady(run=run, period=period, shift=run.finish[-1] - begin, exact=exact)


def _digest(finish: Times, ahead: NDArray[np.int64], together: bool) -> bytes:
    """Of what later iterations depend on, but for a shift."""
    ranks = len(finish)
    hashed = blake2b(digest_size=16)
    if together:
        hashed.update(finish - finish.min())
    for row in ahead:
        hashed.update(np.broadcast_to(row, ranks).tobytes())
    return hashed.digest()
