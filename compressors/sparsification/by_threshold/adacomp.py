"""AdaComp: each small bin of a tensor decides by itself which elements are worth sending.

With residual r and gradient g: G = r + g, H = G + (c - 1) g with c = 2. A tensor is cut into bins
of T consecutive elements (T = 50 for convolutions, 500 for other tensors). Element i is sent when
|H_i| is at least the largest |G| of its bin: what the next equal gradient would make the largest
goes already now, so that the number of sent elements follows the activity of the bin. All sent
elements have the value sign(G_i) * mean over bins of that maximum; r = G - sent.

A sent element is a word of 8 bits (T < 64) or 16 (T < 16384): the highest bit is the sign, the
next marks the last word of a bin, the others are the position in the bin. A bin that sends nothing
is one marked word with the largest position, which T leaves free. With m sent elements and b
empty bins: 8 (m + b) or 16 (m + b) bits and 32 for the value.

Biased, and no contraction: in a tensor whose bins differ in scale, elements of the small bins are
sent far too large, and the residual takes it back later.

Readings: a bin of zeros sends nothing (the comparison, read literally, sends all of it), and
neither does an element with G_i = 0. Tensors of one or two dimensions count as fully connected.
How bins are told apart on the wire is left open by the paper; the mark is one of its two bits.

Works in host memory, tensor by tensor.

Source: C. Chen, J. Choi, D. Brand, A. Agrawal, W. Zhang, K. Gopalakrishnan, "AdaComp: adaptive
residual gradient compression for data-parallel distributed training", AAAI 2018,
arXiv:1712.02679.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from gcsim.compressors.base import About, CompressorParameters
from gcsim.compressors.bucket import Bucket, BucketLayout, TensorSlice, bucket_state
from gcsim.compressors.coding.frames import (
    Codec,
    Frame,
    as_bytes,
    frames_of,
    from_bytes,
    pack_frame,
)
from gcsim.compressors.coding.integers.packing import damaged
from gcsim.compressors.error_feedback import ErrorFeedback
from gcsim.compressors.kernels import KernelCost, spread
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.loops import array, tensor, written_back
from gcsim.compressors.meter import counted_as, launch
from gcsim.compressors.properties import Properties
from gcsim.compressors.requests import Exchange, gather_variable
from gcsim.compressors.segments import starts
from gcsim.errors import InputError

MOST = (1 << 14) - 1
"""Elements of the largest bin: the last of 2^14 positions stands for an empty bin."""
_BYTE = 64
"""Bins shorter than this have words of one byte."""


class AdaCompParameters(CompressorParameters):
    bin_conv: int = Field(
        50, ge=1, le=MOST, description="T, elements in a bin of tensors of three dimensions or more"
    )
    bin_fc: int = Field(500, ge=1, le=MOST, description="T, elements in a bin of other tensors")
    scale_factor: float = Field(
        2.0, ge=1, le=16, description="c: H = r + c g is compared with the bin's largest |r + g|"
    )


class AdaComp(ErrorFeedback[AdaCompParameters]):
    """Elements that reach their bin's maximum, as signs of one magnitude."""

    about = About(
        title="AdaComp",
        family="sparsification",
        collective="all-gather of unequal messages",
        bits="8 (sent + empty bins) / n (16 for bins of 64 and more)",
        state="residual (n)",
        paper="Chen et al., AdaComp, AAAI 2018, arXiv:1712.02679",
    )

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        payloads = yield from gather_variable(self.encode(bucket))
        return self.mean_of(payloads, bucket, add_decoded)

    def encode(self, bucket: Bucket) -> Tensor:
        """Add the gradient and take out what is sent: uint8, one frame a tensor."""
        residual = bucket_state(self.residual, bucket)
        frames = []
        for piece, gradient in bucket.layout.views(bucket.gradient):
            size, n = self.bin_size(piece), piece.numel
            factor = self.parameters.scale_factor - 1
            level, sent, words = add_and_select(piece.of(residual), gradient, size, factor)
            body = torch.cat((as_bytes(level), as_bytes(words)))
            frames.append(pack_frame(Codec.ADACOMP, body, numel=n, nonzero=sent, params=size))
        return torch.cat(frames)

    def bin_size(self, piece: TensorSlice) -> int:
        """T of a tensor."""
        return self.parameters.bin_conv if len(piece.shape) > 2 else self.parameters.bin_fc

    @classmethod
    def properties(cls, parameters: AdaCompParameters) -> Properties:
        return Properties(conserves=True)


def _selecting(
    found: tuple[Tensor, int, Tensor], memory: Tensor, *_: object
) -> Iterable[KernelCost]:
    n = memory.numel()
    yield launch("streaming", "adacomp._add", n, 12 * n)
    yield launch("streaming", "adacomp._take", n, 12 * n, found[2].nbytes)


@counted_as(_selecting)
def add_and_select(
    memory: Tensor, gradient: Tensor, size: int, factor: float
) -> tuple[Tensor, int, Tensor]:
    """memory += gradient, and what bins of `size` send is taken out; both float32 `[n]`.

    An element is sent when |memory + factor * gradient|, after the addition, reaches its bin's
    maximum. Returns (its magnitude, float32 `[1]`; the number of sent elements; the words, uint8
    or int16 `[sent + empty bins]`). Raises `InputError` when a sum is not finite.
    """
    # a sum that overflows is refused; with the factor, it reaches any maximum
    with written_back(memory) as sums, np.errstate(over="ignore"):
        added = array(gradient)
        np.add(sums, added, out=sums)
        maxima = np.zeros(0, dtype=np.float32)
        if sums.size:
            maxima = np.maximum.reduceat(np.abs(sums), np.arange(0, sums.size, size))
        level = np.float32(maxima.mean(dtype=np.float64) if maxima.size else 0)
        if not np.isfinite(level):
            raise InputError("cannot select by magnitude: a value is not a finite number")
        reached = np.abs(sums + np.float32(factor) * added) >= maxima.repeat(size)[: sums.size]
        chosen = np.flatnonzero(reached & (sums != 0))
        taken = sums[chosen]
        words = _words(chosen, taken < 0, size, maxima.size)
        sums[chosen] = taken - np.where(taken < 0, -level, level)
    signed = words if words.itemsize == 1 else words.view(np.int16)
    return tensor(np.array([level]), memory), chosen.size, tensor(signed, memory)


def _words(
    chosen: NDArray[np.int64], negative: NDArray[np.bool_], size: int, bins: int
) -> NDArray[Any]:
    """The words of the chosen elements, uint8 or uint16; a bin without any has one word."""
    dtype, mark = (np.uint8, 0x40) if size < _BYTE else (np.uint16, 0x4000)
    own = chosen // size
    counts = np.bincount(own, minlength=bins)
    first = starts(np.maximum(counts, 1))
    words = np.full(np.maximum(counts, 1).sum(), 2 * mark - 1, dtype=dtype)
    at = np.arange(chosen.size) + (first - starts(counts))[own]
    words[at] = chosen % size + np.where(negative, 2 * mark, 0)
    words[(first + counts - 1)[counts > 0]] |= mark
    return words


def add_decoded(message: Tensor, layout: BucketLayout, out: Tensor, weight: float) -> None:
    """out += weight * signs of the words * level, in place; `out` is float32 `[layout.numel]`.

    Raises `InputError` for a damaged message, or one of another layout.
    """
    for piece, frame in frames_of(message, layout, Codec.ADACOMP):
        level, words = _read(frame)
        places, negative = positions(words, frame)
        _add_words(piece.of(out), places, negative, np.float32(weight * level))


def _read(frame: Frame) -> tuple[float, NDArray[Any]]:
    width = 1 if frame.params < _BYTE else 2
    length = frame.body.numel() - 4
    bins = -(-frame.numel // frame.params) if frame.params else 0
    if not 1 <= frame.params <= MOST:
        raise damaged(f"bins of {frame.params} elements")
    if length % width or not 0 <= length // width - frame.nonzero <= bins:
        raise damaged(f"{length} bytes of words for {frame.nonzero} elements")
    words = array(from_bytes(frame.body[4:], torch.uint8, length))
    level = float(from_bytes(frame.body[:4], torch.float32, 1))
    return level, words if width == 1 else np.frombuffer(words.tobytes(), dtype="<u2")


def positions(words: NDArray[Any], frame: Frame) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """(positions of the words' elements, whether they are negative); `InputError` if damaged."""
    mark = 0x40 if words.itemsize == 1 else 0x4000
    n, size = frame.numel, frame.params
    within, ends = (words & (mark - 1)).astype(np.int64), words & mark != 0
    element = within < mark - 1
    before = np.append(0, ends.cumsum())  # bins that have ended
    alone = ends & (np.diff(before[:-1], prepend=-1) > 0)  # in its bin
    places = (before[:-1] * size + within)[element]
    if (
        before[-1] != -(-n // size)
        or not ends[-1:].all()
        or not (alone | element).all()
        or places.size != frame.nonzero
        or (within[element] >= size).any()
        or (np.diff(places) <= 0).any()
        or (places[-1:] >= n).any()
    ):
        raise damaged(f"words do not fill the bins of {n} elements")
    return places, (words & 2 * mark != 0)[element]


def _adding(_: object, __: object, places: NDArray[np.int64], *___: object) -> list[KernelCost]:
    k = places.size
    return [launch("gather_scatter", f"adacomp._add_words:{spread(k)}", k, 10 * k)]


@counted_as(_adding)
def _add_words(
    out: Tensor, places: NDArray[np.int64], negative: NDArray[np.bool_], level: np.float32
) -> None:
    with written_back(out) as target:
        target[places] += np.where(negative, -level, level)
