"""Momentum on the worker: one pass that brings it on and uses it.

`add_momentum` is DGC's step, of which the large elements are marked; the other steps are those of
workers that move on their own (`local_updates/`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from gcsim.compressors.coding.selecting.marks import BLOCK, Limits, Marks, count_marks, mark_block
from gcsim.compressors.kernels import KernelCost
from gcsim.compressors.lazy_torch import Tensor
from gcsim.compressors.loops import array, in_parallel, in_tiles, loop, tensor, written_back
from gcsim.compressors.meter import counted_as, kernel, launch
from gcsim.compressors.on_device import primitive
from gcsim.compressors.segments import Segments


def _launches(
    _: object, u: object, v: object, gradient: object, segments: Segments, *__: object
) -> Iterator[KernelCost]:
    yield launch("streaming", "dgc.add_momentum", segments.length, 20 * segments.length)


@counted_as(_launches)
def add_momentum(
    u: Tensor, v: Tensor, gradient: Tensor, segments: Segments, m: float, nesterov: bool,
    limits: Limits,
) -> Marks:  # fmt: skip
    """u = m u + g, v += u (Nesterov: u = m (u + g), v += u + g), in place; |v| >= limit is marked.

    u, v and the gradient are flat float32 of the table, limits `[tensors]`.
    """
    marks = Marks.room(v, segments, limits)
    fill_velocity(v, u, gradient, segments, m, nesterov, marks)
    return marks


@primitive
def fill_velocity(
    v: Tensor, u: Tensor, gradient: Tensor, segments: Segments, m: float, nesterov: bool,
    marks: Marks,
) -> None:  # fmt: skip
    """The pass of `add_momentum`, and what it marks."""
    with written_back(u) as direction, written_back(v) as velocity, written_back(marks.counts) as c:
        in_tiles(
            _add_momentum, segments.tiles, direction, velocity, array(gradient), np.float32(m),
            nesterov, segments.table, marks.up, marks.lower, marks.first, c, marks.places,
        )  # fmt: skip
        count_marks(segments.length, marks.first, c, marks.host[0])


@kernel("streaming", updates=("momentum", "error"), name="cser.local_step")
@primitive
def error_step(gradient: Tensor, momentum: Tensor, error: Tensor, m: float) -> Tensor:
    """u = m u + g and E += g + m u, in place; the direction g + m u, float32 `[n]`."""
    direction = np.empty(gradient.numel(), dtype=np.float32)
    with written_back(momentum) as u, written_back(error) as e:
        in_parallel(_error_step, u.size, array(gradient), u, e, np.float32(m), direction)
    return tensor(direction, gradient)


@kernel("streaming", updates=("momentum", "applied"), name="qsparse_local_sgd.local_step")
@primitive
def local_step(gradient: Tensor, momentum: Tensor, applied: Tensor, m: float) -> Tensor:
    """u = m u + g and applied += u, in place; returns u, float32 `[n]`."""
    direction = np.empty(gradient.numel(), dtype=np.float32)
    with written_back(momentum) as u, written_back(applied) as sums:
        in_parallel(_local_step, u.size, array(gradient), u, sums, np.float32(m), direction)
    return tensor(direction, gradient)


@kernel("streaming", updates=("momentum", "applied", "error"), name="qsparse_local_sgd.last_step")
@primitive
def last_step(
    gradient: Tensor, momentum: Tensor, applied: Tensor, error: Tensor, m: float
) -> Tensor:
    """u = m u + g, error += applied + u, in place; takes `applied` out: returns -applied."""
    taken = np.empty(gradient.numel(), dtype=np.float32)
    with written_back(momentum) as u, written_back(applied) as sums, written_back(error) as e:
        in_parallel(_last_step, u.size, array(gradient), u, sums, e, np.float32(m), taken)
    return tensor(taken, gradient)


# --- loops ----------------------------------------------------------------------------------------


@loop
def _add_momentum(
    start: int, stop: int, tiles: Any, u: Any, v: Any, gradient: Any, m: Any, nesterov: bool,
    table: Any, up: Any, down: Any, firsts: Any, counts: Any, places: Any,
) -> None:  # fmt: skip
    mask = np.zeros(BLOCK + 8, dtype=np.uint8)
    words = mask.view(np.uint64)
    for tile in range(start, stop):
        t, begin, end = tiles[tile]
        for first in range(begin, end, BLOCK):
            own = slice(table[t, 0] + first, table[t, 0] + min(first + BLOCK, end))
            direction, velocity, added = u[own], v[own], gradient[own]
            if nesterov:
                for i in range(added.size):
                    step = (direction[i] + added[i]) * m
                    direction[i] = step
                    velocity[i] += step + added[i]
            else:
                for i in range(added.size):
                    step = direction[i] * m + added[i]
                    direction[i] = step
                    velocity[i] += step
            block = firsts[t] + first // BLOCK
            counts[block] = mark_block(velocity, up[t], down[t], mask, words, places[block])


@loop
def _error_step(
    start: int, stop: int, gradient: Any, momentum: Any, error: Any, m: Any, direction: Any
) -> None:
    gradient, momentum = gradient[start:stop], momentum[start:stop]
    error, direction = error[start:stop], direction[start:stop]
    for i in range(gradient.size):
        momentum[i] = m * momentum[i] + gradient[i]
        direction[i] = gradient[i] + m * momentum[i]
        error[i] += direction[i]


@loop
def _local_step(
    start: int, stop: int, gradient: Any, momentum: Any, applied: Any, m: Any, direction: Any
) -> None:
    gradient, momentum = gradient[start:stop], momentum[start:stop]
    applied, direction = applied[start:stop], direction[start:stop]
    for i in range(gradient.size):
        u = m * momentum[i] + gradient[i]
        momentum[i] = u
        applied[i] += u
        direction[i] = u


@loop
def _last_step(
    start: int, stop: int, gradient: Any, momentum: Any, applied: Any, error: Any, m: Any,
    taken: Any,
) -> None:  # fmt: skip
    gradient, momentum = gradient[start:stop], momentum[start:stop]
    applied, error, taken = applied[start:stop], error[start:stop], taken[start:stop]
    for i in range(gradient.size):
        u = m * momentum[i] + gradient[i]
        momentum[i] = u
        error[i] += applied[i] + u
        taken[i] = -applied[i]
        applied[i] = np.float32(0)
