"""Comparison of several runs, and of one run's prediction with what the deployed hook measured."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from gcsim import units
from gcsim.analysis.report.answer import answer
from gcsim.analysis.report.numbers import bits, plural, significant
from gcsim.analysis.report.paste import ranks_per_part
from gcsim.analysis.report.selection import at_largest
from gcsim.analysis.report.table import SPEEDUP, bare_table
from gcsim.compressors.ddp.measured import Measured
from gcsim.compressors.options.method import OPTIONS
from gcsim.errors import InputError
from gcsim.scenarios.catalog import implementations
from gcsim.scenarios.result import Result, Row
from gcsim.scenarios.sweeps.grid import written

NAMED = 12  # most differing settings that are shown
LONGEST = 28  # most cells of a setting's value
_FIRST = ("model", "gradients.source", "gradients.trace", "compute.")
_SOURCES = {"source", "estimate", "fingerprint", "description", "name"}
"""Keys whose difference follows from that of other keys."""


def parts(names: Sequence[str], results: Sequence[Result]) -> tuple[RenderableType, ...]:
    """Return the text of `gcsim compare`, with the largest size of each run."""
    shown: list[RenderableType] = [_table(names, results)]
    if differ := list(differences([result.scenario for result in results])):
        shown += ["", _settings(names, differ)]
    for name, result in zip(names, results, strict=True):
        shown += ["", Text(f"{name}: {answer(result, full=False)[0]}")]
    return tuple(shown)


def differences(scenarios: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, list[Any]]]:
    """Yield each key whose value differs between resolved scenarios, with its values; keys that
    define the training come first."""
    flat = [dict(_flat(scenario, "")) for scenario in scenarios]
    keys = dict.fromkeys(key for one in flat for key in one)
    for key in sorted(keys, key=lambda key: not key.startswith(_FIRST)):
        values = [one.get(key) for one in flat]
        if any(value != values[0] for value in values):
            yield key, values


def _flat(value: Mapping[str, Any], above: str) -> Iterator[tuple[str, Any]]:
    for key, entry in value.items():
        if isinstance(entry, Mapping):
            yield from _flat(entry, f"{above}{key}.")
        elif key not in _SOURCES or above.endswith("device."):
            yield f"{above}{key}", entry


def _table(names: Sequence[str], results: Sequence[Result]) -> Table:
    by_label = [{row.label: row for row in at_largest(result)} for result in results]
    sizes = [
        plural(next(iter(rows.values())).nodes, "node").replace(" ", "\N{NO-BREAK SPACE}")
        for rows in by_label
    ]
    headings = ["method"]
    for name, size in zip(names, sizes, strict=True):
        headings += [f">{name}\n{size} [ms]", ">speedup\n[x]"]
    labels = dict.fromkeys(label for rows in by_label for label in rows)
    return bare_table(
        headings,
        ([label, *(cell for rows in by_label for cell in _cells(rows.get(label)))]
         for label in labels),
    )  # fmt: skip


def _cells(row: Row | None) -> list[str]:
    if row is None:
        return ["-", "-"]
    return [significant(row.iteration_s * 1e3), *SPEEDUP.cells([row])]


def _settings(names: Sequence[str], differ: Sequence[tuple[str, list[Any]]]) -> Table:
    lines = [[key, *(_shown(key, value) for value in values)] for key, values in differ[:NAMED]]
    if len(differ) > NAMED:
        lines.append([plural(len(differ) - NAMED, "other")])
    return bare_table(["difference", *names], lines)


def _shown(key: str, value: Any) -> str:
    text = "-" if value is None else written(value)
    if isinstance(value, str) and key.endswith("bandwidth"):
        text = bits(float(units.parse(value, "bandwidth")))
    elif re.fullmatch(r"\d+/\d+", text):
        text = significant(float(Fraction(text)))
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."


def row_of(result: Result, measured: Measured, name: str, place: str) -> Row:
    """Return the run's prediction for a measurement: the row of the same method and number of
    workers. Raises `InputError` with `name` (of the run) and `place` (of the measurement) if there
    is none, and lists the rows that the run has."""
    keys = (*measured.parameters, *OPTIONS, implementations.KEY)
    labels = [
        entry["label"]
        for entry in result.scenario["compressors"]
        if entry["kind"] == measured.compressor
        and all(entry.get(key) == measured.parameters.get(key) for key in keys)
    ]
    if measured.ranks_per_part != (part := ranks_per_part(result.scenario)):
        ranks = plural(measured.ranks_per_part, "rank")
        raise InputError(
            f"was made with {ranks} acting as one worker (between); {name} has {part}",
            place=place,
            hint="run the scenario with the hook's: --set training.between=workers, nodes or racks",
        )
    rows = [row for row in result.rows if row.label in labels]
    if not rows:
        had = ", ".join(dict.fromkeys(row.label for row in result.rows))
        given = ", ".join(f"{key} {value}" for key, value in measured.parameters.items())
        raise InputError(
            f"was made with {measured.compressor} {given}; {name} has {had}",
            place=place,
            hint="run the scenario with that method and its parameters",
        )
    found = next((row for row in rows if row.workers == measured.workers), None)
    if found is None:
        sizes = ", ".join(dict.fromkeys(str(row.workers) for row in rows))
        raise InputError(
            f"was made by {plural(measured.workers, 'worker')}; {name} has {sizes}",
            place=place,
            hint="run the scenario with as many: --set cluster.nodes=N",
        )
    return found


def collectives_alone(measured: Measured, others: Iterable[Measured]) -> float | None:
    """Return the seconds per step that collectives take without waiting for other ranks: per bucket
    the shortest time of all ranks, since the last rank to enter waits for none. Returns None unless
    `others` contain every rank of the same run."""
    same = [other for other in others if _run(other) == _run(measured)]
    if len({other.rank for other in same}) < measured.workers:
        return None
    times = [[bucket.exchanged_s for bucket in other.buckets] for other in same]
    return float(sum(min(each) for each in zip(*times, strict=True)))


def _run(measured: Measured) -> tuple[object, ...]:
    """Return facts that are the same on all ranks of a run."""
    elements = [bucket.elements for bucket in measured.buckets]
    return (
        measured.compressor, measured.parameters, measured.other_buckets, measured.workers,
        measured.steps, measured.ranks_per_part, elements,
    )  # fmt: skip


def measured_parts(
    name: str, row: Row, measured: Measured, place: str, collectives_s: float | None = None
) -> Iterator[RenderableType]:
    """Yield a caption and a table; `collectives_s` is from `alone`."""
    steps = plural(measured.steps, "step")
    about = f"{row.label} on {plural(row.workers, 'worker')}: predicted by {name}; measured in "
    yield Text(f"{about}{place} over {steps} on rank {measured.rank}")
    for method, numbers in measured.other_buckets.items():
        said = ", ".join(map(str, numbers))
        yield Text(f"buckets {said} used {method}; the prediction assumes {row.label} for all")
    yield ""
    headings = ["", ">predicted", ">80 % range", ">measured", ">prediction is"]
    yield bare_table(headings, _lines(row, measured, collectives_s))
    if collectives_s is None and measured.workers > 1:
        yield ""
        yield Text(
            "One rank's time in collectives includes its wait for slower ranks; name the "
            "measurements of all ranks to separate the two"
        )


def _lines(row: Row, measured: Measured, collectives_s: float | None) -> Iterator[list[str]]:
    span = "-"
    if row.iteration_low_s is not None and row.iteration_high_s is not None:
        ends = (row.iteration_low_s, row.iteration_high_s)
        span = "-".join(significant(end * 1e3) for end in ends)
    milliseconds = 1e3
    for words, predicted, found, within in (
        ("iteration, median [ms]", row.iteration_s, measured.iteration_s, span),
        ("encoding, decoding, mean [ms]", row.encode_s + row.decode_s, measured.computed_s, "-"),
        ("collectives only, mean [ms]", row.communication_s, collectives_s, "-"),
    ):
        shown, error = "-", "-"
        if found is not None:
            shown, error = significant(found * milliseconds), _error(predicted, found)
        yield [words, significant(predicted * milliseconds), within, shown, error]
    if collectives_s is not None:
        wait = significant((measured.exchanged_s - collectives_s) * milliseconds)
        yield ["wait for others, mean [ms]", "-", "-", wait, "-"]
    whole = significant(measured.exchanged_s * milliseconds)
    yield ["collectives + wait, mean [ms]", "-", "-", whole, "-"]
    predicted, found = row.wire_bytes_per_worker, measured.sent_bytes
    yield [
        "sent per worker [MB]", significant(predicted / 1e6), "-", significant(found / 1e6),
        _error(predicted, found),
    ]  # fmt: skip


def _error(predicted: float, found: float) -> str:
    if found == 0:
        return "-"
    beside = predicted / found - 1
    side = "high" if beside > 0 else "low"
    return f"{abs(beside):.1%} too {side}".replace("%", " %") if beside else "equal"
