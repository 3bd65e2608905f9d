"""1-bit SGD: each element travels as one bit, and what is lost is added to the next step.

a = g + e. Each column of a matrix has two levels, and the bit of an element says which one it
decodes to; e = a - decoded. With `threshold` = zero the bit says a >= 0 and the levels are the
means of the column's elements on either side (0 where there are none): the error is the variance
within the two classes. With `threshold` = mean the bit says a >= the column's mean m, and the
levels are m -/+ sum |a - m| / M, M elements a column.

Aggregation by stripes, as published: worker q owns the q-th of N stripes of columns of each
matrix. An all-to-all brings it everybody's bits of its stripe; it averages what they decode to,
adds its own error, codes the result in the same way, keeps what that loses, and an all-gather
of the N coded stripes gives everybody the same update. Or an all-gather of everybody's bits, of
which each worker decodes all.

A tensor of shape (a, b, …) is a matrix of a rows and b * … columns; a vector is one column.
Stripes have ceil(columns / N) columns; what goes beyond the matrix travels as zeros, so that all
messages are equally long.

Payload: 1 bit an element and 64 a column, for stripes there and (its N-th part a worker) back.
State: error (n); an owner's error (n / N). Biased; with error feedback nothing is lost.

Assumes that the decoded stripes are averaged where the paper adds them up: the levels scale with
the values. CNTK pads each column to words of 32 bits; here bits are not padded.

Source: F. Seide, H. Fu, J. Droppo, G. Li, D. Yu, "1-Bit Stochastic Gradient Descent and its
Application to Data-Parallel Distributed Training of Speech DNNs", Interspeech 2014; the threshold
at the mean as in Microsoft CNTK's ColumnQuantizer.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import numpy as np
from pydantic import Field, model_validator

from gcsim.compressors.base import About, Compressor, CompressorParameters, Worker
from gcsim.compressors.bucket import Bucket, BucketLayout
from gcsim.compressors.coding.frames import Codec, frames, put, read, seal, taken
from gcsim.compressors.coding.integers.packing import damaged, packed_bytes
from gcsim.compressors.coding.one_bit.columns import (
    Matrices,
    Stripes,
    add_columns,
    column_sums,
    matrix_shape,
    put_column_bits,
)
from gcsim.compressors.coding.sparse import energy
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.properties import Properties
from gcsim.compressors.requests import AllGather, AllToAll, Exchange
from gcsim.compressors.segments import Segments
from gcsim.compressors.sharing import fill_once

Threshold = Literal["zero", "mean"]


class OneBitSgdParameters(CompressorParameters):
    threshold: Threshold = Field(
        "zero", description="what a bit compares with: zero, or the column's mean"
    )
    levels_per: Literal["column", "tensor"] = Field(
        "column", description="elements that share two levels (64 bits): a matrix column, or all"
    )
    aggregation: Literal["stripes", "all_gather"] = Field(
        "stripes",
        description="each worker sums and codes again a stripe of columns, or all decode all",
    )
    error_feedback: bool = Field(True, description="add what was lost to the next step")

    @model_validator(mode="after")
    def _a_tensor_cannot_be_cut(self) -> OneBitSgdParameters:
        if self.levels_per == "tensor" and self.aggregation == "stripes":
            raise ValueError("levels_per: tensor needs aggregation: all_gather (no columns to cut)")
        return self


class OneBitSgd(Compressor[OneBitSgdParameters]):
    """One bit an element, two levels a column, error feedback at sender and at owner."""

    about = About(
        title="1-bit SGD",
        family="quantization",
        collective="all-to-all of stripes, all-gather of the coded sums; or all-gather",
        bits="1 + 64 / rows of the matrix; stripes: its N-th part again as owner",
        state="error (n); stripes: owner's error (n / workers)",
        paper="Seide et al., Interspeech 2014",
    )

    def __init__(self, worker: Worker, parameters: OneBitSgdParameters) -> None:
        super().__init__(worker, parameters)
        self._owned_error: dict[int, Tensor] = {}
        """By bucket: of the stripes that this worker owns, one tensor after the other."""

    @classmethod
    def properties(cls, parameters: OneBitSgdParameters) -> Properties:
        """See `Compressor.properties`: with a threshold of zero, no more than one column."""

        def error(values: Tensor) -> float:
            left, n = values.clone(), np.array([values.numel()])
            matrix = Matrices(n, n // np.maximum(1, n), 0 * n, 1)  # one column
            encoded(left, matrix, parameters.threshold, Segments.behind(n), keep_error=True)
            return energy(left)

        whole = parameters.levels_per == "tensor"
        return Properties(
            error_bound=error if whole or parameters.threshold == "zero" else None,
            error_is_exact=whole,
            conserves=parameters.error_feedback,
        )

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        layout, count = bucket.layout, self.worker.count
        if self.parameters.error_feedback:
            values, added = self.kept("error", bucket), bucket.gradient
        else:
            values, added = bucket.gradient, None
        matrices = self._matrices(layout)
        messages = self._encode(values, layout, matrices, added)
        if self.parameters.aggregation == "all_gather":
            payloads = yield AllGather(payload=messages[0])
            return self.mean_of(payloads, bucket, add_decoded, stripes=matrices.stripes)
        received = yield AllToAll(payloads=messages)
        own = matrices.owned
        total = self._owned(layout, own, bucket.gradient)
        for message in received:
            add_decoded(message, layout, total, 1.0 / count, stripes=own.stripes)
        (message,) = self._encode(total, layout, own)
        answers = yield AllGather(payload=message, part=True)
        update = torch.zeros_like(bucket.gradient)
        return fill_once(_add_all, answers, update, layout, matrices)

    def residual_of(self, bucket: Bucket) -> Tensor | None:
        """See `Compressor.residual_of`: its error, and N times that which it holds as an owner."""
        if not self.parameters.error_feedback:
            return None
        held, owned = self.kept("error", bucket).clone(), self._owned_error.get(bucket.layout.index)
        if owned is not None:
            matrices, at = self._matrices(bucket.layout).stripes_of(self.worker.rank), 0
            for rows, columns, offset, first, width, _ in matrices.table.tolist():
                whole = held[offset : offset + rows * columns].view(rows, columns)
                error = owned[at : at + rows * width].view(rows, width)
                part = whole[:, first : first + width]
                part.add_(error[:, : part.shape[1]], alpha=float(self.worker.count))
                at += rows * width
        return held

    def _matrices(self, layout: BucketLayout) -> Matrices:
        whole = self.parameters.levels_per == "tensor"
        count = self.worker.count if self.parameters.aggregation == "stripes" else 1
        known: dict[Any, Matrices] = layout.facts
        if (key := (OneBitSgd, whole, count)) not in known:
            known[key] = matrices_of(layout, count, whole=whole)
        return known[key]

    def _owned(self, layout: BucketLayout, stripes: Matrices, like: Tensor) -> Tensor:
        """Sums that the owned stripes are added to: their errors, or zeros."""
        numel = int((stripes.rows * stripes.columns).sum())
        if not self.parameters.error_feedback:
            return like.new_zeros(numel)
        if layout.index not in self._owned_error:
            self._owned_error[layout.index] = like.new_zeros(numel)
        return self._owned_error[layout.index]

    def _encode(
        self, values: Tensor, layout: BucketLayout, matrices: Matrices, added: Tensor | None = None
    ) -> list[Tensor]:
        tensors, chosen = Segments.of(_repeated(layout, matrices.count)), self.parameters
        return encoded(
            values, matrices, chosen.threshold, tensors, keep_error=chosen.error_feedback,
            added=added,
        )  # fmt: skip


def matrices_of(layout: BucketLayout, count: int, *, whole: bool = False) -> Matrices:
    """A bucket's tensors in `count` stripes each; `whole`: each tensor is one column."""
    shapes = [(p.numel, min(1, p.numel)) if whole else matrix_shape(p) for p in layout.slices]
    rows, columns = np.array(shapes, dtype=np.int64).T
    return Matrices(rows, columns, Segments.of(layout).begin, count)


def encoded(
    values: Tensor, matrices: Matrices, threshold: Threshold, tensors: Segments, *,
    keep_error: bool, added: Tensor | None = None,
) -> list[Tensor]:  # fmt: skip
    """A message for each owner of stripes, of `values`, or of values + `added`.

    Both are flat float32 vectors that the matrices lie in. With `keep_error` `values` become what
    the messages do not say. `tensors` is the table of all frames' tensors.
    """
    lines = column_levels(values, matrices, threshold, added)
    stripes = matrices.stripes
    sent, head = stripes.elements.length, 4 * stripes.width
    sizes = 2 * head + packed_bytes(sent, 1)
    message, at = frames(values, Codec.BINARY, tensors, sizes, nonzero=sent, fixed=True)
    put(message, at, lines[1], head)
    put(message, at + head, lines[2], head)
    put_column_bits(values, stripes, lines, message, at + 2 * head, keep_error=keep_error)
    return list(seal(message, at, sizes).chunk(matrices.count))


def column_levels(
    values: Tensor, matrices: Matrices, threshold: Threshold, added: Tensor | None = None
) -> Tensor:
    """Thresholds, lower and upper levels: float32 `[3, lines]`, 0 beyond a matrix.

    `added`, a vector as `values`, is first added to them, in place.
    """
    total, magnitude, count = column_sums(values, matrices, added=added)
    stripes = matrices.stripes
    of_lines = torch.from_numpy(np.repeat(stripes.table[:, 0], stripes.width))
    rows = of_lines.to(values.device, torch.float64)
    if threshold == "zero":
        # half the sum of two sums rounds: what should be exactly 0 is asked of the counts
        highs = torch.where(count > 0, (magnitude + total) / (2 * count), 0.0)
        lows = torch.where(count < rows, (total - magnitude) / (2 * (rows - count)), 0.0)
        return torch.stack((torch.zeros_like(lows), lows, highs)).float()
    means = (total / rows).float()
    _, magnitude, _ = column_sums(values, matrices, centres=means)
    spread = (magnitude / rows).float()
    return torch.stack((means, means - spread, means + spread))


def add_decoded(
    message: Tensor, layout: BucketLayout, out: Tensor, weight: float, *, stripes: Stripes
) -> None:
    """out += weight * decoded message, in place; `out` is the vector that the matrices lie in.

    The message has a frame for each stripe, of the tensors of the layout. Raises `InputError` when
    it is damaged or of another layout.
    """
    found, sent = read(message, layout, Codec.BINARY), stripes.elements.length
    if found.flags.any() or found.params.any() or (found.nonzero != sent).any():
        raise damaged(f"{found.nonzero.tolist()} elements of stripes, not {sent.tolist()}")
    at, head = found.at, 4 * stripes.width
    found.demand_sizes(2 * head + packed_bytes(sent, 1))
    lows = taken(message, at, head, torch.float32)  # [lines]
    highs = taken(message, at + head, head, torch.float32)
    add_columns(out, stripes, message, at + 2 * head, lows, highs, weight)


def _add_all(
    answers: Iterable[Tensor], out: Tensor, layout: BucketLayout, matrices: Matrices
) -> None:
    """Those of all owners, in order: together they are the frames of all stripes."""
    each = list(answers)
    if len({len(message) for message in each}) != 1:
        raise damaged(f"stripes of {[len(message) for message in each]} bytes")
    frames_of_all = _repeated(layout, matrices.count)
    add_decoded(torch.cat(each), frames_of_all, out, 1.0, stripes=matrices.stripes)


def _repeated(layout: BucketLayout, count: int) -> BucketLayout:
    """The tensors of all frames of `count` owners."""
    known: dict[Any, BucketLayout] = layout.facts
    if (key := ("repeated", count)) not in known:
        known[key] = BucketLayout(index=layout.index, slices=layout.slices * count)
    return known[key]
