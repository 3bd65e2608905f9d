"""Which values belong to the set bits of a bitmap, on a GPU?

Twins of `coding/indices/bitmap.py`, and of the check of indices in CE-SGD's messages.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gcsim.compressors.coding.indices.bitmap import BLOCK
from gcsim.compressors.gpu.indices.coded import ascending
from gcsim.compressors.gpu.integers.packing import packed_codes, unpacked
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.errors import InputError


def bit_starts(bits: Tensor, n: int) -> NDArray[np.int64]:
    """See `bitmap.bit_starts`: a number a block comes to the host."""
    counts = torch.cat((bits.new_zeros(1, dtype=torch.int64), by_block(_flags(bits, n)).sum(1)))
    found: NDArray[np.int64] = counts.cumsum(0).cpu().numpy()
    return found


def at_bits(values: Tensor, bits: Tensor, starts: NDArray[np.int64]) -> Tensor:
    """See `bitmap.at_bits`."""
    return values[_flags(bits, values.numel())]


def add_at_bits(
    out: Tensor, bits: Tensor, starts: NDArray[np.int64], values: Tensor, weight: float
) -> None:
    """See `bitmap.add_at_bits`."""
    added = torch.zeros_like(out)
    added[_flags(bits, out.numel())] = values * float(np.float32(weight))
    out.add_(added)


def unite(bits: Tensor, others: Tensor, indices: Tensor) -> None:
    """See `bitmap.unite`."""
    flags = bits.new_zeros(8 * bits.numel())
    flags[indices.long()] = 1
    bits.bitwise_or_(others).bitwise_or_(packed_codes(flags, 1)[0])


def as_mask(bits: Tensor, n: int) -> Tensor:
    """See `bitmap.as_mask`."""
    return unpacked(bits, n, 1, torch.float32)


def _check_indices(indices: Tensor, n: int) -> None:
    """See `ce_sgd.messages._check_indices`."""
    if not ascending(indices.long(), n):
        raise InputError("damaged payload: indices do not ascend below n")


def by_block(values: Tensor, beyond: int = 0) -> Tensor:
    """Rows of blocks, of which the last is filled up: `[n]` to `[blocks, BLOCK]`."""
    rest = -values.numel() % BLOCK
    return torch.cat((values, values.new_full((rest,), beyond))).view(-1, BLOCK)


def _flags(bits: Tensor, n: int) -> Tensor:
    return unpacked(bits, n, 1, torch.uint8) != 0
