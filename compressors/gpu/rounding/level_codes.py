"""Levels as digits or Elias codes: the kernels of `coding/rounding/level_codes.py`."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from functools import partial

import numpy as np

from gcsim.compressors.coding.frames import from_bytes
from gcsim.compressors.coding.integers.digits import demand_digits, digit_bytes, group_of
from gcsim.compressors.coding.integers.packing import packed_bytes
from gcsim.compressors.coding.one_bit.bits import demand_signs
from gcsim.compressors.coding.rounding import level_codes as loops
from gcsim.compressors.demands import when_known
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
from gcsim.compressors.gpu.integers.packing import combined, fields, fixed_codes, separated
from gcsim.compressors.gpu.parts import spread, starts
from gcsim.compressors.gpu.words import there
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.on_device import kernel_of
from gcsim.compressors.segments import Column, Segments


@kernel_of(loops.coded_levels)
def coded_levels(
    codes: Tensor, segments: Segments, steps: int, coding: loops.LevelCoding
) -> loops.Coded:
    """For Elias codes the host waits twice at most."""
    elements = segments.length.tolist()
    if coding == "digits":
        body, many = coded_digits(codes, elements, 2 * steps + 1)
        return body, np.array(many), segments.length
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
    coding: loops.LevelCoding,
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
    long. Whether codes of digits are below 2s + 1 is left to who uses them."""
    if coding == "digits":
        return digits_in(body, sizes, elements, 2 * steps + 1)
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


def coded_digits(codes: Tensor, elements: Sequence[int], base: int) -> tuple[Tensor, list[int]]:
    """(bodies of `digits.packed_digits`, one behind the other; bytes of each)."""
    size, bits = group_of(base)
    planes = [-(-n // size) for n in elements]
    if size == 1:
        return fixed_codes(codes.long(), planes, [bits] * len(planes))
    sizes = [packed_bytes(plane, bits) for plane in planes]
    dtype = torch.int16 if bits == 16 else torch.uint8
    groups = codes.new_empty(sum(planes), dtype=dtype)
    combined(codes, groups, elements, starts(elements), starts(planes), base)
    if bits % 8 == 0:
        return groups.view(torch.uint8), sizes
    return fixed_codes(groups.long(), planes, [bits] * len(planes))


def digits_in(
    body: Tensor, sizes: Sequence[int], elements: Sequence[int], base: int
) -> Tensor | None:
    """Undo `coded_digits`: uint8 `[sum of elements]`; None where bodies cannot be read."""
    size, bits = group_of(base)
    planes = [-(-n // size) for n in elements]
    if list(sizes) != [digit_bytes(n, base) for n in elements]:
        return None
    groups = body
    if bits == 16:
        groups = from_bytes(body, torch.int16, sum(planes)).int() & 0xFFFF
    elif bits != 8:
        found, intact = fields(body, sizes, planes, [bits] * len(planes))
        when_known(~intact, demand_signs)
        groups = found.to(torch.uint8)
    if size == 1:
        return groups
    codes = body.new_empty(sum(elements))
    found = separated(groups, codes, elements, starts(elements), starts(planes), base)
    when_known(found, partial(demand_digits, base=base))
    return codes
