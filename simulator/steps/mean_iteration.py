"""What is the mean of some iterations of one rank, and where does it go?"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from gcsim.simulator.clock import Times
from gcsim.simulator.steps.ledger import PARTS
from gcsim.simulator.steps.step_plan import Run


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Average:
    """The mean iteration of a plan, of the slowest rank, in picoseconds."""

    iteration: Fraction
    parts: dict[str, Fraction]
    """By `ledger.PARTS`; all but communication add up to the iteration."""
    iterations: Times
    """Those that count, `[n]`."""


def mean_of(run: Run, rank: int, iterations: int) -> Average:
    """Of the last iterations of a rank, in picoseconds."""
    ends = run.finish[:, rank]
    times = np.diff(ends, prepend=0)[-iterations:]
    return Average(
        iteration=Fraction(int(times.sum()), iterations),
        parts={
            part: Fraction(int(run.parts[part][-iterations:, rank].sum()), iterations)
            for part in PARTS
        },
        iterations=times,
    )
