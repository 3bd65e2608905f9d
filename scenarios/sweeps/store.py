"""The folder of a sweep: its files, and the points that it takes from an earlier run.

sweep.json      the grid, the first point's resolved scenario, versions: written at the start
    points/         a file for each point that is done: its grid values, scenario, rows, provenance
    results.csv     the rows of all points, the grid's keys as first columns: written at the end
    results.json    the same, by point, and what failed

A point's file is written under another name, synced to disk and renamed; a checksum detects damage.
Points are found by their resolved scenario, and used only if code and libraries are the current
ones. Only one sweep at a time works in a folder, by a lock that the system releases when the
process ends.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from gcsim import version
from gcsim.compressors.registry import REGISTRY
from gcsim.errors import InputError, Problem
from gcsim.files import json_text, lock, open_lock, replacing, replacing_together, require_one_run
from gcsim.json_file import LARGEST, broken, read_object
from gcsim.scenarios.result import SCHEMA, Result, row_from
from gcsim.scenarios.running.keys import input_files, own_compressor, own_model, own_model_code
from gcsim.scenarios.running.result_cache import simulation_code
from gcsim.scenarios.scenario import Scenario
from gcsim.scenarios.stored import read_results
from gcsim.scenarios.sweeps import point_file
from gcsim.scenarios.sweeps.grid import Point, named
from gcsim.scenarios.sweeps.result import SweepPoint, SweepResult
from gcsim.scenarios.sweeps.tasks import Failure, Unfit
from gcsim.traces.stage1 import cache as profile_cache

HEADER, CSV, JSON, POINTS = "sweep.json", "results.csv", "results.json", "points"
_DIGITS = 20  # fixed width of a process's number, so that the lock is never cut
ELSEWHERE = "choose another folder with -o"


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock the folder, created if missing; `InputError` if another sweep works in it, or it has
    other results."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = os.fdopen(open_lock(folder / ".lock", os.O_RDWR), "r+")
    except OSError as error:
        message = f"cannot write: {error.strerror or error}"
        raise InputError(message, place=str(folder), hint=ELSEWHERE) from error
    with file:
        try:
            lock(file)
        except BlockingIOError:
            message = f"another sweep (process {file.readline().strip()}) is running in this folder"
            hint = f"wait for it, or {ELSEWHERE}"
            raise InputError(message, place=str(folder), hint=hint) from None
        except OSError:  # a system without locks: two sweeps may use it
            pass
        if (folder / JSON).exists() and not (folder / HEADER).exists():
            message = f"holds a {JSON} that is not of a sweep"
            raise InputError(message, place=str(folder), hint=ELSEWHERE)
        file.write(f"{os.getpid():<{_DIGITS}}\n")
        file.flush()
        _remove_halves(folder)
        yield


def _remove_halves(folder: Path) -> None:
    for half in (*folder.glob(".*.gcsim-*"), *(folder / POINTS).glob(".*.json.*")):
        half.unlink(missing_ok=True)


def begin(folder: Path, header: Mapping[str, Any]) -> None:
    """Write `sweep.json`."""
    _write(folder / HEADER, json_text(header))


def finish(folder: Path, csv: str, document: str) -> None:
    """Write `results.csv` and `results.json`."""
    with replacing_together(folder) as temporary:
        for name, text in ((CSV, csv), (JSON, document)):
            temporary(name).write_text(text, encoding="utf-8", newline="\n")


def path_of(point: Point) -> str:
    """Return a point's file, relative to the sweep's folder."""
    return f"{POINTS}/{point.key[:20]}.json"


def store(folder: Path, point: Point, text: str) -> None:
    """Write the file of a point."""
    _write(folder / path_of(point), text)


def stored(folder: Path, points: Sequence[Point], codes: Sequence[str]) -> dict[str, Result]:
    """Return the results of finished points by key, except damaged ones and those of other code;
    `InputError` for a point of another grid or scenario."""
    wanted = {point.key: code for point, code in zip(points, codes, strict=True)}
    found: dict[str, Result] = {}
    others: list[str] = []
    for path in sorted((folder / POINTS).glob("*.json")):
        document = point_file.read(path)
        if document is None:
            continue
        if document["key"] not in wanted:
            others.append(named(document["point"]))
        elif document["code"] == wanted[document["key"]]:
            found[document["key"]] = Result(
                scenario=document["scenario"],
                provenance=document["provenance"],
                rows=tuple(row_from(row) for row in document["rows"]),
                wall=document["wall"],
            )
    if others:
        more = f" and {len(others) - 1} more" if len(others) > 1 else ""
        message = (
            f"holds points of another grid or scenario that this sweep lacks: {others[0]}{more}"
        )
        raise InputError(message, place=str(folder), hint=f"add these values, or {ELSEWHERE}")
    return found


def _write(path: Path, text: str) -> None:
    """Write a file that survives a loss of power."""
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8", newline="\n") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    with contextlib.suppress(OSError):  # not every file system can
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


# --- code of a result ----------------------------------------------------------------------------


class Codes:
    """Hashes of everything that results depend on besides resolved scenario and machine."""

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], str] = {}

    def of(self, scenario: Scenario, judge_facts: Sequence[Any] = ()) -> str:
        """Hash of the versions of gcsim and its libraries, of the user's code and files that the
        scenario names, and of `judge_facts`, the facts of a `Judge`."""
        files = input_files(scenario)
        choices = [choice for choice in scenario.compressors if choice.kind not in REGISTRY]
        named = json.dumps([[choice.kind, choice.parameters] for choice in choices], default=str)
        asked = (*files, *sorted(own_model_code(scenario)), named, repr(judge_facts))
        if asked not in self._known:
            facts = {
                "gcsim": version.__version__,
                "simulation": simulation_code(),
                "beside": list(judge_facts),
                "files": [hashlib.sha256(path.read_bytes()).hexdigest() for path in files],
            }
            own = dict(own_model(scenario))
            for choice in choices:
                own.update(own_compressor(choice))
            self._known[asked] = profile_cache.key(facts, own)
        return self._known[asked]


_HINT = "gcsim sweep writes it when all points are done; repeat the command to continue"


@dataclass(frozen=True, slots=True, kw_only=True)
class _StoredPoint:
    point: dict[str, Any]
    file: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _FailedPoint:
    point: dict[str, Any]
    bug: bool
    problems: tuple[str, ...]
    unfit: Unfit | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _StoredSweep:
    grid: dict[str, tuple[Any, ...]]
    versions: dict[str, str]
    points: tuple[_StoredPoint, ...]
    failed: tuple[_FailedPoint, ...]


_STORED = TypeAdapter(_StoredSweep)


def is_sweep(path: Path) -> bool:
    """Whether a folder, or the folder of a `results.json`, is a sweep's."""
    return ((path if path.is_dir() else path.parent) / HEADER).exists()


def read_sweep(path: Path) -> SweepResult:
    """Read the result of a sweep's folder or `results.json`, without tracebacks of failures. Raises
    `InputError` with the file, and the key, value and rule of each fault."""
    file = path / JSON if path.is_dir() else path
    require_one_run(file.parent)
    files = (path.stat().st_size for path in (file.parent / POINTS).glob("*.json"))
    most = max(LARGEST, sum(files))  # rows are also in the points' files
    body = read_object(file, str(file), "result of a sweep", _HINT, largest=most)
    if body.pop("schema", None) != SCHEMA or "grid" not in body:
        message = f"is not a sweep's result of schema {SCHEMA}"
        raise InputError(message, place=str(file), hint=_HINT)
    try:
        found = _STORED.validate_python(body)
    except ValidationError as error:
        raise InputError(list(broken(error, body, str(file), _HINT))) from error
    given = [one.point for one in found.points] + [one.point for one in found.failed]
    if not given or not _as_finished(found.grid, given):
        message = "its points are not those of its grid"
        raise InputError(message, place=str(file), hint=_HINT)
    folder = file.parent
    done = {_same(one.point): one.file for one in found.points}
    failed = {
        _same(one.point): Failure(
            problems=tuple(Problem(message=text) for text in one.problems),
            traceback="of a bug, not stored" if one.bug else "",
            unfit=one.unfit,
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
    name = Path(done[same]).name  # it is in this folder, whatever the file says
    result = read_results(folder / POINTS / name, _HINT)
    return SweepPoint(values=values, result=result, file=f"{POINTS}/{name}")


def _as_finished(grid: dict[str, tuple[Any, ...]], points: Iterable[dict[str, Any]]) -> bool:
    """Whether each combination of the grid's values occurs once."""
    there = sorted(map(_same, points))
    if math.prod(map(len, grid.values())) != len(there):
        return False
    wanted = (dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values()))
    return there == sorted(map(_same, wanted))


def _same(values: dict[str, Any]) -> str:
    return json.dumps(values, sort_keys=True)
