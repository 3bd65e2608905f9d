"""Words of 32 bits, one per element sent: its index and the number of its level.

Signs: the index in the low 31 bits, bit 31 set for negative. A tensor's positive elements share
a level, as do its negative ones: known to receivers or two float32 before the words (flags = 1).

Powers of two: the index in the low 28 bits, d in bits 30-28, the sign in bit 31, for the value sign
* 2^(e - d), with e the exponent of the largest magnitude, one int8 per tensor. A magnitude is
rounded by adding half of the mantissa's range, clearing the mantissa and capping at 2^e; below 2^(e
- 7) there is no d.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcsim.compressors.bucket import BucketLayout
from gcsim.compressors.coding.checksum import number_at
from gcsim.compressors.coding.frames import Codec, Frames, columns_of, packed, read_ahead
from gcsim.compressors.coding.indices.index_coding import demand_ascending
from gcsim.compressors.coding.integers.packing import damaged
from gcsim.compressors.kernels import KernelCost, spread
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.loops import array, in_tiles, inlined, loop, tensor, written_back
from gcsim.compressors.meter import counted_as, launch
from gcsim.compressors.on_device import primitive
from gcsim.compressors.segments import Column, Segments, starts
from gcsim.errors import InputError

Levels = Tensor | NDArray[np.float64]
LEVELS_INSIDE = 1
SIGN_BITS, POWER_BITS = 31, 28
"""Bits of an index in a word with a sign, and in one with a power of two."""
BIAS, MANTISSA_BITS = 127, 23
DEEPEST = 7
BLOCK = 4096
_MAGNITUDE = np.int32(0x7FFFFFFF)
_EXPONENT = np.int32(0x7F800000)
_HALF = np.int32(0x00400000)
_SIGN = np.int32(-(1 << 31))
LARGEST = 0x7F000000
"""Bit pattern of 2^127, the largest finite power of two."""


def demand_short(segments: Segments, bits: int) -> None:
    """Raise `InputError` if a tensor has too many elements for an index of this many bits."""
    if (most := segments.longest) > 1 << bits:
        raise InputError(f"a tensor of {most} elements: {bits}-bit indices reach 2^{bits}")


# --- messages of signs ----------------------------------------------------------------------------


def signed_message(
    words: Tensor, segments: Segments, k: Column, levels: Tensor | None = None
) -> Tensor:
    """Encode signs, int32 `[sum of k]`, k of each tensor. `levels`, float32 `[tensors, 2]`: each
    tensor's positive and negative level; None if receivers know them."""
    head = segments.column(0 if levels is None else 8)
    flags = 0 if levels is None else LEVELS_INSIDE
    inside = (words[:0] if levels is None else levels.reshape(-1), head)
    return packed(
        words, Codec.SIGNED_INDEX, segments, inside, (words, 4 * k), nonzero=k, flags=flags
    )


def add_signed(
    message: Tensor, layout: BucketLayout, out: Tensor, weight: float,
    levels: tuple[float, float] | None = None,
) -> None:  # fmt: skip
    """Add weight * the level of each sign to `out`, float32 `[layout.numel]`, in place. `levels`:
    (positive, negative); None if they are in the message. Raises `InputError` if the message is
    damaged or foreign."""
    inside = LEVELS_INSIDE if levels is None else 0
    found = read_ahead(message, layout, Codec.SIGNED_INDEX, partial(_demand_words, 8 * inside))
    known = None if levels is None else np.array([levels])
    add_words(out, Segments.of(layout), message, found, 8 * inside, known, weight)


# --- senders --------------------------------------------------------------------------------------


def _reach(segments: Segments) -> str:
    return spread(segments.longest)


def _signed_launches(
    words: Tensor, _: object, segments: Segments, *__: object
) -> Iterable[KernelCost]:
    n, k = segments.length, words.numel()
    name = f"sparse.signed_words:{_reach(segments)}"
    cost = launch("gather_scatter", name, n, 4 * n, 16 * k)
    return (replace(cost, work=max(1, 4 * k)),)


@counted_as(_signed_launches)
@primitive
def signed_words(
    memory: Tensor, segments: Segments, indices: Tensor, values: Tensor, k: Column, levels: Levels
) -> Tensor:
    """Subtract the selected elements' levels from `memory`; return signs, int32 `[sum of k]`.

    Parameters
    ----------
    memory : flat float32 of the table; memory[indices] = values - level
    indices : within the tensor, ascending, int64 `[sum of k]`, k of each tensor
    values : float32 `[sum of k]`
    levels : `[tensors or 1, 2]`, for values >= 0 and for values < 0; used as float32
    """
    demand_short(segments, SIGN_BITS)
    words = np.empty(indices.numel(), dtype=np.uint32)
    each = array(levels) if isinstance(levels, torch.Tensor) else levels.astype(np.float32)
    with written_back(memory) as rest:
        in_tiles(
            _sign_words, segments.tiles_of(k), array(indices), array(values), starts(k),
            segments.table, each, rest, words,
        )  # fmt: skip
    return tensor(words.view(np.int32), memory)


def _clear_launches(
    found: tuple[Tensor, Column, object], _: object, __: object, ___: object, ____: object,
    segments: Segments, *, tau: float | None = None, **_____: object,
) -> Iterable[KernelCost]:  # fmt: skip
    n, moved = segments.length, 4 * found[0].numel()
    if tau is not None:
        yield launch("streaming", "variance_hybrid._add_and_send", n, 24 * n, moved)
        return
    yield launch("streaming", "variance._add_and_find", n, 24 * n)
    name = f"variance_words.take_out:{_reach(segments)}"
    yield replace(launch("gather_scatter", name, n, 8 * n, moved), work=max(1, moved))


@counted_as(_clear_launches)
@primitive
def clear_words(
    residual: Tensor, moment: Tensor, gradient: Tensor, second_moment: Tensor, segments: Segments,
    *, alpha: float, zeta: float, tau: float | None = None,
) -> tuple[Tensor, Column, Tensor | None]:  # fmt: skip
    """r += g, v += moment; send and remove clear elements, r^2 > alpha v; then v decays by zeta.
    Return (words, int32 `[sum of k]`; k of each tensor; exponents of powers, int8 `[tensors]`).

    Parameters
    ----------
    residual, moment, gradient, second_moment : flat float32 of the table; the first two in place
    alpha : the criterion is evaluated in float64; no |r| below 2^-126 is clear
    tau : only |r| > tau is clear, and its sign times tau is removed; None: a power of two is sent,
        and r and v become 0
    """
    demand_short(segments, POWER_BITS if tau is None else SIGN_BITS)
    tiles, table, decay = segments.tiles, segments.table, np.float32(zeta)
    words, exponents = np.empty(residual.numel(), dtype=np.int32), None
    counts, tops = np.zeros(len(tiles), dtype=np.int64), np.zeros(len(tiles), dtype=np.int32)
    with written_back(residual) as sums, written_back(moment) as squares:
        in_tiles(
            _find_clear, tiles, table, sums, squares, np.ascontiguousarray(array(gradient)),
            np.ascontiguousarray(array(second_moment)), np.float64(alpha), least_clear(tau), decay,
            words, counts, tops,
        )  # fmt: skip
        if tau is not None:
            in_tiles(
                _take_signs, tiles, table, sums, squares, np.float32(tau), decay, words, counts
            )
        else:
            largest = np.zeros(len(table), dtype=np.int32)
            np.maximum.at(largest, tiles[:, 0], tops)
            # e = 0 if nothing is clear; an infinite magnitude counts as 2^127
            caps = np.minimum(np.where(largest == 0, BIAS << MANTISSA_BITS, largest), LARGEST)
            caps = caps.astype(np.int32) & _EXPONENT
            in_tiles(
                _take_powers, tiles, table, sums.view(np.int32), squares, caps, decay, words, counts
            )
            exponents = tensor(((caps >> MANTISSA_BITS) - BIAS).astype(np.int8), residual)
    return *_joined(words, segments, counts, residual), exponents


def least_clear(tau: float | None) -> np.float32:
    """Return the magnitude that clear elements must exceed."""
    # the test is >, so take the number just below 2^-126, which must itself pass
    return np.nextafter(np.float32(2.0**-126), np.float32(0)) if tau is None else np.float32(tau)


def _joined(
    words: NDArray[np.int32], segments: Segments, counts: Column, like: Tensor
) -> tuple[Tensor, Column]:
    """Return (the first `counts[tile]` words of each tile, concatenated; words per tensor)."""
    owners, k = segments.tiles[:, 0], np.zeros_like(segments.length)
    begins = (segments.begin[owners] + segments.tiles[:, 1]).tolist()
    pairs = zip(begins, counts.tolist(), strict=True)
    np.add.at(k, owners, counts)
    return tensor(np.concatenate([words[:0], *(words[b : b + n] for b, n in pairs)]), like), k


# --- receivers ------------------------------------------------------------------------------------


def add_powers(message: Tensor, layout: BucketLayout, out: Tensor, weight: float) -> None:
    """Add weight * powers of two to `out` in place; `InputError` if damaged or foreign."""
    found = read_ahead(message, layout, Codec.VARIANCE, partial(_demand_words, 1))
    exact = float(np.float32(weight))  # so that weight times a power of two is rounded only once
    add_words(out, Segments.of(layout), message, found, 1, None, exact)


@cache
def powers() -> NDArray[np.float64]:
    """Return the levels of each exponent from -128 on, `[256, 16]`: 2^e, ... 2^(e - 7), then their
    negatives; NaN for powers below float32's normal numbers."""
    power = np.arange(-128, 128)[:, None] - np.arange(DEEPEST + 1)
    level = np.where(power + BIAS < 1, np.nan, np.ldexp(1.0, power))
    return np.concatenate((level, -level), axis=1)


def _adding_launches(
    _: object, __: object, segments: Segments, ___: object, found: Frames | Tensor, head: int,
    *____: object,
) -> Iterable[KernelCost]:  # fmt: skip
    n = int(columns_of(found).nonzero.sum())
    for nbytes in (head * len(segments.table), 4 * n):
        if nbytes:
            yield launch("streaming", "aten.cat", nbytes, 2 * nbytes)
    name, each = ("variance_words._add_words", 4) if head == 1 else ("sparse._add_signs", 12)
    yield launch("gather_scatter", f"{name}:{_reach(segments)}", n, each * n)


@counted_as(_adding_launches)
@primitive
def add_words(
    out: Tensor, segments: Segments, message: Tensor, found: Frames | Tensor, head: int,
    levels: NDArray[np.float64] | None, weight: float,
) -> None:  # fmt: skip
    """out += weight * level of each word, in place. Raises `InputError` when indices do not ascend
    below the tensor's length, or a level is NaN; `out` is then worthless.

    Parameters
    ----------
    out : flat float32 of the table
    found : headers of the message, by `read_ahead`
    head : bytes before the words: 0, where `levels` are the positive and the negative one; of signs
        8, the levels as two float32; of powers of two 1, their exponent
    """
    frames, wrong = columns_of(found), np.zeros(2, dtype=np.uint8)
    known, data = powers() if levels is None else levels, array(message)
    with written_back(out) as target:
        in_tiles(
            _scatter_words, segments.tiles_of(frames.nonzero), data, frames.at, segments.table,
            head, known, weight, index_bits(head), target, wrong,
        )  # fmt: skip
    demand_right(wrong[0], wrong[1])


def _demand_words(head: int, found: Frames) -> None:
    if head != 1 and np.count_nonzero(found.flags != (LEVELS_INSIDE if head else 0)):
        raise InputError(f"damaged payload: flags {found.flags} of frames of signed indices")
    found.demand_sizes(head + 4 * found.nonzero)


def index_bits(head: int) -> int:
    """Return the bits of the index in words that follow a head of this many bytes."""
    return POWER_BITS if head == 1 else SIGN_BITS


def demand_right(unordered: int, strange: int) -> None:
    """Raise `InputError` if words do not ascend, or a level is NaN."""
    demand_ascending(unordered)
    if strange:
        raise damaged("a level is no normal float32")


@loop
def _sign_words(start, stop, tiles, indices, values, firsts, table, levels, memory, words):
    for tile in range(start, stop):
        t, first, last = tiles[tile]
        some = slice(firsts[t] + first, firsts[t] + last)
        index, value, word = indices[some], values[some], words[some]
        own = memory[table[t, 0] : table[t, 0] + table[t, 1]]
        row = levels[t % len(levels)]
        positive, negative = row[0], row[1]
        for i in range(index.size):
            minus = value[i] < np.float32(0)
            own[index[i]] = value[i] - (negative if minus else positive)
            word[i] = np.uint32(index[i]) | (np.uint32(0x80000000) if minus else np.uint32(0))


@loop
def _list_chosen(chosen, first, size, words, at):
    """List a block's chosen elements, numbered from `first`, in words[at:]; return the end of the
    list. `chosen` is uint8, 0 or 1, and zero past `size`."""
    eights = chosen.view(np.uint64)
    for j in range(-(-size // 8)):
        # a single test skips eight elements of which none is chosen
        if eights[j]:
            for i in range(8 * j, min(8 * j + 8, size)):
                words[at] = np.int32(first + i)  # unpredictable, so no branch
                at += chosen[i]  # if 0, the next index overwrites it
    return at


@loop
def _find_clear(
    start, stop, tiles, table, residual, moment, gradient, second_moment, alpha, least, zeta, found,
    counts, tops,
):  # fmt: skip
    """Find each tile's clear indices and largest magnitude; v decays only elsewhere."""
    clear = np.zeros(BLOCK, dtype=np.uint8)
    sizes = np.empty(BLOCK, dtype=np.float32)
    bits = sizes.view(np.int32)
    for tile in range(start, stop):
        t, begin, end = tiles[tile]
        place = at = table[t, 0] + begin
        top = np.int32(0)
        for first in range(begin, end, BLOCK):
            some = slice(table[t, 0] + first, table[t, 0] + min(first + BLOCK, end))
            r, v, g, m = residual[some], moment[some], gradient[some], second_moment[some]
            clear[r.size :] = 0  # past a short last block, where old flags remain
            for i in range(r.size):
                total = r[i] + g[i]
                second = v[i] + m[i]
                r[i] = total
                wide = np.float64(total)
                chosen = (wide * wide > alpha * np.float64(second)) & (abs(total) > least)
                # the next loop needs the undecayed v of clear elements
                v[i] = second if chosen else zeta * second
                clear[i] = chosen
                sizes[i] = abs(total) if chosen else np.float32(0)
            for i in range(r.size):
                top = max(top, bits[i])  # floats of one sign order as integers
            at = _list_chosen(clear, first, r.size, found, at)
        counts[tile] = at - place
        tops[tile] = top


@loop
def _take_signs(start, stop, tiles, table, residual, moment, tau, zeta, found, counts):
    """Replace each tile's indices by their signs, and subtract tau."""
    for tile in range(start, stop):
        t, begin, _ = tiles[tile]
        own = slice(table[t, 0], table[t, 0] + table[t, 1])
        r, v, words = residual[own], moment[own], found[own]
        for i in range(begin, begin + counts[tile]):
            index = words[i]
            total = r[index]
            # v loses as much as r^2: r^2 - (|r| - tau)^2 = (2 |r| - tau) tau
            corrected = v[index] - (np.float32(2) * abs(total) - tau) * tau
            v[index] = zeta * max(corrected, np.float32(0))
            r[index] = total - (tau if total > 0 else -tau)
            words[i] = index | (np.int32(0) if total > 0 else _SIGN)


@inlined
def encode_word(bits, index, cap) -> tuple[Any, Any]:
    """Round a float32, given as int32 bits, half up to a power of two of at most `cap` (bits of a
    power of two): return its word, and whether its d <= 7 fits. For loops."""
    rounded = min(((bits & _MAGNITUDE) + _HALF) & _EXPONENT, cap)
    depth = (cap - rounded) >> np.int32(MANTISSA_BITS)
    word = index | (depth << np.int32(POWER_BITS)) | (bits & _SIGN)
    return word, depth <= np.int32(DEEPEST)


@loop
def _take_powers(start, stop, tiles, table, residual, moment, caps, zeta, found, counts):
    """Replace each tile's indices by their words if these fit; r is given as int32."""
    for tile in range(start, stop):
        t, begin, _ = tiles[tile]
        own = slice(table[t, 0], table[t, 0] + table[t, 1])
        r, v, words, at = residual[own], moment[own], found[own], begin
        for i in range(begin, begin + counts[tile]):
            index = words[i]
            word, fits = encode_word(r[index], index, caps[t])
            words[at] = word
            at += fits  # a word that does not fit is overwritten by the next
            r[index] &= ~(-np.int32(fits))  # mask of all bits or none, without a branch
            v[index] = np.float32(0) if fits else zeta * v[index]
        counts[tile] = at - begin


@loop
def _scatter_words(
    start, stop, tiles, message, begins, table, head, known, weight, bits, out, wrong
):
    shift, low = np.uint64(bits), np.uint64((1 << bits) - 1)
    inside, level = np.empty(2, dtype=np.float32), np.empty(known.shape[1], dtype=np.float32)
    for tile in range(start, stop):
        t, first, last = tiles[tile]
        target = out[table[t, 0] : table[t, 0] + table[t, 1]]
        body = message[begins[t] : begins[t] + head + 4 * last]
        # the exponent is an int8: flipping its highest bit maps -128 to row 0 of `powers`
        row = np.int64(body[0] ^ np.uint8(128)) if head == 1 else 0
        for j in range(level.size):
            level[j] = known[row, j] * weight
        if head == 8:
            inside.view(np.uint8)[:] = body[:8]
            level[0], level[1] = inside[0] * weight, inside[1] * weight
        own = body[head:]
        # a tile must begin above the last index of the previous tile
        before = np.int64(number_at(own, 4 * first - 4, 4) & low) if first > 0 else np.int64(-1)
        for i in range(first, last):
            word = number_at(own, 4 * i, 4)
            at = np.int64(word & low)
            if at <= before or at >= target.size:
                wrong[0] = 1
                break
            # the bits above the index number the level: a sign, or a sign and d
            value = level[word >> shift]
            if np.isnan(value):
                wrong[1] = 1
            target[at] += value
            before = at
