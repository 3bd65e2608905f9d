"""What is above thresholds that are fitted to each tensor of a bucket, all at once on a GPU? SIDCo.

Sums of all tensors come to the host together, once for each stage of the search.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gcsim.compressors.bucket import BucketLayout
from gcsim.compressors.coding.sparse import sparse_message
from gcsim.compressors.gpu.layouts import tensors_of
from gcsim.compressors.gpu.reductions import magnitudes_of
from gcsim.compressors.gpu.selecting.selection import select, take_largest_of
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.segments import Segments
from gcsim.compressors.sparsification.by_threshold.magnitude_fits import of_sums
from gcsim.compressors.sparsification.by_threshold.threshold import just_above


def encoded(gradient: Tensor, residual: Tensor | None, layout: BucketLayout, method: Any) -> Any:
    """See `sidco.encoded`."""
    chosen = method.parameters
    if chosen.distribution == "gamma":  # whose logarithms are added up tensor by tensor
        return NotImplemented
    elements, begins = tensors_of(layout)
    source, added = (gradient.contiguous(), None) if residual is None else (residual, gradient)
    added = None if added is None else added.contiguous()
    sums = magnitudes_of(source, added, elements, begins, [0.0] * len(elements))
    moments = [of_sums(n, *own[1:]) for n, own in zip(elements, sums, strict=True)]
    searches = [
        method.search(own, method.stages_of(piece))
        for piece, own in zip(layout.slices, moments, strict=True)
    ]
    thresholds = [0.0] * len(searches)
    answers: dict[int, Any] = dict.fromkeys(range(len(searches)))  # of those that go on
    while answers:
        asked = [float("inf")] * len(searches)
        for number, answer in list(answers.items()):
            try:
                asked[number] = searches[number].send(answer)
            except StopIteration as done:
                thresholds[number] = done.value
                del answers[number]
        if answers:
            found = magnitudes_of(source, None, elements, begins, asked)
            answers = {number: of_sums(*found[number]) for number in answers}
    limits = [just_above(min(threshold, 3e38)) for threshold in thresholds]
    clear = residual is not None
    indices, values, sent = select(source, None, elements, begins, limits, clear=clear)
    missing = [number for number, own in enumerate(moments) if not sent[number] and own.mean > 0]
    if missing:  # the largest of each of these
        picked = take_largest_of(
            source, [elements[number] for number in missing],
            [begins[number] for number in missing], [1] * len(missing), clear=clear,
        )  # fmt: skip
        both = [list(each.split(sent)) for each in (indices, values)]
        for parts, extra in zip(both, picked, strict=True):
            for number, one in zip(missing, extra.split(1), strict=True):
                parts[number] = one
        indices, values = (torch.cat(parts) for parts in both)
        sent = [int(number in missing) or k for number, k in enumerate(sent)]
    for piece, k in zip(layout.slices, sent, strict=True):
        method.adapt(piece, k)
    return sparse_message(
        Segments.of(layout), np.array(sent), indices, values, values_as=chosen.values,
        coding=chosen.indices, memory=residual,
    )[0]  # fmt: skip
