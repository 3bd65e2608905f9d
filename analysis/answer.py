"""Does compression pay here? The answer in sentences, and where it comes from.

The winner is chosen by the rule of `gcsim.analysis.selection`. A gradient error is a property of
single updates, not an accuracy: the sentences say what was measured and claim no more.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from itertools import groupby
from typing import Any

from gcsim.analysis.numbers import milliseconds, plural, significant, times
from gcsim.analysis.selection import DENSE, TIE, at_largest, best, best_by_size, dense_row, error_of
from gcsim.scenarios.result import Result, Row

NO_MEMORY = "none"
"""What `Row.memory` says of a method whose steps stand alone."""

SMALL_ERROR = 0.1
"""NMSE up to which an update counts as near to the dense one in `_nearer`."""
LARGE_ERROR = 0.5
"""NMSE above which a sentence says what an NMSE of 1 means."""

_SHORT = 200
"""Characters of a source that a note shows; results.json holds all of it."""

_CALIBRATIONS = {"estimate": "an estimate", "stated": "stated by the user"}
"""How a note words a link's calibration, where results.json has a bare word."""

_TRAINING = ("model", "data", "workers", "iterations", "warmup_steps", "device", "dtype")
"""What a note tells of the gradients, where it is known."""


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
        return [f"{fact}: nothing to compare it with."]
    if dense is None:
        sentences = [
            f"{where} {winner.row.label} is fastest: {milliseconds(winner.row.iteration_s)} an "
            "iteration. The scenario has no row of kind `none`, so there is no speedup to state.",
            _cost(winner.row),
        ]
    elif winner.row.compressor == DENSE:
        sentences = [_dense_wins(where, dense, rows)]
    else:
        sentences = [
            f"{where} {winner.row.label} is fastest: "
            f"{times(dense.iteration_s / winner.row.iteration_s)} the speed of {_name(dense)}, "
            f"{milliseconds(winner.row.iteration_s)} an iteration against "
            f"{milliseconds(dense.iteration_s)}.",
            _cost(winner.row),
            *_nearer(winner.row, dense, rows),
        ]
    equals = [row for row in winner.equals if row.compressor != DENSE]
    if equals and winner.row.compressor != DENSE:
        names = " and ".join(row.label for row in equals)
        sentences.append(f"As fast within {TIE:.0%}, with a larger error: {names}.")
    return [*sentences, *_by_size(result)]


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


def _dense_wins(where: str, dense: Row, rows: tuple[Row, ...]) -> str:
    rival = next(row for row in rows if row is not dense)
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


def _nearer(winner: Row, dense: Row, rows: tuple[Row, ...]) -> list[str]:
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
    row = faster[0]
    speedup = times(dense.iteration_s / row.iteration_s)
    return [
        f"Of the methods without memory that have an NMSE of at most {SMALL_ERROR}, {row.label} "
        f"is fastest: {speedup} (NMSE {significant(error_of(row))})."
    ]


def _by_size(result: Result) -> list[str]:
    """Which method wins at which sizes; nothing to say of a single size."""
    winners = [found.row for found in best_by_size(result)]
    if len(winners) == 1:
        return []
    runs = [list(rows) for _, rows in groupby(winners, key=lambda row: row.label)]
    if len(runs) == 1:
        return [f"The same method wins at every size, from {plural(winners[0].nodes, 'node')} on."]
    parts = []
    for number, rows in enumerate(runs):
        first, last = rows[0].nodes, rows[-1].nodes
        if number == len(runs) - 1:
            span = f"from {plural(first, 'node')} on" if first != last else f"on {last} nodes"
        else:
            span = f"on {plural(last, 'node')}" if first == last else f"on {first} to {last} nodes"
        parts.append(f"{_name(rows[0])} {span}")
    return ["Fastest by size: " + ", ".join(parts) + "."]


# --- where the numbers come from -----------------------------------------------------------------


def provenance_notes(result: Result) -> list[str]:
    """One line for each kind of number: its source, and whether it is an estimate."""
    facts = result.provenance
    notes = [
        _gradients(_table(facts, "gradients")),
        _compute(facts.get("compute")),
        _kernels(_table(facts, "kernels")),
        *_links(_table(facts, "links")),
        _transport(facts),
        _pairs("versions", {"seed": facts.get("seed"), **_table(facts, "versions")}),
        "gradient error: of single updates; whether training converges as well is not simulated",
    ]
    return [note for note in notes if note]


def _table(facts: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = facts.get(key)
    if isinstance(value, Mapping):
        return value
    return {} if value is None else {"source": value}


def _short(text: object) -> str:
    return textwrap.shorten(str(text), _SHORT, placeholder=" [...]")


def _pairs(title: str, facts: Mapping[str, Any]) -> str:
    plain = [
        f"{key.replace('_', ' ')} {value}" for key, value in facts.items() if value is not None
    ]
    return f"{title}: {', '.join(plain)}" if plain else ""


def _gradients(facts: Mapping[str, Any]) -> str:
    """Live or recorded, and what is known of the training that made them."""
    if not facts:
        return ""
    parts = [str(facts.get("source", "source unknown"))]
    parts += [f"{key.replace('_', ' ')} {facts[key]}" for key in _TRAINING if key in facts]
    losses = facts.get("warmup_losses")
    if isinstance(losses, list | tuple) and losses:
        parts.append(f"loss {losses[0]:.2f} -> {losses[-1]:.2f} before the first was taken")
    return _short(f"gradients: {', '.join(parts)}")


def _compute(facts: object) -> str:
    if not facts:
        return ""
    if not isinstance(facts, Mapping):
        return f"forward and backward: {_short(facts)}"
    mark = "an estimate; " if facts.get("estimate") else ""
    return f"forward and backward: {mark}{_short(facts.get('source', 'source unknown'))}"


def _kernels(facts: Mapping[str, Any]) -> str:
    if not facts:
        return ""
    classes = _table(facts, "classes")
    estimated = [kind for kind in classes if _table(classes, kind).get("estimate")]
    measured = [kind for kind in classes if kind not in estimated]
    notes = [f"encode and decode: {facts.get('method', 'kernels')}, {facts.get('device', '')}"]
    if measured:
        notes.append("measured: " + ", ".join(measured))
    if estimated:
        notes.append("ESTIMATES: " + ", ".join(estimated))
    return "; ".join(notes)


def _transport(facts: Mapping[str, Any]) -> str:
    if "transport" not in facts:
        return ""
    carried = _table(facts, "algorithms").values()
    algorithms = sorted({name for names in carried for name in names})
    return f"transport: {facts['transport']}" + (f"; {', '.join(algorithms)}" if algorithms else "")


def _links(facts: Mapping[str, Any]) -> list[str]:
    notes = []
    for key in facts:
        link = _table(facts, key)
        efficiency = link.get("efficiency")
        framed = isinstance(efficiency, float) and efficiency < 1
        share = f" ({efficiency:.1%} of the line rate)" if framed else ""
        kind = str(link.get("calibration", "of unknown origin"))
        notes.append(
            f"{key.replace('_', ' ')}: {link.get('name', '')}, {_CALIBRATIONS.get(kind, kind)}"
            f"{share}; {_short(link.get('source', ''))}"
        )
    return notes
