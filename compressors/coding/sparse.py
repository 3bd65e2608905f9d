"""Messages of selected elements: values and coded indices.

`Codec.SPARSE`: for each tensor values, then indices. The frame's body holds the values (float32
or float16) and then the coded indices; its flags say how: the low four bits are the index coder,
bit 4 is set for float16 values. Values that float16 cannot hold saturate at 65504; senders with
error feedback keep the rest.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from gcsim.compressors.bucket import BucketLayout
from gcsim.compressors.coding.frames import (
    Codec,
    frames,
    put,
    read,
    seal,
    taken,
)
from gcsim.compressors.coding.indices.coded import coded_positions, decoded_positions
from gcsim.compressors.coding.indices.index_coding import (
    Coder,
    IndexCoding,
    choose_coder,
    demand,
    positions_in,
)
from gcsim.compressors.coding.integers.packing import damaged, packed_bytes
from gcsim.compressors.coding.selecting.selection import flat_places, share_kept
from gcsim.compressors.kernels import KernelCost, spread
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.loops import array, in_parallel, in_tiles, loop, written_back
from gcsim.compressors.meter import counted_as, launch
from gcsim.compressors.on_device import primitive
from gcsim.compressors.segments import Column, Segments, starts
from gcsim.errors import InputError

ValueFormat = Literal["fp32", "fp16"]
HALF = 1 << 4
_HALF_MAX = 65504.0
_LOWEST = np.array([0] + [(i & -i).bit_length() - 1 for i in range(1, 256)], dtype=np.int64)
"""Of a byte: the place of the lowest bit that is set."""


def travelling(values: Tensor, values_as: ValueFormat) -> Tensor:
    """The values in the format that they travel in."""
    if values_as == "fp16":
        return values.clamp(-_HALF_MAX, _HALF_MAX).half()
    return values


def energy(values: Tensor) -> float:
    """Sum of squares of float32 `[n]`, added up in float64."""
    return float(values.double().square().sum())


def lost_by_selection(values: Tensor, ratio: float) -> float:
    """(1 - k/n) |v|^2: the most that is left out when the k largest travel, of float32 `[n]`."""
    return (1 - share_kept(values.numel(), ratio)) * energy(values)


def lost_in_transit(values: Tensor, values_as: ValueFormat) -> float:
    """Sum of (travelling value - value)^2 over float32 `[n]`."""
    return energy(travelling(values, values_as).double() - values)


def sparse_message(
    segments: Segments, k: Column, indices: Tensor, values: Tensor, *, values_as: ValueFormat,
    coding: IndexCoding, memory: Tensor | None = None,
) -> tuple[Tensor, bool]:  # fmt: skip
    """(the message of selected elements; whether its length is the same on all workers).

    Parameters
    ----------
    k : how many of each tensor travel
    indices, values : within the tensor, int64, and float32 `[sum of k]`
    memory : flat float32 to which goes back what the format of the values rounds off
    """
    pairs = zip(segments.length.tolist(), k.tolist(), strict=True)
    coders = [choose_coder(coding, n, many) for n, many in pairs]
    flags = segments.column(coders)
    sent = values if values_as == "fp32" else _halves(values, segments, k, indices, memory)
    coded, tail = coded_positions(indices, segments, k, flags)
    head = sent.element_size() * k
    if values_as == "fp16":
        flags = flags | HALF
    message, at = frames(sent, Codec.SPARSE, segments, head + tail, nonzero=k, flags=flags)
    put(message, at, sent, head)
    put(message, at + head, coded, tail)
    return seal(message, at, head + tail), all(coder.fixed_length for coder in coders)


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
        reach = spread(int(segments.length.max()))
        yield launch("gather_scatter", f"aten.index_copy_:{reach}", memory.numel(), 16 * many)


@counted_as(_half_launches)
def _halves(
    values: Tensor, segments: Segments, k: Column, indices: Tensor, memory: Tensor | None
) -> Tensor:
    """The values as float16; what is lost goes to `memory`, if given."""
    sent = travelling(values, "fp16")
    if memory is not None:
        memory.index_copy_(0, flat_places(indices, segments, k), values - sent.float())
    return sent


def add_message(message: Tensor, layout: BucketLayout, out: Tensor, weight: float) -> None:
    """out += weight * values at their positions, in place; `out` is float32 `[layout.numel]`.

    Raises `InputError` for a damaged message, or one of another layout.
    """
    values, coded, sizes, coders, k = _parts(message, layout)
    scatter_add(out, Segments.of(layout), coded, sizes, coders, values, k, weight)


def read_message(message: Tensor, layout: BucketLayout) -> tuple[Tensor, Tensor, Column]:
    """(indices within the tensor, int64, values float32, each `[sum of k]`; k of each tensor).

    Raises `InputError` as `add_message` does.
    """
    values, coded, sizes, coders, k = _parts(message, layout)
    return decoded_positions(coded, Segments.of(layout), sizes, k, coders), values.float(), k


def _parts(message: Tensor, layout: BucketLayout) -> tuple[Tensor, Tensor, Column, Column, Column]:
    """(values as they travel; coded indices, their bytes and coders; how many of each tensor)."""
    found = read(message, layout, Codec.SPARSE)
    k = found.nonzero
    dtype = torch.float16 if found.flags[0] & HALF else torch.float32
    head = dtype.itemsize * k
    if ((found.size < head) | ((found.flags ^ found.flags[0]) & HALF > 0)).any():
        raise damaged(f"bodies of {found.size.tolist()} bytes for {k.tolist()} values")
    values = taken(message, found.at, head, dtype)
    coded = taken(message, found.at + head, found.size - head, torch.uint8)
    return values, coded, found.size - head, found.flags & 0xF, k


def _scatter_launches(
    _: object, out: object, segments: Segments, coded: object, sizes: Column, coders: Column,
    values: Tensor, k: Column, weight: float,
) -> Iterator[KernelCost]:  # fmt: skip
    total, reach = values.numel(), spread(int(segments.length.max(initial=0)))
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
    """out += weight * values at coded positions, in place.

    Parameters
    ----------
    out : flat float32 of the table
    coded, sizes, coders : the tensors' coded positions, one behind the other, uint8 (see
        `coded_positions`); bytes and `Coder` number of each
    values : float32 or float16 `[sum of k]`, k of each tensor

    Raises
    ------
    InputError
        When positions cannot be decoded, or do not ascend below the tensor's length; `out` is then
        worthless.
    """
    data, numbers = array(coded), array(values.float())
    bad, raw, first = np.zeros(1, dtype=np.uint8), coders == Coder.RAW, starts(k)
    if (wrong := raw & (sizes != 4 * k)).any():
        raise damaged(f"{sizes[wrong]} bytes for {k[wrong]} indices of 32 bits")
    with written_back(out) as target:
        if raw.all():
            in_tiles(
                _scatter, segments.tiles_of(k), data.view(np.uint32), numbers, first,
                segments.table, np.float32(weight), target, bad,
            )  # fmt: skip
        else:
            rows = zip(segments.table, starts(sizes), sizes, coders, k, first, strict=True)
            for (begin, n), cut, size, coder, many, at in rows:
                part = target[begin : begin + n]
                own = data[cut : cut + size], numbers[at : at + many]
                _add_coded(part, *own, int(coder), np.float32(weight), bad)
    _demand_ascending(not bad[0])


def _add_coded(
    part: NDArray[np.float32], body: NDArray[np.uint8], values: NDArray[np.float32], coder: int,
    weight: np.float32, bad: NDArray[np.uint8],
) -> None:  # fmt: skip
    """Add a tensor's values at its coded positions."""
    n, k = part.size, values.size
    if coder == Coder.BITMAP:  # dense: positions would be the largest of all
        demand(body.size == packed_bytes(n, 1), f"{body.size} bytes for a bitmap of {n} bits")
        set_bits = int(_add_bits(body, values, weight, part))
        demand(set_bits == k, f"a bitmap of {n} bits does not have {k} set")
    else:
        places = positions_in(body, n, k, coder)
        in_parallel(_add_places, k, places, values, weight, part, bad)


def _demand_ascending(ascending: bool) -> None:
    if not ascending:
        raise InputError("damaged indices: positions do not ascend below the tensor's length")


# --- loops ------------------------------------------------------------------------------------


@loop
def _add_places(
    start: int, stop: int, places: Any, values: Any, weight: Any, out: Any, bad: Any
) -> None:
    # each thread's part must begin above the last place of the part before
    last = np.int64(places[start - 1]) if start > 0 else np.int64(-1)
    part, value = places[start:stop], values[start:stop]
    for i in range(part.size):
        at = np.int64(part[i])
        if at <= last or at >= out.size:
            bad[0] = 1
            return
        out[at] += weight * value[i]
        last = at


@loop
def _scatter(
    start: int, stop: int, tiles: Any, places: Any, values: Any, firsts: Any, table: Any,
    weight: Any, out: Any, bad: Any,
) -> None:  # fmt: skip
    """`_add_places` of tiles of the elements that travel."""
    for tile in range(start, stop):
        t, first, last = tiles[tile]
        part = out[table[t, 0] : table[t, 0] + table[t, 1]]
        _add_places(first, last, places[firsts[t] :], values[firsts[t] :], weight, part, bad)


@loop
def _add_bits(bits: Any, values: Any, weight: Any, out: Any) -> int:
    """The number of bits that are set, or another one than there are values when one is stray."""
    found = 0
    stray: int = values.size + 1
    for byte in range(bits.size):
        rest = np.int64(bits[byte])
        while rest:
            place = 8 * byte + _LOWEST[rest]
            if place >= out.size or found >= values.size:
                return stray
            out[place] += weight * values[found]
            found += 1
            rest &= rest - 1  # without its lowest bit
    return found
