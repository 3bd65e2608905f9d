"""NUQSGD: random rounding to powers of a half instead of evenly spaced levels.

Each tensor is cut into buckets; a bucket sends its norm (float32) and for each element one of the
levels 0, ±p^m, …, ±p, ±1 times the norm, rounded at random to one of the two next to it, in `bits`
bits. Of the normalised elements of a long bucket most are tiny, where these levels are dense.
Workers all-gather and average what they decode. No state. Unbiased, and
E|Q(v) - v|^2 = sum (|v| - lo) (hi - |v|), lo and hi the levels next to |v|, exactly.

The paper's levels hold zero: of 2^bits codes one is not used, and m = 2^(bits-1) - 2. The
published code instead has 2^bits levels without zero, m = 2^(bits-1) - 1, so that zero too becomes
±p^m at random (`zero`). Both have p = 1/2, and the Euclidean norm.

Assumes a fixed width; the paper codes levels by Elias' code.

Source: A. Ramezani-Kebrya et al., "NUQSGD: Provably Communication-efficient Data-parallel SGD via
Nonuniform Quantization", JMLR 22(114), 2021, arXiv:1908.06077; code:
Tabrizian/learning-to-quantize.
"""

from __future__ import annotations

from pydantic import Field

from gcsim.compressors.base import About, Compressor, Worker
from gcsim.compressors.bucket import Bucket
from gcsim.compressors.coding.rounding.tables import (
    TableParameters,
    add_decoded,
    encode_message,
    exponential_levels,
    table_error,
)
from gcsim.compressors.lazy_torch import Tensor
from gcsim.compressors.properties import Properties
from gcsim.compressors.requests import AllGather, Exchange


class NuqsgdParameters(TableParameters):
    multiplier: float = Field(
        0.5, gt=0, lt=1, description="p, ratio of neighbouring levels' magnitudes"
    )
    zero: bool = Field(
        True, description="zero is a level (paper); else one more power of p takes its place (code)"
    )


class Nuqsgd(Compressor[NuqsgdParameters]):
    """Stochastic quantisation to exponentially spaced levels, bucket by bucket."""

    about = About(
        title="NUQSGD",
        family="quantization",
        collective="all-gather",
        bits="bits + 32 / bucket",
        unbiased=True,
        paper="Ramezani-Kebrya et al., JMLR 22(114), 2021",
    )

    def __init__(self, worker: Worker, parameters: NuqsgdParameters) -> None:
        super().__init__(worker, parameters)
        self.levels = exponential_levels(
            parameters.bits, parameters.multiplier, zero=parameters.zero
        )

    @classmethod
    def properties(cls, parameters: NuqsgdParameters) -> Properties:
        """Unbiased, with the error of random rounding between known levels."""
        chosen = parameters
        levels = exponential_levels(chosen.bits, chosen.multiplier, zero=chosen.zero)

        def error(values: Tensor) -> float:
            return table_error(values, levels, size=chosen.bucket, norm=chosen.norm)

        return Properties(unbiased=True, error_bound=error, error_is_exact=True)

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        chosen = self.parameters
        purpose = "nuqsgd rounding"
        message = encode_message(bucket, [self.levels], chosen, self.worker, step, purpose)
        payloads = yield AllGather(payload=message)
        return self.mean_of(payloads, bucket, add_decoded, tables=[self.levels], chosen=chosen)
