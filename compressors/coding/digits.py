"""How do base-3 digits become bytes on the wire, five in a byte, and back?

The layout is planar: digit j of byte i is element i + j * ceil(n / 5), so that whole planes are
added, as the strided layout of TernGrad's published code does for 2-bit codes (Wen et al. 2017,
arXiv:1705.07878). Digits after the last are 0; what a buffer cannot have been packed from (wrong
length, padding that is not zero, a byte above 3^5 - 1) raises `InputError`.

Every function is one streaming kernel of an accelerator; here it is blocks of vectorised numpy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gcsim.compressors.coding.packing import BLOCK, damaged, to_array, to_tensor
from gcsim.compressors.meter import kernel
from gcsim.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

TRITS_PER_BYTE = 5


def trit_bytes(count: int) -> int:
    """Bytes that `count` base-3 digits take: 1.6 bits a digit, rounded up."""
    return -(-count // TRITS_PER_BYTE)


@kernel("streaming")
def pack_trits(digits: Tensor) -> Tensor:
    """Pack base-3 digits five in a byte.

    `digits` is uint8 `[n]`, each 0, 1 or 2; returns uint8 `[ceil(n / 5)]`. Raises `InputError`
    for a larger digit.
    """
    data = to_array(digits)
    if data.size and int(data.max()) > 2:
        raise InputError("cannot pack a digit above 2 in base 3")
    plane = trit_bytes(data.size)
    out = np.zeros(plane, dtype=np.uint8)
    for start in range(0, plane, BLOCK):
        block = out[start : start + BLOCK]
        for j in reversed(range(TRITS_PER_BYTE)):  # Horner's rule, highest digit first
            block *= np.uint8(3)
            first = start + j * plane
            part = data[first : min(first + block.size, (j + 1) * plane)]
            block[: part.size] += part
    return to_tensor(out, digits)


@kernel("streaming")
def unpack_trits(buffer: Tensor, count: int) -> Tensor:
    """Undo `pack_trits`: uint8 `[count]`.

    Raises `InputError` when the buffer's length is not that of `count` digits, a byte is above
    242, or a digit after the last is not 0.
    """
    data = to_array(buffer)
    plane = trit_bytes(count)
    if data.size != plane:
        raise damaged(f"{data.size} bytes for {count} base-3 digits, not {plane}")
    if plane and int(data.max()) >= 3**TRITS_PER_BYTE:
        raise damaged(f"byte {int(data.max())} is not five base-3 digits")
    out = np.empty(plane * TRITS_PER_BYTE, dtype=np.uint8)
    for start in range(0, plane, BLOCK):
        rest = data[start : start + BLOCK]
        for j in range(TRITS_PER_BYTE):
            quotient = rest // np.uint8(3)
            first = start + j * plane
            out[first : first + rest.size] = rest - np.uint8(3) * quotient
            rest = quotient
    if out[count:].any():
        raise damaged("padding after the last base-3 digit is not zero")
    return to_tensor(out[:count], buffer)
