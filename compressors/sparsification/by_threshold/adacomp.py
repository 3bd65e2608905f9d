"""AdaComp: the elements to send are chosen separately in each small bin of a tensor.

With residual r and gradient g, G = r + g. In each bin of T consecutive elements of a tensor those
with |G_i + g_i| >= max |G| over the bin are sent, unless G_i = 0. Each is sent as sign(G_i) * mean
over bins of that maximum; r = G - sent. Tensors of one or two dimensions count as fully connected.
Biased, and not a contraction: bins of small scale send far too large values, which the residual
corrects later.

The value takes 32 bits per tensor, a sent element a word of 8 bits (T < 64) or 16 bits (T < 16384):
sign, mark of a bin's last word, position in the bin. An empty bin is one marked word with the
largest position, which is otherwise unused. Runs in host memory.

Source: C. Chen, J. Choi, D. Brand, A. Agrawal, W. Zhang, K. Gopalakrishnan, "AdaComp: adaptive
residual gradient compression for data-parallel distributed training", AAAI 2018, arXiv:1712.02679.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from pydantic import Field

from gcsim.compressors.base import About, CompressorParameters, ErrorFeedback, Properties
from gcsim.compressors.bucket import Bucket, BucketLayout, bucket_state
from gcsim.compressors.coding.checksum import number_at
from gcsim.compressors.coding.frames import Codec, packed, read
from gcsim.compressors.coding.integers.packing import damaged
from gcsim.compressors.coding.scans import greatest_magnitude
from gcsim.compressors.kernels import spread
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.loops import array, in_tiles, loop, written_back
from gcsim.compressors.meter import counted_as, launch
from gcsim.compressors.requests import Exchange, gather_variable
from gcsim.compressors.segments import Cells, Segments, starts
from gcsim.errors import InputError

MOST = (1 << 14) - 1
"""Size of the largest bin: the last of the 2^14 positions means an empty bin."""
_BYTE = 64
"""Shorter bins have words of one byte."""


class AdaCompParameters(CompressorParameters):
    bin_conv: int = Field(
        50, ge=1, le=MOST, description="elements per bin in tensors of three dimensions or more (T)"
    )
    bin_fc: int = Field(500, ge=1, le=MOST, description="elements per bin in other tensors (T)")


class AdaComp(ErrorFeedback[AdaCompParameters]):
    """Elements that reach their bin's maximum, sent as signs of one magnitude."""

    about = About(
        title="AdaComp",
        family="sparsification",
        collective="all-gather of unequal messages",
        bits="8 (sent + empty bins) / n (16 for bins of 64 and more)",
        state="residual (n)",
        paper="Chen et al., AdaComp, AAAI 2018, arXiv:1712.02679",
    )

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        chosen, memory = self.parameters, bucket_state(self.residual, bucket)
        many = np.array([len(piece.shape) > 2 for piece in bucket.layout.slices])
        size = np.where(many, chosen.bin_conv, chosen.bin_fc)
        segments = Segments.of(bucket.layout)
        bins = Cells(segments, size, -(-segments.length // size))
        payloads = yield from gather_variable(encoded(memory, bucket.gradient, bins))
        return self.mean_of(payloads, bucket, add_decoded)

    @classmethod
    def properties(cls, parameters: AdaCompParameters) -> Properties:
        return Properties(conserves=True)


@counted_as(
    lambda message, memory, *_: [
        launch("streaming", "adacomp._add", memory.numel(), 3 * memory.nbytes),
        launch("streaming", "adacomp._take", memory.numel(), 3 * memory.nbytes, message.nbytes),
    ]
)
def encoded(memory: Tensor, gradient: Tensor, bins: Cells) -> Tensor:
    """Add the gradient to `memory`, subtract what the bins send, and encode it: uint8. Raises
    `InputError` if a sum is not finite."""
    size, owner, begin = bins.size, bins.owner, bins.spans[:, 1]
    maxima, reached = np.zeros(bins.total, np.float32), np.zeros(memory.numel(), np.bool_)
    with written_back(memory) as sums:
        in_tiles(_compare, bins.spans, sums, array(gradient), maxima, reached)
        sums_of = [np.add.reduce(own, dtype=np.float64) for own in np.split(maxima, bins.first[1:])]
        level = (sums_of / np.maximum(1, bins.count)).astype(np.float32)
        if not np.isfinite(level).all():
            raise InputError("cannot select by magnitude: a value is not a finite number")
        chosen = np.flatnonzero(reached)
        number = np.searchsorted(begin, chosen, side="right") - 1  # index of its bin
        values, magnitude = sums[chosen], level[owner[number]]
        sums[chosen] = values - np.where(values < 0, -magnitude, magnitude)
    mark, sent = np.where(size < _BYTE, 0x40, 0x4000)[owner], np.bincount(number, None, bins.total)
    used = np.maximum(sent, 1)  # number of words in each bin
    # initialise all with the word of an empty bin, mark | (mark - 1)
    words, first = (2 * mark - 1).repeat(used), starts(used)
    # place of each sent element's word: its rank among them, plus the empty bins before it
    at = np.arange(chosen.size) + (first - starts(sent))[number]
    words[at] = chosen - begin[number] + np.where(values < 0, 2 * mark[number], 0)
    words[first + used - 1] |= mark
    count, nonzero = (np.bincount(owner, each, len(size)).astype(np.int64) for each in (used, sent))
    travels = np.stack((size > 0, size >= _BYTE), axis=1).repeat(count, axis=0)  # bytes to send
    body = torch.from_numpy(words.astype("<u2").view(np.uint8)[travels.reshape(-1)])
    sizes = np.where(size < _BYTE, 1, 2) * count
    parts = (torch.from_numpy(level), bins.segments.column(4)), (body, sizes)
    return packed(memory, Codec.ADACOMP, bins.segments, *parts, nonzero=nonzero, params=size)


@counted_as(lambda k, *_: [launch("gather_scatter", f"adacomp._add_words:{spread(k)}", k, 10 * k)])
def add_decoded(message: Tensor, layout: BucketLayout, out: Tensor, weight: float) -> int:
    """Add weight * level * signs of the words to `out`, float32 `[layout.numel]`, in place. Return
    how many elements were sent. Raises `InputError` if the message is damaged or has another
    layout."""
    found = read(message, layout, Codec.ADACOMP)
    columns: Any = (found.at, found.size, found.params, found.nonzero, layout.table)
    with written_back(out) as target:
        if not _read_words(array(message), weight, target, *columns):
            raise damaged("words do not fill the bins of their tensor")
    return int(found.nonzero.sum())


@loop
def _compare(
    start: int, stop: int, spans: Any, memory: Any, gradient: Any, maxima: Any, reached: Any
) -> None:
    for number in range(start, stop):
        _, first, last = spans[number]
        part, more, hits = memory[first:last], gradient[first:last], reached[first:last]
        for i in range(part.size):
            part[i] += more[i]
        # compare the bits of float32; a NaN reaches `level`, which is refused
        maxima.view(np.uint32)[number] = greatest_magnitude(part)
        largest = maxima[number]
        for i in range(part.size):  # part is now G, so this is H = G + g
            hits[i] = (abs(part[i] + more[i]) >= largest) & (part[i] != np.float32(0))


@loop
def _read_words(
    message: Any, weight: float, out: Any, at: Any, lengths: Any, sizes: Any, sent: Any, table: Any
) -> bool:
    for t in range(at.size):
        size, n = sizes[t], table[t, 1]
        width, mark = (1, 0x40) if size < _BYTE else (2, 0x4000)
        if not 1 <= size <= MOST or lengths[t] < 4 or lengths[t] % width:
            return False
        level = np.uint32(number_at(message, at[t], 4)).view(np.float32)
        level = np.float32(weight * np.float64(level))
        part, first, last, found = out[table[t, 0] : table[t, 0] + n], np.int64(0), np.int64(-1), 0
        for byte in range(at[t] + 4, at[t] + lengths[t], width):
            word = np.int64(number_at(message, byte, width))
            place, end = word & (mark - 1), word & mark
            if last < place < min(size, n - first):
                part[first + place] += -level if word & 2 * mark else level
                found += 1
            elif place < mark - 1 or last >= 0 or not end or first >= n:  # nor an empty bin
                return False
            first, last = (first + size, np.int64(-1)) if end else (first, place)
        if found != sent[t] or first < n or last >= 0:  # missing bins, or an open one
            return False
    return True
