"""Optimal levels of random rounding for elements modelled by truncated normals.

The model F of normalised elements r in [-1, 1] is a mixture of truncated normals, stored as a
histogram, which turns all integrals into sums, as in ALQ's published code (Faghri et al. 2020,
arXiv:2010.12460); here it has 4096 cells, shorter near zero. Rounding r at random to its neighbours
among ascending levels l_j has the expected variance

    Psi = sum_j integral_{l_j}^{l_{j+1}} (l_{j+1} - r) (r - l_j) dF;

between fixed a and b a level is best at F^-1(F(b) - integral_a^b (r - a) / (b - a) dF).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcsim.compressors.loops import loop

Numbers = NDArray[np.float64]

_CELLS = 4096
_FIRST_CELL = 1e-6
"""Length of the shortest cell, next to zero."""
_LEAST_SIGMA = 1e-6
_NO_MASS = 1e-13
"""A level with less mass around it is not moved."""
_MARGIN = 1e-6
"""Least distance between a level and its neighbours, as a share of theirs."""


class Histogram:
    """A mixture of normals truncated to [-1, 1], with constant density in each cell. `components`
    are rows of mean, sigma and weight. With `folded`, the distribution of |r| on [0, 1]."""

    def __init__(self, components: Numbers, *, folded: bool) -> None:
        right = np.concatenate(([0.0], np.geomspace(_FIRST_CELL, 1.0, _CELLS)))
        means, sigmas, weights = components.T
        masses = _masses(right, means, sigmas) @ weights
        left = _masses(right, -means, sigmas) @ weights
        if folded:
            self.edges, masses = right, masses + left
        else:
            self.edges = np.concatenate((-right[:0:-1], right))
            masses = np.concatenate((left[::-1], masses))
        masses = masses / masses.sum()
        low, high = self.edges[:-1], self.edges[1:]
        self.density = masses / (high - low)
        moments = np.stack(
            (masses, masses * (low + high) / 2, masses * (low**2 + low * high + high**2) / 3)
        )
        # for each edge: integrals of dF, r dF and r^2 dF from it to 1
        above = np.zeros((3, self.edges.size))
        above[:, :-1] = moments[:, ::-1].cumsum(axis=1)[:, ::-1]
        self.masses_above, self.means_above, self.squares_above = above
        self.whole = self.tails(self.edges[0])

    def tails(self, x: Any) -> tuple[Any, Any, Any]:
        """Return the integrals of dF, r dF and r^2 dF from x (a number or an array) to 1."""
        cell = np.minimum(np.searchsorted(self.edges, x, side="right") - 1, self.edges.size - 2)
        high, density = self.edges[cell + 1], self.density[cell]
        return (
            self.masses_above[cell + 1] + density * (high - x),
            self.means_above[cell + 1] + density * (high**2 - x**2) / 2,
            self.squares_above[cell + 1] + density * (high**3 - x**3) / 3,
        )

    def variance(self, levels: Numbers) -> float:
        """Return Psi, the expected variance of random rounding to ascending levels."""
        low, high = levels[:-1], levels[1:]
        zeroth, first, second = (-np.diff(tail) for tail in self.tails(levels))
        return float(((low + high) * first - low * high * zeroth - second).sum())

    def quantiles(self, shares: Numbers) -> Numbers:
        """Return x with F(x) = share; the ends of the range for 0 and 1."""
        found = np.interp(1.0 - shares, self.masses_above[::-1], self.edges[::-1])
        found[0], found[-1] = self.edges[0], self.edges[-1]
        return found


def separate(levels: Numbers) -> Numbers:
    """Return the levels, moved apart if they coincide: gaps are at least 1e-6 of the range."""
    levels = levels.copy()
    least = _MARGIN * (levels[-1] - levels[0])
    for j in range(1, levels.size - 1):
        levels[j] = max(levels[j], levels[j - 1] + least)
    for j in range(levels.size - 2, 0, -1):
        levels[j] = min(levels[j], levels[j + 1] - least)
    return levels


def coordinate_descent(model: Histogram, levels: Numbers, sweeps: int) -> Numbers:
    """Return the levels after `sweeps` passes of the closed form over all but first and last."""
    found = levels.copy()
    _descend(found, sweeps, model.edges, model.masses_above, model.means_above, model.density)
    return found


@loop
def _descend(levels, sweeps, edges, masses_above, means_above, density):
    below = -masses_above  # ascending, as `last_not_above` needs them
    for _ in range(sweeps):
        for j in range(1, levels.size - 1):
            a, b = levels[j - 1], levels[j + 1]  # the current neighbours
            low, high = last_not_above(edges, a), last_not_above(edges, b)
            # integrals of dF and r dF from a and b to 1: the rest of a cell, and all cells above;
            # their differences are the integrals from a to b
            mass = masses_above[low + 1] + density[low] * (edges[low + 1] - a)
            above_b = masses_above[high + 1] + density[high] * (edges[high + 1] - b)
            mean = means_above[low + 1] + density[low] * (edges[low + 1] ** 2 - a**2) / 2
            mean -= means_above[high + 1] + density[high] * (edges[high + 1] ** 2 - b**2) / 2
            mass -= above_b
            if mass <= _NO_MASS:
                continue  # no mass, so every place is equally good
            above = above_b + (mean - a * mass) / (b - a)  # F(b) - F(l) is the mass between l and b
            cell = last_not_above(below, -above)
            place = edges[cell + 1]
            if density[cell] > 0:  # the mass above a place is linear within a cell
                place -= (above - masses_above[cell + 1]) / density[cell]
            margin = _MARGIN * (b - a)
            levels[j] = min(max(place, a + margin), b - margin)


@loop
def last_not_above(edges, x) -> int:
    """Return the last of the cells between ascending edges that does not begin above x."""
    low, high = 0, edges.size - 1
    while high - low > 1:
        middle = (low + high) // 2
        if edges[middle] <= x:
            low = middle
        else:
            high = middle
    return low


def _masses(edges: Numbers, means: Numbers, sigmas: Numbers) -> Numbers:
    """Return the probability of each cell under each truncated normal: `[cells, components]`."""
    from scipy.special import ndtr

    sigmas = np.maximum(sigmas, _LEAST_SIGMA)
    above = ndtr((means - edges[:, None]) / sigmas)  # P(r > edge), exact where it is small
    inside = ndtr((1 - means) / sigmas) - ndtr((-1 - means) / sigmas)
    masses: Numbers = (above[:-1] - above[1:]) / inside
    return masses
