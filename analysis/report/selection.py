"""Selection of the rows that answer the question at each size: whether compression pays, the safe
method, and the method to try.

One method *surely beats* another if it is more than `TIE` faster in the whole interval
(`report/comparison.py`); `TIE` is 1 %, since no prediction is more accurate. Candidates are methods
that no other surely beats. Methods that `report/trust.py` leaves out do not take part.

Whether compression pays is judged against every uncompressed row, parameter servers included:

- yes: some method is surely faster;
- no: none may be more than `TIE` faster, or there is only one worker;
- else by the probability that the best method is faster: likely from 2/3, unlikely up to 1/3,
  and not known between (M. Mastrandrea et al., "Guidance note for lead authors of the IPCC Fifth
  Assessment Report on consistent treatment of uncertainties", 2010, table 1).

The best method is the fastest candidate that surely pays (within `TIE`, the one with the smallest
error), else the one that most probably pays. It is the one to try if it pays with a probability of
at least one half. The safe method is chosen likewise among the safe methods that surely pay.

If time to the target is known (`scenarios/trained/known.py`), faster means sooner at the target,
and methods without this time are no candidates. The safe method is still judged by its iterations:
its number of steps differs from dense training's only by the luck of the seed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from gcsim.analysis.report.comparison import probability_faster, ratio, worlds
from gcsim.analysis.report.trust import fault_of, is_safe, recorded_workers
from gcsim.errors import InternalError
from gcsim.scenarios.findings import Evidence
from gcsim.scenarios.result import Result, Row, error_of, fastest_first, known_to_target, pace
from gcsim.scenarios.uncertainty.close_pairs import TIE
from gcsim.simulator.training import DENSE

EVEN = 0.5  # probability of paying from which a method is worth trying
LIKELY, UNLIKELY = 2 / 3, 1 / 3
"""Probability from which compression is likely to pay, and the one up to which it is unlikely."""

Pays = Literal["yes", "likely", "not known", "unlikely", "no"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Verdict at one size."""

    rows: tuple[Row, ...]  # all rows, fastest first
    dense: Row | None  # the uncompressed row to which speedups relate
    pays: Pays | None  # None without methods to compare or without dense training
    safe: Row | None
    """Fastest method with practically the dense update, if it surely pays or no row is dense."""
    best: Row | None  # the method that may be the fastest; None if none is fit for training
    to_try: Row | None
    """The best method, if it is at least as likely as not to beat uncompressed training; or the
    best among those that did not miss the target elsewhere (`avoiding`)."""
    probability: float | None
    """Probability that the best method beats uncompressed training; None without one."""
    rivals: tuple[Row, ...]
    """Other methods worth trying that none surely beats, fastest first."""
    uncompressed: tuple[Row, ...]
    """Uncompressed rows that no row surely beats; empty if compression pays."""
    by_luck: bool  # whether more iterations would decide an open comparison
    left_out: tuple[tuple[Row, str], ...]  # methods unfit for training, fastest first, and why

    @property
    def foremost(self) -> tuple[Row, ...]:
        """Rows that no other surely beats: methods worth trying, and uncompressed ones."""
        found = () if self.best is None or self.to_try is None else (self.best, *self.rivals)
        return (*found, *self.uncompressed)

    @property
    def until_target(self) -> bool:
        """Whether methods are judged by their time to the target."""
        return known_to_target(self.rows)

    @property
    def not_trained(self) -> tuple[Row, ...]:
        """Methods whose time to the target is not known, if others are judged by it."""
        judged = self.rows if self.until_target else ()
        return tuple(row for row in judged if row.seeds_trained is None)


def at_largest(result: Result) -> tuple[Row, ...]:
    """Return the rows of the largest size, fastest first."""
    if not result.rows:
        raise InternalError("a result without rows")
    largest = max(row.workers for row in result.rows)
    return fastest_first(row for row in result.rows if row.workers == largest)


def sizes(result: Result) -> tuple[int, ...]:
    """Return the numbers of workers of the sweep, ascending."""
    return tuple(sorted({row.workers for row in result.rows}))


def dense_row(rows: Iterable[Row]) -> Row | None:
    """Return the uncompressed row to which speedups relate, if there is one."""
    plain = [row for row in rows if row.compressor == DENSE]
    return min(plain, key=lambda row: (row.speedup_vs_dense != 1, row.via != ""), default=None)


def largest_verdict(result: Result) -> Verdict:
    """Return the verdict at the largest size."""
    return _verdict_with_evidence(result, at_largest(result))


def verdicts(result: Result) -> tuple[Verdict, ...]:
    """Return the verdicts at all sizes, ascending."""
    return tuple(
        _verdict_with_evidence(result, [row for row in result.rows if row.workers == size])
        for size in sizes(result)
    )


def _verdict_with_evidence(result: Result, rows: Iterable[Row]) -> Verdict:
    """Return a verdict that takes the result's evidence into account."""
    workers, known = recorded_workers(result), result.advice
    found = verdict(rows, workers)
    if known is None:
        return found
    missed = {row.label for row in found.rows if row.seeds_trained is None} & known.missed.keys()
    steps = steps_of(found, known.known)
    return avoiding(missed | steps.keys(), found, best_known(found, steps), workers)


def avoiding(
    judged: Collection[str], found: Verdict, use: Row | None, recorded: int | None = None
) -> Verdict:
    """Replace the method to try if it is one of `judged`, whose training missed the target
    elsewhere or needs so many steps that it is slower to the goal: try a method instead whose
    training is an open question, if one is faster than the method to use."""
    if found.to_try is None or found.to_try is use or found.to_try.label not in judged:
        return found
    rows = [row for row in found.rows if row.label not in judged or row.compressor == DENSE]
    other = verdict(rows, recorded).to_try if rows else None
    if other is None or (use is not None and expected_s(other) >= expected_s(use)):
        return found
    return replace(found, to_try=other)


def steps_of(found: Verdict, known: Mapping[str, Evidence]) -> dict[str, float]:
    """Return steps to the goal relative to dense training's, by label: from the scenario's
    trainings if every seed reached the target, else from evidence."""
    steps = {label: one.steps_vs_dense for label, one in known.items()}
    for row in found.rows:
        if row.seeds_trained is not None:
            own = row.steps_to_target_vs_dense
            steps.pop(row.label, None)
            if own is not None and row.seeds_at_target == row.seeds_trained:
                steps[row.label] = own
    return steps


def best_known(found: Verdict, steps: Mapping[str, float]) -> Row | None:
    """Return the method with the least expected time to the goal. It must be known to train and
    likely (in 2 of 3 worlds) to beat dense training and, if its update differs from the dense one,
    to beat the fastest method whose update does not.

    The expected time is the mean iteration over the drawn worlds times the steps to the goal
    relative to dense training's. `steps` has these steps by label for methods whose update differs;
    dense training and safe methods count as 1. Of methods within `TIE` of the least time, the most
    exact one is chosen. Returns None if no method is fit for training.
    """
    out = [row for row, _ in found.left_out]
    fit = (row for row in found.rows if row not in out)
    known = {row.label: 1.0 if is_safe(row) else steps.get(row.label) for row in fit}
    times = {
        row.label: expected_s(row) * count
        for row in found.rows
        if (count := known.get(row.label)) is not None
        and (found.dense in (None, row) or _sooner(row, found.dense, count) >= LIKELY)
    }
    able = [row for row in found.rows if row.label in times]
    if exact := sorted((row for row in able if is_safe(row)), key=expected_s)[:1]:
        able = [
            row for row in able
            if is_safe(row) or _sooner(row, exact[0], known[row.label] or 1.0) >= LIKELY
        ]  # fmt: skip
    limit = min((times[row.label] for row in able), default=0.0) * (1 + TIE)
    return min(
        (row for row in able if times[row.label] <= limit),
        key=lambda row: (row.compressor != DENSE, not is_safe(row), error_of(row), pace(row)),
        default=None,
    )


def _sooner(row: Row, other: Row, steps: float) -> float:
    """Return the share of worlds in which `row` is faster despite `steps` times the iterations."""
    return float(np.mean(worlds(row) * steps < worlds(other)))


def expected_s(row: Row) -> float:
    """Return the mean iteration over the drawn worlds, in seconds."""
    return float(worlds(row).mean())


def surely_beats(one: Row, other: Row) -> bool:
    """Whether `one` is surely more than `TIE` faster."""
    return one is not other and ratio(one, other).surely_above(1 + TIE)


def surely_faster(one: Row, others: Iterable[Row]) -> bool:
    """Whether `one` is surely faster than each of the others, by any margin."""
    return all(ratio(one, other).surely_above(1) for other in others)


def candidates(rows: Sequence[Row]) -> tuple[Row, ...]:
    """Return the rows that no other row surely beats; quicker if they are sorted fastest first."""
    found = tuple(row for row in rows if not any(surely_beats(other, row) for other in rows))
    # ten or more methods may beat each other in a cycle, each in nine worlds of ten
    return found or tuple(sorted(rows, key=pace)[:1])


def verdict(rows: Iterable[Row], recorded: int | None = None) -> Verdict:
    """Return the verdict on rows of one size; `recorded` is `recorded_workers` of `fault_of`."""
    ordered = fastest_first(rows)
    faults = [(row, fault_of(row, recorded)) for row in ordered]
    judged = known_to_target(ordered)  # then rows without a time to the target are not comparable
    usable = [row for row, fault in faults if not fault and (row.speedups_to_target or not judged)]
    plain = [
        row for row in ordered
        if row.compressor == DENSE and (row.speedups_to_target or not judged)
    ]  # fmt: skip
    methods = [row for row in usable if row.compressor != DENSE]
    dense = dense_row(ordered)
    unbeaten = candidates(usable)
    leaders = [row for row in unbeaten if row.compressor != DENSE]
    best = _best(leaders or methods, plain)
    alone = ordered[0].workers == 1 and dense is not None
    safe = None if alone else _safe(usable, dense, best)
    pays = _pays(methods, plain, best)
    if alone:
        pays = "no"
    elif judged and safe is not None:
        pays = "yes"
    rivals = tuple(row for row in leaders if row is not best)
    worth = [row for row in methods if not plain or _probability(row, plain) >= EVEN]
    worth = [] if pays == "no" else worth
    to_try = best if best in worth else None
    return Verdict(
        rows=ordered,
        dense=dense,
        pays=pays,
        safe=safe,
        best=best,
        to_try=to_try,
        probability=_probability(best, plain) if best and plain else None,
        rivals=tuple(row for row in rivals if row in worth),
        uncompressed=tuple(row for row in unbeaten if row in plain and pays != "yes"),
        by_luck=best is not None and _by_luck(best, rivals, plain, pays),
        left_out=tuple((row, fault) for row, fault in faults if fault),
    )


def _pays(methods: Sequence[Row], plain: Sequence[Row], best: Row | None) -> Pays | None:
    if best is None or not plain:
        return None
    if not any(_may_gain(row, plain) for row in methods):
        return "no"
    if any(surely_faster(row, plain) for row in methods):
        return "yes"
    chance = _probability(best, plain)
    return "likely" if chance >= LIKELY else "unlikely" if chance <= UNLIKELY else "not known"


def _may_gain(row: Row, plain: Sequence[Row]) -> bool:
    """Whether the row may be more than `TIE` faster than each plain row."""
    return all(ratio(row, other).high > 1 + TIE for other in plain)


def _probability(row: Row, plain: Sequence[Row]) -> float:
    return min(probability_faster(row, other) for other in plain)


def _best(rows: Sequence[Row], plain: Sequence[Row]) -> Row | None:
    sure = [row for row in rows if surely_faster(row, plain)]
    if sure or not rows:
        return _nearest_of_fastest(sure)
    return max(rows, key=lambda row: (_probability(row, plain), -pace(row)))


def _nearest_of_fastest(rows: Sequence[Row]) -> Row | None:
    """Return the row with the smallest error among those as fast as the fastest."""
    if not rows:
        return None
    limit = min(map(pace, rows)) * (1 + TIE)
    # an exchange without rounding differences may have the same NMSE as the dense one
    return min(
        (row for row in rows if pace(row) <= limit),
        key=lambda row: (row.compressor != DENSE, error_of(row), pace(row)),
    )


def _safe(usable: Sequence[Row], dense: Row | None, best: Row | None) -> Row | None:
    against = [] if dense is None else [_by_iteration(dense)]
    safe = [(_by_iteration(row), row) for row in usable if row is not dense and is_safe(row)]
    pool = [
        (timed, row)
        for timed, row in safe
        if surely_faster(timed, against) and _may_gain(timed, against)
    ]
    if best in [row for _, row in pool]:
        return best
    nearest = _nearest_of_fastest(candidates([timed for timed, _ in pool]))
    return next((row for timed, row in pool if timed is nearest), None)


def _by_iteration(row: Row) -> Row:
    """Return the row without its training, so that it is judged by its iterations."""
    return replace(row, speedup_to_target=None, speedups_to_target=()) if row.seeds_trained else row


def _by_luck(best: Row, rivals: Sequence[Row], plain: Sequence[Row], pays: Pays | None) -> bool:
    """Whether exact means would decide an open comparison."""
    for rival in rivals:
        one = ratio(best, rival, luck=False)
        if one.surely_above(1 + TIE) or 1 / one.high > 1 + TIE:
            return True
    if pays in ("yes", "no", None):
        return False
    found = [ratio(best, other, luck=False) for other in plain]
    return all(one.surely_above(1) for one in found) or any(one.high <= 1 + TIE for one in found)
