"""Fits of timed kernels: a curve per kernel, coefficients per class.

A curve joins the geometric means of the times in each half octave of sizes (errors are measured as
factors). If a larger launch was measured to be shorter, it is merged with the smaller one (pool
adjacent violators: Ayer, Brunk, Ewing, Reid and Silverman 1955, Ann. Math. Statist. 26(4)).

A class's coefficients minimise the squared logarithms of predicted over measured times; relative
errors would favour predictions that are too short, whose error is at most 100 %.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from gcsim.compressors.kernels import TimedKernel, worked
from gcsim.errors import InternalError
from gcsim.simulator.devices.device import Curve

_BINS_AN_OCTAVE = 2
_WORTH_A_TERM = 0.999  # an extra coefficient must lower the error at least by this factor
_ROUNDING = 1e-12
_NEAR = 0.03  # relative distance from the line up to which a point is dropped


def curves(timed: Iterable[TimedKernel]) -> dict[str, Curve]:
    """Fit curves by kernel, sorted by name, without launches of no bytes. The part of a name before
    the colons also gets a curve, for all variants together."""
    by_name: dict[str, list[tuple[int, float]]] = {}
    for one in timed:
        nbytes = worked(one.cost)
        if nbytes > 0 and one.seconds > 0 and one.cost.name:
            name = one.cost.name
            while name:
                by_name.setdefault(name, []).append((nbytes, one.seconds))
                name = name.rpartition(":")[0]
    return {
        name: thinned(curve(points))
        for name, points in sorted(by_name.items())
        if by_name.get(name.rpartition(":")[0]) != points  # a single variant needs no second curve
    }


def curve(points: Sequence[tuple[int, float]]) -> Curve:
    """Fit the curve of one kernel, given bytes and seconds of single launches."""
    bins: dict[int, list[tuple[int, float]]] = {}
    for nbytes, seconds in points:
        bins.setdefault(math.floor(_BINS_AN_OCTAVE * math.log2(nbytes)), []).append(
            (nbytes, seconds)
        )
    blocks = [_Block.of(bins[place]) for place in sorted(bins)]
    pooled: list[_Block] = []
    for block in blocks:
        pooled.append(block)
        while len(pooled) > 1 and (
            pooled[-2].seconds >= pooled[-1].seconds or pooled[-2].nbytes >= pooled[-1].nbytes
        ):
            last = pooled.pop()
            pooled[-1] = pooled[-1].merged(last)
    return tuple((block.nbytes, block.seconds) for block in pooled)


def thinned(points: Curve) -> Curve:
    """Drop points of a curve that lie within 3 % of it; keep both ends and the last slope."""
    if len(points) <= 3:
        return points
    kept = [0, *_needed(points, 0, len(points) - 2), len(points) - 2, len(points) - 1]
    return tuple(points[place] for place in kept)


def _needed(points: Curve, first: int, last: int) -> list[int]:
    """Return the points between two that are not near the line through them (Douglas-Peucker)."""
    (left, begin), (right, end) = points[first], points[last]
    worst, place = _NEAR, 0
    for at in range(first + 1, last):
        nbytes, seconds = points[at]
        line = begin + (end - begin) * (nbytes - left) / (right - left)
        if abs(line / seconds - 1) > worst:
            worst, place = abs(line / seconds - 1), at
    if not place:
        return []
    return [*_needed(points, first, place), place, *_needed(points, place, last)]


@dataclass(frozen=True, slots=True)
class _Block:
    """Geometric mean of some launches."""

    count: int
    log_bytes: float
    log_seconds: float

    @staticmethod
    def of(points: Sequence[tuple[int, float]]) -> _Block:
        return _Block(
            len(points),
            sum(math.log(nbytes) for nbytes, _ in points),
            sum(math.log(seconds) for _, seconds in points),
        )

    def merged(self, other: _Block) -> _Block:
        return _Block(
            self.count + other.count,
            self.log_bytes + other.log_bytes,
            self.log_seconds + other.log_seconds,
        )

    @property
    def nbytes(self) -> int:
        return round(math.exp(self.log_bytes / self.count))

    @property
    def seconds(self) -> float:
        return math.exp(self.log_seconds / self.count)


@dataclass(frozen=True, slots=True, kw_only=True)
class Coefficients:
    """T = launch + nbytes / bandwidth + flops / flop_rate; None if no sample has this work."""

    launch: float
    bandwidth: float | None
    flop_rate: float | None

    def seconds(self, nbytes: int, flops: int) -> float:
        """Seconds of one launch."""
        bytes_time = nbytes / self.bandwidth if self.bandwidth else 0.0
        return self.launch + bytes_time + (flops / self.flop_rate if self.flop_rate else 0.0)


def coefficients(timed: Sequence[TimedKernel]) -> Coefficients:
    """Fit coefficients with the least sum of squared logarithms of errors; drop those that do not
    lower it. Raises `InternalError` if no launch took time."""
    used = [one for one in timed if one.seconds > 0]
    if not used:
        raise InternalError("no launch took any time")
    seconds = np.array([one.seconds for one in used])
    work = np.array([[1.0, one.cost.nbytes, one.cost.flops] for one in used])
    best, error = np.zeros(3), math.inf
    present = [column for column in range(3) if work[:, column].any()]
    for count in range(1, len(present) + 1):
        for columns in combinations(present, count):
            if not work[:, columns].any(axis=1).all():
                continue  # this fit would make some launch free
            found = positive(work[:, columns], seconds)
            off = float(np.square(np.log(work[:, columns] @ found / seconds)).sum())
            if off < error * _WORTH_A_TERM - _ROUNDING:
                best, error = np.zeros(3), off
                best[list(columns)] = found
    launch, byte, flop = (float(value) for value in best)
    return Coefficients(
        launch=launch, bandwidth=1 / byte if byte else None, flop_rate=1 / flop if flop else None
    )


def positive(work: NDArray[np.float64], seconds: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the positive c that minimises the sum of losses of log(work c / seconds): squares up
    to a tenth, absolute values above, since a few times depend on more than `work`."""
    from scipy.optimize import least_squares

    with np.errstate(divide="ignore"):
        start = np.log((seconds[:, None] / work).min(axis=0))  # no term takes more than the whole

    def residuals(logs: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(np.log(work @ np.exp(logs) / seconds))

    def jacobian(logs: NDArray[np.float64]) -> NDArray[np.float64]:
        terms = work * np.exp(logs)
        return np.asarray(terms / terms.sum(axis=1, keepdims=True))

    solved = least_squares(
        residuals, start, jac=jacobian, loss="soft_l1", f_scale=0.1,
        xtol=1e-12, ftol=1e-12, gtol=1e-12,
    )  # fmt: skip
    return np.asarray(np.exp(solved.x))
