"""signSGD and Signum: what if every element of the update is a majority vote of signs?

Worker: the signs of the gradient (signSGD), or of its running average m = beta m + (1 - beta) g
(Signum). Update: +1 where at least half of the workers say positive, else -1. Zero counts as
positive, and so does a tie of an even number of workers; `tie` "zero" makes it 0, which one bit
down cannot say.

Three ways to count:

* push_pull: n bits to a server, which counts and returns n bits (without a server each worker
  counts a stripe of the elements; the authors' code has rank 0 count, over broadcasts);
* all_gather: n bits to everybody, and everybody counts (bit planes, eight elements a byte);
* counters: an all-reduce of the number of negative votes, in the smallest integers that hold the
  number of workers: uint8 up to 255 of them, int16 up to 32767, else int32. log2(N + 1) bits
  would do; 8 are what collectives can add.

Biased, without scale: neither contraction nor unbiased, and no memory makes up for it. The update
has the length sqrt(n) whatever the gradient's, so the learning rate is of another size than SGD's
(around 1e-4), an all-zero gradient moves every parameter, and of the quality only the cosine says
anything. Signum's is that with the momentum buffer, which is m / (1 - beta). State: Signum's m.

Source: J. Bernstein, Y.-X. Wang, K. Azizzadenesheli, A. Anandkumar, "signSGD: Compressed
Optimisation for Non-Convex Problems", ICML 2018, arXiv:1802.04434 (signSGD, Signum, majority
vote); J. Bernstein, J. Zhao, K. Azizzadenesheli, A. Anandkumar, "signSGD with Majority Vote is
Communication Efficient and Fault Tolerant", ICLR 2019, arXiv:1810.05291.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field, model_validator
from typing_extensions import TypeVar

from gcsim.compressors.base import About, Compressor, CompressorParameters
from gcsim.compressors.bucket import Bucket, BucketLayout, TensorSlice
from gcsim.compressors.coding.frame import Codec, of_bucket, pack_frame
from gcsim.compressors.coding.integers.packing import check_packed, pack_signs
from gcsim.compressors.coding.messages import frames_of
from gcsim.compressors.coding.one_bit.signs import add_signs, write_signs
from gcsim.compressors.coding.one_bit.votes import add_votes, more_than, no_votes
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.loops import array, in_parallel, loop, tensor
from gcsim.compressors.meter import batched, kernel
from gcsim.compressors.on_device import on_device
from gcsim.compressors.properties import Properties
from gcsim.compressors.requests import AllGather, AllReduce, Exchange, PushPull
from gcsim.compressors.sharing import fill_once


class SignSgdParameters(CompressorParameters):
    aggregation: Literal["push_pull", "all_gather", "counters"] = Field(
        "push_pull",
        description="who counts: a server (1 bit up, 1 down), every worker (1 bit from each), or "
        "an all-reduce of counters (8 bits up to 255 workers)",
    )
    tie: Literal["plus", "zero"] = Field(
        "plus", description="an element's update when the votes are equal; zero: not by push_pull"
    )

    @model_validator(mode="after")
    def _a_bit_holds_no_zero(self) -> SignSgdParameters:
        if self.tie == "zero" and self.aggregation == "push_pull":
            raise ValueError("tie = zero does not fit the bit that a server returns")
        return self


class SignumParameters(SignSgdParameters):
    beta: float = Field(0.9, ge=0, lt=1, description="weight of the past in the running average")


P = TypeVar("P", bound=SignSgdParameters, default=SignSgdParameters)


class SignSgd(Compressor[P]):
    """Majority vote of gradients' signs."""

    Parameters: ClassVar[type[CompressorParameters]] = SignSgdParameters
    about = About(
        title="signSGD with majority vote",
        family="quantization",
        collective="push-pull, all-gather, or all-reduce of vote counters",
        without_server="alltoall_allgather",
        bits="1, each way (push_pull); 1 (all_gather); 8 (counters)",
        paper="Bernstein et al., ICML 2018, arXiv:1802.04434",
    )

    @classmethod
    def properties(cls, parameters: P) -> Properties:
        return Properties(scale_free=True)

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        layout = bucket.layout
        voted = self._voted(bucket)
        ties = self.parameters.tie == "zero"
        update = torch.empty_like(bucket.gradient)
        if self.parameters.aggregation == "counters":
            counts = yield AllReduce(tensor=negative(voted, self.worker.count))
            return from_counters(counts, self.worker.count, ties)
        if self.parameters.aggregation == "all_gather":
            payloads = yield AllGather(payload=encode(voted, layout))
            return fill_once(_write_majority, payloads, update, layout, self.worker.count, ties)

        def serve(payloads: Iterable[Tensor]) -> Tensor:
            votes = Votes(layout, self.worker.count, voted)
            for payload in payloads:
                votes.add(payload)
            return votes.message()

        answer = yield PushPull(
            payload=encode(voted, layout), server=serve, without_server="alltoall_allgather"
        )
        return fill_once(write_decoded, answer, update, layout)

    def _voted(self, bucket: Bucket) -> Tensor:
        """The vector whose signs travel: float32 `[n]`; only read."""
        return bucket.gradient


class Signum(SignSgd[SignumParameters]):
    """Majority vote of the signs of the gradients' running averages."""

    about = About(
        title="Signum with majority vote",
        family="quantization",
        collective="push-pull, all-gather, or all-reduce of vote counters",
        without_server="alltoall_allgather",
        bits="1, each way (push_pull); 1 (all_gather); 8 (counters)",
        state="momentum (n)",
        paper="Bernstein et al., ICML 2018, arXiv:1802.04434",
    )

    @classmethod
    def momentum(cls, parameters: SignumParameters) -> tuple[float, bool]:
        return parameters.beta, False

    def _voted(self, bucket: Bucket) -> Tensor:
        average = self.kept("average", bucket)
        return average.lerp_(bucket.gradient, 1.0 - self.parameters.beta)


# --- counting --------------------------------------------------------------------------------


class Votes:
    """How many of `count` workers say negative, element by element of a bucket."""

    def __init__(self, layout: BucketLayout, count: int, like: Tensor) -> None:
        self._layout = layout
        self._half = count // 2
        self._ties = count % 2 == 0
        self._counts = no_counts(like, layout, count)

    def add(self, message: Tensor) -> None:
        """Count one worker's message; raises `InputError` when it is damaged."""
        count_votes(message, self._layout, self._counts)

    def message(self) -> Tensor:
        """What the majority says, a tie being positive; as `encode`."""
        return said(self._counts, self._layout, self._half)

    def write(self, out: Tensor, ties: bool) -> None:
        """The update into `out`, float32 `[n]`; with `ties`, a tie is 0 instead of +1."""
        write_said(self._counts, self._layout, self._half, out, ties and self._ties)


@of_bucket()
def no_counts(like: Tensor, layout: BucketLayout, count: int) -> list[Tensor]:
    """Counters of votes, a tensor's each; of all tensors together where kernels work on them."""
    return [no_votes(piece.numel, count, like) for piece in batched(layout.slices)]


@of_bucket()
def count_votes(message: Tensor, layout: BucketLayout, counts: list[Tensor]) -> None:
    """See `Votes.add`."""
    for each, (_, bits) in zip(counts, bits_of(message, layout), strict=True):
        add_votes(each, bits)


@of_bucket()
def said(counts: list[Tensor], layout: BucketLayout, half: int) -> Tensor:
    """The message of what more than half say."""
    pairs = zip(counts, layout.slices, strict=True)
    return torch.cat([_frame(more_than(each, half), piece.numel) for each, piece in pairs])


@of_bucket()
def write_said(
    counts: list[Tensor], layout: BucketLayout, half: int, out: Tensor, split: bool
) -> None:
    """See `Votes.write`; with `split`, a tie is 0."""
    for each, (_, part) in zip(counts, layout.views(out), strict=True):
        one, n = out.new_ones(min(part.numel(), 1)), part.numel()
        write_signs(part, more_than(each, half), one, n, 0.5 if split else 1.0)
        if split:  # half a vote from each side of the tie
            add_signs(part, more_than(each, half - 1), one, n, 0.5)


def negative(vector: Tensor, count: int) -> Tensor:
    """1 where negative, else 0: in the smallest integers that hold a sum over `count` workers."""
    if count <= torch.iinfo(torch.uint8).max:
        return (vector < 0).view(torch.uint8)
    fits = count <= torch.iinfo(torch.int16).max
    return (vector < 0).to(torch.int16 if fits else torch.int32)


@kernel("streaming")
@on_device("one_bit.signs")
def from_counters(counts: Tensor, count: int, ties: bool) -> Tensor:
    """The update, float32 `[n]`, from the numbers of negative votes among `count`."""
    tie = np.float32(0.0 if ties and count % 2 == 0 else 1.0)
    update = np.empty(counts.numel(), dtype=np.float32)
    in_parallel(_deciding, update.size, array(counts), count // 2, tie, update)
    return tensor(update, counts)


@loop
def _deciding(start: int, stop: int, counts: Any, half: int, tie: Any, update: Any) -> None:
    counts, update = counts[start:stop], update[start:stop]
    for i in range(counts.size):
        other = tie if counts[i] == half else np.float32(1)
        update[i] = np.float32(-1) if counts[i] > half else other


def _write_majority(
    payloads: Iterable[Tensor], out: Tensor, layout: BucketLayout, count: int, ties: bool
) -> None:
    votes = Votes(layout, count, out)
    for payload in payloads:
        votes.add(payload)
    votes.write(out, ties)


# --- messages: one frame of bits a tensor ----------------------------------------------------


@of_bucket("signs")
def encode(vector: Tensor, layout: BucketLayout) -> Tensor:
    """The signs of a float32 `[layout.numel]`: uint8, one frame a tensor."""
    views = batched(layout.views(vector))
    return torch.cat([_frame(pack_signs(values), piece.numel) for piece, values in views])


@of_bucket("write_signs")
def write_decoded(message: Tensor, out: Tensor, layout: BucketLayout) -> None:
    """The signs of a message as +1 and -1 into `out`, float32 `[layout.numel]`.

    Raises `InputError` when the message is damaged or of another layout.
    """
    for piece, bits in bits_of(message, layout):
        n = piece.numel
        write_signs(piece.of(out), bits, out.new_ones(min(n, 1)), n, 1.0)


def bits_of(message: Tensor, layout: BucketLayout) -> Iterator[tuple[TensorSlice, Tensor]]:
    """Each tensor and its packed bits; raises `InputError`."""
    for piece, frame in frames_of(message, layout, Codec.SIGN):
        check_packed(frame.body, piece.numel, 1)
        yield piece, frame.body


def _frame(bits: Tensor, n: int) -> Tensor:
    return pack_frame(Codec.SIGN, bits, numel=n)
