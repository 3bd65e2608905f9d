"""Results of stage 2 on disk, under all that they depend on.

An entry is named by the values, not the files, of the scenario with its catalogue entries, the
profiles and measured passes, and by the simulating code: whatever changed, or is damaged, is
simulated again. Results as fast to simulate as to read are not kept; the longest unused make room.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import platform
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields, is_dataclass
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from gcsim import version
from gcsim.errors import InputError, InternalError
from gcsim.files import cache_folder, replacing, sealed, unsealed
from gcsim.scenarios.findings import Findings
from gcsim.scenarios.result import Result
from gcsim.scenarios.scenario import Scenario
from gcsim.traces.profile import PassTimes
from gcsim.traces.stage1 import cache as profile_cache

T = TypeVar("T")
LARGEST = 32 << 20
"""Bytes."""
ALL = 256 << 20
"""Bytes of all entries."""
_LOOKS = 32  # a process checks the room after writing this fraction of it
_written: list[int] = []  # bytes of entries since that check
_READ = 20e6  # bytes of an unpacked result read per second
_RESULT = TypeAdapter(Result)
_FINDINGS = TypeAdapter(Findings | None)
_ROOMS = ("compressors", "traces", "simulator", "scenarios")
_LIBRARIES = ("numpy", "numba", "scipy", "simpy")
_SUFFIXES = (".py", ".yaml", ".csv")
_PLAIN = frozenset({type(None), bool, int, float, str})


def result_key(scenario: Scenario, keys: Sequence[str], passes: PassTimes | None) -> str:
    """Name of a run's result; `keys`: of its profiles, `passes`: as measured."""
    return name_of(scenario=scenario, profiles=list(keys), passes=passes)


def name_of(**facts: Any) -> str:
    """Name of an answer by its facts, the code and its libraries."""
    versions = {name: profile_cache.version(name) for name in _LIBRARIES}
    facts |= {
        "simulation": simulation_code(),
        "versions": {"gcsim": version.__version__, "python": platform.python_version(), **versions},
    }
    return hashlib.sha256(json.dumps(plain(facts)).encode()).hexdigest()


def plain(value: Any) -> object:  # noqa: PLR0911 - a case each
    """A value in full, for `json`: a difference in any field shows."""
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is Fraction:
        return ["Fraction", str(value)]
    if is_dataclass(kind):
        return [kind.__name__, *(plain(getattr(value, name)) for name in _names(kind))]
    if isinstance(value, int | float | str):
        return value
    if isinstance(value, Mapping):
        return [[plain(key), plain(each)] for key, each in value.items()]
    if isinstance(value, Sequence):
        return [plain(each) for each in value]
    if isinstance(value, frozenset):
        return sorted(value)
    if isinstance(value, Path):
        return [kind.__name__, str(value)]
    raise InternalError(f"a scenario holds a {type(value).__name__}, which has no name")


@cache
def _names(kind: type[Any]) -> tuple[str, ...]:
    return tuple(one.name for one in fields(kind))


def simulation_code() -> str:
    """Hash of stage 2's code, and of the rooms that make its input."""
    return code_of(*_ROOMS)


@cache
def code_of(*rooms: str) -> str:
    """Hash of the code and tables of these rooms, and of the package's own modules."""
    digest = hashlib.sha256()
    package = Path(__file__).parent.parent.parent
    top = Path(version.__file__).parent
    files = [path for room in rooms for path in sorted((package / room).rglob("*.*"))]
    for path in (*files, *sorted(top.glob("*.py"))):
        if path.suffix in _SUFFIXES:
            digest.update(path.read_bytes())
    return digest.hexdigest()


def load(key: str) -> Result | None:
    """Result under this name, if whole."""
    body = found(key)
    try:
        return None if body is None else _RESULT.validate_json(body)
    except ValidationError:
        return None


def found(key: str) -> bytes | None:
    """Kept bytes under this name, if whole."""
    path = _folder() / f"{key}.z"
    try:
        packed = unsealed(path.read_bytes())
        body = None if packed is None else zlib.decompress(packed)
    except (OSError, zlib.error):
        return None
    with suppress(OSError):
        os.utime(path)  # asked for now
    return body


def keep(key: str, body: bytes) -> None:
    """Keep bytes under a name, where there is room."""
    packed = zlib.compress(body, 1)
    if len(packed) > LARGEST:
        return
    with suppress(InputError):
        with replacing(_folder() / f"{key}.z") as temporary:
            temporary.write_bytes(sealed(packed))
        _written.append(len(packed))
        if (
            len(_written) == 1 or sum(_written) > ALL / _LOOKS
        ):  # thousands of entries take their time
            _written[:] = [0]
            _make_room()


def save(key: str, result: Result, seconds: float) -> None:
    """Keep a result whose simulation took `seconds`, if worth it and there is room; a full disk was
    reported with the profiles."""
    body = _RESULT.dump_json(result)
    if seconds * _READ >= len(body):
        keep(key, body)


def findings(key: str, make: Callable[[], Findings | None]) -> Findings | None:
    """Findings under this name, made and kept if new."""
    return remembered(key, _FINDINGS, make)


def remembered(key: str, kind: TypeAdapter[T], make: Callable[[], T]) -> T:
    """Value under this name, made and kept if new."""
    packed = found(key)
    with suppress(ValidationError):
        if packed is not None:
            return kind.validate_json(packed)
    made = make()
    keep(key, kind.dump_json(made))
    return made


@contextmanager
def listening() -> Iterator[list[logging.LogRecord]]:
    """Collect the warnings of a run; one that warns is simulated each time."""
    listener, root = _Listener(logging.WARNING), logging.getLogger("gcsim")
    root.addHandler(listener)
    try:
        yield listener.heard
    finally:
        root.removeHandler(listener)
        for record in listener.heard:  # to stderr where nobody else listens
            if logging.lastResort and not logging.getLogger(record.name).hasHandlers():
                logging.lastResort.handle(record)


class _Listener(logging.Handler):
    def __init__(self, level: int) -> None:
        super().__init__(level)
        self.heard: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.heard.append(record)


def _make_room() -> None:
    entries = []
    for path in _folder().glob("*.z"):
        with suppress(OSError):  # another process has just removed it
            status = path.stat()
            entries.append((status.st_mtime_ns, status.st_size, path))
    left = sum(size for _, size, _ in entries) - ALL
    for _, size, path in sorted(entries):
        if left <= 0:
            break
        path.unlink(missing_ok=True)
        left -= size


def _folder() -> Path:
    return cache_folder() / "results"
