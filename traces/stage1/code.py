"""Hash of the code of gcsim that a profile depends on, ignoring comments, docstrings and
descriptions of options.

A compressor reaches what its module imports, at the top or inside functions, recursively; and all
of `traces`, which finds models and tasks by name. One that reaches the registry, or a user's own,
may use any other, so all compressors count.

A file is identified by its syntax tree, written the same way for every version of Python: newer
attributes (3.12's type parameters) are omitted if empty. Files are parsed when reached, since
parsing all takes a second, and results are cached by the files' bytes.
"""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gcsim.errors import InputError
from gcsim.files import cache_folder, sealed, unsealed, write_text

COMPRESSORS, TRACES = "gcsim.compressors", "gcsim.traces"
_REGISTRY = f"{COMPRESSORS}.registry"
_NEVER = (f"{COMPRESSORS}.ddp", f"{COMPRESSORS}.conformance", f"{COMPRESSORS}.options")
"""Deployment, checks and options of methods: not part of a profile's code unless reached."""
_MEMO = "code.hashes"
Known = tuple[str, Sequence[str]]
"""A hash of a file's syntax tree, and the names that it imports."""


@cache
def code_hash(compressor: str | None, users: tuple[str, ...] = ()) -> str:
    """Return the hash of the code reached by a compressor, as in the registry
    (`sparsification.by_size.topk:TopK`; None: all code), and by the modules `users` (none: all of
    `traces`)."""
    files, known = _gcsim()
    every = {name for name in files if not name.startswith(_NEVER)}
    reached = every
    if compressor is not None:
        module, _, _ = compressor.partition(":")
        traces = users or [name for name in files if name.startswith(TRACES)]
        found = reach({f"{COMPRESSORS}.{module}", *traces}, files.get, known.__getitem__)
        if _REGISTRY not in found:
            reached = found | {_REGISTRY}  # the registry creates the compressor only
        else:
            reached = found | {name for name in every if name.startswith(COMPRESSORS)}
    lines = [f"{name} {known[files[name]][0]}" for name in sorted(reached)]
    known.keep()
    return hashlib.sha256("\n".join([str(compressor), *lines]).encode()).hexdigest()


@cache
def _gcsim() -> tuple[dict[str, Path], Trees]:
    """Return gcsim's modules and their known trees."""
    files = modules({name: _folder(name) for name in (COMPRESSORS, TRACES)})
    return files, Trees(files.values())


def modules(rooms: Mapping[str, Path]) -> dict[str, Path]:
    """Return the file of each module in the packages' folders."""
    found = {}
    for package, folder in rooms.items():
        for path in folder.rglob("*.py"):
            parts = path.relative_to(folder).with_suffix("").parts
            found[".".join([package, *parts]).removesuffix(".__init__")] = path
    return found


def reach(
    start: Iterable[str], file_of: Callable[[str], Path | None], known: Callable[[Path], Known]
) -> set[str]:
    """Return the modules that some modules import, directly or indirectly, and their packages.
    `file_of` returns a module's file, None if its code does not count. A package's own file counts
    if something is imported from the package itself."""
    waiting, found = list(start), set[str]()
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found.add(name)
        file = file_of(name)
        assert file is not None
        for imported in known(file)[1]:
            module = _absolute(imported, name, file)
            while module and file_of(module) is None:
                module = module.rpartition(".")[0]  # a name inside a module
            if module:
                waiting.append(module)
    packages = {name[:place] for name in found for place, at in enumerate(name) if at == "."}
    return found | {name for name in packages if file_of(name) is not None}


def _absolute(imported: str, module: str, file: Path) -> str:
    """Return the full name of an import, whose leading dots count packages upward."""
    name = imported.lstrip(".")
    up = len(imported) - len(name)
    if not up:
        return name
    parts = module.split(".")
    package = parts[: len(parts) - up + (file.name == "__init__.py")]
    return ".".join([*package, name])


def parsed(source: str) -> Known:
    """Return hash and imports of a module's source."""
    names: dict[str, None] = {}
    told = _told(ast.parse(source), names)
    return hashlib.sha256(repr(told).encode()).hexdigest(), list(names)


def _told(node: Any, names: dict[str, None]) -> Any:
    """Return a tree as plain values, without empty ones and texts; add its imports to
    `names`."""
    kind = node.__class__  # runs 400,000 times: no `isinstance`
    if kind is list:
        return [_told(each, names) for each in node if not _is_text(each)]
    if (fields := getattr(kind, "_fields", None)) is None:
        return node
    if kind is ast.Import:
        names.update((name.name, None) for name in node.names)
    elif kind is ast.ImportFrom:
        module = "." * node.level + (f"{node.module}." if node.module else "")
        names.update((f"{module}{name.name}", None) for name in node.names)
    told = []
    for field in fields:
        value = getattr(node, field, None)
        if value is not None and value != []:
            told.append((field, _told(value, names)))
    return kind.__name__, told


def _is_text(node: Any) -> bool:
    """Whether a statement is a docstring, or an argument the description of an option."""
    if node.__class__ is ast.keyword:
        return bool(node.arg == "description")
    return (
        node.__class__ is ast.Expr
        and node.value.__class__ is ast.Constant
        and isinstance(node.value.value, str)
    )


def _folder(package: str) -> Path:
    spec = find_spec(package)
    return Path((spec and spec.origin) or "").parent


class Trees(dict[Path, Known]):
    """Syntax trees of files, parsed on demand and remembered by the file's bytes."""

    def __init__(self, paths: Iterable[Path]) -> None:
        super().__init__()
        self._paths = paths
        self._memo: dict[str, Known] = {}
        self._parsed = False
        with suppress(OSError):
            self._memo = json.loads(unsealed((cache_folder() / _MEMO).read_bytes()) or b"{}")

    def __missing__(self, path: Path) -> Known:
        text = path.read_bytes()
        name = hashlib.sha256(text).hexdigest()
        if name not in self._memo:
            self._memo[name], self._parsed = parsed(text.decode()), True
        self[path] = self._memo[name]
        return self[path]

    def keep(self) -> None:
        """Store what was parsed, except for files that no longer exist."""
        if not self._parsed:
            return
        self._parsed = False
        now = {hashlib.sha256(path.read_bytes()).hexdigest() for path in self._paths}
        kept = {name: known for name, known in self._memo.items() if name in now}
        with suppress(InputError):  # otherwise the next run parses again
            write_text(cache_folder() / _MEMO, sealed(json.dumps(kept).encode()).decode())
