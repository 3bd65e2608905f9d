"""How do runs differ? Their methods side by side, what was asked for, and each one's answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from gcsim.analysis.report.answer import brief_answer
from gcsim.analysis.report.numbers import fixed, plural, significant
from gcsim.analysis.report.selection import at_largest
from gcsim.scenarios.result import Result, Row
from gcsim.scenarios.sweeps.grid import written

NAMED = 12
"""Settings that are told of those that differ."""
LONGEST = 28
"""Cells of a setting's value."""
_SOURCES = {"source", "estimate", "fingerprint", "description", "name"}
"""Keys whose values say nothing that the others beside them do not."""


def parts(names: Sequence[str], results: Sequence[Result]) -> tuple[RenderableType, ...]:
    """What `gcsim compare` shows of these runs, at the largest size of each."""
    shown: list[RenderableType] = [_table(names, results)]
    if differ := list(differences([result.scenario for result in results])):
        shown += ["", _settings(names, differ)]
    for name, result in zip(names, results, strict=True):
        shown += ["", Text(f"{name}: {brief_answer(result)[0]}")]
    return tuple(shown)


def differences(scenarios: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, list[Any]]]:
    """Keys of resolved scenarios whose values are not the same in all, and the values."""
    flat = [dict(_flat(scenario, "")) for scenario in scenarios]
    for key in dict.fromkeys(key for one in flat for key in one):
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
    table = bare_table(headings)
    for label in dict.fromkeys(label for rows in by_label for label in rows):
        cells = [label]
        for rows in by_label:
            cells += _cells(rows.get(label))
        table.add_row(*map(Text, cells))
    return table


def _cells(row: Row | None) -> list[str]:
    if row is None:
        return ["-", "-"]
    speedup = "-" if row.speedup_vs_dense is None else fixed(row.speedup_vs_dense, 2)
    return [significant(row.iteration_s * 1e3), speedup]


def _settings(names: Sequence[str], differ: Sequence[tuple[str, list[Any]]]) -> Table:
    table = bare_table(["what differs", *names])
    for key, values in differ[:NAMED]:
        table.add_row(*map(Text, (key, *map(_shown, values))))
    if len(differ) > NAMED:
        table.add_row(Text(plural(len(differ) - NAMED, "other")))
    return table


def _shown(value: Any) -> str:
    text = "-" if value is None else written(value)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."


def bare_table(headings: Sequence[str]) -> Table:
    """Without a frame; a heading that begins with ">" stands to the right."""
    table = Table(
        box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), header_style=""
    )
    tallest = max(heading.count("\n") for heading in headings)
    for heading in headings:
        right = heading.startswith(">")
        above = "\n" * (tallest - heading.count("\n"))
        table.add_column(
            Text(above + heading.lstrip(">")),
            justify="right" if right else "left", overflow="fold",
        )  # fmt: skip
    return table
