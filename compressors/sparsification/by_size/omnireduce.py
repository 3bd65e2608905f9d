"""OmniReduce: blocks of zeros are left out of a sum, and nothing else is lost.

A tensor is cut into blocks of 256 elements (the last one may be shorter). A worker sends its blocks
that hold anything but zeros, each with a number of 32 bits; the aggregator adds up what arrives
for each block, in the workers' order, and returns the blocks that anybody sent. The update is their
sum / N: the mean gradient as dense reduction computes it. Gradients without blocks of zeros gain
nothing by it; embedding layers do, and whatever a sparsifier of blocks has made sparse.

keep = "top": a = e + g; the max(1, round(blocks * ratio)) blocks of largest norm are sent, of equal
norms the first; keep = "threshold": those of norm sqrt(sum a_i^2) >= threshold. What is not sent
remains in e.

Bits, each way: 32 * 256 and 32 for each block that travels. Exact with keep = "nonzero". Top:
|a - sent|^2 <= (1 - kept / blocks) |a|^2, an equality for blocks of equal norm; threshold:
< blocks * threshold^2.

Blocks are added up one by one, and the authors' code spreads them over as many aggregators as one
likes: without servers each worker aggregates a stripe of the blocks.

Readings. In the streaming protocol the 32 bits say which block the worker will send next, so that
the aggregator can ask for the lowest block that any worker still has; here they are the block's own
number, one for one the same. The streaming itself is no matter of what is sent. Norms are summed in
float64.

Source: J. Fei, C.-Y. Ho, A. Sahu, M. Canini, A. Sapio, "Efficient Sparse Collective Communication
and its Application to Accelerate Distributed Deep Learning", SIGCOMM 2021; block of 256 elements
as in the published configuration.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

from pydantic import Field

from gcsim.compressors.base import About, CompressorParameters, Ratio
from gcsim.compressors.bucket import Bucket, BucketLayout
from gcsim.compressors.coding.frames import (
    Codec,
    Frame,
    as_bytes,
    frames_of,
    from_bytes,
    pack_frame,
    split_body,
)
from gcsim.compressors.coding.selecting.largest import largest_of
from gcsim.compressors.coding.selecting.selection import count_kept, share_kept
from gcsim.compressors.coding.sparse import energy
from gcsim.compressors.error_feedback import ErrorFeedback
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.properties import Properties
from gcsim.compressors.requests import Exchange, PushPull
from gcsim.compressors.sharing import fill_once
from gcsim.errors import InputError


class OmniReduceParameters(CompressorParameters):
    block: int = Field(256, ge=1, le=1 << 20, description="elements of a block")
    keep: Literal["nonzero", "top", "threshold"] = Field(
        "nonzero", description="blocks that are sent: all but zeros, or those of large norm"
    )
    ratio: Ratio = Field(0.1, description="top: kept fraction of the blocks of each tensor")
    threshold: float = Field(1e-3, ge=0, description="threshold: least norm of a block, as g")
    error_feedback: bool = Field(
        True, description="top and threshold: add what was not sent to the next step"
    )


class OmniReduce(ErrorFeedback[OmniReduceParameters]):
    """Lossless sum of the blocks that are not zero."""

    about = About(
        title="OmniReduce",
        family="sparsification",
        collective="push-pull (aggregators of blocks)",
        without_server="alltoall_allgather",
        bits="(32 + 32 / block) * fraction of blocks that are not zero, each way",
        unbiased=True,
        state="none (top, threshold: residual (n))",
        paper="Fei et al., SIGCOMM 2021",
    )

    @property
    def remembers(self) -> bool:
        return self.parameters.keep != "nonzero" and self.parameters.error_feedback

    @classmethod
    def memory(cls, parameters: OmniReduceParameters) -> str:
        keeps = parameters.keep != "nonzero" and parameters.error_feedback
        return "residual (n)" if keeps else "none"

    @classmethod
    def properties(cls, parameters: OmniReduceParameters) -> Properties:
        if parameters.keep == "nonzero":
            return Properties(unbiased=True, exact=True, conserves=True)

        def bound(v: Tensor) -> float:
            blocks = block_count(v.numel(), parameters.block)
            if parameters.keep == "top":
                return (1 - share_kept(blocks, parameters.ratio)) * energy(v)
            return min(energy(v), blocks * parameters.threshold**2)

        return Properties(error_bound=bound, conserves=parameters.error_feedback)

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        layout = bucket.layout

        def serve(payloads: Iterable[Tensor]) -> Tensor:
            return self.aggregate(payloads, layout, torch.zeros_like(bucket.gradient))

        own = self.encode(bucket)
        answer = yield PushPull(
            payload=own, server=serve, without_server="alltoall_allgather", variable=True
        )
        update = torch.zeros_like(bucket.gradient)
        fill_once(_add_answer, answer, update, layout, self.parameters.block)
        return update.div_(self.worker.count)

    def encode(self, bucket: Bucket) -> Tensor:
        """This worker's message; the residual is brought on."""
        frames = []
        for piece, part in bucket.layout.views(self.corrected(bucket)):
            blocks = self._chosen(part)
            places = places_of(blocks, self.parameters.block, piece.numel)
            frames.append(_frame(piece.numel, blocks, part[places]))
            if self.remembers:
                part[places] = 0.0
        return torch.cat(frames)

    def aggregate(self, payloads: Iterable[Tensor], layout: BucketLayout, sums: Tensor) -> Tensor:
        """The server's answer: the sum of each block that anybody sent; `sums` is zeros `[n]`."""
        size = self.parameters.block
        sent = [
            torch.zeros(block_count(p.numel, size), dtype=torch.bool, device=sums.device)
            for p in layout.slices
        ]
        for payload in payloads:
            pieces = zip(sent, _decode(payload, layout, sums, size), strict=True)
            for seen, (part, blocks, values) in pieces:
                part[places_of(blocks, size, part.numel())] += values
                seen[blocks] = True
        frames = []
        for seen, (piece, part) in zip(sent, layout.views(sums), strict=True):
            blocks = seen.nonzero().view(-1)
            frames.append(_frame(piece.numel, blocks, part[places_of(blocks, size, piece.numel)]))
        return torch.cat(frames)

    def _chosen(self, values: Tensor) -> Tensor:
        """The blocks to send of one tensor, int64, ascending."""
        given = self.parameters
        if given.keep == "nonzero":
            return nonzero_blocks(values, given.block).nonzero().view(-1)
        norms = block_norms(values, given.block)
        if given.keep == "top":
            blocks = largest_of(norms, count_kept(norms.numel(), given.ratio))
            return blocks[norms[blocks] > 0]
        return ((norms >= given.threshold) & (norms > 0)).nonzero().view(-1)


def _add_answer(answer: Tensor, out: Tensor, layout: BucketLayout, size: int) -> None:
    for part, blocks, values in _decode(answer, layout, out, size):
        part[places_of(blocks, size, part.numel())] += values


def _decode(
    payload: Tensor, layout: BucketLayout, out: Tensor, size: int
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """For each tensor: its part of `out`, numbers int64 `[b]` and values of the blocks."""
    for piece, frame in frames_of(payload, layout, Codec.BLOCKS):
        yield piece.of(out), *_read(frame, size)


def block_count(n: int, size: int) -> int:
    """Blocks of `size` elements that n elements make, the last one possibly shorter."""
    return -(-n // size)


def _frame(numel: int, blocks: Tensor, values: Tensor) -> Tensor:
    body = torch.cat((as_bytes(values), as_bytes(blocks.to(torch.int32))))
    return pack_frame(Codec.BLOCKS, body, numel=numel, nonzero=values.numel())


def _read(frame: Frame, size: int) -> tuple[Tensor, Tensor]:
    """(numbers int64 `[b]`, values float32) of a frame's blocks; `InputError` when damaged."""
    blocks = block_count(frame.numel, size)
    count = (frame.body.numel() - 4 * frame.nonzero) // 4
    if not 0 <= count <= blocks:
        raise InputError(f"damaged payload: {count} blocks, the tensor has {blocks}")
    head, tail = split_body(frame, 4 * frame.nonzero, 4 * count)
    numbers = from_bytes(tail, torch.int32, count).to(torch.int64)
    elements = count * size
    if count:
        inside = int(numbers[0]) >= 0 and int(numbers[-1]) < blocks
        if not inside or bool((numbers.diff() <= 0).any()):
            raise InputError(f"damaged payload: blocks do not ascend below {blocks}")
        if int(numbers[-1]) == blocks - 1:
            elements += frame.numel - blocks * size  # the last one is shorter
    if elements != frame.nonzero:
        raise InputError(f"damaged payload: {frame.nonzero} elements in {count} blocks")
    return numbers, from_bytes(head, torch.float32, frame.nonzero)


def _rows(values: Tensor, size: int) -> Tensor:
    """The blocks of a float32 `[n]`, `[blocks, size]`; zeros behind the last element."""
    blocks = block_count(values.numel(), size)
    return torch.cat((values, values.new_zeros(blocks * size - values.numel()))).view(blocks, size)


def nonzero_blocks(values: Tensor, size: int) -> Tensor:
    """Which blocks hold anything but zeros: bool `[blocks]`, of float32 `[n]`."""
    return (_rows(values, size) != 0).any(1)


def block_norms(values: Tensor, size: int) -> Tensor:
    """Euclidean norm of each block: float32 `[blocks]`, of float32 `[n]`."""
    return _rows(values, size).double().square().sum(1).sqrt().float()


def places_of(blocks: Tensor, size: int, n: int) -> Tensor:
    """The elements of ascending blocks of n elements: int64, ascending."""
    places = blocks[:, None] * size + torch.arange(size, device=blocks.device)
    return places[places < n]
