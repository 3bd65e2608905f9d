"""Compiled loops over elements, on as many threads as torch uses.

    @loop
    def scale(start, stop, values, out, factor):      # plain Python over numpy arrays
        values, out = values[start:stop], out[start:stop]
        for i in range(values.size):
            out[i] = values[i] * factor

    in_parallel(scale, n, array(values), array(out), np.float32(2))

A loop slices its part first and counts from 0: indices that the compiler cannot prove non-negative
prevent vectorisation (six times slower). Loops run without the interpreter's lock.

`loop` compiles with numba at the first call and caches the machine code in the cache folder (or
`NUMBA_CACHE_DIR`; `loop_cache.py`), keyed by a hash of the loop's file and of `random.py`, this
file and `coding/`: functions that loops call in other files must be there.

Tensors in host memory share theirs with the array; others are copied, and writes to the copy are
lost unless `written_back`. Results must not depend on the number of threads, so `in_parallel` cuts
at multiples of `grain` elements, and sums are kept for each `SUM_BLOCK` elements.
"""

from __future__ import annotations

import hashlib
import inspect
import itertools
import os
import pickle
import shutil
import sys
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
import numpy as np
from numba.core import compiler, config, serialize
from numba.core.caching import FunctionCache
from numba.core.compiler_lock import global_compiler_lock
from numba.core.runtime.nrt import rtsys
from numpy.typing import NDArray

from gcsim.compressors import on_device
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.errors import InputError
from gcsim.files import cache_folder, others_write, replacing, sealed, unsealed, waiting_for

F = TypeVar("F", bound=Callable[..., Any])

FLOAT32_MAX = float(np.finfo(np.float32).max)
SUM_BLOCK = 4096
"""Elements of one partial sum."""
_WORTH_A_THREAD = 1 << 17
_SHORT = 2 * _WORTH_A_THREAD
"""Ranges below this many elements take one thread."""
_KEPT_BUILDS = 4
_dumps: Any = serialize.dumps
_rebuild: Any = compiler.CompileResult._rebuild


def loop(function: F) -> F:
    """Compile a function of numbers and numpy arrays; callable from other loops. Division by zero
    gives infinity or NaN, as in numpy; indices are not checked."""
    return _compiled(function, fastmath=False)


def summing_loop(function: F) -> F:
    """`loop` with sums of floats free to be reordered: several times faster. Only over a fixed
    range of at most `SUM_BLOCK`: the order depends on its length and the processor."""
    # neither `nnan` nor `ninf`: infinity and NaN must show in a sum
    return _compiled(function, fastmath={"reassoc", "nsz", "contract"})


def inlined(function: F) -> F:
    """A small function for use inside loops."""
    return cast("F", numba.njit(inline="always", error_model="numpy")(function))


def _compiled(function: F, fastmath: Any) -> F:
    options: Any = {"fastmath": fastmath, "no_cfunc_wrapper": True}  # no C code calls it
    compiled: Any = numba.njit(nogil=True, error_model="numpy", **options)(function)
    compiled._cache = LoopCache(function)  # as numba's `enable_caching` does
    compiled.compile = _by_one_process(compiled.compile, function)
    return cast("F", compiled)


def _by_one_process(compile_: Callable[..., Any], function: Callable[..., Any]) -> Any:
    """Let one of several ranks that start together compile a loop; the others wait and load it."""
    name = f"{function.__module__}.{function.__qualname__}.lock"

    def compile_or_load(signature: Any) -> Any:
        # numba's lock first: a thread that holds it may come here for a loop that a loop calls
        with global_compiler_lock, ExitStack() as stack:
            if folder := loops_folder():
                with suppress(OSError):  # one that cannot be written to has nothing to wait for
                    stack.enter_context(waiting_for(folder / name))
            return compile_(signature)

    return compile_or_load


def in_parallel(kernel: Callable[..., Any], n: int, *arguments: Any, grain: int = 1 << 16) -> None:
    """Call `kernel(start, stop, *arguments)` over 0 … n, cut at multiples of `grain`, on torch's
    threads (one when n is small). Results are dropped, exceptions raised."""
    parts = n // max(grain, _WORTH_A_THREAD) if n >= _SHORT else 1
    threads = min(torch.get_num_threads(), parts) if parts > 1 else 1
    grains = -(-n // grain)
    cuts = [min(n, grains * part // threads * grain) for part in range(threads)]
    _in_parts(kernel, [*cuts, n], arguments)


def in_tiles(kernel: Callable[..., Any], tiles: NDArray[np.int64], *arguments: Any) -> None:
    """Call `kernel(start, stop, tiles, *arguments)` over the tiles of a table (`segments.py`), on
    as many threads as `in_parallel` would take for their elements."""
    threads = torch.get_num_threads()
    cuts = [0, len(tiles)]
    if threads == 1:
        kernel(*cuts, tiles, *arguments)
        return
    if len(tiles) > 1:
        upto = np.cumsum(tiles[:, 2] - tiles[:, 1])
        total = int(upto[-1])
        threads = min(threads, total // _WORTH_A_THREAD) if total >= _SHORT else 1
        shares = total * np.arange(1, threads) // max(1, threads)
        # each thread begins with the tile in which its share of the elements does
        cuts[1:1] = np.searchsorted(upto, shares, side="right").tolist()
    _in_parts(kernel, cuts, (tiles, *arguments))


def _in_parts(kernel: Callable[..., Any], cuts: list[int], arguments: tuple[Any, ...]) -> None:
    pending = [
        _pool(len(cuts) - 1).submit(kernel, start, stop, *arguments)
        for start, stop in itertools.pairwise(cuts[1:])
    ]
    kernel(cuts[0], cuts[1], *arguments)  # the caller's own part
    for part in pending:
        part.result()


def array(tensor: Tensor) -> NDArray[Any]:
    """The tensor as numpy array: its own memory on the host, else a copy."""
    if not tensor.is_cpu:
        on_device.host_visits += 1
    found: NDArray[Any] = tensor.numpy(force=True)
    return found


def tensor(values: NDArray[Any], like: Tensor) -> Tensor:
    """The array as tensor on the device of `like`; shares its memory on the host."""
    made = torch.from_numpy(values)
    if like.is_cpu:
        return made
    on_device.host_visits += 1
    return made.to(like.device)


class written_back:  # noqa: N801 - used as a function; a generator would take longer than a loop
    """Context of `array(target)` to be written to, copied back at its end where necessary."""

    __slots__ = ("_target", "_values")

    def __init__(self, target: Tensor) -> None:
        self._target, self._values = target, array(target)

    def __enter__(self) -> NDArray[Any]:
        return self._values

    def __exit__(self, kind: object, error: object, where: object) -> None:
        if kind is None and not self._target.is_cpu:
            self._target.copy_(torch.from_numpy(self._values))


def partial_sums(n: int) -> NDArray[np.float64]:
    """Zeros for one sum of each `SUM_BLOCK` of n elements."""
    return np.zeros(-(-n // SUM_BLOCK), dtype=np.float64)


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="gcsim-loop")


class LoopCache(FunctionCache):
    """Numba's cache of one function, one file for each signature. A missing or unusable file means
    compiling again; it never makes a call fail."""

    def __init__(self, function: Callable[..., Any]) -> None:  # without numba's files
        self._py_func = function
        self._name = f"{function.__module__}.{function.__qualname__}"
        self._source: str | None = None  # of a prompt, whose loops are not kept
        self._impl = None
        path = inspect.getfile(function)
        with suppress(OSError):
            self._source = _hash(path, os.stat(path).st_mtime_ns)

    @property
    def cache_path(self) -> str | None:
        """The folder, or None where nothing is kept."""
        folder = loops_folder()
        return None if folder is None else str(folder)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The compiled function of this signature, or None without a trustworthy file."""
        # What machine code calls. What compiles is not loaded, nor what that needs of scipy: the
        # first loop that has to be compiled does, in a quarter of a second.
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
        """Store a compiled function; warn where that fails."""
        if data.library.has_dynamic_globals:  # addresses of this process
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
    """Content of a trustworthy entry; a damaged one is removed."""
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
    """The folder of machine code, cleared of older sources' code; None where none can be kept."""
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
        with suppress(OSError):  # another's installation that may be read
            folder.touch()
            old = sorted(builds.glob("gcsim-*"), key=lambda path: path.stat().st_mtime)
            for build in old[:-_KEPT_BUILDS]:
                shutil.rmtree(build, ignore_errors=True)
    except OSError as error:
        _not_kept(folder, f"cannot write: {error.strerror}")
        return None
    return folder


def _sources() -> str:
    """Hash of the files with functions that loops of other files call."""
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
