"""Two bits an element, as in MXNet: 0 stands for zero, 2 for -tau and 3 for tau.

Four elements are a byte, the first of them in its lowest bits.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from gcsim.compressors.coding.integers.packing import damaged, packed_bytes
from gcsim.compressors.kernels import KernelCost
from gcsim.compressors.lazy_torch import Tensor
from gcsim.compressors.loops import array, in_tiles, loop, written_back
from gcsim.compressors.meter import counted_as, launch
from gcsim.compressors.on_device import primitive
from gcsim.compressors.segments import Column, Segments

_BLOCK = 4096


def _coding_launches(
    _: object, __: object, ___: object, segments: Segments, *____: object
) -> Iterable[KernelCost]:
    n = int(segments.length.sum())
    size = packed_bytes(segments.length, 2).sum()
    return (launch("streaming", "strom.two_bits", n, 12 * n, size),)


@counted_as(_coding_launches)
@primitive
def two_bits(
    memory: Tensor, gradient: Tensor, segments: Segments, tau: float, out: Tensor, at: Column
) -> None:
    """memory += gradient, and two bits an element of it, whose value is then taken out.

    Memory and gradient are flat float32 of the table; the bits of each tensor begin at byte `at` of
    `out`.
    """
    with written_back(memory) as rest, written_back(out) as packed:
        in_tiles(
            _code, segments.tiles, segments.table, rest, np.ascontiguousarray(array(gradient)),
            np.float32(tau), packed, at,
        )  # fmt: skip


def _adding_launches(
    _: object, __: object, segments: Segments, *___: object
) -> Iterable[KernelCost]:
    n = int(segments.length.sum())
    return (launch("streaming", "strom._add", n, 8 * n, packed_bytes(segments.length, 2).sum()),)


@counted_as(_adding_launches)
@primitive
def add_two_bits(out: Tensor, segments: Segments, packed: Tensor, at: Column, level: float) -> None:
    """out += level * {0, -1, 1}, in place: undoes `two_bits`.

    Raises `InputError` for code 1, or bits behind a tensor's last element; `out` is then worthless.
    """
    wrong = np.zeros(2, dtype=np.uint8)
    with written_back(out) as target:
        in_tiles(
            _decode, segments.tiles, segments.table, array(packed), at, np.float32(level), target,
            wrong,
        )  # fmt: skip
    demand_codes(*wrong.tolist())


def demand_codes(stray: int, unknown: int) -> None:
    """`InputError` when bits are set behind the last code, or a code is 1."""
    if stray:
        raise damaged("padding after the last code is not zero")
    if unknown:
        raise damaged("code 1 stands for nothing")


@loop
def _code(
    start: int, stop: int, tiles: Any, table: Any, memory: Any, gradient: Any, tau: Any,
    packed: Any, places: Any,
) -> None:  # fmt: skip
    codes = np.zeros(_BLOCK, dtype=np.uint8)
    words = codes.view(np.uint32)
    for tile in range(start, stop):
        t, begin, end = tiles[tile]
        for first in range(begin, end, _BLOCK):
            some = slice(table[t, 0] + first, table[t, 0] + min(first + _BLOCK, end))
            rest, added, out = memory[some], gradient[some], packed[places[t] + first // 4 :]
            for i in range(rest.size):
                value = rest[i] + added[i]
                plus, minus = value >= tau, value <= -tau
                codes[i] = np.uint8(2) * np.uint8(plus | minus) | np.uint8(plus)
                rest[i] = value - (tau if plus else (-tau if minus else np.float32(0)))
            codes[rest.size : rest.size + 3] = 0
            for i in range((rest.size + 3) // 4):
                word = words[i]
                out[i] = (word | word >> 6 | word >> 12 | word >> 18) & 0xFF


@loop
def _decode(
    start: int, stop: int, tiles: Any, table: Any, packed: Any, places: Any, level: Any, out: Any,
    wrong: Any,
) -> None:  # fmt: skip
    codes = np.zeros(_BLOCK, dtype=np.uint8)
    words = codes.view(np.uint32)
    unknown = np.uint8(0)
    for tile in range(start, stop):
        t, begin, end = tiles[tile]
        for first in range(begin, end, _BLOCK):
            target = out[table[t, 0] + first : table[t, 0] + min(first + _BLOCK, end)]
            part = packed[places[t] + first // 4 :]
            for i in range((target.size + 3) // 4):
                word = np.uint32(part[i])
                words[i] = (word | word << 6 | word << 12 | word << 18) & 0x03030303
            for i in range(target.size):
                code = codes[i]
                sign = np.int32(code & 1) * np.int32(2) - np.int32(code >> 1)
                unknown |= code & ~(code >> 1) & 1
                target[i] += level * np.float32(sign)
            for i in range(target.size, (target.size + 3) // 4 * 4):
                if codes[i]:
                    wrong[0] = 1
    if unknown:
        wrong[1] = 1
