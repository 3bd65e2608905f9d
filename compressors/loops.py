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
file and `coding/`: functions that loops call in other files must be there. Where numba is not
installed, loops run as Python, some hundred times slower and with equal results.

Tensors in host memory share theirs with the array; others are copied, and writes to the copy are
lost unless `written_back`. Results must not depend on the number of threads, so `in_parallel` cuts
at multiples of `grain` elements, and sums are kept for each `SUM_BLOCK` elements.
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
"""Elements of one partial sum."""
_WORTH_A_THREAD = 1 << 17
_SHORT = 2 * _WORTH_A_THREAD
"""Ranges below this many elements take one thread."""


__all__ = [
    "FLOAT32_MAX", "SUM_BLOCK", "array", "in_parallel", "in_tiles", "inlined", "loop", "overload",
    "partial_sums", "summing_loop", "tensor", "usable", "written_back",
]  # fmt: skip


def loop(function: F) -> F:
    """Compile a function of numbers and numpy arrays; callable from other loops. Division by zero
    gives infinity or NaN, as in numpy; indices are not checked."""
    return cast("F", compiled(function))


def summing_loop(function: F) -> F:
    """`loop` with sums of floats free to be reordered: several times faster. Only over a fixed
    range of at most `SUM_BLOCK`: the order depends on its length and the processor."""
    # neither `nnan` nor `ninf`: infinity and NaN must show in a sum
    return cast("F", compiled(function, fastmath={"reassoc", "nsz", "contract"}))


def inlined(function: F) -> F:
    """A small function for use inside loops."""
    return cast("F", inside(function))


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
