"""OmniReduce: blocks of zeros are left out of a sum, and nothing else is lost.

A tensor is cut into blocks of 256 elements (the last one may be shorter). A worker sends its blocks
that hold anything but zeros, each with a number of 32 bits; the aggregator adds up what arrives
for each block, in the workers' order, and returns the blocks that anybody sent. The update is their
sum / N: the mean gradient as dense reduction computes it.

keep = "top": a = e + g; the max(1, round(blocks * ratio)) blocks of largest norm are sent, of equal
norms the first; what is not sent remains in e: |a - sent|^2 <= (1 - kept / blocks) |a|^2, an
equality for blocks of equal norm. Exact with keep = "nonzero".

Bits, each way: 32 * 256 and 32 for each block that travels: its number (in the streaming protocol
that of the worker's next block). Without servers each worker aggregates a stripe of the blocks. The
host reads which blocks travel.

Source: J. Fei, C.-Y. Ho, A. Sahu, M. Canini, A. Sapio, "Efficient Sparse Collective Communication
and its Application to Accelerate Distributed Deep Learning", SIGCOMM 2021; block of 256 elements
as in the published configuration.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import numpy as np
from pydantic import Field

from gcsim.compressors.base import About, CompressorParameters, Ratio
from gcsim.compressors.bucket import Bucket, BucketLayout
from gcsim.compressors.coding.frames import Codec, frames, picked, put, read, seal, taken
from gcsim.compressors.coding.integers.packing import damaged
from gcsim.compressors.coding.rounding.norms import cell_norms
from gcsim.compressors.coding.selecting.largest import largest
from gcsim.compressors.coding.selecting.selection import counts_kept, share_kept
from gcsim.compressors.coding.sparse import energy
from gcsim.compressors.error_feedback import ErrorFeedback
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.loops import array
from gcsim.compressors.properties import Properties
from gcsim.compressors.requests import Exchange, PushPull
from gcsim.compressors.segments import Cells, Column, Segments
from gcsim.compressors.sharing import fill_once


class OmniReduceParameters(CompressorParameters):
    block: int = Field(256, ge=1, le=1 << 20, description="elements of a block")
    keep: Literal["nonzero", "top"] = Field(
        "nonzero", description="blocks that are sent: all but zeros, or those of largest norm"
    )
    ratio: Ratio = Field(0.1, description="top: kept fraction of the blocks of each tensor")


class OmniReduce(ErrorFeedback[OmniReduceParameters]):
    """Lossless sum of the blocks that are not zero."""

    about = About(
        title="OmniReduce",
        family="sparsification",
        collective="push-pull (aggregators of blocks)",
        without_server="alltoall_allgather",
        bits="(32 + 32 / block) * fraction of blocks that are not zero, each way",
        unbiased=True,
        state="none (top: residual (n))",
        paper="Fei et al., SIGCOMM 2021",
    )

    @property
    def remembers(self) -> bool:
        return self.parameters.keep == "top"

    @classmethod
    def memory(cls, parameters: OmniReduceParameters) -> str:
        return "residual (n)" if parameters.keep == "top" else "none"

    @classmethod
    def properties(cls, parameters: OmniReduceParameters) -> Properties:
        if parameters.keep == "nonzero":
            return Properties(unbiased=True, exact=True, conserves=True)

        def bound(v: Tensor) -> float:
            blocks = -(-v.numel() // parameters.block)
            return (1 - share_kept(blocks, parameters.ratio)) * energy(v)

        return Properties(error_bound=bound, conserves=True)

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        given, layout, values = self.parameters, bucket.layout, self.corrected(bucket)
        blocks = Segments.of(layout).cells(given.block)
        chosen = self._chosen(values, blocks)
        message = packed(values, blocks, chosen)
        if self.remembers:
            places, lengths = 4 * blocks.spans[chosen, 1], 4 * blocks.length[chosen]
            zeros = values.new_zeros(int(lengths.sum()), dtype=torch.uint8)
            put(values.view(torch.uint8), places, zeros, lengths)

        def serve(payloads: Iterable[Tensor]) -> Tensor:
            sums, sent = torch.zeros_like(bucket.gradient), np.zeros(blocks.total, dtype=np.bool_)
            for payload in payloads:
                sent[add_blocks(payload, sums, layout, given.block)] = True
            return packed(sums, blocks, np.flatnonzero(sent))

        answer = yield PushPull(
            payload=message, server=serve, without_server="alltoall_allgather", variable=True
        )
        update = torch.zeros_like(bucket.gradient)
        return fill_once(add_blocks, answer, update, layout, given.block).div_(self.worker.count)

    def _chosen(self, values: Tensor, blocks: Cells) -> Column:
        """The blocks to send, ascending."""
        given = self.parameters
        if given.keep == "nonzero":
            return array(cell_norms(values, blocks, "max").ne(0)).nonzero()[0]
        norms = cell_norms(values, blocks, "l2")
        rows, k = Segments.behind(blocks.count), counts_kept(blocks.count, given.ratio)
        number, norm = (array(each) for each in largest(norms, rows, k))
        return (number + blocks.first.repeat(k))[norm > 0]


def packed(values: Tensor, blocks: Cells, chosen: Column) -> Tensor:
    """The message of these blocks of a flat float32, uint8."""
    owner, length, many = blocks.owner[chosen], blocks.length[chosen], len(blocks.count)
    count, elements = np.bincount(owner, None, many), np.bincount(owner, length, many).astype(int)
    sizes = 4 * (count + elements)
    message, at = frames(values, Codec.BLOCKS, blocks.segments, sizes, nonzero=elements)
    put(message, at, picked(values, blocks.spans[chosen, 1], length), 4 * elements)
    numbers = torch.from_numpy(blocks.number[chosen].astype("<i4")).to(values.device)
    put(message, at + 4 * elements, numbers, 4 * count)
    return seal(message, at, sizes)


def add_blocks(message: Tensor, out: Tensor, layout: BucketLayout, size: int) -> Column:
    """Add a message's blocks of `size` elements to a flat float32; the blocks, ascending.

    Raises `InputError` when the message is damaged.
    """
    found, blocks = read(message, layout, Codec.BLOCKS), Segments.of(layout).cells(size)
    count = (found.size - 4 * found.nonzero) // 4
    if ((count < 0) | (count > blocks.count) | (found.size % 4 > 0)).any():
        raise damaged(f"{count} blocks, the tensors have {blocks.count}")
    owner = np.arange(len(count)).repeat(count)
    numbers = array(taken(message, found.at + 4 * found.nonzero, 4 * count, torch.int32))
    chosen = numbers + blocks.first[owner]
    inside = (numbers >= 0) & (numbers < blocks.count[owner])
    if not inside.all() or (np.diff(chosen) <= 0).any():
        raise damaged(f"blocks do not ascend below {blocks.count}")
    length = blocks.length[chosen]
    if (np.bincount(owner, length, len(count)) != found.nonzero).any():
        raise damaged(f"{found.nonzero} elements in {count} blocks")
    values = taken(message, found.at, 4 * found.nonzero, torch.float32)
    begin = blocks.spans[chosen, 1]
    put(out.view(torch.uint8), 4 * begin, values.add_(picked(out, begin, length)), 4 * length)
    return chosen
