"""What is above thresholds that samples of a bucket's tensors say, all at once on a GPU? DGC.

States of tensors lie apart: they are put together for a step, so that one launch treats them all.
The host waits for the samples' thresholds, and for how many pass, once for each round.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gcsim.compressors.bucket import BucketLayout
from gcsim.compressors.coding.selecting.selection import count_kept
from gcsim.compressors.coding.sparse import sparse_message, travelling
from gcsim.compressors.gpu.layouts import tensors_of
from gcsim.compressors.gpu.methods.momentum import _next_velocity, add_momentum_to
from gcsim.compressors.gpu.parts import by_part, spread, starts
from gcsim.compressors.gpu.selecting.selection import (
    kth_bits,
    limited_parts,
    mark_parts,
    select,
    take_largest_of,
)
from gcsim.compressors.gpu.words import there
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.segments import Segments
from gcsim.compressors.sparsification.by_size.dgc import ROUNDS, UPPER


def encoded(gradients: list[Tensor], layout: BucketLayout, step: int, method: Any) -> Any:
    """See `dgc.encoded`."""
    chosen = method.parameters
    if chosen.clip_norm is not None:
        return NotImplemented
    elements, _ = tensors_of(layout)
    begins, tensors = starts(elements), range(len(elements))
    pairs = zip(layout.slices, gradients, strict=True)
    states = list(zip(*(method.states_of(*pair) for pair in pairs), strict=True))
    u, v, gradient = (torch.cat(list(each)) for each in (*states, gradients))
    wanted = [count_kept(n, method.ratio(step)) for n in elements]

    samples = {t: own for t in tensors if (own := method.sample_of(layout.slices[t], step))}
    thresholds = [math.inf] * len(elements)
    said = _sampled(u, v, gradient, samples, layout, step, method)
    for t, threshold in zip(samples, said, strict=True):
        thresholds[t] = threshold
    parts = limited_parts(v, elements, begins, thresholds)
    counts = v.new_empty(parts.firsts[-1], dtype=torch.int64)
    add_momentum_to(u, v, gradient, chosen.momentum, chosen.nesterov, counts, parts)
    passed = by_part(counts, parts).tolist()

    _try_others(v, elements, thresholds, passed, wanted, list(samples), method)
    again = chosen.too_many == "resample"
    ranked = [t for t in tensors if t not in samples or (again and passed[t] > UPPER * wanted[t])]
    marked = [t for t in tensors if t not in set(ranked)]
    found: dict[int, tuple[Tensor, Tensor]] = {}
    if ranked:
        given = _some(elements, ranked), _some(begins, ranked), _some(wanted, ranked)
        pair = take_largest_of(v, *given, clear=False)
        found |= dict(zip(ranked, _split(pair, given[2], given[2]), strict=True))
    if marked:
        limits = _some(thresholds, marked)
        given = _some(elements, marked), _some(begins, marked), limits
        places, taken, many = select(v, None, *given, clear=False)
        pieces = _split((places, taken), many, _some(wanted, marked))
        found |= dict(zip(marked, pieces, strict=True))
    indices, values = (torch.cat([found[t][i] for t in tensors]) for i in range(2))
    sent = [found[t][0].numel() for t in tensors]
    travels = travelling(values, chosen.values)
    places = indices + spread(there(begins, v.device), sent)
    v[places] = 0.0 if travels.dtype == values.dtype else values - travels.float()
    if chosen.factor_masking:
        u[places] = 0.0
    for state, whole in zip(states, (u, v), strict=True):
        torch._foreach_copy_(list(state), list(whole.split(elements)))
    return sparse_message(
        Segments.behind(elements), np.array(sent), indices, values, values_as=chosen.values,
        coding=chosen.indices,
    )[0]  # fmt: skip


def _sampled(
    u: Tensor, v: Tensor, gradient: Tensor, samples: dict[int, slice], layout: BucketLayout,
    step: int, method: Any,
) -> list[float]:  # fmt: skip
    """The thresholds that samples of the next velocity say."""
    if not samples:
        return []
    elements, _ = tensors_of(layout)
    chosen = method.parameters
    split = [whole.split(elements) for whole in (u, v, gradient)]
    parts = [torch.cat([each[t][own] for t, own in samples.items()]) for each in split]
    sample = _next_velocity(parts, chosen.momentum, chosen.nesterov)
    lengths = [len(range(elements[t])[own]) for t, own in samples.items()]
    ranks = [min(n, math.ceil(n * method.ratio(step))) for n in lengths]
    limits = kth_bits(sample, lengths, starts(lengths), ranks)
    found: list[float] = limits.view(torch.float32).tolist()
    return found


def _split(
    pair: tuple[Tensor, Tensor], counts: list[int], most: list[int]
) -> list[tuple[Tensor, Tensor]]:
    """(indices, values) of each tensor, so many of them, and at most so many kept."""
    both = zip(*(each.split(counts) for each in pair), most, strict=True)
    return [(one[:k], other[:k]) for one, other, k in both]


def _try_others(
    v: Tensor, elements: list[int], thresholds: list[float], passed: list[int],
    wanted: list[int], going: list[int], method: Any,
) -> None:  # fmt: skip
    """Other thresholds for the tensors `going` as long as too many pass, or too few; in place."""
    begins = starts(elements)
    for _ in range(ROUNDS):
        factors = {t: method.another(thresholds[t], passed[t], wanted[t]) for t in going}
        going = [t for t, factor in factors.items() if factor is not None]
        if not going:
            return
        for t in going:
            thresholds[t] *= factors[t]
        limits = _some(thresholds, going)
        parts = limited_parts(v, _some(elements, going), _some(begins, going), limits)
        counts = v.new_empty(parts.firsts[-1], dtype=torch.int64)
        mark_parts(v, None, counts, parts)
        for t, count in zip(going, by_part(counts, parts).tolist(), strict=True):
            passed[t] = count


def _some(each: list[Any], which: list[int]) -> list[Any]:
    return [each[t] for t in which]
