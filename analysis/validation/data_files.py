"""Data files of the suites: rows, without the comment that states their source."""

from __future__ import annotations

import csv
from collections.abc import Callable
from functools import cache
from importlib.resources import files
from math import prod
from pathlib import Path
from types import NoneType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from gcsim.errors import InputError, InternalError, did_you_mean
from gcsim.traces.profile import Layer, ModelFacts

T = TypeVar("T")
Row = dict[str, str]


def data_rows(name: str) -> list[Row]:
    """The rows of `data/NAME.csv`, in order, by the names of its columns; lines that begin with
    `#` are comments. Nothing is kept: a caller that reads often remembers what it has made."""
    return _read(Path(str(files(__package__))) / "data" / f"{name}.csv")


def _read(path: Path) -> list[Row]:
    lines = path.read_text(encoding="utf-8").splitlines()
    return list(csv.DictReader(line for line in lines if not line.startswith("#")))


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


@cache
def cited(folder: Path) -> dict[str, Row]:
    """The lines of a folder's `sources.csv`, by key."""
    return {row["key"]: row for row in _read(folder / "sources.csv")}


def citation(folder: Path, key: str, where: str) -> str:
    """Citation of a row: the line of `sources.csv` that it names, and the place in it."""
    found = cited(folder)[key]
    parts = (found["citation"], where, found["url"], found["date"], found["confidence"])
    return ", ".join(part for part in parts if part)


@cache
def layer_table(
    files: tuple[Path, ...], model: str, batch: int, tokens: int
) -> tuple[ModelFacts, list[tuple[int, ...]]]:
    """Facts of a model, and shapes of its tensors in forward order (elements, or rows and columns:
    "3x96"), by the first of the files that has its layers. Raises `InputError` where none has."""
    layers: list[Layer] = []
    shapes: dict[int, tuple[int, ...]] = {}
    for row in _layers(files).get(model, ()):
        own = [
            tuple(map(int, shape.split("x"))) for shape in row["elements"].replace("+", " ").split()
        ]
        numbers = tuple(map(int, row.get("parameters", "").split()))
        numbers = numbers or tuple(range(len(shapes), len(shapes) + len(own)))
        shapes.update(zip(numbers, own, strict=True))
        layers.append(
            Layer(
                name=row.get("layer") or str(len(layers)),
                parameters=numbers,
                forward_flops=int(row["forward_flops"]),
                kind=row.get("kind", ""),
                outputs=int(row.get("outputs") or 0),
            )
        )
    if not layers:
        hint = did_you_mean(model, _layers(files))
        raise InputError(f"no table has the layers of {model!r}", place="model", hint=hint)
    found = [shapes[number] for number in sorted(shapes)]
    facts = ModelFacts(
        name=model, parameters=sum(map(prod, found)), layers=tuple(layers),
        samples_per_worker=batch, tokens=tokens,
    )  # fmt: skip
    return facts, found


@cache
def _layers(files: tuple[Path, ...]) -> dict[str, list[Row]]:
    """Layers by model."""
    found: dict[str, list[Row]] = {}
    for path in files:
        own: dict[str, list[Row]] = {}
        for row in _read(path):
            own.setdefault(row["model"], []).append(row)
        found = own | found
    return found
