"""FetchSGD: workers add up small sketches, and the large coordinates are read from the sum.

A count sketch of a bucket of n elements is a table of r rows and c columns: in each row, element i
is added to one column h(i) with a sign s(i), both hashes. It is linear, so workers all-reduce
their tables (32 r c bits, divided by their number) and momentum and error live in the sketch:
    S_u = rho S_u + mean table,    S_e = S_e + S_u,
    estimate_i = median over rows of s(i) S_e[row, h(i)],    update = the k largest estimates,
and the cells that the update hits become zero in S_e and in S_u. With a parameter server
(`aggregate: push_pull`) the tables go up and k indices and values come down (64 k bits); the
state is the server's; it reads all columns for every estimate, so that without a server everybody
gets all tables. With `all_reduce` every worker keeps the state and nothing comes down.

The table is one for the whole bucket, as is k = max(1, round(n ratio)); by default c = .075 n and
k = .0075 n, the 500,000 columns and 50,000 coordinates of the paper's 6.5 million parameters.

Readings: the learning rate is the optimiser's, that is 1 in the error's sum. The paper takes
S(update) off S_e (`after: subtract`); the published code zeroes the cells, and those of
the momentum too (`momentum_masking`). Hashes are computed inside the loops
from a key of seed, bucket and row (a table of them would take 5 n words); with `blocks` above 1
they repeat every n / blocks elements, each block with an offset and a sign of its own, as in the
published CSVec, whose stored hashes that makes affordable.

Biased by the selection. In each row an estimate is off by what collides, a deviation of about
|g| / sqrt(c); the median of the rows is off by less. Nothing is promised of |Q(g) - g|.

Memory: two partial tables beside the message (so that threads do not share cells, whatever their
number) and n floats of estimates: .75 n, then n with the defaults.

Source: D. Rothchild et al., "FetchSGD: Communication-Efficient Federated Learning with
Sketching", ICML 2020, arXiv:2007.07682; the published code.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from pydantic import Field

from gcsim.compressors.base import About, Compressor, CompressorParameters, Ratio, Worker
from gcsim.compressors.bucket import Bucket
from gcsim.compressors.coding.frames import (
    Codec,
    as_bytes,
    from_bytes,
    only_frame,
    pack_frame,
)
from gcsim.compressors.coding.selecting.largest import largest_of
from gcsim.compressors.coding.selecting.selection import count_kept
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.requests import AllReduce, Exchange, PushPull
from gcsim.compressors.sketching.table import Hashes, estimate, sketch, take_off
from gcsim.errors import InputError


class CountSketchParameters(CompressorParameters):
    rows: int = Field(5, ge=1, le=15, description="r, independent hashes of each element")
    column_ratio: Ratio = Field(0.075, description="c, columns of the table, as a fraction of n")
    columns: int | None = Field(
        None, ge=1, le=1 << 31, description="c as a number; null: column_ratio of the bucket"
    )
    ratio: Ratio = Field(0.0075, description="fraction of the bucket that is updated")
    momentum: float = Field(0.9, ge=0, lt=1, description="rho, momentum in the sketch")
    momentum_masking: bool = Field(True, description="zero the momentum's cells that are hit, too")
    after: Literal["zero", "subtract"] = Field(
        "zero", description="cells that are hit become zero, or lose the update's sketch"
    )
    aggregate: Literal["all_reduce", "push_pull"] = Field(
        "all_reduce", description="sum tables and decode on every worker, or on a server"
    )
    blocks: int = Field(1, ge=1, description="parts of the bucket that share their hashes")


class CountSketch(Compressor[CountSketchParameters]):
    """Count sketches are summed; the heavy coordinates of the sum are the update."""

    about = About(
        title="FetchSGD (count sketch)",
        family="sketching",
        collective="all-reduce of the table (or push-pull: table up, sparse update down)",
        without_server="all_gather",
        bits="32 rows columns / n; push-pull: 64 ratio down",
        state="momentum and error tables (2 rows columns); push-pull: the server's",
        paper="Rothchild et al., FetchSGD, ICML 2020, arXiv:2007.07682",
    )

    def __init__(self, worker: Worker, parameters: CountSketchParameters) -> None:
        super().__init__(worker, parameters)
        self._momentum: dict[int, Tensor] = {}
        self._error: dict[int, Tensor] = {}
        """By bucket: float32 `[r, c]`."""
        self._forms: dict[int, tuple[int, int, int]] = {}
        """By bucket: rows, columns and blocks of the tables; others cannot be added to them."""

    @classmethod
    def momentum(cls, parameters: CountSketchParameters) -> tuple[float, bool]:
        return parameters.momentum, False

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
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
                    frame = only_frame(payload, Codec.SKETCH, n)
                    total.view(-1).add_(from_bytes(frame.body, torch.float32, total.numel()))
                found = self._decode(bucket, total.div_(self.worker.count), hashes)
                return _pack(torch.cat([as_bytes(part) for part in found]), n, found[0].numel())

            message = _pack(as_bytes(table.view(-1)), n, n)
            answer = yield PushPull(payload=message, server=serve, without_server="all_gather")
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
        indices = largest_of(estimates, count_kept(n, p.ratio))
        values = estimates[indices]
        indices = indices.to(torch.int32)
        take_off(indices, values, error, hashes, subtract=p.after == "subtract")
        if p.momentum_masking and p.momentum:
            take_off(indices, values, momentum, hashes, subtract=False)
        return indices, values


def _pack(body: Tensor, n: int, travelling: int) -> Tensor:
    return pack_frame(Codec.SKETCH, body, numel=n, nonzero=travelling)


def unpack_answer(message: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """(indices int32, values float32) of the server's answer; `InputError` when damaged."""
    frame = only_frame(message, Codec.SKETCH, n)
    k = frame.nonzero
    indices = from_bytes(frame.body[: 4 * k], torch.int32, k)
    values = from_bytes(frame.body[4 * k :], torch.float32, k)
    if k and (int(indices[0]) < 0 or int(indices[-1]) >= n or bool((indices.diff() <= 0).any())):
        raise InputError("damaged payload: indices do not ascend below n")
    return indices, values
