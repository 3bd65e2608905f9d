"""Disk cache of the results of stage 2.

The key of an entry is a hash of everything that the result depends on: the values (not the files)
of the scenario with its catalogue entries, the profiles, the measured passes and the simulator's
code. Results that simulate as fast as they load are not stored; the least recently used go first.
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
_CHECKS = 32  # a process checks the total size after it has written 1 / _CHECKS of `ALL`
_written: list[int] = []  # bytes of the entries written since the last check
_READ = 20e6  # bytes of an unpacked result read per second
_RESULT = TypeAdapter(Result)
_FINDINGS = TypeAdapter(Findings | None)
_ROOMS = ("compressors", "traces", "simulator", "scenarios")
_LIBRARIES = ("numpy", "numba", "scipy", "simpy")
_SUFFIXES = (".py", ".yaml", ".csv")
_PLAIN = frozenset({type(None), bool, int, float, str})


def result_key(scenario: Scenario, keys: Sequence[str], passes: PassTimes | None) -> str:
    """Return the cache key of a run's result from its profiles' keys and its measured passes."""
    return key_of(scenario=scenario, profiles=list(keys), passes=passes)


def key_of(**facts: Any) -> str:
    """Return a cache key from `facts`, the simulator's code and the versions of its libraries."""
    facts |= {"simulation": simulation_code(), "versions": versions(*_LIBRARIES)}
    return hashlib.sha256(json.dumps(canonical(facts)).encode()).hexdigest()


def versions(*libraries: str) -> dict[str, str]:
    """Return the versions of gcsim, Python and these libraries."""
    found = {name: profile_cache.version(name) for name in libraries}
    return {"gcsim": version.__version__, "python": platform.python_version(), **found}


def canonical(value: Any) -> object:  # noqa: PLR0911 - a case each
    """Convert a value to plain JSON that differs whenever any field differs."""
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is Fraction:
        return ["Fraction", str(value)]
    if is_dataclass(kind):
        return [kind.__name__, *(canonical(getattr(value, name)) for name in _names(kind))]
    if isinstance(value, int | float | str):
        return value
    if isinstance(value, Mapping):
        return [[canonical(key), canonical(each)] for key, each in value.items()]
    if isinstance(value, Sequence):
        return [canonical(each) for each in value]
    if isinstance(value, frozenset):
        return sorted(value)
    if isinstance(value, Path):
        return [kind.__name__, str(value)]
    raise InternalError(f"a scenario holds a {type(value).__name__}, which has no name")


@cache
def _names(kind: type[Any]) -> tuple[str, ...]:
    return tuple(one.name for one in fields(kind))


def simulation_code() -> str:
    """Return a hash of the code of stage 2 and of the packages that produce its input."""
    return code_of(*_ROOMS)


@cache
def code_of(*rooms: str) -> str:
    """Return a hash of the code and tables of these packages and of `gcsim/*.py`."""
    digest = hashlib.sha256()
    package = Path(__file__).parent.parent.parent
    top = Path(version.__file__).parent
    files = [path for room in rooms for path in sorted((package / room).rglob("*.*"))]
    for path in (*files, *sorted(top.glob("*.py"))):
        if path.suffix in _SUFFIXES:
            digest.update(path.read_bytes())
    return digest.hexdigest()


def load(key: str) -> Result | None:
    """Return the cached result; None if missing or damaged."""
    body = read(key)
    try:
        return None if body is None else _RESULT.validate_json(body)
    except ValidationError:
        return None


def read(key: str) -> bytes | None:
    """Return the cached bytes; None if missing or damaged."""
    path = _folder() / f"{key}.z"
    try:
        packed = unsealed(path.read_bytes())
        body = None if packed is None else zlib.decompress(packed)
    except (OSError, zlib.error):
        return None
    with suppress(OSError):
        os.utime(path)  # marks the entry as just used
    return body


def write(key: str, body: bytes) -> None:
    """Store bytes, unless they are too many or the disk is full."""
    packed = zlib.compress(body, 1)
    if len(packed) > LARGEST:
        return
    with suppress(InputError):
        with replacing(_folder() / f"{key}.z") as temporary:
            temporary.write_bytes(sealed(packed))
        _written.append(len(packed))
        if (
            len(_written) == 1 or sum(_written) > ALL / _CHECKS
        ):  # not on every write: listing thousands of entries takes time
            _written[:] = [0]
            _make_room()


def save(key: str, result: Result, seconds: float) -> None:
    """Store a result if it loads faster than it simulates (`seconds`). A full disk is not reported
    here: storing the profiles has already warned of it."""
    body = _RESULT.dump_json(result)
    if seconds * _READ >= len(body):
        write(key, body)


def findings(key: str, make: Callable[[], Findings | None]) -> Findings | None:
    """Return the cached findings, or make and store them."""
    return cached(key, _FINDINGS, make)


def cached(key: str, kind: TypeAdapter[T], make: Callable[[], T]) -> T:
    """Return the cached value, or make and store it."""
    packed = read(key)
    with suppress(ValidationError):
        if packed is not None:
            return kind.validate_json(packed)
    made = make()
    write(key, kind.dump_json(made))
    return made


@contextmanager
def collected_warnings() -> Iterator[list[logging.LogRecord]]:
    """Collect the warnings of a run: a run that warns is not cached, so that it warns each time."""
    listener, root = _Listener(logging.WARNING), logging.getLogger("gcsim")
    root.addHandler(listener)
    try:
        yield listener.heard
    finally:
        root.removeHandler(listener)
        for record in listener.heard:  # to stderr if no other handler is installed
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
