"""How do words of a bucket become a message on a GPU, in launches that do not grow with tensors?

Words of 32 bits are an index and a sign (Strom, variance-based with a threshold), or an index, a
power of two and a sign (variance-based). As in `messages.py`, what is damaged is left to the loop
over tensors.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gcsim.compressors.bucket import BucketLayout
from gcsim.compressors.coding.frame import Codec
from gcsim.compressors.coding.messages import frames_of
from gcsim.compressors.coding.sparse import INDEX_LIMIT
from gcsim.compressors.gpu.frames import begun, seal
from gcsim.compressors.gpu.layouts import alike, as_long, tensors_of
from gcsim.compressors.gpu.methods.variance import find_parts, send, words_of_powers
from gcsim.compressors.gpu.parts import put, spread
from gcsim.compressors.gpu.reductions import MAGNITUDE, Buckets, bucket_totals
from gcsim.compressors.gpu.selecting.selection import select
from gcsim.compressors.gpu.sparse import add_at_parts
from gcsim.compressors.gpu.words import there
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.sparsification.by_threshold.threshold import just_above
from gcsim.compressors.sparsification.by_variance import words as by_hand

_NOT_HERE: Any = NotImplemented


# --- an index and a sign ------------------------------------------------------------------------


def strom(residual: Tensor, gradient: Tensor, layout: BucketLayout, tau: float) -> Any:
    """See `strom.encoded`. The host waits for how many pass of each tensor."""
    elements, begins = tensors_of(layout)
    if max(elements) > INDEX_LIMIT:
        return _NOT_HERE
    limits = [just_above(tau)] * len(elements)
    indices, taken, sent = select(residual, gradient, elements, begins, limits, clear=False)
    minus = taken < 0
    level = float(np.float32(tau))
    places = indices + spread(there(begins, indices.device), sent)
    residual[places] = taken - torch.where(minus, -level, level)
    return _signed((indices | (minus.long() << 31)).int(), elements, sent)


def variance_hybrid(
    residual: Tensor, moment: Tensor, gradient: Tensor, second_moment: Tensor,
    layout: BucketLayout, parameters: Any,
) -> Any:  # fmt: skip
    """See `variance_hybrid.encoded`. The host waits for how many are sent of each tensor."""
    elements, _ = tensors_of(layout)
    if max(elements) >= INDEX_LIMIT:
        return _NOT_HERE
    sent = send(residual, moment, gradient, second_moment, parameters)
    found = sent.nonzero().view(-1)
    owner, local = _within(found, layout)
    words = (local | ((sent[found] == 2).long() << 31)).int()
    return _signed(words, elements, _counts(owner, len(elements)))


def _signed(words: Tensor, elements: list[int], sent: list[int]) -> Tensor:
    lengths = [4 * k for k in sent]
    message, bodies = begun(words, Codec.SIGNED_INDEX, elements, lengths, nonzero=sent)
    put(message, words.view(torch.uint8), lengths, bodies)
    seal(message, lengths)
    return message


def add_signed(
    message: Tensor, layout: BucketLayout, out: Tensor, weight: float, **known: Any
) -> Any:
    """See `sparse.add_signed`."""
    frames = alike(message, layout, Codec.SIGNED_INDEX)
    levels = known.get("levels")
    head = 8 if levels is None else 0
    sent = [frame.nonzero for frame in frames]
    if (
        not frames
        or frames[0].flags != (levels is None)
        or not as_long(frames, [head + 4 * k for k in sent])
    ):
        return _NOT_HERE
    words = torch.cat([frame.body[head:] for frame in frames]).view(torch.int32)
    if levels is None:
        inside = torch.cat([frame.body[:8] for frame in frames]).view(torch.float32)
        both = (inside.double() * weight).float().view(-1, 2)
        positive, negative = (spread(each, sent) for each in both.T)
    else:
        positive, negative = there([weight * level for level in levels], out.device, np.float32)
    values = torch.where(words < 0, negative, positive)
    elements, begins = tensors_of(layout)
    places = words.long() & (INDEX_LIMIT - 1)
    right = add_at_parts(out, places, values, sent, begins, elements, weight=1.0)
    return None if right else _NOT_HERE


# --- an index, a power of two and a sign --------------------------------------------------------


def variance(
    delayed: Tensor, moment: Tensor, gradient: Tensor, second_moment: Tensor,
    layout: BucketLayout, parameters: Any,
) -> Any:  # fmt: skip
    """See `variance.encoded`. The host waits for how many are sent of each tensor."""
    elements, begins = tensors_of(layout)
    if not min(elements) > 0 or max(elements) > by_hand.INDEX_LIMIT:
        return _NOT_HERE
    found, largest = find_parts(
        delayed, moment, gradient, second_moment, elements, begins, alpha=parameters.alpha,
        zeta=parameters.zeta,
    )  # fmt: skip
    if parameters.exponent_over == "tensor":
        buckets = Buckets(elements=elements, begins=begins, sizes=elements)
        largest = bucket_totals(delayed, buckets, MAGNITUDE)
    caps = torch.where(largest == 0, 127 << 23, largest).clamp(max=254 << 23) & (255 << 23)
    owner, local = _within(found, layout)
    drop = parameters.out_of_range == "drop"
    words, fits = words_of_powers(delayed, moment, found, local, caps[owner].long(), drop=drop)
    sent = _counts(owner[fits], len(elements))
    lengths = [1 + 4 * k for k in sent]
    message, bodies = begun(words, Codec.VARIANCE, elements, lengths, nonzero=sent)
    exponents = ((caps >> by_hand.MANTISSA_BITS) - by_hand.BIAS).to(torch.int8)
    put(message, exponents.view(torch.uint8), [1] * len(sent), bodies)
    put(message, words.view(torch.uint8), [4 * k for k in sent], [body + 1 for body in bodies])
    seal(message, lengths)
    return message


def add_powers(message: Tensor, layout: BucketLayout, out: Tensor, weight: float) -> Any:
    """See `words.add_decoded`."""
    frames = [frame for _, frame in frames_of(message, layout, Codec.VARIANCE)]
    sent = [frame.nonzero for frame in frames]
    if not as_long(frames, [1 + 4 * k for k in sent]):
        return _NOT_HERE
    exponents = torch.cat([frame.body[:1] for frame in frames]).view(torch.int8).long()
    words = torch.cat([frame.body[1:] for frame in frames]).view(torch.int32)
    depth = (words.long() >> by_hand.DEPTH_BITS) & by_hand.DEEPEST
    powers = spread(exponents, sent) - depth + by_hand.BIAS
    size = (powers << by_hand.MANTISSA_BITS).int().view(torch.float32) * float(np.float32(weight))
    values = torch.where(words < 0, -size, size)
    elements, begins = tensors_of(layout)
    places = words.long() & (by_hand.INDEX_LIMIT - 1)
    right = add_at_parts(out, places, values, sent, begins, elements, weight=1.0)
    return None if right and bool((powers >= 1).all()) else _NOT_HERE


def _within(found: Tensor, layout: BucketLayout) -> tuple[Tensor, Tensor]:
    """(which tensor each place of a bucket is of; where it is within it)."""
    elements, begins = tensors_of(layout)
    ends = there([begin + n for begin, n in zip(begins, elements, strict=True)], found.device)
    owner = torch.searchsorted(ends, found, right=True)
    return owner, found - there(begins, found.device)[owner]


def _counts(owner: Tensor, tensors: int) -> list[int]:
    counts = owner.new_zeros(tensors).index_add_(0, owner, torch.ones_like(owner))
    found: list[int] = counts.tolist()
    return found
