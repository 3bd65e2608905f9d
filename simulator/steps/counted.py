"""Over how many iterations is a mean taken, where they do not repeat themselves?

As many as are asked for, and more

- where several plans follow each other: whole rounds, so that every plan counts as often as it
  occurs, and `FEWEST_ROUNDS` of them (of long ones two, or one where `MOST` hold no more), so that
  rounds can be compared;
- where a link's trace lasts longer: until all of it has been met. Then the last of them count that
  fill whole passes, so that none of its parts counts more often, but for less than a round.

Where `MOST` are not enough for that, a warning says what has no part in the mean.
"""

from __future__ import annotations

import logging
from fractions import Fraction
from math import ceil

from gcsim.simulator.clock import Picoseconds, Times, seconds

MOST = 20_000
"""Iterations, where traces or rounds need more than are asked for."""
FEWEST_ROUNDS = 5
"""Of several plans: fewer do not tell well by how much rounds differ."""
FEW_ROUNDED = 1000
"""Iterations beyond which two rounds must do for that."""
_LOG = logging.getLogger(__name__)


def whole(iterations: int, length: int) -> int:
    """As many, and so many more that they are whole rounds of a length."""
    return ceil(iterations / length) * length


def in_rounds(wanted: int, length: int) -> int:
    """Iterations in whole rounds of a length, where so many are wanted."""
    if length == 1:
        return wanted
    rounds = max(ceil(wanted / length), min(FEWEST_ROUNDS, FEW_ROUNDED // length), 2)
    most = max(wanted, MOST)
    if length <= most:
        return min(rounds, max(ceil(wanted / length), MOST // length)) * length
    _LOG.warning(
        "warning: the kinds of step repeat after %d iterations, of which those after the first %d "
        "have no part in the means",
        length,
        most,
    )
    return most


def longer(iterations: int, length: int, times: Fraction) -> int:
    """More of them, some `times` as many, to meet the rest of a trace."""
    return whole(min(MOST, max(ceil(iterations * times), 2 * iterations)), length)


def in_whole_passes(ends: Times, length: int, trace: Picoseconds) -> int:
    """How many of the last iterations, which ended at `ends[1:]`, fill whole passes of a trace,
    to the nearest whole round."""
    passes = int(ends[-1] - ends[0]) // trace * trace
    first = int(ends.searchsorted(ends[-1] - passes, side="right")) - 1
    return max(1, round((len(ends) - 1 - first) / length)) * length


def warn_of_trace(iterations: int, covered: Picoseconds, trace: Picoseconds) -> None:
    """That some of a trace was not met."""
    _LOG.warning(
        "warning: %d iterations are %.3g s of a rate trace of %.3g s: the rest of it has no part "
        "in the means",
        iterations,
        seconds(covered),
        seconds(trace),
    )
