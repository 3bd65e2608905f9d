"""Compiled loops over elements, on as many threads as torch uses.

    @loop
    def scale(start, stop, values, out, factor):      # plain Python over numpy arrays
        values, out = values[start:stop], out[start:stop]
        for i in range(values.size):
            out[i] = values[i] * factor

    in_parallel(scale, n, array(values), array(out), np.float32(2))

A loop slices its part first and counts from 0: indices that may be negative, for all that the
compiler knows, are not vectorised (six times slower).

`loop` compiles with numba at the first call (a fraction of a second) and keeps the machine code
in the cache folder (or `NUMBA_CACHE_DIR`): `loop_cache.py`. The code is kept by a hash of the
loop's own file, and of all that loops call in other files: such functions live in `random.py`, here
or in `coding/`. A loop runs without the interpreter's lock.

Tensors in host memory share theirs with the array; others are copied, and what a loop writes into
such a copy is lost: `written_back` copies it back.

Results must not depend on the number of threads. So `in_parallel` cuts a range at multiples of
`grain` elements, and a loop that adds up writes one partial sum for each `SUM_BLOCK` elements.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import cache
from typing import Any, TypeVar, cast

import numba
import numpy as np
from numba.core.compiler_lock import global_compiler_lock
from numpy.typing import NDArray

from gcsim.compressors import on_device
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.loop_cache import LoopCache, loops_folder
from gcsim.files import waiting_for

F = TypeVar("F", bound=Callable[..., Any])

FLOAT32_MAX = float(np.finfo(np.float32).max)
"""The largest float32."""
SUM_BLOCK = 4096
"""Elements that are added up in one go."""
_WORTH_A_THREAD = 1 << 17
_SHORT = 2 * _WORTH_A_THREAD
"""Fewer elements are one thread's."""


def loop(function: F) -> F:
    """Compile a function of numbers and numpy arrays; callable from other loops.

    Division by zero gives infinity or NaN, as in numpy; indices are not checked.
    """
    return _compiled(function, fastmath=False)


def summing_loop(function: F) -> F:
    """`loop`, with sums of floats free to be reordered: several times faster when vectorised.

    Only for loops over a fixed range (a block of at most `SUM_BLOCK`): the order depends on the
    length of the loop and on the processor, not on the threads.
    """
    return _compiled(function, fastmath={"reassoc", "nsz", "contract"})


def inlined(function: F) -> F:
    """A small function for use inside loops."""
    return cast("F", numba.njit(inline="always", error_model="numpy")(function))


def _compiled(function: F, fastmath: Any) -> F:
    compiled: Any = numba.njit(nogil=True, error_model="numpy", fastmath=fastmath)(function)
    compiled._cache = LoopCache(function)  # as numba's `enable_caching` does
    compiled.compile = _by_one_process(compiled.compile, function)
    return cast("F", compiled)


def _by_one_process(compile_: Callable[..., Any], function: Callable[..., Any]) -> Any:
    """Ranks that start together need the same loops: one compiles, the others wait and load."""
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
    """Call `kernel(start, stop, *arguments)` over 0 … n, cut at multiples of `grain`.

    As many threads as `torch.get_num_threads()`, one when n is small. What `kernel` returns is
    dropped; an exception in any of the parts is raised.
    """
    if n < _SHORT:  # most tensors: no more questions
        kernel(0, n, *arguments)
        return
    parts = n // max(grain, _WORTH_A_THREAD)
    if parts < 2 or (threads := min(torch.get_num_threads(), parts)) == 1:
        kernel(0, n, *arguments)
        return
    grains = -(-n // grain)
    _in_parts(
        kernel, [min(n, grains * part // threads * grain) for part in range(threads)] + [n],
        arguments,
    )  # fmt: skip


def in_tiles(kernel: Callable[..., Any], tiles: NDArray[np.int64], *arguments: Any) -> None:
    """Call `kernel(start, stop, tiles, *arguments)` over the tiles of a table (`segments.py`).

    As many threads as `in_parallel` would take for their elements.
    """
    threads = torch.get_num_threads()
    cuts = [0, len(tiles)]
    if threads > 1 and len(tiles) > 1:
        upto = np.cumsum(tiles[:, 2] - tiles[:, 1])
        total = int(upto[-1])
        threads = min(threads, total // _WORTH_A_THREAD) if total >= _SHORT else 1
        shares = total * np.arange(1, threads) // max(1, threads)
        cuts[1:1] = np.searchsorted(upto, shares, side="right").tolist()
    _in_parts(kernel, cuts, (tiles, *arguments))


def _in_parts(kernel: Callable[..., Any], cuts: list[int], arguments: tuple[Any, ...]) -> None:
    """A call between every two cuts, each on a thread of its own."""
    pending = [
        _pool(len(cuts) - 1).submit(kernel, start, stop, *arguments)
        for start, stop in itertools.pairwise(cuts[1:])
    ]
    kernel(cuts[0], cuts[1], *arguments)
    for part in pending:
        part.result()


def array(tensor: Tensor) -> NDArray[Any]:
    """The tensor as numpy array: its own memory when that is the host's, else a copy."""
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
    """`array(target)` to be written to; on another device the tensor is then updated."""

    __slots__ = ("_target", "_values")

    def __init__(self, target: Tensor) -> None:
        self._target, self._values = target, array(target)

    def __enter__(self) -> NDArray[Any]:
        return self._values

    def __exit__(self, kind: object, error: object, where: object) -> None:
        if kind is None and not self._target.is_cpu:
            self._target.copy_(torch.from_numpy(self._values))


def partial_sums(n: int) -> NDArray[np.float64]:
    """Room for one sum of each `SUM_BLOCK` of n elements, zeros."""
    return np.zeros(-(-n // SUM_BLOCK), dtype=np.float64)


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="gcsim-loop")
