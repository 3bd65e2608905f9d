"""Which rows answer the question? The largest size, the fastest method there, and at each size.

Rule: at a size the winner has the shortest iteration; methods within 1 % of the shortest are
called equal, since no prediction here is that sharp, and of equals that one wins whose update is
nearest to the dense one (smallest NMSE; the uncompressed exchange has none).

Where times are random, two methods are told apart when their means differ by more than two combined
standard errors, 2 sqrt(a^2 + b^2). Methods meet the same luck, so that their errors mostly go
together and the rule is on the safe side. Methods that are not told apart from the fastest, and may
differ by more than 1 %, leave no winner.

Where figures of the device have ranges, a method that is faster by more than 1 % on a device within
them leaves no winner either, and a method whose speedup may be on either side of 1 is not told
apart from the uncompressed exchange.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from gcsim.errors import InternalError
from gcsim.scenarios.result import Result, Row

TIE = 0.01
"""Relative difference of iteration times below which two methods count as equally fast."""

ERRORS = 2
"""Combined standard errors within which two means are not told apart."""

DENSE = "none"
"""Registered name of the uncompressed exchange."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Best:
    """The winner at one size, and those that are as fast."""

    row: Row
    """Where there is no winner: of those that may be fastest, the one with the smallest error."""
    equals: tuple[Row, ...]
    """Other rows within `TIE` of the fastest, by rising NMSE."""
    unclear: tuple[Row, ...] = ()
    """Where there is no winner: the rows that cannot be told apart, fastest first; else empty."""
    by_luck: bool = False
    """Some of those for luck."""
    by_device: bool = False
    """Some of those for what is not known of the device."""


def at_largest(result: Result) -> tuple[Row, ...]:
    """Rows of the largest size, fastest first."""
    if not result.rows:
        raise InternalError("a result without rows")
    largest = max(row.workers for row in result.rows)
    return fastest_first(row for row in result.rows if row.workers == largest)


def fastest_first(rows: Iterable[Row]) -> tuple[Row, ...]:
    """By iteration time, then by NMSE."""
    return tuple(sorted(rows, key=lambda row: (row.iteration_s, error_of(row))))


def sizes(result: Result) -> tuple[int, ...]:
    """Numbers of workers of the sweep, ascending."""
    return tuple(sorted({row.workers for row in result.rows}))


def best(rows: Iterable[Row]) -> Best:
    """The winner among rows of one size."""
    ordered = fastest_first(rows)
    fastest, dense = ordered[0], dense_row(ordered)
    limit = fastest.iteration_s * (1 + TIE)
    equals = sorted((row for row in ordered if row.iteration_s <= limit), key=_error)
    luck = [row for row in ordered[1:] if _unclear(fastest, row)]
    device = [row for row in ordered[1:] if may_beat(row, fastest)]
    unclear = [row for row in ordered[1:] if any(row is one for one in (*luck, *device))]
    if unclear:
        first, *others = sorted({id(row): row for row in (*equals, *unclear)}.values(), key=_error)
        return Best(
            row=first,
            equals=tuple(others),
            unclear=(fastest, *unclear),
            by_luck=bool(luck),
            by_device=bool(device),
        )
    if dense is not None and dense not in equals:
        # who is faster than dense beyond doubt goes before who may not be
        equals = [row for row in equals if row is fastest or told_apart(row, dense)]
    return Best(row=equals[0], equals=tuple(equals[1:]))


def doubt(one: Row, other: Row) -> float:
    """The difference of two mean iterations, in seconds, that could be luck; 0 without any."""
    return ERRORS * math.hypot(one.iteration_error_s or 0.0, other.iteration_error_s or 0.0)


def told_apart(one: Row, dense: Row) -> bool:
    """Whether it is known that a method is faster, or slower, than the uncompressed exchange."""
    return _beyond_luck(one, dense) and not either_side(one)


def either_side(row: Row) -> bool:
    """Whether the speedup may be on either side of 1, for all that is known of the device."""
    if row.speedup_lowest is None or row.speedup_highest is None:
        return False
    return row.speedup_lowest < 1 < row.speedup_highest


def may_beat(row: Row, fastest: Row) -> bool:
    """Whether a row may be faster by more than `TIE`, for all that is known of the device.

    Against the fastest of all rows, that was tried; against another one intervals are compared.
    """
    if row.iteration_fastest_s is None or fastest.iteration_slowest_s is None:
        return False
    if fastest.over_fastest_lowest is None and row.over_fastest_lowest is not None:
        ratio = row.over_fastest_lowest
    elif fastest.speedup_lowest is not None and row.speedup_highest is not None:
        ratio = fastest.speedup_lowest / row.speedup_highest
    else:
        ratio = row.iteration_fastest_s / fastest.iteration_slowest_s
    return ratio * (1 + TIE) < 1


def _beyond_luck(one: Row, other: Row) -> bool:
    return abs(one.iteration_s - other.iteration_s) > doubt(one, other)


def _unclear(fastest: Row, row: Row) -> bool:
    """Whether a slower row may be faster, or slower by more than `TIE`, but for luck."""
    worst = row.iteration_s - fastest.iteration_s + doubt(fastest, row)
    return not _beyond_luck(fastest, row) and worst > fastest.iteration_s * TIE


def _error(row: Row) -> tuple[bool, float]:
    # an exchange without rounding differences may share the NMSE of the dense one
    return (row.compressor != DENSE, error_of(row))


def error_of(row: Row) -> float:
    """The NMSE; infinite where the update's scale is not the gradient's."""
    return math.inf if row.nmse is None else row.nmse


def best_by_size(result: Result) -> tuple[Best, ...]:
    """The winner at each size, ascending."""
    return tuple(
        best(row for row in result.rows if row.workers == workers) for workers in sizes(result)
    )


def dense_row(rows: Iterable[Row]) -> Row | None:
    """The first uncompressed row, where there is one."""
    return next((row for row in rows if row.compressor == DENSE), None)
