"""Does compression pay here? The answer in sentences.

The winner is chosen by the rule of `gcsim.analysis.selection`; where luck decides, none is named.
A gradient error is a property of single updates, not an accuracy: the sentences say what was
measured and claim no more.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

from gcsim.analysis.numbers import milliseconds, plural, significant, times
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
from gcsim.analysis.spread import averaged, mean_of, number, range_of
from gcsim.scenarios.result import Result, Row

NO_MEMORY = "none"
"""What `Row.memory` says of a method whose steps stand alone."""

SMALL_ERROR = 0.1
"""NMSE up to which an update counts as near to the dense one in `_nearer`."""
LARGE_ERROR = 0.5
"""NMSE above which a sentence says what an NMSE of 1 means."""

MORE = "Set training.iterations higher to tell them apart."
_NAMED = 5
"""Methods that are named of those that cannot be told apart."""


def answer(result: Result) -> list[str]:
    """The answer at the largest size, what it costs, and how it changes with the size."""
    rows = at_largest(result)
    winner = best(rows)
    dense = dense_row(rows)
    where = f"On {plural(winner.row.nodes, 'node')} ({plural(winner.row.workers, 'worker')})"
    if len(rows) == 1:
        fact = (
            f"{where} {winner.row.label} takes {milliseconds(winner.row.iteration_s)} an iteration"
        )
        return [f"{fact}: nothing to compare it with.", *_spread(result, rows[:1])]
    if winner.unclear:
        sentences = _undecided(result, where, winner.unclear, dense)
        if dense is not None and dense not in winner.unclear:
            sentences += _nearer(result, winner.unclear[0], dense, rows)
        return [*sentences, *_by_size(result)]
    if dense is None:
        sentences = [
            f"{where} {winner.row.label} is fastest: {milliseconds(winner.row.iteration_s)} an "
            "iteration. The scenario has no row of kind `none`, so there is no speedup to state.",
            *_spread(result, [winner.row]),
            _cost(winner.row),
        ]
    elif winner.row.compressor == DENSE:
        rival = next(row for row in rows if row is not dense)
        sentences = [_dense_wins(where, dense, rival), *_spread(result, [dense, rival])]
    else:
        sentences = [
            f"{where} {winner.row.label} is fastest: "
            f"{times(dense.iteration_s / winner.row.iteration_s)} the speed of {_name(dense)}, "
            f"{milliseconds(winner.row.iteration_s)} an iteration against "
            f"{milliseconds(dense.iteration_s)}.",
            *_spread(result, [winner.row, dense]),
            _cost(winner.row),
            *_nearer(result, winner.row, dense, rows),
        ]
    equals = [row for row in winner.equals if row.compressor != DENSE]
    if equals and winner.row.compressor != DENSE:
        names = " and ".join(row.label for row in equals)
        sentences.append(f"As fast within {TIE:.0%}, with a larger error: {names}.")
    return [*sentences, *_by_size(result)]


def _undecided(result: Result, where: str, unclear: Sequence[Row], dense: Row | None) -> list[str]:
    """No winner: what cannot be told apart, and what can be said of it all the same."""
    # dense is what the others are compared with: it is named, however many they are
    shown = list(unclear[:_NAMED])
    if dense is not None and dense in unclear and dense not in shown:
        shown[-1] = dense
    left = len(unclear) - len(shown)
    labels = [_name(row) for row in shown] + ([f"{plural(left, 'other')}"] if left else [])
    means = ", ".join(f"{row.label} {mean_of(row)}" for row in shown)
    sentences = [
        f"{where} {_listed(labels)} cannot be told apart with {number(result)}: their means differ "
        f"by less than two standard errors. An iteration takes: {means}."
    ]
    if dense in unclear:
        sentences.append(f"So it is not known whether compression pays. {MORE}")
    elif dense is not None:
        faster = [row for row in shown if told_apart(row, dense)]
        speeds = ", ".join(
            f"{row.label} {times(dense.iteration_s / row.iteration_s)}" for row in faster
        )
        sentences.append(f"Faster than {_name(dense)} ({mean_of(dense)}): {speeds}. {MORE}")
    else:
        sentences.append(
            f"The scenario has no row of kind `none`, so there is no speedup to state. {MORE}"
        )
    return [*sentences, *_spread(result, shown[:2])]


def _listed(names: Sequence[str]) -> str:
    """ "a", "a and b", "a, b and c"."""
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last


def _name(row: Row) -> str:
    """A row's label, where that can stand in a sentence."""
    return "no compression" if row.label == DENSE else row.label


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


def _spread(result: Result, rows: Iterable[Row]) -> list[str]:
    """What kind of times these rows have, where iterations differ."""
    ranges = [f"{row.label} {range_of(row)}" for row in rows if range_of(row)]
    if not ranges:
        return []
    if result.rows[0].iteration_error_s is None and number(result) == "1 iteration":
        return ["Each time is of one iteration, which may be luck. Set training.iterations higher."]
    return [f"These are {averaged(result)}; nine in ten take: {', '.join(ranges)}."]


def _dense_wins(where: str, dense: Row, rival: Row) -> str:
    verdict = f"{where} compression does not pay: "
    if rival.iteration_s <= dense.iteration_s * (1 + TIE):
        return (
            f"{verdict}nothing is more than {TIE:.0%} faster than {_name(dense)} "
            f"({milliseconds(dense.iteration_s)} an iteration; {rival.label} takes "
            f"{milliseconds(rival.iteration_s)})."
        )
    return (
        f"{verdict}{_name(dense)} is fastest, {milliseconds(dense.iteration_s)} an iteration; the "
        f"next, {rival.label}, takes {times(rival.iteration_s / dense.iteration_s)} as long "
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
            f"{_name(dense)}."
        ]
    faster = [row for row in faster if told_apart(row, dense)]
    if not faster:
        return [
            f"No method without memory that has an NMSE of at most {SMALL_ERROR} can be told from "
            f"{_name(dense)} with {number(result)}."
        ]
    kind = f"Of the methods without memory that have an NMSE of at most {SMALL_ERROR}"
    found = best(faster)
    if found.unclear:
        names = [
            f"{row.label} ({times(dense.iteration_s / row.iteration_s)})"
            for row in found.unclear[:_NAMED]
        ]
        return [f"{kind}, {_listed(names)} are faster, and cannot be told apart."]
    row = faster[0]
    speedup = times(dense.iteration_s / row.iteration_s)
    return [f"{kind}, {row.label} is fastest: {speedup} (NMSE {significant(error_of(row))})."]


def _by_size(result: Result) -> list[str]:
    """Which method wins at which sizes; nothing to say of a single size."""
    winners = best_by_size(result)
    if len(winners) == 1:
        return []
    runs = [list(group) for _, group in groupby(winners, key=_winner_named)]
    if len(runs) == 1 and winners[0].unclear:
        return [f"At no size can it be told which method is fastest, with {number(result)}."]
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
    return "not told apart" if found.unclear else _name(found.row)
