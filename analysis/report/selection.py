"""Which rows answer the question? At each size: does compression pay, what is safe, what to try.

Methods are compared by the interval of how many times as fast one is as the other
(`report/comparison.py`): one *surely beats* another when it is more than `TIE` faster in the whole
interval, 1 %: no prediction here is sharper. Candidates for the fastest are those that nobody
surely beats; what `report/trust.py` leaves out neither is one nor beats one.

Whether compression pays is a question of its own, against every uncompressed row, which servers may
carry too:

- yes: some method is surely faster;
- no: none may be more than `TIE` faster;
- else it is likely, or not known, by the probability that it is faster of the method to try.

The method to try is the candidate with the shortest iteration, in the middle of the draws, of those
that surely pay, if some do; of those within `TIE` of it, the one with the smallest error. Where it
is not sure to pay, it is the candidate that most probably does. The safe method is chosen in the
same way among the safe ones that surely pay.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from gcsim.analysis.report.comparison import median_of, probability_faster, ratio
from gcsim.analysis.report.trust import DENSE, fault_of, is_safe, recorded_workers
from gcsim.errors import InternalError
from gcsim.scenarios.result import Result, Row
from gcsim.scenarios.uncertainty.close_pairs import TIE

LIKELY = 0.5
"""Probability from which on compression is said to be likely to pay."""

Pays = Literal["yes", "likely", "not known", "no"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What can be said at one size."""

    rows: tuple[Row, ...]
    """All of them, fastest first."""
    dense: Row | None
    """The uncompressed row that speedups are against."""
    pays: Pays | None
    """None where there is nothing to compare, or nothing to compare with."""
    safe: Row | None
    """The fastest method whose update is practically the dense one, if it surely pays; without a
    dense row, the fastest such method."""
    to_try: Row | None
    """None where no method can be trained with, or there is none."""
    probability: float | None
    """That the method to try is faster than uncompressed training; None without that."""
    rivals: tuple[Row, ...]
    """Other methods that nobody surely beats, fastest first."""
    by_luck: bool
    """More iterations would decide what is open."""
    left_out: tuple[tuple[Row, str], ...]
    """Methods that cannot be trained with, fastest first, and why."""

    @property
    def recommended(self) -> Row | None:
        """Uncompressed training unless compression pays; the safe method before others. None where
        there is nothing to train with."""
        if self.safe is not None:
            return self.safe
        return self.to_try if self.pays == "yes" or self.dense is None else self.dense

    @property
    def foremost(self) -> tuple[Row, ...]:
        """Those that no other surely beats; the uncompressed row where nothing is faster."""
        found = () if self.to_try is None else (self.to_try, *self.rivals)
        if self.dense is None:
            return found
        if self.pays in (None, "no"):
            return (self.dense,)
        return found if self.pays == "yes" else (*found, self.dense)


def at_largest(result: Result) -> tuple[Row, ...]:
    """Rows of the largest size, fastest first."""
    if not result.rows:
        raise InternalError("a result without rows")
    largest = max(row.workers for row in result.rows)
    return fastest_first(row for row in result.rows if row.workers == largest)


def fastest_first(rows: Iterable[Row]) -> tuple[Row, ...]:
    """By iteration time, then by NMSE, then by label."""
    return tuple(sorted(rows, key=lambda row: (row.iteration_s, error_of(row), row.label)))


def sizes(result: Result) -> tuple[int, ...]:
    """Numbers of workers of the sweep, ascending."""
    return tuple(sorted({row.workers for row in result.rows}))


def error_of(row: Row) -> float:
    """The NMSE; infinite where the update's scale is not the gradient's."""
    return math.inf if row.nmse is None else row.nmse


def dense_row(rows: Iterable[Row]) -> Row | None:
    """The uncompressed row that speedups are against, where there is one."""
    plain = [row for row in rows if row.compressor == DENSE]
    return min(plain, key=lambda row: (row.speedup_vs_dense != 1, row.via != ""), default=None)


def largest_verdict(result: Result) -> Verdict:
    """What can be said at the largest size."""
    return verdict(at_largest(result), recorded_workers(result))


def verdicts(result: Result) -> tuple[Verdict, ...]:
    """What can be said at each size, ascending."""
    workers = recorded_workers(result)
    return tuple(
        verdict((row for row in result.rows if row.workers == size), workers)
        for size in sizes(result)
    )


def surely_beats(one: Row, other: Row) -> bool:
    """Whether it is surely more than `TIE` faster."""
    return one is not other and ratio(one, other).surely_above(1 + TIE)


def surely_faster(one: Row, others: Iterable[Row]) -> bool:
    """Whether it is faster than each of them, surely, if by little."""
    return all(ratio(one, other).surely_above(1) for other in others)


def candidates(rows: Sequence[Row]) -> tuple[Row, ...]:
    """The rows that none of them surely beats; quick where they come fastest first."""
    found = tuple(row for row in rows if not any(surely_beats(other, row) for other in rows))
    # ten methods or more may beat each other in a circle, each in nine worlds of ten
    return found or tuple(sorted(rows, key=median_of)[:1])


def verdict(rows: Iterable[Row], recorded: int | None = None) -> Verdict:
    """What can be said of rows of one size; `recorded` as in `fault_of`."""
    ordered = fastest_first(rows)
    faults = [(row, fault_of(row, recorded)) for row in ordered]
    usable = [row for row, fault in faults if not fault]
    plain = [row for row in ordered if row.compressor == DENSE]
    methods = [row for row in usable if row.compressor != DENSE]
    dense = dense_row(ordered)
    leaders = [row for row in candidates(usable) if row.compressor != DENSE]
    to_try = _to_try(leaders or methods, plain)
    pays = _pays(methods, plain)
    rivals = tuple(row for row in leaders if row is not to_try)
    return Verdict(
        rows=ordered,
        dense=dense,
        pays=pays,
        safe=_safe(usable, dense, to_try),
        to_try=to_try,
        probability=_probability(to_try, plain) if to_try and plain else None,
        rivals=rivals,
        by_luck=to_try is not None and _by_luck(to_try, rivals, plain, pays),
        left_out=tuple((row, fault) for row, fault in faults if fault),
    )


def _pays(methods: Sequence[Row], plain: Sequence[Row]) -> Pays | None:
    if not methods or not plain:
        return None
    if not any(_may_gain(row, plain) for row in methods):
        return "no"
    if any(surely_faster(row, plain) for row in methods):
        return "yes"
    return "likely" if max(_probability(row, plain) for row in methods) >= LIKELY else "not known"


def _may_gain(row: Row, plain: Sequence[Row]) -> bool:
    """Whether it may be more than `TIE` faster than each."""
    return all(ratio(row, other).high > 1 + TIE for other in plain)


def _probability(row: Row, plain: Sequence[Row]) -> float:
    return min(probability_faster(row, other) for other in plain)


def _to_try(rows: Sequence[Row], plain: Sequence[Row]) -> Row | None:
    sure = [row for row in rows if surely_faster(row, plain)]
    if sure or not rows:
        return _nearest_of_fastest(sure)
    return max(rows, key=lambda row: (_probability(row, plain), -median_of(row)))


def _nearest_of_fastest(rows: Sequence[Row]) -> Row | None:
    """Of those that are as fast as the fastest, the one with the smallest error."""
    if not rows:
        return None
    limit = min(map(median_of, rows)) * (1 + TIE)
    # an exchange without rounding differences may share the NMSE of the dense one
    return min(
        (row for row in rows if median_of(row) <= limit),
        key=lambda row: (row.compressor != DENSE, error_of(row), row.iteration_s),
    )


def _safe(usable: Sequence[Row], dense: Row | None, to_try: Row | None) -> Row | None:
    against = [] if dense is None else [dense]
    pool = [
        row
        for row in usable
        if row is not dense
        and is_safe(row)
        and surely_faster(row, against)
        and _may_gain(row, against)
    ]
    if any(row is to_try for row in pool):
        return to_try
    return _nearest_of_fastest(candidates(pool))


def _by_luck(to_try: Row, rivals: Sequence[Row], plain: Sequence[Row], pays: Pays | None) -> bool:
    """Whether something that is open would not be, if the means had no errors."""
    for rival in rivals:
        one = ratio(to_try, rival, luck=False)
        if one.surely_above(1 + TIE) or 1 / one.high > 1 + TIE:
            return True
    if pays in ("yes", "no", None):
        return False
    found = [ratio(to_try, other, luck=False) for other in plain]
    return all(one.surely_above(1) for one in found) or any(one.high <= 1 + TIE for one in found)
