"""The answer first: every compressor at the largest size, in a table that fits the terminal.

A wide terminal gets one table. Where that does not fit, the same columns are stacked as two
tables (how long it takes; what is sent, and at what cost) or three (where the time goes apart), and
where not even those fit, as many as are needed: no number and no label is ever cut. Emphasis is a
mark and a typeface, never a colour alone.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from io import StringIO

from rich import box
from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from gcsim.analysis.known import uncertain
from gcsim.analysis.numbers import decimals_for, fixed, plural, significant
from gcsim.analysis.selection import TIE, at_largest, best
from gcsim.analysis.sources import are_synthetic, micro_batches
from gcsim.analysis.spread import averaged, spreads
from gcsim.analysis.undecided import given
from gcsim.scenarios.result import Result, Row

BEST = "> "
"""Before the winner's label, or the labels of those that may be."""
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
    above: Callable[[Row], float | None] | None = None
    """The upper end of an interval, of which `value` is the lower one."""

    def cells(self, rows: Sequence[Row]) -> list[str]:
        """What stands in the column, in the order of `rows`."""
        decimals = None if self.decimals is None else self.decimals(rows)
        cells = [_cell(self.value(row), decimals) for row in rows]
        if self.above is None:
            return cells
        ends = [_cell(self.above(row), decimals) for row in rows]
        return [
            "-" if low == high else f"{low}-{high}" for low, high in zip(cells, ends, strict=True)
        ]

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


def _time(heading: str, value: Callable[[Row], float | None]) -> Column:
    """A column of milliseconds: all of them with the same decimals, so that a row adds up."""

    def shown(row: Row) -> float | None:
        seconds = value(row)
        return None if seconds is None else seconds * 1e3

    def decimals(rows: Sequence[Row]) -> int:
        return decimals_for((row.iteration_s * 1e3 for row in rows), digits=3)

    return Column(heading=f"{heading}\n[ms]", value=shown, decimals=decimals)


SPEEDUP = Column(
    heading="speedup\n[x]", value=lambda row: row.speedup_vs_dense, decimals=lambda rows: 2
)
SPEEDUP_RANGE = Column(
    heading="range\n[x]",
    value=lambda row: row.speedup_lowest,
    above=lambda row: row.speedup_highest,
    decimals=lambda rows: 2,
)
ITERATION = _time("iter-\nation", lambda row: row.iteration_s)
ITERATION_RANGE = replace(
    _time("range", lambda row: row.iteration_fastest_s),
    above=lambda row: None if row.iteration_slowest_s is None else row.iteration_slowest_s * 1e3,
)
ERROR = _time("+-", lambda row: row.iteration_error_s)
SPREAD = (
    _time("p5", lambda row: row.iteration_p5_s),
    _time("p95", lambda row: row.iteration_p95_s),
)
INPUT = _time("input\nwait", lambda row: row.input_s)
PARTS = (
    _time("compute", lambda row: row.forward_s + row.backward_s),
    _time("encode", lambda row: row.encode_s),
    _time("exposed\ncomm.", lambda row: row.exposed_communication_s),
    _time("decode", lambda row: row.decode_s),
)
OPTIMIZER = _time("opti-\nmizer", lambda row: row.optimizer_s)
COST = (
    _column("sent\n[MB]", lambda row: row.wire_bytes_per_worker / 1e6),
    _column("ratio\n[x]", lambda row: row.compression_ratio),
    _column("samples\n[1/s]", lambda row: row.throughput_samples_per_s),
    _column("scaling\n[%]", lambda row: row.scaling_efficiency * 100),
    Column(heading="NMSE", value=lambda row: row.nmse),
)
WITH_FAULTS = _column("with faults\n[1/s]", lambda row: row.throughput_with_faults_samples_per_s)

LEGEND = (
    "sent: bytes that a worker hands to its collectives in an iteration. "
    "ratio: dense float32 gradient over sent. scaling: throughput over that of as many single "
    "devices. NMSE: |update - dense|^2 / |dense|^2 over the few steps that were run, with the "
    "recorded workers, from empty memories (with error feedback later steps differ more); an "
    "update of zero has 1."
)
RANGE = (
    "range: what is left open by figures of the device that are known within ranges only (-: less "
    "than the digits shown)."
)
FAULTY = "with faults: throughput over the whole run of training.faults, deaths included."
SCALE_FREE = "NMSE -: the update has the learning rate's scale, not the gradient's."


DRAWN = (
    "Gradients are synthetic: bytes of sparse methods, ratios, NMSE and the times that depend on "
    "them are those of fitted distributions."
)


def total_columns(rows: Sequence[Row]) -> tuple[Column, ...]:
    """How long an iteration takes; what no row has is left out."""
    error = (ERROR,) if any(row.iteration_error_s is not None for row in rows) else ()
    of_speedup = (SPEEDUP_RANGE,) if any(row.speedup_lowest is not None for row in rows) else ()
    of_time = (ITERATION_RANGE,) if uncertain(rows) and not of_speedup else ()
    return (SPEEDUP, *of_speedup, ITERATION, *of_time, *error, *(SPREAD if spreads(rows) else ()))


def part_columns(rows: Sequence[Row]) -> tuple[Column, ...]:
    """Where an iteration goes; what no row has is left out."""
    before = (INPUT,) if any(row.input_s for row in rows) else ()
    after = (OPTIMIZER,) if any(row.optimizer_s for row in rows) else ()
    return (*before, *PARTS, *after)


def cost_columns(rows: Sequence[Row]) -> tuple[Column, ...]:
    """What is sent, what comes of it and at what cost; what no row has is left out."""
    faulty = any(row.throughput_with_faults_samples_per_s is not None for row in rows)
    return (*COST[:3], *((WITH_FAULTS,) if faulty else ()), *COST[3:])


def answer_table(result: Result, width: int) -> Group:
    """Title, table (or stacked tables) for `width` terminal cells, footnotes."""
    rows = at_largest(result)
    first = rows[0]
    drawn = "synthetic gradients, " if are_synthetic(result) else ""
    parts: list[RenderableType] = [
        Text(
            f"{result.scenario.get('name', 'scenario')}: {plural(first.nodes, 'node')}, "
            f"{plural(first.workers, 'worker')}, {drawn}fastest first",
            style="bold",
        )
    ]
    layout = _arrange(rows, width)
    for columns in layout.tables:
        parts += ["", _table(rows, columns, layout)]
    parts += ["", *(Text(note) for note in footnotes(result))]
    return Group(*parts)


def footnotes(result: Result) -> list[str]:
    """What the marks mean, then what the columns mean."""
    rows = at_largest(result)
    notes = [f"{BEST}fastest (of those within {TIE:.0%}, the one with the smallest error)"]
    found = best(rows)
    if found.unclear:
        luck = ": closer than two standard errors" if found.by_luck else ""
        notes = [f"{BEST}cannot be told apart {given(result, found)}{luck}"]
    periodic = [row for row in rows if row.period > 1]
    if periodic:
        which = "; ".join(f"{row.label} ({row.period} iterations)" for row in periodic)
        notes.append(f"{PERIODIC.strip()} mean over whole periods: {which}")
    if uncertain(rows):
        notes.append(RANGE)
    if spreads(rows):
        errors = any(row.iteration_error_s is not None for row in rows)
        known = "+-: standard error of the mean iteration. " if errors else ""
        notes.append(
            f"times are {averaged(result)}, which differ. {known}p5, p95: 5 % of the "
            "iterations are shorter, and 5 % longer."
        )
    scale_free = [SCALE_FREE] if any(row.nmse is None for row in rows) else []
    faulty = [FAULTY] if len(cost_columns(rows)) > len(COST) else []
    drawn = [DRAWN] if are_synthetic(result) else []
    return [*notes, _legend(result, rows), *faulty, *scale_free, *drawn]


def _legend(result: Result, rows: Sequence[Row]) -> str:
    before = "input wait + " if any(row.input_s for row in rows) else ""
    after = " + optimizer" if any(row.optimizer_s for row in rows) else ""
    batches = micro_batches(result)
    many = "" if batches == 1 else f"An iteration has {batches} micro-batches. "
    return (
        f"iteration = {before}compute (forward + backward) + encode + exposed communication (while "
        f"the device waits) + decode{after}. {many}{LEGEND}"
    )


def render(result: Result, width: int) -> str:
    """The table as plain text, without typeface: for logs, files and tests."""
    console = Console(file=StringIO(), width=width, color_system=None, highlight=False)
    with console.capture() as capture:
        console.print(answer_table(result, width))
    return capture.get()


def _label(row: Row, width: int, *, foremost: bool) -> str:
    """A row's label with its marks, on as many lines as `width` cells need."""
    text = row.label + (PERIODIC if row.period > 1 else "")
    before = BEST if foremost else " " * len(BEST)
    return textwrap.fill(text, width, initial_indent=before, subsequent_indent=" " * len(BEST))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layout:
    """Which tables to stack: their columns, the gap between columns, the label's width."""

    tables: Sequence[Sequence[Column]]
    gap: int
    label: int


def _arrange(rows: Sequence[Row], width: int) -> _Layout:
    labels = [cell_len(_label(row, 10**6, foremost=True)) for row in rows]
    widest = max(cell_len(HEADING), *labels)

    def room(columns: Sequence[Column], gap: int) -> int:
        return width - sum(gap + column.width(rows) for column in columns)

    totals, parts, cost = total_columns(rows), part_columns(rows), cost_columns(rows)
    one: Sequence[Sequence[Column]] = ((*totals, *parts, *cost),)
    two, three = ((*totals, *parts), cost), (totals, parts, cost)
    plans = ((one, widest), (two, widest), (three, widest), (two, NARROW_LABEL))
    for plan, label in (*plans, (three, NARROW_LABEL)):
        for gap in (3, 2, 1):
            narrowest = min(room(columns, gap) for columns in plan)
            if narrowest >= min(label, widest):
                return _Layout(tables=plan, gap=gap, label=min(widest, narrowest))
    label = max(cell_len(HEADING), min(NARROW_LABEL, width // 2))
    tables: list[list[Column]] = [[]]
    for column in one[0]:
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
    found = best(rows)
    winners = found.unclear or (found.row,)
    cells = zip(*(column.cells(rows) for column in columns), strict=True)
    for row, numbers in zip(rows, cells, strict=True):
        foremost = any(row is winner for winner in winners)
        label = _label(row, layout.label, foremost=foremost)
        table.add_row(Text(label), *map(Text, numbers), style="bold" if foremost else "")
    return table
