"""1-bit SGD: one bit per element, and the error is added to the next gradient.

a = g + e. Each column of a matrix has two levels; an element's bit is a >= 0 and decodes to the
mean of the column's elements with the same bit (0 if there are none); e = a - decoded, whose energy
is the variance within the two classes.

Aggregation by stripes, as published: worker q owns the q-th of N stripes of columns of each matrix.
It receives all workers' bits of its stripe in an all-to-all, averages them, adds its own error,
codes the result in the same way and keeps the error; an all-gather of the N coded stripes gives the
update.

A tensor of shape (a, b, …) is a matrix of a rows and b * … columns; a vector is one column. Stripes
have ceil(columns / N) columns, padded with zeros, so that messages have equal lengths.

Payload: 1 bit per element and 64 per column for the stripes, and an N-th of that for the answer.
State: error (n); an owner's error (n / N). Biased; with error feedback nothing is lost.

Decoded stripes are averaged; the paper adds them up, which only scales the levels. CNTK pads each
column to words of 32 bits; here bits are not padded.

Source: F. Seide, H. Fu, J. Droppo, G. Li, D. Yu, "1-Bit Stochastic Gradient Descent and its
Application to Data-Parallel Distributed Training of Speech DNNs", Interspeech 2014.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from pydantic import Field

from gcsim.compressors.base import About, Compressor, CompressorParameters, Properties
from gcsim.compressors.bucket import Bucket, BucketLayout
from gcsim.compressors.coding.frames import Codec, frames, joined, read, seal
from gcsim.compressors.coding.integers.packing import damaged
from gcsim.compressors.coding.one_bit.bits import Stripes, add_levels, put_bits
from gcsim.compressors.coding.one_bit.columns import Matrices, column_levels, matrix_shape
from gcsim.compressors.coding.sparse import energy
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.requests import AllGather, AllToAll, Exchange
from gcsim.compressors.segments import Segments
from gcsim.compressors.sharing import fill_once


class OneBitSgdParameters(CompressorParameters):
    error_feedback: bool = Field(True, description="add the compression error to the next gradient")


class OneBitSgd(Compressor[OneBitSgdParameters]):
    about = About(
        title="1-bit SGD",
        family="quantization",
        collective="all-to-all of stripes, all-gather of the coded sums",
        bits="1 + 64 / rows of the matrix, and its N-th part again as owner",
        state="error (n), owner's error (n / workers)",
        paper="Seide et al., Interspeech 2014",
    )

    @classmethod
    def properties(cls, parameters: OneBitSgdParameters) -> Properties:
        """Return the properties; the error is known only for a single column."""

        def error(values: Tensor) -> float:
            left, n = values.clone(), np.array([values.numel()])
            matrix = Matrices(n, n // np.maximum(1, n), 0 * n, 1)  # one column
            encoded(left, matrix, Segments.behind(n), keep_error=True)
            return energy(left)

        return Properties(error_bound=error, conserves=parameters.error_feedback)

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        layout, count, feedback = bucket.layout, self.worker.count, self.parameters.error_feedback
        values = self.kept("error", bucket) if feedback else bucket.gradient
        matrices, frames_of_all = self._matrices(layout)
        messages = self._encode(values, matrices, layout, frames_of_all, bucket.gradient)
        received = yield AllToAll(payloads=messages)
        own = matrices.owned
        owned = self.state["owned"] if feedback else {}
        if (total := owned.get(layout.index)) is None:
            total = bucket.gradient.new_zeros(int((own.rows * own.columns).sum()))
            owned[layout.index] = total  # error of coding the stripes, tensor by tensor
        for message in received:
            add_decoded(message, layout, total, 1.0 / count, stripes=own.stripes)
        (message,) = self._encode(total, own, layout, layout)
        answers = yield AllGather(payload=message, part=True)
        update = torch.empty_like(bucket.gradient)
        return fill_once(_write_all, answers, update, frames_of_all, matrices.stripes)

    def residual_of(self, bucket: Bucket) -> Tensor | None:
        """Return the worker's error, plus N times its error as an owner."""
        if not self.parameters.error_feedback:
            return None
        held, owned = (
            self.kept("error", bucket).clone(),
            self.state["owned"].get(bucket.layout.index),
        )
        if owned is not None:
            matrices, at = self._matrices(bucket.layout)[0], 0
            for rows, columns, offset, first, width, *_ in matrices.stripes_of(
                self.worker.rank
            ).table:
                whole = held[offset : offset + rows * columns].view(rows, columns)
                error = owned[at : at + rows * width].view(rows, width)
                part = whole[:, first : first + width]
                part.add_(error[:, : part.shape[1]], alpha=float(self.worker.count))
                at += rows * width
        return held

    def _matrices(self, layout: BucketLayout) -> tuple[Matrices, BucketLayout]:
        """Return (the bucket's tensors as matrices, the tensors of all owners' frames)."""
        count = self.worker.count
        known: dict[Any, tuple[Matrices, BucketLayout]] = layout.facts
        if (key := (OneBitSgd, count)) not in known:
            repeated = BucketLayout(index=layout.index, slices=layout.slices * count)
            known[key] = matrices_of(layout, count), repeated
        return known[key]

    def _encode(
        self, values: Tensor, matrices: Matrices, layout: BucketLayout, tensors: BucketLayout,
        added: Tensor | None = None,
    ) -> list[Tensor]:  # fmt: skip
        feedback = self.parameters.error_feedback
        return encoded(
            values, matrices, Segments.of(tensors), keep_error=feedback,
            added=added if feedback else None, part=Segments.of(layout),
        )  # fmt: skip


def matrices_of(layout: BucketLayout, count: int) -> Matrices:
    """Divide each of a bucket's tensors into `count` stripes."""
    rows, columns = np.array([matrix_shape(p) for p in layout.slices], dtype=np.int64).T
    return Matrices(rows, columns, Segments.of(layout).begin, count)


def encoded(
    values: Tensor, matrices: Matrices, tensors: Segments, *, keep_error: bool,
    added: Tensor | None = None, part: Segments | None = None,
) -> list[Tensor]:  # fmt: skip
    """Encode a message for each owner of stripes, of `values` or values + `added`, flat float32 of
    the matrices. With `keep_error` `values` become the error. `tensors` is the table of all frames'
    tensors, `part` that of one message."""
    stripes = matrices.stripes
    head = 4 * stripes.width
    sizes = 2 * head + stripes.sizes
    message, at = frames(
        values, Codec.BINARY, tensors, sizes, nonzero=stripes.elements.length, fixed=True, part=part
    )
    lines = column_levels(values, matrices, message, at, added=added)
    put_bits(values, stripes, lines, message, at + 2 * head, keep_error=keep_error)
    return list(seal(message, at, sizes).chunk(matrices.count))


def add_decoded(
    message: Tensor, layout: BucketLayout, out: Tensor, weight: float, *, stripes: Stripes,
    overwrite: bool = False,
) -> None:  # fmt: skip
    """Add weight * decoded message to `out` (the vector of the matrices) in place, or `overwrite`
    it. The message has one frame per stripe, for the tensors of the layout. Raises `InputError` if
    it is damaged or has another layout."""
    found, sent = read(message, layout, Codec.BINARY), stripes.elements.length
    if found.flags.any() or found.params.any() or (found.nonzero != sent).any():
        raise damaged(f"{found.nonzero.tolist()} elements of stripes, not {sent.tolist()}")
    at, head = found.at, 4 * stripes.width
    found.demand_sizes(2 * head + stripes.sizes)
    places = at, at + head
    add_levels(
        out, stripes, message, at + 2 * head, message, places, (weight, weight), overwrite=overwrite
    )


def _write_all(
    answers: Iterable[Tensor], out: Tensor, layout: BucketLayout, stripes: Stripes
) -> None:
    """Decode the answers of all owners in order: the frames of all stripes."""
    add_decoded(joined(answers), layout, out, 1.0, stripes=stripes, overwrite=True)
