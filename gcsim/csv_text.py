"""CSV text that a spreadsheet reads as it is meant: no cell is a formula."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""First characters from which a spreadsheet calculates or runs a cell (OWASP, "CSV injection")."""


def csv_text(columns: Sequence[str], records: Iterable[Mapping[str, Any]]) -> str:
    """Records under their headings, one line each; keys that are no column are left out.

    Numbers have full precision. A text that a spreadsheet would run has an apostrophe in front.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(map(_cell, columns))
    writer.writerows([_cell(record.get(name)) for name in columns] for record in records)
    return text.getvalue()


def _cell(value: Any) -> Any:
    if not isinstance(value, str) or not value.startswith(_FORMULA):
        return value
    try:
        float(value)
    except ValueError:
        return f"'{value}"
    return value
