"""Elias codes of levels on a GPU: the kernels of `coding/rounding/level_words.py`."""

from __future__ import annotations

import numpy as np

from gcsim.compressors.coding.rounding import level_words as loops
from gcsim.compressors.gpu.integers.elias import (
    LONGEST,
    ended,
    followed,
    gathered,
    read_sparse,
    sections,
    sparse_words,
)
from gcsim.compressors.gpu.parts import spread
from gcsim.compressors.gpu.words import there
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.on_device import by_loop, kernel_of
from gcsim.compressors.segments import Column, Segments, starts


@kernel_of(loops.coded_levels)
def coded_levels(codes: Tensor, segments: Segments, steps: int) -> loops.Coded:
    """Encode the levels; the host waits twice."""
    begins, length = there((starts(segments.length), segments.length), codes.device)
    places = (codes != steps).nonzero().view(-1)
    owner = torch.searchsorted(begins + length, places, right=True)
    # the place of the previous level, but not before the tensor
    before = torch.cat((places.new_full((1,), -1), places))[:-1].maximum(begins[owner] - 1)
    words, lengths = sparse_words(places - before, codes[places], steps)
    firsts, sizes = sections(lengths, owner, len(begins))
    sent = torch.zeros_like(sizes).index_add_(0, owner, torch.ones_like(owner))
    found, counts = np.array(torch.stack((sizes, sent)).tolist(), dtype=np.int64)
    return gathered(words, firsts, int(found.sum())), found, counts


@kernel_of(loops.decoded_levels)
def decoded_levels(
    body: Tensor, sizes: Column, segments: Segments, sent: Column, steps: int
) -> Tensor:
    """Decode the levels; if kernels cannot, the loop reads again and names the damage."""
    counts, total = sent.tolist(), int(segments.length.sum())
    if 8 * body.numel() <= LONGEST:
        gaps, levels, ends = read_sparse(body, steps)
        places, after = followed(ends, sizes.tolist(), counts)
        # a word's element is the sum of its tensor's gaps up to it, minus 1
        upto = torch.cat((gaps.new_zeros(1), gaps[places].cumsum(0)))
        columns = np.stack((starts(sent), starts(segments.length), segments.length))
        base, first, length = there(columns, body.device)
        at = upto[1:] - spread(upto[base], counts) - 1  # within its tensor
        inside = (at >= 0) & (at < spread(length, counts))
        if bool(ended(body, after, sizes.tolist()).all() & inside.all()):
            codes = body.new_full((total,), steps)
            codes[at + spread(first, counts)] = levels[places]
            return codes
    return by_loop(loops.decoded_levels, body, sizes, segments, sent, steps)
