"""Which elements reach the largest magnitude of their bin, on a GPU, and what words do they become?

Twins of what stands in `adacomp.py`: maxima by a kernel, the rest by torch's operators. Where the
words of a bin begin is a sum over those before, as is the bin of a word.
"""

from __future__ import annotations

import numpy as np

from gcsim.compressors.coding.frame import Frame
from gcsim.compressors.gpu.reductions import MAGNITUDE, Buckets, bucket_totals
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.sparsification.by_threshold.adacomp import Bins


def _add(memory: Tensor, gradient: Tensor, size: int, factor: float) -> Bins:
    """See `adacomp._add`."""
    memory.add_(gradient)
    maxima = bucket_totals(memory, Buckets.of_one(memory, size), MAGNITUDE).view(torch.float32)
    counts = torch.zeros_like(maxima, dtype=torch.int64)
    places = _sent(memory, gradient, size, factor, maxima)
    counts.index_add_(0, places // size, torch.ones_like(places))
    level = float(maxima.double().mean()) if len(maxima) else 0.0
    return Bins(maxima, counts, np.float32(level))


def _take(memory: Tensor, gradient: Tensor, size: int, factor: float, bins: Bins) -> Tensor:
    """See `adacomp._take`."""
    wide = size >= 64
    mark = 0x4000 if wide else 0x40
    places = _sent(memory, gradient, size, factor, bins.maxima)
    own = places // size
    taken = memory[places]
    negative = taken < 0
    level = float(bins.level)
    memory[places] = taken - torch.where(negative, -level, level)
    found = places % size + 2 * mark * negative
    ends = bins.counts.clamp(min=1).cumsum(0)
    # a bin that sends nothing keeps this word; elsewhere all are written over
    words = found.new_full((int(ends[-1]) if len(ends) else 0,), 2 * mark - 1)
    words[torch.arange(len(own), device=own.device) + (bins.counts == 0).cumsum(0)[own]] = found
    words[ends - 1] |= mark
    return words.to(torch.int16) if wide else words.to(torch.uint8)


def _sent(memory: Tensor, gradient: Tensor, size: int, factor: float, maxima: Tensor) -> Tensor:
    """Where what is sent lies: int64, ascending."""
    largest = maxima.repeat_interleave(size)[: memory.numel()]
    reaches = (memory + gradient * float(np.float32(factor))).abs() >= largest
    return (reaches & (memory != 0) & (largest > 0)).nonzero().view(-1)


def _add_words(
    touched: Tensor, words: Tensor, frame: Frame, level: np.float32, out: Tensor
) -> bool:
    """See `adacomp._add_words`; the host waits for whether the words are intact."""
    if not words.numel():
        return not out.numel() and not frame.nonzero
    size, n = frame.params, out.numel()
    sign = 1 << (8 * words.element_size() - 1)
    empty = (sign >> 1) - 1
    word = words.long() & (2 * sign - 1)
    marked = word & (sign >> 1) != 0
    own = marked.cumsum(0) - marked.long()  # the bin
    place = word & empty
    at = own * size + place
    first = torch.ones_like(marked)
    first[1:] = marked[:-1]
    nothing = place == empty
    before = torch.where(first, -1, place.roll(1))
    alone = nothing & first & marked & (own * size < n)
    intact = alone | (~nothing & (place > before) & (place < size) & (at < n))
    intact[-1] &= marked[-1] & ((own[-1] + 1) * size >= n)
    sent = ~nothing
    if not bool(intact.all() & (sent.sum() == frame.nonzero)):
        return False
    value = float(level)
    out[at[sent]] += torch.where(word[sent] & sign != 0, -value, value)
    return True
