"""Compiled loops over elements, run on as many threads as torch uses.

    @loop
    def scale(start, stop, values, out, factor):      # plain Python over numpy arrays
        values, out = values[start:stop], out[start:stop]
        for i in range(values.size):
            out[i] = values[i] * factor

    in_parallel(scale, n, array(values), array(out), np.float32(2))

A loop slices its part first and counts from 0: if the compiler cannot prove that indices are not
negative, it does not vectorise (six times slower). Loops run without the GIL.

`loop` compiles with numba at the first call and caches the machine code in the cache folder (or
`NUMBA_CACHE_DIR`; `loop_cache.py`). The key is a hash of the loop's file, `random.py`, this file
and `coding/`: loops may call functions of no other files. Without numba, loops run as Python: about
a hundred times slower, with equal results.

The array of a tensor in host memory is a view; other tensors are copied, and what is written to the
copy is lost without `written_back`. Results must not depend on the number of threads: `in_parallel`
cuts at multiples of `grain` elements, and sums are kept per `SUM_BLOCK` elements.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib.util import find_spec
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from gcsim.compressors import on_device
from gcsim.compressors.lazy_torch import Tensor, torch

try:
    _numba = find_spec("numba")
except ModuleNotFoundError:
    _numba = None
if _numba is not None:
    from gcsim.compressors.late_loops import compiled, inside, overload, usable
else:
    from gcsim.compressors.plain_loops import compiled, inside, overload, usable

F = TypeVar("F", bound=Callable[..., Any])

FLOAT32_MAX = float(np.finfo(np.float32).max)
SUM_BLOCK = 4096
"""Number of elements in one partial sum."""
_WORTH_A_THREAD = 1 << 17
_SHORT = 2 * _WORTH_A_THREAD
"""Shorter ranges run on one thread."""


__all__ = [
    "FLOAT32_MAX", "SUM_BLOCK", "array", "in_parallel", "in_tiles", "inlined", "loop", "overload",
    "partial_sums", "summing_loop", "tensor", "usable", "written_back",
]  # fmt: skip


def loop(function: F) -> F:
    """Compile a function of numbers and numpy arrays, which other loops may call. Division by zero
    gives infinity or NaN, as in numpy; indices are not checked."""
    return cast("F", compiled(function))


def summing_loop(function: F) -> F:
    """Compile like `loop`, but let sums of floats be reordered, which is several times faster. Use
    it only on a fixed range of at most `SUM_BLOCK`: the order depends on length and processor."""
    # without `nnan` and `ninf`, so that infinity and NaN reach the sum
    return cast("F", compiled(function, fastmath={"reassoc", "nsz", "contract"}))


def inlined(function: F) -> F:
    """Mark a small function for inlining into loops."""
    return cast("F", inside(function))


def in_parallel(kernel: Callable[..., Any], n: int, *arguments: Any, grain: int = 1 << 16) -> None:
    """Call `kernel(start, stop, *arguments)` on parts of 0 … n, cut at multiples of `grain`, on
    torch's threads (on one if n is small). Return values are ignored, exceptions are raised."""
    parts = n // max(grain, _WORTH_A_THREAD) if n >= _SHORT else 1
    threads = min(torch.get_num_threads(), parts) if parts > 1 else 1
    grains = -(-n // grain)
    cuts = [min(n, grains * part // threads * grain) for part in range(threads)]
    _in_parts(kernel, [*cuts, n], arguments)


def in_tiles(kernel: Callable[..., Any], tiles: NDArray[np.int64], *arguments: Any) -> None:
    """Call `kernel(start, stop, tiles, *arguments)` on parts of a table of tiles (`segments.py`),
    on as many threads as `in_parallel` would use for as many elements."""
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
        # a thread begins with the tile that contains the first element of its share
        cuts[1:1] = np.searchsorted(upto, shares, side="right").tolist()
    _in_parts(kernel, cuts, (tiles, *arguments))


def _in_parts(kernel: Callable[..., Any], cuts: list[int], arguments: tuple[Any, ...]) -> None:
    pending = [
        _pool(len(cuts) - 1).submit(kernel, start, stop, *arguments)
        for start, stop in itertools.pairwise(cuts[1:])
    ]
    kernel(cuts[0], cuts[1], *arguments)  # the calling thread takes the first part
    for part in pending:
        part.result()


def array(tensor: Tensor) -> NDArray[Any]:
    """Return the tensor as numpy array: a view if it is in host memory, else a copy."""
    if not tensor.is_cpu:
        on_device.host_visits += 1
    found: NDArray[Any] = tensor.numpy(force=True)
    return found


def tensor(values: NDArray[Any], like: Tensor) -> Tensor:
    """Return the array as tensor on the device of `like`; in host memory it is a view."""
    made = torch.from_numpy(values)
    if like.is_cpu:
        return made
    on_device.host_visits += 1
    return made.to(like.device)


class written_back:  # noqa: N801 - used as a function; a generator would take longer than a loop
    """Context with `array(target)` for writing; on leaving, copies it back if it is not a view."""

    __slots__ = ("_target", "_values")

    def __init__(self, target: Tensor) -> None:
        self._target, self._values = target, array(target)

    def __enter__(self) -> NDArray[Any]:
        return self._values

    def __exit__(self, kind: object, error: object, where: object) -> None:
        if kind is None and not self._target.is_cpu:
            self._target.copy_(torch.from_numpy(self._values))


def partial_sums(n: int) -> NDArray[np.float64]:
    """Return zeros, one for each block of `SUM_BLOCK` of n elements."""
    return np.zeros(-(-n // SUM_BLOCK), dtype=np.float64)


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="gcsim-loop")
