"""Share of a long training's time that is useful work, with node failures and checkpoints.

The time between failures of N nodes is exponential with mean M = mtbf / N. A segment is `every`
seconds of work and d of a checkpoint; a failure restarts it after R seconds, which may fail again.
On average it takes M e^(R/M) (e^((every + d)/M) - 1) seconds. The default of `every` is Daly's,
optimal to within a percent for d < M / 2:

    sqrt(2 d M) (1 + sqrt(d / 2M) / 3 + d / 18M) - d, and M for d >= 2 M

Source: J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps",
Future Generation Computer Systems 22, 2006, eqs. 20 and 37; J. W. Young 1974 (the square root).
"""

from __future__ import annotations

import math

from gcsim.simulator.clock import TooLongError
from gcsim.simulator.training import Failures


def stretch(failures: Failures, nodes: float) -> float:
    """Return the seconds of work between two checkpoints."""
    if failures.every is not None:
        return float(failures.every)
    mean, write = float(failures.mtbf) / nodes, float(failures.checkpoint)
    if write >= 2 * mean:
        return mean
    part = write / (2 * mean)
    return math.sqrt(2 * write * mean) * (1 + math.sqrt(part) / 3 + part / 9) - write


def goodput(failures: Failures, nodes: float) -> float:
    """Return the share of time that is useful work; `TooLongError` if it is below a millionth."""
    mean, work = float(failures.mtbf) / nodes, stretch(failures, nodes)
    restart, whole = float(failures.restart) / mean, (work + float(failures.checkpoint)) / mean
    # both exponents are limited, since exp(700) is near the largest float
    share = work / (mean * math.exp(min(restart, 300.0)) * math.expm1(min(whole, 300.0)))
    if share < _LEAST:
        raise TooLongError(
            f"a node fails every {mean:.3g} s on average, which leaves less than a millionth of "
            f"the time for the training (restart {float(failures.restart):.3g} s, {work:.3g} s "
            f"between checkpoints of {float(failures.checkpoint):.3g} s)",
            place="training.failures",
            hint="state a longer mtbf (of one node), or a shorter restart, checkpoint or every",
        )
    return share


_LEAST = 1e-6
