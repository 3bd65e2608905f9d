"""Search for the link's figures that fit the measurements best.

The loss is least squares of log times, i.e. of relative errors, so 1 kB counts as much as 1 GB.
Errors above about 10 % count less than their squares (loss "soft_l1", 2 c^2 (sqrt(1 + (r/c)^2) -
1), c = 0.1), so that one size measured on a busy host does not move the link. The simulator
predicts the times (`link/model.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gcsim.analysis.calibration.link.model import Model
from gcsim.analysis.calibration.link.shape import Shape, Vector, start
from gcsim.analysis.calibration.measurements.collectives import Measurement
from gcsim.simulator.network.links import Link

LARGE = 0.1  # relative error from which a size counts less than its square
EXACT = 1e-3  # relative error below which there is nothing to improve: clocks, rounded figures
_NUDGE = 1e-3
_REACH, _LONGEST = 7.0, 1e3
"""Bounds around the start of a fit: a factor of e^7 in goodput, 1000 times the first guess in
latency. Beyond them the simulator's clock overflows."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Solution:
    """Minimum of the loss for a shape."""

    shape: Shape
    x: Vector
    loss: float  # the minimum
    misses: Vector  # [n], and `slopes` [n, k]; weighted so that their squares sum to the loss
    slopes: Vector
    measured: Vector  # [n], logarithms of seconds

    def criterion(self) -> float:
        """Return the information criterion (`criterion_of`)."""
        return criterion_of(self.loss, len(self.misses), self.shape)


def criterion_of(loss: float, n: int, shape: Shape) -> float:
    """Return the Bayesian information criterion for `n` sizes."""
    return float(n * np.log(max(loss, n * EXACT**2) / n) + shape.figures * np.log(n))


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """Measured times and the model that predicts them."""

    model: Model
    measured: Vector  # logarithms of seconds

    def misses(self, shape: Shape, x: Vector) -> Vector:
        """Return the errors of the log times, `[n]`."""
        return np.asarray(np.log(self.model.seconds(shape.link(x))) - self.measured)

    def slopes(self, shape: Shape, x: Vector) -> Vector:
        """Return forward differences `[n, k]`, not central ones: a figure may be at its limit."""
        here = self.misses(shape, x)
        columns = []
        for number, (figure, _) in enumerate(shape.names):
            step = _NUDGE * (1.0 if figure == "goodput" else max(x[number], 0.05))
            moved = x.copy()
            moved[number] += step
            columns.append((self.misses(shape, moved) - here) / step)
        return np.stack(columns, axis=1)

    def solve(self, shape: Shape, x: Vector) -> Solution:
        """Minimize the loss, starting at `x`."""
        found = self._search(shape, x, 60)
        misses = self.misses(shape, found.x)
        weights = np.sqrt(1 / np.sqrt(1 + (misses / LARGE) ** 2))
        return Solution(
            shape=shape,
            x=found.x,
            loss=float(2 * found.cost),
            misses=weights * misses,
            slopes=weights[:, None] * self.slopes(shape, found.x),
            measured=self.measured,
        )

    def promise(self, shape: Shape, x: Vector) -> tuple[float, Vector]:
        """Return criterion and vector after a few iterations from `x`, to select steps to try."""
        found = self._search(shape, x, 4)
        return criterion_of(float(2 * found.cost), len(self.measured), shape), found.x

    def _search(self, shape: Shape, x: Vector, most: int) -> Any:
        from scipy.optimize import least_squares

        goodput = [figure == "goodput" for figure, _ in shape.names]
        rate = float(x[1])
        low = [rate - _REACH if is_rate else 0.0 for is_rate in goodput]
        high = [rate + _REACH if is_rate else _LONGEST for is_rate in goodput]
        return least_squares(
            lambda at: self.misses(shape, at),
            np.clip(x, low, high),
            jac=lambda at: self.slopes(shape, at),
            bounds=(low, high),
            loss="soft_l1",
            f_scale=LARGE,
            max_nfev=most,
            x_scale="jac",
            ftol=1e-12,
            xtol=1e-9,
        )


def latency_and_goodput(
    problem: Problem, points: Sequence[Measurement], line_rate: float | None
) -> Solution:
    """Latency and goodput alone, from several guesses: a library's choices make valleys."""
    shortest = min(range(len(points)), key=lambda number: points[number].nbytes)
    longest = max(range(len(points)), key=lambda number: points[number].nbytes)
    times = np.exp(problem.measured)
    second = problem.model.seconds(_probe(latency=1.0, rate=1e15))[shortest]
    latency = float(times[shortest] / second)
    rate = 1e9
    for _ in range(3):  # message sizes do not depend on the rate, but the algorithm may
        rate *= float(problem.model.seconds(_probe(0.0, rate))[longest] / times[longest])
    shape = Shape(scale=max(latency, 1e-7), line_rate=line_rate)
    guesses = [(a, b) for a in (1.0, 0.1) for b in (1.0, 2.0, 0.5)]
    found: list[Solution] = []
    for a, b in guesses:
        found.append(problem.solve(shape, start(shape, a * latency, b * rate)))
        if found[-1].loss < len(points) * EXACT**2:
            break  # further guesses would not help
    return min(found, key=lambda solution: solution.loss)


def _probe(latency: float, rate: float) -> Link:
    shape = Shape(scale=1.0)
    return shape.link(start(shape, latency, rate))
