"""Messages of selected elements (`Codec.SPARSE`): values in float32 or float16, then coded indices.

Flags: the low four bits are the index coder, bit 4 is set for float16 values. Values beyond the
range of float16 saturate at 65504; senders with error feedback keep the rest.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from gcsim.compressors.bucket import BucketLayout
from gcsim.compressors.coding.frames import (
    HEADER_BYTES,
    Codec,
    Frames,
    columns_of,
    packed,
    read,
    read_ahead,
    read_known,
)
from gcsim.compressors.coding.indices.index_coding import (
    Coder,
    IndexCoding,
    chosen_coders,
    decoded_positions,
    demand_ascending,
    fixed_length,
    positions_in,
    rooms,
    words_of_positions,
)
from gcsim.compressors.coding.integers.packing import damaged
from gcsim.compressors.coding.selecting.selection import flat_places, share_kept
from gcsim.compressors.demands import entered
from gcsim.compressors.kernels import KernelCost, spread
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.loops import array, in_tiles, loop, written_back
from gcsim.compressors.meter import counted_as, launch
from gcsim.compressors.on_device import primitive
from gcsim.compressors.segments import Column, Segments, starts

ValueFormat = Literal["fp32", "fp16"]
HALF = 1 << 4
_HALF_MAX = 65504.0


def travelling(values: Tensor, values_as: ValueFormat) -> Tensor:
    """Convert the values to the format on the wire."""
    if values_as == "fp16":
        return values.clamp(-_HALF_MAX, _HALF_MAX).half()
    return values


def energy(values: Tensor) -> float:
    """Return the sum of squares of float32 `[n]`, in float64."""
    return float(values.double().square().sum())


def lost_by_selection(values: Tensor, ratio: float) -> float:
    """Return (1 - k/n) |v|^2 of float32 `[n]`, a bound on the energy lost by top-k."""
    return (1 - share_kept(values.numel(), ratio)) * energy(values)


def lost_in_transit(values: Tensor, values_as: ValueFormat) -> float:
    """Return the sum of (value on the wire - value)^2 over float32 `[n]`."""
    return energy(travelling(values, values_as).double() - values)


def sparse_message(
    segments: Segments, k: Column, indices: Tensor, values: Tensor, *, values_as: ValueFormat,
    coding: IndexCoding, memory: Tensor | None = None, alike: bool = False,
) -> tuple[Tensor, bool]:  # fmt: skip
    """Encode selected elements: (message; whether its length is the same on all workers).

    Parameters
    ----------
    k : how many of each tensor are sent
    indices, values : within the tensor, int64, and float32 `[sum of k]`
    memory : flat float32 that receives the values' rounding errors
    alike : whether k is the same on all workers
    """
    if (exchange := entered()) is not None:
        exchange.plain = coding in ("raw", "packed")
    coders = chosen_coders(coding, segments, k)
    sent = values if values_as == "fp32" else _halves(values, segments, k, indices, memory)
    coded, tail = words_of_positions(indices, segments, k, coders)
    parts = (sent, sent.element_size() * k), (coded, tail)
    flags = coders | HALF if values_as == "fp16" else coders
    same_length = fixed_length(coders)
    fixed = alike and same_length
    message = packed(sent, Codec.SPARSE, segments, *parts, nonzero=k, flags=flags, fixed=fixed)
    return message, same_length


def _half_launches(
    _: object, values: Tensor, segments: Segments, k: object, indices: object,
    memory: Tensor | None,
) -> Iterator[KernelCost]:  # fmt: skip
    many = values.numel()
    if not many:
        return
    ways = [("clamp", 8), ("_to_copy:float32_to_float16", 6)]
    if memory is not None:
        ways += [("_to_copy:float16_to_float32", 6), ("sub", 12)]
    for name, each in ways:
        yield launch("streaming", f"aten.{name}", many, each * many)
    if memory is not None:
        reach = spread(segments.longest)
        yield launch("gather_scatter", f"aten.index_copy_:{reach}", memory.numel(), 16 * many)


@counted_as(_half_launches)
def _halves(
    values: Tensor, segments: Segments, k: Column, indices: Tensor, memory: Tensor | None
) -> Tensor:
    """Return the values as float16; rounding errors go to `memory`, if given."""
    sent = travelling(values, "fp16")
    if memory is not None:
        memory.index_copy_(0, flat_places(indices, segments, k), values - sent.float())
    return sent


def add_message(message: Tensor, layout: BucketLayout, out: Tensor, weight: float) -> None:
    """Add weight * values at their positions to `out`, float32 `[layout.numel]`, in place. Raises
    `InputError` if the message is damaged or has another layout."""
    segments, exchange = Segments.of(layout), entered()
    if exchange is not None and exchange.plain:
        found = read_ahead(message, layout, Codec.SPARSE, partial(_demand_plain, segments))
        add_plain(out, segments, message, found, weight)
        return
    values, coded, sizes, coders, k = _parts(message, read(message, layout, Codec.SPARSE))
    scatter_add(out, segments, coded, sizes, coders, values, k, weight)


def _demand_plain(segments: Segments, found: Frames) -> None:
    coders, wide = found.flags & ~HALF, found.flags & HALF == 0
    if (coders > Coder.PACKED).any():
        raise damaged(f"coders {coders.tolist()} of indices in fields of one width")
    _, most = rooms(segments.length, found.nonzero, coders)
    found.demand_sizes((2 + 2 * wide) * found.nonzero + most)


def _plain_launches(
    _: object, out: object, segments: Segments, message: object, found: Frames | Tensor,
    weight: object,
) -> Iterator[KernelCost]:  # fmt: skip
    found = columns_of(found)
    dtype, head, k, sizes, coders = _shape(found)
    for n in (int(head.sum()), int(sizes.sum())):
        if n:
            yield launch("streaming", "aten.cat", n, 2 * n)
    values = torch.empty(int(k.sum()), dtype=dtype, device="meta")
    yield from _scatter_launches(None, out, segments, None, sizes, coders, values, k, 0.0)


@counted_as(_plain_launches)
@primitive
def add_plain(
    out: Tensor, segments: Segments, message: Tensor, found: Frames | Tensor, weight: float
) -> None:
    """Do `scatter_add` for a message with fixed-width indices whose headers are read ahead."""
    values, coded, sizes, coders, k = _parts(message, columns_of(found))
    scatter_add(out, segments, coded, sizes, coders, values, k, weight)


def read_message(message: Tensor, layout: BucketLayout) -> tuple[Tensor, Tensor, Column]:
    """Return (indices within the tensor, int64; values float32; k of each tensor) of a message."""
    found = read(message, layout, Codec.SPARSE)
    values, coded, sizes, coders, k = _parts(message, found)
    return decoded_positions(coded, Segments.of(layout), sizes, k, coders), values.float(), k


def read_raw(
    message: Tensor, layout: BucketLayout, lengths: Column
) -> tuple[Tensor, Tensor, Column]:
    """Do `read_message` for raw indices and float32 values without waiting: `lengths` give k."""
    k = (lengths - HEADER_BYTES) // 8
    found = read_known(message, layout, Codec.SPARSE, 8 * k, k)
    values, coded = found.parts(message, (4 * k, torch.float32), (4 * k, torch.uint8))
    segments = Segments.of(layout)
    return decoded_positions(coded, segments, 4 * k, k, segments.column(Coder.RAW)), values, k


def _parts(message: Tensor, found: Frames) -> tuple[Tensor, Tensor, Column, Column, Column]:
    """Return (values as sent; coded indices, their bytes and coders; how many per tensor)."""
    dtype, head, k, sizes, coders = _shape(found)
    values, coded = found.parts(message, (head, dtype), (sizes, torch.uint8))
    return values, coded, sizes, coders, k


def _shape(found: Frames) -> tuple[torch.dtype, Column, Column, Column, Column]:
    """Return (dtype and bytes of the values; how many per tensor; bytes of indices, and coders)."""
    k = found.nonzero
    dtype = torch.float16 if found.flags[0] & HALF else torch.float32
    head = dtype.itemsize * k
    if ((found.size < head) | ((found.flags ^ found.flags[0]) & HALF > 0)).any():
        raise damaged(f"bodies of {found.size.tolist()} bytes for {k.tolist()} values")
    return dtype, head, k, found.size - head, found.flags & 0xF


def _scatter_launches(
    _: object, out: object, segments: Segments, coded: object, sizes: Column, coders: Column,
    values: Tensor, k: Column, weight: float,
) -> Iterator[KernelCost]:  # fmt: skip
    total, reach = values.numel(), spread(segments.longest)
    if values.dtype == torch.float16 and total:
        yield launch("streaming", "aten._to_copy:float16_to_float32", total, 6 * total)
    for coder in np.unique(coders):
        own = coders == coder
        name, many, places = "sparse._add_checked", k[own], 8 * k[own]
        if coder == Coder.BITMAP:
            name, places = "sparse._add_set", sizes[own]
        elif coder == Coder.RAW:
            places = 4 * many
        else:
            decoding = f"index_coding.decode_indices:coder_{coder}"
            yield launch("streaming", decoding, many, sizes[own], places)
        yield launch("gather_scatter", f"{name}:{reach}", many, 12 * many, places)


@counted_as(_scatter_launches)
@primitive
def scatter_add(
    out: Tensor, segments: Segments, coded: Tensor, sizes: Column, coders: Column, values: Tensor,
    k: Column, weight: float,
) -> None:  # fmt: skip
    """Add weight * values at coded positions to `out` in place. Raises `InputError` if positions
    cannot be decoded or do not ascend below the tensor's length; `out` is then undefined.

    Parameters
    ----------
    out : flat float32 of the table
    coded, sizes, coders : consecutive coded positions, uint8 (`coded_positions`); bytes and `Coder`
        number of each tensor
    values : float32 or float16 `[sum of k]`, k of each tensor
    """
    if (coders != Coder.RAW).any():
        places: NDArray[Any] = positions_in(array(coded), segments, sizes, k, coders)
    elif (wrong := sizes != 4 * k).any():
        raise damaged(f"{sizes[wrong]} bytes for {k[wrong]} indices of 32 bits")
    else:
        places = array(coded).view(np.uint32)
    bad = np.zeros(1, dtype=np.uint8)
    with written_back(out) as target:
        in_tiles(
            _scatter, segments.tiles_of(k), places, array(values.float()), starts(k),
            segments.table, np.float32(weight), target, bad,
        )  # fmt: skip
    demand_ascending(bad[0])


@loop
def _scatter(start, stop, tiles, places, values, firsts, table, weight, out, bad):
    for tile in range(start, stop):
        t, first, last = tiles[tile]
        own = out[table[t, 0] : table[t, 0] + table[t, 1]]
        # a tile must begin above the last place of the previous tile
        before = np.int64(places[firsts[t] + first - 1]) if first > 0 else np.int64(-1)
        part = places[firsts[t] + first : firsts[t] + last]
        value = values[firsts[t] + first : firsts[t] + last]
        for i in range(part.size):
            at = np.int64(part[i])
            # the message is not trusted: check a position before writing to it
            if at <= before or at >= own.size:
                bad[0] = 1
                return
            own[at] += weight * value[i]
            before = at
