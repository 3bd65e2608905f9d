"""How do digits of a base that is no power of two become bytes on the wire, and back?

| base  | digits in a group | bits of a group | bits a digit (log2 base) |
|-------|-------------------|-----------------|--------------------------|
| 3     | 5                 | 8               | 1.6    (1.585)           |
| 5     | 3                 | 7               | 2.333  (2.322)           |
| 9     | 5                 | 16              | 3.2    (3.170)           |
| other | 1                 | ceil(log2 base) | ceil(log2 base)          |

A group is the number sum_j digit_j base^j. The layout is planar: digit j of group i is element
i + j * ceil(n / digits in a group), so that whole planes are added, as the strided layout of
TernGrad's published code does for 2-bit codes (Wen et al. 2017, arXiv:1705.07878). Groups are
packed bit after bit (`packing.py`). Digits after the last are 0; what a buffer cannot have been
packed from (wrong length, padding that is not zero, a digit or group that is too large) raises
`InputError`.

Every function is one streaming kernel of an accelerator.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gcsim.compressors.coding.integers.packing import (
    Count,
    damaged,
    pack_bits,
    packed_bytes,
    put_fixed,
    unpack_bits,
)
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.loops import array, in_parallel, loop, tensor
from gcsim.compressors.meter import kernel
from gcsim.compressors.on_device import on_device
from gcsim.errors import InputError

_GROUPS = {3: (5, 8), 5: (3, 7), 9: (5, 16)}
"""By base: digits in a group, and the group's bits."""
GROUPS = 1 << 12
"""Groups that are combined in the cache at a time."""


def group_of(base: int) -> tuple[int, int]:
    """(digits in a group, bits of a group) for digits 0 … base - 1, base 2 to 256."""
    if not 2 <= base <= 256:
        raise InputError(f"cannot pack digits of base {base}: 2 to 256 are possible")
    return _GROUPS.get(base, (1, (base - 1).bit_length()))


@loop
def group_and_bits(base: int) -> tuple[int, int]:
    """`group_of` inside of loops, of the bases 3, 5 and 9."""
    return (3, 7) if base == 5 else (5, 8 if base == 3 else 16)


def digit_bytes(count: Count, base: int) -> Count:
    """Bytes that `count` digits take: whole groups, rounded up to whole bytes; or those of each."""
    size, bits = group_of(base)
    return packed_bytes(-(-count // size), bits)


@kernel("streaming", variants=("base",))
@on_device("integers.packing")
def pack_digits(digits: Tensor, base: int) -> Tensor:
    """Pack digits: uint8 `[n]`, each below `base`, as uint8 `[digit_bytes(n, base)]`.

    Raises `InputError` for a larger digit.
    """
    size, bits = group_of(base)
    data = np.ascontiguousarray(array(digits))
    if size == 1:
        demand_below(base, int(data.max()) if data.size else 0)
        return pack_bits(digits, bits)
    plane = -(-data.size // size)
    groups = np.empty(plane, dtype=np.uint8 if bits <= 8 else np.uint16)
    highest = np.zeros(-(-plane // GROUPS), dtype=np.int64)
    in_parallel(_combine, plane, data, groups, base, size, highest, grain=GROUPS)
    demand_below(base, max(highest.tolist(), default=0))
    if bits == 16:
        return tensor(groups.astype("<u2", copy=False).view(np.uint8), digits)
    if bits == 8:
        return tensor(groups, digits)
    return pack_bits(tensor(groups, digits), bits)


@kernel("streaming", variants=("base",))
@on_device("integers.packing")
def unpack_digits(buffer: Tensor, count: int, base: int) -> Tensor:
    """Undo `pack_digits`: uint8 `[count]`.

    Raises `InputError` when the buffer's length is not that of `count` digits, a group is not
    made of digits, or a digit after the last is not 0.
    """
    size, bits = group_of(base)
    plane = -(-count // size)
    if buffer.numel() != digit_bytes(count, base):
        raise damaged(
            f"{buffer.numel()} bytes for {count} base-{base} digits, not {digit_bytes(count, base)}"
        )
    if bits == 16:
        groups = np.frombuffer(array(buffer).tobytes(), dtype="<u2").astype(np.uint16, copy=False)
    elif bits == 8:
        groups = array(buffer)
    else:
        groups = array(unpack_bits(buffer, plane, bits))
    out = np.empty(plane * size, dtype=np.uint8)
    highest = np.zeros(-(-plane // GROUPS), dtype=np.int64)
    in_parallel(separate_digits, plane, groups, out, base, size, highest, grain=GROUPS)
    largest = max(highest.tolist(), default=0)
    if largest >= base**size:
        what = "byte" if bits == 8 else f"group of {bits} bits"
        raise damaged(f"{what} {largest} is not {size} base-{base} digits")
    if plane * size > count and out[count:].any():
        raise damaged(f"padding after the last base-{base} digit is not zero")
    return torch.from_numpy(out[:count]).to(buffer.device)


def demand_below(base: int, digit: int) -> None:
    """`InputError` for a digit that the base has not."""
    if digit >= base:
        raise InputError(f"cannot pack a digit above {base - 1} in base {base}")


@loop
def _combine(
    start: int, stop: int, digits: Any, groups: Any, base: int, size: int, highest: Any
) -> None:
    # digit j of group g is element j * plane + g: neighbours are combined in one vector operation
    plane = groups.size
    factor = np.uint16(base)
    for first in range(start, stop, GROUPS):
        block = groups[first : min(first + GROUPS, stop)]
        block[:] = 0
        most = np.uint8(0)
        for j in range(size - 1, -1, -1):  # Horner's rule, highest digit first
            begin = min(j * plane + first, digits.size)
            part = digits[begin : min(begin + block.size, (j + 1) * plane)]
            for i in range(block.size):
                block[i] *= factor
            for i in range(part.size):
                block[i] += part[i]
                most = max(most, part[i])
        highest[first // GROUPS] = most


@loop
def separate_digits(
    start: int, stop: int, groups: Any, out: Any, base: int, size: int, highest: Any
) -> None:
    """The digits of whole groups, and the largest group of each block."""
    plane = groups.size
    inverse = np.float32(1) / np.float32(base)
    divisor = np.int32(base)
    rest = np.empty(GROUPS, dtype=np.int32)
    for first in range(start, stop, GROUPS):
        block = groups[first : min(first + GROUPS, stop)]
        most = np.int32(0)
        for i in range(block.size):
            rest[i] = block[i]
            most = max(most, np.int32(block[i]))
        highest[first // GROUPS] = most
        for j in range(size):
            part = out[j * plane + first : j * plane + first + block.size]
            for i in range(part.size):
                # Exact: (x + 1/2) / base is 1 / (2 base) away from the next whole number, and
                # float32 is right to 2^-10 for x < 2^16.
                quotient = np.int32((np.float32(rest[i]) + np.float32(0.5)) * inverse)
                part[i] = rest[i] - quotient * divisor
                rest[i] = quotient


@loop
def put_digits(digits: Any, base: int, out: Any) -> Any:
    """Write what `pack_digits` makes of digits of base 3, 5 or 9 to the beginning of `out`; its
    bytes."""
    group, bits = group_and_bits(base)
    plane = (digits.size + group - 1) // group
    highest = np.empty((plane + GROUPS - 1) // GROUPS, dtype=np.int64)
    if bits == 16:
        wide = np.empty(plane, dtype=np.uint16)
        _combine(0, plane, digits, wide, base, group, highest)
        for i in range(plane):
            out[2 * i], out[2 * i + 1] = np.uint8(wide[i] & 255), np.uint8(wide[i] >> 8)
        return 2 * plane
    groups = np.empty(plane, dtype=np.uint8)
    _combine(0, plane, digits, groups, base, group, highest)
    return put_fixed(groups, bits, out)
