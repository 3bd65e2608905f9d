"""Rates that change over time, and when n bytes have passed.

With C(t) the integral of the piecewise constant rate from 0 to t, n bytes that begin to flow at S
have passed at the first whole picosecond F with

    C(F) - C(S) >= n,        F = C^-1(C(S) + n) rounded up

computed exactly in integers, in O(log pieces) for any length. F is monotone in S and n, and
F(F(S, a), b) is F(S, a + b), except for rounding, of less than the bytes of a picosecond.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal

from gcsim.errors import InputError, InternalError, Problem
from gcsim.simulator.clock import PS_PER_SECOND, Picoseconds

_MOST_PIECES = 100_000  # most pieces of a combined trace


def refuse(*checks: tuple[bool, str, str]) -> None:
    """Raise `InputError` with the message and hint of every check that is true."""
    problems = [Problem(message=message, hint=hint) for wrong, message, hint in checks if wrong]
    if problems:
        raise InputError(problems)


@dataclass(frozen=True, kw_only=True)
class RateTrace:
    """A piecewise constant rate, known from 0 to `duration`."""

    times: tuple[Fraction, ...]  # seconds at which rates begin, ascending from 0
    rates: tuple[Fraction, ...]  # goodput, bytes per second; at least one is positive
    duration: Fraction  # seconds at which the last rate ends
    after: Literal["repeat", "hold"]  # repeat the trace after its end, or hold the last rate
    back_to: Fraction = Fraction(0)  # repeat from here, in seconds; the part before occurs once

    def __post_init__(self) -> None:
        times, rates = self.times, self.rates
        refuse(
            (len(times) != len(rates), f"{len(times)} times and {len(rates)} rates", "pair them"),
            (not times, "a trace without a rate", "give the time and rate of one change at least"),
            (bool(times) and times[0] != 0, "the first time is not 0", "say what holds from 0 on"),
            (any(a >= b for a, b in pairwise(times)), "the times do not ascend", "sort them"),
            (
                bool(times) and self.duration <= times[-1],
                f"the trace ends at {float(self.duration):g} s, before its last rate begins",
                "let `duration` be more than the last time",
            ),
            (any(rate < 0 for rate in rates), "a rate is negative", "that of an outage is 0"),
            (
                bool(rates) and self.after == "hold" and rates[-1] == 0,
                "the last rate, which holds forever, is 0",
                "nothing would get through after it: let the trace repeat, or end above 0",
            ),
            (
                not 0 <= self.back_to < self.duration
                or (self.back_to > 0 and self.after == "hold"),
                f"the trace goes back to {float(self.back_to):g} s",
                "only a repeating one does, to a time before its end",
            ),
        )
        refuse(
            (
                self.after == "repeat" and not self.long_run,
                "no rate that repeats is positive",
                "nothing would ever get through",
            )
        )

    @cached_property
    def _hash(self) -> int:
        return hash((self.times, self.rates, self.duration, self.after, self.back_to))

    def __hash__(self) -> int:
        return self._hash

    def __getstate__(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @cached_property
    def long_run(self) -> Fraction:
        """Mean bytes per second in the long run: the last rate, or the mean of a repetition."""
        if self.after == "hold":
            return self.rates[-1]
        carried = sum((rate * (end - start) for start, end, rate in self._body), Fraction(0))
        return carried / self._period

    def finish(self, start: Picoseconds, nbytes: Fraction | int) -> Picoseconds:
        """Return when `nbytes` >= 0 that begin to flow at `start` >= 0 have passed."""
        if nbytes < 0 or start < 0:
            raise InternalError(f"{nbytes} bytes from {start} ps on a trace, which begins at 0")
        if nbytes == 0:
            return start
        return self.integral.first_with(self.integral.until(start), nbytes)

    def times_factor(self, factor: Fraction) -> RateTrace:
        """Return the trace times a positive factor."""
        return self if factor == 1 else replace(self, rates=tuple(r * factor for r in self.rates))

    @property
    def _period(self) -> Fraction:
        return self.duration - self.back_to

    @property
    def _pieces(self) -> Iterator[tuple[Fraction, Fraction, Fraction]]:
        return zip(self.times, (*self.times[1:], self.duration), self.rates, strict=True)

    @property
    def _body(self) -> Iterator[tuple[Fraction, Fraction, Fraction]]:
        """Yield the pieces that repeat."""
        for start, end, rate in self._pieces:
            if end > self.back_to:
                yield max(start, self.back_to), end, rate

    def changes(self, end: Fraction) -> list[tuple[Fraction, Fraction]]:
        """Return time and rate of each piece that begins before `end`, repetitions unrolled."""
        found = [(start, rate) for start, _, rate in self._pieces]
        body = [(start, rate) for start, _, rate in self._body] if self.after == "repeat" else []
        rounds = math.ceil((end - self.duration) / self._period) if body else 0
        if len(found) + rounds * len(body) > _MOST_PIECES:
            raise InputError(
                f"rates that change {len(found) + rounds * len(body)} times in "
                f"{float(end):g} s, before they repeat together",
                hint="make one trace's duration a multiple of the other's",
            )
        for turn in range(1, rounds + 1):
            found += [(start + turn * self._period, rate) for start, rate in body]
        return [(start, rate) for start, rate in found if start < end]

    @cached_property
    def integral(self) -> Integral:
        """Integral C in integers."""
        return Integral(self)


def slower(one: RateTrace | Fraction, other: RateTrace | Fraction) -> RateTrace | Fraction:
    """Return the smaller rate at each instant, exactly for any two repetitions; a number if it is
    constant. Raises `InputError` if it is always 0, or the common period has too many changes."""
    if isinstance(one, Fraction) and isinstance(other, Fraction):
        return min(one, other)
    if one == other:
        return one
    first, second = _as_trace(one), _as_trace(other)
    periods = [trace._period for trace in (first, second) if trace.after == "repeat"]
    if periods:
        begin = max(
            trace.back_to if trace.after == "repeat" else trace.times[-1]
            for trace in (first, second)
        )
        end = begin + _common_multiple(periods)
    else:
        begin, end = Fraction(0), max(first.duration, second.duration)
    changes = [dict(trace.changes(end)) for trace in (first, second)]
    now = [Fraction(0), Fraction(0)]
    times: list[Fraction] = []
    rates: list[Fraction] = []
    for time in sorted({*changes[0], *changes[1]}):
        now = [change.get(time, rate) for change, rate in zip(changes, now, strict=True)]
        if not rates or min(now) != rates[-1]:
            times.append(time)
            rates.append(min(now))
    if len(rates) == 1 and rates[0] > 0:
        return rates[0]
    return RateTrace(
        times=tuple(times),
        rates=tuple(rates),
        duration=end,
        after="repeat" if periods else "hold",
        back_to=begin,
    )


def times_factor(rate: RateTrace | Fraction, factor: Fraction) -> RateTrace | Fraction:
    """Return a constant or changing rate times a positive factor."""
    return rate.times_factor(factor) if isinstance(rate, RateTrace) else rate * factor


def _as_trace(rate: RateTrace | Fraction) -> RateTrace:
    if isinstance(rate, RateTrace):
        return rate
    return RateTrace(times=(Fraction(0),), rates=(rate,), duration=Fraction(1), after="hold")


def _common_multiple(periods: list[Fraction]) -> Fraction:
    scale = math.lcm(*(period.denominator for period in periods))
    return Fraction(math.lcm(*(int(period * scale) for period in periods)), scale)


class Integral:
    """C(t) of a trace in integers: `ticks` per picosecond, `units` per byte."""

    def __init__(self, trace: RateTrace) -> None:
        instants = [Fraction(time * PS_PER_SECOND) for time in (*trace.times, trace.duration)]
        back_to = trace.back_to * PS_PER_SECOND
        self.ticks = math.lcm(back_to.denominator, *(time.denominator for time in instants))
        scale = math.lcm(*(rate.denominator for rate in trace.rates))
        self.units = scale * PS_PER_SECOND * self.ticks
        *self.starts, self.end = (int(time * self.ticks) for time in instants)
        self.rates = [int(rate * scale) for rate in trace.rates]
        self.sums = [0]
        for (start, end), rate in zip(pairwise((*self.starts, self.end)), self.rates, strict=True):
            self.sums.append(self.sums[-1] + rate * (end - start))
        self.total = self.sums.pop()
        self.period = self.gain = 0  # duration and amount of a repetition
        if trace.after == "repeat":
            begin = int(back_to * self.ticks)
            self.gain = self.total - self._inside(begin)
            self.period = self.end - begin

    def until(self, time: Picoseconds) -> int:
        """C(time)."""
        ticks = time * self.ticks
        if self.period and ticks >= self.end:
            rounds = (ticks - self.end) // self.period + 1
            return self._inside(ticks - rounds * self.period) + rounds * self.gain
        return self._inside(ticks)

    def first_with(self, before: int, nbytes: Fraction | int) -> Picoseconds:
        """Return the first picosecond at which C is at least `before` plus `nbytes` > 0."""
        # C is an integer at whole picoseconds, so the target may be rounded up
        target = before - nbytes.numerator * self.units // -nbytes.denominator
        rounds = 0
        if self.period and target > self.total:
            rounds = -((self.total - target) // self.gain)
            target -= rounds * self.gain
        piece = bisect_left(self.sums, target) - 1
        ticks = self.starts[piece] - (self.sums[piece] - target) // self.rates[piece]
        return -(-(ticks + rounds * self.period) // self.ticks)

    def _inside(self, ticks: int) -> int:
        piece = bisect_right(self.starts, ticks) - 1
        return self.sums[piece] + self.rates[piece] * (ticks - self.starts[piece])
