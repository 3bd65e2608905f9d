"""FP8 and dynamic 8-bit: elements are sent in 8 bits, with a float32 scale per tensor.

FP8: each tensor is multiplied by a power of two, 2^floor(log2(F / max|g|)) with F the format's
largest number, which brings its largest element into the range without rounding. It is then rounded
to E4M3 (4 bits of exponent, 3 of mantissa, F = 448: relative error below 2^-4) or E5M2 (F = 57344:
below 2^-3, but the range reaches 2^14 times further down). Below the smallest normal number the
error is absolute: 2^-10 (E4M3) or 2^-17 (E5M2) over the scale.

Dynamic 8-bit: an element divided by its tensor's largest magnitude is coded as a sign, a decimal
exponent of variable width and a fraction. Among the seven magnitude bits the position of the
leading 1 gives the power of ten, and the bits after it divide that decade evenly:

    code 2^i + f, 0 <= f < 2^i, i = 0 … 6:  10^(i-6) (0.1 + 0.9 (f + 1/2) / 2^i);   code 0:  0

The top decade has 64 steps, lower ones fewer, over seven orders of magnitude. An element becomes
the nearest of the 255 values times the largest magnitude; in decade i the error is at most 0.45 *
10^(i-6) / 2^i of that magnitude.

Messages are all-gathered; every worker decodes and adds them in float32. Bits: 8 n + 32.
Deterministic and biased.

Assumes that casts to FP8 saturate. Scales are limited to 2^126: a tensor whose largest element is
below 2^-117 does not fill the range. A value of the tree is the middle of its interval; public
implementations differ (another value for 1, or an uneven top decade). Ties round up.

Source: P. Micikevicius et al., "FP8 Formats for Deep Learning", 2022, arXiv:2209.05433; H. Peng et
al., "FP8-LM: Training FP8 Large Language Models", 2023, arXiv:2310.18313 (its shared scale and
8-bit sums are left out); T. Dettmers, "8-Bit Approximations for Parallelism in Deep Learning", ICLR
2016, arXiv:1511.04561 (dynamic tree quantization).
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Literal

import numpy as np
from pydantic import Field

from gcsim.compressors.base import About, Compressor, CompressorParameters, P, Properties, Worker
from gcsim.compressors.bucket import Bucket, BucketLayout
from gcsim.compressors.coding.floats.narrow_floats import (
    E4M3,
    E5M2,
    Narrow,
    cast,
    largest_magnitudes,
    power_of_two_scales,
    scaled_tables,
)
from gcsim.compressors.coding.floats.powers import DECADES
from gcsim.compressors.coding.frames import Codec, frames, put, read, seal, taken
from gcsim.compressors.coding.integers.digits import fixed
from gcsim.compressors.coding.rounding.levels import TREE, Levels, add_rounded, round_levels
from gcsim.compressors.demands import when_known
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.loops import array
from gcsim.compressors.requests import AllGather, Exchange
from gcsim.compressors.segments import Segments
from gcsim.errors import InputError

FORMATS = {"e4m3": E4M3, "e5m2": E5M2}
_FORMS: dict[int, Narrow | None] = {0: E4M3, 1: E5M2, 255: None}
"""Format by the frame's flags; None: dynamic tree."""


class Dynamic8Bit(Compressor[P]):
    about = About(
        title="Dynamic 8-bit (dynamic tree)",
        family="quantization",
        collective="all-gather",
        bits="8 + 32 / n",
        paper="Dettmers, ICLR 2016, arXiv:1511.04561",
    )
    form: Narrow | None = None

    @classmethod
    def properties(cls, parameters: P) -> Properties:
        return Properties(error_bound=error_bound)

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        payloads = yield AllGather(payload=self.encode(bucket.gradient, bucket.layout))
        return self.mean_of(payloads, bucket, add_decoded)

    def encode(self, vector: Tensor, layout: BucketLayout) -> Tensor:
        """Encode scale and codes of each tensor of a float32 `[layout.numel]`: uint8 frames."""
        segments, head = Segments.of(layout), Segments.of(layout).column(4)
        sizes = head + segments.length
        flags = next(flags for flags, form in _FORMS.items() if form is self.form)
        message, at = frames(vector, Codec.CAST, segments, sizes, flags=flags, fixed=True)
        numbers = largest_magnitudes(vector, segments)
        if self.form is None:
            levels = Levels(kind=TREE, cells=segments.whole, numbers=numbers)
            round_levels(vector, levels, None, message, at + head, fixed(8))
        else:
            numbers = cast(vector, segments, self.form, numbers, message, at + head, fit=True)
        put(message, at, numbers, head)
        return seal(message, at, sizes)


class Fp8Parameters(CompressorParameters):
    format: Literal["e4m3", "e5m2"] = Field(
        "e4m3", description="e4m3: more precision; e5m2: more range"
    )


class Fp8(Dynamic8Bit[Fp8Parameters]):
    about = replace(
        Dynamic8Bit.about,
        title="FP8 (E4M3 or E5M2)",
        paper="Peng et al., FP8-LM, 2023, arXiv:2310.18313",
    )

    def __init__(self, worker: Worker, parameters: Fp8Parameters) -> None:
        super().__init__(worker, parameters)
        self.form = FORMATS[parameters.format]

    @classmethod
    def properties(cls, parameters: Fp8Parameters) -> Properties:
        """Return the properties; the error is half a unit in the last place of each element."""
        form = FORMATS[parameters.format]

        def bound(values: Tensor) -> float:
            largest = largest_magnitudes(values, Segments.alone(values.numel()))
            return form.error_bound(values, float(power_of_two_scales(array(largest), form)[0]))

        return Properties(error_bound=bound)


def error_bound(values: Tensor) -> float:
    """Return the sum of squares of half a step in each element's decade of the tree."""
    largest = float(largest_magnitudes(values, Segments.alone(values.numel())))
    if largest == 0:
        return 0.0
    scaled = values.double().abs() / largest
    decades = scaled.clamp(min=1e-9).log10().floor().add_(DECADES).clamp_(0, DECADES - 1)
    steps = 0.45 * 10.0 ** (decades - (DECADES - 1)) / 2.0**decades
    return float(steps.square().sum()) * largest**2


def add_decoded(message: Tensor, layout: BucketLayout, out: Tensor, weight: float) -> None:
    """Add weight * value to `out` in place; `InputError` if the message is damaged or foreign."""
    segments, found = Segments.of(layout), read(message, layout, Codec.CAST)
    head, flags = segments.column(4), found.alike("flags")
    found.demand_sizes(head + segments.length)
    if flags not in _FORMS:
        raise InputError(f"damaged payload: format {flags}")
    numbers = taken(message, found.at, head, torch.float32)
    when_known(numbers.view(torch.int32), partial(_demand_numbers, flags))
    tables = scaled_tables(segments, _FORMS[flags], numbers, weight)
    add_rounded(out, tables, message, found.at + head, fixed(8), 1.0)


def _demand_numbers(flags: int, *patterns: int) -> None:
    """Require power-of-two scales or non-negative largest magnitudes, given as bit patterns."""
    numbers = np.array(patterns, dtype=np.int32).view(np.float32)
    wrong = numbers < 0 if _FORMS[flags] is None else np.frexp(numbers)[0] != 0.5
    if wrong.any():
        raise InputError(f"damaged payload: format {flags}, numbers {numbers} of the tensors")
