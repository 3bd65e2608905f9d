"""CE-SGD's messages, up to the server and down again.

Up, for each tensor: a flag byte (1: V is new), V as bitmap when it is new, the values in V, then
indices (32 bits) and values outside of V. With `levels` l the values of both kinds are rounded
together: indices, one scale (their largest magnitude), codes. Down: the union as bitmap, then its
values.

See `ce_sgd.py` for the method and its source.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gcsim.compressors.bucket import BucketLayout
from gcsim.compressors.coding.frames import Codec, frames, put, read, seal, taken
from gcsim.compressors.coding.indices.bitmap import (
    add_at_bits,
    at_bits,
    bit_starts,
    bits_each,
    bytes_of,
    unite,
)
from gcsim.compressors.coding.integers.digits import fixed
from gcsim.compressors.coding.integers.packing import packed_bytes
from gcsim.compressors.coding.rounding.levels import add_levels, even, round_levels
from gcsim.compressors.coding.rounding.norms import cell_norms
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.loops import array
from gcsim.compressors.segments import Column, Segments, starts
from gcsim.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Parts:
    """One worker's elements of a bucket."""

    chosen: Tensor
    """V: bitmaps of the tensors."""
    begins: NDArray[np.int64]
    """See `bit_starts`, of V."""
    values: Tensor
    """float32 `[|V|]`."""
    indices: Tensor
    """int32, within their tensor, ascending, outside of V."""
    extra: Column
    """How many of each tensor."""
    speculative: Tensor
    """float32, at the indices."""

    def places(self, begins: Column) -> Tensor:
        """The indices, from these begins of their tensors on: int64."""
        return self.indices.long() + torch.from_numpy(np.repeat(begins, self.extra))


def code_bits(levels: int) -> int:
    """Bits of one of 2 l + 1 levels."""
    return (2 * levels).bit_length()


def packed_parts(
    parts: Parts, segments: Segments, new: Column, levels: int | None, keys: NDArray[np.uint64]
) -> Tensor:
    """The message of a bucket; V travels too where `new` is 1, `keys` are those of rounding."""
    nbytes, one = bytes_of(segments), segments.column(1)
    selected, extra = bits_each(parts.begins, segments), parts.extra
    count = selected + extra
    head, width = 1 + nbytes * new, _width(count, levels)
    sizes = head + 4 * extra + width
    message, at = frames(parts.values, Codec.CE_SGD, segments, sizes, nonzero=count)
    put(message, at, torch.from_numpy(new.astype(np.uint8)), one)
    bits = parts.chosen[torch.from_numpy(np.repeat(new > 0, nbytes))]
    put(message, at + 1, bits, nbytes * new)
    body = at + head
    if levels is None:
        put(message, body, parts.values, 4 * selected)
        body = body + 4 * selected
    put(message, body, parts.indices, 4 * extra)
    body = body + 4 * extra
    if levels is None:
        put(message, body, parts.speculative, 4 * extra)
    else:
        both = parts.values.new_empty(int(count.sum()))
        inside = _inside(selected, extra)
        both[inside], both[~inside] = parts.values, parts.speculative
        cells = Segments.behind(count).cells(None)
        scales = cell_norms(both, cells, "max")
        put(message, body, scales, 4 * cells.count)
        form = fixed(code_bits(levels))
        round_levels(both, even(cells, scales, levels), keys, message, body + 4, form)
    return seal(message, at, sizes)


def read_parts(
    message: Tensor, layout: BucketLayout, known: Tensor | None, levels: int | None
) -> Parts:
    """Undo `packed_parts`; `known` is the last V, None if there was none.

    Raises `InputError` when the message is damaged.
    """
    segments, found = Segments.of(layout), read(message, layout, Codec.CE_SGD)
    nbytes, one = bytes_of(segments), segments.column(1)
    if (found.size < 1).any():
        raise InputError("damaged payload: a frame does not say whether V is new")
    new = taken(message, found.at, one, torch.uint8).numpy().astype(np.int64)
    if (new > 1).any():
        raise InputError("damaged payload: a frame does not say whether V is new")
    if known is None and not new.all():
        raise InputError("damaged payload: a worker keeps a selection it never sent")
    head = 1 + nbytes * new
    _demand((found.size >= head).all(), found.size, "the bitmaps of new selections")
    chosen = torch.zeros(int(nbytes.sum()), dtype=torch.uint8) if known is None else known.clone()
    brought = taken(message, found.at + 1, head - 1, torch.uint8)
    put(chosen, starts(nbytes), brought, head - 1)
    check_padding(chosen, segments)
    begins = bit_starts(chosen, segments)
    selected = bits_each(begins, segments)
    count, extra = found.nonzero, found.nonzero - selected
    fits = (extra >= 0) & (found.size == head + 4 * extra + _width(count, levels))
    _demand(fits.all(), found.size, f"{selected.tolist()} selected elements and {extra} more")
    at = found.at + head
    if levels is None:
        values = taken(message, at, 4 * selected, torch.float32)
        at = at + 4 * selected
    indices = taken(message, at, 4 * extra, torch.int32)
    _demand_ascending(indices.numpy(), extra, segments)
    at = at + 4 * extra
    if levels is None:
        speculative = taken(message, at, 4 * extra, torch.float32)
    else:
        both, cells = torch.zeros(int(count.sum())), Segments.behind(count).cells(None)
        scales = taken(message, at, 4 * cells.count, torch.float32)
        if not bool(((scales >= 0) & scales.isfinite()).all()):
            raise InputError(f"damaged payload: scales of {scales.tolist()}")
        form = fixed(code_bits(levels))
        add_levels(both, even(cells, scales, levels), message, at + 4, form, 1.0)
        inside = _inside(selected, extra)
        values, speculative = both[inside], both[~inside]
    return Parts(
        chosen=chosen, begins=begins, values=values, indices=indices, extra=extra,
        speculative=speculative,
    )  # fmt: skip


def add_parts(parts: Parts, segments: Segments, out: Tensor, weight: float) -> None:
    """out += weight * a worker's elements, in place; flat float32."""
    add_at_bits(out, parts.chosen, segments, parts.begins, parts.values, weight)
    places = parts.places(segments.begin).to(out.device)
    out.index_add_(0, places, parts.speculative.to(out.device), alpha=weight)


def unite_parts(union: Tensor, parts: Parts, segments: Segments) -> None:
    """Set the bits of a worker's elements in bitmaps, in place."""
    unite(union, parts.chosen, parts.places(8 * starts(bytes_of(segments))))


def packed_answer(mean: Tensor, union: Tensor, segments: Segments) -> Tensor:
    """The server's message: flat float32, where the union's bits are set."""
    begins, nbytes = bit_starts(union, segments), bytes_of(segments)
    values, count = at_bits(mean, union, segments, begins), bits_each(begins, segments)
    sizes = nbytes + 4 * count
    message, at = frames(mean, Codec.CE_SGD, segments, sizes, nonzero=count)
    put(message, at, union, nbytes)
    put(message, at + nbytes, values, 4 * count)
    return seal(message, at, sizes)


def add_answer(message: Tensor, layout: BucketLayout, out: Tensor, weight: float) -> None:
    """out += weight * `packed_answer`'s, in place; `InputError` for a damaged message."""
    segments, found = Segments.of(layout), read(message, layout, Codec.CE_SGD)
    nbytes = bytes_of(segments)
    _demand((found.size == nbytes + 4 * found.nonzero).all(), found.size, "bitmaps and values")
    union = taken(message, found.at, nbytes, torch.uint8)
    check_padding(union, segments)
    begins = bit_starts(union, segments)
    if (bits_each(begins, segments) != found.nonzero).any():
        raise InputError(f"damaged payload: {begins[-1]} bits for {found.nonzero} values")
    values = taken(message, found.at + nbytes, 4 * found.nonzero, torch.float32)
    add_at_bits(out, union, segments, begins, values, weight)


def check_padding(bits: Tensor, segments: Segments) -> None:
    """`InputError` when bits are set behind the last element of a bitmap."""
    used = segments.length % 8
    ends = starts(bytes_of(segments)) + bytes_of(segments) - 1
    if (array(bits)[ends[used > 0]] >> used[used > 0]).any():
        raise InputError("damaged payload: padding after the last code is not zero")


def _width(count: Column, levels: int | None) -> Column:
    """Bytes of so many values."""
    if levels is None:
        return 4 * count
    return np.where(count > 0, 4 + packed_bytes(count, code_bits(levels)), 0)


def _inside(selected: Column, extra: Column) -> Tensor:
    """Of values, one tensor's behind the other's, whether they are of V: those come first."""
    lengths = np.stack((selected, extra), axis=1).reshape(-1)
    return torch.from_numpy(np.repeat(np.arange(lengths.size) % 2 == 0, lengths))


def _demand(fits: object, sizes: Column, what: str) -> None:
    if not fits:
        raise InputError(f"damaged payload: bodies of {sizes.tolist()} bytes for {what}")


def _demand_ascending(indices: NDArray[np.int32], extra: Column, segments: Segments) -> None:
    limit, begin = (np.repeat(each, extra) for each in (segments.length, segments.begin))
    inside = (indices >= 0) & (indices < limit)
    if not inside.all() or (np.diff(indices + begin) <= 0).any():
        raise InputError("damaged payload: indices do not ascend below n")
