"""Data files of the suites: their rows, without comments, and citations."""

from __future__ import annotations

import csv
from functools import cache
from math import prod
from pathlib import Path

from gcsim.analysis.validation.statistics import grouped
from gcsim.errors import InputError, did_you_mean
from gcsim.traces.profile import Layer, ModelFacts

Row = dict[str, str]


@cache
def read(path: Path) -> list[Row]:
    """Return the lines of a CSV without comments, by heading."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return list(csv.DictReader(line for line in lines if not line.startswith("#")))


@cache
def source_rows(folder: Path) -> dict[str, Row]:
    """Return the lines of a folder's `sources.csv`, by key."""
    return {row["key"]: row for row in read(folder / "sources.csv")}


def citation(folder: Path, key: str, where: str) -> str:
    """Return the citation of a row: its entry in `sources.csv`, with the place in that source."""
    found = source_rows(folder)[key]
    parts = (found["citation"], where, found["url"], found["date"], found["confidence"])
    return ", ".join(part for part in parts if part)


@cache
def layer_table(
    files: tuple[Path, ...], model: str, batch: int, tokens: int
) -> tuple[ModelFacts, list[tuple[int, ...]]]:
    """Return a model's facts and the shapes of its tensors in forward order (elements, or rows and
    columns: "3x96"), from the first file that has its layers. Raises `InputError` if none has."""
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
    """Return the layers by model."""
    found: dict[str, list[Row]] = {}
    for path in files:
        found = grouped(read(path), lambda row: row["model"]) | found
    return found
