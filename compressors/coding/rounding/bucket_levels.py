"""How is a vector rounded at random to levels that each bucket finds for itself and sends along?

Buckets of `size` consecutive elements (the last one may be shorter) have a table of s ascending
levels l_0 … l_{s-1}. An element v between two neighbours becomes the upper one with probability
(v - l_j) / (l_{j+1} - l_j), else the lower one, so that the mean is v; outside the table it
saturates. The mean square error is exactly the sum of (v - l_j) (l_{j+1} - v), plus what
saturation cuts off.

One random number u an element decides against all gaps at once: the code is the number of j with
v - l_j > u (l_{j+1} - l_j). Of the gaps below v all are counted, of those above none, and its own
with the right probability. u = (r + 1/2) / 65536 of 16 random bits: the probability is right to
2^-17, and an element that is a level stays what it is. Both sides are compared times 2^24, so that
the product is right where the gap is a denormal number; times 1/4 where levels are so large that
their distance would overflow.

A frame's body is the tables, float32 `[buckets, s]`, then the codes as base-s digits. A method
brings the search for the levels, which sees each bucket sorted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from gcsim.compressors.bucket import BucketLayout
from gcsim.compressors.coding.checksum import number_at
from gcsim.compressors.coding.frame import (
    HEADER_BYTES,
    Codec,
    Frame,
    as_bytes,
    from_bytes,
    of_bucket,
    pack_frame,
    put_words,
    read_frame,
    together,
    write_frame,
)
from gcsim.compressors.coding.integers.digits import (
    GROUPS,
    digit_bytes,
    group_and_bits,
    pack_digits,
    put_digits,
    separate_digits,
    unpack_digits,
)
from gcsim.compressors.coding.integers.packing import unpack_narrow
from gcsim.compressors.coding.messages import decoder, split_body
from gcsim.compressors.coding.rounding.levels import bucket_count, bucket_grain, bucket_parts
from gcsim.compressors.coding.scans import moments
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.loops import (
    array,
    in_parallel,
    inlined,
    loop,
    tensor,
    written_back,
)
from gcsim.compressors.meter import count_random, kernel
from gcsim.compressors.on_device import on_device
from gcsim.compressors.random import bits64
from gcsim.errors import InputError

LEVEL_COUNTS = (3, 5, 9)
"""Numbers of levels that pack well: 1.6, 2.33 and 3.2 bits an element."""
MAX_BUCKET = 65535

_PIECE = 1024

Clip = Annotated[
    float | None,
    Field(
        gt=0,
        description="c: clip to c standard deviations of the bucket (paper: 1.7, 2.5); null: no",
    ),
]

Search = Callable[[Any, Any], None]
"""Fills levels (float32 `[buckets, s]`) from rows (float32 `[buckets, length]`, each sorted)."""


@kernel("sort")
@on_device("rounding.tables")
def search_levels(
    values: Tensor, *, size: int, count: int, clip: float | None, search: Search
) -> Tensor:
    """The tables of all buckets: float32 `[ceil(n / size), count]`, ascending.

    Every bucket of `values` (float32 `[n]`) is sorted, clipped to `clip` standard deviations
    (population, about the mean; no clipping where that is 0 or `clip` None) and handed to
    `search`.
    """
    data = array(values)
    tables = np.empty((bucket_count(data.size, size), count), dtype=np.float32)
    grain = bucket_grain(size)  # also what is sorted in one go
    factor = 0.0 if clip is None else clip
    in_parallel(_search, data.size, data, size, grain, factor, search, tables, grain=grain)
    return tensor(tables, values)


def _search(
    start: int, stop: int, values: NDArray[np.float32], size: int, most: int, factor: float,
    search: Search, tables: NDArray[np.float32],
) -> None:  # fmt: skip
    """Interpreted, but on many buckets at a time; numpy sorts without the interpreter's lock."""
    for first in range(start, stop, most):
        part = values[first : min(first + most, stop)]
        whole = part.size // size * size
        for some, length in ((part[:whole], size), (part[whole:], part.size - whole)):
            if some.size:
                rows = some.reshape(-1, length).copy()
                rows.sort(axis=1)
                if factor:
                    _clip_buckets(0, rows.size, rows.reshape(-1), length, factor)
                at = (first if length == size else first + whole) // size
                search(rows, tables[at : at + rows.shape[0]])


@loop
def _clip_buckets(start: int, stop: int, values: Any, size: int, factor: float) -> None:
    """Clip each bucket to `factor` of its standard deviations, in place."""
    for at in range(start, stop, size):
        part = values[at : min(at + size, stop)]
        total, _ = moments(part, 0.0)
        _, squares = moments(part, total / part.size)
        bound = np.float32(factor * np.sqrt(squares / part.size))
        if bound > 0:
            for i in range(part.size):
                part[i] = min(max(part[i], -bound), bound)


@kernel("streaming")
@on_device("rounding.tables")
def round_between(values: Tensor, tables: Tensor, *, size: int, key: np.uint64) -> Tensor:
    """Codes of randomly rounded elements: uint8 `[n]`, each below the number of levels.

    Parameters
    ----------
    values : float32 `[n]`
    tables : float32 `[ceil(n / size), s]`, ascending; elements outside saturate
    size : bucket length
    key : of the random numbers, see `random_key`
    """
    codes = np.empty(values.numel(), dtype=np.uint8)
    in_parallel(
        _round, codes.size, array(values), array(tables), codes, size, key, grain=bucket_grain(size)
    )
    count_random(codes.size, 16)
    return tensor(codes, values)


@inlined
def magnifier(largest: Any) -> Any:
    """Inside a loop: what both sides of a comparison are multiplied with.

    `largest` is the largest magnitude of a level. A gap of up to twice that must not overflow.
    """
    return np.float32(2.0**24) if largest < np.float32(1e30) else np.float32(0.25)


@loop
def _round(
    start: int, stop: int, values: Any, tables: Any, codes: Any, size: int, key: np.uint64
) -> None:
    words = np.empty(_PIECE // 4 + 2, dtype=np.uint64)
    random16 = words.view(np.uint16)
    fractions = np.empty(_PIECE, dtype=np.float32)
    scaled = np.empty(_PIECE, dtype=np.float32)
    for at in range(start, stop, size):
        table = tables[at // size]
        end = min(at + size, stop)
        scale = magnifier(max(abs(table[0]), abs(table[-1])))
        for first in range(at, end, _PIECE):
            length = min(_PIECE, end - first)
            word = first // 4  # 64 random bits are the 16 of each of four elements
            for k in range((first + length + 3) // 4 - word):
                words[k] = bits64(key, word + k)
            drawn = random16[first - 4 * word : first - 4 * word + length]
            piece = values[first : first + length]
            out = codes[first : first + length]
            for i in range(length):
                fractions[i] = (np.float32(drawn[i]) + np.float32(0.5)) * np.float32(2.0**-16)
                scaled[i] = piece[i] * scale
                out[i] = 0
            for j in range(table.size - 1):  # a code counts the random points that v exceeds
                low = table[j] * scale
                gap = table[j + 1] * scale - low
                for i in range(length):
                    out[i] += np.uint8(scaled[i] - low > fractions[i] * gap)


def pack_levels(values: Tensor, tables: Tensor, *, size: int, key: np.uint64) -> Tensor:
    """One tensor's frame: tables and codes of the rounded `values`; see `round_between`."""
    count = tables.shape[1]
    codes = round_between(values, tables, size=size, key=key)
    body = torch.cat((as_bytes(tables.reshape(-1)), pack_digits(codes, count)))
    return pack_frame(Codec.LEVELS, body, numel=values.numel(), flags=count, params=size)


def pack_all_levels(
    values: Tensor, layout: BucketLayout, tables: list[Tensor], *, size: int,
    keys: NDArray[np.uint64],
) -> Tensor:  # fmt: skip
    """`pack_levels` of all tensors of a bucket, which are short (`together`)."""
    given = array(values), layout.table, np.concatenate([array(table) for table in tables])
    return torch.from_numpy(_write_message(*given, size, keys, int(Codec.LEVELS)))


@loop
def _write_message(values: Any, table: Any, levels: Any, size: int, keys: Any, codec: int) -> Any:
    """The frames of all tensors, whose buckets' levels lie behind each other: uint8."""
    count = levels.shape[1]
    room = (HEADER_BYTES + 4) * table.shape[0] + 4 * levels.size + values.size
    message = np.empty(room, dtype=np.uint8)
    at, before = 0, 0
    for t in range(table.shape[0]):
        first, n = table[t]
        buckets = (n + size - 1) // size
        own, codes, frame = levels[before : before + buckets], np.empty(n, np.uint8), message[at:]
        _round(0, n, values[first : first + n], own, codes, size, keys[t])
        end = put_words(frame, HEADER_BYTES, own.reshape(-1))
        end += put_digits(codes, count, frame[end:])
        write_frame(frame[:end], codec, count, size, n, n)
        at, before = at + end, before + buckets
    return message[:at].copy()


@of_bucket(file="messages.tables")
def add_decoded(message: Tensor, layout: BucketLayout, out: Tensor, weight: float) -> None:
    """out += weight * decoded message, in place; see `decoder`."""
    if together(out):
        given = array(message), layout.table, array(out), np.float32(weight), int(Codec.LEVELS)
        if _add_message(*given):
            return  # else it is damaged, and what follows says how
    _add_frames(message, layout, out, weight)


@decoder(Codec.LEVELS)
def _add_frames(frame: Frame, part: Tensor, weight: float) -> None:
    """Add the levels that a frame's codes stand for."""
    count, size, n = frame.flags, frame.params, frame.numel
    if count not in LEVEL_COUNTS or size < 1:
        raise InputError(f"damaged payload: {count} levels, buckets of {size} elements")
    cells = count * bucket_count(n, size)
    head, tail = split_body(frame, 4 * cells, digit_bytes(n, count))
    tables = from_bytes(head, torch.float32, cells).view(-1, count)  # [buckets, count]
    _add_from_tables(part, unpack_digits(tail, n, count), tables, size, weight)


@kernel("streaming", updates=("out",))
@on_device("rounding.tables")
def _add_from_tables(out: Tensor, codes: Tensor, tables: Tensor, size: int, weight: float) -> None:
    with written_back(out) as sums:
        in_parallel(
            _look_up, sums.size, array(codes), array(tables), sums, size, np.float32(weight),
            grain=bucket_grain(size),
        )  # fmt: skip


@loop
def _look_up(
    start: int, stop: int, codes: Any, tables: Any, out: Any, size: int, weight: np.float32
) -> None:
    weighted = np.zeros(256, dtype=np.float32)  # any byte is a valid index
    for at in range(start, stop, size):
        table = tables[at // size]
        for j in range(table.size):
            weighted[j] = weight * table[j]
        end = min(at + size, stop)
        chosen, sums = codes[at:end], out[at:end]
        for i in range(sums.size):
            sums[i] += weighted[chosen[i]]


@loop
def _add_message(data: Any, table: Any, out: Any, weight: np.float32, codec: int) -> bool:
    """`_add_frames` of a whole message, of short tensors; False where a frame is damaged.

    All frames are looked at before anything is added; their digits are then what may be wrong.
    """
    if not _are_whole(data, table, codec):
        return False
    at = 0
    for t in range(table.shape[0]):
        _, count, size, numel, _, length, _ = read_frame(data, at)
        at += HEADER_BYTES
        cells = count * ((numel + size - 1) // size)
        words = np.empty(cells, dtype=np.uint32)
        for i in range(cells):
            words[i] = number_at(data, at + 4 * i, 4)
        right, digits = _digits_of(data[at + 4 * cells : at + length], numel, count)
        if not right:
            return False
        at += length
        levels = words.view(np.float32).reshape(-1, count)
        offset = table[t, 0]
        _look_up(0, numel, digits, levels, out[offset : offset + numel], size, weight)
    return True


@loop
def _are_whole(data: Any, table: Any, codec: int) -> Any:
    """Whether the frames are those of these tensors, unchanged and as long as they must be."""
    at = 0
    for t in range(table.shape[0]):
        if data.size - at < HEADER_BYTES:
            return False
        kind, count, size, numel, _, length, intact = read_frame(data, at)
        if kind != codec or numel != table[t, 1] or size < 1 or count not in (3, 5, 9):
            return False
        group, bits = group_and_bits(count)
        coded = ((numel + group - 1) // group * bits + 7) // 8
        if not intact or length != 4 * count * ((numel + size - 1) // size) + coded:
            return False
        at += HEADER_BYTES + length
    return at == data.size


@loop
def _digits_of(codes: Any, count: int, base: int) -> Any:
    """(whether they can have been packed, digits uint8 `[count]`), as `unpack_digits`."""
    group, bits = group_and_bits(base)
    plane = (count + group - 1) // group
    groups = np.empty(plane, dtype=np.uint16)
    right = True
    if bits == 16:
        for i in range(plane):
            groups[i] = number_at(codes, 2 * i, 2)
    else:
        unpack_narrow(0, plane, codes, groups, bits)
        used = plane * bits % 8
        right = used == 0 or codes[-1] >> np.uint8(used) == 0
    digits = np.empty(plane * group, dtype=np.uint8)
    highest = np.zeros((plane + GROUPS - 1) // GROUPS, dtype=np.int64)
    separate_digits(0, plane, groups, digits, base, group, highest)
    for most in highest:
        right &= most < base**group
    return right and not digits[count:].any(), digits[:count]


def rounding_error(values: Tensor, tables: Tensor, size: int) -> float:
    """The mean over the random numbers of |Q(v) - v|^2 for `values`, float32 `[n]`.

    The sum over elements of (v - l_j) (l_{j+1} - v), with v clipped to its bucket's table, plus
    the square of what the clipping takes away.
    """
    total = 0.0
    for elements, buckets, length in bucket_parts(values.numel(), size):
        given = values[elements].double().view(-1, length)
        table = tables[buckets].double()
        inside = given.clamp(table[:, :1], table[:, -1:])
        above = torch.searchsorted(table, inside, right=True).clamp_(1, table.shape[1] - 1)
        low, high = table.gather(1, above - 1), table.gather(1, above)
        total += float(((inside - low) * (high - inside) + (given - inside).square()).sum())
    return total
