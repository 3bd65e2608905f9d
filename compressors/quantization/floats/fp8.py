"""FP8: gradients travel as 8-bit floating-point numbers.

Each tensor is multiplied by a power of two, 2^floor(log2(F / max|g|)) with F the format's largest
number, which brings its largest element just inside the format's range and costs no rounding,
and is then rounded to E4M3 (4 bits of exponent, 3 of mantissa, F = 448: relative error below
2^-4) or E5M2 (F = 57344: below 2^-3, but 2^14 times further down). Elements below the format's
smallest normal number have an absolute error instead: 2^-10 (E4M3) or 2^-17 (E5M2) over the scale.

All-gather: everyone decodes everyone's message and adds up in float32, one rounding for each worker
and its own scale. 8 n + 32 bits.

Assumes that casts saturate. Scales are limited to 2^126: a tensor whose largest element is below
2^-117 is not stretched over the whole range.

Source: P. Micikevicius et al., "FP8 Formats for Deep Learning", 2022, arXiv:2209.05433; H. Peng
et al., "FP8-LM: Training FP8 Large Language Models", 2023, arXiv:2310.18313 (shared
scale and sums in 8 bits, which are left out).
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
from pydantic import Field

from gcsim.compressors.base import About, Compressor, CompressorParameters, Worker
from gcsim.compressors.bucket import Bucket, BucketLayout
from gcsim.compressors.coding.floats.narrow_floats import (
    E4M3,
    E5M2,
    Narrow,
    cast,
    decoding_table,
    largest_magnitude,
    largest_magnitudes,
    tables_of,
)
from gcsim.compressors.coding.frames import Codec, frames, put, read, seal, taken
from gcsim.compressors.coding.integers.digits import fixed
from gcsim.compressors.coding.rounding.levels import add_rounded
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.loops import array
from gcsim.compressors.properties import Properties
from gcsim.compressors.requests import AllGather, Exchange
from gcsim.compressors.segments import Segments
from gcsim.errors import InputError

FORMATS = {"e4m3": E4M3, "e5m2": E5M2}
_ORDER = list(FORMATS)
_MOST_DOUBLINGS = 126


class Fp8Parameters(CompressorParameters):
    format: Literal["e4m3", "e5m2"] = Field(
        "e4m3", description="e4m3: more precise; e5m2: more range"
    )


class Fp8(Compressor[Fp8Parameters]):
    """8-bit floating-point numbers with a power-of-two scale for each tensor."""

    about = About(
        title="FP8 (E4M3 or E5M2)",
        family="quantization",
        collective="all-gather",
        bits="8 + 32 / n",
        paper="Peng et al., FP8-LM, 2023, arXiv:2310.18313",
    )

    def __init__(self, worker: Worker, parameters: Fp8Parameters) -> None:
        super().__init__(worker, parameters)
        self.form = FORMATS[parameters.format]

    @classmethod
    def properties(cls, parameters: Fp8Parameters) -> Properties:
        """Properties for the checker: half a unit in the last place of each element."""
        form = FORMATS[parameters.format]

        def bound(values: Tensor) -> float:
            return form.error_bound(values, power_of_two_scale(largest_magnitude(values), form))

        return Properties(error_bound=bound)

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        payloads = yield AllGather(payload=self.encode(bucket.gradient, bucket.layout))
        return self.mean_of(payloads, bucket, add_decoded)

    def encode(self, vector: Tensor, layout: BucketLayout) -> Tensor:
        """Scale and codes of each tensor of a float32 `[layout.numel]`: uint8, framed."""
        segments, flags = Segments.of(layout), _ORDER.index(self.parameters.format)
        largest = largest_magnitudes(vector, segments).tolist()
        scales = np.array([power_of_two_scale(each, self.form) for each in largest])  # [tensors]
        head = segments.column(4)
        sizes = head + segments.length
        message, at = frames(vector, Codec.CAST, segments, sizes, flags=flags, fixed=True)
        put(message, at, torch.from_numpy(scales.astype(np.float32)), head)
        cast(vector, segments, self.form, scales, message, at + head)
        return seal(message, at, sizes)


def add_decoded(message: Tensor, layout: BucketLayout, out: Tensor, weight: float) -> None:
    """out += weight * value, in place; `InputError` for a damaged or another message."""
    segments, found = Segments.of(layout), read(message, layout, Codec.CAST)
    head, flags = segments.column(4), found.alike("flags")
    found.demand_sizes(head + segments.length)
    scales = array(taken(message, found.at, head, torch.float32)).astype(np.float64)
    if flags >= len(_ORDER) or (np.frexp(scales)[0] != 0.5).any():
        raise InputError(f"damaged payload: format {flags}, scales {scales}")
    tables = tables_of(segments, decoding_table(FORMATS[_ORDER[flags]], weight / scales))
    add_rounded(out, tables, message, found.at + head, fixed(8), 1.0)


def power_of_two_scale(largest: float, form: Narrow) -> float:
    """The largest power of two (up to 2^126) with `largest * scale <= form.largest`.

    1 for zero; infinity and NaN count as the largest float32.
    """
    if largest == 0:
        return 1.0
    if not math.isfinite(largest):
        largest = 255.0 * 2.0**120
    fraction, exponent = math.frexp(largest)
    top_fraction, top_exponent = math.frexp(form.largest)
    doublings = top_exponent - exponent - (fraction > top_fraction)
    return math.ldexp(1.0, min(doublings, _MOST_DOUBLINGS))
