"""How do all parts of something short travel without calls for each? In a loop over them.

N workers that own a stripe each of a matrix, or a chunk of a vector, send each other N^2 frames,
most of a few bytes: the calls around them take a hundred times as long as the bytes. These loops
write and read what `columns.py`, `signs.py` and `frame.py` do frame by frame, to the same bits;
1-bit SGD and 1-bit Adam use them where no kernels are counted (`frame.together`).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gcsim.compressors.coding.checksum import number_at, put_number
from gcsim.compressors.coding.frame import HEADER_BYTES, read_frame, write_frame
from gcsim.compressors.coding.integers.packing import fold_bits, packed_bytes
from gcsim.compressors.coding.one_bit.columns import add_stripe, summed_inside
from gcsim.compressors.loops import loop

_WIDE = 32
"""Columns of a stripe from which on a row is worth a loop of vectors."""

# --- stripes of a matrix ----------------------------------------------------------------------


def frame_bytes(rows: int, width: int) -> int:
    """Of the frame of a stripe of `width` columns: header, two levels a column, bits."""
    return HEADER_BYTES + (8 * width + packed_bytes(rows * width, 1) if rows * width else 0)


@loop
def put_levels(sums: Any, rows: int, lines: Any) -> None:
    """Lower and upper levels of columns cut at zero, of their `column_sums`; see `column_levels`.

    `lines` is float32 `[3, columns or more]`, of which the first is left alone.
    """
    for i in range(sums.shape[1]):
        total, magnitude, count = sums[0, i], sums[1, i], sums[2, i]
        if count < rows:
            lines[1, i] = np.float32((total - magnitude) / (2 * (rows - count)))
        if count > 0:
            lines[2, i] = np.float32((magnitude + total) / (2 * count))


@loop
def put_all_stripes(
    messages: Any, values: Any, added: Any, table: Any, keep_error: bool, codec: int
) -> None:
    """The messages of each owner, uint8 `[owners, bytes]`: columns cut at zero, `put_stripes` of
    each matrix of `table` (see `add_stripes`) in `values` + `added`, or no such."""
    at = 0
    for m in range(table.shape[0]):
        rows, columns, offset, width, numel = table[m]
        end = offset + rows * columns
        part, more = values[offset:end], added[offset:end] if added.size else added
        lines = np.zeros((3, width * messages.shape[0]), dtype=np.float32)
        size = HEADER_BYTES
        if part.size:
            put_levels(summed_inside(part, more, columns), rows, lines)
            size += 8 * width + (rows * width + 7) // 8
        frames = messages[:, at : at + size]
        put_stripes(frames, part, columns, width, lines, keep_error, codec, numel)
        at += size


@loop
def put_stripes(
    messages: Any, values: Any, columns: int, width: int, lines: Any, keep_error: bool, codec: int,
    numel: int,
) -> None:  # fmt: skip
    """Each owner's frame of one matrix, in its row of `messages`, uint8 `[owners, frame bytes]`.

    Parameters
    ----------
    values : float32 `[rows * columns]`; with `keep_error` they lose what the frames say, in place
    columns, width : of the matrix, of a stripe
    lines : float32 `[3, owners * width]`, thresholds, lower and upper levels
    numel : what the frames state of their tensor
    """
    rows = values.size // max(1, columns)
    levels = lines.view(np.uint32)
    marks = np.zeros((rows, lines.shape[1]), dtype=np.uint8)
    own = lines[:, :columns]
    for row in range(rows):
        part = values[row * columns : (row + 1) * columns]
        for i in range(columns):
            above = part[i] >= own[0, i]
            marks[row, i] = above
            if keep_error:
                part[i] -= own[2, i] if above else own[1, i]
    words = np.zeros((rows * width + 7) // 8, dtype=np.uint64)
    flags = words.view(np.uint8)
    for owner in range(messages.shape[0]):
        frame = messages[owner]
        first = owner * width
        if values.size:
            body = frame[HEADER_BYTES:]
            for i in range(width):
                put_number(body, 4 * i, 4, np.uint64(levels[1, first + i]))
                put_number(body, 4 * (width + i), 4, np.uint64(levels[2, first + i]))
            for row in range(rows):
                for i in range(width):
                    flags[row * width + i] = marks[row, first + i]
            fold_bits(words, body[8 * width :])
        write_frame(frame, codec, 0, 0, numel, rows * width)


@loop
def add_stripes(messages: Any, table: Any, numbers: Any, out: Any, weight: Any, codec: int) -> Any:
    """out += weight * what messages of stripes say, in place; how many are not damaged.

    Parameters
    ----------
    messages : uint8 `[messages, bytes]`
    table : int64 `[matrices, 5]`: rows, columns, offset in `out`, columns of a stripe, elements of
        the tensor
    numbers : which stripe each message is

    Of the first one that is damaged a part may be added, of those after it nothing.
    """
    longest = table[:, 3].max() if table.size else 0
    levels = np.empty(2 * longest, dtype=np.uint32)
    for p in range(messages.shape[0]):
        message, at = messages[p], 0
        for m in range(table.shape[0]):
            rows, columns, offset, width, numel = table[m]
            elements = rows * width
            if message.size - at < HEADER_BYTES:
                return p
            found = read_frame(message, at)
            bits = (elements + 7) // 8
            length = 8 * width + bits if elements else 0
            if found != (codec, 0, 0, numel, elements, length, True):
                return p
            at += HEADER_BYTES
            if elements:
                for i in range(2 * width):
                    levels[i] = np.uint32(number_at(message, at + 4 * i, 4))
                packed = message[at + 8 * width : at + length]
                if elements % 8 and packed[bits - 1] >> np.uint8(elements % 8):
                    return p
                low = levels[:width].view(np.float32)
                high = levels[width : 2 * width].view(np.float32)
                part, first = out[offset : offset + rows * columns], numbers[p] * width
                if width >= _WIDE:
                    add_stripe(0, elements, part, columns, first, width, packed, low, high, weight)
                else:
                    _add_narrow(part, rows, columns, first, width, packed, low, high, weight)
            at += length
        if at != message.size:
            return p
    return messages.shape[0]


@loop
def _add_narrow(
    out: Any, rows: int, columns: int, first: int, width: int, bits: Any, lows: Any, highs: Any,
    weight: Any,
) -> None:  # fmt: skip
    """`columns.add_stripe`, whose work is for each row, where rows are short."""
    present = min(width, columns - first)
    for row in range(rows):
        for j in range(present):
            at = row * width + j
            upper, lower = highs[j], lows[j]
            above = (bits[at >> 3] >> np.uint8(at & 7)) & np.uint8(1)
            out[row * columns + first + j] += weight * (upper if above else lower)
