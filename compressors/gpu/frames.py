"""How do frames get their checksums on a GPU, and how are those of a message read there?

All frames of a message together, so that the number of launches does not grow with theirs: the sums
over words by as many programs as it takes, and then the hash in a lane for each frame, which loads
the few words that are not zero. To write, the host waits for nothing. To read, it waits twice a
message: for the headers, which say how long frames are, and for whether checksums are right.

See `coding/frame.py` for the header and `coding/checksum.py` for the checksum and its source.
"""

from __future__ import annotations

import functools
import itertools
from typing import Any

import numpy as np
import triton
import triton.language as tl

from gcsim.compressors.coding import frames as loops
from gcsim.compressors.coding.checksum import KEYLESS_OF_FOUR_BYTES, ORDERS, ROUNDS, START
from gcsim.compressors.coding.frame import HEADER_BYTES, as_bytes, read_header
from gcsim.compressors.gpu.parts import put, starts
from gcsim.compressors.gpu.words import GROUPS, launch, load_words, there, tiles
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.on_device import kernel_of
from gcsim.compressors.segments import Column


def seal(message: Tensor, lengths: list[int]) -> None:
    """Put the checksums of frames, whose bodies have these lengths, into their headers."""
    begins = list(itertools.accumulate((n + HEADER_BYTES for n in lengths[:-1]), initial=0))
    found = _checksums(message, begins, lengths).view(torch.uint8).view(-1, 8)[:, :4]
    message[_bytes_of(message, begins, HEADER_BYTES - 4, HEADER_BYTES)] = found


@kernel_of(loops.seal)
def _sealed(message: Tensor, at: Column, sizes: Column) -> Tensor:
    seal(message, sizes.tolist())
    return message


@kernel_of(loops.put)
def _put(message: Tensor, at: Column, source: Tensor, lengths: Column) -> None:
    data = as_bytes(source)
    if data.device != message.device:
        data = there(data.numpy(), message.device)
    put(message, data, lengths.tolist(), at.tolist())


@kernel_of(loops.taken)
def _taken(message: Tensor, at: Column, lengths: Column, dtype: torch.dtype) -> Tensor:
    found = message.new_empty(int(lengths.sum()) // dtype.itemsize, dtype=dtype)
    if found.numel():
        many = lengths.tolist()
        put(found.view(torch.uint8), message, many, starts(many), at.tolist())
    return found


def frames_at(message: Tensor, start: int, most: int) -> list[tuple[Any, ...]]:
    """What `frame.read_frame` gives, of the frames from there on: of at least one, if it fits."""
    total = message.numel()
    heads = message.new_empty((min(most, (total - start) // HEADER_BYTES), HEADER_BYTES))
    launch(_walk, 1, message, heads, start, total, len(heads), HEADER=HEADER_BYTES)
    begins, fields, at = [], [], start
    for head in heads.cpu().numpy():
        if total - at < HEADER_BYTES:
            break
        begins.append(at)
        fields.append(read_header(head))
        at += HEADER_BYTES + fields[-1][-1]
    whole = at <= total  # else the last one is cut off
    lengths = [each[-1] for each in fields]
    count = len(begins) if whole else len(begins) - 1
    right = [False] * len(begins)
    if count:
        stored = message[_bytes_of(message, begins[:count], HEADER_BYTES - 4, HEADER_BYTES)]
        found = _checksums(message, begins[:count], lengths[:count])
        same = found.view(torch.uint8).view(-1, 8)[:, :4] == stored
        right[:count] = same.all(1).tolist()
    return [(*each, intact) for each, intact in zip(fields, right, strict=True)]


def _bytes_of(message: Tensor, begins: list[int], first: int, last: int) -> Tensor:
    """Where these bytes of each frame are: int64 `[frames, last - first]`."""
    places = np.array(begins)[:, None] + np.arange(first, last)
    return there(places, message.device)


def _checksums(message: Tensor, begins: list[int], lengths: list[int]) -> Tensor:
    """The checksums of frames that begin there: int64 `[frames]`, in the low 32 bits."""
    frames, lanes = len(begins), 1 << (len(begins) - 1).bit_length()
    programs = [tiles(8 * (length // 8)) for length in lengths]
    ends = np.cumsum(programs)
    table = there((begins, lengths, ends - programs, ends), message.device)
    sums = message.new_empty(int(ends[-1]), dtype=torch.int64)
    launch(
        _weigh, len(sums), message, table, sums, frames,
        HEADER=HEADER_BYTES, LANES=lanes, GROUPS=GROUPS,
    )  # fmt: skip
    words = sums.new_zeros((lanes, 16))  # of which but four stay zero
    words[:frames, :2] = message[_bytes_of(message, begins, 0, 16)].view(torch.int64)
    byte = torch.arange(8, device=message.device)
    behind = (table[0] + HEADER_BYTES + table[1] // 8 * 8)[:, None] + byte
    rest = message[behind.clamp(max=len(message) - 1)] * (byte < table[1][:, None] % 8)
    words[:frames, 2:3] = rest.view(torch.int64)
    upto = torch.cat((sums.new_zeros(1), sums.cumsum(0)))  # modulo 2^64, as differences are
    words[:frames, 3] = upto[table[3]] - upto[table[2]]
    found = sums.new_empty(lanes)
    launch(_hash, 1, words, _constants(message.device), found, LANES=lanes, ROUNDS=ROUNDS)
    return found[:frames]


@functools.cache
def _constants(device: torch.device) -> Tensor:
    """BLAKE2b's: the orders of words in ten rounds, then how its state begins; int64."""
    begun = START.copy()
    begun[0] ^= KEYLESS_OF_FOUR_BYTES
    state = np.concatenate((begun, START))
    state[12] ^= np.uint64(32)  # bytes that are given
    state[14] = ~state[14]  # the last block
    both = np.concatenate((ORDERS.astype(np.uint64).ravel(), state))
    return torch.from_numpy(both.view(np.int64)).to(device)


# --- kernels --------------------------------------------------------------------------------------


@triton.jit
def _walk(message, heads, start, total, most, HEADER: tl.constexpr):
    """Copy each header: the one before says where it is."""
    lane = tl.arange(0, 32)
    at = tl.cast(start, tl.int64)
    number = tl.cast(0, tl.int32)
    while (number < most) & (at + HEADER <= total):
        head = tl.load(message + at + lane, mask=lane < HEADER, other=0)
        tl.store(heads + number * HEADER + lane, head, mask=lane < HEADER)
        place = (lane.to(tl.int64) - 12) * 8
        length = tl.where((lane >= 12) & (lane < 16), head.to(tl.int64) << (place & 31), 0)
        at += HEADER + tl.sum(length, axis=0)
        number += 1


@triton.jit
def _weigh(
    message, table, sums, frames, HEADER: tl.constexpr, LANES: tl.constexpr, GROUPS: tl.constexpr
):
    """The sum of the whole words of a part of a frame's body, times odd numbers that differ."""
    program = tl.program_id(0)
    lane = tl.arange(0, LANES)
    firsts = tl.load(table + 2 * frames + lane, mask=lane < frames, other=1 << 62)
    frame = tl.sum((firsts <= program).to(tl.int32), axis=0) - 1
    begin = tl.load(table + frame) + HEADER
    words = tl.load(table + frames + frame) // 8
    group = (program - tl.load(table + 2 * frames + frame)) * GROUPS + tl.arange(0, GROUPS)
    word = load_words(message + begin, group, words * 8, 8)
    total = tl.sum(word * (group.to(tl.uint64) * 2 + 1), axis=0)
    tl.store(sums + program, total.to(tl.int64, bitcast=True))


@triton.jit
def _hash(words, constants, out, LANES: tl.constexpr, ROUNDS: tl.constexpr):
    """The first word of BLAKE2b of each row of `words`, one block of which 32 bytes are given.

    The state is four rows of four columns: a, b, c and d. Rotations are written out: a call of a
    function takes the interpreter longer than what is in it.
    """
    lane = tl.arange(0, LANES)
    row = words + lane[:, None] * 16
    none = tl.zeros([LANES, 4], dtype=tl.int32)
    column = tl.arange(0, 4)[None, :] + none
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
            a = a + b + tl.load(row + tl.load(order)).to(tl.uint64, bitcast=True)
            d = d ^ a
            d = (d >> 32) | (d << 32)
            c = c + d
            b = b ^ c
            b = (b >> 24) | (b << 40)
            a = a + b + tl.load(row + tl.load(order + 1)).to(tl.uint64, bitcast=True)
            d = d ^ a
            d = (d >> 16) | (d << 48)
            c = c + d
            b = b ^ c
            b = (b >> 63) | (b << 1)
            # the rows turn against each other, and back
            b = tl.gather(b, by_one if half == 0 else by_three, 1)
            c = tl.gather(c, by_two, 1)
            d = tl.gather(d, by_three if half == 0 else by_one, 1)
    found = tl.where(column == 0, (begun ^ a ^ c) & 0xFFFFFFFF, 0)
    tl.store(out + lane, tl.sum(found, axis=1).to(tl.int64, bitcast=True))
