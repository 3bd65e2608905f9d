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
from gcsim.compressors.coding.integers.packing import packed_bytes
from gcsim.compressors.coding.one_bit.columns import add_stripe, stripe_bits
from gcsim.compressors.coding.one_bit.signs import LARGEST, decoding
from gcsim.compressors.loops import loop

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
    for owner in range(messages.shape[0]):
        frame = messages[owner]
        first = owner * width
        if values.size:
            body = frame[HEADER_BYTES:]
            for i in range(width):
                put_number(body, 4 * i, 4, np.uint64(levels[1, first + i]))
                put_number(body, 4 * (width + i), 4, np.uint64(levels[2, first + i]))
            own = lines[:, first : first + width]
            stripe_bits(
                0, rows * width, values, columns, first, width, own[0], own[1], own[2], keep_error,
                body[8 * width :],
            )  # fmt: skip
        write_frame(frame, codec, 0, 0, numel, rows * width)


@loop
def add_stripes(message: Any, table: Any, number: int, out: Any, weight: Any, codec: int) -> Any:
    """out += weight * what a message of stripes says, in place; False when it is damaged.

    `table` is int64 `[matrices, 5]`: rows, columns, offset in `out`, columns of a stripe, elements
    of the tensor; `number` says which stripe it is. What was damaged may be added for a part.
    """
    at = 0
    for m in range(table.shape[0]):
        rows, columns, offset, width, numel = table[m]
        elements = rows * width
        if message.size - at < HEADER_BYTES:
            return False
        found = read_frame(message, at)
        bits = (elements + 7) // 8
        length = 8 * width + bits if elements else 0
        if found != (codec, 0, 0, numel, elements, length, True):
            return False
        at += HEADER_BYTES
        if elements:
            levels = np.empty(2 * width, dtype=np.uint32)
            for i in range(2 * width):
                levels[i] = np.uint32(number_at(message, at + 4 * i, 4))
            packed = message[at + 8 * width : at + length]
            if elements % 8 and packed[bits - 1] >> np.uint8(elements % 8):
                return False
            low, high = levels[:width].view(np.float32), levels[width:].view(np.float32)
            part = out[offset : offset + rows * columns]
            add_stripe(0, elements, part, columns, number * width, width, packed, low, high, weight)
        at += length
    return at == message.size


# --- chunks of a vector -----------------------------------------------------------------------


@loop
def put_chunks(messages: Any, bits: Any, scale: Any, chunk: int, codec: int) -> None:
    """Each owner's frame of signs, in its row of `messages`, zeros `[owners, frame bytes]`.

    `bits` are those of all chunks, of `chunk` elements each; `scale` is float32, of one or none.
    """
    for owner in range(messages.shape[0]):
        body = messages[owner, HEADER_BYTES:]
        for word in scale.view(np.uint32):
            put_number(body, 0, 4, np.uint64(word))
        part = bits[owner * chunk // 8 : (owner + 1) * chunk // 8]
        for i in range(part.size):
            body[4 + i] = part[i]
        write_frame(messages[owner], codec, 0, 0, chunk, chunk)


@loop
def add_chunk(message: Any, out: Any, chunk: int, weight: Any, add: bool, codec: int) -> Any:
    """out += (or =) weight * scale * sign of the first elements; False, and nothing done, for what
    `put_chunks` does not write."""
    n, start = out.size, HEADER_BYTES + 4
    length = 4 + (chunk + 7) // 8
    if message.size != HEADER_BYTES + length:
        return False
    if read_frame(message, 0) != (codec, 0, 0, chunk, chunk, length, True):
        return False
    if n == 0:
        return not message[start:].any()
    bits = message[start : start + (n + 7) // 8]
    word = np.full(1, np.uint32(number_at(message, HEADER_BYTES, 4)))
    scale = word.view(np.float32)
    if message[start + bits.size :].any() or (n % 8 and bits[-1] >> np.uint8(n % 8)):
        return False
    if not (scale[0] >= 0 and scale[0] <= LARGEST):
        return False
    decoding(0, n, bits, scale * weight, n, out, add)
    return True
