"""Messages of a bucket: one frame per tensor, all laid out, filled, sealed and read in one call.

    message, at = frames(values, Codec.SPARSE, segments, sizes)   # headers; bodies begin
    put(message, at, values, 4 * k)                               # parts of bodies
    seal(message, at, sizes)                                      # checksums
    found = read(message, layout, Codec.SPARSE)                              # columns
    values, = found.parts(message, (4 * found.nonzero, torch.float32))

A frame begins with 20 bytes, little endian:

    codec u8 | flags u8 | params u16 | numel u32 | nonzero u32 | body bytes u32 | checksum u32

The codec defines `flags` and `params`; `nonzero` of `numel` elements are sent. The checksum, over
the 16 bytes before it and the body, is not priced: networks have their own. Damaged frames and
other layouts raise `InputError`. Tensor-wise methods use `pack_frame`, `frames_of` and `decoder`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from enum import IntEnum
from functools import cache, partial, reduce, wraps
from operator import add
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gcsim.compressors.bucket import BucketLayout, TensorSlice
from gcsim.compressors.coding.checksum import checksum, number_at, put_number
from gcsim.compressors.demands import Found, entered, when_known
from gcsim.compressors.kernels import KernelCost
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.loops import array, loop, written_back
from gcsim.compressors.meter import counted_as, launch, unpriced
from gcsim.compressors.on_device import primitive
from gcsim.compressors.segments import Column, Segments, starts
from gcsim.errors import InputError, InternalError

HEADER_BYTES = 20
FLAGS = 4  # row of the flags in the table that `read_ahead` returns on a device
IN_ORDER = np.zeros(0, dtype=np.int64)  # for `copy_pieces`: pieces are consecutive
_FIELDS = (0, 1), (1, 1), (2, 2), (8, 4), (4, 4), (12, 4), (16, 4)
"""First byte and size of codec, flags, params, nonzero, numel, body bytes, checksum."""


class Codec(IntEnum):
    """Number of the method that wrote a frame's body."""

    SPARSE = 1  # values, then coded indices: top-k, DGC, thresholds
    QSGD = 2
    TERNGRAD = 3
    SIGN_BLOCK = 4  # signs and scales: dist-EF-blockSGDM, EF-signSGD, 1-bit Adam
    VARIANCE = 5
    QSPARSE = 6  # QSparse-local-SGD: quantised values and coded indices
    SIGN = 7  # only signs
    LEVELS = 8  # codes into a table of levels per bucket: ORQ, Linear
    BINARY = 9  # one bit per element and levels per bucket: BinGrad, 1-bit SGD
    TABLE = 10  # codes into a table that all workers know: NUQSGD, ALQ, AMQ
    SIGNED_INDEX = 11  # words with an index and a sign: Strom, Dryden
    VARIANCE_BOUNDED = 12  # Wangni et al.
    CE_SGD = 13
    CAST = 14  # 8-bit formats: FP8, dynamic 8-bit
    NATURAL = 15  # sign and exponent
    INCEPTIONN = 16
    THC = 17
    ADACOMP = 18
    BLOCKS = 19  # OmniReduce: nonzero blocks
    BLOOM = 20  # DeepReduce
    SKETCH = 21
    PAIRS = 22  # gTop-k, Ok-Topk: indices and values
    AFFINE = 23  # PyTorch's 8-bit hooks
    QSGD_DIGITS = 24  # QSGD's levels as digits, and as Elias codes
    QSGD_ELIAS_SPARSE = 26


@dataclass(slots=True, kw_only=True, eq=False)  # frozen would take longer than a short loop
class Frame:
    """One tensor's part of a message."""

    codec: int
    flags: int
    params: int
    numel: int
    nonzero: int  # number of elements sent
    body: Tensor  # uint8 `[body bytes]`, a view of the message


_FRAME = ("codec", "flags", "params", "numel", "nonzero")


@dataclass(slots=True, eq=False)  # not frozen, see `Frame`
class Frames:
    """Headers of a message, as columns."""

    at: Column  # first byte of the body; -1 if there is no room for a header
    size: Column
    codec: Column
    flags: Column
    params: Column
    nonzero: Column
    numel: Column
    intact: Column  # 1 if the body fits and the checksum matches

    def demand_intact(self, total: int, allowed: Collection[int]) -> None:
        """Raise `InputError` for the first invalid frame of a message of `total` bytes."""
        begin = 0
        for number in range(len(self.codec)):
            row = {each.name: int(getattr(self, each.name)[number]) for each in fields(self)}
            fault, left = "", total - begin
            if 0 < left < HEADER_BYTES:
                fault = f"{left} bytes left, a header has {HEADER_BYTES}"
            elif row["at"] < 0:
                return
            elif row["codec"] not in allowed:
                wanted = " or ".join(str(int(one)) for one in allowed)
                fault = f"codec {row['codec']}, expected {wanted}"
                if row["codec"] not in tuple(Codec):
                    fault = f"unknown codec {row['codec']}"
            elif row["nonzero"] > row["numel"]:
                fault = f"{row['nonzero']} of {row['numel']} elements are said to travel"
            elif row["size"] > left - HEADER_BYTES:
                fault = f"body of {row['size']} bytes, but {left - HEADER_BYTES} are left"
            elif not row["intact"]:
                fault = "the checksum does not match: bytes were changed"
            if fault:
                raise InputError(f"frame {number} at byte {begin}: {fault}")
            begin = row["at"] + row["size"]

    def frame(self, message: Tensor, number: int) -> Frame:
        row = {each: int(getattr(self, each)[number]) for each in _FRAME}
        body = message[self.at[number] : self.at[number] + self.size[number]]
        return Frame(**row, body=body)

    def alike(self, column: str) -> int:
        """Return the number that a column has in all rows; `InputError` if they differ."""
        values = getattr(self, column)
        if (values != values[0]).any():
            raise InputError(f"damaged payload: {column} {values.tolist()} differ between frames")
        return int(values[0])

    def parts(self, message: Tensor, *parts: tuple[Column, torch.dtype]) -> list[Tensor]:
        """Return consecutive parts of the bodies, each with the given bytes per tensor."""
        found, place = [], self.at
        for lengths, dtype in parts:
            found.append((place, lengths, dtype))
            place = place + lengths
        return taken_all(message, found)

    def demand_sizes(self, sizes: Column) -> None:
        if np.count_nonzero(wrong := self.size != sizes):
            found, asked = self.size[wrong][0], sizes[wrong][0]
            raise InputError(f"damaged payload: body of {found} bytes, its header asks for {asked}")


# --- a bucket's message -----------------------------------------------------------------------


def frames(
    like: Tensor, codec: int, segments: Segments, sizes: Column, *,
    nonzero: Column | None = None, flags: ArrayLike = 0, params: ArrayLike = 0, fixed: bool = False,
    part: Segments | None = None, parts: Sequence[tuple[Tensor, Column]] = (),
) -> tuple[Tensor, Column]:  # fmt: skip
    """Allocate a message and write its headers: (uint8 on the device of `like`; first byte of each
    body). `sizes`: bytes of the bodies. `nonzero`: elements sent (None: all). `fixed`: all messages
    of the exchange have these headers, or those of the table `part` if it is sent in equal parts;
    `read` need not wait. `parts`: (bytes of all tensors, bytes of each) at the start of the bodies.
    Raises `InternalError` if a number does not fit its field."""
    travel = segments.length if nonzero is None else nonzero
    row = segments.column(flags), segments.column(params), travel, segments.length
    heads, at, total = _headers_of(codec, sizes, row)
    if total < 0:
        raise InternalError(f"no frame header holds codec {codec}, {row}, bodies of {sizes} bytes")
    message = like.new_empty(total, dtype=torch.uint8)
    put_heads(message, heads, at, parts)
    exchange = entered()
    if fixed and exchange is not None:
        known = at, sizes, segments.column(codec), *row, segments.column(1)
        for table in (segments, *([part] if part is not None else [])):
            n = len(table.table)
            shape = torch.Size([message.numel() * n // len(sizes)])
            some = Frames(*(column[:n] for column in known))
            exchange.fixed[table, shape, message.dtype] = some, heads[:n]
    return message, at


def _headers_of(
    codec: int, sizes: Column, row: tuple[Column, Column, Column, Column]
) -> tuple[NDArray[np.uint8], Column, int]:
    """Return (headers; first bytes of bodies; total bytes, -1 on overflow); `row`: flags on."""
    heads, at = np.empty((len(sizes), HEADER_BYTES), dtype=np.uint8), np.empty_like(sizes)
    return heads, at, _write_headers(heads, at, int(codec), *row, sizes)


def bodies(sizes: Column) -> Column:
    """Return the first byte of each body in a message whose bodies have these sizes."""
    return starts(sizes + HEADER_BYTES) + HEADER_BYTES


def packed(
    like: Tensor, codec: int, segments: Segments, *parts: tuple[Tensor, Column], **columns: Any
) -> Tensor:
    """Return the sealed message of parts with their bytes; `columns` as in `frames`."""
    sizes = reduce(add, [lengths for _, lengths in parts])
    message, at = frames(like, codec, segments, sizes, parts=parts, **columns)
    return seal(message, at, sizes)


def _copies(parts: Iterable[Tensor | NDArray[Any]]) -> list[KernelCost]:
    return [launch("streaming", "aten.cat", n, 2 * n) for part in parts if (n := part.nbytes)]


@counted_as(lambda _, message, heads, at, parts: _copies([heads, *(each for each, _ in parts)]))
@primitive
def put_heads(
    message: Tensor, heads: NDArray[np.uint8], at: Column, parts: Sequence[tuple[Tensor, Column]]
) -> None:
    """Write the headers, `[tensors, 20]`, and the parts of bodies, which begin at `at`."""
    with written_back(message) as out:
        out[(at - HEADER_BYTES)[:, None] + np.arange(HEADER_BYTES)] = heads
        place = at
        for number, (source, lengths) in enumerate(parts):
            if number:
                place = place + parts[number - 1][1]
            put_in(out, place, source, lengths)


def put_in(out: NDArray[np.uint8], at: Column, source: Tensor, lengths: Column) -> None:
    """Do what `put` does, on the host."""
    if source.numel():
        copy_pieces(array(source.contiguous()).view(np.uint8), IN_ORDER, out, at, lengths)


def put(message: Tensor, at: Column, source: Tensor, lengths: Column) -> None:
    """Copy the bytes of `source`, `lengths` per tensor, to their places in a message."""
    put_all(message, [(at, source, lengths)])


@counted_as(lambda _, message, parts: _copies(source for _, source, _ in parts))
@primitive
def put_all(message: Tensor, parts: Sequence[tuple[Column, Tensor, Column]]) -> None:
    """Do `put` for several sources."""
    with written_back(message) as out:
        for at, source, lengths in parts:
            put_in(out, at, source, lengths)


def taken(message: Tensor, at: Column, lengths: Column, dtype: torch.dtype) -> Tensor:
    """Undo `put`: return `[sum of lengths / size]` of `dtype`."""
    return taken_all(message, [(at, lengths, dtype)])[0]


@counted_as(lambda taken, *_: _copies(taken))
@primitive
def taken_all(message: Tensor, parts: Sequence[tuple[Column, Column, torch.dtype]]) -> list[Tensor]:
    """Undo `put_all`: return the result of `taken` for each part."""
    data, found = array(message), []
    for at, lengths, dtype in parts:
        out = torch.empty(int(lengths.sum()) // dtype.itemsize, dtype=dtype)
        copy_pieces(data, at, array(out).view(np.uint8), IN_ORDER, lengths)
        found.append(out if message.is_cpu else out.to(message.device))
    return found


def picked(values: Tensor, begins: Column, counts: Column) -> Tensor:
    """Concatenate pieces of a flat tensor: `counts` elements from each of `begins`."""
    size = values.element_size()
    return taken(values.view(torch.uint8), size * begins, size * counts, values.dtype)


@counted_as(lambda *_: ())  # a deployment leaves checksums to the network
@primitive
def seal(message: Tensor, at: Column, sizes: Column) -> Tensor:
    """Write the checksums of the frames; return the message."""
    with written_back(message) as data:
        _write_checksums(data, at, sizes)
    return message


def joined(parts: Iterable[Tensor]) -> Tensor:
    """Concatenate equal parts to one message; `InputError` if their lengths differ."""
    if len(each := list(parts)) == 1:
        return each[0]
    if len(lengths := {len(part) for part in each}) != 1:
        raise InputError(f"damaged payload: parts of {sorted(lengths)} bytes are not equally long")
    return torch.cat(each)


def read(message: Tensor, layout: BucketLayout, codec: int | Collection[int]) -> Frames:
    """Return the headers of an intact message of layout and codec; waits unless `fixed`."""
    return _fixed(message, layout, codec) or _read(message, layout, codec)


def read_ahead(
    message: Tensor, layout: BucketLayout, codec: int, check: Callable[[Frames], object]
) -> Frames | Tensor:
    """Do `read` without waiting, for kernels that read headers in place. On a device it returns a
    table (`gpu/frames.py`), and `check`, which raises faults of bodies, runs `when_known`."""
    if found := _fixed(message, layout, codec):
        check(found)
    return found or _read_ahead(message, layout, codec, check)


def columns_of(found: Frames | Tensor) -> Frames:
    """Return the columns of the result of `read_ahead`."""
    if isinstance(found, Frames):
        return found
    return Frames(*np.delete(np.from_dlpack(found.cpu()), 2, axis=0))


def _fixed(message: Tensor, layout: BucketLayout, codec: int | Collection[int]) -> Frames | None:
    if (exchange := entered()) is None or not exchange.fixed:
        return None
    known = exchange.fixed.get((Segments.of(layout), message.shape, message.dtype))
    return None if known is None else _agreed(message, layout, codec, *known)


def read_known(
    message: Tensor, layout: BucketLayout, codec: int, sizes: Column, nonzero: Column
) -> Frames:
    """Do `read` without waiting if lengths determine `sizes`; flags and parameters are 0."""
    segments = Segments.of(layout)
    none, length = segments.column(0), segments.length
    heads, at, total = _headers_of(codec, sizes, (none, none, nonzero, length))
    if total != message.numel() or np.count_nonzero(nonzero > length):
        _read(message, layout, codec)  # raises the precise error
        raise InputError(f"damaged payload: bodies are not of {sizes.tolist()} bytes")
    codecs, intact = segments.column(codec), segments.column(1)
    found = Frames(at, sizes, codecs, none, none, nonzero, length, intact)
    return _agreed(message, layout, codec, found, heads)


def _agreed(
    message: Tensor, layout: BucketLayout, codec: int | Collection[int], found: Frames,
    heads: NDArray[np.uint8],
) -> Frames:  # fmt: skip
    right = agree(message, heads, found.at, found.size)
    if right is False:
        _read(message, layout, codec)  # raises the precise error
    when_known(right, partial(_demand_right, layout))
    return found


def _demand_right(layout: BucketLayout, *right: bool) -> None:
    if not all(right):
        place = "" if len(right) == 1 else f"the frame of {layout.slices[right.index(0)].name}: "
        raise InputError(
            f"damaged payload: {place}the checksum does not match, or the header is not that of "
            "this worker's message"
        )


def _read(message: Tensor, layout: BucketLayout, codec: int | Collection[int]) -> Frames:
    found = _headers(message, len(layout.slices))
    demand_frames(found, layout, message.numel(), codec)
    return found


@counted_as(lambda *_: ())  # see `headers`
@primitive
def _read_ahead(
    message: Tensor, layout: BucketLayout, codec: int, check: Callable[[Frames], object]
) -> Frames | Tensor:
    found = _read(message, layout, codec)
    check(found)
    return found


def demand_frames(
    found: Frames, layout: BucketLayout, total: int, codec: int | Collection[int]
) -> None:
    """Raise `InputError` unless a message of `total` bytes is intact and has this layout."""
    allowed = (int(codec),) if isinstance(codec, int) else tuple(codec)
    columns = found.at, found.size, found.codec, found.nonzero, found.numel, found.intact
    if not _whole(*columns, layout.table, total, _among(allowed)):
        found.demand_intact(total, allowed)
        for number, piece in enumerate(layout.slices):
            if found.at[number] < 0:
                raise InputError(f"the message ends before the frame of {piece.name}")
            if found.numel[number] != piece.numel:
                other = found.numel[number]
                raise InputError(f"{piece.name} has {piece.numel} elements, its frame {other}")
        raise InputError(f"the message holds more frames than bucket {layout.index} has tensors")


@cache
def _among(allowed: tuple[int, ...]) -> NDArray[np.bool_]:
    known = np.zeros(256, dtype=np.bool_)
    known[list(allowed)] = True
    return known


@counted_as(lambda *_: ())  # see `headers`
@primitive
def agree(message: Tensor, heads: NDArray[np.uint8], at: Column, sizes: Column) -> Found:
    """Whether headers, `[tensors, 20]`, and checksums are right; on a device, for each frame."""
    return bool(_agree(array(message), heads, at, sizes))


def _headers(message: Tensor, most: int) -> Frames:
    demand_bytes(message)
    return Frames(*headers(message, most))


def demand_bytes(message: Tensor) -> None:
    """Raise `InputError` if a tensor cannot be a message."""
    if message.dtype != torch.uint8 or message.dim() != 1:
        raise InputError(f"a message is uint8 [n], not {message.dtype} {list(message.shape)}")


@counted_as(lambda *_: ())  # in a deployment headers are known and networks have checksums
@primitive
def headers(message: Tensor, most: int) -> NDArray[np.int64]:
    """Return the columns of `Frames` for the first frames, `[8, most]`; -1 if no header fits."""
    rows = np.empty((8, most), dtype=np.int64)
    _read_headers(array(message), rows)
    return rows


# --- frames one by one ------------------------------------------------------------------------


def _packing(_: object, codec: object, body: Tensor, **__: object) -> list[KernelCost]:
    parts = HEADER_BYTES, body.numel()
    return [launch("streaming", "aten.cat", n, 2 * n) for n in parts if n]


@counted_as(_packing)
def pack_frame(
    codec: int, body: Tensor, *, numel: int, nonzero: int | None = None, flags: int = 0,
    params: int = 0,
) -> Tensor:  # fmt: skip
    """Return header, body as one uint8 tensor `[HEADER_BYTES + body bytes]`; `nonzero` of `numel`
    elements are sent (None: all). `InternalError` for numbers beyond their field, or no bytes."""
    if body.dtype != torch.uint8 or body.dim() != 1:
        raise InternalError(f"a frame's body is uint8 [n], not {body.dtype} {list(body.shape)}")
    travel = np.array([numel if nonzero is None else nonzero])
    parts, columns = (body, np.array([body.numel()])), {"flags": flags, "params": params}
    return packed(body, codec, Segments.alone(numel), parts, nonzero=travel, **columns)


def read_frames(
    message: Tensor, *, expected: int | Collection[int] = tuple(Codec), most: int | None = None
) -> list[Frame]:
    """Return the first `most` frames of a message of unknown layout; `InputError` if damaged."""
    found = _headers(message, most or message.numel() // HEADER_BYTES + 1)
    found.demand_intact(
        message.numel(), (expected,) if isinstance(expected, int) else tuple(expected)
    )
    return [found.frame(message, number) for number in np.flatnonzero(found.at >= 0).tolist()]


def frames_of(
    message: Tensor, layout: BucketLayout, codec: int | Collection[int]
) -> Iterator[tuple[TensorSlice, Frame]]:
    """Yield each tensor of the layout with its frame; `InputError` if the layout differs."""
    found = read(message, layout, codec)
    for number, piece in enumerate(layout.slices):
        yield piece, found.frame(message, number)


def decoder(codec: int | Collection[int]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Turn `add(frame, part, weight, **known)`, which decodes one tensor, into `add(message,
    layout, out, weight, **known)`: out += weight * decoded; `InputError` for a damaged message."""

    def decorate(add: Callable[..., None]) -> Callable[..., None]:
        @wraps(add)
        def of_message(
            message: Tensor, layout: BucketLayout, out: Tensor, weight: float, **known: object
        ) -> None:
            for piece, frame in frames_of(message, layout, codec):
                add(frame, piece.of(out), weight, **known)

        del of_message.__wrapped__  # it has other parameters
        return of_message

    return decorate


def split_body(frame: Frame, head_bytes: int, tail_bytes: int) -> tuple[Tensor, Tensor]:
    """Split a frame's body into two parts of given lengths; `InputError` if they do not fit."""
    if frame.body.numel() != head_bytes + tail_bytes:
        raise InputError(
            f"damaged payload: body of {frame.body.numel()} bytes, "
            f"its header asks for {head_bytes} + {tail_bytes}"
        )
    return frame.body[:head_bytes], frame.body[head_bytes:]


def as_bytes(values: Tensor) -> Tensor:
    """Return the bytes of a one-dimensional tensor, uint8; a view if it is contiguous."""
    if not values.numel():  # an empty tensor may have a stride that no view allows
        return torch.zeros(0, dtype=torch.uint8, device=values.device)
    return values.contiguous().view(torch.uint8)


@unpriced  # messages are laid out such that aligning costs no time where it matters
def from_bytes(body: Tensor, dtype: torch.dtype, count: int) -> Tensor:
    """Return `[count]` of `dtype`, copied if not aligned; `InputError` if the length is wrong."""
    size = dtype.itemsize
    if body.numel() != count * size:
        raise InputError(f"{body.numel()} bytes where {count} values of {size} bytes must be")
    if body.storage_offset() % size:
        body = body.clone()
    return body.view(dtype)


@loop
def _write_headers(heads, at, codec, flags, params, nonzero, numel, sizes) -> int:
    """Fill headers up to their checksums, and `at`; return the total bytes, -1 on overflow."""
    fits, total = True, 0
    for t in range(sizes.size):
        row = codec, flags[t], params[t], nonzero[t], numel[t], sizes[t]
        # the row ends before the checksum, which is the last field
        for (place, size), field in zip(_FIELDS, row):  # noqa: B905
            fits &= (field >> (8 * size)) == 0  # also detects negative numbers
            put_number(heads[t], place, size, np.uint64(field))
        at[t] = total + HEADER_BYTES
        total = at[t] + sizes[t]
    return total if fits else -1


@loop
def _whole(at, sizes, codec, nonzero, numel, intact, table, total, known) -> bool:
    """Whether frames are intact, of these tensors and known codecs, and end with the message."""
    whole = at[-1] + sizes[-1] == total
    for t in range(numel.size):
        whole &= (numel[t] == table[t, 1]) & (nonzero[t] <= numel[t]) & (intact[t] == 1)
        # a missing frame has codec -1, which reads the last entry; its `numel` is -1 too
        whole &= known[codec[t]]
    return bool(whole)


@loop
def _agree(message, heads, at, sizes) -> bool:
    same, block = True, np.zeros(16, dtype=np.uint64)
    for t in range(sizes.size):
        # callers have checked the message's length, so frames lie within it
        frame = message[at[t] - HEADER_BYTES : at[t] + sizes[t]]
        for i in range(HEADER_BYTES - 4):
            same &= frame[i] == heads[t, i]
        found = checksum(frame, frame[HEADER_BYTES:], block)
        same &= number_at(frame, HEADER_BYTES - 4, 4) == found
    return same


@loop
def copy_pieces(source, begins, target, at, lengths):
    """Copy pieces; an empty `begins` or `at` stands for consecutive pieces."""
    behind = 0
    for t in range(lengths.size):
        begin, place = begins[t] if begins.size else behind, at[t] if at.size else behind
        behind += lengths[t]
        given, out = source[begin : begin + lengths[t]], target[place : place + lengths[t]]
        for i in range(out.size):
            out[i] = given[i]


@loop
def _write_checksums(message, at, sizes):
    block = np.zeros(16, dtype=np.uint64)
    for t in range(sizes.size):
        frame = message[at[t] - HEADER_BYTES : at[t] + sizes[t]]
        found = checksum(frame, frame[HEADER_BYTES:], block)
        put_number(frame, HEADER_BYTES - 4, 4, found)


@loop
def _read_headers(data, rows):
    at, block = np.int64(0), np.zeros(16, dtype=np.uint64)
    for t in range(rows.shape[1]):
        for row in range(8):
            rows[row, t] = -1 if row < 7 else 0
        # a damaged length may lead past the end; all later rows are then -1 too
        if data.size - at < HEADER_BYTES:
            continue
        frame = data[at:]
        length = np.int64(number_at(frame, HEADER_BYTES - 8, 4))
        intact = length <= frame.size - HEADER_BYTES
        if intact:
            body = frame[HEADER_BYTES : HEADER_BYTES + length]
            intact = number_at(frame, HEADER_BYTES - 4, 4) == checksum(frame, body, block)
        rows[0, t], rows[1, t] = at + HEADER_BYTES, length
        for i in range(5):
            begin, size = _FIELDS[i]
            rows[2 + i, t] = number_at(frame, begin, size)
        rows[7, t] = intact
        at += HEADER_BYTES + length
