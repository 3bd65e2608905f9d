"""FetchSGD: what if workers add up small sketches, and the large coordinates are read from the sum?

A count sketch of a bucket of n elements is a table of r rows and c columns: in each row, element i
is added to one column h(i) with a sign s(i), both hashes. It is linear, so workers all-reduce
their tables (32 r c bits, divided by their number) and momentum and error live in the sketch:
    S_u = rho S_u + mean table,    S_e = S_e + S_u,
    estimate_i = median over rows of s(i) S_e[row, h(i)],    update = the k largest estimates,
and the cells that the update hits become zero in S_e and in S_u. With a parameter server
(`aggregate: push_pull`) the tables go up and k indices and values come down (64 k bits); the
state is the server's. With `all_reduce` every worker keeps the state and nothing comes down.

The table is one for the whole bucket, as is k = max(1, round(n ratio)); by default c = .075 n and
k = .0075 n, the 500,000 columns and 50,000 coordinates of the paper's 6.5 million parameters.

Readings: the learning rate is the optimiser's, that is 1 in the error's sum. Algorithm 1 takes
S(update) off S_e (`after: subtract`); the published code zeroes the cells, and those of
the momentum too (`momentum_masking`). Hashes are computed inside the loops
from a key of seed, bucket and row (a table of them would take 5 n words); with `blocks` above 1
they repeat every n / blocks elements, each block with an offset and a sign of its own, as in the
published CSVec, whose stored hashes that makes affordable.

Biased by the selection. In each row an estimate is off by what collides, a deviation of about
|g| / sqrt(c); the median of the rows is off by less. Nothing is promised of |Q(g) - g|.

Cost: r random accesses an element to encode and to decode, into tables that are larger than a
processor's near cache: about 1 ns each.

Memory: two partial tables beside the message (so that threads do not share cells, whatever their
number) and n floats of estimates: .75 n, then n with the defaults.

Source: D. Rothchild et al., "FetchSGD: Communication-Efficient Federated Learning with
Sketching", ICML 2020, arXiv:2007.07682, Algorithm 1; count sketch: M. Charikar,
K. Chen, M. Farach-Colton, ICALP 2002.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import Field

from gcsim.compressors.base import About, Compressor, CompressorParameters, Ratio, Worker
from gcsim.compressors.bucket import Bucket
from gcsim.compressors.coding.frame import (
    Codec,
    Frame,
    as_bytes,
    from_bytes,
    pack_frame,
    read_frames,
)
from gcsim.compressors.coding.selection import count_kept, largest
from gcsim.compressors.lazy_torch import torch
from gcsim.compressors.loops import array, in_parallel, loop, tensor, written_back
from gcsim.compressors.meter import kernel
from gcsim.compressors.random import bits64, random_key, stream
from gcsim.compressors.requests import AllReduce, Exchange, PushPull
from gcsim.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

PARTS = 2
"""Partial tables: each row of each is written by one thread only."""
_CHUNK = 1024
"""Elements whose estimates are made together: they stay in the processor's cache."""


class CountSketchParameters(CompressorParameters):
    """Hyper-parameters of `CountSketch`."""

    rows: int = Field(5, ge=1, le=15, description="r, independent hashes of each element")
    column_ratio: Ratio = Field(0.075, description="c, columns of the table, as a fraction of n")
    columns: int | None = Field(
        None, ge=1, le=1 << 31, description="c as a number; null: column_ratio of the bucket"
    )
    ratio: Ratio = Field(0.0075, description="fraction of the bucket that is updated")
    momentum: float = Field(0.9, ge=0, lt=1, description="rho, momentum in the sketch")
    momentum_masking: bool = Field(True, description="zero the momentum's cells that are hit, too")
    after: Literal["zero", "subtract"] = Field(
        "zero", description="cells that are hit become zero, or lose the update's sketch (Alg. 1)"
    )
    aggregate: Literal["all_reduce", "push_pull"] = Field(
        "all_reduce", description="sum tables and decode on every worker, or on a server"
    )
    blocks: int = Field(1, ge=1, description="parts of the bucket that share their hashes")


class CountSketch(Compressor):
    """Count sketches are summed; the heavy coordinates of the sum are the update."""

    Parameters = CountSketchParameters
    about = About(
        title="FetchSGD (count sketch)",
        family="sketching",
        collective="all-reduce of the table (or push-pull: table up, sparse update down)",
        bits="32 rows columns / n; push-pull: 64 ratio down",
        unbiased=False,
        state="momentum and error tables (2 rows columns); push-pull: the server's",
        paper="Rothchild et al., FetchSGD, ICML 2020, arXiv:2007.07682",
    )

    def __init__(self, worker: Worker, parameters: CompressorParameters) -> None:
        super().__init__(worker, parameters)
        assert isinstance(parameters, CountSketchParameters)
        self.parameters = parameters
        self._momentum: dict[int, Tensor] = {}
        self._error: dict[int, Tensor] = {}
        """By bucket: float32 `[r, c]`."""
        self._forms: dict[int, tuple[int, int, int]] = {}
        """By bucket: rows, columns and blocks of the tables; others cannot be added to them."""

    @classmethod
    def momentum(cls, parameters: CompressorParameters) -> tuple[float, bool]:
        """See `Compressor.momentum`."""
        assert isinstance(parameters, CountSketchParameters)
        return parameters.momentum, False

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        """See `Compressor.exchange`."""
        hashes = self.hashes(bucket)
        table = sketch(bucket.gradient, hashes)
        n = bucket.gradient.numel()
        if self.parameters.aggregate == "all_reduce":
            table = (yield AllReduce(tensor=table)).div_(self.worker.count)
            indices, values = self._decode(bucket, table, hashes)
        else:

            def serve(payloads: Iterable[Tensor]) -> Tensor:
                total = torch.zeros_like(table)
                for payload in payloads:
                    frame = only_frame(payload, n)
                    total.view(-1).add_(from_bytes(frame.body, torch.float32, total.numel()))
                found = self._decode(bucket, total.div_(self.worker.count), hashes)
                return _pack(torch.cat([as_bytes(part) for part in found]), n, found[0].numel())

            message = _pack(as_bytes(table.view(-1)), n, n)
            answer = yield PushPull(payload=message, server=serve)
            indices, values = unpack_answer(answer, n)
        update = torch.zeros_like(bucket.gradient)
        update[indices.long()] = values
        return update

    def hashes(self, bucket: Bucket) -> Hashes:
        """The hash functions of a bucket, the same on all workers at all steps."""
        p, n, index = self.parameters, bucket.gradient.numel(), bucket.layout.index
        columns = p.columns or count_kept(n, p.column_ratio) or 1
        return Hashes(self.worker.seed, index, n, rows=p.rows, columns=columns, blocks=p.blocks)

    def _decode(self, bucket: Bucket, table: Tensor, hashes: Hashes) -> tuple[Tensor, Tensor]:
        """The server's step on the mean table: (indices int32 ascending, values) of the update."""
        p, index, n = self.parameters, bucket.layout.index, bucket.gradient.numel()
        form = hashes.rows, hashes.columns, p.blocks
        if self._forms.get(index) != form:
            self._forms[index] = form
            self._error[index], self._momentum[index] = (torch.zeros_like(table) for _ in range(2))
        momentum, error = self._momentum[index], self._error[index]
        momentum.mul_(p.momentum).add_(table)
        error.add_(momentum)
        estimates = estimate(error, n, hashes)
        indices = largest(estimates, count_kept(n, p.ratio))
        values = estimates[indices]
        indices = indices.to(torch.int32)
        with written_back(error) as cells:
            _take_off(indices, values, cells, hashes, subtract=p.after == "subtract")
        if p.momentum_masking and p.momentum:
            with written_back(momentum) as cells:
                _take_off(indices, values, cells, hashes, subtract=False)
        return indices, values


def _pack(body: Tensor, n: int, travelling: int) -> Tensor:
    return pack_frame(Codec.SKETCH, body, numel=n, nonzero=travelling)


def only_frame(message: Tensor, n: int) -> Frame:
    """The one frame of a bucket of n elements; `InputError` when it is something else."""
    frames = list(read_frames(message, expected=Codec.SKETCH))
    if len(frames) != 1 or frames[0].numel != n:
        found = [frame.numel for frame in frames]
        raise InputError(f"damaged payload: sketches of {found} elements, expected [{n}]")
    return frames[0]


def unpack_answer(message: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """(indices int32, values float32) of the server's answer; `InputError` when damaged."""
    frame = only_frame(message, n)
    k = frame.nonzero
    indices = from_bytes(frame.body[: 4 * k], torch.int32, k)
    values = from_bytes(frame.body[4 * k :], torch.float32, k)
    if k and (int(indices[0]) < 0 or int(indices[-1]) >= n or bool((indices.diff() <= 0).any())):
        raise InputError("damaged payload: indices do not ascend below n")
    return indices, values


# --- the sketch --------------------------------------------------------------------------------


class Hashes:
    """Column and sign of each element in each row of a table of `rows` x `columns`."""

    def __init__(
        self, seed: int, bucket: int, n: int, *, rows: int, columns: int, blocks: int = 1
    ) -> None:
        self.rows, self.columns = rows, columns
        self.length = max(1, -(-n // blocks))
        """Elements of a block, but for the last."""
        count = max(1, -(-n // self.length))
        names = [f"count sketch, row {row}" for row in range(rows)]
        self.keys = np.array([random_key(seed, 0, bucket, name) for name in names], dtype=np.uint64)
        shift = stream(seed, 0, bucket, "count sketch, blocks")
        self.offsets = shift.integers(0, columns, (rows, count)).astype(np.uint64)
        self.flips = shift.integers(0, 2, (rows, count)).astype(np.uint64)
        self.offsets[:, 0] = self.flips[:, 0] = 0

    @property
    def for_loops(self) -> tuple[Any, ...]:
        """What the loops take: keys, offsets, flips, block length, columns."""
        return self.keys, self.offsets, self.flips, self.length, np.uint64(self.columns)


@loop
def _hash(
    key: Any, first: int, offset: Any, flip: Any, total: Any, columns: Any, signs: Any
) -> None:
    """Fill columns (int32) and signs (float32) of the block's elements from number `first` on.

    The column is the upper half of 64 random bits, scaled, and moved by the block's offset; the
    sign is the lowest bit. Without branches and memory: it runs vectorised.
    """
    for i in range(columns.size):
        hashed = bits64(key, first + i)
        column = (((hashed >> np.uint64(32)) * total) >> np.uint64(32)) + offset
        columns[i] = column - total if column >= total else column
        signs[i] = np.float32(1) - np.float32(2) * np.float32((hashed ^ flip) & np.uint64(1))


@kernel("gather_scatter")
def sketch(values: Tensor, hashes: Hashes) -> Tensor:
    """The table of a float32 `[n]`: float32 `[r, c]`.

    Each cell adds up its elements in order, in `PARTS` sums: the same on any number of threads.
    """
    n = values.numel()
    partial = np.zeros((PARTS, hashes.rows, hashes.columns), dtype=np.float32)
    units = PARTS * hashes.rows  # a unit is one row of the table of one part of the elements
    in_parallel(_add_rows, units * n, array(values), partial, *hashes.for_loops, grain=max(1, n))
    table: NDArray[np.float32] = partial[0]
    for other in partial[1:]:
        table += other
    return tensor(table, values)


@loop
def _add_rows(
    start: int, stop: int, values: Any, partial: Any, keys: Any, offsets: Any, flips: Any,
    length: int, total: Any,
) -> None:  # fmt: skip
    n = values.size
    columns, signs = np.empty(_CHUNK, dtype=np.int32), np.empty(_CHUNK, dtype=np.float32)
    for unit in range(start // max(1, n), stop // max(1, n)):
        part, row = unit % PARTS, unit // PARTS
        cells = partial[part][row]
        at, last = n * part // PARTS, n * (part + 1) // PARTS
        while at < last:
            block = at // length
            end = min(at + _CHUNK, last, (block + 1) * length)
            piece, here = values[at:end], columns[: end - at]
            offset, flip = offsets[row, block], flips[row, block]
            _hash(keys[row], at - block * length, offset, flip, total, here, signs[: end - at])
            for i in range(piece.size):
                cells[here[i]] += piece[i] * signs[i]
            at = end


@kernel("gather_scatter")
def estimate(table: Tensor, n: int, hashes: Hashes) -> Tensor:
    """The median over rows of each element's cell times sign: float32 `[n]`.

    Of an even number of rows the mean of the two in the middle.
    """
    out = np.empty(n, dtype=np.float32)
    cells = array(table)
    in_parallel(_estimate, n, cells, out, *hashes.for_loops, grain=_CHUNK)
    return tensor(out, table)


@loop
def _estimate(
    start: int, stop: int, table: Any, out: Any, keys: Any, offsets: Any, flips: Any,
    length: int, total: Any,
) -> None:  # fmt: skip
    rows = keys.size
    columns, signs = np.empty(_CHUNK, dtype=np.int32), np.empty(_CHUNK, dtype=np.float32)
    seen = np.empty((rows, _CHUNK), dtype=np.float32)
    at = start
    while at < stop:
        block = at // length
        end = min(at + _CHUNK, stop, (block + 1) * length)
        here = columns[: end - at]
        for row in range(rows):
            cells, found = table[row], seen[row][: end - at]
            offset, flip = offsets[row, block], flips[row, block]
            _hash(keys[row], at - block * length, offset, flip, total, here, signs[: end - at])
            for i in range(found.size):
                found[i] = cells[here[i]] * signs[i]
        _sort_columns(seen, end - at)
        low_middle, high_middle, piece = seen[(rows - 1) // 2], seen[rows // 2], out[at:end]
        for i in range(piece.size):
            piece[i] = np.float32(0.5) * low_middle[i] + np.float32(0.5) * high_middle[i]
        at = end


@loop
def _sort_columns(values: Any, count: int) -> None:
    """Sort each column by exchanging rows, in an order that does not depend on the values."""
    rows = values.shape[0]
    for turn in range(rows):
        for row in range(turn % 2, rows - 1, 2):
            upper, lower = values[row][:count], values[row + 1][:count]
            for i in range(upper.size):
                one, other = upper[i], lower[i]
                upper[i] = one if one < other else other
                lower[i] = other if one < other else one


@kernel("gather_scatter")
def _take_off(
    indices: Tensor, values: Tensor, table: NDArray[np.float32], hashes: Hashes, *,
    subtract: bool,
) -> None:  # fmt: skip
    """Zero the cells of the indices (int32), or subtract the values' sketch, in place."""
    _clear_cells(array(indices), array(values), table, subtract, *hashes.for_loops)


@loop
def _clear_cells(
    indices: Any, values: Any, table: Any, subtract: bool, keys: Any, offsets: Any, flips: Any,
    length: int, total: Any,
) -> None:  # fmt: skip
    column, sign = np.empty(1, dtype=np.int32), np.empty(1, dtype=np.float32)
    for row in range(keys.size):
        cells = table[row]
        for at in range(indices.size):
            block = indices[at] // length
            offset, flip = offsets[row, block], flips[row, block]
            _hash(keys[row], indices[at] - block * length, offset, flip, total, column, sign)
            if subtract:
                cells[column[0]] -= values[at] * sign[0]
            else:
                cells[column[0]] = np.float32(0)
