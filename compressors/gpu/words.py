"""Launching of kernels, random bits, and codes of up to 8 bits as bytes.

A program handles a tile of groups of eight elements, `[GROUPS, 8]`: eight codes of b bits are one
64-bit word and fill b bytes; eight elements take two random words. Kernels repeat the loops'
arithmetic operation by operation, unlike GPU compilers' defaults: products and sums are not fused
(`launch`), and division is IEEE's (`tl.div_rn`). 64-bit integers wrap, as in the loops.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import triton
import triton.language as tl
from numpy.typing import NDArray

from gcsim.compressors.coding.integers.packing import Count
from gcsim.compressors.lazy_torch import Tensor, torch

GROUPS = 256
"""Groups of eight elements per program."""
BLOCK = 4096
"""Elements of a program that does not use groups."""
SHORT = 1 << 16
"""Most bytes of an array that is cached on a device."""
_NARROW = 1 << 30
"""Below this, positions and eight times their group fit 32 bits."""


_general: set[Any] = set()
"""Kernels without a size among their constants, which are compiled once for all sizes."""


def launch(kernel: Any, programs: int, *arguments: Any, **constants: Any) -> None:
    """Run `programs` programs of a kernel; do nothing for an empty tensor."""
    if programs:
        if kernel not in _general:
            _general.add(kernel)
            for parameter, value in zip(getattr(kernel, "params", ()), arguments, strict=False):
                parameter.do_not_specialize |= isinstance(value, int)
        kernel[(programs,)](*arguments, **constants, enable_fp_fusion=False)


def tiles(n: Count) -> Count:
    """Return the programs for n elements in tiles of groups; for a column, of each."""
    return -(-n // (8 * GROUPS))


def blocks(n: int) -> int:
    """Return the programs for n elements in blocks."""
    return -(-n // BLOCK)


def index_type(n: int) -> Any:
    """Return the type of positions below n: 32 bits if possible (64-bit divisions are slow)."""
    return tl.int32 if n < _NARROW else tl.int64


def float64_bits(value: float) -> int:
    """Return a float64 as a `tl.uint64` parameter; a float parameter would have 32 bits."""
    return int(np.float64(value).view(np.uint64))


def there(values: Any, device: torch.device, dtype: Any = None) -> Tensor:
    """Return host numbers (anything that numpy converts to an array) on a device, read only; recent
    ones are cached there, by stream. Does not wait for the GPU."""
    data = np.ascontiguousarray(values, dtype=dtype)
    if not 0 < data.nbytes <= SHORT:
        return _copied(data, device)
    stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
    return _kept(data.tobytes(), data.dtype.str, data.shape, device, stream)


@lru_cache(maxsize=1 << 9)
def _kept(
    content: bytes, dtype: str, shape: tuple[int, ...], device: torch.device, stream: int
) -> Tensor:
    return _copied(np.frombuffer(content, dtype=dtype).reshape(shape).copy(), device)


def _copied(data: NDArray[Any], device: torch.device) -> Tensor:
    made = torch.from_numpy(data)
    if device.type != "cuda":
        return made.to(device)
    return made.pin_memory().to(device, non_blocking=True)


@triton.jit
def float64(bits):
    """Undo `float64_bits`."""
    return tl.cast(bits, tl.uint64).to(tl.float64, bitcast=True)


@triton.jit
def magnifier(largest):
    """Do what `levels.magnifier` does."""
    return tl.where(largest < 1e30, 2.0**24, 0.25)


@triton.jit
def places_of(number, count, INDEX: tl.constexpr):
    """Return (groups `[count]`, elements `[count, 8]`) of the program with this number."""
    group = number.to(INDEX) * count + tl.arange(0, count)
    return group, group[:, None] * 8 + tl.arange(0, 8)[None, :]


@triton.jit
def bits64(key, index):
    """Return `random.bits64` of each index: uint64."""
    z = key + (index.to(tl.uint64) + 1) * 0x9E3779B97F4A7C15
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB
    return z ^ (z >> 31)


@triton.jit
def random16(key, group, count: tl.constexpr):
    """Return 16 random bits for each of the eight elements per group: int32 `[count, 8]`."""
    word = bits64(tl.cast(key, tl.uint64), group[:, None] * 2 + tl.arange(0, 2)[None, :])
    lane = (tl.arange(0, 4) * 16).to(tl.uint64)[None, None, :]
    four = (tl.expand_dims(word, 2) >> lane) & 0xFFFF  # [count, 2, 4]
    return tl.reshape(four, [count, 8]).to(tl.int32)


@triton.jit
def store_codes(out, group, codes, nbytes, BITS: tl.constexpr):
    """Pack codes `[groups, 8]`, with zeros after the last, as `packing.pack_bits` does."""
    lane = tl.arange(0, 8)[None, :]
    # codes share no bits, so their sum is their bitwise or
    word = tl.sum(codes.to(tl.uint64) << (lane * BITS).to(tl.uint64), axis=1)
    byte = (word[:, None] >> (lane * 8).to(tl.uint64)) & 255
    at = group[:, None] * BITS + lane
    tl.store(out + at, byte.to(tl.uint8), mask=(lane < BITS) & (at < nbytes))


@triton.jit
def load_words(packed, group, nbytes, BYTES: tl.constexpr):
    """Load the next `BYTES` bytes of each group as uint64 `[groups]`, zeros past the end."""
    lane = tl.arange(0, 8)[None, :]
    at = group[:, None] * BYTES + lane
    byte = tl.load(packed + at, mask=(lane < BYTES) & (at < nbytes), other=0).to(tl.uint64)
    return tl.sum(byte << (lane * 8).to(tl.uint64), axis=1)


@triton.jit
def load_codes(packed, group, nbytes, BITS: tl.constexpr):
    """Undo `store_codes`: int32 `[groups, 8]`."""
    word = load_words(packed, group, nbytes, BITS)
    lane = (tl.arange(0, 8) * BITS).to(tl.uint64)[None, :]
    return ((word[:, None] >> lane) & ((1 << BITS) - 1)).to(tl.int32)
