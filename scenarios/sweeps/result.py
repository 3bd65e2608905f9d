"""The result of a sweep: plain values, as they stand in its `results.csv` and `results.json`."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gcsim.scenarios.result import SCHEMA, Result
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

    def rows(self) -> list[dict[str, Any]]:
        """One mapping for each point, compressor and size: made for `pandas.DataFrame(rows)`."""
        return [
            {**{key: _cell(value) for key, value in point.values.items()}, **asdict(row)}
            for point in self.points
            if point.result is not None
            for row in point.result.rows
        ]

    def to_csv(self) -> str:
        """`results.csv`: all rows with full precision, the grids' keys as first columns."""
        text = io.StringIO()
        columns = (*self.grid, *Result.columns())
        writer = csv.DictWriter(
            text, fieldnames=columns, extrasaction="ignore", lineterminator="\n"
        )
        writer.writeheader()
        for row in self.rows():
            shown = {key: written(row[key]) for key in self.grid}
            writer.writerow({**row, **shown})
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
                    "rows": [asdict(row) for row in point.result.rows],
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


def _cell(value: Any) -> Any:
    """A grid's value in a cell of a table: text where it is a list or a mapping."""
    return written(value) if isinstance(value, list | dict) else value
