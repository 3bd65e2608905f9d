"""How are sparse vectors added without making them dense? By merging ascending lists of pairs.

And those of many workers, which are short: by one loop that reads all their frames.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gcsim.compressors.coding.checksum import number_at, put_number
from gcsim.compressors.coding.frame import (
    HEADER_BYTES,
    find_frames,
    read_frame,
    words_at,
    write_frame,
)
from gcsim.compressors.coding.indices.index_coding import ascends_below
from gcsim.compressors.coding.selecting.selection import take_few
from gcsim.compressors.lazy_torch import Tensor
from gcsim.compressors.loops import array, loop, tensor
from gcsim.compressors.meter import kernel
from gcsim.compressors.on_device import on_device


@kernel("streaming")
@on_device("sparse")
def merged_pairs(
    indices: Tensor, values: Tensor, other_indices: Tensor, other_values: Tensor
) -> tuple[Tensor, Tensor]:
    """The sum of two sparse vectors.

    Indices are ascending int64 `[k]` and `[m]`, values float32; returns indices int64 `[u]`,
    ascending, and values float32 `[u]`, u between max(k, m) and k + m.
    """
    room = indices.numel() + other_indices.numel()
    out_indices = np.empty(room, dtype=np.int64)
    out_values = np.empty(room, dtype=np.float32)
    used = _merge(
        array(indices), array(values), array(other_indices), array(other_values),
        out_indices, out_values,
    )  # fmt: skip
    return tensor(out_indices[:used], values), tensor(out_values[:used], values)


@loop
def _merge(ia: Any, va: Any, ib: Any, vb: Any, indices: Any, values: Any) -> int:
    a = b = used = 0
    while a < ia.size or b < ib.size:
        if b == ib.size or (a < ia.size and ia[a] < ib[b]):
            indices[used], values[used] = ia[a], va[a]
            a += 1
        elif a == ia.size or ib[b] < ia[a]:
            indices[used], values[used] = ib[b], vb[b]
            b += 1
        else:
            indices[used], values[used] = ia[a], va[a] + vb[b]
            a += 1
            b += 1
        used += 1
    return used


@loop
def put_pairs(
    message: Any, values: Any, indices: Any, ends: Any, numels: Any, codec: int, flags: int
) -> None:
    """A frame of float32 values and their 32-bit indices for each part, one behind the other.

    Part p, of a tensor of `numels[p]` elements, goes from the end of the one before to `ends[p]`;
    `message` has room for all frames.
    """
    start, at = 0, 0
    words = values.view(np.uint32)
    for p in range(ends.size):
        k = ends[p] - start
        frame = message[at : at + HEADER_BYTES + 8 * k]
        body = frame[HEADER_BYTES:]
        for i in range(k):
            put_number(body, 4 * i, 4, np.uint64(words[start + i]))
            put_number(body, 4 * (k + i), 4, np.uint64(indices[start + i]))
        write_frame(frame, codec, flags, 0, numels[p], k)
        start, at = ends[p], at + frame.size


@loop
def merge_messages(
    own: Any, other: Any, table: Any, counts: Any, message: Any, codec: int, flags: int
) -> bool:
    """The largest of the sums of two messages of `put_pairs`, a frame a tensor, as another one.

    Each frame, there and here, has `counts` elements of the tensor in `table`. False for what is
    damaged, or not a number.
    """
    found = np.empty((2, counts.size, 5), dtype=np.int64)
    if not find_frames(own, table, codec, flags, found[0]):
        return False
    if not find_frames(other, table, codec, flags, found[1]):
        return False
    total = counts.sum()
    indices, values = np.empty(total, dtype=np.int64), np.empty(total, dtype=np.float32)
    at = 0
    for t in range(counts.size):
        n, k = table[t, 1], counts[t]
        for side in found:
            if side[t, 2] != k or side[t, 4] - side[t, 3] != 8 * k:
                return False
        a, b = words_at(own, found[0, t, 3], 2 * k), words_at(other, found[1, t, 3], 2 * k)
        ia, ib = a[k:].astype(np.int64), b[k:].astype(np.int64)
        if not (ascends_below(ia, n) and ascends_below(ib, n)):
            return False
        places, sums = np.empty(2 * k, dtype=np.int64), np.empty(2 * k, dtype=np.float32)
        used = _merge(ia, a[:k].view(np.float32), ib, b[:k].view(np.float32), places, sums)
        chosen = np.empty(k, dtype=np.int64)
        if k and not take_few(sums[:used].view(np.uint32), k, chosen):
            return False
        for i in range(k):
            indices[at + i], values[at + i] = places[chosen[i]], sums[chosen[i]]
        at += k
    put_pairs(message, values, indices, counts.cumsum(), table[:, 1].copy(), codec, flags)
    return True


@loop
def sum_of_pairs(
    messages: Any, sizes: Any, low: int, high: int, numel: int, codec: int, flags: int
) -> Any:
    """(whether all is as `put_pairs` writes it, indices int64, sums float32) of many frames.

    `messages` are theirs, one behind the other, of `sizes` bytes; indices lie in low … high - 1.
    Sums go from the first frame to the last, as `merged_pairs` adds them.
    """
    region = np.empty(max(0, high - low), dtype=np.float32)
    seen = np.zeros(region.size, dtype=np.bool_)
    word = np.empty(1, dtype=np.uint32)
    value = word.view(np.float32)
    intact = True
    at, used = 0, 0
    for size in sizes:
        k = (size - HEADER_BYTES) // 8
        wanted = codec, flags, 0, numel, k, 8 * k, True
        if size != HEADER_BYTES + 8 * k or k < 0 or read_frame(messages, at) != wanted:
            intact = False
            break
        at += HEADER_BYTES
        last = np.int64(-1)
        for i in range(k):
            word[0] = number_at(messages, at + 4 * i, 4)
            place = np.int64(number_at(messages, at + 4 * (k + i), 4)) - low
            if place <= last or place >= region.size:
                intact = False
                break
            if seen[place]:
                region[place] += value[0]
            else:
                region[place] = value[0]
            used += not seen[place]
            seen[place] = True
            last = place
        at += 8 * k
    indices, sums = np.empty(used, dtype=np.int64), np.empty(used, dtype=np.float32)
    at = 0
    for i in range(region.size):
        if seen[i]:
            indices[at], sums[at] = low + i, region[i]
            at += 1
    return intact, indices, sums
