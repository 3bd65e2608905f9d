"""What is the mean of some iterations of one rank, and where does it go?"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from gcsim.simulator.clock import Times
from gcsim.simulator.steps.breakdown import PARTS
from gcsim.simulator.steps.cycles import Steady
from gcsim.simulator.steps.step_plan import Run


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Average:
    """The mean iteration of a schedule, of the slowest rank, in picoseconds."""

    iteration: Fraction
    parts: dict[str, Fraction]
    """By `breakdown.PARTS`; all but communication add up to the iteration."""
    iterations: Times
    """Those that count, `[n]`."""
    rank: int
    """Whose they are."""


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
        rank=rank,
    )


def mean_of_cycle(steady: Steady, *, communicates: bool) -> Average:
    """Of the iterations that repeat for ever.

    Of the rank that ends the last one last (ties: the lowest); where ranks do not talk to each
    other, of the one whose cycle takes longest.
    """
    cycle = steady.cycle
    rank = int((cycle[-1].after.start if communicates else steady.shift).argmax())
    times: Times = np.array([iteration.durations[rank] for iteration in cycle])
    return Average(
        iteration=Fraction(int(times.sum()), len(cycle)),
        parts={
            part: Fraction(sum(int(one.parts[part][rank]) for one in cycle), len(cycle))
            for part in PARTS
        },
        iterations=times,
        rank=rank,
    )
