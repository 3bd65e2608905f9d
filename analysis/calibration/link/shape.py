"""Figures of a fitted link as a vector, and the `Link` that they define.

The figures are one latency and one goodput, possibly an overhead per message, and from some sizes
on another latency or goodput (`Step`). In the vector `x` they are:

- latencies and overhead divided by `scale`, at least 0, so that x = 0 is a valid value
- natural logarithms of goodputs in bytes per second
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from gcsim.simulator.network.links import Link, SizeFactor

Vector = NDArray[np.float64]
Figure = Literal["latency", "overhead", "goodput"]

SHORTEST = 1e-9  # least latency in seconds of a link with size factors: 0 has no multiples
MOST = 1e6  # largest size factor of a link; a solver may try larger ones
_DIGITS = 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Size from which messages have another latency, goodput, or both."""

    from_bytes: int
    latency: bool
    goodput: bool

    @property
    def figures(self) -> int:
        """Number of figures that the step adds, its size included."""
        return 1 + self.latency + self.goodput


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Set of figures to fit."""

    scale: float  # seconds of a latency of 1 in the vector
    overhead: bool = False
    steps: tuple[Step, ...] = ()  # steps by ascending size
    line_rate: float | None = None  # bytes per second, if known; efficiency is goodput over it

    @property
    def figures(self) -> int:
        """Number of fitted figures, sizes of steps included."""
        return 2 + self.overhead + sum(step.figures for step in self.steps)

    @property
    def names(self) -> list[tuple[Figure, int]]:
        """Name of each value of the vector, with the size from which it applies."""
        found: list[tuple[Figure, int]] = [("latency", 0), ("goodput", 0)]
        found += [("overhead", 0)] * self.overhead
        for step in self.steps:
            found += [("latency", step.from_bytes)] * step.latency
            found += [("goodput", step.from_bytes)] * step.goodput
        return found

    def value(self, number: int, x: float) -> float:
        """Return a figure in seconds, or in bytes per second."""
        return math.exp(x) if self.names[number][0] == "goodput" else x * self.scale

    def link(self, x: Vector, name: str = "fitted", digits: int | None = None) -> Link:
        """Return the link, its figures rounded to `digits`. Its latency is that of long messages,
        its bandwidth times efficiency that of the fastest; other sizes have factors on them."""
        found = {
            known: self.value(place, float(x[place])) for place, known in enumerate(self.names)
        }
        segments = [(0, found["latency", 0], found["goodput", 0])]
        for step in self.steps:
            _, latency, goodput = segments[-1]
            latency = found.get(("latency", step.from_bytes), latency)
            goodput = found.get(("goodput", step.from_bytes), goodput)
            segments.append((step.from_bytes, latency, goodput))
        latency, goodput = segments[-1][1], max(goodput for _, _, goodput in segments)
        if self.steps:
            latency = max(latency, SHORTEST)
        line = self.line_rate if self.line_rate and self.line_rate >= goodput else goodput
        return Link(
            name=name,
            bandwidth=Fraction(round(line)) if digits is None else _bits(line, digits),
            latency=rounded_seconds(latency, digits),
            efficiency=min(Fraction(1), rounded_number(goodput / line, digits)),
            overhead=rounded_seconds(found.get(("overhead", 0), 0.0), digits),
            factors=tuple(
                SizeFactor(
                    from_bytes=from_bytes,
                    bandwidth=rounded_number(rate / goodput, digits),
                    latency=rounded_number(min(max(time, SHORTEST) / latency, MOST), digits),
                )
                for from_bytes, time, rate in segments
            )
            if self.steps
            else (),
        )


def _significant(value: float, digits: int) -> Fraction:
    return Fraction(f"{value:.{digits - 1}e}")


def _bits(bytes_per_second: float, digits: int) -> Fraction:
    """Round a rate in bits per second, as people write it."""
    return _significant(bytes_per_second * 8, digits) / 8


def rounded_seconds(value: float, digits: int | None) -> Fraction:
    """Return a time for a link, with `digits` significant digits if given."""
    if digits is not None:
        value = float(_significant(value, digits)) if value >= SHORTEST / 10 else 0.0
    return Fraction(round(value * 10**15), 10**15)


def rounded_number(value: float, digits: int | None) -> Fraction:
    """Return an efficiency or factor for a link, with `digits` significant digits if given."""
    if digits is not None:
        return _significant(value, digits)
    return Fraction(max(1, round(value * _DIGITS)), _DIGITS)


def start(shape: Shape, latency: float, goodput: float) -> Vector:
    """Return the vector of a shape without steps."""
    found: list[Any] = [latency / shape.scale, math.log(goodput)]
    return np.array(found + [0.0] * shape.overhead)
