"""gTop-k: workers receive only the k largest elements of their *sum*.

a = e + g; each worker takes its k = max(1, round(n * ratio)) largest |a| of each tensor. The sparse
vectors are merged pairwise along a binomial tree: add, keep the k largest; the root's result is
broadcast along the tree and divided by N. A worker's traffic is 2 ceil(log2 N) messages of k values
and k indices, against N of them in an all-gather.

e = a, but zero for elements that this worker sent and that are in the result. If a merge drops an
element that survives through another branch, the contributions of the workers below that merge are
lost, as published: memory is conserved only for one or two workers.

Biased; with one worker the error is at most (1 - k/n) |v|^2. Any number of workers (the published
code needs a power of two). Among equal magnitudes the lowest index wins.

Source: S. Shi et al., "A Distributed Synchronous SGD Algorithm with Global Top-k Sparsification for
Low Bandwidth Networks", ICDCS 2019, arXiv:1901.04359.
"""

from __future__ import annotations

import numpy as np
from pydantic import Field

from gcsim.compressors.base import About, Compressor, CompressorParameters, Properties, Ratio
from gcsim.compressors.bucket import Bucket, BucketLayout
from gcsim.compressors.coding.indices.index_coding import IndexCoding
from gcsim.compressors.coding.indices.pairs import merged_pairs
from gcsim.compressors.coding.selecting.largest import largest
from gcsim.compressors.coding.selecting.selection import counts_kept, deliver, each_of, flat_places
from gcsim.compressors.coding.sparse import lost_by_selection, read_message, sparse_message
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.requests import Exchange, TreeMerge
from gcsim.compressors.segments import Column, Segments
from gcsim.compressors.sharing import once
from gcsim.errors import InputError


class GlobalTopKParameters(CompressorParameters):
    ratio: Ratio = Field(0.001, description="fraction of a tensor's elements to send and receive")
    indices: IndexCoding = Field("raw", description="index coding (raw: 32 bits, auto: shortest)")


class GlobalTopK(Compressor[GlobalTopKParameters]):
    about = About(
        title="gTop-k",
        family="sparsification",
        collective="tree merge (binomial, and back)",
        bits="ratio * (32 + bits per index), 2 log2 N times",
        state="residual (n)",
        paper="Shi et al., gTop-k, ICDCS 2019, arXiv:1901.04359",
    )

    @classmethod
    def properties(cls, parameters: GlobalTopKParameters) -> Properties:
        return Properties(error_bound=lambda v: lost_by_selection(v, parameters.ratio))

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        layout, segments = bucket.layout, Segments.of(bucket.layout)
        residual = self.kept("residual", bucket)
        k = counts_kept(segments.length, self.parameters.ratio)
        indices, values = largest(bucket.gradient, segments, k, memory=residual)

        def merge(own: Tensor, received: Tensor) -> Tensor:
            return self._merge(own, received, layout, k)

        message = self._message(segments, k, indices, values)
        result: Tensor = yield TreeMerge(payload=message, merge=merge)
        kept = once(read_message, result, layout)
        update, own = torch.zeros_like(bucket.gradient), (indices, values, k)
        deliver(update, residual, segments, own, kept, float(np.float32(1.0 / self.worker.count)))
        return update

    def _merge(self, own: Tensor, received: Tensor, layout: BucketLayout, k: Column) -> Tensor:
        """Merge two messages to the k largest of their sum, tensor by tensor."""
        pairs: list[Tensor] = []
        segments = Segments.of(layout)
        for message in (own, received):
            indices, values, sent = read_message(message, layout)
            if (wrong := np.flatnonzero(sent != k)).size:
                many, asked = sent[wrong[0]], k[wrong[0]]
                raise InputError(f"damaged payload: {many} elements, not {asked}")
            pairs += [flat_places(indices, segments, sent), values]
        first, values, second, more = pairs
        places, sums, many = merged_pairs(first, values, second, more, segments, 2 * k)
        rows = Segments.behind(many)
        chosen, values = largest(sums, rows, k)
        chosen = places[flat_places(chosen, rows, k)]
        indices = chosen - each_of(segments.begin, k, chosen)  # within their tensor
        return self._message(segments, k, indices, values)

    def _message(self, segments: Segments, k: Column, indices: Tensor, values: Tensor) -> Tensor:
        coding = self.parameters.indices
        return sparse_message(
            segments, k, indices, values, values_as="fp32", coding=coding, alike=True
        )[0]
