"""OmniReduce: a lossless sum that does not send blocks of zeros.

A tensor is cut into blocks of 256 elements (the last one may be shorter). A worker sends its
nonzero blocks, each with a number of 32 bits; the aggregator adds them in rank order and returns
every block that some worker sent. The update is the sum / N, as with a dense reduction.

Bits, each way: 32 * 256 per block sent, plus 32 for its number (in the streaming protocol that of
the worker's next block). Without servers each worker aggregates a stripe. The host reads which
blocks are sent.

Source: J. Fei, C.-Y. Ho, A. Sahu, M. Canini, A. Sapio, "Efficient Sparse Collective Communication
and its Application to Accelerate Distributed Deep Learning", SIGCOMM 2021; published block size.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from pydantic import Field

from gcsim.compressors.base import About, Compressor, CompressorParameters, Properties
from gcsim.compressors.bucket import Bucket, BucketLayout
from gcsim.compressors.coding.frames import Codec, packed, picked, put, read, taken
from gcsim.compressors.coding.integers.packing import damaged
from gcsim.compressors.coding.rounding.norms import cell_norms
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.loops import array
from gcsim.compressors.requests import Exchange, PushPull
from gcsim.compressors.segments import Cells, Column, Segments
from gcsim.compressors.sharing import fill_once


class OmniReduceParameters(CompressorParameters):
    block: int = Field(256, ge=1, le=1 << 20, description="elements per block")


class OmniReduce(Compressor[OmniReduceParameters]):
    about = About(
        title="OmniReduce",
        family="sparsification",
        collective="push-pull (aggregators of blocks)",
        without_server="alltoall_allgather",
        bits="(32 + 32 / block) * fraction of blocks that are not zero, each way",
        unbiased=True,
        paper="Fei et al., SIGCOMM 2021",
    )

    @classmethod
    def properties(cls, parameters: OmniReduceParameters) -> Properties:
        return Properties(unbiased=True, exact=True, conserves=True)

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        layout, size = bucket.layout, self.parameters.block
        blocks = Segments.of(layout).cells(size)
        chosen = array(cell_norms(bucket.gradient, blocks, "max").ne(0)).nonzero()[0]
        message = block_message(bucket.gradient, blocks, chosen)

        def serve(payloads: Iterable[Tensor]) -> Tensor:
            sums, sent = torch.zeros_like(bucket.gradient), np.zeros(blocks.total, dtype=np.bool_)
            for payload in payloads:
                sent[add_blocks(payload, sums, layout, size)] = True
            return block_message(sums, blocks, np.flatnonzero(sent))

        answer = yield PushPull(
            payload=message, server=serve, without_server="alltoall_allgather", variable=True
        )
        update = torch.zeros_like(bucket.gradient)
        return fill_once(add_blocks, answer, update, layout, size).div_(self.worker.count)


def block_message(values: Tensor, blocks: Cells, chosen: Column) -> Tensor:
    """Encode the chosen blocks of a flat float32: uint8."""
    owner, length, many = blocks.owner[chosen], blocks.length[chosen], len(blocks.count)
    count, elements = np.bincount(owner, None, many), np.bincount(owner, length, many).astype(int)
    numbers = torch.from_numpy(blocks.number[chosen].astype("<i4")).to(values.device)
    parts = (picked(values, blocks.spans[chosen, 1], length), 4 * elements), (numbers, 4 * count)
    return packed(values, Codec.BLOCKS, blocks.segments, *parts, nonzero=elements)


def add_blocks(message: Tensor, out: Tensor, layout: BucketLayout, size: int) -> Column:
    """Add a message's blocks of `size` elements to a flat float32; return the blocks, ascending.
    Raises `InputError` if the message is damaged."""
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
