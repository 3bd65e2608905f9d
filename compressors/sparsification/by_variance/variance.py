"""Variance-based compression: elements accumulate until their sign is unambiguous.

Each worker sums unsent gradients: r += mean_z g_z and v += sum_z (g_z / B)^2 over the samples z of
its mini-batch of B. An element is sent if r^2 > alpha v, that is if its squared mean outweighs its
variance; then r = v = 0, else v decays by zeta. Elements are sent as 32-bit words: sign (bit 31), d
(30-28) and index (27-0), the value being sign * 2^(e - d) with e the exponent of the largest
magnitude, one int8 per tensor: 32 sent + 8 bits per tensor. Workers all-gather messages of unequal
length and average the decoded values; delayed gradients are summed, not averaged. Without
per-sample gradients, M micro-batches are used: their mean gradients replace g_z and M replaces B.

Choices where the paper is open or has slips:
* The index counts within the tensor (one frame per tensor), 0 for its first element. Appendix B
  prints the indices 1, 2, 2, 3 for the elements 1, 2, 3, 4.
* Rounding adds half of the mantissa's range and clears the mantissa (section 4.4), then the
  result is capped at 2^e, because section 4.2 truncates there: 50.0 becomes 32, not 64.
* The largest magnitude is that of the clear elements: finer levels than the whole tensor's.
* d > 7 does not fit: the element is not sent and keeps r and v. Algorithm 1, taken literally, has
  reset them by then, so that the value would be lost.
* The rounding error is not fed back (section 4.2). It is at most |r| / 3 for a rounded value and
  below |r| / 2 for a capped one: at most a quarter of the energy that is sent. So with an empty
  memory |Q(g) - g|^2 <= |g|^2, with equality if nothing is clear.
* The first sum of Appendix A's second line lacks its square; criterion (3) is right.

The criterion is evaluated in float64: in float32 the square of |r| < 1e-23 is zero, so such an
element would never be sent, and that of |r| > 1.8e19 is infinite. An |r| below float32's normal
numbers (2^-126) has no exponent to send and stays.

Assumes per-sample second moments (`requires`) and alpha < B: at r = mean, v >= r^2 / B.

Source: Y. Tsuzuku, H. Imachi, T. Akiba, "Variance-based Gradient Compression for Efficient
Distributed Deep Learning", ICLR 2018 workshop, arXiv:1802.06058, sections 4.1-4.4, Algorithm 1,
Appendix B.
"""

from __future__ import annotations

from pydantic import Field

from gcsim.compressors.base import About, Compressor, CompressorParameters, Properties
from gcsim.compressors.bucket import Bucket
from gcsim.compressors.coding.frames import Codec, packed
from gcsim.compressors.coding.indices.words import add_powers, clear_words
from gcsim.compressors.coding.sparse import energy
from gcsim.compressors.lazy_torch import Tensor
from gcsim.compressors.requests import Exchange, gather_variable
from gcsim.compressors.segments import Segments
from gcsim.errors import InputError, Problem


class VarianceParameters(CompressorParameters):
    alpha: float = Field(
        1.0, gt=0, description="send if squared mean > alpha * variance (paper: 1 to 2)"
    )
    zeta: float = Field(0.999, gt=0, le=1, description="decay of the variance of unsent elements")


class VarianceBased(Compressor[VarianceParameters]):
    about = About(
        title="Variance-based compression",
        family="sparsification",
        collective="all-gather of unequal messages",
        bits="32 sent / n + 8 a tensor",
        state="delayed gradient (n), delayed second moment (n)",
        paper="Tsuzuku et al., ICLR 2018 workshop, arXiv:1802.06058",
    )
    requires = frozenset({"second_moments"})

    @classmethod
    def properties(cls, parameters: VarianceParameters) -> Properties:
        """Return the properties: the error of one step is at most the whole gradient."""
        return Properties(error_bound=energy)

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        """Exchange the bucket; raises `InputError` without second moments."""
        payloads = yield from gather_variable(self.encode(bucket))
        return self.mean_of(payloads, bucket, add_powers)

    def encode(self, bucket: Bucket) -> Tensor:
        """Add the step's gradient and encode the clear elements: uint8, one frame per tensor."""
        segments, chosen = Segments.of(bucket.layout), self.parameters
        given = bucket.gradient, moments_of(bucket, "variance"), segments
        words, k, exponents = clear_words(
            self.kept("delayed", bucket), self.kept("moment", bucket), *given,
            alpha=chosen.alpha, zeta=chosen.zeta,
        )  # fmt: skip
        assert exponents is not None
        parts = (exponents, segments.column(1)), (words, 4 * k)
        return packed(words, Codec.VARIANCE, segments, *parts, nonzero=k)


def moments_of(bucket: Bucket, name: str) -> Tensor:
    """Return the bucket's second moments; raises `InputError` if it has none."""
    if bucket.second_moment is None:
        raise InputError(
            Problem(
                message=f"{name} needs the second moments of the samples' gradients",
                hint="use gradients that carry them (live, or recorded with moments)",
            )
        )
    return bucket.second_moment
