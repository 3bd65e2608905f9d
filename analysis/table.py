"""The answer first: every compressor at the largest size, in a table that fits the terminal.

A wide terminal gets one table. Where that does not fit, the same columns are stacked as two
tables (how long it takes; what is sent, and at what cost), and where not even those fit, as many
as are needed: no number and no label is ever cut. Emphasis is a mark and a typeface, never a
colour alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from io import StringIO

from rich import box
from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from gcsim.analysis.numbers import aligned, plural, significant
from gcsim.analysis.selection import at_largest, best
from gcsim.scenarios.result import Result, Row

BEST = "> "
"""Before the winner's label."""
PERIODIC = " *"
"""After the label of a method whose iterations are not all alike."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column: its heading (the last line holds the unit) and the value of each row."""

    heading: str
    value: Callable[[Row], float | None]
    aligned: bool = True
    """One number of decimals for the whole column; else significant digits for each value."""

    def cells(self, rows: Sequence[Row]) -> list[str]:
        """What stands in the column, in the order of `rows`."""
        values = [self.value(row) for row in rows]
        present = [value for value in values if value is not None]
        write = aligned(present) if self.aligned else significant
        return ["-" if value is None else write(value) for value in values]

    def width(self, rows: Sequence[Row]) -> int:
        """Terminal cells that the column needs so that nothing is cut."""
        return max(map(cell_len, [*self.heading.split("\n"), *self.cells(rows)]))


SPEEDUP = Column(heading="speedup\n[x]", value=lambda row: row.speedup_vs_dense)
TIME = (
    Column(heading="iteration\n[ms]", value=lambda row: row.iteration_s * 1e3),
    Column(heading="compute\n[ms]", value=lambda row: (row.forward_s + row.backward_s) * 1e3),
    Column(heading="encode\n[ms]", value=lambda row: row.encode_s * 1e3),
    Column(heading="exposed\ncomm.\n[ms]", value=lambda row: row.exposed_communication_s * 1e3),
    Column(heading="decode\n[ms]", value=lambda row: row.decode_s * 1e3),
)
TRAFFIC = (
    Column(heading="sent\n[MB]", value=lambda row: row.wire_bytes_per_worker / 1e6),
    Column(heading="ratio\n[x]", value=lambda row: row.compression_ratio),
)
RATE = (
    Column(heading="samples\n[1/s]", value=lambda row: row.throughput_samples_per_s),
    Column(heading="scaling\n[%]", value=lambda row: row.scaling_efficiency * 100),
)
ERROR = Column(heading="NMSE", value=lambda row: row.nmse, aligned=False)

ONE_TABLE: tuple[tuple[Column, ...], ...] = ((SPEEDUP, *TIME, *TRAFFIC, *RATE, ERROR),)
TWO_TABLES = ((SPEEDUP, *TIME), (*TRAFFIC, *RATE, ERROR))

LEGEND = (
    "iteration = compute (forward + backward) + encode + exposed communication (while the "
    "device waits) + decode. sent: bytes that a worker hands to its collectives in an iteration. "
    "ratio: dense float32 gradient over sent. scaling: throughput over that of as many single "
    "devices. NMSE: |update - dense|^2 / |dense|^2."
)


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
    for columns, gap in _arrange(rows, width):
        parts += ["", _table(rows, columns, gap=gap, width=width)]
    parts += ["", *(Text(note) for note in footnotes(rows))]
    return Group(*parts)


def footnotes(rows: Sequence[Row]) -> list[str]:
    """What the marks mean, then what the columns mean."""
    notes = [f"{BEST}fastest (within 1 %: the one with the smallest error)"]
    periodic = [row for row in rows if row.period > 1]
    if periodic:
        which = "; ".join(f"{row.label} ({row.period} iterations)" for row in periodic)
        notes.append(f"{PERIODIC.strip()} mean over whole periods: {which}")
    return [*notes, LEGEND]


def render(result: Result, width: int) -> str:
    """The table as plain text, without typeface: for logs, files and tests."""
    console = Console(file=StringIO(), width=width, color_system=None, highlight=False)
    with console.capture() as capture:
        console.print(answer_table(result, width))
    return capture.get()


def _label(row: Row, winner: Row) -> str:
    before = BEST if row is winner else " " * len(BEST)
    return before + row.label + (PERIODIC if row.period > 1 else "")


def _arrange(rows: Sequence[Row], width: int) -> list[tuple[Sequence[Column], int]]:
    """Columns of each table to stack, and the gap between them."""
    label = max(cell_len(_label(row, rows[0])) for row in rows)

    def fits(columns: Sequence[Column], gap: int) -> bool:
        return label + sum(gap + column.width(rows) for column in columns) <= width

    for plan in (ONE_TABLE, TWO_TABLES):
        for gap in (3, 2, 1):
            if all(fits(columns, gap) for columns in plan):
                return [(columns, gap) for columns in plan]
    stacked: list[list[Column]] = [[]]
    for column in (column for columns in TWO_TABLES for column in columns):
        if stacked[-1] and not fits([*stacked[-1], column], 2):
            stacked.append([])
        stacked[-1].append(column)
    return [(columns, 2) for columns in stacked]


def _table(rows: Sequence[Row], columns: Sequence[Column], *, gap: int, width: int) -> Table:
    taken = sum(gap + column.width(rows) for column in columns)
    table = Table(
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, 0, 0, gap - 1),  # the box adds one cell between columns
        header_style="",
    )
    table.add_column("compressor", vertical="bottom", overflow="fold", max_width=width - taken)
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
        table.add_row(Text(_label(row, winner)), *map(Text, numbers), style=style)
    return table
