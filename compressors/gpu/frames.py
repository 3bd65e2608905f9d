"""Frames of a message on a GPU: a few launches write headers, copies and checksums of all tensors.

One launch writes or checks all checksums: programs add up a frame's words, and the last one to
finish hashes. Another launch reads unknown headers, which kernels use in place; otherwise the host
waits once per message. Header: `coding/frames.py`; checksum and source: `coding/checksum.py`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import fields

import numpy as np
import triton
import triton.language as tl
from numpy.typing import NDArray

from gcsim.compressors.bucket import BucketLayout
from gcsim.compressors.coding import frames as loops
from gcsim.compressors.coding.checksum import KEYLESS_OF_FOUR_BYTES, ORDERS, ROUNDS, START
from gcsim.compressors.coding.frames import HEADER_BYTES, Frames
from gcsim.compressors.demands import when_known
from gcsim.compressors.gpu.parts import copy, own_part, own_row
from gcsim.compressors.gpu.words import GROUPS, launch, load_words, there
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.on_device import kernel_of
from gcsim.compressors.segments import Column, starts

_FIELDS, _PROGRAM = 9, 2
"""Columns of a table of frames: first byte of the body, its bytes, first program, codec, flags,
params, number of elements sent, of all elements, whether the checksum is right."""


@kernel_of(loops.seal)
def _seal(message: Tensor, at: Column, sizes: Column) -> Tensor:
    _hash_known(message, at, sizes, None)
    return message


@kernel_of(loops.agree)
def _agree(message: Tensor, heads: NDArray[np.uint8], at: Column, sizes: Column) -> Tensor:
    return _hash_known(message, at, sizes, there(heads[:, :16], message.device))


def _hash_known(message: Tensor, at: Column, sizes: Column, heads: Tensor | None) -> Tensor:
    """Write checksums of frames at known places; or return whether they and headers are right."""
    programs = np.maximum(1, -(-(sizes // 8) // GROUPS))
    ends = np.cumsum(programs)
    table = there((at, sizes, ends - programs), message.device, np.int64)
    right = message if heads is None else torch.empty_like(table[0])
    _hash_all(message, table, int(ends[-1]) if len(ends) else 0, right, heads)
    return right


@kernel_of(loops.put_heads)
def _put_heads(
    message: Tensor, heads: NDArray[np.uint8], at: Column, parts: Sequence[tuple[Tensor, Column]]
) -> None:
    head, place = torch.from_numpy(heads.reshape(-1)), at
    pieces = [(at - HEADER_BYTES, head, np.full_like(at, HEADER_BYTES))]
    for source, lengths in parts:
        pieces.append((place, source, lengths))
        place = place + lengths
    _put_all(message, pieces)


@kernel_of(loops.put_all)
def _put_all(message: Tensor, parts: Sequence[tuple[Column, Tensor, Column]]) -> None:
    sources = []
    for at, source, lengths in parts:
        if source.numel():
            data = source if source.device == message.device else there(source, message.device)
            sources.append((data, lengths, starts(lengths), at))
    copy(message, sources)


@kernel_of(loops.taken_all)
def _taken_all(
    message: Tensor, parts: Sequence[tuple[Column, Column, torch.dtype]]
) -> list[Tensor]:
    sizes = np.array([lengths.sum() for _, lengths, _ in parts], dtype=np.int64)
    cuts = starts(-(-sizes // 8) * 8)
    room = message.new_empty(int(cuts[-1] + sizes[-1]))
    at, many = (np.concatenate([part[i] for part in parts]) for i in (0, 1))
    into = [cut + starts(lengths) for cut, (_, lengths, _) in zip(cuts, parts, strict=True)]
    if sizes.any():
        copy(room, [(message, many, at, np.concatenate(into))])
    rows = zip(cuts, sizes, parts, strict=True)
    return [room[cut : cut + size].view(dtype) for cut, size, (_, _, dtype) in rows]


@kernel_of(loops.headers)
def _headers(message: Tensor, most: int) -> NDArray[np.int64]:
    return np.delete(_walked(message, most).cpu().numpy(), _PROGRAM, axis=0)


@kernel_of(loops._read_ahead)
def _read_ahead(
    message: Tensor, layout: BucketLayout, codec: int, check: Callable[[Frames], object]
) -> Tensor:
    """Return the table of a message's frames, in which kernels look up their `own_frame`."""
    loops.demand_bytes(message)
    table = _walked(message, len(layout.slices))

    def demand(*numbers: int) -> None:
        rows = np.array(numbers, dtype=np.int64).reshape(_FIELDS, -1)
        found = Frames(*np.delete(rows, _PROGRAM, axis=0))
        loops.demand_frames(found, layout, total, codec)
        check(found)

    total = message.numel()
    when_known(table, demand)
    return table


def table_of(found: Frames | Tensor, like: Tensor) -> Tensor:
    """Return the result of `read_ahead` as a table on the device."""
    if isinstance(found, torch.Tensor):
        return found
    rows = np.stack([getattr(found, each.name) for each in fields(found)])
    return there(np.insert(rows, _PROGRAM, 0, axis=0), like.device, np.int64)


def _walked(message: Tensor, most: int) -> Tensor:
    """Return the table of the first frames; -1 if no header fits."""
    table = torch.empty((_FIELDS, most), dtype=torch.int64, device=message.device)
    total = message.numel()
    launch(_walk, 1, message, table, total, most, HEADER=HEADER_BYTES, GROUPS=GROUPS)
    # enough for any sizes: at most one program per frame has less than 8 * GROUPS bytes
    _hash_all(message, table, total // (8 * GROUPS) + most, table[-1], None)
    return table


def _hash_all(
    message: Tensor, table: Tensor, programs: int, right: Tensor, heads: Tensor | None
) -> None:
    """Record in `right` whether checksums (and known headers) are right; or write the checksums."""
    frames, device = table.shape[1], message.device
    stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
    work = _zeros(1 << frames.bit_length(), device, stream)
    known = heads is not None
    launch(
        _hash, programs, message, table, work, _constants(device), right,
        heads if known else message, frames, message.numel(), CHECK=right is not message,
        KNOWN=known, HEADER=HEADER_BYTES, ROUNDS=ROUNDS, GROUPS=GROUPS,
    )  # fmt: skip


@functools.cache
def _zeros(frames: int, device: torch.device, stream: int) -> Tensor:
    """Allocate each frame's sum and count of finished programs, int64 `[frames, 2]`, kept zero."""
    return torch.zeros((frames, 2), dtype=torch.int64, device=device)


@functools.cache
def _constants(device: torch.device) -> Tensor:
    """Return BLAKE2b's word orders in ten rounds, then its initial state, as int64."""
    begun = START.copy()
    begun[0] ^= KEYLESS_OF_FOUR_BYTES
    state = np.concatenate((begun, START))
    state[12] ^= np.uint64(32)  # number of input bytes
    state[14] = ~state[14]  # the last block
    both = np.concatenate((ORDERS.astype(np.uint64).ravel(), state))
    return torch.from_numpy(both.view(np.int64)).to(device)


@triton.jit
def _field(head, lane, first, size: tl.constexpr):
    here = (lane >= first) & (lane < first + size)
    # & 63 keeps the shifts of other lanes, which are dropped, within a word
    return tl.sum(tl.where(here, head << (((lane - first) * 8) & 63), 0), axis=0)


@triton.jit
def _walk(message, table, total, most, HEADER: tl.constexpr, GROUPS: tl.constexpr):
    """Fill the columns of a table of frames: each header determines where the next begins."""
    lane = tl.arange(0, 32).to(tl.int64)
    at = tl.cast(HEADER, tl.int64)
    program = tl.cast(0, tl.int64)
    number = tl.cast(0, tl.int32)
    while number < most:
        row = table + number
        here = at <= total
        head = tl.load(message + at - HEADER + lane, mask=(lane < HEADER) & here, other=0)
        head = head.to(tl.int64)
        size = _field(head, lane, 12, 4)
        whole = here & (at + size <= total)
        tl.store(row, tl.where(here, at, -1))
        tl.store(row + most, tl.where(here, size, -1))
        tl.store(row + 2 * most, program)
        for field in tl.static_range(3):
            # codec, flags and params: at bytes 0, 1 and 2, of 1, 1 and 2 bytes
            number_of = _field(head, lane, field, 1 + field // 2)
            tl.store(row + (3 + field) * most, tl.where(here, number_of, -1))
        tl.store(row + 6 * most, tl.where(here, _field(head, lane, 8, 4), -1))
        tl.store(row + 7 * most, tl.where(here, _field(head, lane, 4, 4), -1))
        # a frame that does not fit has one program, which records that it is wrong
        program += tl.where(whole, tl.maximum(1, (size // 8 + GROUPS - 1) // GROUPS), 1)
        at = tl.where(here, at + size + HEADER, at)
        number += 1


@triton.jit
def own_frame(frames, table, parts):
    """Return (first byte of the body of a program's tensor, its bytes and flags, number of elements
    sent: 0 if damaged). `frames` is the table of `table_of`; programs have blocks of elements."""
    row = frames + own_row(table, parts, tl.program_id(0))
    _, _, n = own_part(table, parts)
    k = tl.load(row + 6 * parts)
    right = (tl.load(row + 8 * parts) != 0) & (tl.load(row + 7 * parts) == n) & (k <= n)
    return tl.load(row), tl.load(row + parts), tl.load(row + 4 * parts), tl.where(right, k, 0)


@triton.jit
def _word(data, lane, count, mask):
    byte = tl.load(data + lane, mask=(lane < count) & mask, other=0).to(tl.uint64)
    return tl.sum(byte << (lane * 8).to(tl.uint64), axis=0)


@triton.jit
def _hash(  # noqa: PLR0915 - rotations are written out
    message, table, work, constants, right, heads, frames, total, CHECK: tl.constexpr,
    KNOWN: tl.constexpr, HEADER: tl.constexpr, ROUNDS: tl.constexpr, GROUPS: tl.constexpr,
):  # fmt: skip
    """Write a frame's checksum, or record whether it is right: BLAKE2b of one block of 32 bytes.

    Each program adds up a part of the body's whole words, times distinct odd numbers; the frame's
    last program hashes. There may be more programs than parts. The state is four rows of four
    columns: a, b, c and d. Rotations are written out, since calls are slow in the interpreter.
    """
    frame = own_row(table + 2 * frames, frames, tl.program_id(0))
    begin = tl.load(table + frame)
    size = tl.load(table + frames + frame)
    whole = (begin >= HEADER) & (begin + size <= total)
    parts = tl.where(whole, tl.maximum(1, (size // 8 + GROUPS - 1) // GROUPS), 1)
    part = tl.program_id(0) - tl.load(table + 2 * frames + frame)
    if part >= parts:
        return
    group = part * GROUPS + tl.arange(0, GROUPS)
    counted = load_words(message + begin, group, tl.where(whole, size // 8 * 8, 0), 8)
    weighed = tl.sum(counted * (group.to(tl.uint64) * 2 + 1), axis=0)  # modulo 2^64, in any order
    own = work + 2 * frame
    tl.atomic_add(own, weighed.to(tl.int64, bitcast=True), sem="relaxed")
    # the last program hashes: with acquire and release it sees the sums of all others
    if tl.atomic_add(own + 1, 1, sem="acq_rel") < parts - 1:
        return
    # read by an atomic, as it was added: a plain load might see an older sum
    fourth = tl.atomic_add(own, 0, sem="relaxed").to(tl.uint64, bitcast=True)
    tl.store(own, 0)
    tl.store(own + 1, 0)
    head = message + begin - HEADER
    lane = tl.arange(0, 8).to(tl.int64)
    shift = (lane * 8).to(tl.uint64)
    first = _word(head, lane, 8, whole)
    second = _word(head + 8, lane, 8, whole)
    third = _word(message + begin + size // 8 * 8, lane, size % 8, whole)
    zero = tl.cast(0, tl.uint64)
    column = tl.arange(0, 4)[None, :]
    a = tl.load(constants + 160 + column).to(tl.uint64, bitcast=True)
    b = tl.load(constants + 164 + column).to(tl.uint64, bitcast=True)
    c = tl.load(constants + 168 + column).to(tl.uint64, bitcast=True)
    d = tl.load(constants + 172 + column).to(tl.uint64, bitcast=True)
    begun = a
    by_one = (column + 1) & 3
    by_two = (column + 2) & 3
    by_three = (column + 3) & 3
    for turn in range(ROUNDS):
        for half in tl.static_range(2):  # columns of the square, then diagonals
            order = constants + turn % 10 * 16 + half * 8 + 2 * column
            # words 4 to 15 of the block are 0
            which = tl.load(order)
            word = tl.where(which == 0, first, tl.where(which == 1, second, zero))
            word = tl.where(which == 2, third, tl.where(which == 3, fourth, word))
            a = a + b + word
            d = d ^ a
            d = (d >> 32) | (d << 32)
            c = c + d
            b = b ^ c
            b = (b >> 24) | (b << 40)
            which = tl.load(order + 1)
            word = tl.where(which == 0, first, tl.where(which == 1, second, zero))
            word = tl.where(which == 2, third, tl.where(which == 3, fourth, word))
            a = a + b + word
            d = d ^ a
            d = (d >> 16) | (d << 48)
            c = c + d
            b = b ^ c
            b = (b >> 63) | (b << 1)
            # rotate the rows against each other, and back
            b = tl.gather(b, by_one if half == 0 else by_three, 1)
            c = tl.gather(c, by_two, 1)
            d = tl.gather(d, by_three if half == 0 else by_one, 1)
    found = tl.sum(tl.where(column == 0, (begun ^ a ^ c) & 0xFFFFFFFF, 0), axis=1)  # [1]
    stored = head + 16 + lane
    byte = (found >> shift) & 255
    mask = (lane < 4) & whole
    if CHECK:
        same = tl.load(stored, mask=mask, other=0).to(tl.uint64) == byte
        good = tl.sum((mask & same).to(tl.int64), axis=0) == 4
        if KNOWN:
            good = good & (_word(heads + frame * 16, lane, 8, whole) == first)
            good = good & (_word(heads + frame * 16 + 8, lane, 8, whole) == second)
        tl.store(right + frame, good.to(tl.int64))
    else:
        tl.store(stored, byte.to(tl.uint8), mask=mask)
