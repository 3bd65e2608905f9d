"""FetchSGD: workers all-reduce small sketches and recover the large coordinates from the sum.

A count sketch of a bucket of n elements is a table of r rows and c columns: in each row, element i
is added to column h(i) with sign s(i), both given by hashes. It is linear, so workers all-reduce
their tables (32 r c bits, divided by their number), and momentum and error are kept as sketches:
    S_u = rho S_u + mean table,    S_e = S_e + S_u,
    estimate_i = median over rows of s(i) S_e[row, h(i)],    update = the k largest estimates,
and the cells of the updated elements become zero in S_e and in S_u. By default c = .075 n and k =
.0075 n: 500,000 and 50,000 of the paper's 6.5 million parameters.

Choices: every worker keeps the state of the paper's server. The learning rate is left to the
optimiser and is 1 in the error's sum. Cells are zeroed as in the published code; the paper
subtracts S(update) from S_e. The selection is biased; collisions change an estimate in a row by
about |g| / sqrt(c). Runs in host memory.

Source: D. Rothchild et al., "FetchSGD: Communication-Efficient Federated Learning with
Sketching", ICML 2020, arXiv:2007.07682; the published code. Count sketches: M. Charikar, K. Chen,
M. Farach-Colton, "Finding frequent items in data streams", ICALP 2002.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from gcsim.compressors.base import About, Compressor, CompressorParameters, Ratio
from gcsim.compressors.bucket import Bucket
from gcsim.compressors.coding.selecting.largest import largest_of
from gcsim.compressors.coding.selecting.selection import count_kept
from gcsim.compressors.kernels import KernelCost, spread
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.loops import array, in_parallel, loop, tensor, written_back
from gcsim.compressors.meter import counted_as, launch
from gcsim.compressors.random import bits64, random_key
from gcsim.compressors.requests import AllReduce, Exchange

PARTS = 2
"""Number of partial tables: each row of each is written by a single thread."""
_CHUNK = 1024
"""Elements that are hashed together: few enough to stay in the processor's cache."""
Keys = NDArray[np.uint64]
"""Hash keys, one per row."""


class CountSketchParameters(CompressorParameters):
    rows: int = Field(5, ge=1, le=15, description="rows of the sketch, each with its own hash (r)")
    column_ratio: Ratio = Field(0.075, description="sketch columns (c) as a fraction of elements")
    ratio: Ratio = Field(0.0075, description="fraction of a DDP bucket's elements to update")
    momentum: float = Field(0.9, ge=0, lt=1, description="momentum of the sketch (rho)")


class CountSketch(Compressor[CountSketchParameters]):
    """Sums count sketches; the update is the heavy coordinates of the sum."""

    about = About(
        title="FetchSGD (count sketch)",
        family="sketching",
        collective="all-reduce of the table",
        bits="32 rows column_ratio",
        state="momentum and error tables (2 rows columns)",
        paper="Rothchild et al., FetchSGD, ICML 2020, arXiv:2007.07682",
    )

    @classmethod
    def momentum(cls, parameters: CountSketchParameters) -> tuple[float, bool]:
        return parameters.momentum, False

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        p, n = self.parameters, bucket.gradient.numel()
        index, columns = bucket.layout.index, count_kept(n, p.column_ratio) or 1
        keys = self.keys(index)
        mean = yield AllReduce(tensor=sketch(bucket.gradient, keys, columns))
        tables = [self.state[name] for name in ("momentum", "error")]
        for one in tables:
            if index not in one or one[index].shape != mean.shape:  # first use, or new settings
                one[index] = torch.zeros_like(mean)
        momentum, error = (one[index] for one in tables)
        momentum.mul_(p.momentum).add_(mean.div_(self.worker.count))
        estimates = estimate(error.add_(momentum), n, keys)
        indices = largest_of(estimates, count_kept(n, p.ratio))
        for table in (error, momentum):
            take_off(indices, table, keys)
        update = torch.zeros_like(bucket.gradient)
        update[indices] = estimates[indices]
        return update

    def keys(self, index: int) -> Keys:
        """Return the keys of a bucket's hashes, the same on all workers at all steps."""
        names = (f"count sketch, row {row}" for row in range(self.parameters.rows))
        return np.array([random_key(self.worker.seed, 0, index, name) for name in names])


def _launch(name: str, moved: int, values: Tensor, table: Tensor) -> list[KernelCost]:
    """Return a launch over values and table that also moves `moved` bytes of cells."""
    n = max(values.numel(), table.numel())
    return [launch("gather_scatter", f"{name}:{spread(n)}", n, moved, values.nbytes, table.nbytes)]


@counted_as(
    lambda table, values, keys, _: _launch(
        "table.sketch", 8 * len(keys) * values.numel(), values, table
    )
)
def sketch(values: Tensor, keys: Keys, columns: int) -> Tensor:
    """Return the table of a float32 `[n]`: float32 `[r, c]`. Each cell adds up its elements in
    order, in `PARTS` sums, so the result does not depend on the threads."""
    n, parts = values.numel(), np.zeros((PARTS, len(keys), columns), dtype=np.float32)
    # n elements of the range stand for one row of one part, which stays with one thread
    in_parallel(_add_rows, parts[..., 0].size * n, array(values), parts, keys, grain=max(1, n))
    with np.errstate(over="ignore"):  # a non-finite update is refused later
        return tensor(parts.sum(axis=0), values)


@counted_as(lambda out, table, n, keys: _launch("table.estimate", 4 * len(keys) * n, out, table))
def estimate(table: Tensor, n: int, keys: Keys) -> Tensor:
    """Return the median over rows of each element's cell times sign: float32 `[n]`. For an even
    number of rows it is the mean of the two middle values."""
    out = np.empty(n, dtype=np.float32)
    in_parallel(_estimate, n, array(table), out, keys, grain=_CHUNK)
    return tensor(out, table)


@counted_as(lambda _, indices, *__: _launch("table.take_off", 0, indices, indices[:0]))
def take_off(indices: Tensor, table: Tensor, keys: Keys) -> None:
    """Zero the cells of the given elements (int64) in place."""
    plain: Any = bits64  # vectorised over all elements
    with written_back(table) as cells:
        for row, key in zip(cells, keys, strict=True):
            row[((plain.py_func(key, array(indices)) >> 32) * np.uint64(row.size)) >> 32] = 0


@loop
def _hash(key: Any, first: int, count: Any, columns: Any, signs: Any) -> None:
    """Compute columns (of `count`) and signs of the elements from number `first` on. The column is
    the upper half of 64 random bits, scaled; the sign is the lowest bit."""
    for i in range(columns.size):
        hashed = bits64(key, first + i)
        columns[i] = ((hashed >> np.uint64(32)) * np.uint64(count)) >> np.uint64(32)
        signs[i] = np.float32(1) - np.float32(2) * np.float32(hashed & np.uint64(1))


@loop
def _add_rows(start: int, stop: int, values: Any, partial: Any, keys: Any) -> None:
    n = values.size
    columns, signs = np.empty(_CHUNK, dtype=np.int32), np.empty(_CHUNK, dtype=np.float32)
    for unit in range(start // max(1, n), stop // max(1, n)):  # one row of one part of the elements
        part, row = unit % PARTS, unit // PARTS
        cells, last = partial[part][row], n * (part + 1) // PARTS
        for at in range(n * part // PARTS, last, _CHUNK):
            piece = values[at : min(at + _CHUNK, last)]
            _hash(keys[row], at, cells.size, columns[: piece.size], signs[: piece.size])
            for i in range(piece.size):
                cells[columns[i]] += piece[i] * signs[i]


@loop
def _estimate(start: int, stop: int, table: Any, out: Any, keys: Any) -> None:
    rows = keys.size
    columns, signs = np.empty(_CHUNK, dtype=np.int32), np.empty(_CHUNK, dtype=np.float32)
    seen = np.empty((rows, _CHUNK), dtype=np.float32)
    for at in range(start, stop, _CHUNK):
        piece = out[at : min(at + _CHUNK, stop)]
        for row in range(rows):
            cells, found = table[row], seen[row]
            _hash(keys[row], at, cells.size, columns[: piece.size], signs[: piece.size])
            for i in range(piece.size):
                found[i] = cells[columns[i]] * signs[i]
        for turn in range(rows):  # sort each column by swapping rows, without branches
            # odd-even transposition sort: as many passes as rows suffice
            for row in range(turn % 2, rows - 1, 2):
                upper, lower = seen[row][: piece.size], seen[row + 1][: piece.size]
                for i in range(upper.size):
                    one, other = upper[i], lower[i]
                    upper[i] = one if one < other else other
                    lower[i] = other if one < other else one
        low_middle, high_middle = seen[(rows - 1) // 2], seen[rows // 2]
        for i in range(piece.size):
            # halve first, so that two large values stay finite; with odd rows both are the same
            piece[i] = np.float32(0.5) * low_middle[i] + np.float32(0.5) * high_middle[i]
