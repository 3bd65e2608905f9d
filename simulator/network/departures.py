"""`Link.departure` for compiled loops, on links that change over time.

Amounts (integrals of rates, as in `network/rate_trace.py`) have 128 bits in two unsigned halves,
upper and lower. Traces and grants must change at whole picoseconds, and amounts must fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gcsim.compressors.loops import inlined, loop, overload
from gcsim.simulator.clock import LIMIT, Picoseconds, Times
from gcsim.simulator.network.links import Link
from gcsim.simulator.network.rate_trace import RateTrace

Ints = NDArray[np.int64]
Halves = NDArray[np.uint64]
_FITS = 1 << 126  # sums of two such amounts have 127 bits
_LATEST = LIMIT // 2  # represents all later times, which are refused
_MOST_DOUBLED = 61
_LOW, _BITS, _ONE, _NONE = (np.uint64(n) for n in (2**32 - 1, 32, 1, 0))


class Departures(NamedTuple):
    """Departures of messages of some sizes on some links, `[sizes x links]`, flat."""

    grant: Ints  # picoseconds between possible starts; 1: any time
    before: Ints  # picoseconds from the start until bytes flow
    trace: Ints  # number of the trace; -1: constant rate, `before` has the whole time
    nbytes: Halves  # [2, places]: a message's amount
    first: Ints  # [traces + 1]: first piece of each trace
    times: Ints  # [pieces]: begin
    rates: Ints  # [pieces]: amount per picosecond
    sums: Halves  # [2, pieces]: amount before it
    ends: Ints  # [2, traces]: end of a trace, and by how much it then jumps back; 0: never
    totals: Halves  # [4, traces]: amount until the end, and of the repeated part

    @staticmethod
    def of(sizes: Sequence[int], links: Sequence[Link]) -> Departures | None:
        """Build the table; None if one of the links does not fit."""
        numbers: dict[RateTrace, int] = {}
        rows: list[tuple[int, int, int, int]] = []
        for nbytes in sizes:
            for link in links:
                row = _row(link, nbytes, numbers)
                if row is None:
                    return None
                rows.append(row)
        integrals = [trace.integral for trace in numbers]
        if any(one.ticks != 1 or one.total >= _FITS for one in integrals):
            return None
        if any(one.end >= LIMIT or max(one.rates) >= 1 << 62 for one in integrals):
            return None
        grant, before, trace, amounts = zip(*rows, strict=True)
        counts = np.cumsum([0, *(len(one.starts) for one in integrals)])
        return Departures(
            grant=np.array(grant, dtype=np.int64),
            before=np.array(before, dtype=np.int64),
            trace=np.array(trace, dtype=np.int64),
            nbytes=_halves(amounts),
            first=counts.astype(np.int64),
            times=np.array([time for one in integrals for time in one.starts], dtype=np.int64),
            rates=np.array([rate for one in integrals for rate in one.rates], dtype=np.int64),
            sums=_halves([amount for one in integrals for amount in one.sums]),
            ends=np.array([(one.end, one.period) for one in integrals], dtype=np.int64)
            .reshape(-1, 2)
            .T.copy(),
            totals=np.concatenate(
                (
                    _halves([one.total for one in integrals]),
                    _halves([one.gain for one in integrals]),
                )
            ),
        )


def _row(
    link: Link, nbytes: int, numbers: dict[RateTrace, int]
) -> tuple[int, int, int, int] | None:
    """Return grant, time before bytes flow, number of the trace, amount."""
    grant, before, goodput = link.to_depart(nbytes)
    if grant.denominator != 1 or grant >= LIMIT or before >= LIMIT:
        return None
    if not isinstance(goodput, RateTrace):
        return int(grant) or 1, before, -1, 0
    amount = nbytes * goodput.integral.units
    number = numbers.setdefault(goodput, len(numbers))
    return (int(grant) or 1, before, number, amount) if amount < _FITS else None


def _halves(amounts: Sequence[int]) -> Halves:
    both = [(amount >> 64, amount & (2**64 - 1)) for amount in amounts]
    return np.array(both, dtype=np.uint64).reshape(-1, 2).T.copy()


def departure(serialization: Any, place: int, start: Picoseconds) -> Picoseconds:
    """Return the departure of a message that may start at `start`, by times or `Departures`."""
    if isinstance(serialization, Departures):
        return int(_departure(serialization, place, start))
    left: Picoseconds = start + serialization[place]
    return left


def _departure_on(serialization: Any, place: int, start: Picoseconds) -> Any:
    return _departure(serialization, place, start)


@overload(departure, inline="always", strict=False)
def _departure_of(serialization: Any, place: Any, start: Any) -> Any:
    if hasattr(serialization, "layout"):  # numba's type of an array
        return lambda serialization, place, start: start + serialization[place]
    return _departure_on


def run_of(serialization: Any, low: int, high: int) -> Times:
    """Return part of a table of times; empty for `Departures`."""
    part: Times = (
        np.empty(0, dtype=np.int64)
        if isinstance(serialization, Departures)
        else serialization[low:high]
    )
    return part


@overload(run_of, inline="always", strict=False)
def _run_of(serialization: Any, low: Any, high: Any) -> Any:
    if hasattr(serialization, "layout"):
        return lambda serialization, low, high: serialization[low:high]
    return lambda serialization, low, high: np.empty(0, dtype=np.int64)


@loop
def _departure(of: Departures, place: int, start: int) -> Any:
    grant, number = of.grant[place], of.trace[place]
    if grant > 1:
        start = ((start - 1) // grant + 1) * grant
    start += of.before[place]
    upper, lower = of.nbytes[0, place], of.nbytes[1, place]
    if number < 0 or (upper == _NONE and lower == _NONE):
        return min(start, _LATEST)
    first, last = of.first[number], of.first[number + 1]
    end, period = of.ends[0, number], of.ends[1, number]
    back = 0
    if period > 0 and start >= end:
        back = ((start - end) // period + 1) * period
    within = start - back
    piece = first + np.searchsorted(of.times[first:last], within, side="right") - 1
    more = _times(of.rates[piece], within - of.times[piece])
    upper, lower = _sum(upper, lower, more[0], more[1])
    upper, lower = _sum(upper, lower, of.sums[0, piece], of.sums[1, piece])
    if period > 0:
        upper, lower, laps = _without_laps(upper, lower, of.totals[:, number])
        if laps >= (_LATEST - back) // period:
            return _LATEST
        back += laps * period
    low, high = first, last  # search the last piece that begins with a smaller amount
    while high - low > 1:
        middle = (low + high) // 2
        if _less(of.sums[0, middle], of.sums[1, middle], upper, lower):
            low = middle
        else:
            high = middle
    upper, lower = _difference(upper, lower, of.sums[0, low], of.sums[1, low])
    return min(of.times[low] + _quotient(upper, lower, of.rates[low]) + back, _LATEST)


@loop
def _without_laps(upper: Any, lower: Any, totals: Halves) -> tuple[Any, Any, int]:
    """Reduce an amount to one within the trace; return also the number of repetitions before."""
    if not _less(totals[0], totals[1], upper, lower):
        return upper, lower, 0
    # the excess over the repeated part, divided and rounded up, digit by digit
    upper, lower = _difference(upper, lower, totals[0], totals[1])
    upper, lower = _difference(upper, lower, _NONE, _ONE)
    part_upper, part_lower, doubled = totals[2], totals[3], 0
    while not _less(upper, lower, part_upper, part_lower):
        part_upper, part_lower = _sum(part_upper, part_lower, part_upper, part_lower)
        doubled += 1
    if doubled > _MOST_DOUBLED:
        return upper, lower, _LATEST
    laps = 0
    for _ in range(doubled):
        part_lower = (part_lower >> _ONE) | (part_upper << np.uint64(63))
        part_upper >>= _ONE
        laps *= 2
        if not _less(upper, lower, part_upper, part_lower):
            upper, lower = _difference(upper, lower, part_upper, part_lower)
            laps += 1
    upper, lower = _sum(upper, lower, _NONE, _ONE)
    upper, lower = _sum(upper, lower, totals[0], totals[1])
    upper, lower = _difference(upper, lower, totals[2], totals[3])
    return upper, lower, laps + 1


@inlined
def _sum(upper: Any, lower: Any, more: Any, other: Any) -> tuple[Any, Any]:
    low = np.uint64(lower + other)
    return np.uint64(upper + more + (_ONE if low < lower else _NONE)), low


@inlined
def _difference(upper: Any, lower: Any, less: Any, other: Any) -> tuple[Any, Any]:
    low = np.uint64(lower - other)
    return np.uint64(upper - less - (_ONE if lower < other else _NONE)), low


@inlined
def _less(upper: Any, lower: Any, other_upper: Any, other_lower: Any) -> Any:
    return upper < other_upper or (upper == other_upper and lower < other_lower)


@inlined
def _times(one: int, other: int) -> tuple[Any, Any]:
    """Return the product of two numbers of 63 bits."""
    a, b = np.uint64(one), np.uint64(other)
    a_low, a_high, b_low, b_high = a & _LOW, a >> _BITS, b & _LOW, b >> _BITS
    crossed = a_high * b_low + ((a_low * b_low) >> _BITS)
    other_crossed = a_low * b_high + (crossed & _LOW)
    return a_high * b_high + (crossed >> _BITS) + (other_crossed >> _BITS), a * b


@inlined
def _quotient(upper: Any, lower: Any, divisor: int) -> Any:
    """Return the quotient rounded up, at most `_LATEST`, digit by digit."""
    by = np.uint64(divisor)
    if upper >= by:  # it has 65 digits or more
        return _LATEST
    rest, digits = upper, _NONE
    for place in range(64):
        bit = (lower >> np.uint64(63 - place)) & _ONE
        rest = np.uint64((rest << _ONE) | bit)  # `by` has 62 bits, so that nothing is lost
        digits = np.uint64(digits << _ONE)
        if rest >= by:
            rest, digits = np.uint64(rest - by), np.uint64(digits | _ONE)
    if digits >= np.uint64(_LATEST):
        return _LATEST
    return np.int64(digits) + (1 if rest > _NONE else 0)
