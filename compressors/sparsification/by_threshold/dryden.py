"""Dryden et al.: a fraction of the elements of each sign is sent, as their mean value.

a = r + g. Of the n+ positive elements of a tensor the k+ = max(1, round(pi n+)) largest are sent,
and of the n- negative ones the k- = max(1, round(pi n-)) of largest magnitude, each as one word of
32 bits: its index in 31 bits and its sign. The level of a sign is the mean of its selected
elements, sent as float32. r = a - decoded. Among equal values the lowest index wins.

Bits: 32 (k+ + k-) + 64 per tensor. Biased: with the mean mu+ of all positive elements (mu- of all
negative), |Q(a) - a|^2 <= |a|^2 - k+ mu+^2 - k- mu-^2, with equality when the elements of a sign
are equal: k elements at their mean M take k M^2 from the energy, and M >= mu.

The k largest are selected exactly: a sample bounds both thresholds from below, one pass marks a
little more than k+ and k-, and a selection among those follows.

Messages are all-gathered and decoded as they were sent; the paper's recursive all-reduce sparsifies
partial sums again.

Source: N. Dryden, T. Moon, S. Jacobs, B. Van Essen, "Communication quantization for data-parallel
training of deep neural networks", MLHPC 2016 (adaptive quantization).
"""

from __future__ import annotations

from pydantic import Field

from gcsim.compressors.base import About, CompressorParameters, ErrorFeedback, Properties, Ratio
from gcsim.compressors.bucket import Bucket, bucket_state
from gcsim.compressors.coding.indices.words import add_signed, signed_message, signed_words
from gcsim.compressors.coding.selecting.each_sign import largest_of_each_sign, means_of_signs
from gcsim.compressors.coding.selecting.selection import count_kept
from gcsim.compressors.coding.sparse import energy
from gcsim.compressors.lazy_torch import Tensor
from gcsim.compressors.requests import Exchange, gather_variable
from gcsim.compressors.segments import Segments


class DrydenParameters(CompressorParameters):
    proportion: Ratio = Field(
        0.01, description="fraction of the positive and of the negative elements to send (pi)"
    )


class Dryden(ErrorFeedback[DrydenParameters]):
    """Sends the largest elements of each sign as their mean, with a residual."""

    about = About(
        title="Dryden's adaptive quantisation",
        family="sparsification",
        collective="all-gather of unequal messages",
        bits="32 proportion + 64 a tensor",
        state="residual (n)",
        paper="Dryden et al., Communication quantization, MLHPC 2016",
    )

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        payloads = yield from gather_variable(self.encode(bucket))
        return self.mean_of(payloads, bucket, add_signed)

    def encode(self, bucket: Bucket) -> Tensor:
        """Add the gradient, encode and subtract what is sent: uint8, one frame per tensor."""
        residual, segments = bucket_state(self.residual, bucket), Segments.of(bucket.layout)
        indices, values, each, sizes = largest_of_each_sign(
            bucket.gradient, segments, self.parameters.proportion, memory=residual
        )
        k, levels = each.sum(axis=0), means_of_signs(sizes, each)
        words = signed_words(residual, segments, indices, values, k, levels)
        return signed_message(words, segments, k, levels)

    @classmethod
    def properties(cls, parameters: DrydenParameters) -> Properties:
        def bound(vector: Tensor) -> float:
            left = energy(vector)
            for side in (vector[vector > 0].double(), vector[vector < 0].double()):
                if n := side.numel():
                    left -= count_kept(n, parameters.proportion) * float(side.mean()) ** 2
            return left

        return Properties(error_bound=bound, conserves=True)
