"""INCEPTIONN: every value takes 0, 8, 16 or 32 bits, as its size and an error bound ask.

With the bound 2^-b, a tag of 2 bits says which of four forms a value v has:

    0   |v| < 2^-b             nothing: decodes to zero
    1   |v| < 2^-floor(b/2)    8 bits: sign and 7 bits of |v| behind the point from 2^-floor(b/2) on
    2   |v| < 1                16 bits: sign and 15 bits of |v| behind the point
    3   |v| >= 1               the float32 as it is

Bits are cut off, not rounded, so that an adder-free network interface can do it. The error of
every value is below 2^-b (2^-(7 + floor(b/2)) and 2^-15 in the forms 1 and 2), biased towards zero.
2 n + 8 n_1 + 16 n_2 + 32 n_3 bits: tags, then the values of each form together.

Assumes form 1 begins at the upper end of its range: with 7 bits from 1 downwards, as in public
code, the error would be up to 2^-7. The paper compresses each hop of a ring; here workers
all-gather and add up what they decode, so that errors do not pile up. `relative` takes the bound
as a fraction of the power of two above the tensor's largest magnitude, whose exponent travels in
the frame's header: an absolute 2^-10 loses all of a gradient whose elements are around 10^-4.

Source: Y. Li et al., "A Network-Centric Hardware/Algorithm Co-Design to Accelerate Distributed
Training of Deep Neural Networks", MICRO 2018, doi 10.1109/MICRO.2018.00023.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from gcsim.compressors.base import About, Compressor, CompressorParameters
from gcsim.compressors.bucket import Bucket, BucketLayout
from gcsim.compressors.coding.floats.narrow_floats import largest_magnitude
from gcsim.compressors.coding.frames import Codec, Frame, decoder, pack_frame
from gcsim.compressors.coding.integers.packing import packed_bytes
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.loops import array, loop, tensor, written_back
from gcsim.compressors.meter import kernel
from gcsim.compressors.properties import Properties
from gcsim.compressors.requests import Exchange, gather_variable
from gcsim.errors import InputError

_EXPONENT_OFFSET = 256  # exponents -126 … 128 as frame parameters; 0 says that nothing is scaled
MAX_BOUND = 14
"""ceil(b / 2) must not be above the 7 bits of form 1."""


class InceptionnParameters(CompressorParameters):
    bound: int = Field(
        10, ge=1, le=MAX_BOUND, description="b: the error of every value is below 2^-b"
    )
    relative: bool = Field(
        False,
        description="bound relative to the power of two above each tensor's largest magnitude",
    )


class Inceptionn(Compressor[InceptionnParameters]):
    """Values cut to 0, 8, 16 or 32 bits under an error bound."""

    about = About(
        title="INCEPTIONN",
        family="quantization",
        collective="all-gatherv",
        bits="2 + 8, 16 or 32 for each value, by its size",
        paper="Li et al., MICRO 2018, doi 10.1109/MICRO.2018.00023",
    )

    @classmethod
    def properties(cls, parameters: InceptionnParameters) -> Properties:
        """See `Compressor.properties`: the bound of each form, and of zero the value itself."""

        def bound(values: Tensor) -> float:
            b, unit = parameters.bound, 1.0
            if parameters.relative:
                unit = math.ldexp(1.0, exponent_above(largest_magnitude(values)))
            size = values.double().abs() / unit
            least = torch.where(size < 0.5**b, size, 0.5 ** (7 + b // 2))
            errors = least.masked_fill(size >= 0.5 ** (b // 2), 0.5**15).masked_fill(size >= 1, 0.0)
            return float(errors.square().sum()) * unit**2

        return Properties(error_bound=bound)

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        payloads = yield from gather_variable(self.encode(bucket.gradient, bucket.layout))
        return self.mean_of(payloads, bucket, add_decoded)

    def encode(self, vector: Tensor, layout: BucketLayout) -> Tensor:
        """Tags and values of each tensor of a float32 `[layout.numel]`: uint8, framed."""
        b, frames = self.parameters.bound, []
        for piece, values in layout.views(vector):
            exponent = 0
            if self.parameters.relative:
                exponent = exponent_above(largest_magnitude(values))
            body, sent = cut(values, b, math.ldexp(1.0, -exponent))
            params = exponent + _EXPONENT_OFFSET if self.parameters.relative else 0
            frame = pack_frame(
                Codec.INCEPTIONN, body, numel=piece.numel, nonzero=sent, flags=b, params=params
            )
            frames.append(frame)
        return torch.cat(frames)


def exponent_above(largest: float) -> int:
    """e with largest < 2^e, at least -126; 0 for zero and for what is not finite."""
    return max(math.frexp(largest)[1], -126) if math.isfinite(largest) else 0


@decoder(Codec.INCEPTIONN)
def add_decoded(frame: Frame, part: Tensor, weight: float) -> None:
    """Add a frame's values, scaled back by its exponent."""
    exponent = frame.params - _EXPONENT_OFFSET if frame.params else 0
    if not 1 <= frame.flags <= MAX_BOUND or not -126 <= exponent <= 128:
        raise InputError(f"damaged payload: bound 2^-{frame.flags}, exponent {exponent}")
    weight = math.ldexp(weight, exponent)
    add_cut(part, frame.body, bound=frame.flags, sent=frame.nonzero, weight=weight)


@kernel("gather_scatter", name="truncated.cut")
def cut(values: Tensor, bound: int, factor: float) -> tuple[Tensor, int]:
    """(body of the frame of factor * values, number of values that are not zero in it).

    `values` is float32 `[n]`; the body is uint8: tags, then the values of 1, 2 and 4 bytes.
    """
    n = values.numel()
    tags = np.zeros(packed_bytes(n, 2), dtype=np.uint8)
    forms = [np.empty(n, dtype=kind) for kind in ("u1", "<u2", "<u4")]
    counts = np.zeros(4, dtype=np.int64)
    scale8 = np.float32(2.0 ** (7 + bound // 2))
    settings = np.float32(factor), _limits(bound), scale8
    _cut(array(values), *settings, tags, forms[0], forms[1], forms[2], counts)
    pairs = zip(forms, counts[1:], strict=True)
    parts = [tags, *(form[:count].view(np.uint8) for form, count in pairs)]
    return tensor(np.concatenate(parts), values), int(counts[1:].sum())


@kernel("gather_scatter", updates=("out",), name="truncated.add_cut")
def add_cut(out: Tensor, message: Tensor, *, bound: int, sent: int, weight: float) -> None:
    """out += weight * what `cut` made the message of, in place; `out` is float32 `[n]`.

    Raises `InputError` when the message's length or `sent`, the number of its values, is not what
    its tags ask for.
    """
    body, n = array(message), out.numel()
    tags, rest = body[: packed_bytes(n, 2)], body[packed_bytes(n, 2) :]
    each = [tags >> shift & 3 for shift in (0, 2, 4, 6)]
    counts = np.array([sum(np.count_nonzero(one == k) for one in each) for k in (1, 2, 3)])
    ends = np.cumsum(counts * (1, 2, 4))
    stray = n % 4 and tags.size and tags[-1] >> 2 * (n % 4)
    if 4 * tags.size < n or stray or ends[2] != rest.size or counts.sum() != sent:
        raise InputError(
            f"damaged payload: {body.size} bytes of {sent} values, "
            f"the tags of {n} ask for {counts.tolist()} of 1, 2 and 4 bytes"
        )
    pairs = zip(np.split(rest, ends[:2]), ("u1", "<u2", "<u4"), strict=True)
    forms = [np.frombuffer(part.tobytes(), dtype=kind) for part, kind in pairs]  # aligned
    # 2^128 is only met where no value takes 32 bits
    scales = weight * 0.5 ** (7 + bound // 2), weight * 0.5**15, min(weight, 3e38)
    with written_back(out) as target:
        _add(tags, forms[0], forms[1], forms[2], np.array(scales, dtype=np.float32), target)


def _limits(bound: int) -> NDArray[np.uint32]:
    """Bits of the magnitudes at which the forms 1, 2 and 3 begin."""
    return np.array([127 - bound, 127 - bound // 2, 127], dtype=np.uint32) << np.uint32(23)


@loop
def _cut(
    values: Any, factor: Any, limits: Any, scale8: Any, tags: Any, form8: Any, form16: Any,
    form32: Any, counts: Any,
) -> None:  # fmt: skip
    for i in range(values.size):
        word = np.float32(values[i] * factor).view(np.uint32)
        size, sign = np.uint32(word & np.uint32(0x7FFFFFFF)), np.uint32(word >> np.uint32(31))
        small = np.uint32(size).view(np.float32)
        tag = 0
        if size >= limits[2]:
            tag = 3
            form32[counts[3]] = word
        elif size >= limits[1]:
            tag = 2
            form16[counts[2]] = np.uint32(small * np.float32(32768)) | sign << np.uint32(15)
        elif size >= limits[0]:
            tag = 1
            form8[counts[1]] = np.uint32(small * scale8) | sign << np.uint32(7)
        counts[tag] += 1
        tags[i // 4] |= np.uint8(tag << 2 * (i % 4))


@loop
def _add(tags: Any, form8: Any, form16: Any, form32: Any, scales: Any, out: Any) -> None:
    places = np.zeros(4, dtype=np.int64)
    for i in range(out.size):
        tag = (tags[i // 4] >> np.uint8(2 * (i % 4))) & 3
        at, value = places[tag], np.float32(0)
        if tag == 1:
            value = np.float32(np.int32(form8[at]) & 127) * scales[0]
            value = -value if form8[at] >= 128 else value
        elif tag == 2:
            value = np.float32(np.int32(form16[at]) & 32767) * scales[1]
            value = -value if form16[at] >= 32768 else value
        elif tag == 3:
            value = np.uint32(form32[at]).view(np.float32) * scales[2]
        out[i] += value
        places[tag] += 1
