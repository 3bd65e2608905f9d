"""What does a person read of a result? The table, then the answer, as text or for a notebook."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from io import StringIO

from rich.console import Console, RenderableType
from rich.text import Text

from gcsim.analysis.report.answer import answer, brief_answer
from gcsim.analysis.report.selection import largest_verdict
from gcsim.analysis.report.table import HEADING, answer_table, brief_columns, title
from gcsim.scenarios.result import Result


def parts(result: Result, width: int, *, full: bool = False) -> tuple[RenderableType, ...]:
    """What `gcsim run` shows on `width` terminal cells; in full, with `-v`."""
    said = answer(result) if full else brief_answer(result)
    return answer_table(result, width, full=full), "", Text("\n".join(said))


def plain(shown: Sequence[RenderableType], width: int) -> str:
    """As text, without typeface or spaces at the ends of lines."""
    console = Console(
        file=StringIO(), width=width, color_system=None, highlight=False, markup=False, emoji=False
    )
    with console.capture() as capture:
        for part in shown:
            console.print(part)
    return "\n".join(line.rstrip(" ") for line in capture.get().split("\n"))


def html(result: Result) -> str:
    """The rows of the largest size and the answer, for a notebook."""
    rows = largest_verdict(result).rows
    columns = brief_columns(rows)
    headings = [HEADING, *(column.heading.replace("\n", " ") for column in columns)]
    cells = zip(*(column.cells(rows) for column in columns), strict=True)
    lines = [(row.label, *numbers) for row, numbers in zip(rows, cells, strict=True)]
    return html_table(title(result), headings, lines, brief_answer(result))


def html_table(
    caption: str, headings: Sequence[str], lines: Sequence[Sequence[str]], below: Sequence[str]
) -> str:
    """A table whose first column are names, and paragraphs; everything escaped."""

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
