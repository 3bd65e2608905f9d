"""Table of every method at the largest size, fitted to the terminal.

In brief it is one table of 80 cells: speed, range, bytes sent, error. In full it has every column,
as one table if the terminal is wide enough, else stacked as two (the answer; the parts of the time
and the outcome) or as many as needed, since no number or label is ever cut. Marks and styles give
emphasis, never colour alone.
"""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rich import box
from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from gcsim.analysis.report.intervals import has_ranges, iterations_vary, means_text
from gcsim.analysis.report.numbers import decimals_for, fixed, percent, plural, significant
from gcsim.analysis.report.selection import Verdict, largest_verdict
from gcsim.analysis.report.sources import are_synthetic, conditions, micro_batches
from gcsim.analysis.report.training import trained_note
from gcsim.analysis.report.wording import CLOSE
from gcsim.scenarios.result import PERCENTILES, Result, Row, highest_to_target, known_to_target
from gcsim.scenarios.uncertainty.close_pairs import TIE
from gcsim.simulator.cluster import whole_batches

BEST, SAFE, LEFT_OUT = "> ", "= ", "! "
"""Marks before labels: may be the fastest; the safe method; not counted."""
PERIODIC = " *"  # mark after the label of a method whose iterations vary
HEADING = "method"  # heading of the label column
NARROW_LABEL = 24  # terminal cells at which wrapped labels are still readable


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column: its heading (unit on the last line) and how to get each row's value."""

    heading: str
    value: Callable[[Row], float | None]
    decimals: Callable[[Sequence[Row]], int] | None = None
    """Decimals for the whole column; None: significant digits for each value."""
    above: Callable[[Row], float | None] | None = None
    """Upper end of an interval whose lower end is `value`."""
    zero: str = "0"  # text for zero
    scale: float = 1  # factor on values in the table

    def scaled(self, value: float | None) -> float | None:
        """Return a value in the heading's unit."""
        return None if value is None else value * self.scale

    def cells(self, rows: Sequence[Row]) -> list[str]:
        """Return the cells of the column, in the order of `rows`."""
        decimals = None if self.decimals is None else self.decimals(rows)
        cells = [_cell(self.scaled(self.value(row)), decimals) for row in rows]
        cells = [self.zero if cell == "0" else cell for cell in cells]
        if self.above is None:
            return cells
        ends = [_cell(self.scaled(self.above(row)), decimals) for row in rows]
        return [
            "-" if low == high else f"{low}-{high}" for low, high in zip(cells, ends, strict=True)
        ]

    def narrow(self, rows: Sequence[Row]) -> bool:
        """Whether any "-" stands for an interval narrower than the last digit."""
        return self.above is not None and any(
            cell == "-" and self.value(row) != self.above(row)
            for row, cell in zip(rows, self.cells(rows), strict=True)
        )

    @property
    def flat(self) -> str:
        """Heading on one line."""
        return self.heading.replace("\n", " ")

    def width(self, rows: Sequence[Row]) -> int:
        """Return the terminal cells needed to show everything."""
        return max(map(cell_len, [*self.heading.split("\n"), *self.cells(rows)]))


def _cell(value: float | None, decimals: int | None) -> str:
    if value is None:
        return "-"
    return significant(value) if decimals is None else fixed(value, decimals)


def _column(heading: str, value: Callable[[Row], float | None]) -> Column:
    """Make a column that shows two significant digits of its smallest value."""

    def decimals(rows: Sequence[Row]) -> int:
        return decimals_for((value(row) or 0.0 for row in rows), digits=2)

    return Column(heading=heading, value=value, decimals=decimals)


def _time(heading: str, value: Callable[[Row], float | None]) -> Column:
    """Make a column of milliseconds with equal decimals, so that the parts of a row add up."""

    def decimals(rows: Sequence[Row]) -> int:
        return decimals_for((row.iteration_s * 1e3 for row in rows), digits=3)

    return Column(heading=f"{heading}\n[ms]", value=value, decimals=decimals, scale=1e3)


def _chance(heading: str, value: Callable[[Row], float | None]) -> Column:
    """Make a column of probabilities in whole percent."""
    return Column(heading=f"{heading}\n[%]", value=value, decimals=lambda rows: 0, scale=100)


SPEEDUP = Column(
    heading="speedup\n[x]", value=lambda row: row.speedup_vs_dense, decimals=lambda rows: 2
)
SPEEDUP_RANGE = Column(
    heading="range\n[x]",
    value=lambda row: row.speedup_low,
    above=lambda row: row.speedup_high,
    decimals=lambda rows: 2,
)
PAYS = _chance("P(faster\nthan dense)", lambda row: row.probability_pays)
SOONER = _chance("P(sooner\nthan dense)", lambda row: row.probability_pays_to_target)
FASTEST = _chance("P(fastest)", lambda row: row.probability_fastest)
ITERATION = _time("iteration", lambda row: row.iteration_s)
ITERATION_RANGE = replace(
    _time("range", lambda row: row.iteration_low_s), above=lambda row: row.iteration_high_s
)
ERROR = _time("+-", lambda row: row.iteration_error_s)
SPREAD = (
    _time("p5", lambda row: row.iteration_p5_s),
    _time("p95", lambda row: row.iteration_p95_s),
)
STEPS = Column(
    heading="steps\n[x]", value=lambda row: row.steps_to_target_vs_dense, decimals=lambda rows: 2
)
TO_TARGET = Column(
    heading="to target\n[x]", value=lambda row: row.speedup_to_target, decimals=lambda rows: 2
)
TO_TARGET_RANGE = replace(
    SPEEDUP_RANGE, value=lambda row: row.speedup_to_target_low, above=highest_to_target
)
SENT = replace(_column("sent\n[MB]", lambda row: row.wire_bytes_per_worker / 1e6), zero="nothing")
NMSE = Column(heading="NMSE", value=lambda row: row.nmse)
COSINE = Column(heading="cosine", value=lambda row: row.cosine_similarity, decimals=lambda rows: 3)
INPUT = _time("input\nwait", lambda row: row.input_s)
AS_STATED = _time("default\ninputs", lambda row: row.iteration_as_stated_s)
PARTS = (
    _time("compute", lambda row: row.forward_s + row.backward_s),
    _time("encode", lambda row: row.encode_s),
    _time("network\nwait", lambda row: row.exposed_communication_s),
    _time("decode", lambda row: row.decode_s),
)
OPTIMIZER = _time("optimizer", lambda row: row.optimizer_s)
MONEY = Column(heading="cost of 1000\niterations", value=lambda row: row.cost_per_1000_iterations)
MONEY_TO_TARGET = Column(heading="cost to\ntarget", value=lambda row: row.cost_to_target)
COST = (
    _column("compression\nratio [x]", lambda row: row.compression_ratio),
    _column("throughput\n[samples/s]", lambda row: row.throughput_samples_per_s),
    _column("scaling\nefficiency [%]", lambda row: row.scaling_efficiency * 100),
)
MEMORY = Column(
    heading="memory\n[GiB]",
    value=lambda row: row.device_memory_low_bytes,
    above=lambda row: row.device_memory_high_bytes,
    scale=2**-30,
)
WITH_FAULTS = _column(
    "with faults\n[samples/s]", lambda row: row.throughput_with_faults_samples_per_s
)

MEDIANS = "medians over the draws (a median of ratios is not the ratio of the medians)"
LEGEND = (
    "sent: bytes of gradients per worker and iteration. "
    "compression ratio: dense gradient, as it is stored, over sent. "
    "scaling efficiency: throughput over that of the same number of devices training separately. "
    "NMSE: |update - dense update|^2 / "
    "|dense update|^2, mean over the steps that were run, from empty residuals "
    "(with error feedback later steps differ more); a zero update has 1. "
    "cosine: cosine similarity of the two updates."
)
BUCKETS = "encode and decode of dense: gradient hooks, copies into buckets and back. "
COSTS = "cost: all nodes, in the currency of cost.per_hour."
FAULTY = "with faults: throughput over the whole run of training.faults, including failures."
GATHERED = "sent: gradients alone, without the weights that ranks gather."
SCALE_FREE = "NMSE -: the update has the learning rate's scale, not the gradient's."


DRAWN = (
    "Gradients are synthetic: bytes of sparse methods, ratios, NMSE and the times that depend on "
    "them are those of fitted distributions."
)


def brief_columns(rows: Sequence[Row]) -> tuple[Column, ...]:
    """Return speed, range, traffic and error; if known, time to the target first and no error."""
    if known_to_target(rows):
        return (TO_TARGET, TO_TARGET_RANGE, SPEEDUP, ITERATION, *money(rows)[-1:], SENT)
    if any(row.speedup_vs_dense is not None for row in rows):
        total = (SPEEDUP, *_with_values(rows, SPEEDUP_RANGE), ITERATION)
    else:
        total = (ITERATION, *_with_values(rows, ITERATION_RANGE))
    return (*total, *money(rows), SENT, replace(NMSE, heading="error\n(NMSE)"))


def brief_table(result: Result) -> tuple[list[str], list[tuple[Row, list[str]]]]:
    """Return headings, and each row of the largest size with its cells, fastest first."""
    rows = largest_verdict(result).rows
    columns = brief_columns(rows)
    cells = zip(*(one.cells(rows) for one in columns), strict=True)
    lines = [(row, [row.label, *own]) for row, own in zip(rows, cells, strict=True)]
    return [HEADING, *(one.flat for one in columns)], lines


def answer_columns(rows: Sequence[Row]) -> tuple[Column, ...]:
    """Return the columns on speed, certainty and error that are not empty."""
    judged = known_to_target(rows)
    ranges = _with_values(rows, SPEEDUP_RANGE)
    trained = (TO_TARGET, TO_TARGET_RANGE, STEPS) if judged else ()
    chances = (SOONER,) if judged else _with_values(rows, PAYS, FASTEST)
    of_time = () if ranges else _with_values(rows, ITERATION_RANGE)
    total = (*trained, SPEEDUP, *ranges, *chances, ITERATION, *of_time)
    return (*total, *_with_values(rows, ERROR, *SPREAD), *money(rows), SENT, NMSE, COSINE)


def money(rows: Sequence[Row]) -> tuple[Column, ...]:
    """Return the cost columns, if a node's cost is stated."""
    return _with_values(rows, MONEY, MONEY_TO_TARGET)


def _with_values(rows: Sequence[Row], *columns: Column) -> tuple[Column, ...]:
    """Return the columns that have a value in any row."""
    return tuple(one for one in columns if any(one.value(row) is not None for row in rows))


def other_columns(rows: Sequence[Row]) -> tuple[Column, ...]:
    """Return the columns on the parts of an iteration and its outcome that are not empty."""
    before = (INPUT,) if any(row.input_s for row in rows) else ()
    after = (OPTIMIZER,) if any(row.optimizer_s for row in rows) else ()
    cost = (*COST[:2], *_with_values(rows, WITH_FAULTS), *COST[2:])
    memory = (MEMORY,) if any(row.fits for row in rows) else ()
    return (*_with_values(rows, AS_STATED), *before, *PARTS, *after, *cost, *memory)


def answer_table(result: Result, width: int, *, full: bool = False) -> Group:
    """Return title, table (or stacked tables) for `width` terminal cells, and footnotes."""
    found = largest_verdict(result)
    parts: list[RenderableType] = [Text(title(result), style="bold")]
    layout = _arrange(found.rows, width, full=full)
    for number, columns in enumerate(layout.tables):
        parts += ["", _table(found, columns, layout, notes=full, via=full and number == 0)]
    notes = footnotes(result, found) if full else brief_notes(result, found)
    parts += ["", *map(Text, notes)]
    return Group(*parts)


def title(result: Result) -> str:
    """Return the title above the table."""
    largest = max(result.rows, key=lambda row: row.workers)
    drawn = "synthetic gradients, " if are_synthetic(result) else ""
    rows = [row for row in result.rows if row.workers == largest.workers]
    order = "earliest at the target first" if known_to_target(rows) else "fastest first"
    return (
        f"{result.scenario.get('name', 'scenario')}: {plural(largest.nodes, 'node')}, "
        f"{plural(largest.workers, 'worker')}, "
        f"{conditions(result.scenario, largest.nodes, largest.workers)}{drawn}{order}"
    )


def brief_notes(result: Result, found: Verdict) -> list[str]:
    """Return the meanings of the marks and of unusual columns."""
    marks = []
    if _close(found):
        marks.append(_any_first(found))
    elif found.foremost:
        may = not _sure(found)
        marks.append(f"{BEST}{'may be ' if may else ''}{_first(found, the=may)}")
    if found.safe is not None and found.safe not in found.foremost:
        marks.append(f"{SAFE}fastest with practically the dense update")
    if iterations_vary(found.rows):
        marks.append(means_text(result))
    columns = brief_columns(found.rows)
    notes = ["; ".join(marks)] if marks else []
    notes += _unfit(result, found.rows)
    if found.left_out:
        (row, why), *others = found.left_out
        more = f"; {plural(len(others), 'other')} (-v)" if others else ""
        notes.append(f"{LEFT_OUT}not counted: {row.label}: {why}{more}")
    if has_ranges(found.rows):
        notes.append(_range(found.rows))
    notes += [*bottleneck(result), *_useful(result, found.rows), *_sharded(result)]
    notes += [COSTS] if money(found.rows) else []
    if TO_TARGET in columns:
        target = result.provenance["training"]["target"]
        notes.append(
            f"to target: speedup to {target}, with the range for another seed; -: not trained, "
            "or not reached. speedup: per iteration."
        )
    return notes


def footnotes(result: Result, found: Verdict | None = None) -> list[str]:
    """Return the meanings of the marks, then of the columns; `found` is the verdict, if known."""
    found = found or largest_verdict(result)
    rows = found.rows
    notes = [*_marks(found), *_unfit(result, rows)]
    periodic = [row for row in rows if row.period > 1]
    if periodic:
        which = "; ".join(f"{row.label} ({row.period} iterations)" for row in periodic)
        notes.append(f"{PERIODIC.strip()} mean over whole periods: {which}")
    if has_ranges(rows):
        narrow = any(column.narrow(rows) for column in answer_columns(rows))
        notes.append(_range(rows) + (" -: smaller than the last digit shown." if narrow else ""))
    if iterations_vary(rows):
        errors = any(row.iteration_error_s is not None for row in rows)
        known = "+-: standard error of the mean iteration. " if errors else ""
        notes.append(
            f"times are {means_text(result)}, which differ. {known}p5, p95: 5 % of the "
            "iterations are shorter, and 5 % longer."
        )
    if STEPS in answer_columns(rows):
        notes.append(trained_note(result))
    notes.append(_legend(result, rows))
    notes += [FAULTY] if WITH_FAULTS in other_columns(rows) else []
    notes += [*bottleneck(result), *_useful(result, rows), *_sharded(result)]
    notes += [COSTS] if money(rows) else []
    notes += [SCALE_FREE] if any(row.nmse is None for row in rows) else []
    return notes + ([DRAWN] if are_synthetic(result) else [])


def bottleneck(result: Result) -> list[str]:
    """Return a note on the slowest group of nodes, for which all others wait."""
    groups = result.provenance.get("groups") or []
    slowdowns = [one["slowdown"] for one in groups]
    times = [(one["forward_s"] + one["backward_s"]) * one["slowdown"] for one in groups]
    if not times:
        return []
    last, first = times.index(max(times)), times.index(min(times))
    batches = ", ".join(f"{one['batch_size']} on {one['device']}" for one in groups)
    longer = times[last] / times[first]
    if longer < 1 + TIE:
        return [f"Bottleneck: none, all groups' passes take equally long (batches: {batches})."]
    now, workers = ([one[key] for one in groups] for key in ("batch_size", "workers"))
    speeds = [batch / time * slow for batch, time, slow in zip(now, times, slowdowns, strict=True)]
    samples = sum(batch * count for batch, count in zip(now, workers, strict=True))
    divided = [
        time / before * after
        for time, before, after in zip(
            times, now, whole_batches(samples, speeds, workers), strict=True
        )
    ]
    narrower = max(divided) / min(divided) < longer
    by_speed = result.scenario["cluster"]["batch"] == "by_speed"
    kinds = [one["device"] for one in groups]
    slow, fast = f"{kinds[last]} nodes compute", f"{kinds[first]}'s, which wait"
    if any(one != 1 for one in slowdowns):
        slow = f"the slowest {kinds[last]} worker computes"
        fast = f"the slowest {kinds[first]} one, which waits"
    return [
        f"Bottleneck: {slow} {longer:.3g}x as long as {fast} (batches: {batches})"
        + ("; cluster.batch=by_speed narrows that." if narrower and not by_speed else ".")
    ]


def _useful(result: Result, rows: Sequence[Row]) -> list[str]:
    """Return a note on the goodput of a training whose nodes fail."""
    if rows[0].goodput is None:
        return []
    failures = result.scenario["training"]["failures"]
    return [
        f"goodput: {100 * rows[0].goodput:.0f} % of the time is useful on "
        f"{plural(rows[0].nodes, 'node')}, each of which fails every {failures['mtbf']}; costs "
        "include it."
    ]


def _sharded(result: Result) -> list[str]:
    """Return a note that no column counts the traffic of sharded weights."""
    training: Any = result.scenario.get("training", {})
    return [GATHERED] if training.get("strategy", "ddp") != "ddp" else []


def _marks(found: Verdict) -> list[str]:
    """Return the meanings of the marks before labels."""
    notes = []
    if _sure(found):
        nearest = f"of those within {percent(TIE)}, the one with the smallest error"
        notes.append(f"{BEST}{_first(found)} ({nearest})")
    elif _close(found):
        notes.append(_any_first(found))
    elif found.foremost:
        may = f"{BEST}may be {_first(found, the=True)}"
        notes.append(f"{may}: no other is clearly more than {percent(TIE)} faster")
    if found.safe is not None and found.safe not in found.foremost:
        notes.append(f"{SAFE}fastest of those whose update is practically the dense one")
    return notes + [f"{LEFT_OUT}not counted: {row.label}: {why}" for row, why in found.left_out]


def _unfit(result: Result, rows: Sequence[Row]) -> list[str]:
    """Return notes on methods left out, usually for lack of memory, and on doubtful ones."""
    notes = [f"{LEFT_OUT}left out: {text}" for text in result.left_out]
    doubtful = [row for row in rows if row.fits == "perhaps"]
    if doubtful:
        names = ", ".join(row.label for row in doubtful)
        need = max(row.device_memory_high_bytes or 0.0 for row in doubtful)
        notes.append(f"may not fit, at up to {need / (1 << 30):.3g} GiB: {names}")
    return notes


def _first(found: Verdict, *, the: bool = False) -> str:
    return "first at the target" if found.until_target else f"{'the ' if the else ''}fastest"


def _any_first(found: Verdict) -> str:
    return f"{CLOSE}: any of them may be {_first(found, the=True)}"


def _range(rows: Sequence[Row]) -> str:
    count = max(len(row.iteration_draws_s) for row in rows)
    return f"range: {PERCENTILES} over {count} draws of the uncertain inputs."


def _sure(found: Verdict) -> bool:
    """Whether the one marked row is the fastest, not just the most likely to be."""
    return len(found.foremost) == 1 and found.pays not in ("not known", "unlikely")


def _close(found: Verdict) -> bool:
    """Whether each of several rows may be the fastest, so that a mark says nothing."""
    return 1 < len(found.foremost) == len(found.rows)


def _legend(result: Result, rows: Sequence[Row]) -> str:
    before = "input wait + " if any(row.input_s for row in rows) else ""
    after = " + optimizer" if any(row.optimizer_s for row in rows) else ""
    batches = micro_batches(result)
    many = "" if batches == 1 else f"An iteration has {batches} micro-batches. "
    stated = any(row.iteration_as_stated_s is not None for row in rows)
    total = "default inputs" if stated else "iteration"
    middle = (
        f"iteration and speedup: {MEDIANS}. default inputs: the iteration with each "
        "input at its default; the parts add up to it. "
        if stated
        else ""
    )
    return (
        f"{middle}{total} = {before}compute (forward + backward) + encode + network wait (exposed "
        f"communication: the device idles until a collective ends) + decode{after}. {many}"
        f"{BUCKETS}{LEGEND}"
    )


def _label(row: Row, width: int, *, mark: str = BEST, notes: bool = True, via: str = "") -> str:
    """Return a row's label with its marks, on as many lines as `width` cells need, and the method's
    carrier below; without `notes` the mark of a period is omitted."""
    indent = " " * len(mark)
    text = row.label + (PERIODIC if notes and row.period > 1 else "")
    lines = [textwrap.fill(text, width, initial_indent=mark, subsequent_indent=indent)]
    if via:
        inner = indent * 2
        lines.append(
            textwrap.fill(f"via {via}", width, initial_indent=inner, subsequent_indent=inner)
        )
    return "\n".join(lines)


def mark_of(row: Row, found: Verdict) -> str:
    """Return the mark before a row's label."""
    if row in found.foremost and not _close(found):
        return BEST
    if row is found.safe:
        return SAFE
    return LEFT_OUT if row in (one for one, _ in found.left_out) else " " * len(BEST)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layout:
    """Layout of the stacked tables: their columns, the gap between columns, the label's width."""

    tables: Sequence[Sequence[Column]]
    gap: int
    label: int


def _arrange(rows: Sequence[Row], width: int, *, full: bool) -> _Layout:
    labels = [cell_len(_label(row, 10**6, notes=full)) for row in rows]
    widest = max(cell_len(HEADING), *labels)

    def room(columns: Sequence[Column], gap: int) -> int:
        return width - sum(gap + column.width(rows) for column in columns)

    plans: list[Sequence[Sequence[Column]]] = [(brief_columns(rows),)]
    if full:
        every, others = answer_columns(rows), other_columns(rows)
        plans = [((*every, *others),), (every, others)]
    for plan, label in (*((plan, widest) for plan in plans), (plans[-1], NARROW_LABEL)):
        for gap in (3, 2, 1):
            narrowest = min(room(columns, gap) for columns in plan)
            if narrowest >= min(label, widest):
                return _Layout(tables=plan, gap=gap, label=min(widest, narrowest))
    label = max(cell_len(HEADING), min(NARROW_LABEL, width // 2))
    tables: list[list[Column]] = [[]]
    for column in itertools.chain(*plans[-1]):
        if tables[-1] and room([*tables[-1], column], 1) < label:
            tables.append([])
        tables[-1].append(column)
    return _Layout(tables=tables, gap=1, label=label)


def _table(
    found: Verdict, columns: Sequence[Column], layout: _Layout, *, notes: bool, via: bool
) -> Table:
    rows, headings = found.rows, [HEADING, *(f">{column.heading}" for column in columns)]
    table = bare_table(headings, gap=layout.gap - 1, whole=True, width=layout.label)
    cells = zip(*(column.cells(rows) for column in columns), strict=True)
    for row, numbers in zip(rows, cells, strict=True):
        mark = mark_of(row, found)
        shown = row.via if via and not row.label.endswith(row.via) else ""
        label = _label(row, layout.label, mark=mark, notes=notes, via=shown)
        table.add_row(
            Text(label), *map(Text, numbers), style="bold" if mark in (BEST, SAFE) else ""
        )
    return table


def bare_table(
    headings: Sequence[str], lines: Iterable[Sequence[str]] = (), *, gap: int = 1,
    whole: bool = False, width: int | None = None,
) -> Table:  # fmt: skip
    """Make a table without a frame; its columns are `gap` + 1 cells apart, the first is `width`
    wide. A heading with a leading ">" is right-aligned; with `whole` it is never folded."""
    table = Table(
        box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, gap, 0, 0),
        header_style="",
    )  # fmt: skip
    tallest = max(heading.count("\n") for heading in headings)
    for heading in headings:
        right = heading.startswith(">")
        above = "\n" * (tallest - heading.count("\n"))
        table.add_column(
            Text(above + heading.lstrip(">")), justify="right" if right else "left",
            overflow="fold", no_wrap=right and whole, width=None if table.columns else width,
        )  # fmt: skip
    for line in lines:
        table.add_row(*map(Text, line))
    return table
