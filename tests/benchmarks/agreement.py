"""How near are priced times to measured ones? Errors and rank order, summed up."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from scipy.stats import kendalltau

SHORTEST = 20e-6
"""Seconds: what is shorter is calls of Python, not kernels, and is left out of sums."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """Of some pairs of priced and measured times."""

    pairs: int
    median: float
    """Of |priced / measured - 1|."""
    ninth: float
    """Its 90th percentile."""
    tau: float
    """Kendall's rank correlation."""


def agreement(pairs: Sequence[tuple[float, float]]) -> Agreement:
    """Of (priced, measured) in seconds; at least two of them longer than `SHORTEST`."""
    used = [(priced, measured) for priced, measured in pairs if measured >= SHORTEST]
    errors = [abs(priced / measured - 1) for priced, measured in used]
    return Agreement(
        pairs=len(used),
        median=statistics.median(errors),
        ninth=statistics.quantiles(errors, n=10, method="inclusive")[8],
        tau=float(kendalltau([p for p, _ in used], [m for _, m in used]).statistic),
    )
