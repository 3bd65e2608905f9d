"""Momentum on the worker, updated and used in one pass: DGC's `add_momentum`, which also marks
large elements, and the local steps of methods in `local_updates/`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gcsim.compressors.coding.one_bit.bits import written_to
from gcsim.compressors.coding.selecting.marks import BLOCK, Limits, Marks, count_marks, mark_block
from gcsim.compressors.kernels import KernelCost
from gcsim.compressors.lazy_torch import Tensor
from gcsim.compressors.loops import array, in_parallel, in_tiles, loop, tensor, written_back
from gcsim.compressors.meter import counted_as, launch
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
    """Set u = m u + g, v += u (Nesterov: u = m (u + g), v += u + g), in place; mark |v| >= limit.
    u, v and the gradient are flat float32 of the table, limits `[tensors]`."""
    marks = Marks.room(v, segments, limits)
    fill_velocity(v, u, gradient, segments, m, nesterov, marks)
    return marks


@primitive
def fill_velocity(
    v: Tensor, u: Tensor, gradient: Tensor, segments: Segments, m: float, nesterov: bool,
    marks: Marks,
) -> None:  # fmt: skip
    """Run the pass of `add_momentum` and fill its marks."""
    with written_back(u) as direction, written_back(v) as velocity, written_back(marks.counts) as c:
        in_tiles(
            _add_momentum, segments.tiles, direction, velocity, array(gradient), np.float32(m),
            nesterov, segments.table, marks.up, marks.first, c, marks.places,
        )  # fmt: skip
        count_marks(segments.length, marks.first, c, marks.host[0])


@counted_as(
    lambda direction, *given, nesterov=False, error=None: [
        launch(
            "streaming",
            "qsparse_local_sgd.last_step" if error is not None
            else "cser.local_step" if nesterov else "qsparse_local_sgd.local_step",
            direction.numel(), (24 if error is None else 32) * direction.numel(),
        )
    ]
)  # fmt: skip
@primitive
def local_step(
    gradient: Tensor, momentum: Tensor, sums: Tensor, m: float, *, nesterov: bool = False,
    error: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Set u = m u + g and sums += d, in place; return the direction d = u, or Nesterov's g + m u.
    With `error` the round ends: error += sums + d, and -sums is returned. All are float32 `[n]`."""
    direction = np.empty(gradient.numel(), dtype=np.float32)
    with written_to(momentum, sums, error) as (u, s, e):
        in_parallel(
            _local_step, u.size, array(gradient), u, s, e, np.float32(m), nesterov, direction
        )
    return tensor(direction, gradient)


@loop
def _add_momentum(
    start, stop, tiles, u, v, gradient, m, nesterov, table, up, firsts, counts, places
):
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
            # tiles are cut at multiples of BLOCK, so a block belongs to one thread
            block = firsts[t] + first // BLOCK
            counts[block] = mark_block(velocity, up[t], mask, words, places[block])


@loop
def _local_step(start, stop, gradient, momentum, sums, error, m, nesterov, direction):
    # an omitted `error` is empty, and so is its slice
    gradient, momentum = gradient[start:stop], momentum[start:stop]
    sums, error, direction = sums[start:stop], error[start:stop], direction[start:stop]
    if nesterov:
        for i in range(gradient.size):
            momentum[i] = m * momentum[i] + gradient[i]
            direction[i] = gradient[i] + m * momentum[i]
            sums[i] += direction[i]
    elif error.size:
        for i in range(gradient.size):
            u = m * momentum[i] + gradient[i]
            momentum[i] = u
            # take the round's steps back: then all ranks step by what they exchange
            error[i] += sums[i] + u
            direction[i] = -sums[i]
            sums[i] = np.float32(0)
    else:
        for i in range(gradient.size):
            u = m * momentum[i] + gradient[i]
            momentum[i] = u
            sums[i] += u
            direction[i] = u
