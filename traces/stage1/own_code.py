"""Identification of a user's code: its syntax trees, the files that it opened, and its result.

A user's function, `package.module:name`, is identified by the modules that its module reaches
through imports (as in `code.py`; libraries end the search), the content of the files opened during
its call, and plain facts about its result. The call is cached, and not repeated while environment,
code and files are the same.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache, lru_cache
from importlib.util import find_spec
from pathlib import Path

from gcsim.errors import InputError
from gcsim.files import cache_folder, sealed, unsealed, write_text
from gcsim.opened import is_library, noting
from gcsim.traces.stage1.code import Known, parsed, reach

_FOLDER = "calls"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    """A cached call of a user's function."""

    made: object
    files: list[str]
    folders: list[str]
    modules: list[str]
    state: str = ""
    """Hash of what the call may depend on (`_state`)."""

    def facts(self) -> dict[str, object]:
        """Return the call's part of a key."""
        return {
            "made": self.made,
            "files": [(Path(path).name, _content(path)) for path in self.files],
            "folders": [(Path(path).name, _names(path)) for path in self.folders],
            "modules": sorted(_tree(path)[0] for path in self.modules),
        }


_calls: dict[str, _Call] = {}


def own_code(
    function: str, call: Callable[[], object], *, remembered: bool = True
) -> dict[str, object]:
    """Return facts about the user's `function` for a key; `call` calls it and returns plain facts
    of its result. With `remembered` an earlier call, in any process, is reused while its
    dependencies are unchanged."""
    module = function.partition(":")[0]
    files = reached(module)
    code = {name: _tree(path)[0] for name, path in sorted(files.items())}
    folders = sorted({str(path.parent) for path in files.values()})
    name = _digest([function, code, os.getcwd()])
    known = (_calls.get(name) or _load(name)) if remembered else None
    if known is None or known.state != _state(known, folders):
        with noting(module) as notes:
            made = call()
        modules = notes.modules - {str(path) for path in files.values()}
        known = _Call(
            made=json.loads(json.dumps(made)),
            files=sorted(notes.files - notes.written),
            folders=sorted(notes.folders),
            modules=sorted(modules),
        )
        known = _Call(**{**asdict(known), "state": _state(known, folders)})
        if not notes.unseen:
            _calls[name] = known
            with suppress(InputError):  # a full disk: the next process calls it again
                write_text(_path(name), sealed(json.dumps(asdict(known)).encode()).decode())
    return {"code": code, **known.facts()}


def _state(call: _Call, folders: Iterable[str]) -> str:
    """Hash the facts, the environment, and the names of files next to those opened, which the call
    may have looked for."""
    beside = {*folders, *(str(Path(path).parent) for path in call.files)}
    listings = [(path, _names(path, only_files=True)) for path in sorted(beside)]
    return _digest([call.facts(), sorted(os.environ.items()), listings])


def _load(name: str) -> _Call | None:
    with suppress(OSError, ValueError, TypeError):
        body = unsealed(_path(name).read_bytes())
        if body is not None:
            found = _calls[name] = _Call(**json.loads(body))
            return found
    return None


def _path(name: str) -> Path:
    return cache_folder() / _FOLDER / f"{name}.json"


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()


# --- modules -------------------------------------------------------------------------------------


def reached(module: str) -> dict[str, Path]:
    """Return the user's modules that a module reaches by imports, by name, with their files."""
    top = module.partition(".")[0]

    @cache
    def places(name: str) -> tuple[Path | None, tuple[Path, ...]]:
        """Return a module's file, and the folders of its modules if it is a package."""
        above, _, last = name.rpartition(".")
        if not above:
            return _top(name, own=name == top)
        folders = []
        for folder in places(above)[1]:
            inside = folder / last
            if (file := inside / "__init__.py").is_file():
                return file, (inside,)
            if (file := folder / f"{last}.py").is_file():
                return file, ()
            if inside.is_dir():
                folders.append(inside)
        return None, tuple(folders)

    def file_of(name: str) -> Path | None:
        return places(name)[0]

    found = reach({module}, file_of, _tree) if file_of(module) else set()
    return {name: file for name in found if (file := file_of(name))}


def _top(name: str, *, own: bool) -> tuple[Path | None, tuple[Path, ...]]:
    """Return file and folders, like `places`, of a top-level module: nothing for a library."""
    here = Path.cwd()  # searched last
    file: Path | None = None
    folders: tuple[Path, ...] = ()
    with suppress(ImportError, ValueError, AttributeError):
        spec = find_spec(name)
        if spec is not None:
            file = Path(spec.origin) if spec.origin and spec.origin.endswith(".py") else None
            folders = tuple(map(Path, spec.submodule_search_locations or ()))
            library = not own and any(is_library(f"{each}") for each in (file, *folders) if each)
            builtin = file is None and not folders
            return (None, ()) if name == "gcsim" or library or builtin else (file, folders)
    if (file := here / name / "__init__.py").is_file():
        return file, (file.parent,)
    if (file := here / f"{name}.py").is_file():
        return file, ()
    return None, (here / name,) if (here / name).is_dir() else ()


def _tree(path: str | Path) -> Known:
    return _tree_at(str(path), _stamp(path))


@lru_cache(maxsize=4096)
def _tree_at(path: str, _stamp: object) -> Known:
    try:
        return parsed(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, SyntaxError, RecursionError):
        return _hash(path) or "", ()


# --- files ---------------------------------------------------------------------------------------


def _content(path: str) -> str | None:
    """Return a hash of a file (for Python: of its syntax tree); None if it does not exist."""
    stamp = _stamp(path)
    if stamp is not None and path.endswith(".py"):
        return _tree(path)[0]
    return _content_at(path, stamp)


@lru_cache(maxsize=65536)
def _content_at(path: str, _stamp: object) -> str | None:
    return _hash(path)


def _hash(path: str) -> str | None:
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None


def _stamp(path: str | Path) -> object:
    """Return a value that changes with the file's content, as far as the file system tells."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino


def _names(folder: str, *, only_files: bool = False) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return sorted(e.name for e in entries if not only_files or e.is_file())
    except OSError:
        return []
