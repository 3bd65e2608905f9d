"""How are positions coded on a GPU, those of one tensor and those of many?

Twins of `coding/indices/index_coding.py`. Whatever the coder, a body is words of bits at places
that are known before they are written: `elias.gathered` writes them, many tensors' at once. Who
reads many at once is not told what is wrong: that is left to reading one by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from gcsim.compressors.coding.frames import from_bytes
from gcsim.compressors.coding.indices import coded as loops
from gcsim.compressors.coding.indices.index_coding import (
    Coder,
    demand,
    index_width,
    rice_parameter,
)
from gcsim.compressors.coding.integers.packing import check_packed, damaged, packed_bytes
from gcsim.compressors.gpu.integers.elias import (
    LONGEST,
    decode_gamma,
    decode_omega,
    ended,
    followed,
    gathered,
    read_words,
    sections,
    words_of,
)
from gcsim.compressors.gpu.integers.packing import unpacked
from gcsim.compressors.gpu.parts import put, spread, starts
from gcsim.compressors.gpu.words import there
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.on_device import kernel_of
from gcsim.compressors.segments import Column, Segments
from gcsim.errors import InternalError


def encode_indices(indices: Tensor, n: int, coder: Coder) -> Tensor:
    """See `index_coding.encode_indices`."""
    if coder is Coder.PACKED:
        width = index_width(n)
        if bool((indices >> width != 0).any()):
            raise InternalError(f"cannot pack a value outside [0, {1 << width}) in {width} bits")
    elif coder is not Coder.RAW and not ascending(indices, n):
        raise InternalError(f"positions to be coded do not ascend below {n}")
    return coded_positions(indices, [indices.numel()], [n], coder)[0]


def decode_indices(body: Tensor, n: int, k: int, coder: int) -> Tensor:
    """See `index_coding.decode_indices`."""
    if not 0 <= k <= n:
        raise damaged(f"{k} positions below {n}")
    size = body.numel()
    if coder == Coder.RAW:
        demand(size == 4 * k, f"{size} bytes for {k} indices of 32 bits")
        positions = from_bytes(body, torch.int32, k).long() & 0xFFFFFFFF
    elif coder == Coder.PACKED:
        positions = _unpacked(body, k, index_width(n))
    elif coder == Coder.RICE:
        positions = _decode_rice(body, n, k)
    elif coder == Coder.BITMAP:
        demand(size == packed_bytes(n, 1), f"{size} bytes for a bitmap of {n} bits")
        positions = _set_places(body, k)
    elif coder == Coder.VARINT:
        positions = _gaps_of_varint(body, k).cumsum(0) - 1
    elif coder in (Coder.OMEGA, Coder.GAMMA):
        gaps = (decode_omega if coder == Coder.OMEGA else decode_gamma)(body, k)
        if gaps is NotImplemented:
            return NotImplemented  # type: ignore[no-any-return]
        positions = gaps.cumsum(0) - 1
    else:
        raise damaged(f"unknown index coder {coder}")
    if not ascending(positions, n):
        demand(bool((positions.diff() > 0).all()), "positions do not ascend")
        raise damaged(f"position {int(positions[-1])} out of {n}")
    return positions


# --- many tensors: so many indices of each, within it, one tensor's behind the other's ------------


@kernel_of(loops.coded_positions)
def _coded_positions(
    indices: Tensor, segments: Segments, k: Column, coders: Column
) -> tuple[Tensor, Column]:
    sizes, bodies = np.zeros_like(k), []
    for coder in np.unique(coders):  # the tensors of each together
        rows = np.flatnonzero(coders == coder)
        own = indices
        if len(rows) < len(k):
            parts = indices.split(k.tolist())
            own = torch.cat([parts[row] for row in rows])
        given = k[rows].tolist(), segments.length[rows].tolist()
        body, many = coded_positions(own, *given, Coder(coder))
        sizes[rows] = many
        bodies.append((body, rows))
    if len(bodies) == 1:
        return bodies[0][0], sizes
    out, places = indices.new_empty(int(sizes.sum()), dtype=torch.uint8), np.cumsum(sizes) - sizes
    for body, rows in bodies:
        put(out, body, sizes[rows].tolist(), places[rows].tolist())
    return out, sizes


def coded_positions(
    indices: Tensor, sent: Sequence[int], elements: Sequence[int], coder: Coder
) -> tuple[Tensor, list[int]]:
    """(the bodies of many tensors, one behind the other, uint8; bytes of each).

    Where their lengths do not follow from numbers of indices, the host waits for them once.
    """
    if coder is Coder.RAW:
        return indices.int().view(torch.uint8), [4 * k for k in sent]  # the low 32 bits
    if coder is Coder.PACKED:
        return fixed_codes(indices, sent, [index_width(n) for n in elements])
    if coder is Coder.BITMAP:
        sizes = [packed_bytes(n, 1) for n in elements]
        begins = indices + spread(_numbers(starts(sizes), indices) * 8, sent)
        return gathered(torch.ones_like(begins), begins, sum(sizes)), sizes
    gaps = indices - _before(indices, sent)
    if coder is Coder.RICE:
        return _rice(gaps - 1, sent, elements)
    words, lengths = (
        _varint(gaps) if coder is Coder.VARINT else words_of(gaps, gamma=coder is Coder.GAMMA)
    )
    begins, found = sections(lengths, _owners(sent, gaps), len(sent))
    sizes = found.tolist()
    return gathered(words, begins, sum(sizes)), sizes


@kernel_of(loops.decoded_positions)
def _decoded_positions(
    coded: Tensor, segments: Segments, sizes: Column, k: Column, coders: Column
) -> Tensor:
    """The tensors of each coder together; read again one by one after a failure."""
    bodies, out = coded.split(sizes.tolist()), coded.new_empty(int(k.sum()), dtype=torch.int64)
    for coder in np.unique(coders):
        rows = np.flatnonzero(coders == coder)
        sent, elements = k[rows].tolist(), segments.length[rows].tolist()
        body = torch.cat([bodies[row] for row in rows])
        found = positions_of(body, sizes[rows].tolist(), sent, elements, int(coder))
        if found is not None:
            found = found.long() & 0xFFFFFFFF if found.dtype == torch.int32 else found
            ends = spread(_numbers(elements, found), sent)
            if not bool(((found <= _before(found, sent)) | (found >= ends)).any()):
                put(out, found, sent, (np.cumsum(k) - k)[rows].tolist())
                continue
        for row, n, count in zip(rows, elements, sent, strict=True):
            decode_indices(bodies[row], n, count, int(coder))
        raise damaged("coded positions")
    return out


def positions_of(
    body: Tensor, sizes: Sequence[int], sent: Sequence[int], elements: Sequence[int], coder: int
) -> Tensor | None:
    """Undo `coded_positions`: int64; None where bodies cannot be read, or are too long.

    Whether positions ascend below their tensor's length is left to who uses them.
    """
    if coder in (Coder.RAW, Coder.PACKED, Coder.BITMAP):
        return _of_fixed(body, sizes, sent, elements, coder)
    if coder == Coder.RICE:
        return _of_rice(body, sizes, sent, elements)
    if coder == Coder.VARINT:
        return _of_varint(body, sizes, sent)
    return _of_elias(body, sizes, sent, coder)


def _of_fixed(
    body: Tensor, sizes: Sequence[int], sent: Sequence[int], elements: Sequence[int], coder: int
) -> Tensor | None:
    widths = [32 if coder == Coder.RAW else index_width(n) for n in elements]
    lengths = [packed_bytes(k, width) for k, width in zip(sent, widths, strict=True)]
    if coder == Coder.BITMAP:
        lengths = [packed_bytes(n, 1) for n in elements]
    if list(sizes) != lengths:
        return None
    if coder == Coder.BITMAP:
        return _set_bits(body, sizes, sent)
    if coder == Coder.RAW:
        return from_bytes(body, torch.int32, sum(sent)).long() & 0xFFFFFFFF
    found, intact = fields(body, sizes, sent, widths)
    return found if bool(intact) else None


def _of_elias(body: Tensor, sizes: Sequence[int], sent: Sequence[int], coder: int) -> Tensor | None:
    if coder not in (Coder.OMEGA, Coder.GAMMA) or 8 * body.numel() > LONGEST:
        return None
    gaps, ends = read_words(body, gamma=coder == Coder.GAMMA)
    found, after = followed(ends, sizes, sent)
    return _summed(gaps[found], sent) if bool(ended(body, after, sizes).all()) else None


def fixed_codes(
    values: Tensor, sent: Sequence[int], widths: Sequence[int]
) -> tuple[Tensor, list[int]]:
    """(values of so many bits, each tensor's from a whole byte on; bytes of each)."""
    sizes = [packed_bytes(k, width) for k, width in zip(sent, widths, strict=True)]
    kept = [k if width else 0 for k, width in zip(sent, widths, strict=True)]
    if kept != list(sent):  # those without a bit are not written
        parts = zip(values.split(list(sent)), widths, strict=True)
        values = torch.cat([values[:0], *(part for part, width in parts if width)])
    return gathered(values, _places(values, sizes, kept, widths), sum(sizes)), sizes


def fields(
    body: Tensor, sizes: Sequence[int], sent: Sequence[int], widths: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """Undo `fixed_codes`: (values; whether zeros follow the last ones, bool)."""
    places = _places(body, sizes, sent, widths)
    more = torch.cat((body, body.new_zeros(5))).long()
    word = torch.zeros_like(places)
    for j in range(5):
        word |= more[(places >> 3) + j] << (8 * j)
    values = (word >> (places & 7)) & ((1 << spread(_numbers(widths, body), sent)) - 1)
    cuts = zip(starts(sizes), sent, widths, strict=True)
    after = _numbers([8 * first + k * width for first, k, width in cuts], body)
    return values, ended(body, after, sizes).all()


def _places(
    like: Tensor, sizes: Sequence[int], sent: Sequence[int], widths: Sequence[int]
) -> Tensor:
    """The bit at which each value of so many bits begins."""
    begins = zip(starts(sizes), starts(sent), widths, strict=True)
    moved = [8 * first - width * number for first, number, width in begins]
    numbers = torch.arange(sum(sent), device=like.device)
    return numbers * spread(_numbers(widths, like), sent) + spread(_numbers(moved, like), sent)


def _rice(gaps: Tensor, sent: Sequence[int], elements: Sequence[int]) -> tuple[Tensor, list[int]]:
    """(low bits and then high parts of each tensor's gaps, which begin with 0; bytes of each)."""
    widths = [rice_parameter(n, k) for n, k in zip(elements, sent, strict=True)]
    width = spread(_numbers(widths, gaps), sent)
    low, low_sizes = fixed_codes(gaps & ((1 << width) - 1), sent, widths)
    lengths = (gaps >> width) + 1  # a high part is so many zeros and a one
    begins, found = sections(lengths, _owners(sent, gaps), len(sent))
    high_sizes = found.tolist()
    high = gathered(torch.ones_like(begins), begins + lengths - 1, sum(high_sizes))
    if len(sent) == 1:
        return torch.cat((low, high)), [low.numel() + high.numel()]
    sizes = [a + b for a, b in zip(low_sizes, high_sizes, strict=True)]
    out, places = low.new_empty(sum(sizes)), starts(sizes)
    put(out, low, low_sizes, places)
    put(out, high, high_sizes, [a + b for a, b in zip(places, low_sizes, strict=True)])
    return out, sizes


def _of_rice(
    body: Tensor, sizes: Sequence[int], sent: Sequence[int], elements: Sequence[int]
) -> Tensor | None:
    """Undo `_rice`, and add gaps up."""
    widths = [rice_parameter(n, k) for n, k in zip(elements, sent, strict=True)]
    cuts = [packed_bytes(k, width) for k, width in zip(sent, widths, strict=True)]
    rests = [size - cut for size, cut in zip(sizes, cuts, strict=True)]
    most = [k + (n >> b) for n, k, b in zip(elements, sent, widths, strict=True)]
    if not all(0 <= 8 * rest < bits + 8 for rest, bits in zip(rests, most, strict=True)):
        return None
    parts = body.split([length for pair in zip(cuts, rests, strict=True) for length in pair])
    low, intact = fields(torch.cat(parts[::2]), cuts, sent, widths)
    high = torch.cat(parts[1::2])
    ones = _set_bits(high, rests, sent)
    if ones is None:
        return None
    lasts = zip(starts(rests), starts(sent), sent, strict=True)
    ends = [(8 * first, number + k - 1, int(k > 0)) for first, number, k in lasts]
    first, last, some = _numbers(ends, body).T
    after = first + some * (1 + torch.cat((ones, ones.new_zeros(1)))[last])
    if not bool(intact & ended(high, after, rests).all()):
        return None
    zeros = ones - _before(ones, sent) - 1
    return _summed(1 + (zeros << spread(_numbers(widths, body), sent)) + low, sent)


def _set_bits(body: Tensor, sizes: Sequence[int], sent: Sequence[int]) -> Tensor | None:
    """Which bits of each section of so many bytes are set; None where others than so many are."""
    found = unpacked(body, 8 * body.numel(), 1, torch.uint8).nonzero().view(-1)
    if found.numel() != sum(sent):
        return None
    found = found - spread(_numbers(starts(sizes), body) * 8, sent)
    inside = (found >= 0) & (found < spread(_numbers(sizes, body) * 8, sent))
    return found if bool(inside.all()) else None


def _varint(gaps: Tensor) -> tuple[Tensor, Tensor]:
    """Bytes of seven bits as words, and their lengths in bits."""
    words, lengths = gaps & 127, torch.full_like(gaps, 8)
    for j in range(1, 5):
        follows = (gaps >> (7 * j)) > 0
        words |= ((((gaps >> (7 * j)) & 127) << 8) | 128) * follows << (8 * j - 8)
        lengths += 8 * follows
    return words, lengths


def _of_varint(body: Tensor, sizes: Sequence[int], sent: Sequence[int]) -> Tensor | None:
    """Undo `_varint`, and add gaps up."""
    ends = (body < 128).nonzero().view(-1)
    if ends.numel() != sum(sent) or (not len(ends) and len(body)):
        return None
    gaps, begins, good = _varint_gaps(body, ends)
    first = spread(_numbers(starts(sizes), body), sent)
    last = first + spread(_numbers(sizes, body), sent)
    good = good & (begins >= first) & (ends < last) & (ends[-1:] + 1 == len(body))
    return _summed(gaps, sent) if bool(good.all()) else None


def _before(values: Tensor, sent: Sequence[int]) -> Tensor:
    """Of each the one before, of a tensor's first -1."""
    found = torch.cat((values.new_zeros(1), values[:-1]))[: len(values)]
    firsts = [first for first, k in zip(starts(sent), sent, strict=True) if k]
    found[_numbers(firsts, values)] = -1
    return found


def _summed(gaps: Tensor, sent: Sequence[int]) -> Tensor:
    """Positions: sums of gaps, each tensor's from -1 on."""
    upto = torch.cat((gaps.new_zeros(1), gaps.cumsum(0)))
    return upto[1:] - spread(upto[_numbers(starts(sent), gaps)], sent) - 1


def _owners(sent: Sequence[int], like: Tensor) -> Tensor:
    """The number of each one's tensor."""
    return spread(_numbers(range(len(sent)), like), sent)


def _numbers(values: Iterable[Any], like: Tensor) -> Tensor:
    return there(list(values), like.device, np.int64)


# --- one tensor: what is wrong is said ------------------------------------------------------------


def _gaps_of_varint(body: Tensor, k: int) -> Tensor:
    size = body.numel()
    ends = (body < 128).nonzero().view(-1)  # one wait
    whole = ends.numel() == k and (int(ends[-1]) + 1 if k else 0) == size
    demand(whole, f"{size} bytes are not {k} gaps")
    gaps, _, good = _varint_gaps(body, ends)
    demand(bool(good.all()), "a gap is 0, or longer than need be")
    return gaps


def _varint_gaps(body: Tensor, ends: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(gaps; where each begins, when each ends there; whether it is none that is longer)."""
    begins = torch.cat((ends.new_zeros(1), ends + 1))[: len(ends)]
    gaps = torch.zeros_like(ends)
    for j in range(6 if len(ends) else 0):
        byte = body[(begins + j).minimum(ends)].long() & 127
        gaps |= torch.where(begins + j <= ends, byte << (7 * j), 0)
    return gaps, begins, (ends - begins < 6) & (body[ends] != 0)


def _unpacked(body: Tensor, k: int, width: int) -> Tensor:
    check_packed(body, k, width)
    return unpacked(body, k, width, torch.int64)


def _set_places(bits: Tensor, count: int) -> Tensor:
    found = unpacked(bits, 8 * bits.numel(), 1, torch.uint8).nonzero().view(-1)
    demand(found.numel() == count, f"{found.numel()} bits are set, {count} announced")
    return found


def _decode_rice(body: Tensor, n: int, k: int) -> Tensor:
    b = rice_parameter(n, k)
    cut = packed_bytes(k, b)
    demand(body.numel() >= cut, f"{body.numel()} bytes where the low bits alone take {cut}")
    low, high = _unpacked(body[:cut], k, b), body[cut:]
    longest = packed_bytes(k + (n >> b), 1)
    demand(high.numel() <= longest, f"{high.numel()} bytes of high parts are too many")
    ends = _set_places(high, k)
    needed = packed_bytes(int(ends[-1]) + 1, 1) if k else 0
    demand(high.numel() == needed, "bytes follow the last high part")
    zeros = torch.diff(ends, prepend=ends.new_full((1,), -1)) - 1
    return (1 + (zeros << b) + low).cumsum(0) - 1


def ascending(positions: Tensor, n: int) -> bool:
    """Whether -1 < p_0 < p_1 < … < n; one wait for the device."""
    if not positions.numel():
        return True
    steps = torch.diff(positions, prepend=positions.new_full((1,), -1))
    return bool((steps > 0).all() & (positions[-1] < n))
