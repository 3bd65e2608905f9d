"""Parts of a page: sections with charts, tables that sort and filter, and facts with links.

The page is one file that needs no network: the libraries that draw and sort are in `vendor/`.
Without JavaScript, or in print, text and rows remain. All text from the result is escaped; chart
data are JSON in scripts that never run.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from itertools import zip_longest
from pathlib import Path
from typing import Any

from markupsafe import Markup

from gcsim.analysis.report.numbers import unbroken
from gcsim.analysis.report.sections import Line, Section, join_parts
from gcsim.analysis.report.table import Column
from gcsim.scenarios.result import Row

Html = Markup  # text that is already markup
Chart = dict[str, Any]  # data, layout and settings of a Plotly figure

_HERE = Path(__file__).parent
_SCRIPTS = ("vendor/plotly-basic.min.js", "vendor/dataTables.min.js", "report.js")
_CODE = re.compile("`([^`]+)`")
_LINK = re.compile(
    r"https?://[^\s<>\"]*[^\s<>\".,;:)]|arXiv[: ](\d{4}\.\d{4,5})|doi:(10\.[^\s,;)]*[^\s,;).])"
)
_NUMBER = re.compile(r"(\d+(?:\.\d+)?(?:e[-+]\d+)?)(?:[-/](?:[\d.]+|inf))?")
"""A number, optionally followed by the end of a range or a total."""


@dataclass(frozen=True, slots=True)
class Cell:
    """Text of a table cell, and its sort key."""

    shown: str
    number: float | None = None


def page(title: str, under: str, sections: Iterable[tuple[str, Html]]) -> str:
    """Return the whole file; `under` is the line below the title."""
    style = (_HERE / "report.css").read_text(encoding="utf-8")
    return str(_part("page", title, under, sections, style, _scripts(), _policy()))


def paragraphs(lines: Iterable[str], kind: str) -> Html:
    """Return one paragraph per sentence."""
    return _part("paragraphs", lines, kind)


def worded(sections: Iterable[Section]) -> Html:
    """Return sections as words with their parts; code goes below its word."""
    parted = []
    for word, parts in sections:
        code = [part for part in parts if isinstance(part, Line)]
        said = join_parts([part for part in parts if not isinstance(part, Line)])
        parted.append((word, said, code))
    return _part("worded", parted)


def table(
    headings: Sequence[str],
    rows: Iterable[Sequence[Cell]],
    *,
    marked: Sequence[bool] = (),
    first: Sequence[str] = (),
) -> Html:
    """Return a table that can be filtered and sorted by its headings; the first column has names.
    `marked` rows are highlighted. If `first` is given, only these columns are shown at first (the
    leftmost of equal names), the others on demand."""
    heads = [
        {"text": text, "extra": bool(first) and (text not in first or text in headings[:number])}
        for number, text in enumerate(headings)
    ]
    known = zip_longest([list(zip(row, heads, strict=True)) for row in rows], marked)
    return _part("table", heads, [(cells, bool(mark)) for cells, mark in known])


def cells_of(columns: Sequence[Column], rows: Sequence[Row]) -> list[list[Cell]]:
    """Return the cells of each row, which sort by exact values; unknown values come first."""
    found: list[list[Cell]] = [[] for _ in rows]
    for column in columns:
        for cells, text, row in zip(found, column.cells(rows), rows, strict=True):
            value = column.scaled(column.value(row))
            cells.append(Cell(text, -1.0 if value is None else float(value)))
    return found


def cells_of_texts(lines: Sequence[Sequence[str]]) -> list[list[Cell]]:
    """Return the cells of each line. A column that has a number sorts by numbers, a range by its
    lower end; cells without a number come first."""
    columns: list[list[Cell]] = []
    for column in zip(*lines, strict=True):
        found = [_NUMBER.fullmatch(text) for text in column]
        other = -1.0 if any(found) else None
        numbers = [float(one.group(1)) if one else other for one in found]
        columns.append([Cell(*each) for each in zip(column, numbers, strict=True)])
    return list(map(list, zip(*columns, strict=True)))


def chart(figure: Chart, height: int) -> Html:
    """Return a chart of `height` pixels."""
    data = json.dumps(figure, ensure_ascii=False, allow_nan=False).replace("<", "\\u003c")
    return _part("chart", height, data)


def plain(text: str) -> str:
    """Escape text for a chart, as Plotly interprets some tags."""
    return escape(text, quote=False)


def code(text: str) -> Html:
    """Return preformatted lines."""
    return _part("code", text)


_FILES = {
    "results.json": "all numbers",
    "training.json": "all numbers",
    "results.csv": "all rows",
    "training.csv": "all rows",
    "curves.csv": "a line for each run, step and metric",
    "timeline.json": "a sample iteration, for https://ui.perfetto.dev",
    "scenario.yaml": "the scenario with every default",
}
"""Descriptions of files in the report's folder; pictures need none."""


def files(names: Iterable[str]) -> Html:
    """Return links to files in the page's folder, with descriptions."""
    return _part("files", {name: _FILES.get(name, "") for name in names})


def notes(lines: Iterable[str]) -> Html:
    """Return small print."""
    return _part("notes", lines)


def folded(title: str, inner: Html) -> Html:
    """Return a section that opens on a click."""
    return _part("folded", title, inner)


def facts(value: Any) -> Html:
    """Return plain values as in `results.json`, with links to sources."""
    return _part("facts", value)


def _part(macro: str, *given: Any) -> Html:
    """Return the markup of a macro in `parts.html`."""
    return Html(getattr(_parts(), macro)(*given).strip())


@cache
def _parts() -> Any:
    """Return the macros of `parts.html`; imports jinja2 on first use."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    made = Environment(
        loader=FileSystemLoader(_HERE), autoescape=True, trim_blocks=True, undefined=StrictUndefined
    )
    made.filters |= {"linked": linked, "prose": _prose, "word": _word}
    return made.get_template("parts.html").module


def _word(value: Any) -> str:
    """Format a value, numbers with six digits; `results.json` has all digits."""
    if value is None:
        return "-"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _prose(text: str) -> Html:
    """Return text whose numbers stay with their units, and whose commands look like code."""
    return Html(_CODE.sub(r"<code>\1</code>", escape(unbroken(text))))


def linked(text: str) -> Html:
    """Return text in which addresses, arXiv numbers and DOIs are links."""
    parts, end = [], 0
    for found in _LINK.finditer(text):
        arxiv, doi = found.groups()
        address = found.group()
        if arxiv:
            address = f"https://arxiv.org/abs/{arxiv}"
        elif doi:
            address = f"https://doi.org/{doi}"
        parts += [
            escape(text[end : found.start()]),
            f'<a href="{escape(address)}">{escape(found.group())}</a>',
        ]
        end = found.end()
    return Html("".join([*parts, escape(text[end:])]))


@cache
def _scripts() -> tuple[str, ...]:
    return tuple((_HERE / name).read_text(encoding="utf-8") for name in _SCRIPTS)


@cache
def _policy() -> str:
    """Return a Content-Security-Policy: only these scripts run, nothing is fetched or sent."""
    digests = (hashlib.sha256(text.encode()).digest() for text in _scripts())
    scripts = " ".join(f"'sha256-{base64.b64encode(one).decode()}'" for one in digests)
    return f"default-src 'none'; script-src {scripts}; style-src 'unsafe-inline'; img-src data:"
