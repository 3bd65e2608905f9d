"""DeepReduce: the indices of a sparse gradient are sent as a Bloom filter.

a = e + g; the k = max(1, round(n * ratio)) largest |a| of each tensor go into a filter of m =
ceil(k log2(1/f) / ln 2) bits, f = false_positives * k / n, with h = ceil(log2(1/f)) hash functions.
Sender and receivers query all n positions: the filter contains the k and about a fraction f of the
others. The values of a at all of these are sent, and e is the rest. Tensors of at most `skip`
elements are sent uncoded: k values, k indices of 32 bits. n = 1e6, k = 1e4: 14.4 bits an index (a
Rice code 8.1). Filters run in host memory.

Biased: |a - decoded|^2 <= (1 - k/n) |a|^2.

This is the paper's policy P0, which loses nothing; fitting curves to the values is left out.

Source: K. Kostopoulou et al., "DeepReduce: A Sparse-tensor Communication Framework for Distributed
Deep Learning", NeurIPS 2021, arXiv:2102.03112, rates and skipped tensors as in the authors' code.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from gcsim.compressors.base import About, CompressorParameters, ErrorFeedback, Properties, Ratio
from gcsim.compressors.bucket import Bucket, BucketLayout
from gcsim.compressors.coding.frames import Codec, packed, read
from gcsim.compressors.coding.indices.bloom import bloom_filter, bloom_positives
from gcsim.compressors.coding.integers.packing import damaged, packed_bytes
from gcsim.compressors.coding.selecting.largest import largest
from gcsim.compressors.coding.selecting.selection import counts_kept
from gcsim.compressors.coding.sparse import lost_by_selection
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.random import random_key
from gcsim.compressors.requests import Exchange, gather_variable
from gcsim.compressors.segments import Column, Segments, starts


class DeepReduceParameters(CompressorParameters):
    ratio: Ratio = Field(0.01, description="fraction of a tensor's elements to send")
    false_positives: float = Field(
        0.1, gt=0, le=1, description="expected Bloom-filter false positives per top-k element"
    )
    skip: int = Field(1000, ge=0, description="largest tensor sent without the filter, in elements")
    error_feedback: bool = Field(True, description="add the compression error to the next gradient")

    def sizes(self, length: Column) -> NDArray[np.int64]:
        """Return k, m, h and bytes of each tensor's filter, `[4, tensors]`; m and h are 0 without
        one."""
        k, coded = counts_kept(length, self.ratio), length > self.skip
        share = np.maximum(1, k) / np.maximum(1, length)
        doublings = -np.log2(np.minimum(0.5, self.false_positives * share))
        bits, hashes = np.ceil((k * doublings / np.log(2), doublings)).astype(np.int64) * coded
        return np.stack((k, bits, hashes, np.where(coded, packed_bytes(bits, 1), 4 * k)))


class DeepReduce(ErrorFeedback[DeepReduceParameters]):
    """Top-k whose indices are sent as a Bloom filter."""

    about = About(
        title="DeepReduce (top-k)",
        family="sparsification",
        collective="all-gather of unequal messages",
        bits="ratio * (32 (1 + false_positives) + 1.44 log2(1 / (ratio false_positives)))",
        state="residual (n)",
        paper="Kostopoulou et al., NeurIPS 2021, arXiv:2102.03112",
    )

    @classmethod
    def properties(cls, parameters: DeepReduceParameters) -> Properties:
        def bound(values: Tensor) -> float:
            return lost_by_selection(values, parameters.ratio)

        return Properties(error_bound=bound, conserves=parameters.error_feedback)

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        layout, segments, sums = bucket.layout, Segments.of(bucket.layout), self.corrected(bucket)
        sizes = self.parameters.sizes(segments.length)
        key = random_key(self.worker.seed, step, layout.index, "Bloom filter")
        coded = bloom_filter(largest(sums, segments, sizes[0])[0], segments, sizes, key)
        chosen, many = bloom_positives(coded, starts(sizes[3]), segments, sizes, key)
        parts = (sums[chosen], 4 * many), (coded, sizes[3])
        message = packed(sums, Codec.BLOOM, segments, *parts, nonzero=many)
        if self.remembers:
            sums[chosen] = 0.0
        payloads = yield from gather_variable(message)
        return self.mean_of(payloads, bucket, add_decoded, sizes=sizes, key=key)


def add_decoded(
    message: Tensor, layout: BucketLayout, out: Tensor, weight: float, *,
    sizes: NDArray[np.int64], key: np.uint64,
) -> None:  # fmt: skip
    """Add weight * values at their positions to `out`, float32 `[layout.numel]`, in place. Raises
    `InputError` if the message is damaged or has another layout."""
    segments, found = Segments.of(layout), read(message, layout, Codec.BLOOM)
    values = 4 * found.nonzero
    found.demand_sizes(values + sizes[3])
    chosen, many = bloom_positives(message, found.at + values, segments, sizes, key)
    if (many != found.nonzero).any():
        raise damaged(f"{found.nonzero} values at {many} positions")
    out.index_add_(0, chosen, found.parts(message, (values, torch.float32))[0], alpha=weight)
