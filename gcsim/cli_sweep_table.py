"""How does a finished sweep look on a terminal? One line a point, and a sentence.

A line tells which method is fastest at the point's largest cluster; all rows are in `results.csv`.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.cells import cell_len
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from gcsim.analysis.numbers import decimals_for, fixed, plural
from gcsim.analysis.selection import DENSE, TIE, at_largest, best
from gcsim.analysis.sources import are_synthetic
from gcsim.analysis.spread import spreads
from gcsim.scenarios.result import Row
from gcsim.scenarios.sweep_grid import written
from gcsim.scenarios.sweep_result import SweepPoint, SweepResult

GAP = 2
"""Cells between two columns."""
NARROWEST = 6
"""Cells of a column of text on the narrowest terminal."""

FOOTNOTE = (
    f"fastest: at the point's largest cluster; of methods within {TIE:.0%}, or two standard errors "
    "where times are random, the one with the smallest error. speedup: against dense "
    "training there. All rows are in results.csv."
)

RANGES = (
    "range: of the speedup, by what is known of the device; of methods that may be the fastest by "
    "that, the one with the smallest error is named."
)
SYNTHETIC_SWEEP = "what is sent is that of distributions fitted to other recordings."
MEANS = "Where iterations differ, times are means; p5 and p95 are there."


def shown(result: SweepResult, cells: int) -> tuple[RenderableType, ...]:
    """The table for a terminal of `cells` cells, what its columns mean, the answer."""
    differ = any(point.result and spreads(point.result.rows) for point in result.points)
    ranges = any(row is not None and row.speedup_lowest is not None for row in _rows(result))
    notes = [FOOTNOTE, *([RANGES] if ranges else []), *([MEANS] if differ else [])]
    drawn = [point for point in result.points if point.result and are_synthetic(point.result)]
    if drawn:
        which = "all points" if len(drawn) == len(result.points) else "some points"
        notes.append(f"Synthetic gradients at {which}: {SYNTHETIC_SWEEP}")
    return _table(result, cells), "", Text(" ".join(notes)), "", Text(_summary(result))


def _table(result: SweepResult, cells: int) -> Table:
    """One line a point; keys with a single value are left to `results.csv`."""
    keys = [key for key, values in result.grid.items() if len(values) > 1] or list(result.grid)
    rows = _rows(result)
    decimals = decimals_for((row.iteration_s * 1e3 for row in rows if row), digits=3)
    ranges = any(row is not None and row.speedup_lowest is not None for row in rows)
    lines = [
        [*(written(point.values[key]) for key in keys), *_answer(row, decimals, ranges)]
        for point, row in zip(result.points, rows, strict=True)
    ]
    between = ("range\n[x]",) if ranges else ()
    numbers = ("speedup\n[x]", *between, "iteration\n[ms]", "dense\nwins")
    headings = [*(f"\n{heading}" for heading in _headings(keys)), "\nfastest", *numbers]
    natural = [
        max(cell_len(line) for text in column for line in text.split("\n"))
        for column in zip(headings, *lines, strict=True)
    ]
    fixed_part = sum(natural[-len(numbers) :]) + GAP * (len(headings) - 1)
    text = _shares(natural[: -len(numbers)], cells - fixed_part)
    table = Table(
        box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), header_style=""
    )
    for heading, size in zip(headings, (*text, *natural[-len(numbers) :]), strict=True):
        right = heading in numbers
        table.add_column(
            Text(heading), width=size, overflow="fold", justify="right" if right else "left"
        )
    for line in lines:
        table.add_row(*map(Text, line))
    return table


def _answer(row: Row | None, decimals: int, ranges: bool) -> list[str]:
    """The method, its speedup (and what that may be), its iteration time, and whether it is the
    uncompressed one."""
    if row is None:
        return ["failed", *[""] * (4 if ranges else 3)]
    between = [_range(row)] if ranges else []
    time_text = fixed(row.iteration_s * 1e3, decimals)
    if row.speedup_vs_dense is None:
        return [row.label, "-", *between, time_text, "-"]
    dense = "yes" if row.compressor == DENSE else "no"
    return [row.label, fixed(row.speedup_vs_dense, 2), *between, time_text, dense]


def _range(row: Row) -> str:
    if row.speedup_lowest is None or row.speedup_highest is None:
        return "-"
    low, high = fixed(row.speedup_lowest, 2), fixed(row.speedup_highest, 2)
    return "-" if low == high else f"{low}-{high}"


def _shares(wanted: Sequence[int], room: int) -> list[int]:
    """Widths of columns in `room` cells: the widest give way, so that no number is cut."""
    shares = list(wanted)
    while sum(shares) > room and max(shares) > NARROWEST:
        shares[shares.index(max(shares))] -= 1
    return shares


def _headings(keys: Sequence[str]) -> list[str]:
    """The shortest ends of the keys that tell them apart: `nodes`, `compressors.1`."""

    def shortest(key: str) -> str:
        words = key.split(".")
        for count in range(1, len(words)):
            end = ".".join(words[-count:])
            if not words[-count].isdigit() and not any(
                other != key and f".{other}".endswith(f".{end}") for other in keys
            ):
                return end
        return key

    return [shortest(key) for key in keys]


def _rows(result: SweepResult) -> list[Row | None]:
    return [_fastest(point) for point in result.points]


def _fastest(point: SweepPoint) -> Row | None:
    return None if point.result is None else best(at_largest(point.result)).row


def _summary(result: SweepResult) -> str:
    rows = [row for point in result.points if (row := _fastest(point)) is not None]
    failed = f" {plural(len(result.failed), 'point')} failed." if result.failed else ""
    compared = [row for row in rows if row.speedup_vs_dense is not None]
    if not compared:
        return f"{plural(len(rows), 'point')}; no row of kind `none` to compare with.{failed}"
    pays = sum(row.compressor != DENSE for row in compared)
    return f"Compression pays in {pays} of {plural(len(compared), 'point')}.{failed}"
