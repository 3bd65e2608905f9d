"""Reproduction of a table as text of 80 cells with verdicts, and files of `gcsim reproduce`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from gcsim.analysis.report.numbers import plural, significant
from gcsim.analysis.report.table import bare_table
from gcsim.analysis.write import Writer, as_text, draw_all, drawing, write_all
from gcsim.files import csv_text
from gcsim.scenarios.papers.preset import Cell, Outcome, Reproduction, Verdict
from gcsim.scenarios.reading import document

NOT = "-"
MEANINGS = {
    "accuracy [%]": "on held-out samples at the end; 10 if a run diverged",
    "loss held out [nats]": "cross-entropy on held-out samples at the end",
    "ratio [x]": "bytes of float32 gradients over the bytes sent",
    "cost [%]": "bytes that a worker sends, as a share of a dense gradient",
    "size [MB]": "of the network's parameters in float32",
    "error [%]": "energy of update minus gradient, as a share of the gradient's",
    "levels [bits]": "entropy of the levels in a bucket; at most 3.17 of nine, 1 of two",
    "away [%]": "elements beyond half a standard deviation, over the gradient's own such elements",
    "range [sd]": "mean magnitude of the levels, in standard deviations",
    "phi [%]": "share of the sampled elements that are among the largest 1 %",
    "tau [%]": "elements visited at least once",
    "visited [%]": "elements visited after the printed number of steps (none: 2,000)",
    "steps": "until every element was visited; -: not in 2,000",
    "step [ms]": "time of a training step on the cluster",
    "speed to target [x]": "SGD's seconds to 90 % of its accuracy, over the method's",
    "GPUs": "images per second on this many",
    "GPUs [ms]": "time of a batch on this many",
}
"""Meanings by column name, without a leading number of GPUs."""
_QUICK = "Reduced size: it only shows that everything runs; "


def parts(found: Reproduction) -> tuple[RenderableType, ...]:
    """Return the text of `gcsim reproduce`: numbers, verdicts, differences from the paper."""
    outcome = found.outcome
    judged = "its verdicts mean little." if outcome.verdicts else "no verdicts on another model."
    quick = ("", Text(_QUICK + judged)) if found.quick else ()
    notes = ("", Text("\n".join(outcome.notes))) if outcome.notes else ()
    return (
        Text(f"{found.name}: {found.title}", style="bold"),
        Text(found.source),
        *quick,
        "",
        _numbers(outcome.cells),
        "",
        Text(legend(outcome)),
        *(("", _verdicts(outcome.verdicts)) if outcome.verdicts else ()),
        *notes,
    )


def legend(outcome: Outcome) -> str:
    """Return the meanings of the columns."""
    most = max(len(cell.here) for cell in outcome.cells)
    of = f"median of {plural(most, outcome.draws)}" if most > 1 else "the result"
    printed = any(cell.printed is not None for cell in outcome.cells)
    found = [f"{'printed: in the paper. ' if printed else ''}here: {of}."]
    for name in dict.fromkeys(meaning_of(cell.column) for cell in outcome.cells):
        found.append(name)
    return "\n".join(found)


def meaning_of(column: str) -> str:
    """Return a line on a column, the same for all cluster sizes."""
    name = column.lstrip("0123456789 ")
    return f"{name.partition(' [')[0]}: {MEANINGS[name]}."


def summary(verdicts: Sequence[Verdict]) -> str:
    """Return the number of statements per verdict as a phrase."""
    counts = {
        word: sum(one.agrees == word for one in verdicts)
        for word in ("agrees", "in part", "open", "disagrees")
    }
    words = {word: word if count == 1 else word.removesuffix("s") for word, count in counts.items()}
    return ", ".join(f"{count} {words[word]}" for word, count in counts.items() if count)


def _numbers(cells: Sequence[Cell]) -> Table:
    columns = list(dict.fromkeys(cell.column for cell in cells))
    both = {name: any(c.printed is not None for c in cells if c.column == name) for name in columns}
    headings = [""]
    for name in columns:
        quantity, _, unit = name.rpartition(" ")
        for what in ("printed", "here") if both[name] else ("here",):
            headings.append(f">{quantity}\n{unit}\n{what}")
    lines = []
    by_place = {(cell.row, cell.column): cell for cell in cells}
    for row in dict.fromkeys(cell.row for cell in cells):
        shown = []
        for name in columns:
            cell = by_place.get((row, name))
            if both[name]:
                shown.append(NOT if cell is None or cell.printed is None else f"{cell.printed:g}")
            shown.append(NOT if cell is None else significant(median(cell.here)))
        lines.append([row, *(f"  {text}" for text in shown)])
    return bare_table(headings, lines, gap=0, whole=True)


def _verdicts(verdicts: Sequence[Verdict]) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for one in verdicts:
        table.add_row(Text(one.agrees, style="bold"), Text(f"{one.claim} ({one.where})"))
        table.add_row("", Text(f"printed: {one.printed}\nhere: {one.here}"))
    table.add_row("", "")
    table.add_row(Text("total:", style="bold"), Text(summary(verdicts)))
    return table


def _to_csv(found: Reproduction) -> str:
    """Return CSV of row, column, printed value, and results by seed separated by spaces."""
    columns = ("row", "column", "printed", "here")
    cells = (
        (cell.row, cell.column, cell.printed, " ".join(map(str, cell.here)))
        for cell in found.outcome.cells
    )
    return csv_text(columns, (dict(zip(columns, cell, strict=True)) for cell in cells))


def write_reproduction(found: Reproduction, folder: Path) -> tuple[Path, ...]:
    """Write the files of a reproduction (`write_all`), with its scenarios ready to run."""
    texts: dict[str, Writer] = {
        "reproduction.json": as_text(Reproduction.to_json),
        "numbers.csv": as_text(_to_csv),
    }
    for number, scenario in enumerate(found.scenarios, 1):
        texts[f"scenario_{number}.yaml"] = _scenario(scenario)
    return write_all(found, folder, texts, _FIGURES)


def _scenario(resolved: dict[str, Any]) -> Writer:
    return as_text(lambda _: document.write(resolved))


def draw_reproduction(found: Reproduction, folder: Path) -> tuple[Path, ...]:
    """Draw the figures of a reproduction (`draw_all`)."""
    return draw_all(found, folder, _FIGURES, beside="reproduction.json")


_FIGURES: dict[str, Writer] = {"figure.png": drawing("gcsim.analysis.papers.picture:figure")}
