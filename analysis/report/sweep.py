"""Text of a finished sweep on a terminal: one line per point, and a sentence.

A line has the methods to use and to try at the largest cluster of its point.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from rich.cells import cell_len
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from gcsim.analysis.report.answer import html_table
from gcsim.analysis.report.intervals import iterations_vary
from gcsim.analysis.report.numbers import percent, plural, significant
from gcsim.analysis.report.sections import Recommendation
from gcsim.analysis.report.selection import largest_verdict, surely_faster
from gcsim.analysis.report.sources import are_synthetic
from gcsim.analysis.report.table import (
    MONEY_TO_TARGET,
    SPEEDUP,
    SPEEDUP_RANGE,
    TO_TARGET,
    TO_TARGET_RANGE,
    bare_table,
)
from gcsim.analysis.report.trust import is_safe
from gcsim.errors import InputError
from gcsim.scenarios.advice.question import scenario_from
from gcsim.scenarios.findings import Findings
from gcsim.scenarios.result import PERCENTILES, Result, Row
from gcsim.scenarios.sweeps.grid import written
from gcsim.scenarios.sweeps.result import SweepPoint, SweepResult
from gcsim.scenarios.trained.evidence import for_and_against

GAP = 2  # cells between two columns
NARROWEST = 6  # cells of a text column on the narrowest terminal

_EXPLAINED = 4  # most reasons shown why points do not fit; results.json has all
NUMBERS = (SPEEDUP, SPEEDUP_RANGE)
"""Columns of a method, to the target if known; the second only if a point has a range."""
COST = "cost/1000\niterations"
"""Heading of the cost of the method to use, if a node's cost is stated and no target is known."""

FOOTNOTE = (
    "use: the method named by `gcsim run` at the point's largest cluster; * changes the update and "
    "is known to train. try: the method that may be the fastest. speedup: over dense training. "
    "pays: whether a method is clearly faster than dense, or the probability that the one to try "
    "is. "
    "All rows are in results.csv."
)
TRAINED = "Where training with the methods is known, speedups are to the target."
RANGES = f"range: {PERCENTILES} over draws of the uncertain inputs."
SYNTHETIC_SWEEP = "bytes sent are those of distributions fitted to other recordings."
MEANS = "Where iterations differ, times are means; results.csv has p5 and p95."


def parts(result: SweepResult, width: int) -> tuple[RenderableType, ...]:
    """Return the text of `gcsim sweep` on `width` terminal cells: table, legend, answer."""
    answer, notes = notes_on(result)
    found = _verdicts(result)
    ranges = _open(found)
    table = _table(*_lines(result, found, ranges=ranges), width)
    if ranges and table is None:  # results.csv has the ranges
        table = _table(*_lines(result, found, ranges=False), width)
        notes.remove(RANGES)
    table = table or _table(*_lines(result, found, ranges=False), width, fold=True)
    return table or "", "", Text(" ".join(notes)), "", Text(answer)


def table_of(result: SweepResult) -> tuple[list[str], list[list[str]]]:
    """Return the headings and one line per point."""
    found = _verdicts(result)
    return _lines(result, found, ranges=_open(found))


def notes_on(result: SweepResult) -> tuple[str, list[str]]:
    """Return the answer and the notes on the columns."""
    found = _verdicts(result)
    differ = any(point.result and iterations_vary(point.result.rows) for point in result.points)
    notes = [FOOTNOTE, *([RANGES] if _open(found) else []), *([MEANS] if differ else [])]
    if any(one.verdict.until_target for one in found if one):
        notes.append(TRAINED)
    drawn = [point for point in result.points if point.result and are_synthetic(point.result)]
    if drawn:
        which = "all points" if len(drawn) == len(result.points) else "some points"
        notes.append(f"Synthetic gradients at {which}: {SYNTHETIC_SWEEP}")
    unfit = [point for point in result.failed if point.unfit]
    alike: dict[str, list[str]] = {}
    for point in unfit:
        alike.setdefault(_problems(point), []).append(point.name)
    for text, (name, *more) in itertools.islice(alike.items(), _EXPLAINED):
        notes.append(f"{name}{f' and {len(more)} more' if more else ''}: {text}.")
    return _summary(found, failed=len(result.failed) - len(unfit), unfit=len(unfit)), notes


def html(result: SweepResult) -> str:
    """Return the same table and answer as HTML for a notebook."""
    headings, lines = table_of(result)
    folded = [heading.replace("\n", " ") for heading in headings]
    answer, _ = notes_on(result)
    return html_table(plural(len(result.points), "point"), folded, lines, [answer])


def _problems(point: SweepPoint) -> str:
    problems = point.failure.problems if point.failure else ()
    return "; ".join(text for one in problems for text in (one.message, one.hint) if text)


def _verdicts(result: SweepResult) -> list[Recommendation | None]:
    """Return recommendations by point, cached for the last sweep: each takes milliseconds."""
    if not _LAST or _LAST[0][0] is not result.points:
        found = [None if p.result is None else recommendation(p.result) for p in result.points]
        _LAST[:] = [(result.points, found)]
    return _LAST[0][1]


_LAST: list[tuple[tuple[SweepPoint, ...], list[Recommendation | None]]] = []


def recommendation(point: Result) -> Recommendation:
    """Return the advised methods of a point, with the evidence that a run would look up."""
    if point.advice is None and {"model", "compressors"} <= point.scenario.keys():
        named = json.dumps({**point.scenario, "cluster": None}, default=str)
        if named not in _KNOWN:
            with suppress(InputError):  # the scenario's own files may be gone
                scenario = scenario_from(point.scenario)
                labels = [one.label for one in scenario.compressors]
                known, missed = for_and_against(scenario, labels)
                _KNOWN[named] = Findings(known=known, missed=missed)
        point = replace(point, advice=_KNOWN.get(named, Findings()))
    return Recommendation(result=point, verdict=largest_verdict(point))


_KNOWN: dict[str, Findings] = {}
"""Evidence by scenario without its cluster, as many points of a sweep share it."""


def _lines(
    result: SweepResult, found: Sequence[Recommendation | None], *, ranges: bool
) -> tuple[list[str], list[list[str]]]:
    """Return the headings and one line per point, without keys that have a single value."""
    keys = [key for key, values in result.grid.items() if len(values) > 1] or list(result.grid)
    numbers = [one.heading for one in NUMBERS[: 1 + ranges]]
    headings = [*short_names(keys), "use", *numbers, "try", *numbers, "pays"]
    lines = [
        [
            *(written(point.values[key]) for key in keys),
            *_answer(verdict, ranges=ranges, lost=point.lost),
        ]
        for point, verdict in zip(result.points, found, strict=True)
    ]
    uses = [None if one is None else one.use for one in found]
    to_target = any(row and row.cost_to_target is not None for row in uses)
    costs = [_cost(row, to_target=to_target) for row in uses]
    if any(costs):
        headings.append(MONEY_TO_TARGET.heading if to_target else COST)
        lines = [[*line, cost] for line, cost in zip(lines, costs, strict=True)]
    return headings, lines


def _table(
    headings: Sequence[str], lines: Sequence[Sequence[str]], cells: int, *, fold: bool = False
) -> Table | None:
    """Return the table in `cells` cells; without `fold`, None if headings or numbers do not fit."""
    natural = [
        max(cell_len(line) for text in column for line in text.split("\n"))
        for column in zip(headings, *lines, strict=True)
    ]
    whole = (*(one.heading for one in NUMBERS), "pays", COST, MONEY_TO_TARGET.heading)
    kept = [heading in whole for heading in headings]
    narrowest = [
        size if keep else min(size, NARROWEST) for size, keep in zip(natural, kept, strict=True)
    ]
    readable = [
        max(size, 0 if keep else max(map(cell_len, _words(heading))))
        for size, heading, keep in zip(narrowest, headings, kept, strict=True)
    ]
    room = cells - GAP * (len(headings) - 1)
    if sum(readable) > room and not fold:
        return None
    widths = _shares(natural, (readable, narrowest), room)
    folded = [
        f">{heading}" if keep else "\n".join(_folded(heading, width))
        for heading, width, keep in zip(headings, widths, kept, strict=True)
    ]
    table = bare_table(folded, lines)
    for column, width in zip(table.columns, widths, strict=True):
        column.width = width
    return table


def _answer(found: Recommendation | None, *, ranges: bool, lost: str) -> list[str]:
    """Return the cells for method to use, method to try, speedups, ranges and whether it pays."""
    if found is None:
        return [lost, *[""] * (6 if ranges else 4)]
    chosen, best = found.use, found.verdict.to_try
    risky = chosen is not None and not is_safe(chosen)
    pays: str = found.verdict.pays or "-"
    if pays in ("likely", "not known"):
        pays = "-" if best is None else percent(found.verdict.probability or 0.0)
    return [
        *_method_cells(chosen, ranges=ranges, mark=" *" if risky else ""),
        *_method_cells(best, ranges=ranges),
        pays,
    ]


def _cost(row: Row | None, *, to_target: bool) -> str:
    if row is None:
        return ""
    cost = row.cost_to_target if to_target else row.cost_per_1000_iterations
    return "" if cost is None else significant(cost)


def _method_cells(row: Row | None, *, ranges: bool, mark: str = "") -> list[str]:
    if row is None:
        return ["-"] * (2 + ranges)
    known = row.speedup_to_target is not None
    numbers = ((TO_TARGET, TO_TARGET_RANGE) if known else NUMBERS)[: 1 + ranges]
    return [row.label + mark, *(one.cells([row])[0] for one in numbers)]


def _open(found: Sequence[Recommendation | None]) -> bool:
    return any(row.speedup_low is not None for one in found if one for row in one.verdict.rows)


def _shares(wanted: Sequence[int], floors: Sequence[Sequence[int]], room: int) -> list[int]:
    """Return column widths in `room` cells: the widest shrink to the first floor, then the next."""
    shares = list(wanted)
    for floor in floors:
        while sum(shares) > room and any(
            size > least for size, least in zip(shares, floor, strict=True)
        ):
            spare = (n for n, size in enumerate(shares) if size > floor[n])
            shares[max(spare, key=lambda n: shares[n])] -= 1
    return shares


def _words(heading: str) -> list[str]:
    """Split a heading where it may be broken."""
    return [word.strip() for word in re.split(r"(?<=[ ._])", heading) if word.strip()]


def _folded(heading: str, width: int) -> list[str]:
    """Return a heading in lines of whole words; a word that is too long is abbreviated."""
    lines = [""]
    for part in re.split(r"(?<=[ ._])", heading):
        word = part.strip()
        fits = part if cell_len(word) <= width else word[: width - 1] + "."
        if lines[-1] and cell_len(lines[-1] + fits.strip()) > width:
            lines.append("")
        lines[-1] += fits
    return [line.strip() for line in lines]


def short_names(keys: Sequence[str]) -> list[str]:
    """Return the shortest unique suffix of each dotted key: `nodes`, `compressors.1`."""

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


def _surely_used(found: Recommendation) -> bool:
    use, dense = found.use, found.verdict.dense
    return use is not None and dense is not None and surely_faster(use, [dense])


def _summary(found: Sequence[Recommendation | None], *, failed: int, unfit: int) -> str:
    done = [one for one in found if one is not None]
    lost = f" {plural(failed, 'point')} failed." if failed else ""
    lost += f" {plural(unfit, 'point')} cannot run: too little memory." if unfit else ""
    compared = [one for one in done if one.verdict.pays is not None]
    if not compared:
        return f"{plural(len(done), 'point')}; no row of kind `none` to compare with.{lost}"
    sure = [one for one in compared if one.verdict.pays == "yes"]
    known = sum(one.verdict.safe is not None or _surely_used(one) for one in sure)
    maybe = [one.verdict for one in compared if one.verdict.pays not in ("yes", "no")]
    open_ = sum(one.to_try is not None for one in maybe)
    untried = len(sure) - known
    kinds = {
        "with a method known to train": known,
        "with a method that you must train first": untried,
    }
    which = [f"{count} {kind}" for kind, count in kinds.items() if count]
    if len(which) == 1:
        which = [kind for kind, count in kinds.items() if count]
    points = f"{len(sure)} of {plural(len(compared), 'point')}"
    points += f" ({', '.join(which)})" if which else ""
    others = f" and may be at {plural(open_, 'other')}" if open_ else ""
    return f"Compression is faster than dense training at {points}{others}.{lost}"
