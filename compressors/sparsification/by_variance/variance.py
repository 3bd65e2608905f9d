"""Variance-based compression: what if an element waits until its sign is beyond doubt?

Each worker sums what it has not sent: r += mean_z g_z and v += sum_z (g_z / B)^2 over the
samples z of its mini-batch of B. An element travels when r^2 > alpha v, that is when its squared
mean outweighs its variance; then r = v = 0, else v decays by zeta. Elements travel as 32-bit
words: sign (bit 31), d (30-28) and index (27-0), the value being sign * 2^(e - d) with e the
exponent of the largest magnitude, one int8 a tensor: 32 sent + 8 bits a tensor. Workers
all-gather messages of unequal length and average what they decode; what is delayed is summed,
not averaged.

Without per-sample gradients, M micro-batches do: their mean gradients take the place of g_z and M
that of B, in the criterion as in v.

Readings where the paper is open or slips:
* The index counts within the tensor (one frame a tensor), 0 for its first element. Appendix B
  prints the indices 1, 2, 2, 3 for the elements 1, 2, 3, 4.
* Rounding adds half of the mantissa's range and clears the mantissa (section 4.4), then the
  result is capped at 2^e, because section 4.2 truncates there: 50.0 becomes 32, not 64.
* The largest magnitude is that of the elements that are clear: finer levels than that of the
  whole tensor (`exponent_over: tensor`).
* d > 7 does not fit: the element is not sent and keeps r and v (`out_of_range: keep`). Algorithm
  1, read literally, has reset them by then (`drop`: the value is lost).
* The rounding error is not fed back (section 4.2). It is at most |r| / 3 for a rounded value and
  below |r| / 2 for a capped one: at most a quarter of the energy that is sent. So with an empty
  memory |Q(g) - g|^2 <= |g|^2, reached when nothing is clear.
* The first sum of Appendix A's second line lacks its square; criterion (3) is right.

The criterion is evaluated in float64: in float32 the square of |r| < 1e-23 is zero, so that such
an element would wait for ever, and that of |r| > 1.8e19 infinite. An |r| below float32's normal
numbers (2^-126) has no exponent to send and waits.

Assumes per-sample second moments (`requires`) and alpha < B: at r = mean, v >= r^2 / B.

Source: Y. Tsuzuku, H. Imachi, T. Akiba, "Variance-based Gradient Compression for Efficient
Distributed Deep Learning", ICLR 2018 workshop, arXiv:1802.06058, sections 4.1-4.4, Algorithm 1,
Appendix B.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from gcsim.compressors.base import About, Compressor, CompressorParameters
from gcsim.compressors.bucket import Bucket, BucketLayout, TensorSlice
from gcsim.compressors.coding.frame import Codec, as_bytes, of_bucket, pack_frame
from gcsim.compressors.coding.sparse import energy
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.loops import array, in_parallel, loop, written_back
from gcsim.compressors.meter import batched, kernel
from gcsim.compressors.on_device import on_device
from gcsim.compressors.properties import Properties
from gcsim.compressors.requests import Exchange, gather_variable
from gcsim.compressors.sparsification.by_variance.words import (
    BIAS,
    BLOCK,
    INDEX_LIMIT,
    MANTISSA_BITS,
    add_decoded,
    largest_power,
    take_out,
)
from gcsim.errors import InputError, Problem


class VarianceParameters(CompressorParameters):
    alpha: float = Field(1.0, gt=0, description="send when r^2 > alpha v; the paper uses 1 to 2")
    zeta: float = Field(0.999, gt=0, le=1, description="decay of v at each step without sending")
    out_of_range: Literal["keep", "drop"] = Field(
        "keep", description="an element 2^8 below the largest: delay it, or lose it (Alg. 1)"
    )
    exponent_over: Literal["sent", "tensor"] = Field(
        "sent", description="levels end at the largest magnitude to be sent, or of the whole tensor"
    )


class VarianceBased(Compressor[VarianceParameters]):
    """Elements wait until their mean outweighs their variance; powers of two travel."""

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
        """See `Compressor.properties`: what is not sent is all lost in one step's view, at most."""
        return Properties(error_bound=energy)

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        """See `Compressor.exchange`. Raises `InputError` without second moments."""
        payloads = yield from gather_variable(self.encode(bucket))
        return self.mean_of(payloads, bucket, add_decoded)

    def encode(self, bucket: Bucket) -> Tensor:
        """Add a step's gradient, send what has become clear: uint8, one frame a tensor."""
        second_moment = moments_of(bucket, "variance")
        delayed = self.kept("delayed", bucket)
        moment = self.kept("moment", bucket)
        given = bucket.gradient, second_moment, bucket.layout, self.parameters
        return encoded(delayed, moment, *given)


@of_bucket("variance", "messages.words")
def encoded(
    delayed: Tensor, moment: Tensor, gradient: Tensor, second_moment: Tensor,
    layout: BucketLayout, parameters: VarianceParameters,
) -> Tensor:  # fmt: skip
    """The message of a step, float32 `[layout.numel]` each; delayed and moment in place."""
    frames = []
    for piece in batched(layout.slices):
        r, v, g, m = (piece.of(each) for each in (delayed, moment, gradient, second_moment))
        body = _send_clear(piece, r, v, g, m, parameters)
        sent = body.numel() // 4
        frames.append(pack_frame(Codec.VARIANCE, body, numel=piece.numel, nonzero=sent))
    return torch.cat(frames)


def _send_clear(
    piece: TensorSlice, r: Tensor, v: Tensor, gradient: Tensor, second_moment: Tensor,
    parameters: VarianceParameters,
) -> Tensor:  # fmt: skip
    """One tensor's body; adds the step to r and v, zeroes what is sent (float32 `[n]`)."""
    if piece.numel > INDEX_LIMIT:
        raise InputError(
            f"{piece.name} has {piece.numel} elements: 28-bit indices reach {INDEX_LIMIT}"
        )
    found, counts, largest = _add_and_find(
        r, v, gradient, second_moment, alpha=parameters.alpha, zeta=parameters.zeta
    )
    if parameters.exponent_over == "tensor" and r.numel():
        low, high = r.aminmax()
        largest = float(torch.maximum(high, -low))
    cap = largest_power(largest)
    words = take_out(r, v, found, counts, cap=cap, drop=parameters.out_of_range == "drop")
    exponent = r.new_tensor([(cap >> MANTISSA_BITS) - BIAS], dtype=torch.int8)
    return torch.cat((as_bytes(exponent), as_bytes(words)))


def moments_of(bucket: Bucket, name: str) -> Tensor:
    """The bucket's second moments; raises `InputError` when it has none."""
    if bucket.second_moment is None:
        raise InputError(
            Problem(
                message=f"{name} needs the second moments of the samples' gradients",
                hint="use gradients that carry them (live, or recorded with moments)",
            )
        )
    return bucket.second_moment


@kernel("streaming", updates=("r", "v"))
@on_device("methods.variance")
def _add_and_find(
    r: Tensor, v: Tensor, gradient: Tensor, second_moment: Tensor, *, alpha: float, zeta: float
) -> tuple[NDArray[np.int32], NDArray[np.int64], float]:
    """r += g, v = zeta (v + moment), in place; what is clear, and the largest |r| of that.

    Clear is r^2 > alpha v before the decay. The indices lie in an int32 `[n]`, each block's from
    the block's first place on; how many they are, an int64 `[ceil(n / BLOCK)]`. From kernels, the
    indices are a tensor of them alone.
    """
    n = r.numel()
    found = np.empty(n, dtype=np.int32)
    counts = np.zeros(-(-n // BLOCK), dtype=np.int64)
    largest = np.zeros(counts.size, dtype=np.int32)
    with written_back(r) as delayed, written_back(v) as moment:
        in_parallel(
            _find_clear, n, delayed, moment, array(gradient), array(second_moment),
            np.float64(alpha), np.float32(zeta), found, counts, largest, grain=BLOCK,
        )  # fmt: skip
    return found, counts, float(largest.max(initial=0).view(np.float32))


@loop
def _write_chosen(chosen: Any, eights: Any, size: int, first: int, found: Any) -> int:
    """Inside a loop: list the chosen of a block's `size` elements in found[first:]; how many.

    `chosen` is uint8, 0 or 1, and `eights` its memory as uint64; zeros behind `size`.
    """
    at = first
    for j in range(-(-size // 8)):
        if eights[j]:
            for i in range(8 * j, min(8 * j + 8, size)):
                found[at] = first + i  # without a branch, which could not be predicted
                at += chosen[i]
    return at - first


@loop
def _find_clear(
    start: int, stop: int, delayed: Any, moment: Any, gradient: Any, second_moment: Any,
    alpha: float, zeta: float, found: Any, counts: Any, largest: Any,
) -> None:  # fmt: skip
    clear = np.zeros(BLOCK, dtype=np.uint8)
    eights = clear.view(np.uint64)
    sizes = np.empty(BLOCK, dtype=np.float32)
    bits = sizes.view(np.int32)
    normal = np.float32(2.0**-126)
    for first in range(start, stop, BLOCK):
        last = min(first + BLOCK, stop)
        r, v = delayed[first:last], moment[first:last]
        g, m = gradient[first:last], second_moment[first:last]
        clear[r.size :] = 0
        for i in range(r.size):
            total = r[i] + g[i]
            second = v[i] + m[i]
            r[i] = total
            v[i] = zeta * second  # of a sent element: set to zero later
            wide = np.float64(total)
            chosen = (wide * wide > alpha * np.float64(second)) & (abs(total) >= normal)
            clear[i] = chosen
            sizes[i] = abs(total) if chosen else np.float32(0)
        top = np.int32(0)
        for i in range(r.size):
            top = max(top, bits[i])  # as integers, floats of one sign keep their order
        largest[first // BLOCK] = top
        counts[first // BLOCK] = _write_chosen(clear, eights, r.size, first, found) if top else 0
