"""Parts of a page: sections with tables that sort and filter, charts, facts with links.

One file, without anything from the network: `vendor/` has the libraries that draw and sort. A page
without JavaScript, or printed, still has its text and all rows. Every text of the result is
escaped; charts are data, in scripts that are not run.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from pathlib import Path
from typing import Any

from gcsim.analysis.report.sections import Line, Section

Html = str
"""Text that is markup already."""
Chart = dict[str, Any]
"""Data, layout and settings of one Plotly figure."""

_VENDOR = Path(__file__).parent / "vendor"
_LIBRARIES = ("plotly-basic.min.js", "dataTables.min.js")
_START = """
const dark = matchMedia("(prefers-color-scheme: dark)");
function look(layout) {
  const ink = dark.matches ? "#e6e6e6" : "#1b1b1b", line = dark.matches ? "#444" : "#e4e4e4";
  const axis = (one) => ({...one, gridcolor: line, zerolinecolor: line});
  return {...layout, font: {...layout.font, color: ink}, paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)", xaxis: axis(layout.xaxis), yaxis: axis(layout.yaxis)};
}
for (const data of document.querySelectorAll("script.chart")) {
  const place = data.previousElementSibling, figure = JSON.parse(data.textContent);
  const plain = JSON.stringify(figure.data);
  const ink = () => JSON.parse(dark.matches ? plain.replaceAll("#000000", "#ffffff") : plain);
  const draw = () => Plotly.react(place, ink(), look(figure.layout), figure.config);
  draw();
  dark.addEventListener("change", draw);
  new ResizeObserver(() => Plotly.Plots.resize(place)).observe(place);
  const save = document.createElement("button");
  save.className = "save";
  save.textContent = "download this picture";
  save.addEventListener("click", () => Plotly.downloadImage(place, {format: "svg",
    filename: place.closest("section").querySelector("h2").textContent.replaceAll(" ", "_")}));
  data.after(save);
}
for (const box of document.querySelectorAll("input.more")) {
  box.addEventListener("change", () =>
    box.closest("section").querySelector("table.rows").classList.toggle("all", box.checked));
}
for (const table of document.querySelectorAll("table.rows")) {
  new DataTable(table, {paging: false, info: false, order: [], autoWidth: false,
    layout: {topStart: table.rows.length > 6 ? "search" : null, topEnd: null, bottomStart: null,
      bottomEnd: null},
    language: {search: "", searchPlaceholder: "filter"}});
}
"""
_STYLE = """
:root { color-scheme: light dark; --ink: #1b1b1b; --paper: #fff; --soft: #555; --line: #ddd;
  --code: #f5f5f5; --link: #0b57a4; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e6e6; --paper: #161616; --soft: #aaa;
  --line: #3a3a3a; --code: #242424; --link: #8ab8f0; } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  margin: 0 auto; padding: 1rem; max-width: 72rem; } a { color: var(--link); }
h1 { font-size: 1.6rem; margin: 0; } h2 { font-size: 1.2rem; margin: 2rem 0 .5rem; }
.under { color: var(--soft); margin: 0 0 1rem; } .verdict p { margin: .3rem 0; }
dl.answer { font-size: 1rem; gap: .3rem 1rem; } dl.answer dt { font-weight: 600; color: inherit; }
dl.answer dd:first-of-type { font-weight: 600; } dl.answer pre { margin: 0;
  white-space: pre-wrap; overflow-wrap: anywhere; }
.wide { overflow-x: auto; max-width: 100%; } .chart { width: 100%; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .5rem; text-align: right; border-bottom: 1px solid var(--line); }
td { white-space: nowrap; }
th:first-child, td:first-child { text-align: left; position: sticky; left: 0;
  background: var(--paper); }
td.text, th.text { text-align: left; white-space: normal; }
thead th { border-bottom: 2px solid #888; vertical-align: bottom; }
thead th.dt-orderable-asc { cursor: pointer; }
th.dt-ordering-asc .dt-column-order::after { content: " \\25B2"; }
th.dt-ordering-desc .dt-column-order::after { content: " \\25BC"; }
tr.marked td { font-weight: 600; }
table.rows:not(.all) .extra { display: none; } label.more { font-size: .85rem; }
.dt-search input { font: inherit; padding: .25rem .5rem; margin: .25rem 0; max-width: 100%; }
.note { color: var(--soft); font-size: .85rem; margin: .3rem 0; }
pre { background: var(--code); padding: .6rem; overflow-x: auto; font-size: .85rem; }
dl { display: grid; grid-template-columns: minmax(6rem, max-content) minmax(0, 1fr);
  gap: .1rem .8rem;
  margin: .2rem 0; font-size: .9rem; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
button.save { font: inherit; font-size: .8rem; color: var(--soft); background: none;
  border: 1px solid var(--line); border-radius: .3rem; }
@media (max-width: 40rem) { table.rows { font-size: .64rem; }
  table.rows th, table.rows td { padding: .2rem .15rem; }
  body { padding: .6rem; } dl { grid-template-columns: minmax(0, 1fr); }
  dd { padding-left: .8rem; } td:first-child { white-space: normal; min-width: 3.4rem; }
  td.words { white-space: normal; overflow-wrap: anywhere; } }
@media print { .dt-search, label.more, button.save { display: none; }
  table.rows:not(.all) .extra { display: table-cell; } section { break-inside: avoid-page; }
  html { font-size: 10px; } body { max-width: none; font-size: 1rem; } .wide { overflow: visible; }
  table { font-size: .75rem; } th, td { padding: .1rem .2rem; } }
"""
_LINK = re.compile(
    r"https?://[^\s<>\"]*[^\s<>\".,;:)]|arXiv[: ](\d{4}\.\d{4,5})|doi:(10\.[^\s,;)]*[^\s,;).])"
)


@dataclass(frozen=True, slots=True)
class Cell:
    """Text of a table's cell, and the number that it is sorted by."""

    shown: str
    number: float | None = None


def page(title: str, under: str, sections: Iterable[tuple[str, Html]]) -> Html:
    """The whole file; `under` is a line below the title, sections have headings."""
    body = "".join(
        f"<section><h2>{escape(heading)}</h2>{inner}</section>\n" for heading, inner in sections
    )
    scripts = "\n".join(f"<script>{text}</script>" for text in _scripts())
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_policy()}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<link rel="icon" href="data:,">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        f'<h1>{escape(title)}</h1>\n<p class="under">{escape(under)}</p>\n{body}'
        f"{scripts}\n</body>\n</html>\n"
    )


def paragraphs(lines: Iterable[str], kind: str) -> Html:
    """Sentences, one below the other."""
    inner = "".join(f"<p>{escape(line)}</p>" for line in lines)
    return f'<div class="{kind}">{inner}</div>'


def worded(sections: Iterable[Section]) -> Html:
    """Words, and what is said after each; code below its word."""

    def said(parts: Sequence[str]) -> Html:
        code = [part for part in parts if isinstance(part, Line)]
        words = "; ".join(part for part in parts if not isinstance(part, Line))
        return escape(words) + (f"<pre>{escape(chr(10).join(code))}</pre>" if code else "")

    inner = "".join(f"<dt>{escape(word)}</dt><dd>{said(parts)}</dd>" for word, parts in sections)
    return f'<dl class="answer">{inner}</dl>'


def table(
    headings: Sequence[str],
    rows: Iterable[Sequence[Cell]],
    *,
    marked: Sequence[bool] = (),
    first: Sequence[str] = (),
) -> Html:
    """A table that is sorted by a click on a heading, and filtered; names come first. Rows that
    are `marked` stand out. Only the columns of the headings in `first` are shown, where there are
    any, and the others on demand."""
    extra = [bool(first) and heading not in first for heading in headings]

    def made() -> Iterator[str]:
        if any(extra):
            box = f'<input type="checkbox" class="more"> all {len(headings)} columns'
            yield f'<label class="more">{box}</label>'
        yield '<div class="wide"><table class="rows"><thead><tr>'
        for heading, more in zip(headings, extra, strict=True):
            yield f"<th{_EXTRA if more else ''}>{escape(heading)}</th>"
        yield "</tr></thead><tbody>"
        for number, row in enumerate(rows):
            yield '<tr class="marked">' if number < len(marked) and marked[number] else "<tr>"
            yield from map(_cell, row, extra)
            yield "</tr>\n"
        yield "</tbody></table></div>"

    return "".join(made())


_EXTRA = ' class="extra"'


def _cell(cell: Cell, extra: bool) -> Html:
    kinds = [*(["extra"] if extra else []), *(["words"] if cell.number is None else [])]
    of = f' class="{" ".join(kinds)}"' if kinds else ""
    by = "" if cell.number is None else f' data-order="{cell.number!r}"'
    return f"<td{of}{by}>{escape(cell.shown)}</td>"


def chart(figure: Chart, height: int) -> Html:
    """A chart of so many pixels."""
    data = json.dumps(figure, ensure_ascii=False, allow_nan=False).replace("<", "\\u003c")
    return (
        f'<div class="chart" style="height: {height}px"></div>'
        f'<script type="application/json" class="chart">{data}</script>'
    )


def plain(text: str) -> str:
    """A text in a chart: Plotly reads some tags in its texts."""
    return escape(text, quote=False)


def code(text: str) -> Html:
    """Lines as they are."""
    return f"<pre>{escape(text)}</pre>"


def files(described: Mapping[str, str]) -> Html:
    """Links to files beside the page."""
    said = (
        f'<a href="{escape(name)}">{escape(name)}</a>{f": {linked(text)}" if text else ""}'
        for name, text in described.items()
    )
    return f'<p class="note">{"; ".join(said)}</p>'


def notes(lines: Iterable[str]) -> Html:
    """Small print."""
    return "".join(f'<p class="note">{escape(line)}</p>' for line in lines)


def folded(title: str, inner: Html) -> Html:
    """Section that opens with a click."""
    return f"<details><summary>{escape(title)}</summary>{inner}</details>"


def facts(value: Any) -> Html:
    """Plain values as they stand in `results.json`, with links where sources have them."""
    if isinstance(value, Mapping):
        inner = "".join(
            f"<dt>{escape(str(key).replace('_', ' '))}</dt><dd>{facts(entry)}</dd>"
            for key, entry in value.items()
        )
        return f"<dl>{inner}</dl>"
    if isinstance(value, list | tuple):
        if value and all(isinstance(entry, Mapping) for entry in value):
            return _records(value)
        return linked(", ".join(map(_word, value)))
    return linked(_word(value))


def _records(entries: Sequence[Mapping[str, Any]]) -> Html:
    """Mappings with much the same keys: a row each."""
    keys = list(dict.fromkeys(key for entry in entries for key in entry))
    head = "".join(f'<th class="text">{escape(key.replace("_", " "))}</th>' for key in keys)
    rows = (
        "".join(f'<td class="text">{facts(entry.get(key, ""))}</td>' for key in keys)
        for entry in entries
    )
    body = "".join(f"<tr>{row}</tr>\n" for row in rows)
    whole = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="wide">{whole}</div>'


def _word(value: Any) -> str:
    """Numbers that were measured to six digits: `results.json` has all."""
    if value is None:
        return "-"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def linked(text: str) -> Html:
    """A text whose addresses, arXiv numbers and DOIs can be followed."""
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
    return "".join([*parts, escape(text[end:])])


@cache
def _scripts() -> tuple[str, ...]:
    return (*((_VENDOR / name).read_text(encoding="utf-8") for name in _LIBRARIES), _START)


@cache
def _policy() -> str:
    """The Content-Security-Policy: these scripts alone run, and nothing is fetched or sent."""
    digests = (hashlib.sha256(text.encode()).digest() for text in _scripts())
    scripts = " ".join(f"'sha256-{base64.b64encode(one).decode()}'" for one in digests)
    return f"default-src 'none'; script-src {scripts}; style-src 'unsafe-inline'; img-src data:"
