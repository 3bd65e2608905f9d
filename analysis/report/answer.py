"""The answer of a run: the table, the sections of advice, and notes.

A gradient error is a property of single updates, not of the trained model's accuracy; the notes
claim no more than what was measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from io import StringIO
from itertools import groupby
from typing import Any

from rich.console import Console, RenderableType
from rich.text import Text

from gcsim.analysis.report import intervals, sections
from gcsim.analysis.report.numbers import elapsed, percent, plural, printed, significant
from gcsim.analysis.report.selection import Verdict, largest_verdict, verdicts
from gcsim.analysis.report.sources import are_synthetic
from gcsim.analysis.report.table import answer_table, brief_table, title
from gcsim.analysis.report.training import training_notes
from gcsim.analysis.report.trust import NO_MEMORY, is_safe
from gcsim.analysis.report.wording import (
    advantage,
    input_named,
    listed,
    name_of,
    one_iteration,
    spread_note,
    to_narrow,
)
from gcsim.scenarios.result import Result, Row
from gcsim.scenarios.uncertainty.close_pairs import TIE
from gcsim.simulator.training import DENSE

NAMED = 4  # most rivals of the method to try that are listed by name
LARGE_ERROR = 0.5  # NMSE above which the note explains that a zero update has 1

NO_SPEEDUP = "The scenario has no row of kind `none`, so there is no speedup to state."
SYNTHETIC_ANSWER = (
    "The gradients are synthetic: bytes sent and gradient errors are those of distributions "
    "fitted to other recordings."
)


def answer(result: Result, *, full: bool = True) -> list[str]:
    """Return the answer in sentences; `full` adds gradient error, rivals and omitted methods."""
    found = sections.Recommendation(result=result, verdict=largest_verdict(result))
    worded = (
        f"{word}: {sections.join_parts(parts)}."
        for word, parts in sections.answer_sections(found)
        if not any(isinstance(part, sections.Line) for part in parts)
    )
    return [*worded, *notes(result, found.verdict, full=full)]


def notes(result: Result, found: Verdict, *, full: bool) -> list[str]:
    """Return the sentences that follow the sections of the answer."""
    rows = [row for row in (found.safe, found.to_try, found.dense) if row is not None]
    named = list({row.label: row for row in rows or found.rows[:1]}.values())
    few = one_iteration(result) or _too_few(result, found)
    details = (
        [
            *_cost(found),
            *_rivals(found),
            *few,
            *_left_out(found),
            *_width(result, found),
            *_ring_or_tree(named),
            *spread_note(result, named),
        ]
        if full
        else [*few, *_width(result, found)]
    )
    return [
        *_nothing_to_compare(found),
        *training_notes(result, found),
        *details,
        *_by_size(result),
        *_dense_at_first(result),
        *([SYNTHETIC_ANSWER] if are_synthetic(result) else []),
    ]


def _nothing_to_compare(found: Verdict) -> list[str]:
    if len(found.rows) == 1:
        return ["There is only one method, so there is nothing to compare."]
    return [] if found.dense is not None else [NO_SPEEDUP]


def _speedup(row: Row) -> str:
    """ "fp16, 1.88x (1.80-1.95)"; the iteration's time if there is no dense row."""
    if row.speedup_vs_dense is None:
        known = intervals.in_brackets(intervals.iteration_known(row))
        return f"{row.label}, {elapsed(row.iteration_s)}{known}"
    return f"{row.label}, {advantage(row)}"


def _cost(found: Verdict) -> list[str]:
    """Return a sentence on the gradient error of the method to try."""
    row = found.to_try
    if row is None or is_safe(row):
        return []
    drift = "" if row.memory == NO_MEMORY else " from an empty residual; later steps differ"
    over = f"over {plural(row.steps_run, 'step')}{drift}"
    cosine = f"cosine similarity to the dense update {row.cosine_similarity:.3f} ({over})"
    if row.nmse is None:
        return [f"Gradient error of {row.label}: {cosine}; its scale is the learning rate's."]
    scale = " (a zero update has 1)" if row.nmse > LARGE_ERROR else ""
    return [f"Gradient error of {row.label}: NMSE {significant(row.nmse)}{scale}, {cosine}."]


def _rivals(found: Verdict) -> list[str]:
    """Return a sentence on methods that may be faster than the method to try."""
    rivals = [row for row in found.foremost if row.compressor != DENSE and row is not found.to_try]
    if not rivals:
        return []
    shown = [_speedup(row) for row in rivals[:NAMED]]
    left = len(rivals) - len(shown)
    others = [plural(left, "other")] if left else []
    return [f"Not clearly slower: {'; '.join([*shown, *others])}."]


def _too_few(result: Result, found: Verdict) -> list[str]:
    if found.pays == "no" or not found.by_luck:
        return []
    return [
        f"{intervals.number(result).capitalize()} cannot separate some of these methods: raise "
        "training.iterations."
    ]


def _left_out(found: Verdict) -> list[str]:
    """Return sentences on methods that would be faster but are unfit for training."""
    limit = None if found.to_try is None else found.to_try.iteration_s
    return [
        f"Not counted: {_speedup(row)}: {why}."
        for row, why in found.left_out
        if limit is None or row.iteration_s < limit
    ]


def _width(result: Result, found: Verdict) -> list[str]:
    """Return a sentence on the inputs that cause most of the widest range."""
    rows = [row for row in (found.safe, found.best) if row is not None and _interval(row)]
    if not rows or found.pays == "no":
        return []
    row = max(rows, key=_relative_width)
    sources = intervals.main_sources(result, row, found.dense)
    if not sources:
        return []
    measures = dict.fromkeys(to_narrow(one.input.measure) for one in sources)
    of = [" of the variance", *("" for _ in sources[1:])]
    names = [
        f"{input_named(one.input.name)} ({percent(one.share)}{words})"
        for one, words in zip(sources, of, strict=True)
    ]
    many = len(sources) > 1
    largest, pronoun = ("uncertainties", "them") if many else ("uncertainty", "it")
    return [
        f"The largest {largest} for {row.label} {'are' if many else 'is'} {listed(names)}. "
        f"To reduce {pronoun}, {listed([*measures])}."
    ]


def _ring_or_tree(rows: Sequence[Row]) -> list[str]:
    """Return the times with ring and tree, if NCCL's tuner may take either and they differ."""
    both = [
        f"{name_of(row)} {elapsed(row.iteration_ring_s)} or {elapsed(row.iteration_tree_s)}"
        for row in rows
        if row.iteration_ring_s is not None
        and row.iteration_tree_s is not None
        and abs(row.iteration_ring_s - row.iteration_tree_s) > TIE * row.iteration_s
    ]
    return [f"NCCL may use a ring or a tree here: {', '.join(both)}."] if both else []


def _interval(row: Row) -> str:
    return (
        intervals.iteration_known(row)
        if row.speedup_vs_dense is None
        else intervals.speedup_known(row)
    )


def _relative_width(row: Row) -> float:
    if row.speedup_low and row.speedup_high:
        return row.speedup_high / row.speedup_low
    return (row.iteration_high_s or 1.0) / (row.iteration_low_s or 1.0)


def _by_size(result: Result) -> list[str]:
    found = [one for one in verdicts(result) if any(row.fits != "no" for row in one.rows)]
    if len(found) <= 1:
        return []
    runs = [list(group) for _, group in groupby(found, key=_winner)]
    if len(runs) == 1 and not _likely(found):
        return [f"The same holds at every size, from {plural(found[0].rows[0].nodes, 'node')} on."]
    parts = []
    for place, group in enumerate(runs):
        span = _span(group, last=place == len(runs) - 1)
        parts.append(f"{_winner(group[0])[0]} {span}{_likely(group)}")
    return ["Best method by cluster size: " + ", ".join(parts) + "."]


def _span(group: Sequence[Verdict], *, last: bool) -> str:
    """ "on 1 node", "on 2 to 8 nodes", "from 16 nodes on"."""
    first, end = group[0].rows[0].nodes, group[-1].rows[0].nodes
    if last and first != end:
        return f"from {plural(first, 'node')} on"
    return f"on {plural(end, 'node')}" if first == end else f"on {first} to {end} nodes"


def _winner(found: Verdict) -> tuple[str, bool]:
    """Return the name of the method to try, and whether it surely pays."""
    if found.to_try is None:
        return "nothing" if found.dense is None else name_of(found.dense), True
    return found.to_try.label, found.pays in (None, "yes")


def _likely(group: Sequence[Verdict]) -> str:
    """ " (faster than dense in 59 to 61 % of draws)"; empty if the winner surely pays."""
    if _winner(group[0])[1]:
        return ""
    chances = sorted(found.probability or 0.0 for found in group)
    low, high = percent(chances[0]), percent(chances[-1])
    share = high if low == high else f"{low[:-2]} to {high}"
    return f" (faster than dense in {share} of draws)"


def _dense_at_first(result: Result) -> list[str]:
    """Return a sentence on methods with `dense_steps`, if there are any."""
    entries: Any = result.scenario.get("compressors", ())
    by_label = [
        f"{entry['label']} ({_share(entry['dense_steps'])})"
        for entry in entries
        if "dense_steps" in entry
    ]
    if not by_label:
        return []
    return [f"Predicted for the steps after the dense ones: {listed(by_label)}."]


def _share(steps: float) -> str:
    return f"{steps:.4g} of all steps" if steps < 1 else plural(int(steps), "step")


def parts(result: Result, width: int, *, full: bool = False) -> tuple[RenderableType, ...]:
    """Return the text of `gcsim run` on `width` terminal cells; `full` is `-v`."""
    found = sections.Recommendation(result=result, verdict=largest_verdict(result))
    lines = [
        Text(line, no_wrap=True, overflow="ignore")  # code must stay copyable
        for word, said in sections.answer_sections(found)
        for line in sections.section_lines(word, said, min(width, sections.WIDEST))
    ]
    below = [Text(line) for line in notes(result, found.verdict, full=full)]
    return answer_table(result, width, full=full), "", *lines, *([""] if below else []), *below


def plain(shown: Sequence[RenderableType], width: int) -> str:
    """Render as plain text, without styles or trailing spaces."""
    console = Console(
        file=StringIO(), width=width, color_system=None, highlight=False, markup=False, emoji=False
    )
    return printed(shown, console)


def html(result: Result) -> str:
    """Return the rows of the largest size and the answer as HTML for a notebook."""
    headings, rows = brief_table(result)
    lines = [cells for _, cells in rows]
    return html_table(title(result), headings, lines, answer(result, full=False))


def html_table(
    caption: str, headings: Sequence[str], lines: Sequence[Sequence[str]], below: Sequence[str]
) -> str:
    """Return a table whose first column holds names, and paragraphs below it; all text escaped."""

    def made() -> Iterator[str]:
        yield f"<table><caption>{escape(caption)}</caption><thead><tr>"
        yield from (f"<th>{escape(heading)}</th>" for heading in headings)
        yield "</tr></thead><tbody>"
        for name, *values in lines:
            yield f"<tr><th>{escape(name)}</th>"
            yield from (f"<td>{escape(value)}</td>" for value in values)
            yield "</tr>"
        yield "</tbody></table>"
        yield from (f"<p>{escape(sentence)}</p>" for sentence in below)

    return "".join(made())
