"""What do the data files of the suites hold? Rows, without the comment that says where from."""

from __future__ import annotations

import csv
from importlib.resources import files


def data_rows(name: str) -> list[dict[str, str]]:
    """The rows of `data/NAME.csv`, in order, by the names of its columns; lines that begin with
    `#` are comments. Nothing is kept: a caller that reads often remembers what it has made."""
    text = (files(__package__) / "data" / f"{name}.csv").read_text(encoding="utf-8")
    return list(csv.DictReader(line for line in text.splitlines() if not line.startswith("#")))
