"""1-bit SGD: what if each element travels as one bit, and what is lost is added to the next step?

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
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from gcsim.compressors.base import About, Compressor, CompressorParameters, Worker
from gcsim.compressors.bucket import Bucket, BucketLayout
from gcsim.compressors.coding.frame import Codec, as_bytes, from_bytes, pack_frame, together
from gcsim.compressors.coding.integers.packing import check_packed, packed_bytes
from gcsim.compressors.coding.messages import frames_of, split_body
from gcsim.compressors.coding.one_bit.columns import (
    add_and_sum_columns,
    add_columns,
    column_bits,
    column_sums,
    matrix_shape,
)
from gcsim.compressors.coding.one_bit.parts import (
    add_stripes,
    frame_bytes,
    put_all_stripes,
    put_stripes,
)
from gcsim.compressors.coding.sparse import energy
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.loops import array
from gcsim.compressors.properties import Properties
from gcsim.compressors.requests import AllGather, AllToAll, Exchange
from gcsim.compressors.sharing import fill_once
from gcsim.errors import InputError

Threshold = Literal["zero", "mean"]
_NONE = np.zeros(0, dtype=np.float32)


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
            left = values.clone()
            if left.numel():
                found = column_levels(left, 1, parameters.threshold)
                column_bits(left, 1, (0, 1), found, keep_error=True)
            return energy(left)

        whole = parameters.levels_per == "tensor"
        return Properties(
            error_bound=error if whole or parameters.threshold == "zero" else None,
            error_is_exact=whole,
            conserves=parameters.error_feedback,
        )

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        layout, count = bucket.layout, self.worker.count
        matrices = self._matrices(layout)
        if self.parameters.error_feedback:
            values, added = self.kept("error", bucket), bucket.gradient
        else:
            values, added = bucket.gradient, None
        if self.parameters.aggregation == "all_gather":
            (message,) = self._encode(values, matrices, 1, added)
            payloads = yield AllGather(payload=message)
            return self.mean_of(payloads, bucket, add_stripe, matrices=matrices, stripe=(0, 1))
        received = yield AllToAll(payloads=self._encode(values, matrices, count, added))
        own = stripes_of(matrices, count)
        total = self._owned(layout, own, bucket.gradient)
        _add_all(received, layout, total, 1.0 / count, own, (0, 1), 0)
        (message,) = self._encode(total, own, 1)
        answers = yield AllGather(payload=message, part=True)
        update = torch.zeros_like(bucket.gradient)
        return fill_once(_add_stripes, answers, update, layout, matrices, count)

    def residual_of(self, bucket: Bucket) -> Tensor | None:
        """See `Compressor.residual_of`: its error, and N times that which it holds as an owner."""
        if not self.parameters.error_feedback:
            return None
        held = self.kept("error", bucket).clone()
        rank, count = self.worker.rank, self.worker.count
        if self.parameters.aggregation == "stripes" and bucket.layout.index in self._owned_error:
            matrices = self._matrices(bucket.layout)
            owned = self._owned_error[bucket.layout.index]
            for matrix, stripe in zip(matrices, stripes_of(matrices, count), strict=True):
                first = rank * stripe.columns
                there = matrix.part(held)[:, first : first + stripe.columns]
                there.add_(stripe.part(owned)[:, : there.shape[1]], alpha=float(count))
        return held

    def _matrices(self, layout: BucketLayout) -> Matrices:
        known: dict[Any, Matrices] = layout.facts
        if (key := (OneBitSgd, self.parameters.levels_per)) not in known:
            known[key] = matrices_of(layout, self.parameters.levels_per == "tensor")
        return known[key]

    def _owned(self, layout: BucketLayout, stripes: Matrices, like: Tensor) -> Tensor:
        """What the owned stripes are added to: their errors, or zeros."""
        numel = sum(stripe.rows * stripe.columns for stripe in stripes)
        if not self.parameters.error_feedback:
            return like.new_zeros(numel)
        if layout.index not in self._owned_error:
            self._owned_error[layout.index] = like.new_zeros(numel)
        return self._owned_error[layout.index]

    def _encode(
        self, values: Tensor, matrices: Matrices, count: int, added: Tensor | None = None
    ) -> list[Tensor]:
        """One message for each of `count` stripes, of `values`, or of values + `added`.

        Both are flat float32 vectors that the matrices lie in. With error feedback `values`
        become what the messages do not say.
        """
        if together(values):
            return self._encode_together(values, matrices, count, added)
        frames: list[list[Tensor]] = [[] for _ in range(count)]
        for matrix in matrices:
            part, width = matrix.part(values).view(-1), matrix.cut(count)  # [rows * columns]
            lines = self._lines(part, matrix, count, added)
            for owner in range(count):
                stripe = owner * width, width
                own = lines[:, stripe[0] : stripe[0] + width].contiguous()
                body = values.new_zeros(0, dtype=torch.uint8)
                if part.numel():
                    levels, keeps = (own[0], own[1], own[2]), self.parameters.error_feedback
                    bits = column_bits(part, matrix.columns, stripe, levels, keep_error=keeps)
                    body = torch.cat((as_bytes(own[1:].view(-1)), bits))
                n, sent = matrix.tensor_numel, matrix.rows * width
                frames[owner].append(pack_frame(Codec.BINARY, body, numel=n, nonzero=sent))
        return [torch.cat(some) for some in frames]

    def _encode_together(
        self, values: Tensor, matrices: Matrices, count: int, added: Tensor | None
    ) -> list[Tensor]:
        """`_encode` in one loop, or with thresholds at means in one a matrix."""
        sizes = [frame_bytes(m.rows, m.cut(count)) for m in matrices]
        messages, at = np.empty((count, sum(sizes)), dtype=np.uint8), 0
        keeps, codec = self.parameters.error_feedback, int(Codec.BINARY)
        if self.parameters.threshold == "zero":
            more = _NONE if added is None else array(added)
            given = array(values), more, matrices.table(count)
            put_all_stripes(messages, *given, keeps, codec)
            return list(torch.from_numpy(messages))
        for matrix, size in zip(matrices, sizes, strict=True):
            place = slice(matrix.offset, matrix.offset + matrix.rows * matrix.columns)
            lines = array(self._lines(values[place], matrix, count, added))
            put_stripes(
                messages[:, at : at + size], array(values)[place], matrix.columns,
                matrix.cut(count), lines, keeps, codec, matrix.tensor_numel,
            )  # fmt: skip
            at += size
        return list(torch.from_numpy(messages))

    def _lines(self, part: Tensor, matrix: Matrix, count: int, added: Tensor | None) -> Tensor:
        """Thresholds, lower and upper levels of the columns of `count` stripes: `[3, columns]`."""
        lines = part.new_zeros(3, matrix.cut(count) * count)
        if part.numel():
            more = None if added is None else matrix.part(added).view(-1)
            found = column_levels(part, matrix.columns, self.parameters.threshold, more)
            lines[:, : matrix.columns] = torch.stack(found)
        return lines


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """A tensor as matrix, or a worker's stripe of one, within a flat vector."""

    rows: int
    columns: int
    offset: int
    tensor_numel: int
    """Elements of the tensor, which its frames state."""

    def part(self, flat: Tensor) -> Tensor:
        """Its elements of the flat vector, as `[rows, columns]`, sharing their memory."""
        end = self.offset + self.rows * self.columns
        return flat[self.offset : end].view(self.rows, self.columns)

    def cut(self, count: int) -> int:
        """Columns of each of `count` stripes."""
        return -(-self.columns // count)


class Matrices(tuple[Matrix, ...]):
    """Those of a bucket."""

    def table(self, count: int) -> NDArray[np.int64]:
        """What `add_stripes` asks for, of `count` stripes of each."""
        known: dict[Any, NDArray[np.int64]] = vars(self)
        if count not in known:
            rows = [(m.rows, m.columns, m.offset, m.cut(count), m.tensor_numel) for m in self]
            known[count] = np.array(rows, dtype=np.int64).reshape(-1, 5)
        return known[count]


def matrices_of(layout: BucketLayout, whole: bool) -> Matrices:
    """Those of a bucket's tensors; `whole`: each is one column."""
    matrices = []
    for piece in layout.slices:
        rows, columns = (piece.numel, 1) if whole else matrix_shape(piece)
        matrices.append(
            Matrix(rows=rows, columns=columns, offset=piece.offset, tensor_numel=piece.numel)
        )
    return Matrices(matrices)


def stripes_of(matrices: Matrices, count: int) -> Matrices:
    """One stripe of each matrix, all stripes in one flat vector."""
    known: dict[Any, Matrices] = vars(matrices)
    if (key := ("stripes", count)) not in known:
        stripes, at = [], 0
        for matrix in matrices:
            width = matrix.cut(count)
            stripes.append(replace(matrix, columns=width, offset=at))
            at += matrix.rows * width
        known[key] = Matrices(stripes)
    return known[key]


def column_levels(
    values: Tensor, columns: int, threshold: Threshold, added: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """(thresholds, lower, upper levels), float32 `[columns]`, of a float32 `[rows * columns]`.

    `added`, of the same shape, is first added to `values`, in place.
    """
    rows = values.numel() // columns
    centres = values.new_zeros(columns)
    if added is None:
        total, magnitude, count = column_sums(values, centres, columns)
    else:
        total, magnitude, count = add_and_sum_columns(values, added, columns)
    if threshold == "zero":
        # half the sum of two sums rounds: what should be exactly 0 is asked of the counts
        highs = torch.where(count > 0, (magnitude + total) / (2 * count), 0.0)
        lows = torch.where(count < rows, (total - magnitude) / (2 * (rows - count)), 0.0)
        return centres, lows.float(), highs.float()
    means = (total / rows).float()
    _, magnitude, _ = column_sums(values, means, columns)
    spread = (magnitude / rows).float()
    return means, means - spread, means + spread


def add_stripe(
    message: Tensor, layout: BucketLayout, out: Tensor, weight: float, *,
    matrices: Matrices, stripe: tuple[int, int],
) -> None:  # fmt: skip
    """out += weight * decoded message, in place.

    Parameters
    ----------
    message : uint8, the frames of one stripe of each matrix
    layout : of the bucket that the matrices belong to
    out : the float32 vector that the matrices lie in
    stripe : which one, out of how many

    Raises `InputError` when the message is damaged or of another layout.
    """
    number, count = stripe
    if together(out):
        given = matrices.table(count), np.array([number]), array(out), np.float32(weight)
        if add_stripes(array(message).reshape(1, -1), *given, int(Codec.BINARY)):
            return  # else it is damaged, and what follows says where
    frames = frames_of(message, layout, Codec.BINARY)
    for (piece, frame), matrix in zip(frames, matrices, strict=True):
        width = matrix.cut(count)
        elements = matrix.rows * width
        if frame.nonzero != elements or frame.flags or frame.params:
            raise InputError(
                f"damaged payload: {frame.nonzero} elements of a stripe of {piece.name}, "
                f"not {elements}"
            )
        head, bits = split_body(frame, 8 * width if elements else 0, packed_bytes(elements, 1))
        if elements:
            check_packed(bits, elements, 1)
            low, high = from_bytes(head, torch.float32, 2 * width).view(2, width)
            part, at = matrix.part(out).view(-1), (number * width, width)
            add_columns(part, matrix.columns, at, bits, (low, high), weight=weight)


def _add_stripes(
    answers: Iterable[Tensor], out: Tensor, layout: BucketLayout, matrices: Matrices, count: int
) -> None:
    """Those of all owners, in order."""
    _add_all(answers, layout, out, 1.0, matrices, (0, count), 1)


def _add_all(
    messages: Iterable[Tensor], layout: BucketLayout, out: Tensor, weight: float,
    matrices: Matrices, first: tuple[int, int], next_one: int,
) -> None:  # fmt: skip
    """`add_stripe` of each message: of the first stripe, and of that so many further, and so on."""
    number, count = first
    if together(out):
        messages = list(messages)
        if len({message.numel() for message in messages}) == 1:
            numbers = number + next_one * np.arange(len(messages))
            given = matrices.table(count), numbers, array(out), np.float32(weight)
            done = add_stripes(array(torch.stack(messages)), *given, int(Codec.BINARY))
            number += next_one * done
            messages = messages[done:]  # of which the first is damaged, and what follows says where
    for message in messages:
        add_stripe(message, layout, out, weight, matrices=matrices, stripe=(number, count))
        number += next_one
