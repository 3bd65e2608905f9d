"""What do CE-SGD's messages look like, up to the server and down again?

Up, for each tensor: a flag byte (1: V is new), V as bitmap when it is new, the values in V, then
indices (32 bits) and values outside of V. With `levels` l the values of both kinds are rounded
together: indices, one scale (their largest magnitude), codes. Down: the union as bitmap, then its
values.

See `ce_sgd.py` for the method and its source.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcsim.compressors.coding.frame import (
    Codec,
    Frame,
    as_bytes,
    from_bytes,
    pack_frame,
    words_at,
)
from gcsim.compressors.coding.indices.bitmap import (
    add_at_bits,
    add_bits,
    at_bits,
    bit_starts,
    starts_of,
)
from gcsim.compressors.coding.indices.index_coding import ascends_below
from gcsim.compressors.coding.integers.packing import check_packed, packed_bytes
from gcsim.compressors.coding.messages import decoder
from gcsim.compressors.coding.rounding.levels import add_packed_levels, bucket_norms, encode_levels
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.loops import array, loop
from gcsim.compressors.meter import unpriced
from gcsim.compressors.on_device import on_device
from gcsim.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Parts:
    """What one worker sends of one tensor of n elements."""

    chosen: Tensor
    """V: uint8 `[ceil(n / 8)]`."""
    starts: NDArray[np.int64]
    """See `bit_starts`, of V."""
    values: Tensor
    """float32 `[|V|]`."""
    indices: Tensor
    """int32, ascending, outside of V."""
    speculative: Tensor
    """float32, at the indices."""


def code_bits(levels: int) -> int:
    """Bits of one of 2 l + 1 levels."""
    return (2 * levels).bit_length()


def pack_parts(parts: Parts, n: int, *, new: bool, levels: int | None, key: np.uint64) -> Tensor:
    """One frame; `new` says that V travels too, `key` is that of rounding to levels."""
    count = parts.values.numel() + parts.indices.numel()
    body = [parts.values.new_tensor([int(new)], dtype=torch.uint8)]
    if new:
        body.append(parts.chosen)
    if levels is None:
        body += [as_bytes(part) for part in (parts.values, parts.indices, parts.speculative)]
    else:
        body.append(as_bytes(parts.indices))
        if count:
            values = torch.cat((parts.values, parts.speculative))
            scale = bucket_norms(values, count, "max")
            bits = code_bits(levels)
            codes = encode_levels(values, scale, key, size=count, steps=levels, bits=bits)
            body += [as_bytes(scale), codes]
    return pack_frame(Codec.CE_SGD, torch.cat(body), numel=n, nonzero=count)


def new_selection(frame: Frame) -> Tensor | None:
    """The V that a frame brings along; None when it says that V has not changed.

    Raises `InputError` when the frame is damaged.
    """
    body = frame.body
    if not body.numel() or int(body[0]) > 1:
        raise InputError("damaged payload: a frame does not say whether V is new")
    if not int(body[0]):
        return None
    bitmap = body[1 : 1 + packed_bytes(frame.numel, 1)]
    check_packed(bitmap, frame.numel, 1)
    return bitmap


def read_parts(frame: Frame, chosen: Tensor, levels: int | None) -> Parts:
    """A frame of `pack_parts`, of which `new_selection` was taken; `chosen` is V.

    Raises `InputError` when the frame is damaged.
    """
    n, travelling, body = frame.numel, frame.nonzero, frame.body
    starts = bit_starts(chosen, n)
    selected = int(starts[-1])
    extra = travelling - selected
    at = 1 + (packed_bytes(n, 1) if int(body[0]) else 0)
    width = 4 * travelling
    if levels is not None and travelling:
        width = 4 + packed_bytes(travelling, code_bits(levels))
    if extra < 0 or body.numel() != at + 4 * extra + width:
        raise InputError(
            f"damaged payload: {body.numel()} bytes for {selected} selected elements "
            f"and {extra} more of {n}"
        )
    if levels is None:
        values = from_bytes(body[at : at + 4 * selected], torch.float32, selected)
        at += 4 * selected
    indices = from_bytes(body[at : at + 4 * extra], torch.int32, extra)
    _check_indices(indices, n)
    at += 4 * extra
    if levels is None:
        speculative = from_bytes(body[at:], torch.float32, extra)
    else:
        values, speculative = _rounded(body[at:], travelling, levels).tensor_split([selected])
    return Parts(
        chosen=chosen, starts=starts, values=values, indices=indices, speculative=speculative
    )


def _rounded(body: Tensor, count: int, levels: int) -> Tensor:
    """Values from their scale and codes: float32 `[count]`."""
    out = torch.zeros(count, dtype=torch.float32, device=body.device)
    if count:
        scale = from_bytes(body[:4], torch.float32, 1)
        if not 0 <= float(scale) < math.inf:
            raise InputError(f"damaged payload: a scale of {float(scale)}")
        bits = code_bits(levels)
        add_packed_levels(out, body[4:], scale, size=count, steps=levels, bits=bits, weight=1.0)
    return out


@unpriced
@on_device("indices.bitmaps")
def _check_indices(indices: Tensor, n: int) -> None:
    data = array(indices)
    if data.size and not ascends_below(data, n):
        raise InputError("damaged payload: indices do not ascend below n")


def add_parts(parts: Parts, out: Tensor, weight: float) -> None:
    """out += weight * what a worker sent, in place; float32 `[n]`."""
    add_at_bits(out, parts.chosen, parts.starts, parts.values, weight)
    out.index_add_(0, parts.indices, parts.speculative, alpha=weight)


def pack_answer(mean: Tensor, union: Tensor) -> Tensor:
    """One frame of the server's answer: float32 `[n]`, where the union's bits are set."""
    n = mean.numel()
    values = at_bits(mean, union, bit_starts(union, n))
    body = torch.cat((union, as_bytes(values)))
    return pack_frame(Codec.CE_SGD, body, numel=n, nonzero=values.numel())


def _add_short(data: Any, found: Any, table: Any, out: Any, weight: float) -> bool:
    return bool(_add_answers(data, found, table, out, weight))


@decoder(Codec.CE_SGD, _add_short)
def add_answer(frame: Frame, part: Tensor, weight: float) -> None:
    """Add a frame of `pack_answer`."""
    cut = packed_bytes(frame.numel, 1)
    union = frame.body[:cut]
    check_packed(union, frame.numel, 1)
    starts = bit_starts(union, frame.numel)
    if int(starts[-1]) != frame.nonzero:
        raise InputError(f"damaged payload: {starts[-1]} bits for {frame.nonzero} values")
    values = from_bytes(frame.body[cut:], torch.float32, frame.nonzero)
    add_at_bits(part, union, starts, values, weight)


@loop
def _add_answers(data: Any, found: Any, table: Any, out: Any, weight: float) -> bool:
    """`add_answer` of all tensors; False, and nothing done, where a frame is damaged."""
    for t in range(found.shape[0]):
        n, sent, start, end = table[t, 1], found[t, 2], found[t, 3], found[t, 4]
        union = data[start : start + (n + 7) // 8]
        if end - start != (n + 7) // 8 + 4 * sent or starts_of(union, n)[-1] != sent:
            return False
        if n % 8 and union[-1] >> np.uint8(n % 8):
            return False
    for t in range(found.shape[0]):
        first, n = table[t]
        start, size = found[t, 3], (n + 7) // 8
        union, values = data[start : start + size], words_at(data, start + size, found[t, 2])
        given = starts_of(union, n), values.view(np.float32), np.float32(weight)
        add_bits(0, n, out[first : first + n], union, given[0], given[1], given[2])
    return True
