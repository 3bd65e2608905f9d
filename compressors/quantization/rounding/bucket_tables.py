"""What do ORQ and Linear have in common? Each bucket carries its own levels; elements are rounded
at random to them. They differ in where the levels lie (`tables`)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np
from pydantic import Field

from gcsim.compressors.base import Compressor, CompressorParameters
from gcsim.compressors.bucket import Bucket, BucketLayout
from gcsim.compressors.coding.frame import of_bucket, together
from gcsim.compressors.coding.rounding.bucket_levels import (
    MAX_BUCKET,
    Clip,
    Search,
    add_decoded,
    pack_all_levels,
    pack_levels,
    rounding_error,
    search_levels,
)
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.meter import batched
from gcsim.compressors.properties import Properties
from gcsim.compressors.random import random_key
from gcsim.compressors.requests import AllGather, Exchange


class BucketTableParameters(CompressorParameters):
    """Hyper-parameters that ORQ and Linear share."""

    levels: Literal[3, 5, 9] = Field(5, description="s, levels of a bucket's table")
    bucket: int = Field(
        2048, ge=1, le=MAX_BUCKET, description="elements that share a table (32 s bits a bucket)"
    )
    clip: Clip = None


P = TypeVar("P", bound=BucketTableParameters)


class BucketTables(Compressor[P]):
    """Random rounding to levels that each bucket carries."""

    purpose: ClassVar[str]
    """What the random numbers are for: a part of their key."""

    @classmethod
    @abstractmethod
    def tables(cls, values: Tensor, parameters: P) -> Tensor:
        """The levels of each bucket: float32 `[ceil(n / bucket), levels]`, ascending."""

    @classmethod
    def searched(cls, values: Tensor, parameters: P, search: Search) -> Tensor:
        """Tables that `search` fills from sorted, clipped buckets."""
        p = parameters
        return search_levels(values, size=p.bucket, count=p.levels, clip=p.clip, search=search)

    @classmethod
    def properties(cls, parameters: P) -> Properties:
        def error(values: Tensor) -> float:
            return rounding_error(values, cls.tables(values, parameters), parameters.bucket)

        return Properties(unbiased=parameters.clip is None, error_bound=error, error_is_exact=True)

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        payloads = yield AllGather(payload=self.encode(bucket, step))
        return self.mean_of(payloads, bucket, add_decoded)

    def encode(self, bucket: Bucket, step: int) -> Tensor:
        """The message of a bucket's gradient: uint8, one frame a tensor."""
        me = self.worker
        keys = [
            random_key(me.seed, step, piece.index, self.purpose, me.rank)
            for piece in bucket.layout.slices
        ]
        return encoded(bucket.gradient, bucket.layout, keys, self.tables, self.parameters)


@of_bucket(file="messages.tables")
def encoded(
    gradient: Tensor, layout: BucketLayout, keys: list[np.uint64],
    tables: Callable[[Tensor, Any], Tensor], chosen: BucketTableParameters,
) -> Tensor:  # fmt: skip
    """The message of a gradient, with a key for each tensor; `tables` finds a tensor's levels."""
    if together(gradient):
        found = [tables(values, chosen) for _, values in layout.views(gradient)]
        return pack_all_levels(gradient, layout, found, size=chosen.bucket, keys=np.array(keys))
    frames = []
    for (_, values), key in zip(batched(layout.views(gradient)), keys, strict=True):
        own = tables(values, chosen)
        frames.append(pack_levels(values, own, size=chosen.bucket, key=key))
    return torch.cat(frames)
