"""signSGD and Signum: every element of the update is a majority vote of signs.

Worker: the signs of the gradient (signSGD), or of its running average m = beta m + (1 - beta) g
(Signum). Update: +1 if at least half of the workers have a positive sign, else -1. Zero counts as
positive, and so does a tie.

A worker sends n bits to a server, which counts (in bit planes, eight elements per byte) and returns
n bits. Without a server each worker counts a stripe; in the authors' code rank 0 counts, with
broadcasts. State: m, in Signum only.

Biased, without scale or memory, and not a contraction. The update has length sqrt(n) whatever the
gradient's, so learning rates are around 1e-4, an all-zero gradient moves every parameter, and only
the cosine measures quality (for Signum with the momentum buffer, m / (1 - beta)).

Source: J. Bernstein, Y.-X. Wang, K. Azizzadenesheli, A. Anandkumar, "signSGD: Compressed
Optimisation for Non-Convex Problems", ICML 2018, arXiv:1802.04434 (signSGD, Signum, majority vote);
J. Bernstein, J. Zhao, K. Azizzadenesheli, A. Anandkumar, "signSGD with Majority Vote is
Communication Efficient and Fault Tolerant", ICLR 2019, arXiv:1810.05291.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from pydantic import Field

from gcsim.compressors.base import About, Compressor, CompressorParameters, P, Properties
from gcsim.compressors.bucket import Bucket, BucketLayout
from gcsim.compressors.coding.frames import Codec, frames, read, seal
from gcsim.compressors.coding.integers.packing import packed_bytes
from gcsim.compressors.coding.one_bit.signs import put_sign_bits, write_signs
from gcsim.compressors.coding.one_bit.votes import add_votes, put_more_than, votes_of
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.requests import Exchange, PushPull
from gcsim.compressors.segments import Column, Segments
from gcsim.compressors.sharing import fill_once


class SignumParameters(CompressorParameters):
    beta: float = Field(0.9, ge=0, lt=1, description="decay of the running average of gradients")


class SignSgd(Compressor[P]):
    about = About(
        title="signSGD with majority vote",
        family="quantization",
        collective="push-pull",
        without_server="alltoall_allgather",
        bits="1, each way",
        paper="Bernstein et al., ICML 2018, arXiv:1802.04434",
    )

    @classmethod
    def properties(cls, parameters: P) -> Properties:
        return Properties(scale_free=True)

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        layout, voted, count = bucket.layout, self._voted(bucket), self.worker.count
        update = torch.empty_like(bucket.gradient)

        def serve(payloads: Iterable[Tensor]) -> Tensor:
            votes = counted(payloads, layout, count, voted)
            return _message(voted, layout, put_more_than, votes, count // 2)

        answer = yield PushPull(
            payload=encode(voted, layout), server=serve, without_server="alltoall_allgather"
        )
        return fill_once(write_decoded, answer, update, layout)

    def _voted(self, bucket: Bucket) -> Tensor:
        """Return the vector whose signs are sent: float32 `[n]`. Do not modify it."""
        return bucket.gradient


class Signum(SignSgd[SignumParameters]):
    about = replace(SignSgd.about, title="Signum with majority vote", state="momentum (n)")

    @classmethod
    def momentum(cls, parameters: SignumParameters) -> tuple[float, bool]:
        return parameters.beta, False

    def _voted(self, bucket: Bucket) -> Tensor:
        average = self.kept("average", bucket)
        return average.lerp_(bucket.gradient, 1.0 - self.parameters.beta)


# --- votes ------------------------------------------------------------------------------------


def counted(messages: Iterable[Tensor], layout: BucketLayout, count: int, like: Tensor) -> Tensor:
    """Count the workers with a negative sign (`votes_of`); `InputError` if a message is damaged."""
    segments = Segments.of(layout)
    counts = votes_of(segments, count, like)
    for number, message in enumerate(messages):
        add_votes(counts, message, bits_in(message, layout), segments, first=number == 0)
    return counts


# --- messages: one frame of bits per tensor ----------------------------------------------------


def encode(vector: Tensor, layout: BucketLayout) -> Tensor:
    """Encode the signs of a float32 `[layout.numel]`: uint8, one frame per tensor."""
    return _message(vector, layout, put_sign_bits, vector)


def _message(like: Tensor, layout: BucketLayout, put: Callable[..., None], *given: Any) -> Tensor:
    """Encode the bits that `put(*given, segments, message, at)` writes."""
    segments = Segments.of(layout)
    sizes = packed_bytes(segments.length, 1)
    message, at = frames(like, Codec.SIGN, segments, sizes, fixed=True)
    put(*given, segments, message, at)
    return seal(message, at, sizes)


def bits_in(message: Tensor, layout: BucketLayout) -> Column:
    """Return the first byte of each tensor's bits; `InputError` if damaged or foreign."""
    found = read(message, layout, Codec.SIGN)
    found.demand_sizes(packed_bytes(Segments.of(layout).length, 1))
    return found.at


def write_decoded(message: Tensor, out: Tensor, layout: BucketLayout) -> None:
    """Write a message's signs as +1 and -1 into `out`, float32 `[layout.numel]`. Raises
    `InputError` if the message is damaged or has another layout."""
    write_signs(out, Segments.of(layout), message, bits_in(message, layout))
