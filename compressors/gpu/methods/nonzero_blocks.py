"""Which blocks of a tensor travel, and how are they taken and added on a GPU? OmniReduce.

Twins of what stands in `omnireduce.py`: reductions by kernels, the rest by torch's operators on
rows of a matrix, and on what is left behind the last whole block.
"""

from __future__ import annotations

from gcsim.compressors.gpu.reductions import MAGNITUDE, SQUARES, Buckets, bucket_totals
from gcsim.compressors.lazy_torch import Tensor, torch


def nonzero_blocks(values: Tensor, size: int) -> Tensor:
    """See `omnireduce.nonzero_blocks`."""
    return bucket_totals(values, Buckets.of_one(values, size), MAGNITUDE) != 0


def block_norms(values: Tensor, size: int) -> Tensor:
    """See `omnireduce.block_norms`."""
    return bucket_totals(values, Buckets.of_one(values, size), SQUARES).sqrt().float()


def take_blocks(values: Tensor, blocks: Tensor, size: int, *, clear: bool = False) -> Tensor:
    """See `omnireduce.take_blocks`; the host waits for the last block's number."""
    rows, rest, whole = _split(values, blocks, size)
    taken = torch.cat((rows[whole].view(-1), rest))
    if clear:
        rows[whole] = 0.0
        rest.zero_()
    return taken


def add_blocks(out: Tensor, blocks: Tensor, values: Tensor, size: int) -> None:
    """See `omnireduce.add_blocks`."""
    rows, rest, whole = _split(out, blocks, size)
    head = whole.numel() * size
    rows[whole] += values[:head].view(-1, size)
    rest += values[head:]


def _split(values: Tensor, blocks: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """(the whole blocks as rows; the last one if it is shorter and among them, else nothing;
    numbers of the whole ones among them)."""
    count = values.numel() // size
    rows, rest = values[: count * size].view(count, size), values[count * size :]
    if rest.numel() and blocks.numel() and int(blocks[-1]) == count:
        return rows, rest, blocks[:-1]
    return rows, rest[:0], blocks
