"""Lines of a report: a series, or its parts if its overall median would represent none of them.

A series is cut between two numbers of ranks, or two sizes that print differently, if the points
below and above, at least `SIDE` each, have biases of opposite sign beyond `CLEAR`, which would
cancel. The cut with the largest difference comes first; the parts are cut again.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from gcsim.analysis.validation.statistics import grouped, not_fitted
from gcsim.analysis.validation.suite import Point

SIDE = 6  # least points on either side of a cut: the bias of fewer may be chance
CLEAR = 0.03  # least bias that counts: repeated measurements differ by 1 to 3 %
_UNITS = (("GB", 10**9), ("MB", 10**6), ("kB", 10**3), ("B", 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """A cut of a series into two parts."""

    axis: str  # "ranks" or "size"
    below: tuple[Point, ...]
    above: tuple[Point, ...]
    apart: float  # difference of the two biases


AXES: Mapping[str, Callable[[Point], float]] = {
    "ranks": lambda point: point.workers,
    "size": lambda point: _shown(point.nbytes),
}


def lines(series: Mapping[str, Sequence[Point]]) -> dict[str, list[Point]]:
    """Return each series by name, or its parts by theirs, in order: "all-reduce, 2-4 ranks"."""
    found: dict[str, list[Point]] = {}
    for name, points in series.items():
        for axes, part in _parts(not_fitted(points), frozenset()):
            ranges = [span(axis, part) for axis in AXES if axis in axes]
            found[", ".join([name, *ranges])] = part
    return found


def cuts(points: Sequence[Point]) -> Iterator[Cut]:
    """Yield all cuts that separate judged points of opposite bias."""
    for axis, value in AXES.items():
        ordered = sorted(points, key=value)
        for place in range(SIDE, len(ordered) - SIDE + 1):
            below, above = ordered[:place], ordered[place:]
            if value(below[-1]) == value(above[0]):
                continue
            low, high = _bias(below), _bias(above)
            if min(abs(low), abs(high)) > CLEAR and low * high < 0:
                yield Cut(axis=axis, below=tuple(below), above=tuple(above), apart=abs(low - high))


def by_value(points: Sequence[Point], axis: str) -> dict[float, list[Point]]:
    """Return points by number of ranks, or by decade of size, ascending."""
    value = AXES[axis]
    ordered = sorted(points, key=value)
    return grouped(ordered, lambda one: _decade(value(one)) if axis == "size" else value(one))


def span(axis: str, part: Sequence[Point]) -> str:
    """Return the range of a part's ranks or sizes: "2-4 ranks"."""
    values = [AXES[axis](point) for point in part]
    low, high = min(values), max(values)
    if axis == "ranks":
        return f"{low:g} ranks" if low == high else f"{low:g}-{high:g} ranks"
    return size(low) if low == high else f"{size(low)} to {size(high)}"


def size(nbytes: float) -> str:
    """Format a size: "10 kB"."""
    nbytes = _shown(nbytes)
    unit, one = next((unit, one) for unit, one in _UNITS if nbytes >= one or one == 1)
    return f"{nbytes / one:g} {unit}"


def _parts(
    points: Sequence[Point], axes: frozenset[str]
) -> Iterator[tuple[frozenset[str], list[Point]]]:
    """Yield the parts between cuts, with the axes of their cuts."""
    first = max(cuts(points), key=lambda cut: cut.apart, default=None)
    if first is None:
        if points:
            yield axes, list(points)
        return
    for half in (first.below, first.above):
        yield from _parts(half, axes | {first.axis})


def _shown(nbytes: float) -> float:
    """Round a size to three digits, so that sizes that print alike are equal."""
    return float(f"{nbytes:.3g}")


def _bias(points: Sequence[Point]) -> float:
    return statistics.median(point.error for point in points)


def _decade(nbytes: float) -> float:
    """Return the largest power of ten up to a size; 0 below one byte."""
    return 10 ** (len(str(int(nbytes))) - 1) if nbytes >= 1 else 0
