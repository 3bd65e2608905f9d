"""NUQSGD: random rounding to powers of 1/2 instead of evenly spaced levels.

Each tensor is cut into buckets; a bucket sends its norm (float32) and for each element, in `bits`
bits, one of the two nearest levels among 0, ±p^m, …, ±p, ±1 (times the norm), chosen at random.
Most normalised elements of a long bucket are tiny, and there these levels are dense. Messages are
all-gathered and averaged. No state. Unbiased, with E|Q(v) - v|^2 = sum (|v| - lo) (hi - |v|)
exactly, for levels lo <= |v| <= hi.

The paper's levels contain zero: one of the 2^bits codes is unused, and m = 2^(bits-1) - 2. The
published code instead has 2^bits levels without zero, m = 2^(bits-1) - 1, so that zero too becomes
±p^m at random (`zero`). Both have p = 1/2, and the Euclidean norm.

A frame holds the norms (float32) and the codes of `bits` bits, but no table. If workers know
several tables, the frame's flags tell which one: flags = bits + 16 number.

Codes have a fixed width; the paper uses Elias' code.

Source: A. Ramezani-Kebrya et al., "NUQSGD: Provably Communication-efficient Data-parallel SGD via
Nonuniform Quantization", JMLR 22(114), 2021, arXiv:1908.06077; code:
Tabrizian/learning-to-quantize.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from pydantic import Field

from gcsim.compressors.base import About, Compressor, CompressorParameters, Properties, Worker
from gcsim.compressors.bucket import Bucket, BucketLayout
from gcsim.compressors.coding.frames import FLAGS, Codec, Frames, bodies, read_ahead
from gcsim.compressors.coding.integers.digits import fixed
from gcsim.compressors.coding.rounding.levels import KNOWN, Levels, Table, add_rounded, encoded
from gcsim.compressors.coding.rounding.norms import Norm, cell_norms, table_errors
from gcsim.compressors.lazy_torch import Tensor
from gcsim.compressors.requests import AllGather, Exchange
from gcsim.compressors.segments import Column, Segments, keys_of
from gcsim.errors import InputError

_NUMBER_AT = 4
"""Lowest bit of the table's number in a frame's flags; the bits below hold widths up to 8."""


def exponential_levels(bits: int, multiplier: float, *, zero: bool) -> Table:
    """Return the levels ±1, ±p, ±p^2, …, ascending, p the multiplier: float32. Without zero there
    are 2^bits, down to p^(2^(bits-1) - 1); with zero 2^bits - 1, down to p^(2^(bits-1) - 2)."""
    magnitudes = multiplier ** np.arange(2 ** (bits - 1) - zero, dtype=np.float64)
    return np.concatenate((-magnitudes, [0.0] * zero, magnitudes[::-1])).astype(np.float32)


class TableParameters(CompressorParameters):
    """Hyper-parameters of methods whose workers share a table of levels."""

    bits: int = Field(4, ge=2, le=8, description="bits per element")
    bucket: int | None = Field(
        1024,
        ge=1,
        le=65535,
        description="elements that share a norm (32 bits per bucket); null: one norm per tensor",
    )
    norm: Norm = Field("l2", description="norm of a bucket: largest magnitude or l2 (the paper's)")


class NuqsgdParameters(TableParameters):
    multiplier: float = Field(
        0.5, gt=0, lt=1, description="ratio of a level's magnitude to the next larger one (p)"
    )
    zero: bool = Field(
        True, description="zero is a level (paper); else another power of the multiplier is (code)"
    )


class Nuqsgd(Compressor[NuqsgdParameters]):
    about = About(
        title="NUQSGD",
        family="quantization",
        collective="all-gather",
        bits="bits + 32 / bucket",
        unbiased=True,
        paper="Ramezani-Kebrya et al., JMLR 22(114), 2021",
    )

    def __init__(self, worker: Worker, parameters: NuqsgdParameters) -> None:
        super().__init__(worker, parameters)
        self.levels = exponential_levels(
            parameters.bits, parameters.multiplier, zero=parameters.zero
        )

    @classmethod
    def properties(cls, parameters: NuqsgdParameters) -> Properties:
        """Return the properties; the error of random rounding is known for given levels."""
        chosen = parameters
        levels = exponential_levels(chosen.bits, chosen.multiplier, zero=chosen.zero)

        def error(values: Tensor) -> float:
            return table_error(values, levels, size=chosen.bucket, norm=chosen.norm)

        return Properties(unbiased=True, error_bound=error, error_is_exact=True)

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        chosen = self.parameters
        purpose = "nuqsgd rounding"
        message = encode_message(bucket, [self.levels], chosen, self.worker, step, purpose)
        payloads = yield AllGather(payload=message)
        return self.mean_of(payloads, bucket, add_decoded, tables=[self.levels], chosen=chosen)


# --- messages -------------------------------------------------------------------------------------


def encode_message(
    bucket: Bucket, tables: Sequence[Table], chosen: TableParameters, worker: Worker, step: int,
    purpose: str, numbered: Mapping[int, int] | None = None,
) -> Tensor:  # fmt: skip
    """Encode a bucket's gradient: uint8, one frame per tensor. `purpose` is part of the random key;
    `numbered` gives the table by the tensor's index (default: the first)."""
    gradient, layout, form = bucket.gradient, bucket.layout, fixed(chosen.bits)
    cells, known = Segments.of(layout).cells(chosen.bucket), numbered or {}
    numbers = np.array([known.get(piece.index, 0) for piece in layout.slices])
    keys = keys_of(layout, worker.seed, step, purpose, worker.rank)
    norms = cell_norms(gradient, cells, chosen.norm)
    levels = Levels(kind=KNOWN, cells=cells, numbers=norms, tables=tables, chosen=numbers)
    flags = chosen.bits | numbers << _NUMBER_AT
    return encoded(
        gradient, levels, keys, Codec.TABLE, form, flags=flags, params=chosen.bucket or 0,
        fixed=numbered is None,
    )  # fmt: skip


def add_decoded(
    message: Tensor, layout: BucketLayout, out: Tensor, weight: float, tables: Sequence[Table],
    chosen: TableParameters,
) -> None:  # fmt: skip
    """Add a message of `encode_message`; `InputError` also for other widths or bucket lengths."""
    form, cells = fixed(chosen.bits), Segments.of(layout).cells(chosen.bucket)
    levels = Levels(kind=KNOWN, cells=cells, numbers=message, tables=tables)
    head, tail = levels.moved(form)
    check = partial(_demand_tables, chosen, len(tables), head + tail)
    found = read_ahead(message, layout, Codec.TABLE, check)
    if isinstance(found, Frames):
        numbers: Column | Tensor = found.flags >> _NUMBER_AT
    else:  # invalid flags, which the check will refuse, must not index beyond the tables
        numbers = (found[FLAGS] >> _NUMBER_AT).clamp(0, len(tables) - 1)
    at = bodies(head + tail)
    given = replace(levels, places=at, chosen=numbers)
    add_rounded(out, given, message, at + head, form, weight)


def _demand_tables(chosen: TableParameters, tables: int, sizes: Column, found: Frames) -> None:
    size, (numbers, widths) = chosen.bucket or 0, np.divmod(found.flags, 1 << _NUMBER_AT)
    if ((widths != chosen.bits) | (found.params != size) | (numbers >= tables)).any():
        raise InputError(
            f"damaged payload: codes of {widths} bits into tables {numbers}, {found.params} "
            f"elements a norm; expected {chosen.bits} bits, {tables} tables and {size}"
        )
    found.demand_sizes(sizes)


def table_error(values: Tensor, levels: Table, *, size: int | None, norm: Norm) -> float:
    """Return E|Q(v) - v|^2 of float32 `[n]`: sum norm^2 (r - lo) (hi - r), in float64."""
    cells = Segments.alone(values.numel()).cells(size)
    return float(table_errors(values, cells, cell_norms(values, cells, norm), levels)[0])
