"""Dynamic 8-bit: a byte of a sign, a decimal exponent of varying width and a fraction.

An element over its tensor's largest magnitude lies in [-1, 1]. Of its seven magnitude bits the
position of the leading one gives the power of ten, and the bits behind it cut that decade evenly:

    code 2^i + f, 0 <= f < 2^i, i = 0 … 6:  10^(i-6) (0.1 + 0.9 (f + 1/2) / 2^i);   code 0:  0

So large elements have 64 steps a decade, small ones few, over seven orders of magnitude. An
element becomes the nearest of the 255 values times the magnitude, which travels as float32:
8 n + 32 bits. Workers all-gather and add up what they decode. Deterministic and biased; the error
of an element of decade i is at most 0.45 * 10^(i-6) / 2^i of the largest magnitude.

Assumes the middle of each interval as its value; public codes differ there (some have another
value for 1, or cut the topmost decade unevenly). Ties go to the larger magnitude.

Source: T. Dettmers, "8-Bit Approximations for Parallelism in Deep Learning", ICLR 2016,
arXiv:1511.04561 (dynamic tree quantization).
"""

from __future__ import annotations

import numpy as np

from gcsim.compressors.base import About, Compressor, CompressorParameters
from gcsim.compressors.bucket import Bucket, BucketLayout
from gcsim.compressors.coding.floats.narrow_floats import (
    largest_magnitude,
    largest_magnitudes,
    tables_of,
)
from gcsim.compressors.coding.floats.powers import DECADES, tree
from gcsim.compressors.coding.frames import Codec, frames, put, read, seal, taken
from gcsim.compressors.coding.integers.digits import fixed
from gcsim.compressors.coding.rounding.levels import TREE, Levels, add_levels, round_levels
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.loops import array
from gcsim.compressors.properties import Properties
from gcsim.compressors.requests import AllGather, Exchange
from gcsim.compressors.segments import Segments
from gcsim.errors import InputError

_TREE = 255  # frame flags: the codes are this tree's


class Dynamic8Bit(Compressor):
    """Bytes with a decimal exponent, scaled by each tensor's largest magnitude."""

    about = About(
        title="Dynamic 8-bit (dynamic tree)",
        family="quantization",
        collective="all-gather",
        bits="8 + 32 / n",
        paper="Dettmers, ICLR 2016, arXiv:1511.04561",
    )

    @classmethod
    def properties(cls, parameters: CompressorParameters) -> Properties:
        return Properties(error_bound=error_bound)

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        payloads = yield AllGather(payload=encode(bucket.gradient, bucket.layout))
        return self.mean_of(payloads, bucket, add_decoded)


def error_bound(values: Tensor) -> float:
    """Sum of the squares of half a step in each element's decade."""
    largest = largest_magnitude(values)
    if largest == 0:
        return 0.0
    scaled = values.double().abs() / largest
    decades = scaled.clamp(min=1e-9).log10().floor().add_(DECADES).clamp_(0, DECADES - 1)
    steps = 0.45 * 10.0 ** (decades - (DECADES - 1)) / 2.0**decades
    return float(steps.square().sum()) * largest**2


def encode(vector: Tensor, layout: BucketLayout) -> Tensor:
    """Largest magnitude and codes of each tensor of a float32 `[layout.numel]`: uint8, framed."""
    segments, head = Segments.of(layout), Segments.of(layout).column(4)
    sizes = head + segments.length
    message, at = frames(vector, Codec.CAST, segments, sizes, flags=_TREE, fixed=True)
    largest = largest_magnitudes(vector, segments)
    put(message, at, largest, head)
    levels = Levels(kind=TREE, cells=segments.whole, numbers=largest)
    round_levels(vector, levels, None, message, at + head, fixed(8))
    return seal(message, at, sizes)


def add_decoded(message: Tensor, layout: BucketLayout, out: Tensor, weight: float) -> None:
    """out += weight * value, in place; `InputError` for a damaged or another message."""
    segments, found = Segments.of(layout), read(message, layout, Codec.CAST)
    head = segments.column(4)
    found.demand_sizes(head + segments.length)
    largest = array(taken(message, found.at, head, torch.float32)).astype(np.float64)
    if found.alike("flags") != _TREE or (largest < 0).any():
        raise InputError(f"damaged payload: format {found.flags}, largest elements {largest}")
    values = np.concatenate((tree(), -tree()))
    with np.errstate(invalid="ignore", over="ignore"):  # infinity stays what it is
        tables = np.multiply.outer(weight * largest, values).astype(np.float32)
    add_levels(out, tables_of(segments, tables), message, found.at + head, fixed(8), weight=1.0)
