"""What does a message of selected elements look like, made on a GPU? Values and coded indices.

Twins of `coding/indices/index_coding.py` and `pairs.py`, and of what `coding/sparse.py` adds.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import triton
import triton.language as tl

from gcsim.compressors.coding.frame import from_bytes
from gcsim.compressors.coding.indices.index_coding import (
    Coder,
    demand,
    index_width,
    rice_parameter,
)
from gcsim.compressors.coding.integers.packing import check_packed, damaged, packed_bytes
from gcsim.compressors.coding.sparse import INDEX_LIMIT
from gcsim.compressors.gpu.elias import decode_gamma, decode_omega, encode_gamma, encode_omega
from gcsim.compressors.gpu.packing import packed_codes, unpacked
from gcsim.compressors.gpu.parts import launch_parts, own_part, parts_of, starts
from gcsim.compressors.gpu.words import BLOCK, blocks
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.errors import InternalError


def encode_indices(indices: Tensor, n: int, coder: Coder) -> Tensor:
    """See `index_coding.encode_indices`."""
    if coder is Coder.RAW:
        return indices.int().view(torch.uint8)  # the low 32 bits
    if coder is Coder.PACKED:
        return _packed(indices, index_width(n))
    if not _ascending(indices, n):
        raise InternalError(f"positions to be coded do not ascend below {n}")
    if coder is Coder.BITMAP:
        return _bitmap(indices, n)
    gaps = torch.diff(indices, prepend=indices.new_full((1,), -1))
    if coder is Coder.VARINT:
        return _varint(gaps)
    if coder is not Coder.RICE:
        return encode_omega(gaps) if coder is Coder.OMEGA else encode_gamma(gaps)
    b = rice_parameter(n, indices.numel())
    gaps = gaps - 1
    ends = ((gaps >> b) + 1).cumsum(0) - 1  # a high part is so many zeros and a one
    length = int(ends[-1]) + 1 if len(ends) else 0
    return torch.cat((_packed(gaps & ((1 << b) - 1), b), _bitmap(ends, length)))


def decode_indices(body: Tensor, n: int, k: int, coder: int) -> Tensor:
    """See `index_coding.decode_indices`."""
    if not 0 <= k <= n:
        raise damaged(f"{k} positions below {n}")
    size = body.numel()
    if coder == Coder.RAW:
        demand(size == 4 * k, f"{size} bytes for {k} indices of 32 bits")
        positions = from_bytes(body, torch.int32, k).long() & 0xFFFFFFFF
    elif coder == Coder.PACKED:
        positions = _unpacked(body, k, index_width(n))
    elif coder == Coder.RICE:
        positions = _decode_rice(body, n, k)
    elif coder == Coder.BITMAP:
        demand(size == packed_bytes(n, 1), f"{size} bytes for a bitmap of {n} bits")
        positions = _set_places(body, k)
    elif coder == Coder.VARINT:
        positions = _gaps_of_varint(body, k).cumsum(0) - 1
    elif coder in (Coder.OMEGA, Coder.GAMMA):
        gaps = (decode_omega if coder == Coder.OMEGA else decode_gamma)(body, k)
        if gaps is NotImplemented:
            return NotImplemented  # type: ignore[no-any-return]
        positions = gaps.cumsum(0) - 1
    else:
        raise damaged(f"unknown index coder {coder}")
    if not _ascending(positions, n):
        demand(bool((positions.diff() > 0).all()), "positions do not ascend")
        raise damaged(f"position {int(positions[-1])} out of {n}")
    return positions


def _add_checked(
    touched: Tensor, positions: Tensor, values: Tensor, weight: float, out: Tensor
) -> bool:
    """See `sparse._add_checked`."""
    return add_at_parts(
        out, positions, values, [positions.numel()], [0], [out.numel()], weight=weight
    )


def add_at_parts(
    out: Tensor, positions: Tensor, values: Tensor, sent: Sequence[int], begins: Sequence[int],
    elements: Sequence[int], *, weight: float,
) -> bool:  # fmt: skip
    """`_add_checked` of many tensors: how many elements of each travel, where it begins, how long
    it is; positions within it and values lie one tensor's behind the other's."""
    places = positions.long() & 0xFFFFFFFF if positions.dtype == torch.int32 else positions
    parts = parts_of(out, sent, [blocks(k) for k in sent], starts(sent), begins, elements)
    wrong = out.new_zeros(max(1, parts.firsts[-1]), dtype=torch.int32)
    launch_parts(
        _add, parts, out, places, values.contiguous(), wrong, float(np.float32(weight)),
        BLOCK=BLOCK,
    )  # fmt: skip
    return not bool(wrong.any())


def _add_set(touched: Tensor, bits: Tensor, values: Tensor, weight: float, out: Tensor) -> int:
    """See `sparse._add_set`."""
    positions = unpacked(bits, 8 * bits.numel(), 1, torch.uint8).nonzero().view(-1)
    found = positions.numel()
    if found != values.numel() or _add_checked(touched, positions, values, weight, out):
        return found
    return found + 1  # one is behind the last element


def signed_words(
    memory: Tensor, indices: Tensor, values: Tensor, positive: float, negative: float
) -> Tensor:
    """See `sparse.signed_words`."""
    if memory.numel() > INDEX_LIMIT:
        return NotImplemented  # type: ignore[no-any-return]  # the loop says what is wrong
    minus = values < 0
    levels = float(np.float32(negative)), float(np.float32(positive))
    memory[indices] = values - torch.where(minus, levels[0], levels[1])
    return (indices | (minus.long() << 31)).int()  # the low 32 bits


def _add_signs(touched: Tensor, words: Tensor, levels: tuple[float, float], out: Tensor) -> bool:
    """See `sparse._add_signs`."""
    positive, negative = (float(np.float32(level)) for level in levels)
    signed = torch.where(words < 0, negative, positive)
    return _add_checked(touched, words.long() & (INDEX_LIMIT - 1), signed, 1.0, out)


def merged_pairs(
    indices: Tensor, values: Tensor, other_indices: Tensor, other_values: Tensor
) -> tuple[Tensor, Tensor]:
    """See `pairs.merged_pairs`."""
    places, order = torch.cat((indices, other_indices)).sort(stable=True)
    sums = torch.cat((values, other_values))[order]
    again = torch.zeros_like(places, dtype=torch.bool)
    again[1:] = places[1:] == places[:-1]
    later = again.nonzero().view(-1)
    sums[later - 1] += sums[later]
    return places[~again], sums[~again]


def _varint(gaps: Tensor) -> Tensor:
    sizes = torch.ones_like(gaps)
    for j in range(1, 5):
        sizes += gaps >> (7 * j) > 0
    number = torch.repeat_interleave(torch.arange(gaps.numel(), device=gaps.device), sizes)
    place = torch.arange(number.numel(), device=gaps.device) - (sizes.cumsum(0) - sizes)[number]
    follows = (place + 1 < sizes[number]).long() << 7
    return (((gaps[number] >> (7 * place)) & 127) | follows).to(torch.uint8)


def _gaps_of_varint(body: Tensor, k: int) -> Tensor:
    size = body.numel()
    ends = (body < 128).nonzero().view(-1)  # one wait
    whole = ends.numel() == k and (int(ends[-1]) + 1 if k else 0) == size
    demand(whole, f"{size} bytes are not {k} gaps")
    begins = torch.cat((ends.new_zeros(min(k, 1)), ends[:-1] + 1))
    gaps = torch.zeros_like(ends)
    for j in range(6 if k else 0):
        byte = body[(begins + j).minimum(ends)].long() & 127
        gaps |= torch.where(begins + j <= ends, byte << (7 * j), 0)
    good = (ends - begins < 6) & (body[ends] != 0)
    demand(bool(good.all()), "a gap is 0, or longer than need be")
    return gaps


def _packed(values: Tensor, width: int) -> Tensor:
    packed, fits = packed_codes(values, width)
    if not fits:
        raise InternalError(f"cannot pack a value outside [0, {1 << width}) in {width} bits")
    return packed


def _unpacked(body: Tensor, k: int, width: int) -> Tensor:
    check_packed(body, k, width)
    return unpacked(body, k, width, torch.int64)


def _bitmap(positions: Tensor, n: int) -> Tensor:
    flags = positions.new_zeros(n, dtype=torch.uint8)
    flags[positions] = 1
    return packed_codes(flags, 1)[0]


def _set_places(bits: Tensor, count: int) -> Tensor:
    found = unpacked(bits, 8 * bits.numel(), 1, torch.uint8).nonzero().view(-1)
    demand(found.numel() == count, f"{found.numel()} bits are set, {count} announced")
    return found


def _decode_rice(body: Tensor, n: int, k: int) -> Tensor:
    b = rice_parameter(n, k)
    cut = packed_bytes(k, b)
    demand(body.numel() >= cut, f"{body.numel()} bytes where the low bits alone take {cut}")
    low, high = _unpacked(body[:cut], k, b), body[cut:]
    longest = packed_bytes(k + (n >> b), 1)
    demand(high.numel() <= longest, f"{high.numel()} bytes of high parts are too many")
    ends = _set_places(high, k)
    needed = packed_bytes(int(ends[-1]) + 1, 1) if k else 0
    demand(high.numel() == needed, "bytes follow the last high part")
    zeros = torch.diff(ends, prepend=ends.new_full((1,), -1)) - 1
    return (1 + (zeros << b) + low).cumsum(0) - 1


def _ascending(positions: Tensor, n: int) -> bool:
    """Whether -1 < p_0 < p_1 < … < n; one wait for the device."""
    if not positions.numel():
        return True
    steps = torch.diff(positions, prepend=positions.new_full((1,), -1))
    return bool((steps > 0).all() & (positions[-1] < n))


@triton.jit
def _add(
    out, positions, values, wrong, weight, table, parts, LANES: tl.constexpr, BLOCK: tl.constexpr
):
    column, number, k = own_part(table, parts, LANES)
    i = number * BLOCK + tl.arange(0, BLOCK)
    place = positions + tl.load(column + 2 * parts) + i
    at = tl.load(place, mask=i < k, other=0)
    before = tl.load(place - 1, mask=(i > 0) & (i < k), other=-1)
    good = (i < k) & (at > before) & (at < tl.load(column + 4 * parts))
    target = out + tl.load(column + 3 * parts) + at
    value = tl.load(values + tl.load(column + 2 * parts) + i, mask=good, other=0.0)
    total = tl.load(target, mask=good, other=0.0) + weight * value
    tl.store(target, total, mask=good)
    tl.store(wrong + tl.program_id(0), tl.max(((i < k) & (good == 0)).to(tl.int32), axis=0))
