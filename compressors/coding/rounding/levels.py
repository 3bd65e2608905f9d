"""Rounding of a bucket's elements to levels, mostly at random without bias.

Cells of `size` consecutive elements (the last may be shorter) share a norm, or have own levels. An
element becomes the code of a neighbouring level; a form (`digits.py`) packs the codes. Kinds:

- `even`: norm * q / s, q = -s … s, codes q + s (Alistarh et al. 2017, "QSGD", arXiv:1610.02132):
  q = floor(s v / norm + u);
- `known`: norm * l_j of a table that all workers know, -1 = l_0 < … < l_k = 1: the code counts the
  neighbours with l_j + u (l_{j+1} - l_j) < v / norm;
- `own`: the cell's own levels l_j, which travel along: the code counts the j with v - l_j > u
  (l_{j+1} - l_j); both sides times 2^24, for gaps that are denormal numbers, or times 1/4 where
  levels are so large that their distance would overflow;
- `powers`: powers of two in 8 bits, or `exponents` of 8 bits and signs (`floats/powers.py`);
- `tree`: the nearest of 255 values (there too).

u = (r + 1/2) / 65536, from 16 random bits r per element, is compared with all gaps at once: those
below v are counted, those above are not, and its own with the right probability to 2^-17 (plus
float32 rounding of the quotient, at most s 2^-23 with even levels). Due to the half an element that
equals a level stays. Elements outside the levels saturate; a zero norm decodes to zeros. Values
become packed codes in one pass, `CHUNK` elements at a time, within the processor's cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcsim.compressors.coding.floats.powers import (
    add_exponents,
    add_power_codes,
    power_codes,
    sign_codes,
    tree_codes,
)
from gcsim.compressors.coding.frames import Frames, frames, put, seal, taken
from gcsim.compressors.coding.integers.digits import Form, get_chunk, put_chunk
from gcsim.compressors.coding.integers.packing import damaged, packed_bytes
from gcsim.compressors.kernels import KernelCost
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.loops import array, in_tiles, inlined, loop, written_back
from gcsim.compressors.meter import counted_as, drawn, launch
from gcsim.compressors.on_device import primitive
from gcsim.compressors.random import bits64
from gcsim.compressors.segments import Cells, Column

Table = NDArray[np.float32]

MAX_STEPS = 127
"""Largest s: codes fit a byte, and a quotient plus a random fraction is exact in float32."""
CHUNK = 2048
"""Elements that are processed together in the cache: a multiple of eight."""
COUNTED = 32
"""Tables of up to this many levels are searched by counting, longer ones from a range."""
EVEN, KNOWN, OWN, POWERS, TREE, EXPONENTS = range(6)
_NAMES = {
    EVEN: ("levels.encode_levels", "levels.add_packed_levels"),
    KNOWN: ("tables.encode_table", "tables.add_table"),
    OWN: ("bucket_levels.round_between", "bucket_levels._add_from_tables"),
    POWERS: ("natural.to_powers", "natural.add_powers"),
    EXPONENTS: ("natural.to_powers", "natural.add_powers"),
    TREE: ("dynamic_8bit.nearest_codes", "narrow_floats.add_looked_up"),
}
STRAY = 256
"""Marks damage: a group that is not made of digits, or bits after the last code."""
_RANGE_BITS = 18
"""Numbers that differ only in this many low bits form a range."""
_TOGETHER = 4
"""Number of pairs of levels that are counted together."""
_HALF = np.float32(2.0**-17)
_UNIT = np.float32(2.0**-16)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Levels:
    kind: int
    cells: Cells
    numbers: Any = None
    """Float32 `[cells]`, or own levels `[cells, levels]`, ascending; or a uint8 message."""
    places: Column | None = None
    """First byte of each tensor's numbers, if they are in a message."""
    width: int = 1
    """Number of values per cell."""
    steps: int = 1
    """s of `even`."""
    tables: Sequence[Table] = ()
    """Tables of `known`, all of the same length."""
    chosen: Column | Tensor | None = None
    """Index of each tensor's table; for `add_rounded`, possibly on the device."""

    @property
    def highest(self) -> int:
        ends = {
            EVEN: 2 * self.steps,
            KNOWN: len(self.tables[0]) - 1 if self.tables else 0,
            OWN: self.width - 1,
        }
        return ends.get(self.kind, 255)

    def of_cells(self) -> NDArray[np.float32]:
        """Return the numbers in host memory: float32 `[cells, width]`."""
        numbers = self.numbers
        if numbers is None:
            return np.zeros((0, 1), dtype=np.float32)
        if self.places is not None:
            sizes = 4 * self.width * self.cells.count
            numbers = taken(numbers, self.places, sizes, torch.float32)
        return np.ascontiguousarray(array(numbers)).reshape(-1, self.width)

    def chosen_tables(self) -> Column:
        return self.cells.segments.column(0 if self.chosen is None else self.chosen)

    def tiles(self, form: Form) -> NDArray[np.int64]:
        segments = self.cells.segments
        return segments.tiles if form.size == 1 else segments.tiles_of(form.planes(segments.length))

    def moved(self, form: Form) -> tuple[Column, Column]:
        """Return the bytes of each tensor's numbers and codes that a pass moves."""
        length, counted = self.cells.segments.length, self.kind in (EVEN, KNOWN, OWN)
        coded = form.nbytes(length)
        if self.kind == EXPONENTS:
            coded = coded + packed_bytes(length, 1)
        return 4 * self.width * self.cells.count * counted, coded


def even(cells: Cells, norms: Tensor, steps: int, places: Column | None = None) -> Levels:
    """Return the levels norm * q / s; norms are float32 `[cells]`, s is 1 to 127."""
    return Levels(kind=EVEN, cells=cells, numbers=norms, places=places, steps=steps)


def own(cells: Cells, tables: Tensor, width: int, places: Column | None = None) -> Levels:
    """Return levels with a table for each cell: float32 `[cells, width]`, ascending."""
    return Levels(kind=OWN, cells=cells, numbers=tables, places=places, width=width)


# --- messages -------------------------------------------------------------------------------------


def encoded(
    values: Tensor, levels: Levels, keys: NDArray[np.uint64], codec: int, form: Form,
    bounds: Tensor | None = None, **columns: Any,
) -> Tensor:  # fmt: skip
    """Encode a gradient rounded to levels: numbers, then codes; `columns` as in `frames`."""
    head, tail = levels.moved(form)
    message, at = frames(values, codec, levels.cells.segments, head + tail, **columns)
    put(message, at, levels.numbers.view(-1), head)
    round_levels(values, levels, keys, message, at + head, form, bounds)
    return seal(message, at, head + tail)


def add_encoded(out: Tensor, levels: Levels, found: Frames, form: Form, weight: float) -> None:
    """Undo `encoded` and add weight * values to `out`; raises as `add_rounded`."""
    head, tail = levels.moved(form)
    found.demand_sizes(head + tail)
    add_rounded(out, levels, levels.numbers, found.at + head, form, weight)


def _rounding(
    _: object, values: object, levels: Levels, keys: object, out: object, at: object, form: Form,
    bounds: object = None,
) -> Iterator[KernelCost]:  # fmt: skip
    n, name = levels.cells.segments.length, _NAMES[levels.kind][0]
    if levels.kind != TREE:
        yield drawn(name, n, 16)
    numbers, coded = levels.moved(form)
    most = np.maximum(n, numbers // 4)
    yield launch("streaming", name, np.maximum(most, coded), 4 * n, numbers, coded)


@counted_as(_rounding)
@primitive
def round_levels(
    values: Tensor, levels: Levels, keys: NDArray[np.uint64] | None, out: Tensor, at: Column,
    form: Form, bounds: Tensor | None = None,
) -> None:  # fmt: skip
    """Round the elements of a flat float32 to levels and write their codes, in one pass.

    Parameters
    ----------
    keys : for each tensor's random bits (`random_key`); None for `tree`
    out, at : uint8 to write to; first byte of each tensor's codes
    form : of the codes; with `exponents` the signs may follow, one bit each
    bounds : float32 `[cells]`: elements are clipped to [-bound, bound] first (`even`)
    """
    cells, segments = levels.cells, levels.cells.segments
    drawn_by = np.zeros(len(segments.table), dtype=np.uint64) if keys is None else keys
    within = np.full(cells.total, np.inf, dtype=np.float32) if bounds is None else array(bounds)
    given: Any = _searches(levels) if levels.kind == KNOWN else np.float32(levels.steps)
    with written_back(out) as target:
        in_tiles(
            _rounding_walk(levels.kind), levels.tiles(form),
            np.ascontiguousarray(array(values)), segments.table, cells.first, cells.size,
            levels.of_cells(), given, drawn_by, within, *form, target, at,
        )  # fmt: skip


def _adding(
    _: object, out: object, levels: Levels, packed: object, at: object, form: Form, weight: float
) -> Iterator[KernelCost]:
    n, (numbers, coded) = levels.cells.segments.length, levels.moved(form)
    most = np.maximum(np.maximum(n, numbers // 4), coded)
    yield launch("streaming", _NAMES[levels.kind][1], most, 8 * n, numbers, coded)


@counted_as(_adding)
@primitive
def add_rounded(
    out: Tensor, levels: Levels, packed: Tensor, at: Column, form: Form, weight: float
) -> None:
    """Add weight * the levels of the codes from byte `at` on to `out`, a flat float32, in place.
    Raises `InputError` for a code past the last level, a group that is not made of digits, or bits
    after the last code; `out` is then undefined."""
    cells, segments = levels.cells, levels.cells.segments
    tiles = levels.tiles(form)
    highest = np.zeros(len(tiles), dtype=np.int64)
    factor = np.float32(weight / levels.steps if levels.kind == EVEN else weight)
    given: Any = np.float32(levels.steps)
    if levels.kind == KNOWN:
        tables = np.zeros((len(levels.tables), 256), dtype=np.float32)  # any byte is a valid index
        tables[:, : len(levels.tables[0])] = levels.tables
        given = tables, levels.chosen_tables()
    with written_back(out) as target:
        in_tiles(
            _adding_walk(levels.kind), tiles, np.ascontiguousarray(array(packed)), at,
            segments.table, cells.first, cells.size, levels.of_cells(), given, factor,
            *form, target, highest,
        )  # fmt: skip
    demand_codes(int(highest.max(initial=0)), levels)


def demand_codes(highest: int, levels: Levels) -> None:
    """Raise `InputError` for a code past the last level, or `STRAY`."""
    if highest >= STRAY:
        raise damaged("padding after the last code is not zero, or a group is not made of digits")
    if highest > levels.highest:
        raise damaged(f"code {highest} where levels end at {levels.highest}")


# --- the walk over cells: to codes ----------------------------------------------------------------


@cache
def _rounding_walk(kind: int) -> Callable[..., None]:
    """Compile the loop that rounds to levels of one kind; codes are stored in groups of digits, as
    bytes, or bit-packed."""

    @loop
    def walk(  # noqa: PLR0912
        start, stop, tiles, values, table, firsts, sizes, numbers, given, keys, bounds, group, bits,
        base, out, places,
    ):  # fmt: skip
        grouped, whole = group > 1, group == 1 and bits == 8
        # a plane may begin inside a word of four elements, so a run may need one word more
        words = np.empty(CHUNK // 4 + 2, dtype=np.uint64)
        room = np.empty((2, CHUNK), dtype=np.float32)
        groups = np.empty(CHUNK, dtype=np.uint16)
        halves, codes = groups.view(np.uint8), np.empty(CHUNK, dtype=np.uint8)
        for tile in range(start, stop):
            t, start_of, stop_of = tiles[tile]
            begin, n = table[t]
            own, cells = values[begin : begin + n], numbers[firsts[t] :]
            within = bounds[firsts[t] :]
            # tiles count groups of digits if there are any, else elements
            plane = (n + group - 1) // group
            body = out[places[t] : places[t] + (plane * bits + 7) // 8]
            for first in range(start_of, stop_of, CHUNK):
                length = min(CHUNK, stop_of - first)
                # digit j of group g is element j * plane + g; Horner's rule, highest digit first
                for j in range(group - 1, -1, -1):
                    # the last planes may be short or empty: missing digits are 0
                    at = min(j * plane + first, n)
                    target = codes[: min(length, n - at)]
                    if whole:
                        target = body[first : first + length]
                    _round_run(
                        kind, own, at, target, cells, sizes[t], given, t, keys, within, words, room
                    )
                    if grouped:
                        for i in range(length):
                            last = j == group - 1
                            groups[i] = np.uint16(0) if last else groups[i] * np.uint16(base)
                        for i in range(target.size):
                            groups[i] += target[i]
                if kind == EXPONENTS:
                    # `codes` is free: exponents are whole bytes, which went straight to the body
                    sign_codes(own[first : first + length], codes)
                    signs = out[places[t] + n : places[t] + n + (n + 7) // 8]
                    put_chunk(codes, length, 1, first, signs)
                if grouped and bits == 16:
                    for i in range(2 * length):
                        body[2 * first + i] = halves[i]
                elif not whole:
                    if grouped:
                        for i in range(length):
                            codes[i] = np.uint8(groups[i])
                    put_chunk(codes, length, bits, first, body)

    return walk


@inlined
def _round_run(kind, values, first, codes, cells, size, given, t, keys, bounds, words, room):
    """Write the codes of the elements from `first` on, cell by cell."""
    # element i always uses number i % 4 of word i // 4, wherever its run begins
    word, end = first // 4, first + codes.size
    if kind != TREE:
        _draw(keys[t], word, words[: (end + 3) // 4 - word])
    fractions = words.view(np.uint16)[first - 4 * word :]
    at = first
    if kind in (POWERS, EXPONENTS):  # no cells
        power_codes(values[first:end], fractions, kind == POWERS, codes)
        at = end
    while at < end:
        cell = at // size
        stop = min((cell + 1) * size, end)
        some, part = slice(at - first, stop - first), values[at:stop]
        if kind == EVEN:
            round_evenly(part, cells[cell, 0], fractions[some], given, bounds[cell], codes[some])
        elif kind == KNOWN:
            _round_known(part, cells[cell, 0], fractions[some], given, t, room, codes[some])
        elif kind == OWN:
            _round_between(part, cells[cell], fractions[some], room, codes[some])
        else:
            tree_codes(part, cells[cell, 0], codes[some])
        at = stop


@inlined
def _draw(key, first, words):
    for k in range(words.size):  # 64 random bits hold 16 for each of four elements
        words[k] = bits64(key, first + k)


@inlined
def round_evenly(values, norm, fractions, steps, bound, codes):
    """Write the codes q + s of one cell's elements, with 16 random bits each; others saturate."""
    one = np.float32(1)
    # avoids 0 / 0: a zero norm decodes to zeros anyway
    if norm == np.float32(0):
        norm = one
    for i in range(values.size):
        share = min(max(values[i], -bound), bound) / norm
        level = min(max(share, -one), one) * steps  # -s … s
        # rounds up with the remainder's probability: fractions are uniform on 2^-17, 3 2^-17, …
        level = np.floor(level + (np.float32(fractions[i]) * _UNIT + _HALF))
        codes[i] = np.uint8(np.int32(level + steps))


@loop
def _round_known(values, norm, fractions, searches, t, room, codes):
    lowers, gaps, ranges, mosts, chosen = searches
    lower, gap = lowers[chosen[t]], gaps[chosen[t]]
    shares, random = room[0, : values.size], room[1, : values.size]
    one = np.float32(1)
    if norm == np.float32(0):
        norm = one
    for i in range(values.size):
        shares[i] = min(max(values[i] / norm, -one), one)
        random[i] = np.float32(fractions[i]) * _UNIT + _HALF
    if lower.size > COUNTED:
        _search(shares, random, lower, gap, ranges[chosen[t]], mosts[chosen[t]], codes)
    else:
        _count(shares, random, lower, gap, codes)


@loop
def _count(shares, random, lower, gaps, codes):
    # four pairs at a time over the whole run: vectorised, without a search
    codes[:] = 0
    for pair in range(0, lower.size, _TOGETHER):
        low = lower[pair : pair + _TOGETHER]
        gap = gaps[pair : pair + _TOGETHER]
        low0, low1, low2, low3 = low[0], low[1], low[2], low[3]
        gap0, gap1, gap2, gap3 = gap[0], gap[1], gap[2], gap[3]
        for i in range(shares.size):
            share, u = shares[i], random[i]
            found = np.int32(low0 + u * gap0 < share) + np.int32(low1 + u * gap1 < share)
            found += np.int32(low2 + u * gap2 < share) + np.int32(low3 + u * gap3 < share)
            codes[i] += np.uint8(found)


@loop
def _search(shares, random, lower, gaps, ranges, most, codes):
    bits = shares.view(np.uint32)
    for i in range(shares.size):  # the highest bits of a share give a range of few levels
        codes[i] = ranges[bits[i] >> np.uint32(_RANGE_BITS)]
    # `most` steps reach the last level not above the share; padding after the pairs is infinite
    for _ in range(most):
        for i in range(shares.size):
            codes[i] += np.uint8(lower[np.int32(codes[i]) + 1] <= shares[i])
    for i in range(shares.size):
        # lower pairs count, higher ones do not: only the share's own pair is random
        codes[i] += np.uint8(lower[codes[i]] + random[i] * gaps[codes[i]] < shares[i])


@inlined
def magnifier(largest):
    """Return the factor for both sides of a comparison between own levels of largest magnitude
    `largest`: a gap of up to twice that must not overflow. For loops."""
    return np.float32(2.0**24) if largest < np.float32(1e30) else np.float32(0.25)


@loop
def _round_between(values, levels, fractions, room, codes):
    scaled, random = room[0, : values.size], room[1, : values.size]
    # levels ascend, so the first or last has the largest magnitude
    scale = magnifier(max(abs(levels[0]), abs(levels[-1])))
    for i in range(values.size):
        random[i] = np.float32(fractions[i]) * _UNIT + _HALF
        scaled[i] = values[i] * scale
        codes[i] = 0
    for j in range(levels.size - 1):
        low = levels[j] * scale
        gap = levels[j + 1] * scale - low
        for i in range(values.size):
            codes[i] += np.uint8(scaled[i] - low > random[i] * gap)


# --- the walk over cells: from codes --------------------------------------------------------------


@cache
def _adding_walk(kind: int) -> Callable[..., None]:  # noqa: PLR0915
    @loop
    def walk(  # noqa: PLR0912, PLR0915 - one walk, whatever the levels are
        start, stop, tiles, data, places, table, firsts, sizes, numbers, given, weight, group, bits,
        base, out, highest,
    ):  # fmt: skip
        grouped, whole = group > 1, group == 1 and bits == 8
        inverse, divisor = np.float32(1) / np.float32(base), np.int32(base)
        rest = np.empty(CHUNK, dtype=np.int32)
        codes = np.empty(CHUNK, dtype=np.uint8)
        # a cell's levels, with room for any byte as index; or bit patterns of powers
        room = np.zeros(CHUNK, dtype=np.float32)
        pattern = room.view(np.uint32)
        for tile in range(start, stop):
            t, start_of, stop_of = tiles[tile]
            begin, n = table[t]
            sums, cells = out[begin : begin + n], numbers[firsts[t] :]
            plane = (n + group - 1) // group
            body = data[places[t] : places[t] + (plane * bits + 7) // 8]
            signs = body[:0]
            if kind == EXPONENTS:
                signs = data[places[t] + n : places[t] + n + (n + 7) // 8]
            most, stray = np.uint8(0), np.int32(0)
            for first in range(start_of, stop_of, CHUNK):
                length = min(CHUNK, stop_of - first)
                if grouped and bits == 16:
                    wide = body[2 * first : 2 * (first + length)]
                    for i in range(length):
                        rest[i] = np.int32(wide[2 * i]) | (np.int32(wide[2 * i + 1]) << np.int32(8))
                elif not whole:
                    found = get_chunk(body, first, length, bits, codes)
                    if grouped:
                        for i in range(length):
                            rest[i] = codes[i]
                    else:
                        most = max(most, found)
                if kind == EXPONENTS:
                    get_chunk(signs, first, length, 1, codes)
                for j in range(group):
                    at = min(j * plane + first, n)
                    source = codes[: min(length, n - at)]
                    if grouped:
                        for i in range(length):
                            # Exact: (x + 1/2) / base is at least 1 / (2 base) from the next whole
                            # number, and float32 is accurate to 2^-10 for x < 2^16.
                            quotient = np.int32((np.float32(rest[i]) + np.float32(0.5)) * inverse)
                            codes[i] = np.uint8(rest[i] - quotient * divisor)
                            rest[i] = quotient
                        for i in range(source.size, length):  # digits after the last
                            stray |= np.int32(codes[i])
                    if whole:
                        source = body[first : first + length]
                    # the other kinds know every byte; `get_chunk` has checked packed codes
                    if kind < POWERS and (grouped or whole):
                        for i in range(source.size):
                            most = max(most, source[i])
                    if kind == EXPONENTS:
                        add_exponents(sums[first : first + length], source, codes, weight, pattern)
                    elif kind == POWERS:
                        add_power_codes(sums[first : first + length], source, weight, pattern)
                    else:
                        _add_run(kind, sums, at, source, cells, sizes[t], given, t, weight, room)
                # a group of base^size or more leaves a remainder after its last digit
                if grouped:
                    for i in range(length):
                        stray |= rest[i]
            # the tile with a tensor's last group checks the bits after it
            used = plane * bits % 8
            if stop_of == plane and used > 0:
                stray |= np.int32(body[-1] >> np.uint8(used))
            if stop_of == n and signs.size > 0 and n % 8 > 0:
                stray |= np.int32(signs[-1] >> np.uint8(n % 8))
            highest[tile] = STRAY if stray > 0 else np.int64(most)

    return walk


@inlined
def _add_run(kind, sums, first, codes, cells, size, given, t, weight, room):
    at, end = first, first + codes.size
    while at < end:
        cell = at // size
        stop = min((cell + 1) * size, end)
        part, some = sums[at:stop], codes[at - first : stop - first]
        if kind == EVEN:
            factor = weight * cells[cell, 0]  # the weight is already divided by s
            for i in range(part.size):
                part[i] += (np.float32(some[i]) - given) * factor
        elif kind == KNOWN:
            tables, chosen = given
            levels, factor = tables[chosen[t]], weight * cells[cell, 0]
            for i in range(part.size):
                part[i] += levels[some[i]] * factor
        else:
            for j in range(cells.shape[1]):
                room[j] = weight * cells[cell, j]
            for i in range(part.size):
                part[i] += room[some[i]]
        at = stop


# --- tables that all workers know -----------------------------------------------------------------


def _searches(levels: Levels) -> tuple[NDArray[Any], ...]:
    """Return lower levels and gaps of pairs and the ranges, by table; each tensor's table index."""
    rows = [_search_of(each.tobytes()) for each in levels.tables]
    lower, gaps, first, most = (np.stack(each) for each in zip(*rows, strict=True))
    return lower, gaps, first, most, levels.chosen_tables()


@lru_cache(maxsize=1 << 6)
def _search_of(content: bytes) -> tuple[Table, Table, NDArray[np.uint8], int]:
    """Return a table's (lower levels of pairs; gaps; last level not above any number of each range;
    most levels in a range)."""
    levels = np.frombuffer(content, dtype=np.float32)
    pairs, long = levels.size - 1, levels.size > COUNTED
    room = 1 << 8 if long else -(-pairs // _TOGETHER) * _TOGETHER
    lower = np.full(room, np.inf, dtype=np.float32)  # a pair at infinity never counts
    gaps = np.zeros(room, dtype=np.float32)
    lower[:pairs], gaps[:pairs] = levels[:-1], np.diff(levels)
    if not long:
        return lower, gaps, np.zeros(0, dtype=np.uint8), 0
    first = np.arange(1 << (32 - _RANGE_BITS), dtype=np.uint32) << np.uint32(_RANGE_BITS)
    ends = np.stack((first, first | np.uint32((1 << _RANGE_BITS) - 1))).view(np.float32)
    # for negative numbers a larger pattern is a smaller number
    ends.sort(axis=0)
    ends[:, ~(np.abs(ends[0]) <= 1)] = -1  # other numbers do not occur
    # last levels not above a range's smallest and largest number: a search covers the distance
    start, last = np.searchsorted(lower, ends, side="right").clip(min=1) - 1
    return lower, gaps, start.astype(np.uint8), int((last - start).max())
