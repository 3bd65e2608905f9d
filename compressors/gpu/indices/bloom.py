"""How are positions put into a Bloom filter on a GPU, and how is it asked for all? DeepReduce.

Twins of `coding/indices/bloom.py`: to put in, hashes by torch's operators; to ask, a kernel, whose
lanes go on as long as a filter says yes.
"""

from __future__ import annotations

import numpy as np
import triton
import triton.language as tl

from gcsim.compressors.coding.indices.bloom import BloomSize
from gcsim.compressors.coding.integers.packing import check_packed
from gcsim.compressors.gpu.integers.packing import packed_codes
from gcsim.compressors.gpu.words import BLOCK, blocks, launch, shifted
from gcsim.compressors.lazy_torch import Tensor, torch

_LOW = (1 << 32) - 1


def bloom_filter(indices: Tensor, size: BloomSize, key: np.uint64) -> Tensor:
    """See `bloom.bloom_filter`."""
    first = _mixed(indices ^ (int(key) & _LOW))
    step = _mixed(first ^ (int(key) >> 32)) | 1
    number = torch.arange(size.hashes, device=indices.device)
    constant = ((number**3 - number) // 6) << 20
    drawn = (first[:, None] + number * step[:, None] + constant) & _LOW
    flags = indices.new_zeros(size.bits, dtype=torch.uint8)
    flags[shifted(drawn * size.bits, 32)] = 1
    return packed_codes(flags, 1)[0]


def bloom_positives(bits: Tensor, n: int, size: BloomSize, key: np.uint64) -> Tensor:
    """See `bloom.bloom_positives`; the host waits for how many they are."""
    check_packed(bits, size.bits, 1)
    found = bits.new_empty(n)
    launch(
        _query, blocks(n), bits.contiguous(), found, int(key), n, size.bits, size.hashes,
        BLOCK=BLOCK,
    )  # fmt: skip
    return found.nonzero().view(-1)


def _without(positions: Tensor, dropped: Tensor) -> Tensor:
    """See `deepreduce._without`."""
    kept = torch.ones_like(positions, dtype=torch.bool)
    kept[dropped] = False
    return positions[kept]


def _mixed(x: Tensor) -> Tensor:
    """`bloom._mixed` of what is xored with the key already: int64 below 2^32."""
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        x = ((x ^ (x >> shift)) * factor) & _LOW
    return x ^ (x >> 16)


# --- kernels --------------------------------------------------------------------------------------


@triton.jit
def _mixed32(x):
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit(do_not_specialize=["key"])
def _query(packed, found, key: tl.uint64, n, bits, hashes, BLOCK: tl.constexpr):
    key = tl.cast(key, tl.uint64)
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    first = _mixed32(at.to(tl.uint32) ^ key.to(tl.uint32))
    step = _mixed32(first ^ (key >> 32).to(tl.uint32)) | 1
    here = at < n
    for number in range(hashes):
        constant = ((number * number * number - number) // 6) << 20
        drawn = first + tl.cast(number, tl.uint32) * step + tl.cast(constant, tl.uint32)
        place = ((drawn.to(tl.uint64) * tl.cast(bits, tl.uint64)) >> 32).to(tl.int64)
        byte = tl.load(packed + (place >> 3), mask=here, other=0)
        here = here & (((byte >> (place & 7).to(tl.uint8)) & 1) != 0)
    tl.store(found + at, here.to(tl.uint8), mask=at < n)
