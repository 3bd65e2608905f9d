"""AdaComp: what if each small bin of a tensor decides by itself which elements are worth sending?

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

Source: C. Chen, J. Choi, D. Brand, A. Agrawal, W. Zhang, K. Gopalakrishnan, "AdaComp: adaptive
residual gradient compression for data-parallel distributed training", AAAI 2018,
arXiv:1712.02679.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from pydantic import Field

from gcsim.compressors.base import About, CompressorParameters
from gcsim.compressors.bucket import Bucket, TensorSlice, bucket_state
from gcsim.compressors.coding.frame import (
    Codec,
    Frame,
    as_bytes,
    from_bytes,
    pack_frame,
    words_at,
)
from gcsim.compressors.coding.messages import decoder
from gcsim.compressors.coding.selecting.marks import note_places
from gcsim.compressors.error_feedback import ErrorFeedback
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.loops import array, in_parallel, loop, tensor, written_back
from gcsim.compressors.meter import batched, kernel
from gcsim.compressors.on_device import on_device
from gcsim.compressors.properties import Properties
from gcsim.compressors.requests import Exchange, gather_variable
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
        for piece, gradient in batched(bucket.layout.views(bucket.gradient)):
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


def add_and_select(
    memory: Tensor, gradient: Tensor, size: int, factor: float
) -> tuple[Tensor, int, Tensor]:
    """memory += gradient, and what bins of `size` send is taken out; both float32 `[n]`.

    An element is sent when |memory + factor * gradient|, after the addition, reaches its bin's
    maximum. Returns (its magnitude, float32 `[1]`; the number of sent elements; the words, uint8
    or int16 `[sent + empty bins]`). Raises `InputError` when not-a-number is among the sums.
    """
    bins = _add(memory, gradient, size, factor)
    if not np.isfinite(bins.level):
        raise InputError("cannot select by magnitude: a value is not a finite number")
    words = _take(memory, gradient, size, factor, bins)
    return torch.tensor([bins.level], device=memory.device), int(bins.counts.sum()), words


def _add_short(data: Any, found: Any, table: Any, out: Any, weight: float) -> bool:
    """`add_decoded` of all tensors."""
    return bool(_add_found(data, found, table, out, weight))


@decoder(Codec.ADACOMP, _add_short)
def add_decoded(frame: Frame, part: Tensor, weight: float) -> None:
    """Add the signs of a frame's words, times its level."""
    level, words = _read(frame)
    if not _add_words(part[: words.numel()], words, frame, np.float32(weight * level), part):
        raise InputError(f"damaged payload: words do not fill the bins of {frame.numel} elements")


def _read(frame: Frame) -> tuple[float, Tensor]:
    width = 1 if frame.params < _BYTE else 2
    length = frame.body.numel() - 4
    bins = -(-frame.numel // frame.params) if frame.params else 0
    if not 1 <= frame.params <= MOST:
        raise InputError(f"damaged payload: bins of {frame.params} elements")
    if length % width or not 0 <= length // width - frame.nonzero <= bins:
        raise InputError(f"damaged payload: {length} bytes of words for {frame.nonzero} elements")
    level = float(from_bytes(frame.body[:4], torch.float32, 1))
    dtype = torch.uint8 if width == 1 else torch.int16
    return level, from_bytes(frame.body[4:], dtype, length // width)


# --- passes -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Bins:
    """What a pass found of the bins: arrays, or on a GPU tensors."""

    maxima: Any
    """float32: the largest magnitude of each."""
    counts: Any
    """int64: how many elements of each are sent."""
    level: np.float32
    """The mean of the maxima."""


@kernel("streaming", updates=("memory",))
@on_device("methods.bins")
def _add(memory: Tensor, gradient: Tensor, size: int, factor: float) -> Bins:
    """memory += gradient."""
    bins = -(-memory.numel() // size)
    maxima, counts = np.zeros(bins, dtype=np.float32), np.zeros(bins, dtype=np.int64)
    with written_back(memory) as sums:
        in_parallel(
            _add_bins, sums.size, sums, array(gradient), size, np.float32(factor), maxima, counts,
            grain=1024 * size,
        )  # fmt: skip
    level = np.float32(maxima.mean(dtype=np.float64) if maxima.size else 0)
    return Bins(maxima, counts, level)


@kernel("streaming", updates=("memory",))
@on_device("methods.bins")
def _take(memory: Tensor, gradient: Tensor, size: int, factor: float, bins: Bins) -> Tensor:
    """The words of what is sent, which is taken out."""
    ends = np.cumsum(np.maximum(bins.counts, 1))
    starts = np.append(0, ends)
    words = np.empty(starts[-1], dtype=np.uint8 if size < _BYTE else np.uint16)
    with written_back(memory) as sums:
        in_parallel(
            _take_bins, sums.size, sums, array(gradient), size, np.float32(factor), bins.maxima,
            bins.counts, starts, bins.level, words, grain=1024 * size,
        )  # fmt: skip
    return tensor(words.view(np.uint8 if size < _BYTE else np.int16), memory)


@kernel("gather_scatter", updates=("touched",), resident=("out",))
@on_device("methods.bins")
def _add_words(
    touched: Tensor,  # as many elements as are read and written, for the meter
    words: Tensor,
    frame: Frame,
    level: np.float32,
    out: Tensor,
) -> bool:
    """out += level times the words' signs; False when they do not fit the frame's bins."""
    data = array(words).view(np.uint8 if words.dtype == torch.uint8 else np.uint16)
    bits = 8 * data.itemsize
    with written_back(out) as target:
        found = _read_words(data, bits, frame.params, level, target)
    return bool(found == frame.nonzero)


@loop
def _add_bins(
    start: int, stop: int, memory: Any, gradient: Any, size: int, factor: Any,
    maxima: Any, counts: Any,
) -> None:  # fmt: skip
    tops = maxima.view(np.int32)
    for first in range(start, stop, size):
        part = memory[first : min(first + size, stop)]
        more = gradient[first : min(first + size, stop)]
        bits = part.view(np.int32)
        for i in range(part.size):
            part[i] += more[i]
        top = np.int32(0)  # as integers, magnitudes keep their order
        for i in range(part.size):
            top = max(top, np.int32(bits[i] & np.int32(0x7FFFFFFF)))
        tops[first // size] = top
        largest = maxima[first // size]
        count = np.int32(0)
        for i in range(part.size):
            reaches = abs(part[i] + factor * more[i]) >= largest
            count += np.int32(reaches & (part[i] != np.float32(0)))
        counts[first // size] = count if largest > np.float32(0) else np.int32(0)


@loop
def _take_bins(
    start: int, stop: int, memory: Any, gradient: Any, size: int, factor: Any,
    maxima: Any, counts: Any, starts: Any, level: Any, words: Any,
) -> None:  # fmt: skip
    mark = 0x40 if words.itemsize == 1 else 0x4000
    mask = np.zeros(size + 15, dtype=np.uint8)[: (size + 15) // 8 * 8]
    mask_words = mask.view(np.uint64)
    places = np.zeros(size + 1, dtype=np.uint16)
    for first in range(start, stop, size):
        block = first // size
        part = memory[first : min(first + size, stop)]
        more = gradient[first : min(first + size, stop)]
        out = words[starts[block] : starts[block + 1]]
        hits = np.int32(counts[block])
        if hits == 0:
            out[0] = 2 * mark - 1
            continue
        largest = maxima[block]
        for i in range(part.size):
            reaches = abs(part[i] + factor * more[i]) >= largest
            mask[i] = reaches & (part[i] != np.float32(0))
        mask[part.size : part.size + 8] = 0
        note_places(mask, mask_words, part.size, hits, places)
        for at in range(hits):
            place = places[at]
            value = part[place]
            negative = value < np.float32(0)
            out[at] = place | (2 * mark if negative else 0)
            part[place] = value - (-level if negative else level)
        out[hits - 1] |= mark


@loop
def _read_words(words: Any, bits: int, size: int, level: Any, out: Any) -> int:
    """out += level * sign; the number of elements, or -1 when the words do not fit the bins."""
    sign = 1 << (bits - 1)
    mark = sign >> 1
    empty = mark - 1
    first, last, found = 0, -1, 0
    for word in words:
        place = word & empty
        if place == empty:
            if last >= 0 or not word & mark or first >= out.size:
                return -1
        else:
            if place <= last or place >= size or first + place >= out.size:
                return -1
            out[first + place] += -level if word & sign else level
            last = place
            found += 1
        if word & mark:
            first += size
            last = -1
    return found if first >= out.size and last < 0 else -1


@loop
def _add_found(data: Any, found: Any, table: Any, out: Any, weight: float) -> bool:
    """The words of all frames; False where one is damaged, of which a part may be added."""
    for t in range(found.shape[0]):
        size, sent, start, n = found[t, 1], found[t, 2], found[t, 3], table[t, 1]
        length = found[t, 4] - start - 4
        width = 1 if size < _BYTE else 2
        if size < 1 or size > MOST or length < 0 or length % width:
            return False
        empty = length // width - sent
        if empty < 0 or empty > (n + size - 1) // size:
            return False
        level = np.float32(weight * np.float64(words_at(data, start, 1).view(np.float32)[0]))
        part, body = out[table[t, 0] : table[t, 0] + n], data[start + 4 : found[t, 4]]
        if width == 1:
            read = _read_words(body, 8, size, level, part)
        else:
            wide = np.empty(length // 2, dtype=np.uint16)
            copied = wide.view(np.uint8)
            for i in range(length):
                copied[i] = body[i]
            read = _read_words(wide, 16, size, level, part)
        if read != sent:
            return False
    return True
