"""Files of a suite in a folder: defaults in YAML, a CSV with a row per measurement, a page.

`suite.yaml`:

    title: ...
    scenario: {...}          # defaults of every row, as `gcsim.scenarios.stated` reads them
    beside: FOLDER           # another suite, whose fitted values also apply here
    layers: [FILE]           # tables of layers, searched in turn for models
    groups: {NAME: {...}}    # changes for the rows of a group (column `group`, else the series;
                             # several as "one + other"); `longest: [{}, {...}]` changes them for
                             # several predictions of which the longest counts; `unknown: true`
                             # if the catalogue alone does not know the group
    fitted: {...}            # changes for the prediction with fitted values; also in a group
    catalogue: {...}         # changes for the prediction by the catalogue alone; also in a group
    fit: {NAME: {title: ..., low: 0.1, high: 1, unit: GB/s}}    # in turn; of the same rows together
    left_out: {KEY: {what: ..., rule: ..., count: 3}}    # rows with KEY in column `left_out`, and
                                                         # the number of others, not in the file
    in_ranges: false         # its steps do not widen factors on whole steps (`leaving_out.py`)
    bounds: [{name: ..., series: [...], limit: 0.1}]

In `rows.csv` a column that is not in `COLUMNS` changes the key of its name as `--set` does; columns
that begin with `_` are comments. A value may also be `@ROW` (the measured seconds of the row with
this name or id; the median of several, "@ROW @OTHER"), `?NAME` (a fitted value, or a product
`?NAME*OTHER*161`) or, in the YAML, `$COLUMN` (the row's own cell). The prediction with the
catalogue alone omits @ and ?.

`page.md` has paragraphs on the measurements (`## Measured`), the points of the fits (`## Fitted`)
and the causes of remaining errors (`## Missing`). `sources.csv` cites the values of `source`.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from gcsim.analysis.validation.suite import Bound, Unit
from gcsim.errors import InputError
from gcsim.scenarios.reading.checking import Section, checked
from gcsim.scenarios.reading.document import Document, read_file, read_text
from gcsim.scenarios.reading.values import As, Spelled
from gcsim.scenarios.stated import StatedFile

COLUMNS = frozenset({
    "id", "name", "group", "series", "measured", "unit", "samples", "iterations", "workers",
    "source", "where", "setting", "method", "panel", "curve", "x", "fits", "left_out",
})  # fmt: skip
"""samples: per iteration, else of all workers (of bytes: share that counts, else all); iterations:
in the measured seconds, else one; workers: if others are simulated; fits: names in `fit` that use
the row, or another word if a table of layers is based on it."""
_NEEDED = ("name", "measured")
_UNITS: tuple[Unit, ...] = ("s", "samples/s", "bytes")
"""Units of measurements; bytes are per worker and iteration."""
_HEADING = re.compile(r"^## (\w+)\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)

Changes = dict[str, Any]  # keys of a scenario, possibly dotted, and values


class FitSection(Section):
    """A value to be fitted."""

    title: str
    low: float
    high: float
    unit: str = ""
    series: str = "all"
    given: bool = False  # stated by a user for the own machine: shown, but no fit
    catalogue: float | None = None
    """Value without a fit, if the key is not a figure of the cluster or the training."""


class LeftOutSection(Section):
    """Rows that are not compared, and the reason."""

    what: str
    rule: str
    count: int = 0


class SuiteFile(Section):
    """Content of `suite.yaml`."""

    title: str
    figure_x: str = ""
    source: str = ""
    beside: str = ""
    layers: list[str] = []  # noqa: RUF012
    scenario: Changes = {}  # noqa: RUF012
    fitted: Changes = {}  # noqa: RUF012
    catalogue: Changes = {}  # noqa: RUF012
    groups: dict[str, Changes] = {}  # noqa: RUF012
    fit: dict[str, FitSection] = {}  # noqa: RUF012
    left_out: dict[str, LeftOutSection] = {}  # noqa: RUF012
    in_ranges: bool = True
    bounds: Annotated[list[Annotated[Spelled, As(Bound)]], Field(min_length=1)]


def schema_json() -> dict[str, Any]:
    """Return the JSON schema of `suite.yaml` for editors; it requires no scenario key."""
    dialect = "https://json-schema.org/draft/2020-12/schema"
    suite, run = SuiteFile.model_json_schema(), StatedFile.model_json_schema()
    run.pop("required")
    definitions = suite["$defs"] | run.pop("$defs")
    properties = suite["properties"] | {"scenario": run}
    return {"$schema": dialect, **suite, "properties": properties, "$defs": definitions}


@dataclass(frozen=True, eq=False)
class Row:
    """A row of the CSV: a measurement."""

    cells: Mapping[str, str]
    file: Path
    line: int

    def __getitem__(self, column: str) -> str:
        return self.cells.get(column) or ""

    def place(self, column: str = "") -> str:
        """Return `file:line`, with the column's number if the row has it."""
        own = f":{list(self.cells).index(column) + 1}" if column in self.cells else ""
        return f"{self.file}:{self.line}{own}"

    def number(self, column: str, default: float | None = None) -> float:
        """Return a cell as a number; raises `InputError` if it is not one."""
        text = self[column]
        if not text and default is not None:
            return default
        try:
            return float(text)
        except ValueError as error:
            message = f"{column}: {text!r} is not a number"
            raise InputError(message, place=self.place(column)) from error

    @property
    def changes(self) -> dict[str, str]:
        """Keys of the scenario that the row sets, with their values."""
        own = {key: text for key, text in self.cells.items() if key not in COLUMNS and text}
        return {key: text for key, text in own.items() if key[0] != "_"}

    @property
    def fits(self) -> list[str]:
        """Names of the fitted values that use this row."""
        return self["fits"].split()

    @property
    def unit(self) -> Unit:
        """Unit of the measurement; raises `InputError` for any other than those of `Unit`."""
        for one in _UNITS:
            if one == (self["unit"] or "s"):
                return one
        message = f"unit: {self['unit']!r} is not one of {', '.join(_UNITS)}"
        raise InputError(message, place=self.place("unit"))


def read_rows(file: Path) -> list[Row]:
    """Read the rows of a CSV without comments; raises `InputError` if it lacks a needed column."""
    lines = [
        (number, line)
        for number, line in enumerate(read_text(file, str(file)).splitlines(), 1)
        if line.strip() and not line.startswith("#")
    ]
    read = csv.DictReader(line for _, line in lines)
    for column in _NEEDED:
        if column not in (read.fieldnames or ()):
            raise InputError(f"there is no column {column!r}", place=f"{file}:{lines[0][0]}")
    return [Row(cells, file, number) for cells, (number, _) in zip(read, lines[1:], strict=True)]


def read_suite(folder: Path) -> tuple[Document, SuiteFile]:
    """Read a folder's YAML; raises `InputError` with every mistake and its place."""
    document = read_file(folder / "suite.yaml")
    return document, checked(SuiteFile, document)


def read_page(folder: Path) -> dict[str, str]:
    """Return the paragraphs of a folder's page, by heading."""
    path = folder / "page.md"
    found = dict(_HEADING.findall(read_text(path, str(path)) if path.exists() else ""))
    return {heading: " ".join(text.split()) for heading, text in found.items()}
