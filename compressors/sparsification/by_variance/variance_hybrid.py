"""Hybrid of variance-based compression and Strom's: what if an unambiguous element sends only tau?

Each worker keeps r += mean_z g_z and v += sum_z (g_z / B)^2 over its samples z. An element travels
when |r| > tau and r^2 > alpha v, as its sign alone: receivers add sign(r) tau, and
    v = max(v - 2 |r| tau + tau^2, 0),    r = r - sign(r) tau,
in this order; v decays by zeta at every step. A word is 31 bits of index (within the tensor) and
the sign in bit 31: 32 sent bits a tensor. Workers all-gather words and average what they decode.
What is not sent stays in r: nothing is lost, |Q(g) - g|^2 <= |g|^2 at a first step (an element
that is sent shrinks, the others count whole), and the mean of r over workers is what is owed.

Readings: v is corrected with r before tau is taken off, as section 4.5 derives it from the sum of
(g - S)^2; Algorithm 2 prints the two lines in the other order (`correct_with: after`). By hand,
r = .25, v = .06, tau = .1: .02, not .04. tau is an absolute threshold, in units of the gradient.

Without per-sample gradients, M micro-batches do: their mean gradients take the place of g_z and M
that of B. The criterion is evaluated in float64, where no float32 squared is zero or infinite.

Source: Y. Tsuzuku, H. Imachi, T. Akiba, "Variance-based Gradient Compression for Efficient
Distributed Deep Learning", ICLR 2018 workshop, arXiv:1802.06058, section 4.5, Algorithm 2; tau and
alpha of Tables 1 and 2. The threshold: N. Strom, Interspeech 2015.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from pydantic import Field

from gcsim.compressors.base import About, CompressorParameters
from gcsim.compressors.bucket import Bucket, BucketLayout, bucket_state
from gcsim.compressors.coding.frame import of_bucket
from gcsim.compressors.coding.sparse import add_signed, energy, pack_signed
from gcsim.compressors.error_feedback import ErrorFeedback
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.loops import array, in_parallel, loop, written_back
from gcsim.compressors.meter import batched, kernel
from gcsim.compressors.on_device import on_device
from gcsim.compressors.properties import Properties
from gcsim.compressors.requests import Exchange, gather_variable
from gcsim.compressors.sparsification.by_variance.variance import moments_of
from gcsim.compressors.sparsification.by_variance.words import BLOCK, joined
from gcsim.errors import InputError

_INDEX = np.int32(0x7FFFFFFF)
_SIGN = np.int32(-(1 << 31))


class VarianceHybridParameters(CompressorParameters):
    tau: float = Field(0.01, gt=0, description="value that is sent, and least |r| to send it")
    alpha: float = Field(2.0, gt=0, description="send when also r^2 > alpha v")
    zeta: float = Field(0.999, gt=0, le=1, description="decay of v at each step")
    correct_with: Literal["before", "after"] = Field(
        "before", description="v's correction uses r before tau is taken off, or after (Alg. 2)"
    )


class VarianceHybrid(ErrorFeedback[VarianceHybridParameters]):
    """Signs of elements that exceed tau and whose mean outweighs their variance."""

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
        """See `Compressor.exchange`. Raises `InputError` without second moments."""
        payloads = yield from gather_variable(self.encode(bucket))
        tau = self.parameters.tau
        return self.mean_of(payloads, bucket, add_signed, levels=(tau, -tau))

    def encode(self, bucket: Bucket) -> Tensor:
        """Add a step's gradient, send signs, take them off: uint8, one frame a tensor."""
        second_moment = moments_of(bucket, "variance_hybrid")
        residual = bucket_state(self.residual, bucket)
        moment = self.kept("moment", bucket)
        given = bucket.gradient, second_moment, bucket.layout, self.parameters
        return encoded(residual, moment, *given)


@of_bucket("variance_hybrid", "messages.words")
def encoded(
    residual: Tensor, moment: Tensor, gradient: Tensor, second_moment: Tensor,
    layout: BucketLayout, parameters: VarianceHybridParameters,
) -> Tensor:  # fmt: skip
    """The message of a step, float32 `[layout.numel]` each; residual and moment in place."""
    frames = []
    for piece in batched(layout.slices):
        if piece.numel > int(_INDEX):
            raise InputError(f"{piece.name} has {piece.numel} elements: an index has 31 bits")
        r, v, g, m = (piece.of(each) for each in (residual, moment, gradient, second_moment))
        words = _add_and_send(r, v, g, m, parameters)
        frames.append(pack_signed(words, piece.numel))
    return torch.cat(frames)


@kernel("streaming", updates=("r", "v"))
@on_device("methods.variance")
def _add_and_send(
    r: Tensor, v: Tensor, gradient: Tensor, second_moment: Tensor,
    parameters: VarianceHybridParameters,
) -> Tensor:  # fmt: skip
    """One step of one tensor, float32 `[n]`: r and v in place; the words, int32."""
    n = r.numel()
    words = np.empty(n, dtype=np.int32)
    counts = np.zeros(-(-n // BLOCK), dtype=np.int64)
    with written_back(r) as residual, written_back(v) as moment:
        in_parallel(
            _send_signs, n, residual, moment, array(gradient), array(second_moment),
            np.float64(parameters.alpha), np.float32(parameters.tau),
            np.float32(parameters.zeta), parameters.correct_with == "after", words, counts,
            grain=BLOCK,
        )  # fmt: skip
    return joined(words, counts, r)


@loop
def _send_signs(
    start: int, stop: int, residual: Any, moment: Any, gradient: Any, second_moment: Any,
    alpha: float, tau: Any, zeta: float, after: bool, words: Any, counts: Any,
) -> None:  # fmt: skip
    """Each block's words, from the block's first place on."""
    chosen = np.zeros(BLOCK, dtype=np.uint8)
    eights = chosen.view(np.uint64)
    signs = np.empty(BLOCK, dtype=np.int32)
    left_out = tau if after else np.float32(0)
    for first in range(start, stop, BLOCK):
        last = min(first + BLOCK, stop)
        r, v = residual[first:last], moment[first:last]
        g, m = gradient[first:last], second_moment[first:last]
        chosen[r.size :] = 0
        for i in range(r.size):
            total = r[i] + g[i]
            second = v[i] + m[i]
            size = abs(total)
            wide = np.float64(total)
            clear = (wide * wide > alpha * np.float64(second)) & (size > tau)
            corrected = second - (np.float32(2) * (size - left_out) - tau) * tau
            sent = tau if clear else np.float32(0)
            kept = corrected if clear else second
            r[i] = total - (sent if total > 0 else -sent)
            v[i] = zeta * max(kept, np.float32(0))
            chosen[i] = clear
            signs[i] = np.int32(0) if total > 0 else _SIGN
        at = first
        for j in range(-(-r.size // 8)):
            if eights[j]:
                for i in range(8 * j, min(8 * j + 8, r.size)):
                    words[at] = np.int32(first + i) | signs[i]  # no branch to be predicted
                    at += chosen[i]
        counts[first // BLOCK] = at - first
