"""Elias codes of levels: the kernels of `coding/rounding/level_words.py`."""

from __future__ import annotations

import inspect
from collections.abc import Sequence

import numpy as np

from gcsim.compressors.coding.rounding import level_words as loops
from gcsim.compressors.gpu.integers.elias import (
    LONGEST,
    dense_words,
    ended,
    followed,
    gathered,
    read_dense,
    read_sparse,
    sections,
    sparse_words,
)
from gcsim.compressors.gpu.parts import spread, starts
from gcsim.compressors.gpu.words import there
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.on_device import kernel_of
from gcsim.compressors.segments import Column, Segments


@kernel_of(loops.coded_levels)
def coded_levels(
    codes: Tensor, segments: Segments, steps: int, coding: loops.WordCoding
) -> loops.Coded:
    """The host waits twice at most."""
    elements = segments.length.tolist()
    tensors = torch.arange(len(elements), device=codes.device)
    owner = spread(tensors, elements)
    travels = torch.ones_like(owner)
    if coding == "elias_dense":
        words, lengths = dense_words(codes, steps)
    else:
        places = (codes != steps).nonzero().view(-1)
        owner = owner[places]
        first = there(starts(elements), codes.device)[owner]
        same = torch.ones_like(owner, dtype=torch.bool)
        same[:1] = False
        same[1:] = owner[1:] == owner[:-1]
        before = torch.where(same, places.roll(1), first - 1)
        words, lengths = sparse_words(places - before, codes[places], steps)
        travels = torch.ones_like(owner)
    begins, sizes = sections(lengths, owner, len(elements))
    sent = torch.zeros_like(sizes).index_add_(0, owner, travels)
    found, counts = np.array(torch.stack((sizes, sent)).tolist(), dtype=np.int64)
    return gathered(words, begins, int(found.sum())), found, counts


@kernel_of(loops.decoded_levels)
def decoded_levels(
    body: Tensor, sizes: Column, segments: Segments, sent: Column, steps: int,
    coding: loops.WordCoding,
) -> Tensor:  # fmt: skip
    """Read again by the loop where kernels cannot: it names the damage."""
    given = sizes.tolist(), segments.length.tolist(), sent.tolist()
    found = levels_of(body, *given, steps, coding)
    if found is not None:
        return found
    loop = inspect.unwrap(loops.decoded_levels)
    read: Tensor = loop(body, sizes, segments, sent, steps, coding)
    return read


def levels_of(
    body: Tensor, sizes: Sequence[int], elements: Sequence[int], sent: Sequence[int], steps: int,
    coding: str,
) -> Tensor | None:  # fmt: skip
    """Undo `coded_levels`: uint8 `[sum of elements]`; None where bodies cannot be read, or are too
    long."""
    if 8 * body.numel() > LONGEST:
        return None
    if coding == "elias_dense":
        codes, ends = read_dense(body, steps)
        places, after = followed(ends, sizes, elements)
        return codes[places] if bool(ended(body, after, sizes).all()) else None
    gaps, levels, ends = read_sparse(body, steps)
    places, after = followed(ends, sizes, sent)
    upto = torch.cat((gaps.new_zeros(1), gaps[places].cumsum(0)))
    base, first, length = there((starts(sent), starts(elements), elements), body.device)
    at = upto[1:] - spread(upto[base], sent) - 1  # within its tensor
    inside = (at >= 0) & (at < spread(length, sent))
    if not bool(ended(body, after, sizes).all() & inside.all()):
        return None
    codes = body.new_full((sum(elements),), steps)
    codes[at + spread(first, sent)] = levels[places]
    return codes
