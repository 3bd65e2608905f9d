"""Cache of the loops' machine code: numba compiles it, the cache folder stores it (`loops.py`)."""

from __future__ import annotations

import hashlib
import inspect
import os
import pickle
import shutil
import sys
import warnings
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import cache
from pathlib import Path
from typing import Any

import numba
from numba.core import compiler, config, serialize
from numba.core.caching import FunctionCache
from numba.core.compiler_lock import global_compiler_lock
from numba.core.runtime.nrt import rtsys
from numba.extending import overload, register_jitable

from gcsim.errors import InputError
from gcsim.files import cache_folder, others_write, replacing, sealed, unsealed, waiting_for

__all__ = ["LoopCache", "compiled", "inside", "loops_folder", "overload", "usable"]

_KEPT_BUILDS = 4
_dumps: Any = serialize.dumps
_rebuild: Any = compiler.CompileResult._rebuild
inside: Any = numba.njit(inline="always", error_model="numpy")
usable: Any = register_jitable(error_model="numpy")


def compiled(function: Callable[..., Any], **options: Any) -> Any:
    """Wrap a function that is compiled, or loaded from the cache, at its first call."""
    options |= {"no_cfunc_wrapper": True}  # never called from C code
    found: Any = numba.njit(nogil=True, error_model="numpy", **options)(function)
    found._cache = LoopCache(function)  # the same as numba's `enable_caching`
    found.compile = _by_one_process(found.compile, function)
    return found


def _by_one_process(compile_: Callable[..., Any], function: Callable[..., Any]) -> Any:
    """Let one of several ranks that start together compile a loop; the others wait and load it."""
    name = f"{function.__module__}.{function.__qualname__}.lock"

    def compile_or_load(signature: Any) -> Any:
        # numba's lock comes first: its holder may get here to compile a loop that a loop calls
        with global_compiler_lock, ExitStack() as stack:
            if folder := loops_folder():
                with suppress(OSError):  # a folder that is not writable needs no lock
                    stack.enter_context(waiting_for(folder / name))
            return compile_(signature)

    return compile_or_load


class LoopCache(FunctionCache):
    """Numba's cache for one function, with a file per signature. If a file is missing or unusable
    the loop is compiled again; a cache error never makes a call fail."""

    def __init__(self, function: Callable[..., Any]) -> None:  # does not open numba's own files
        self._py_func = function
        self._name = f"{function.__module__}.{function.__qualname__}"
        self._source: str | None = None  # None: defined at a prompt, not stored
        self._impl = None
        path = inspect.getfile(function)
        with suppress(OSError):
            self._source = _hash(path, os.stat(path).st_mtime_ns)

    @property
    def cache_path(self) -> str | None:
        """Path of the folder; None if nothing is stored."""
        folder = loops_folder()
        return None if folder is None else str(folder)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the compiled function of this signature; None without a trustworthy file."""
        # Initialise only what machine code calls: the compiler, and scipy for it, take another
        # quarter of a second and are loaded when a loop must be compiled.
        rtsys.initialize(target_context)
        key = self._key(sig, target_context.codegen())
        path = self._path(key)
        body = None if path is None else _read(path)
        if path is None or body is None:
            return None
        if not body.startswith(key):
            path.unlink(missing_ok=True)
            return None
        payload = pickle.loads(body[len(key) :])  # noqa: S301 - this user's own, as it was written
        return _rebuild(target_context, *payload)

    def save_overload(self, sig: Any, data: Any) -> None:
        """Store a compiled function; warn if that fails."""
        if data.library.has_dynamic_globals:  # contains addresses of this process
            return
        key = self._key(sig, data.codegen)
        path = self._path(key)
        if path is None:
            return
        try:
            with replacing(path) as temporary:
                temporary.write_bytes(sealed(key + _dumps(data._reduce())))
                temporary.chmod(0o600)
        except InputError as error:
            _not_kept(path.parent, error.problems[0].message)

    def _key(self, sig: Any, codegen: Any) -> bytes:
        index: Any = self._index_key
        facts = self._name, self._source, index(sig, codegen)
        return repr((*facts, numba.__version__, sys.implementation.cache_tag)).encode()

    def _path(self, key: bytes) -> Path | None:
        folder = loops_folder()
        if folder is None or self._source is None:
            return None
        return folder / f"{self._name}.{hashlib.sha256(key).hexdigest()[:16]}"


def _read(path: Path) -> bytes | None:
    """Read a trustworthy entry; remove a damaged one."""
    try:
        with path.open("rb") as file:
            body = None if others_write(os.fstat(file.fileno())) else unsealed(file.read())
        if body is None:
            path.unlink()
    except OSError:
        return None
    return body


@cache
def loops_folder() -> Path | None:
    """Return the folder for machine code, after removing old builds; None if it is not writable."""
    chosen: str = getattr(config, "CACHE_DIR")  # noqa: B009 - numba sets it from NUMBA_CACHE_DIR
    builds = Path(chosen or cache_folder() / "loops")
    folder = builds / f"gcsim-{_sources()}"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for each in (builds if chosen else cache_folder(), builds, folder):
            if others_write(each.stat()):
                hint = f"chmod go-w {each}, or set GCSIM_CACHE_DIR to a folder of your own"
                _not_kept(each, f"somebody else can write to it; {hint}")
                return None
        with suppress(OSError):  # a read-only installation of another user
            folder.touch()
            old = sorted(builds.glob("gcsim-*"), key=lambda path: path.stat().st_mtime)
            for build in old[:-_KEPT_BUILDS]:
                shutil.rmtree(build, ignore_errors=True)
    except OSError as error:
        _not_kept(folder, f"cannot write: {error.strerror}")
        return None
    return folder


def _sources() -> str:
    """Return the hash of all files whose functions may be called by loops in other files."""
    here = Path(__file__).parent
    paths = [here / name for name in ("loops.py", "random.py")]
    paths += sorted((here / "coding").rglob("*.py"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()[:16]


@cache
def _hash(path: str, changed: int) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


@cache
def _not_kept(folder: Path, why: str) -> None:
    warnings.warn(
        f"{folder}: compiled loops are not kept, so each command compiles them again: {why}",
        stacklevel=2,
    )
