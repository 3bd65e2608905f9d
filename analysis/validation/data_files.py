"""What do the data files of the suites hold? Rows, without the comment that says where from."""

from __future__ import annotations

import csv
from collections.abc import Callable
from importlib.resources import files
from types import NoneType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from gcsim.errors import InternalError

T = TypeVar("T")
Row = dict[str, str]


def data_rows(name: str) -> list[Row]:
    """The rows of `data/NAME.csv`, in order, by the names of its columns; lines that begin with
    `#` are comments. Nothing is kept: a caller that reads often remembers what it has made."""
    text = (files(__package__) / "data" / f"{name}.csv").read_text(encoding="utf-8")
    return list(csv.DictReader(line for line in text.splitlines() if not line.startswith("#")))


def data_values(name: str, kind: type[T], /, **other: str | Callable[[Row], Any]) -> list[T]:
    """The rows as values of a dataclass: each field from the column of its name, by its type.

    `other` names another column for a field, or a function that makes it from the row. An empty
    cell is None where the type has it, else 0. Raises `InternalError` for a word that the field's
    type does not know.
    """
    hints = get_type_hints(kind)
    columns = {field: other.get(field, field) for field in hints}
    return [
        kind(
            **{
                field: _value(name, row[column], hints[field])
                if isinstance(column, str)
                else column(row)
                for field, column in columns.items()
            }
        )
        for row in data_rows(name)
    ]


def _value(file: str, cell: str, hint: Any) -> Any:
    if get_origin(hint) is Literal:
        if cell not in get_args(hint):
            raise InternalError(f"{file}.csv: {cell!r} is none of {', '.join(get_args(hint))}")
        return cell
    kinds = get_args(hint) or (hint,)
    if not cell and NoneType in kinds:
        return None
    return kinds[0](cell or 0) if kinds[0] is not str else cell


def sources(name: str) -> Callable[[Row], str]:
    """What cites a row of a file of measurements: the line of `data/NAME.csv` that its `source`
    names, and where in it."""
    cited = {row["key"]: row for row in data_rows(name)}

    def citation(row: Row) -> str:
        found = cited[row["source"]]
        parts = (found["citation"], row["where"], found["url"], found["date"], found["confidence"])
        return ", ".join(part for part in parts if part)

    return citation
