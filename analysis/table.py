"""The answer first: every compressor at the largest size, in a table that fits the terminal.

A wide terminal gets one table. Where that does not fit, the same columns are stacked as two
tables (how long it takes; what is sent, and at what cost), and where not even those fit, as many
as are needed: no number and no label is ever cut. Emphasis is a mark and a typeface, never a
colour alone.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from io import StringIO

from rich import box
from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from gcsim.analysis.numbers import decimals_for, fixed, plural, significant
from gcsim.analysis.selection import TIE, at_largest, best
from gcsim.scenarios.result import Result, Row

BEST = "> "
"""Before the winner's label."""
PERIODIC = " *"
"""After the label of a method whose iterations are not all alike."""
HEADING = "compressor"
"""Of the labels."""
NARROW_LABEL = 24
"""Terminal cells at which labels are still pleasant to read when they must wrap."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column: its heading (the last line holds the unit) and the value of each row."""

    heading: str
    value: Callable[[Row], float | None]
    decimals: Callable[[Sequence[Row]], int] | None = None
    """Decimals for the whole column; None for significant digits of each value."""

    def cells(self, rows: Sequence[Row]) -> list[str]:
        """What stands in the column, in the order of `rows`."""
        decimals = None if self.decimals is None else self.decimals(rows)
        return [_cell(self.value(row), decimals) for row in rows]

    def width(self, rows: Sequence[Row]) -> int:
        """Terminal cells that the column needs so that nothing is cut."""
        return max(map(cell_len, [*self.heading.split("\n"), *self.cells(rows)]))


def _cell(value: float | None, decimals: int | None) -> str:
    if value is None:
        return "-"
    return significant(value) if decimals is None else fixed(value, decimals)


def _column(heading: str, value: Callable[[Row], float | None]) -> Column:
    """A column whose smallest value shows two significant digits."""

    def decimals(rows: Sequence[Row]) -> int:
        return decimals_for((value(row) or 0.0 for row in rows), digits=2)

    return Column(heading=heading, value=value, decimals=decimals)


def _time(heading: str, value: Callable[[Row], float]) -> Column:
    """A column of milliseconds: all of them with the same decimals, so that a row adds up."""

    def decimals(rows: Sequence[Row]) -> int:
        return decimals_for((row.iteration_s * 1e3 for row in rows), digits=3)

    return Column(heading=f"{heading}\n[ms]", value=lambda row: value(row) * 1e3, decimals=decimals)


SPEEDUP = Column(
    heading="speedup\n[x]", value=lambda row: row.speedup_vs_dense, decimals=lambda rows: 2
)
TIME = (
    _time("iter-\nation", lambda row: row.iteration_s),
    _time("compute", lambda row: row.forward_s + row.backward_s),
    _time("encode", lambda row: row.encode_s),
    _time("exposed\ncomm.", lambda row: row.exposed_communication_s),
    _time("decode", lambda row: row.decode_s),
)
TRAFFIC = (
    _column("sent\n[MB]", lambda row: row.wire_bytes_per_worker / 1e6),
    _column("ratio\n[x]", lambda row: row.compression_ratio),
)
RATE = (
    _column("samples\n[1/s]", lambda row: row.throughput_samples_per_s),
    _column("scaling\n[%]", lambda row: row.scaling_efficiency * 100),
)
ERROR = Column(heading="NMSE", value=lambda row: row.nmse)

ONE_TABLE: tuple[tuple[Column, ...], ...] = ((SPEEDUP, *TIME, *TRAFFIC, *RATE, ERROR),)
TWO_TABLES = ((SPEEDUP, *TIME), (*TRAFFIC, *RATE, ERROR))

LEGEND = (
    "iteration = compute (forward + backward) + encode + exposed communication (while the "
    "device waits) + decode. sent: bytes that a worker hands to its collectives in an iteration. "
    "ratio: dense float32 gradient over sent. scaling: throughput over that of as many single "
    "devices. NMSE: |update - dense|^2 / |dense|^2 over the few steps that were run, with the "
    "recorded workers, from empty memories (with error feedback later steps differ more); an "
    "update of zero has 1."
)
SCALE_FREE = "NMSE -: the update has the learning rate's scale, not the gradient's."


def answer_table(result: Result, width: int) -> Group:
    """Title, table (or stacked tables) for `width` terminal cells, footnotes."""
    rows = at_largest(result)
    first = rows[0]
    parts: list[RenderableType] = [
        Text(
            f"{result.scenario.get('name', 'scenario')}: {plural(first.nodes, 'node')}, "
            f"{plural(first.workers, 'worker')}, fastest first",
            style="bold",
        )
    ]
    layout = _arrange(rows, width)
    for columns in layout.tables:
        parts += ["", _table(rows, columns, layout)]
    parts += ["", *(Text(note) for note in footnotes(rows))]
    return Group(*parts)


def footnotes(rows: Sequence[Row]) -> list[str]:
    """What the marks mean, then what the columns mean."""
    notes = [f"{BEST}fastest (of those within {TIE:.0%}, the one with the smallest error)"]
    periodic = [row for row in rows if row.period > 1]
    if periodic:
        which = "; ".join(f"{row.label} ({row.period} iterations)" for row in periodic)
        notes.append(f"{PERIODIC.strip()} mean over whole periods: {which}")
    scale_free = [SCALE_FREE] if any(row.nmse is None for row in rows) else []
    return [*notes, LEGEND, *scale_free]


def render(result: Result, width: int) -> str:
    """The table as plain text, without typeface: for logs, files and tests."""
    console = Console(file=StringIO(), width=width, color_system=None, highlight=False)
    with console.capture() as capture:
        console.print(answer_table(result, width))
    return capture.get()


def _label(row: Row, winner: Row, width: int) -> str:
    """A row's label with its marks, on as many lines as `width` cells need."""
    text = row.label + (PERIODIC if row.period > 1 else "")
    before = BEST if row is winner else " " * len(BEST)
    return textwrap.fill(text, width, initial_indent=before, subsequent_indent=" " * len(BEST))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layout:
    """Which tables to stack: their columns, the gap between columns, the label's width."""

    tables: Sequence[Sequence[Column]]
    gap: int
    label: int


def _arrange(rows: Sequence[Row], width: int) -> _Layout:
    labels = [cell_len(_label(row, rows[0], 10**6)) for row in rows]
    widest = max(cell_len(HEADING), *labels)

    def room(columns: Sequence[Column], gap: int) -> int:
        return width - sum(gap + column.width(rows) for column in columns)

    for plan, label in ((ONE_TABLE, widest), (TWO_TABLES, widest), (TWO_TABLES, NARROW_LABEL)):
        for gap in (3, 2, 1):
            narrowest = min(room(columns, gap) for columns in plan)
            if narrowest >= min(label, widest):
                return _Layout(tables=plan, gap=gap, label=min(widest, narrowest))
    label = max(cell_len(HEADING), min(NARROW_LABEL, width // 2))
    tables: list[list[Column]] = [[]]
    for column in (column for columns in TWO_TABLES for column in columns):
        if tables[-1] and room([*tables[-1], column], 1) < label:
            tables.append([])
        tables[-1].append(column)
    return _Layout(tables=tables, gap=1, label=label)


def _table(rows: Sequence[Row], columns: Sequence[Column], layout: _Layout) -> Table:
    table = Table(
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, 0, 0, layout.gap - 1),  # the box adds one cell between columns
        header_style="",
    )
    table.add_column(HEADING, vertical="bottom", overflow="fold", width=layout.label)
    for column in columns:
        table.add_column(
            Text(column.heading),
            justify="right",
            no_wrap=True,
            vertical="bottom",
            min_width=column.width(rows),
        )
    winner = best(rows).row
    cells = zip(*(column.cells(rows) for column in columns), strict=True)
    for row, numbers in zip(rows, cells, strict=True):
        style = "bold" if row is winner else ""
        label = _label(row, winner, layout.label)
        table.add_row(Text(label), *map(Text, numbers), style=style)
    return table
