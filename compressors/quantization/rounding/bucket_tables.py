"""Common part of ORQ and Linear: random rounding to levels that each bucket carries (`tables`)."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar, Literal, TypeVar

from pydantic import Field

from gcsim.compressors.base import Compressor, CompressorParameters
from gcsim.compressors.bucket import Bucket
from gcsim.compressors.coding.rounding.bucket_levels import (
    MAX_BUCKET,
    Clip,
    add_decoded,
    encode_message,
    rounding_error,
)
from gcsim.compressors.lazy_torch import Tensor
from gcsim.compressors.properties import Properties
from gcsim.compressors.requests import AllGather, Exchange
from gcsim.compressors.segments import Cells, Segments, keys_of


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
    """Purpose of the random numbers: a part of their key."""

    @classmethod
    @abstractmethod
    def tables(cls, values: Tensor, cells: Cells, parameters: P) -> Tensor:
        """The levels of each cell of a flat float32: float32 `[cells, levels]`, ascending."""

    @classmethod
    def properties(cls, parameters: P) -> Properties:
        def error(values: Tensor) -> float:
            cells = Segments.alone(values.numel()).cells(parameters.bucket)
            return rounding_error(values, cls.tables(values, cells, parameters), parameters.bucket)

        return Properties(unbiased=parameters.clip is None, error_bound=error, error_is_exact=True)

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        payloads = yield AllGather(payload=self.encode(bucket, step))
        return self.mean_of(payloads, bucket, add_decoded)

    def encode(self, bucket: Bucket, step: int) -> Tensor:
        """The message of a bucket's gradient: uint8, one frame a tensor."""
        me, layout, size = self.worker, bucket.layout, self.parameters.bucket
        cells = Segments.of(layout).cells(size)
        keys = keys_of(layout, me.seed, step, self.purpose, me.rank)
        tables = self.tables(bucket.gradient, cells, self.parameters)
        return encode_message(bucket.gradient, cells, tables, keys, size)
