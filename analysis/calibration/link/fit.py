"""Fit of the link with which the simulator reproduces measured collectives.

The fit takes the link whose times are nearest (`link/solver.py`) to the medians of repeats. A
figure besides latency and goodput (an overhead per message; another latency or goodput from some
size on, which counts as a figure) must lower the Bayesian information criterion, n ln(loss / n) + k
ln n, by more than 10: very strong evidence (Kass and Raftery 1995, J. Am. Stat. Assoc. 90, sec.
3.2), as many sizes are tried.

Intervals have 95 % confidence, from the covariance at the minimum, s^2 (J^T W J)^-1 with the loss's
weights W, and Student's t. Errors count as independent, sizes of steps as known. A time is between
0 and what explains the shortest message, within its error, by itself; a time at its limit (a
latency of 0) gets the upper bound that it would have next to the other figures.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from gcsim.analysis.calibration.link import shape as shapes
from gcsim.analysis.calibration.link.model import Model, check_algorithm, message_bytes
from gcsim.analysis.calibration.link.solver import EXACT, Problem, Solution, latency_and_goodput
from gcsim.analysis.calibration.measurements.collectives import Measurement
from gcsim.simulator.network.links import Link, Range

STRONG = 10.0  # least reduction of the criterion that justifies a figure
MOST_STEPS = 3
LEAST_BETWEEN = 3  # least number of sizes on each side of a step
FAR_OFF = 0.2  # relative error of a size from which a warning names it
DIGITS = 5
CONFIDENCE = 0.95

_INSEPARABLE = 0.9999  # cosine above which the effects of two figures cannot be separated
_FINALISTS = 2
_UNKNOWN = 3.0  # half-width of a log goodput's interval that says nothing: a factor of 20
_FLAT = 1e-9  # relative change of all times by a figure's scale that counts as no effect


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A fitted figure with its interval."""

    figure: shapes.Figure
    from_bytes: int  # smallest message to which it applies
    value: float  # seconds, or bytes per second
    low: float | None
    high: float | None  # None: the sizes do not determine the goodput


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A size, measured and fitted."""

    measurement: Measurement  # median of the repeats
    repeats: int
    fitted: float  # seconds

    @property
    def error(self) -> float:
        """Relative error of the fit."""
        return self.fitted / self.measurement.seconds - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkFit:
    """The fitted link, its measurements and its quality."""

    link: Link
    estimates: tuple[Estimate, ...]
    points: tuple[Point, ...]
    measured: int  # lines of the files, repeats included
    line_rate: float | None  # bytes per second, if known
    overhead: str  # why the overhead per message is included or not
    steps: str  # the same for other figures by size

    @property
    def goodput_known(self) -> bool:
        """Whether the measured sizes determine the goodput."""
        return all(estimate.low is not None for estimate in self.estimates)

    @property
    def median_error(self) -> float:
        """Median of the absolute relative errors over the sizes."""
        return statistics.median(abs(point.error) for point in self.points)

    @property
    def worst(self) -> Point:
        """Size with the largest error."""
        return max(self.points, key=lambda point: abs(point.error))

    @property
    def far_off(self) -> list[Point]:
        """Sizes with an error above `FAR_OFF`."""
        return [point for point in self.points if abs(point.error) > FAR_OFF]


def fit(
    measurements: Sequence[Measurement],
    *,
    inside: Link,
    line_rate: float | None = None,
    name: str = "calibrated",
) -> LinkFit:
    """Fit the link over which the simulator best reproduces the measurements, at least three sizes.

    `inside`: link between a machine's devices, if several machines have several; `line_rate`: bytes
    per second, if known, to compute an efficiency. Raises `InputError` if an algorithm cannot carry
    out a measured collective.
    """
    medians = _medians(measurements)
    for algorithm in {point.algorithm for point, _ in medians}:
        named = {point.collective for point, _ in medians if point.algorithm == algorithm}
        check_algorithm(algorithm, sorted(named))
    points = [point for point, _ in medians]
    problem = Problem(Model(points, inside), np.log([point.seconds for point in points]))
    plain = latency_and_goodput(problem, points, line_rate)
    solution, overhead = _with_overhead(problem, plain)
    solution, steps = _with_steps(problem, solution, points)
    link = solution.shape.link(solution.x, name, DIGITS)
    times = problem.model.seconds(link)
    estimates = tuple(_estimates(solution))
    return LinkFit(
        link=link.exactly(**_ranges(link, estimates)),
        estimates=estimates,
        points=tuple(
            Point(measurement=point, repeats=repeats, fitted=float(seconds))
            for (point, repeats), seconds in zip(medians, times, strict=True)
        ),
        measured=len(measurements),
        line_rate=line_rate,
        overhead=overhead,
        steps=steps,
    )


def _medians(measurements: Sequence[Measurement]) -> list[tuple[Measurement, int]]:
    groups: dict[Measurement, list[Measurement]] = {}
    for point in measurements:
        groups.setdefault(replace(point, seconds=1.0, place="", call=""), []).append(point)
    ordered = sorted(groups, key=lambda kind: (kind.collective, kind.ranks, kind.nbytes))
    medians = {kind: statistics.median(point.seconds for point in groups[kind]) for kind in ordered}
    return [
        (replace(kind, seconds=seconds, place=groups[kind][0].place), len(groups[kind]))
        for kind, seconds in medians.items()
    ]


def _with_overhead(problem: Problem, plain: Solution) -> tuple[Solution, str]:
    shape = replace(plain.shape, overhead=True)
    x = np.append(plain.x, 0.05)
    slopes = problem.slopes(shape, np.maximum(x, 0.05))
    latency, overhead = slopes[:, 0], slopes[:, 2]
    size = float(np.linalg.norm(latency) * np.linalg.norm(overhead))
    few = len(problem.measured) <= shape.figures
    if few or size == 0 or float(latency @ overhead) / size > _INSEPARABLE:
        return plain, "these collectives cannot separate it from the latency"
    found = min(
        (problem.solve(shape, np.append(plain.x, guess)) for guess in (0.01, 0.3, 1.0, 4.0)),
        key=lambda solution: solution.loss,
    )
    gain = plain.criterion() - found.criterion()
    if gain > STRONG:
        return found, f"included: it lowers the BIC by {gain:.0f}"
    return plain, f"left out: with it the BIC would {_falls(gain)}, not by {STRONG:g} or more"


def _with_steps(
    problem: Problem, solution: Solution, points: Sequence[Measurement]
) -> tuple[Solution, str]:
    sizes = [message_bytes(point) for point in points]
    gains: list[float] = []
    best = 0.0
    for _ in range(MOST_STEPS):
        promises: dict[
            tuple[shapes.Step, ...], list[tuple[float, shapes.Vector, shapes.Shape]]
        ] = {}
        for shape in _candidates(solution.shape, sizes):
            if len(points) - shape.figures >= LEAST_BETWEEN:
                known = tuple(replace(step, latency=True, goodput=True) for step in shape.steps)
                promise, x = problem.promise(shape, _extended(solution, shape))
                promises.setdefault(known, []).append((promise, x, shape))
        best_sizes = sorted(promises.values(), key=lambda trials: min(trial[0] for trial in trials))
        finals = [
            problem.solve(shape, x) for trials in best_sizes[:_FINALISTS] for _, x, shape in trials
        ]
        if not finals:
            break
        found = min(finals, key=Solution.criterion)
        best = solution.criterion() - found.criterion()
        if best <= STRONG:
            break
        solution = found
        gains.append(best)
    if gains:
        told = ", ".join(f"{gain:.0f}" for gain in gains)
        return solution, f"included: they lower the BIC by {told}"
    if not best:
        return solution, "not tried: there are too few sizes"
    return solution, f"none: with one the BIC would {_falls(best)}, not by {STRONG:g} or more"


def _falls(gain: float) -> str:
    return f"fall by {gain:.1f}" if gain > 0 else f"rise by {-gain:.1f}"


def _candidates(shape: shapes.Shape, sizes: Sequence[int]) -> Iterator[shapes.Shape]:
    """Yield the shape with one more step, between two message sizes."""
    known = sorted(set(sizes))
    taken = [step.from_bytes for step in shape.steps]
    for below, above in itertools.pairwise(known):
        middle = round((below * above) ** 0.5)
        at = max(below + 1, middle)
        limits = [0, *sorted([*taken, at]), known[-1] + 1]
        groups = [
            sum(low <= size < high for size in known) for low, high in itertools.pairwise(limits)
        ]
        if at in taken or min(groups) < LEAST_BETWEEN:
            continue
        for latency, goodput in ((True, True), (True, False), (False, True)):
            step = shapes.Step(from_bytes=at, latency=latency, goodput=goodput)
            steps = sorted([*shape.steps, step], key=lambda step: step.from_bytes)
            yield replace(shape, steps=tuple(steps))


def _extended(solution: Solution, shape: shapes.Shape) -> shapes.Vector:
    """Return the figures of a solution; a new step starts with those of smaller messages."""
    known = dict(zip(solution.shape.names, solution.x, strict=True))
    values: dict[shapes.Figure, float] = {}
    found = []
    for figure, size in shape.names:
        values[figure] = known.get((figure, size), values.get(figure, 0.0))
        found.append(values[figure])
    return np.array(found)


def _estimates(solution: Solution) -> Iterator[Estimate]:
    shape, x = solution.shape, solution.x
    names = shape.names
    free = [
        number
        for number, (figure, _) in enumerate(names)
        if figure == "goodput" or shape.value(number, float(x[number])) > shapes.SHORTEST
    ]
    spread = {**_half_widths(solution, range(len(names))), **_half_widths(solution, free)}
    times = solution.measured - solution.measured.min()
    error = _half_width(solution)
    error = error if np.isfinite(error) else 0.0
    for number, (figure, from_bytes) in enumerate(names):
        at, around = float(x[number]), spread[number]
        low: float | None = None
        high: float | None = None
        if figure != "goodput":
            # `Shape.scale`: a latency of 1 explains the shortest message
            most = float(np.exp((0.0 if from_bytes == 0 else times.max()) + error))
            low = shape.value(number, max(at - around, 0.0))
            high = shape.value(number, max(at, min(at + around, most)))
        elif around < _UNKNOWN:
            low, high = (shape.value(number, end) for end in (at - around, at + around))
        yield Estimate(
            figure=figure, from_bytes=from_bytes, value=shape.value(number, at), low=low, high=high
        )


def _half_width(solution: Solution) -> float:
    """Return half the interval of the logarithm of one time; infinite if undetermined."""
    from scipy.stats import t as student

    count, left = len(solution.misses), len(solution.misses) - solution.shape.figures
    if left <= 0:
        return np.inf
    squares = float(solution.misses @ solution.misses)
    variance = max(squares, count * (EXACT / 10) ** 2) / left
    return float(student.ppf((1 + CONFIDENCE) / 2, left) * variance**0.5)


def _half_widths(solution: Solution, chosen: Sequence[int]) -> dict[int, float]:
    """Return half the interval of figures fitted together; infinite if undetermined."""
    _, sizes, directions = np.linalg.svd(solution.slopes[:, list(chosen)], full_matrices=False)
    # figures along a direction in which no time changes are undetermined
    inverse = (directions / np.maximum(sizes, _FLAT)[:, None]) ** 2
    widths = _half_width(solution) * np.sqrt(inverse.sum(axis=0))
    return dict(zip(chosen, widths.tolist(), strict=True))


def _ranges(link: Link, estimates: Sequence[Estimate]) -> dict[str, Range | None]:
    """Return the link's ranges by field: intervals of the figures for long messages."""
    last = {estimate.figure: estimate for estimate in estimates}  # by ascending size
    line = float(link.bandwidth)
    found: dict[str, Range | None] = {}
    fields: dict[shapes.Figure, str] = {
        "latency": "latency",
        "goodput": "efficiency",
        "overhead": "overhead",
    }
    for figure, field in fields.items():
        known = last.get(figure)
        if known is None or known.low is None or known.high is None:
            continue
        ends = known.low, known.high
        stated = getattr(link, field)
        if link.factors and figure == "latency" and known.low == 0:
            # latencies of all sizes are multiples of this one, set by the shortest messages
            first = next(e for e in estimates if e.figure == figure)
            if not first.low or not first.high:
                continue
            times = float(stated) / first.value
            ends = times * first.low, times * first.high
        low, high = (
            shapes.rounded_number(end / line, DIGITS)
            if field == "efficiency"
            else shapes.rounded_seconds(end, DIGITS)
            for end in ends
        )
        if low < high:
            found[f"{field}_range"] = (min(stated, low), max(stated, high))
    return found
