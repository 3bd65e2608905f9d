"""What does a finished sweep's folder say? Its `results.json`, and each point's own file."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from gcsim.errors import InputError, Problem
from gcsim.files import require_one_run
from gcsim.json_file import LARGEST, broken, read_object
from gcsim.scenarios.result import SCHEMA
from gcsim.scenarios.stored import read_results
from gcsim.scenarios.sweeps.result import SweepPoint, SweepResult
from gcsim.scenarios.sweeps.store import HEADER, JSON, POINTS
from gcsim.scenarios.sweeps.tasks import Failure

_HINT = "gcsim sweep writes it when all points are done; the same command goes on"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Done:
    point: dict[str, Any]
    file: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Failed:
    point: dict[str, Any]
    bug: bool
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stored:
    grid: dict[str, tuple[Any, ...]]
    versions: dict[str, str]
    points: tuple[_Done, ...]
    failed: tuple[_Failed, ...]


_STORED = TypeAdapter(_Stored)


def is_sweep(path: Path) -> bool:
    """Whether a folder, or the folder of its `results.json`, is that of a sweep."""
    return ((path if path.is_dir() else path.parent) / HEADER).exists()


def read_sweep(path: Path) -> SweepResult:
    """The result of a sweep's folder, or of its `results.json`; of what failed without traceback.

    Raises `InputError` with the file, and the key, value and rule of what is wrong in it.
    """
    file = path / JSON if path.is_dir() else path
    require_one_run(file.parent)
    files = (path.stat().st_size for path in (file.parent / POINTS).glob("*.json"))
    most = max(LARGEST, sum(files))  # rows stand in the points' files, too
    body = read_object(file, str(file), "result of a sweep", _HINT, largest=most)
    if body.pop("schema", None) != SCHEMA or "grid" not in body:
        message = f"is no result of a sweep of schema {SCHEMA}"
        raise InputError(message, place=str(file), hint=_HINT)
    try:
        found = _STORED.validate_python(body)
    except ValidationError as error:
        raise InputError(list(broken(error, body, str(file), _HINT))) from error
    given = [one.point for one in found.points] + [one.point for one in found.failed]
    if not given or not _whole(found.grid, given):
        message = "its points are not those of its grid"
        raise InputError(message, place=str(file), hint=_HINT)
    folder = file.parent
    done = {_same(one.point): one.file for one in found.points}
    failed = {
        _same(one.point): Failure(
            problems=tuple(Problem(message=text) for text in one.problems),
            traceback="of a bug, not stored" if one.bug else "",
        )
        for one in found.failed
    }
    return SweepResult(
        grid=found.grid,
        versions=found.versions,
        points=tuple(
            _point(dict(zip(found.grid, values, strict=True)), folder, done, failed)
            for values in itertools.product(*found.grid.values())
        ),
        folder=folder,
    )


def _point(
    values: dict[str, Any], folder: Path, done: dict[str, str], failed: dict[str, Failure]
) -> SweepPoint:
    same = _same(values)
    if same in failed:
        return SweepPoint(values=values, failure=failed[same])
    name = Path(done[same]).name  # it lies in this folder, whatever the file says
    result = read_results(folder / POINTS / name, _HINT)
    return SweepPoint(values=values, result=result, file=f"{POINTS}/{name}")


def _whole(grid: dict[str, tuple[Any, ...]], points: Iterable[dict[str, Any]]) -> bool:
    """Whether each combination of the grid's values is there, once."""
    there = sorted(map(_same, points))
    if math.prod(map(len, grid.values())) != len(there):
        return False
    wanted = (dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values()))
    return there == sorted(map(_same, wanted))


def _same(values: dict[str, Any]) -> str:
    return json.dumps(values, sort_keys=True)
