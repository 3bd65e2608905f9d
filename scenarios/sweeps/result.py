"""Result of a sweep: plain values, as in its `results.csv` and `results.json`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from gcsim.files import csv_text, json_text
from gcsim.scenarios.result import LISTS, SCHEMA, Result, Row, columns_of, frame
from gcsim.scenarios.sweeps.grid import named, written
from gcsim.scenarios.sweeps.tasks import Failure, Unfit


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPoint:
    """Result or failure of a combination of the grids' values."""

    values: dict[str, Any]
    """Values by the grids' keys."""
    result: Result | None = None
    """`gcsim.run` with these values, without timelines."""
    failure: Failure | None = None
    file: str = ""
    """File of the point, with provenance, relative to the sweep's folder."""

    @property
    def name(self) -> str:
        """`cluster.nodes=8, seed=1`."""
        return named(self.values)

    @property
    def unfit(self) -> tuple[Unfit, ...]:
        """Row without times, if the point does not fit in its devices."""
        return (self.failure.unfit,) if self.failure and self.failure.unfit else ()

    @property
    def lost(self) -> str:
        """Reason without a result: "does not fit" (in its devices) or "failed"; else empty."""
        if self.failure is None:
            return ""
        return "does not fit" if self.unfit else "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRow(Row):
    """A row of a point."""

    point: dict[str, Any]
    """The point's values by the grids' keys."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SweepResult:
    """Points in grid order, the last key changing fastest."""

    grid: dict[str, tuple[Any, ...]]
    versions: dict[str, str]
    points: tuple[SweepPoint, ...]
    folder: Path | None = None
    """Folder of the files, if any."""

    @property
    def failed(self) -> tuple[SweepPoint, ...]:
        """Points without a result."""
        return tuple(point for point in self.points if point.failure is not None)

    @property
    def rows(self) -> tuple[SweepRow, ...]:
        """Rows of all points, with the points' values."""
        return tuple(
            SweepRow(point=point.values, **{name: getattr(row, name) for name in _OF_ROW})
            for point in self.points
            if point.result is not None
            for row in point.result.rows
        )

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns of `results.csv`, the grids' keys first."""
        return (*self.grid, *(name for name in Result.columns() if name not in self.grid))

    def to_frame(self) -> Any:
        """`pandas.DataFrame` of `results.csv`; `InputError` without pandas."""
        return frame(self._records(as_text=(list, dict)), self.columns)

    def to_csv(self) -> str:
        """`results.csv`: all rows in full precision, the grids' keys first."""
        return csv_text(self.columns, self._records(as_text=(object,)))

    def _records(self, as_text: tuple[type, ...]) -> Iterator[dict[str, Any]]:
        """Rows of a table; grids' values of these types are text."""
        for point in self.points:
            values = {
                key: written(value) if isinstance(value, as_text) else value
                for key, value in point.values.items()
            }
            rows = point.result.records() if point.result else map(asdict, point.unfit)
            for record in rows:
                yield {**record, **values}

    def to_json(self) -> str:
        """Return `results.json`, byte-identical for any number of workers; draws are in the points'
        files."""
        document = {
            "schema": SCHEMA,
            "grid": self.grid,
            "versions": self.versions,
            "points": [
                {
                    "point": point.values,
                    "file": point.file,
                    "rows": [_without_draws(columns_of(row)) for row in point.result.rows],
                }
                for point in self.points
                if point.result is not None
            ],
            "failed": [
                {
                    "point": point.values,
                    "bug": point.failure.is_bug,
                    "unfit": point.failure.unfit and asdict(point.failure.unfit),
                    "problems": [str(problem) for problem in point.failure.problems],
                }
                for point in self.points
                if point.failure is not None
            ],
        }
        return json_text(document)

    def __repr__(self) -> str:
        grid = ", ".join(f"{key} {len(values)}" for key, values in self.grid.items())
        failed = f", {len(self.failed)} failed" if self.failed else ""
        return f"<gcsim.SweepResult points {len(self.points)}{failed}; values: {grid}>"


_OF_ROW = tuple(entry.name for entry in fields(Row))


def _without_draws(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in LISTS}
