"""How is a vector rounded at random to a table of levels that all workers know?

Buckets of `size` consecutive elements share a norm; r = v / norm, in [-1, 1], becomes one of the
two levels next to it, lo <= r <= hi, hi with probability (r - lo) / (hi - lo). The mean is then r
and the variance (r - lo) (hi - r): over a tensor, E|Q(v) - v|^2 = sum norm^2 (r - lo) (hi - r).

A code is the number of a level in the ascending table, which begins with -1 and ends with 1. With
one random u for all levels it is the number of pairs of neighbours with lo + u (hi - lo) < r: all
pairs below r count, none above it does. u has 16 bits, as in `levels.py`, and with it the mean of
a code is right to 2^-17.

A frame holds the norms (float32) and the codes of `bits` bits; no table travels. Where workers
know several, the frame's flags say which one its codes are of: flags = bits + 16 number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from gcsim.compressors.base import CompressorParameters, Worker
from gcsim.compressors.bucket import Bucket
from gcsim.compressors.coding.frame import Codec, Frame, as_bytes, from_bytes, pack_frame
from gcsim.compressors.coding.integers.packing import check_packed, damaged, packed_bytes
from gcsim.compressors.coding.messages import decoder, split_body
from gcsim.compressors.coding.rounding.levels import (
    CHUNK,
    Norm,
    bucket_count,
    bucket_grain,
    bucket_norms,
    get_chunk,
    put_chunk,
    random_fractions,
)
from gcsim.compressors.coding.rounding.truncated_normals import last_not_above
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.loops import array, in_parallel, loop, tensor, written_back
from gcsim.compressors.meter import batched, count_random, kernel
from gcsim.compressors.on_device import on_device
from gcsim.compressors.random import random_key
from gcsim.errors import InputError

Levels = NDArray[np.float32]

MAX_BITS = 8
_NUMBER_AT = 4
"""Bits of a frame's flags before the table's number: widths up to `MAX_BITS` fit them."""
COUNTED = 32
"""Tables of up to that many levels are searched by counting, longer ones from a cell on."""
_CELL_BITS = 18
"""A cell is a range of float32 numbers that differ in their lowest bits only."""
_TOGETHER = 4
"""Pairs of levels that are counted at a time."""


def exponential_levels(bits: int, multiplier: float, *, zero: bool) -> Levels:
    """Levels ±1, ±p, ±p^2, …, ascending, p the multiplier: float32.

    Without zero 2^bits levels, the smallest magnitude p^(2^(bits-1) - 1); with zero 2^bits - 1,
    and the smallest is p^(2^(bits-1) - 2).
    """
    magnitudes = multiplier ** np.arange(2 ** (bits - 1) - zero, dtype=np.float64)
    return np.concatenate((-magnitudes, [0.0] * zero, magnitudes[::-1])).astype(np.float32)


class TableParameters(CompressorParameters):
    """What every method with a table of levels that all workers know lets choose."""

    bits: int = Field(4, ge=2, le=MAX_BITS, description="of an element's code")
    bucket: int | None = Field(
        1024,
        ge=1,
        le=65535,
        description="elements that share one norm (32 bits a bucket); null: one norm a tensor",
    )
    norm: Norm = Field("l2", description="a bucket's norm: l2 (the paper's), or its maximum |v|")


def encode_message(
    bucket: Bucket, tables: Sequence[Levels], chosen: TableParameters, worker: Worker, step: int,
    purpose: str, taken: Mapping[int, int] | None = None,
) -> Tensor:  # fmt: skip
    """The message of a bucket's gradient: uint8, one frame a tensor; `purpose`: of the key.

    `taken` numbers tensors' tables, by the tensor's index; the first where it says nothing.
    """
    frames = []
    for piece, values in batched(bucket.layout.views(bucket.gradient)):
        length = chosen.bucket or max(1, piece.numel)
        norms = bucket_norms(values, length, chosen.norm)  # [buckets]
        key = random_key(worker.seed, step, piece.index, purpose, worker.rank)
        number = taken.get(piece.index, 0) if taken else 0
        packed = encode_table(values, norms, tables[number], key, size=length, bits=chosen.bits)
        body, params = torch.cat((as_bytes(norms), packed)), chosen.bucket or 0
        flags = chosen.bits | number << _NUMBER_AT
        frames.append(pack_frame(Codec.TABLE, body, numel=piece.numel, flags=flags, params=params))
    return torch.cat(frames)


@decoder(Codec.TABLE)
def add_decoded(
    frame: Frame, part: Tensor, weight: float, tables: Sequence[Levels], chosen: TableParameters
) -> None:
    """Add a frame of `encode_message`; `InputError` for another width or bucket length, too."""
    n, bits, size = frame.numel, chosen.bits, chosen.bucket or 0
    number, width = divmod(frame.flags, 1 << _NUMBER_AT)
    if (width, frame.params) != (bits, size) or number >= len(tables):
        raise InputError(
            f"damaged payload: codes of {width} bits into table {number}, {frame.params} elements "
            f"a norm; expected {bits} bits, {len(tables)} tables and {size}"
        )
    length = size or max(1, n)
    buckets = bucket_count(n, length)
    head, tail = split_body(frame, 4 * buckets, packed_bytes(n, bits))
    norms = from_bytes(head, torch.float32, buckets)
    add_table(part, tail, norms, tables[number], size=length, bits=bits, weight=weight)


@kernel("streaming")
@on_device("rounding.known_tables")
def encode_table(
    values: Tensor, norms: Tensor, levels: Levels, key: np.uint64, *, size: int, bits: int
) -> Tensor:
    """Packed codes of randomly rounded elements, in one pass.

    Parameters
    ----------
    values : float32 `[n]`
    norms : float32 `[ceil(n / size)]`; larger elements saturate at their bucket's norm
    levels : float32, ascending, -1 … 1, at most 2^bits
    key : of the random bits (`random_key`)
    size : bucket length
    bits : of a code, 1 to 8

    Returns
    -------
    uint8 `[ceil(n bits / 8)]`, laid out as `packing.pack_bits` does
    """
    data = np.ascontiguousarray(array(values))
    out = np.empty(packed_bytes(data.size, bits), dtype=np.uint8)
    pairs = levels.size - 1
    room = 1 << MAX_BITS if levels.size > COUNTED else -(-pairs // _TOGETHER) * _TOGETHER
    lower = np.full(room, np.inf, dtype=np.float32)  # a pair at infinity is below no element
    gaps = np.zeros(room, dtype=np.float32)
    lower[:pairs], gaps[:pairs] = levels[:-1], np.diff(levels)
    cells, most = _cells(lower)
    count_random(data.size, 16)
    in_parallel(
        _encode, data.size, data, array(norms), lower, gaps, cells, most, key, size, bits, out
    )
    return tensor(out, values)


@kernel("streaming", updates=("out",))
@on_device("rounding.known_tables")
def add_table(
    out: Tensor,
    packed: Tensor,
    norms: Tensor,
    levels: Levels,
    *,
    size: int,
    bits: int,
    weight: float,
) -> None:
    """out += weight * norm * level, in place: undoes `encode_table` in one pass.

    `out` is float32 `[n]`. Raises `InputError` when `packed` has another length, stray bits, or a
    code behind the last level; `out` is then worthless.
    """
    data = np.ascontiguousarray(array(packed))
    n = out.numel()
    check_packed(data, n, bits)
    table = np.zeros(1 << MAX_BITS, dtype=np.float32)
    table[: levels.size] = levels
    highest = np.zeros(-(-n // CHUNK), dtype=np.uint8)
    with written_back(out) as target:
        in_parallel(
            _add, n, data, bits, array(norms), size, table, np.float32(weight), target, highest
        )
    if n and int(highest.max()) >= levels.size:
        raise damaged(f"code {int(highest.max())} into a table of {levels.size} levels")


def table_error(values: Tensor, levels: Levels, *, size: int | None, norm: Norm) -> float:
    """E|Q(v) - v|^2 of float32 `[n]`: sum norm^2 (r - lo) (hi - r), in float64."""
    length = size or max(1, values.numel())
    return rounding_error(values, bucket_norms(values, length, norm), levels, size=length)


@kernel("reduction")
@on_device("rounding.known_tables")
def rounding_error(values: Tensor, norms: Tensor, levels: Levels, *, size: int) -> float:
    """As `table_error`, with the norms at hand: float32 `[ceil(n / size)]`."""
    data = np.ascontiguousarray(array(values))
    sums = np.zeros(norms.numel(), dtype=np.float64)
    exact = levels.astype(np.float64)
    in_parallel(_add_errors, data.size, data, array(norms), exact, size, sums,
                grain=bucket_grain(size))  # fmt: skip
    return float(sums.sum())


def _cells(lower: Levels) -> tuple[NDArray[np.uint8], int]:
    """By cell: the last level that none of its numbers is below; and the most levels in a cell."""
    if lower.size <= COUNTED:
        return np.zeros(0, dtype=np.uint8), 0
    first = np.arange(1 << (32 - _CELL_BITS), dtype=np.uint32) << np.uint32(_CELL_BITS)
    least = first.view(np.float32)
    greatest = (first | np.uint32((1 << _CELL_BITS) - 1)).view(np.float32)
    with np.errstate(invalid="ignore"):  # some cells hold NaN
        least, greatest = np.minimum(least, greatest), np.maximum(least, greatest)
        inside = np.abs(least) <= 1  # no other number occurs
    start = np.where(inside, np.searchsorted(lower, least, side="right") - 1, 0).clip(min=0)
    last = np.where(inside, np.searchsorted(lower, greatest, side="right") - 1, 0).clip(min=0)
    return start.astype(np.uint8), int((last - start).max())


@loop
def _encode(
    start: int, stop: int, values: Any, norms: Any, lower: Any, gaps: Any, cells: Any, most: int,
    key: np.uint64, size: int, bits: int, out: Any,
) -> None:  # fmt: skip
    words = np.empty(CHUNK // 4, dtype=np.uint64)
    fractions = words.view(np.uint16)
    shares = np.empty(CHUNK, dtype=np.float32)
    random = np.empty(CHUNK, dtype=np.float32)
    numbers = np.empty(CHUNK, dtype=np.int32)
    codes = np.empty(CHUNK, dtype=np.uint8)
    for first in range(start, stop, CHUNK):
        last = min(first + CHUNK, stop)
        length = last - first
        random_fractions(key, first, words[: (length + 3) // 4])
        at = first
        while at < last:
            bucket = at // size
            end = min((bucket + 1) * size, last)
            _divide(values[at:end], norms[bucket], shares[at - first : end - first])  # -1 … 1
            at = end
        for i in range(length):
            random[i] = np.float32(fractions[i]) * np.float32(2.0**-16) + np.float32(2.0**-17)
        if lower.size > COUNTED:
            _search(shares[:length], random, lower, gaps, cells, most, numbers)
        else:
            _count(shares[:length], random, lower, gaps, numbers)
        for i in range(length):
            codes[i] = np.uint8(numbers[i])
        put_chunk(codes, length, bits, first, out)


@loop
def _add_errors(
    start: int, stop: int, values: Any, norms: Any, levels: Any, size: int, sums: Any
) -> None:
    for first in range(start, stop, size):
        norm = np.float64(norms[first // size])
        total = 0.0
        for i in range(first, min(first + size, stop)):
            share = values[i] / norm if norm > 0 else 0.0
            low = last_not_above(levels, share)
            total += max((share - levels[low]) * (levels[low + 1] - share), 0.0)
        sums[first // size] = norm * norm * total


@loop
def _divide(values: Any, norm: np.float32, shares: Any) -> None:
    one = np.float32(1)
    if norm == np.float32(0):
        norm = one
    for i in range(values.size):
        shares[i] = min(max(values[i] / norm, -one), one)


@loop
def _count(shares: Any, random: Any, lower: Any, gaps: Any, numbers: Any) -> None:
    # a code is the number of pairs whose random point between two levels is below the share;
    # four pairs at a time, each over the whole chunk: vectorised, and without a search
    for i in range(shares.size):
        numbers[i] = 0
    for pair in range(0, lower.size, _TOGETHER):
        low = lower[pair : pair + _TOGETHER]
        gap = gaps[pair : pair + _TOGETHER]
        low0, low1, low2, low3 = low[0], low[1], low[2], low[3]
        gap0, gap1, gap2, gap3 = gap[0], gap[1], gap[2], gap[3]
        for i in range(shares.size):
            share, u = shares[i], random[i]
            found = np.int32(low0 + u * gap0 < share) + np.int32(low1 + u * gap1 < share)
            found += np.int32(low2 + u * gap2 < share) + np.int32(low3 + u * gap3 < share)
            numbers[i] += found


@loop
def _search(
    shares: Any, random: Any, lower: Any, gaps: Any, cells: Any, most: int, numbers: Any
) -> None:
    bits = shares.view(np.uint32)
    for i in range(shares.size):  # a share's highest bits name a cell of few levels
        numbers[i] = cells[bits[i] >> np.uint32(_CELL_BITS)]
    for _ in range(most):
        for i in range(shares.size):
            numbers[i] += np.int32(lower[numbers[i] + 1] <= shares[i])
    for i in range(shares.size):
        below = lower[numbers[i]] + random[i] * gaps[numbers[i]] < shares[i]
        numbers[i] += np.int32(below)


@loop
def _add(
    start: int, stop: int, packed: Any, bits: int, norms: Any, size: int, table: Any,
    weight: np.float32, out: Any, highest: Any,
) -> None:  # fmt: skip
    codes = np.empty(CHUNK, dtype=np.uint8)
    for first in range(start, stop, CHUNK):
        last = min(first + CHUNK, stop)
        highest[first // CHUNK] = get_chunk(packed, first, last - first, bits, codes)
        at = first
        while at < last:
            bucket = at // size
            end = min((bucket + 1) * size, last)
            factor = weight * norms[bucket]
            _add_scaled(out[at:end], codes[at - first : end - first], table, factor)
            at = end


@loop
def _add_scaled(out: Any, codes: Any, table: Any, factor: np.float32) -> None:
    for i in range(out.size):
        out[i] += table[codes[i]] * factor
