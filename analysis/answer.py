"""Does compression pay here? The answer in sentences.

The winner is chosen by the rule of `gcsim.analysis.selection`; where luck decides, none is named.
A gradient error is a property of single updates, not an accuracy: the sentences say what was
measured and claim no more.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby

from gcsim.analysis.known import BY, GIVEN, iteration_known, speedup_known, uncertain
from gcsim.analysis.numbers import milliseconds, plural, significant, times
from gcsim.analysis.phrases import listed, name_of, spread, within
from gcsim.analysis.selection import (
    DENSE,
    TIE,
    Best,
    at_largest,
    best,
    best_by_size,
    dense_row,
    error_of,
    told_apart,
)
from gcsim.analysis.sources import are_synthetic
from gcsim.analysis.spread import number, spreads
from gcsim.analysis.undecided import NAMED, given, undecided
from gcsim.scenarios.result import Result, Row

NO_MEMORY = "none"
"""What `Row.memory` says of a method whose steps stand alone."""

SMALL_ERROR = 0.1
"""NMSE up to which an update counts as near to the dense one in `_nearer`."""
LARGE_ERROR = 0.5
"""NMSE above which a sentence says what an NMSE of 1 means."""

SYNTHETIC_ANSWER = (
    "The gradients are synthetic: what is sent and the gradient error are those of distributions "
    "fitted to other recordings."
)


def answer(result: Result) -> list[str]:
    """The answer at the largest size, what it costs, and how it changes with the size."""
    return _answer(result) + ([SYNTHETIC_ANSWER] if are_synthetic(result) else [])


def _answer(result: Result) -> list[str]:
    rows = at_largest(result)
    winner = best(rows)
    dense = dense_row(rows)
    where = f"On {plural(winner.row.nodes, 'node')} ({plural(winner.row.workers, 'worker')})"
    if len(rows) == 1:
        fact = (
            f"{where} {winner.row.label} takes {milliseconds(winner.row.iteration_s)} an iteration"
        )
        fact += within(iteration_known(winner.row), BY)
        return [f"{fact}: nothing to compare it with.", *spread(result, rows[:1])]
    if winner.unclear:
        sentences = undecided(result, where, winner, dense)
        if dense is not None and dense not in winner.unclear:
            sentences += _nearer(result, winner.unclear[0], dense, rows)
        return [*sentences, *_by_size(result)]
    if dense is None:
        sentences = [
            f"{where} {winner.row.label} is fastest: {milliseconds(winner.row.iteration_s)} an "
            f"iteration{within(iteration_known(winner.row), BY)}. The scenario has no row of kind "
            "`none`, so there is no speedup to state.",
            *spread(result, [winner.row]),
            _cost(winner.row),
        ]
    elif winner.row.compressor == DENSE:
        rival = next(row for row in rows if row is not dense)
        sentences = [_dense_wins(where, dense, rival), *spread(result, [dense, rival])]
    else:
        sentences = [
            f"{where} {winner.row.label} is fastest: "
            f"{times(dense.iteration_s / winner.row.iteration_s)} the speed of {name_of(dense)}"
            f"{within(speedup_known(winner.row), BY)}, "
            f"{milliseconds(winner.row.iteration_s)} an iteration against "
            f"{milliseconds(dense.iteration_s)}.",
            *spread(result, [winner.row, dense]),
            _cost(winner.row),
            *_nearer(result, winner.row, dense, rows),
        ]
    equals = [row for row in winner.equals if row.compressor != DENSE]
    if equals and winner.row.compressor != DENSE:
        names = " and ".join(row.label for row in equals)
        sentences.append(f"As fast within {TIE:.0%}, with a larger error: {names}.")
    return [*sentences, *_by_size(result)]


def _cost(row: Row) -> str:
    drift = "" if row.memory == NO_MEMORY else " from empty memory, which later steps move"
    if row.nmse is None:
        return (
            f"What it costs in gradient error: cosine similarity {row.cosine_similarity:.3f}, its "
            f"update against the dense one, over {plural(row.steps_run, 'step')}{drift}; its scale "
            "is the learning rate's."
        )
    scale = " (an update of zero would have 1)" if row.nmse > LARGE_ERROR else ""
    return (
        f"What it costs in gradient error: NMSE {significant(row.nmse)}{scale} and cosine "
        f"similarity {row.cosine_similarity:.3f}, its update against the dense one, over "
        f"{plural(row.steps_run, 'step')}{drift}."
    )


def _dense_wins(where: str, dense: Row, rival: Row) -> str:
    verdict = f"{where} compression does not pay: "
    if rival.iteration_s <= dense.iteration_s * (1 + TIE):
        return (
            f"{verdict}nothing is more than {TIE:.0%} faster than {name_of(dense)} "
            f"({milliseconds(dense.iteration_s)} an iteration; {rival.label} takes "
            f"{milliseconds(rival.iteration_s)})."
        )
    return (
        f"{verdict}{name_of(dense)} is fastest, {milliseconds(dense.iteration_s)} an iteration; "
        f"the next, {rival.label}, takes {times(rival.iteration_s / dense.iteration_s)} as long "
        f"({milliseconds(rival.iteration_s)})."
    )


def _nearer(result: Result, winner: Row, dense: Row, rows: tuple[Row, ...]) -> list[str]:
    """The fastest method whose update is near to the dense one, when the winner's is not.

    Only methods without memory: what error feedback and momentum deliver later differs from the
    few steps that were run.
    """
    if error_of(winner) <= SMALL_ERROR and winner.memory == NO_MEMORY:
        return []
    faster = [
        row
        for row in rows
        if error_of(row) <= SMALL_ERROR
        and row.memory == NO_MEMORY
        and row.compressor != DENSE
        and row.iteration_s * (1 + TIE) < dense.iteration_s
    ]
    if not faster:
        return [
            f"No method without memory that has an NMSE of at most {SMALL_ERROR} is faster than "
            f"{name_of(dense)}."
        ]
    faster = [row for row in faster if told_apart(row, dense)]
    if not faster:
        doubts = [f"with {number(result)}"] if spreads(rows) else []
        doubts += [GIVEN] if uncertain(rows) else []
        return [
            f"No method without memory that has an NMSE of at most {SMALL_ERROR} can be told from "
            f"{name_of(dense)} {listed(doubts)}."
        ]
    kind = f"Of the methods without memory that have an NMSE of at most {SMALL_ERROR}"
    found = best(faster)
    if found.unclear:
        names = [
            f"{row.label} ({times(dense.iteration_s / row.iteration_s)})"
            for row in found.unclear[:NAMED]
        ]
        return [f"{kind}, {listed(names)} are faster, and cannot be told apart."]
    row = faster[0]
    speedup = times(dense.iteration_s / row.iteration_s)
    known = f"{speedup_known(row)}; " if speedup_known(row) else ""
    return [
        f"{kind}, {row.label} is fastest: {speedup} ({known}NMSE {significant(error_of(row))})."
    ]


def _by_size(result: Result) -> list[str]:
    """Which method wins at which sizes; nothing to say of a single size."""
    winners = best_by_size(result)
    if len(winners) == 1:
        return []
    runs = [list(group) for _, group in groupby(winners, key=_winner_named)]
    if len(runs) == 1 and winners[0].unclear:
        causes = given(
            result,
            replace(
                winners[0],
                by_luck=any(found.by_luck for found in winners),
                by_device=any(found.by_device for found in winners),
            ),
        )
        return [f"At no size can it be told which method is fastest, {causes}."]
    if len(runs) == 1:
        return [
            f"The same method wins at every size, from {plural(winners[0].row.nodes, 'node')} on."
        ]
    parts = []
    for place, group in enumerate(runs):
        first, last = group[0].row.nodes, group[-1].row.nodes
        if place == len(runs) - 1:
            span = f"from {plural(first, 'node')} on" if first != last else f"on {last} nodes"
        else:
            span = f"on {plural(last, 'node')}" if first == last else f"on {first} to {last} nodes"
        parts.append(f"{_winner_named(group[0])} {span}")
    return ["Fastest by size: " + ", ".join(parts) + "."]


def _winner_named(found: Best) -> str:
    return "not told apart" if found.unclear else name_of(found.row)
