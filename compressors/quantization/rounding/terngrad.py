"""TernGrad: every element of a gradient is -1, 0 or +1 times one scalar per tensor.

Each worker clips a tensor to c standard deviations (population, about the mean); its scalar s is
the largest magnitude after clipping. An element v becomes sign(v) with probability |v| / s, else 0:
unbiased for the clipped vector, with variance sum |v| (s - |v|) over the clipped elements.

The workers agree on the largest scalar (a maximum all-reduce of one float32 per tensor), or each
keeps its own. Ternary digits are packed five in a byte (1.6 bits) or in two bits each, and
all-gathered; with a shared scalar they can also be all-reduced as int8 (8 bits, at most 127
workers). A gathered frame includes its scalar. No state.

A tensor without spread (one element, or all equal) is not clipped: c * 0 would delete it. The
published code uses c sigma instead of the largest clipped magnitude; they differ if no element
reaches it (`scalar`).

Source: W. Wen et al., "TernGrad: Ternary Gradients to Reduce Communication in Distributed Deep
Learning", NIPS 2017, arXiv:1705.07878, Algorithm 1 (with layer-wise scalars that workers share,
clipping, c = 2.5); code: wenwei202/terngrad.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from gcsim.compressors.base import About, Compressor, CompressorParameters, Properties, Worker
from gcsim.compressors.bucket import Bucket, BucketLayout
from gcsim.compressors.coding.frames import Codec, read
from gcsim.compressors.coding.integers.digits import digits, fixed
from gcsim.compressors.coding.rounding.levels import add_encoded, encoded, even, round_levels
from gcsim.compressors.coding.rounding.norms import clipped_magnitudes
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.requests import AllGather, AllReduce, Exchange
from gcsim.compressors.segments import Segments, keys_of, spread
from gcsim.errors import InputError

FORMS = (digits(3), fixed(2))
"""Packings of ternary digits, by the frame's flags."""
_MOST_WORKERS = 127
"""Largest number of workers whose digits add up within int8."""


class TernGradParameters(CompressorParameters):
    clip: float | None = Field(
        2.5, gt=0, description="clip to c standard deviations of a tensor; null: never clip"
    )
    packing: Literal["base3", "two_bit", "all_reduce"] = Field(
        "base3",
        description="base3: five elements per byte (1.6 bits each); two_bit: 2 bits each; "
        "all_reduce: int8, summed by an all-reduce (at most 127 workers)",
    )
    shared: bool = Field(
        True, description="all workers use the largest of their scalars; else each uses its own"
    )
    scalar: Literal["largest", "clip"] = Field(
        "largest",
        description="scalar of a tensor: its largest clipped magnitude, or the clipping bound",
    )

    @model_validator(mode="after")
    def _sums_need_one_scalar(self) -> TernGradParameters:
        if self.packing == "all_reduce" and not self.shared:
            raise ValueError("packing: all_reduce adds up digits, so it needs shared: true")
        return self

    @property
    def clipping(self) -> tuple[float | None, bool]:
        """Arguments for `clipped_magnitudes`."""
        return self.clip, self.scalar == "clip"


class TernGrad(Compressor[TernGradParameters]):
    about = About(
        title="TernGrad",
        family="quantization",
        collective="all-reduce of one maximum a tensor, then all-gather (or all-reduce of int8)",
        bits="1.6 (base3), 2 (two_bit) or 8 (all_reduce), + 64 a tensor",
        paper="Wen et al., NIPS 2017, arXiv:1705.07878",
    )

    def __init__(self, worker: Worker, parameters: TernGradParameters) -> None:
        super().__init__(worker, parameters)
        if parameters.packing == "all_reduce" and worker.count > _MOST_WORKERS:
            raise InputError(
                f"terngrad.packing = all_reduce: the sums of {worker.count} workers' digits do "
                f"not fit int8, {_MOST_WORKERS} do"
            )

    @classmethod
    def properties(cls, parameters: TernGradParameters) -> Properties:
        """Return the properties: unbiased only without clipping, which the error includes."""
        chosen = parameters

        def error(values: Tensor) -> float:
            alone = Segments.alone(values.numel())
            bound, scalar = map(float, clipped_magnitudes(values, alone, *chosen.clipping))
            exact = values.double()
            clipped = exact.clamp(-bound, bound)
            magnitude = clipped.abs()
            return float(((exact - clipped).square() + magnitude * (scalar - magnitude)).sum())

        return Properties(unbiased=chosen.clip is None, error_bound=error, error_is_exact=True)

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        chosen, segments = self.parameters, Segments.of(bucket.layout)
        bounds, scalars = clipped_magnitudes(bucket.gradient, segments, *chosen.clipping)
        if chosen.shared:
            scalars = yield AllReduce(tensor=scalars, op="max")
        if chosen.packing == "all_reduce":
            codes = torch.ones_like(bucket.gradient, dtype=torch.uint8)
            levels, keys = even(segments.whole, scalars, 1), self._keys(bucket, step)
            round_levels(bucket.gradient, levels, keys, codes, segments.begin, fixed(8), bounds)
            sums = yield AllReduce(tensor=codes.view(torch.int8) - 1)
            each = spread(scalars * (1.0 / self.worker.count), segments.length)
            return torch.mul(sums, each)
        payloads = yield AllGather(payload=self.encode(bucket, step, bounds, scalars))
        return self.mean_of(payloads, bucket, add_decoded)

    def encode(self, bucket: Bucket, step: int, bounds: Tensor, scalars: Tensor) -> Tensor:
        """Encode the digits: uint8, one frame per tensor. `bounds` are this worker's clipping
        bounds, `scalars` at least the largest clipped magnitudes: float32 `[tensors]`."""
        flags = int(self.parameters.packing == "two_bit")
        levels = even(Segments.of(bucket.layout).whole, scalars, 1)
        return encoded(
            bucket.gradient, levels, self._keys(bucket, step), Codec.TERNGRAD, FORMS[flags], bounds,
            flags=flags, fixed=True,
        )  # fmt: skip

    def _keys(self, bucket: Bucket, step: int) -> NDArray[np.uint64]:
        me = self.worker
        return keys_of(bucket.layout, me.seed, step, "terngrad rounding", me.rank)


def add_decoded(message: Tensor, layout: BucketLayout, out: Tensor, weight: float) -> None:
    """Add weight * scalar * digit to `out` in place; `InputError` if damaged or foreign."""
    segments, found = Segments.of(layout), read(message, layout, Codec.TERNGRAD)
    flags = found.alike("flags")
    if flags >= len(FORMS):
        raise InputError(f"damaged payload: unknown packing {flags} of ternary digits")
    add_encoded(out, even(segments.whole, message, 1, found.at), found, FORMS[flags], weight)
