"""Hybrid of variance-based compression and Strom's method: unambiguous elements send ±tau.

Each worker keeps r += mean_z g_z and v += sum_z (g_z / B)^2 over its samples z. An element is sent
if |r| > tau and r^2 > alpha v, only as its sign: receivers add sign(r) tau, and
    v = max(v - 2 |r| tau + tau^2, 0),    r = r - sign(r) tau,
in this order; v decays by zeta at every step. A word is 31 bits of index (within the tensor) and
the sign in bit 31: 32 sent bits per tensor. Workers all-gather the words and average the decoded
values. Unsent elements stay in r: nothing is lost, |Q(g) - g|^2 <= |g|^2 at a first step (unsent
elements count in full), and the mean of r over workers is still to be delivered.

v is corrected with r before tau is subtracted, as section 4.5 derives it from the sum of (g - S)^2;
Algorithm 2 prints the two lines in the other order. Example: r = .25, v = .06, tau = .1 give .02,
not .04. tau is in units of the gradient. Micro-batches and float64 as in `variance.py`.

Source: Y. Tsuzuku, H. Imachi, T. Akiba, "Variance-based Gradient Compression for Efficient
Distributed Deep Learning", ICLR 2018 workshop, arXiv:1802.06058, section 4.5, Algorithm 2; tau and
alpha of Tables 1 and 2. The threshold: N. Strom, Interspeech 2015.
"""

from __future__ import annotations

from pydantic import Field

from gcsim.compressors.base import About, CompressorParameters, ErrorFeedback, Properties
from gcsim.compressors.bucket import Bucket, bucket_state
from gcsim.compressors.coding.indices.words import add_signed, clear_words, signed_message
from gcsim.compressors.coding.sparse import energy
from gcsim.compressors.lazy_torch import Tensor
from gcsim.compressors.requests import Exchange, gather_variable
from gcsim.compressors.segments import Segments
from gcsim.compressors.sparsification.by_variance.variance import moments_of


class VarianceHybridParameters(CompressorParameters):
    tau: float = Field(0.01, gt=0, description="threshold and sent value, in gradient units")
    alpha: float = Field(2.0, gt=0, description="send if also squared mean > alpha * variance")
    zeta: float = Field(0.999, gt=0, le=1, description="decay of the variance at each step")


class VarianceHybrid(ErrorFeedback[VarianceHybridParameters]):
    about = About(
        title="Variance-based compression with a threshold (hybrid)",
        family="sparsification",
        collective="all-gather of unequal messages",
        bits="32 sent / n",
        state="residual (n), second moment (n)",
        paper="Tsuzuku et al., ICLR 2018 workshop, arXiv:1802.06058",
    )
    requires = frozenset({"second_moments"})

    @classmethod
    def properties(cls, parameters: VarianceHybridParameters) -> Properties:
        return Properties(conserves=True, error_bound=energy)

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        """Exchange the bucket; raises `InputError` without second moments."""
        payloads = yield from gather_variable(self.encode(bucket))
        tau = self.parameters.tau
        return self.mean_of(payloads, bucket, add_signed, levels=(tau, -tau))

    def encode(self, bucket: Bucket) -> Tensor:
        """Add the gradient, encode the signs and subtract tau: uint8, one frame per tensor."""
        chosen, segments = self.parameters, Segments.of(bucket.layout)
        given = bucket.gradient, moments_of(bucket, "variance_hybrid"), segments
        words, k, _ = clear_words(
            bucket_state(self.residual, bucket), self.kept("moment", bucket), *given,
            alpha=chosen.alpha, tau=chosen.tau, zeta=chosen.zeta,
        )  # fmt: skip
        return signed_message(words, segments, k)
