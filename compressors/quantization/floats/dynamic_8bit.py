"""Dynamic 8-bit: what if a byte holds a sign, a decimal exponent of varying width and a fraction?

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

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcsim.compressors.base import About, Compressor, CompressorParameters
from gcsim.compressors.bucket import Bucket, BucketLayout
from gcsim.compressors.coding.floats.narrow_floats import add_looked_up, largest_magnitude
from gcsim.compressors.coding.frame import Codec, Frame, as_bytes, from_bytes, pack_frame
from gcsim.compressors.coding.messages import decoder, split_body
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.loops import array, in_parallel, loop, tensor
from gcsim.compressors.meter import batched, kernel
from gcsim.compressors.on_device import on_device
from gcsim.compressors.properties import Properties
from gcsim.compressors.requests import AllGather, Exchange
from gcsim.errors import InputError

DECADES = 7
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
    frames = []
    for piece, values in batched(layout.views(vector)):
        largest = largest_magnitude(values)
        head = as_bytes(torch.tensor([largest], dtype=torch.float32, device=values.device))
        body = torch.cat((head, nearest_codes(values, largest)))
        frames.append(pack_frame(Codec.CAST, body, numel=piece.numel, flags=_TREE))
    return torch.cat(frames)


@decoder(Codec.CAST)
def add_decoded(frame: Frame, part: Tensor, weight: float) -> None:
    """Add the values of a frame's codes."""
    head, codes = split_body(frame, 4, frame.numel)
    largest = float(from_bytes(head, torch.float32, 1))
    if frame.flags != _TREE or largest < 0:
        raise InputError(f"damaged payload: format {frame.flags}, largest element {largest}")
    with np.errstate(invalid="ignore", over="ignore"):  # infinity stays what it is
        magnitudes = tree() * (weight * largest)
        table = np.concatenate((magnitudes, -magnitudes)).astype(np.float32)
    add_looked_up(part, codes, table)


@cache
def tree() -> NDArray[np.float64]:
    """The magnitudes of codes 0 … 127, ascending: float64 `[128]`."""
    values = [0.0]
    for i in range(DECADES):
        fractions = (np.arange(1 << i) + 0.5) / (1 << i)
        values += list(10.0 ** (i - DECADES + 1) * (0.1 + 0.9 * fractions))
    return np.array(values)


def _decades() -> tuple[tuple[np.float32, ...], ...]:
    """(least element, slope, offset) by decade: the cell f of y is floor(slope y + offset).

    A decade begins half way between its first value and the last one below.
    """
    values = tree()
    first = 1 << np.arange(DECADES)
    least = (values[first - 1] + values[first]) / 2
    slopes = first / (0.9 * 10.0 ** (np.arange(DECADES) - DECADES + 1))
    return tuple(tuple(np.float32(v) for v in row) for row in (least, slopes, -first / 9.0))


LEAST, SLOPES, OFFSETS = _decades()


@kernel("streaming")
@on_device("floats.narrow")
def nearest_codes(values: Tensor, largest: float) -> Tensor:
    """Codes of values / largest, 128 added for negative ones: uint8 `[n]`."""
    numbers = array(values)
    codes = np.empty(numbers.size, dtype=np.uint8)
    in_parallel(_nearest, numbers.size, numbers, np.float32(largest or 1.0), codes)
    return tensor(codes, values)


@loop
def _nearest(start: int, stop: int, values: Any, largest: Any, codes: Any) -> None:
    values, codes = values[start:stop], codes[start:stop]
    for i in range(values.size):
        scaled = np.float32(values[i] / largest)
        size = abs(scaled)
        slope = offset = cells = np.float32(0)
        for k in range(DECADES):  # unrolled: choices between constants, no branch
            above = size >= LEAST[k]
            slope = SLOPES[k] if above else slope
            offset = OFFSETS[k] if above else offset
            cells = np.float32(1 << k) if above else cells
        last = max(cells - np.float32(1), np.float32(0))
        cell = min(max(size * slope + offset, np.float32(0)), last)
        sign = np.int32(128) if scaled < np.float32(0) else np.int32(0)
        codes[i] = np.int32(cell) + np.int32(cells) + sign
