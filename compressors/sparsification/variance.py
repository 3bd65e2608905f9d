"""Variance-based compression: what if an element waits until its sign is beyond doubt?

Each worker sums what it has not sent: r += mean_z g_z and v += sum_z (g_z / B)^2 over the
samples z of its mini-batch of B. An element travels when r^2 > alpha v, that is when its squared
mean outweighs its variance; then r = v = 0, else v decays by zeta. Elements travel as 32-bit
words: sign (bit 31), d (30-28) and index (27-0), the value being sign * 2^(e - d) with e the
exponent of the largest sent magnitude of the tensor, one int8 a tensor. Workers all-gather
messages of unequal length and average what they decode; what is delayed is summed, not averaged.

Readings where the paper is open or slips:
* The index counts within the tensor (one frame a tensor), 0 for its first element. Appendix B
  prints the indices 1, 2, 2, 3 for the elements 1, 2, 3, 4.
* Rounding adds half of the mantissa's range and clears the mantissa (section 4.4), then the
  result is capped at 2^e, because section 4.2 truncates there: 50.0 becomes 32, not 64.
* The maximum is over the elements that would be sent, not over the whole tensor: finer levels.
* d > 7 does not fit: the element is not sent and keeps r and v (`out_of_range: keep`). Algorithm
  1, read literally, has reset them by then (`drop`: the value is lost).
* The rounding error is not fed back (section 4.2). It is at most |r| / 3 for a rounded value and
  below |r| / 2 for a capped one: at most a quarter of the energy that is sent.
* The first sum of Appendix A's second line lacks its square; criterion (3) is right.

Assumes per-sample second moments (`requires`) and alpha < B: at r = mean, v >= r^2 / B.

Source: Y. Tsuzuku, H. Imachi, T. Akiba, "Variance-based Gradient Compression for Efficient
Distributed Deep Learning", ICLR 2018 workshop, arXiv:1802.06058, sections 4.1-4.4, Appendix B.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from gcsim.compressors.base import About, Compressor, CompressorParameters, Worker
from gcsim.compressors.bucket import Bucket, BucketLayout, TensorSlice
from gcsim.compressors.coding.frame import Codec, as_bytes, from_bytes, pack_frame
from gcsim.compressors.coding.messages import bucket_state, frames_of, split_body
from gcsim.compressors.coding.selection import scatter_add
from gcsim.compressors.lazy_torch import torch
from gcsim.compressors.meter import kernel
from gcsim.compressors.requests import Exchange, gather_variable
from gcsim.errors import InputError, Problem

if TYPE_CHECKING:
    from torch import Tensor

INDEX_LIMIT = 1 << 28
"""Elements that a 28-bit index can tell apart."""

_MAGNITUDE, _EXPONENT, _HALF, _SIGN = 0x7FFFFFFF, 0x7F800000, 0x00400000, -(1 << 31)
_BIAS, _MANTISSA_BITS, _DEEPEST = 127, 23, 7


class VarianceParameters(CompressorParameters):
    """Hyper-parameters of `VarianceBased`."""

    alpha: float = Field(1.0, gt=0, description="send when r^2 > alpha v; the paper uses 1 to 2")
    zeta: float = Field(0.999, gt=0, le=1, description="decay of v at each step without sending")
    out_of_range: Literal["keep", "drop"] = Field(
        "keep", description="an element 2^8 below the largest: delay it, or lose it (Alg. 1)"
    )


class VarianceBased(Compressor):
    """Elements wait until their mean outweighs their variance; powers of two travel."""

    Parameters = VarianceParameters
    about = About(
        title="Variance-based compression",
        family="sparsification",
        collective="all-gatherv",
        bits="32 sent / n + 8 a tensor",
        unbiased=False,
        state="delayed gradient (n), delayed second moment (n)",
        paper="Tsuzuku et al., ICLR 2018 workshop, arXiv:1802.06058",
    )
    requires = frozenset({"second_moments"})

    def __init__(self, worker: Worker, parameters: CompressorParameters) -> None:
        super().__init__(worker, parameters)
        assert isinstance(parameters, VarianceParameters)
        self.parameters = parameters
        self._delayed: dict[int, Tensor] = {}
        self._moment: dict[int, Tensor] = {}

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        """See `Compressor.exchange`. Raises `InputError` without second moments."""
        payloads = yield from gather_variable(self.encode(bucket))
        update = torch.zeros_like(bucket.gradient)
        for payload in payloads:
            add_decoded(payload, bucket.layout, update, 1.0 / self.worker.count)
        return update

    def encode(self, bucket: Bucket) -> Tensor:
        """Add a step's gradient, send what has become clear: uint8, one frame a tensor."""
        if bucket.second_moment is None:
            raise InputError(
                Problem(
                    message="variance needs the second moments of the samples' gradients",
                    hint="use gradients that carry them (live, or recorded with moments)",
                )
            )
        delayed = bucket_state(self._delayed, bucket).add_(bucket.gradient)
        moment = bucket_state(self._moment, bucket).add_(bucket.second_moment)
        frames = []
        for piece, r in bucket.layout.views(delayed):
            v = moment[piece.offset : piece.offset + piece.numel]
            body = self._send_clear(r, v)
            frames.append(
                pack_frame(Codec.VARIANCE, body, numel=piece.numel, nonzero=body.numel() // 4)
            )
        moment.mul_(self.parameters.zeta)  # of a sent element: 0 stays 0
        return torch.cat(frames)

    def _send_clear(self, r: Tensor, v: Tensor) -> Tensor:
        """One tensor's body; what is sent is zeroed in r and v (float32 `[n]`)."""
        if r.numel() > INDEX_LIMIT:
            raise InputError(
                f"a tensor of {r.numel()} elements: 28-bit indices reach {INDEX_LIMIT}"
            )
        margin = r.square().sub_(v, alpha=self.parameters.alpha)
        indices = (margin > 0).nonzero().view(-1)
        words, exponent, fits = encode_words(r[indices], indices)
        gone = indices if self.parameters.out_of_range == "drop" else indices[fits]
        r.index_fill_(0, gone, 0.0)
        v.index_fill_(0, gone, 0.0)
        return torch.cat((as_bytes(exponent), as_bytes(words[fits])))


def encode_words(values: Tensor, indices: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Values rounded to powers of two, as words.

    Parameters
    ----------
    values : float32 `[k]`, normal numbers
    indices : int64 `[k]`, below 2^28

    Returns
    -------
    words : int32 `[k]`, sign | d << 28 | index; meaningless where `fits` is False
    exponent : int8 `[1]`, floor(log2 max |value|); 0 when there are no values
    fits : bool `[k]`, d <= 7
    """
    bits = values.view(torch.int32)
    magnitudes = bits & _MAGNITUDE
    if not values.numel():
        return bits, torch.zeros(1, dtype=torch.int8, device=values.device), magnitudes > 0
    cap = magnitudes.max() & _EXPONENT  # as integers, floats of one sign keep their order
    rounded = torch.minimum((magnitudes + _HALF) & _EXPONENT, cap)
    depth = (cap - rounded) >> _MANTISSA_BITS
    words = indices.to(torch.int32) | (depth << 28) | (bits & _SIGN)
    exponent = ((cap >> _MANTISSA_BITS) - _BIAS).to(torch.int8).view(1)
    return words, exponent, depth <= _DEEPEST


def decode_words(words: Tensor, exponent: int) -> tuple[Tensor, Tensor]:
    """(indices int64 `[k]`, values float32 `[k]`) of `encode_words`' words.

    Raises `InputError` for an exponent that leaves float32's normal numbers: none is sent,
    because the square of a smaller element vanishes and fails the criterion.
    """
    if exponent - _DEEPEST + _BIAS < 1:
        raise InputError(f"damaged payload: exponent {exponent} is below float32's normal range")
    depth = (words >> 28) & _DEEPEST
    bits = ((exponent + _BIAS - depth) << _MANTISSA_BITS) | (words & _SIGN)
    return (words & (INDEX_LIMIT - 1)).to(torch.int64), bits.view(torch.float32)


@kernel("streaming")  # as one kernel: that a payload is checked here is not priced
def _read(head: Tensor, tail: Tensor, piece: TensorSlice) -> tuple[Tensor, Tensor]:
    exponent = int(from_bytes(head, torch.int8, 1))
    indices, values = decode_words(from_bytes(tail, torch.int32, tail.numel() // 4), exponent)
    if int(indices[-1]) >= piece.numel or not bool((indices.diff() > 0).all()):
        raise InputError(f"damaged payload: indices of {piece.name} do not ascend below n")
    return indices, values


def add_decoded(message: Tensor, layout: BucketLayout, out: Tensor, weight: float) -> None:
    """out += weight * decoded message, in place; `out` is float32 `[layout.numel]`.

    Raises `InputError` when the message is damaged or of another layout.
    """
    for piece, frame in frames_of(message, layout, Codec.VARIANCE):
        head, tail = split_body(frame, 1, 4 * frame.nonzero)
        if not frame.nonzero:
            continue
        indices, values = _read(head, tail, piece)
        scatter_add(out[piece.offset : piece.offset + piece.numel], indices, values.mul_(weight))
