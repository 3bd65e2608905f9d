"""The result of a sweep: plain values, as they stand in its `results.csv` and `results.json`."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from gcsim.scenarios.result import SCHEMA, Result, Row, columns_of, frame
from gcsim.scenarios.sweeps.grid import written
from gcsim.scenarios.sweeps.points import named
from gcsim.scenarios.sweeps.tasks import Failure


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPoint:
    """One combination of the grids' values: its result, or why there is none."""

    values: dict[str, Any]
    """By the grids' keys."""
    result: Result | None = None
    """That of `gcsim.run` with these values, without timelines."""
    failure: Failure | None = None
    file: str = ""
    """Its own file, with the provenance, from the sweep's folder."""

    @property
    def name(self) -> str:
        """`cluster.nodes=8, seed=1`."""
        return named(self.values)


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRow(Row):
    """A row of a point."""

    point: dict[str, Any]
    """The point's values by the grids' keys."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SweepResult:
    """Points in the order of the grids, the last key changing fastest."""

    grid: dict[str, tuple[Any, ...]]
    versions: dict[str, str]
    points: tuple[SweepPoint, ...]
    folder: Path | None = None
    """Where the files are; None when none were asked for."""

    @property
    def failed(self) -> tuple[SweepPoint, ...]:
        """Points without a result."""
        return tuple(point for point in self.points if point.failure is not None)

    @property
    def rows(self) -> tuple[SweepRow, ...]:
        """Rows of all points, as `Result.rows`, each with the values of its point."""
        return tuple(
            SweepRow(point=point.values, **{name: getattr(row, name) for name in _OF_ROW})
            for point in self.points
            if point.result is not None
            for row in point.result.rows
        )

    @property
    def columns(self) -> tuple[str, ...]:
        """Column names of `results.csv`: the grids' keys first."""
        return (*self.grid, *Result.columns())

    def to_frame(self) -> Any:
        """A `pandas.DataFrame` with the rows and columns of `results.csv`.

        Raises `InputError` where pandas is not installed.
        """
        return frame(map(_record, self.rows), self.columns)

    def to_csv(self) -> str:
        """`results.csv`: all rows with full precision, the grids' keys as first columns."""
        text = io.StringIO()
        writer = csv.DictWriter(
            text, fieldnames=self.columns, extrasaction="ignore", lineterminator="\n"
        )
        writer.writeheader()
        for row in self.rows:
            writer.writerow({**columns_of(row), **{k: written(v) for k, v in row.point.items()}})
        return text.getvalue()

    def to_json(self) -> str:
        """`results.json`: byte-identical for the same sweep, however it was spread over workers."""
        document = {
            "schema": SCHEMA,
            "grid": self.grid,
            "versions": self.versions,
            "points": [
                {
                    "point": point.values,
                    "file": point.file,
                    "rows": [columns_of(row) for row in point.result.rows],
                }
                for point in self.points
                if point.result is not None
            ],
            "failed": [
                {
                    "point": point.values,
                    "bug": point.failure.is_bug,
                    "problems": [str(problem) for problem in point.failure.problems],
                }
                for point in self.points
                if point.failure is not None
            ],
        }
        return json.dumps(document, indent=1, allow_nan=False, ensure_ascii=False) + "\n"

    def __repr__(self) -> str:
        grid = ", ".join(f"{key} {len(values)}" for key, values in self.grid.items())
        failed = f", {len(self.failed)} failed" if self.failed else ""
        return f"<gcsim.SweepResult points {len(self.points)}{failed}; values: {grid}>"


_OF_ROW = tuple(entry.name for entry in fields(Row))


def _record(row: SweepRow) -> dict[str, Any]:
    """A table's row; a grid's value is text where it is a list or a mapping."""
    values = row.point.items()
    return {
        **columns_of(row),
        **{k: written(v) if isinstance(v, list | dict) else v for k, v in values},
    }
