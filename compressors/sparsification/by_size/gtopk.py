"""What if only the k largest elements of the workers' *sum* reach anybody? gTop-k.

a = e + g; each worker takes its k = max(1, round(n * ratio)) largest |a| of each tensor. The
sparse vectors are merged two by two along a binomial tree: add, keep the k largest; the root's
result travels back the same way and is divided by N. A worker's traffic is 2 ceil(log2 N) messages
of k values and k indices, against N of them for an all-gather.

e = a, but zero where an element was both sent by this worker and kept in the end; whatever it
sent in vain returns to e. What a merge cuts away is not returned to the workers below it when the
element survives through another branch: those contributions are lost, as in the published
algorithm, so memory is conserved for one or two workers only.

Biased; error with one worker at most (1 - k/n) |v|^2. Any number of workers (the published code
wants a power of two). Among equal magnitudes the lowest index wins.

Source: S. Shi et al., "A Distributed Synchronous SGD Algorithm with Global Top-k Sparsification for
Low Bandwidth Networks", ICDCS 2019, arXiv:1901.04359.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from gcsim.compressors.base import About, Compressor, CompressorParameters, Ratio, add_all
from gcsim.compressors.bucket import Bucket, BucketLayout
from gcsim.compressors.coding.frame import HEADER_BYTES, Codec, Frame, together
from gcsim.compressors.coding.indices.index_coding import Coder, IndexCoding
from gcsim.compressors.coding.indices.pairs import merge_messages, merged_pairs, put_pairs
from gcsim.compressors.coding.messages import frames_of
from gcsim.compressors.coding.selecting.selection import (
    NO_NUMBER,
    count_kept,
    largest,
    take_each,
)
from gcsim.compressors.coding.sparse import (
    add_message,
    lost_by_selection,
    pack_sparse,
    unpack_sparse,
)
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.loops import array
from gcsim.compressors.meter import batched
from gcsim.compressors.properties import Properties
from gcsim.compressors.requests import Exchange, TreeMerge
from gcsim.compressors.sharing import fill_once, once
from gcsim.errors import InputError

_CODED = int(Codec.SPARSE), int(Coder.RAW)


class GlobalTopKParameters(CompressorParameters):
    ratio: Ratio = Field(0.001, description="kept fraction of each tensor, here and in the end")
    indices: IndexCoding = Field("raw", description="how indices travel: raw is 32 bits each")


class GlobalTopK(Compressor[GlobalTopKParameters]):
    """The k largest elements of the sum, found by pairwise merging."""

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
        layout = bucket.layout
        residual = self.kept("residual", bucket).add_(bucket.gradient)
        short = self.parameters.indices == "raw" and together(residual)
        if short:
            message, places = _largest_together(residual, layout, self._counts(layout))
        else:
            frames, sent = [], []
            for piece, part in batched(layout.views(residual)):
                indices = largest(part, count_kept(piece.numel, self.parameters.ratio))
                coding = self.parameters.indices
                frames.append(pack_sparse(part[indices], indices, piece.numel, coding))
                sent.append(indices)
            message = torch.cat(frames)

        def merge(own: Tensor, received: Tensor) -> Tensor:
            return self._merge(own, received, layout)

        result: Tensor = yield TreeMerge(payload=message, merge=merge)
        update = torch.zeros_like(bucket.gradient)
        fill_once(add_all, result, update, add_message, layout, 1.0 / self.worker.count, {})
        if short:
            kept = once(_places, result, layout)
            residual[places[torch.isin(places, kept, assume_unique=True)]] = 0.0
            return update
        everywhere = zip(layout.slices, once(_indices, result, layout), sent, strict=True)
        for piece, kept, mine in batched(everywhere):
            piece.of(residual)[mine[torch.isin(mine, kept, assume_unique=True)]] = 0.0
        return update

    def _merge(self, own: Tensor, received: Tensor, layout: BucketLayout) -> Tensor:
        """The k largest of the sum of two messages, tensor by tensor."""
        if self.parameters.indices == "raw" and together(own):
            message, given = torch.empty_like(own), (array(own), array(received), layout.table)
            if merge_messages(*given, self._counts(layout), array(message), *_CODED):
                return message  # else one of them is damaged, and what follows says how
        frames = []
        others = frames_of(received, layout, Codec.SPARSE)
        for (piece, mine), (_, other) in zip(
            frames_of(own, layout, Codec.SPARSE), others, strict=True
        ):
            k = count_kept(piece.numel, self.parameters.ratio)
            indices, values = merged_pairs(*self._pairs(mine, k), *self._pairs(other, k))
            chosen = largest(values, k)
            values, indices = values[chosen], indices[chosen]
            frames.append(pack_sparse(values, indices, piece.numel, self.parameters.indices))
        return torch.cat(frames)

    def _counts(self, layout: BucketLayout) -> NDArray[np.int64]:
        """k of each tensor."""
        return np.array([count_kept(piece.numel, self.parameters.ratio) for piece in layout.slices])

    def _pairs(self, frame: Frame, k: int) -> tuple[Tensor, Tensor]:
        if frame.nonzero != k:
            raise InputError(f"damaged payload: {frame.nonzero} elements, not {k}")
        return unpack_sparse(frame)


def _largest_together(
    values: Tensor, layout: BucketLayout, counts: NDArray[np.int64]
) -> tuple[Tensor, Tensor]:
    """(the message of the largest of each tensor, their places in the bucket) in two loops."""
    data, ends = array(values), counts.cumsum()
    places = np.empty(ends[-1], dtype=np.int64)
    if not take_each(data, layout.table, counts, places):
        raise InputError(NO_NUMBER)
    everywhere = places + layout.table[:, 0].repeat(counts)
    message = np.empty(HEADER_BYTES * len(counts) + 8 * len(places), dtype=np.uint8)
    numels = layout.table[:, 1].copy()
    put_pairs(message, data[everywhere], places, ends, numels, *_CODED)
    return torch.from_numpy(message), torch.from_numpy(everywhere)


def _places(message: Tensor, layout: BucketLayout) -> Tensor:
    """Of all tensors' elements in the bucket: int64, ascending."""
    found = zip(_indices(message, layout), layout.slices, strict=True)
    return torch.cat([indices + piece.offset for indices, piece in found])


def _indices(message: Tensor, layout: BucketLayout) -> list[Tensor]:
    """Of each tensor's elements: int64 `[k]`."""
    return [unpack_sparse(frame)[0] for _, frame in frames_of(message, layout, Codec.SPARSE)]
