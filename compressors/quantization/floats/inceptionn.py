"""INCEPTIONN: what if every value takes 0, 8, 16 or 32 bits, as its size and an error bound ask?

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

from pydantic import Field

from gcsim.compressors.base import About, Compressor, CompressorParameters
from gcsim.compressors.bucket import Bucket, BucketLayout
from gcsim.compressors.coding.floats.narrow_floats import largest_magnitude
from gcsim.compressors.coding.floats.truncated import add_cut, cut
from gcsim.compressors.coding.frame import Codec, Frame, pack_frame
from gcsim.compressors.coding.messages import decoder
from gcsim.compressors.laws import Laws
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.meter import batched
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
    def laws(cls, parameters: InceptionnParameters) -> Laws:
        """See `Compressor.laws`: the bound of each form, and of zero the value itself."""

        def bound(values: Tensor) -> float:
            b, unit = parameters.bound, 1.0
            if parameters.relative:
                unit = math.ldexp(1.0, exponent_above(largest_magnitude(values)))
            size = values.double().abs() / unit
            least = torch.where(size < 0.5**b, size, 0.5 ** (7 + b // 2))
            errors = least.masked_fill(size >= 0.5 ** (b // 2), 0.5**15).masked_fill(size >= 1, 0.0)
            return float(errors.square().sum()) * unit**2

        return Laws(error_bound=bound)

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        payloads = yield from gather_variable(self.encode(bucket.gradient, bucket.layout))
        return self.mean_of(payloads, bucket, add_decoded)

    def encode(self, vector: Tensor, layout: BucketLayout) -> Tensor:
        """Tags and values of each tensor of a float32 `[layout.numel]`: uint8, framed."""
        b, frames = self.parameters.bound, []
        for piece, values in batched(layout.views(vector)):
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
