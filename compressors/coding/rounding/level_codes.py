"""Levels of a bucket as digits or Elias codes: primitives over `digits.py` and `level_words.py`."""

from __future__ import annotations

from typing import Literal

import numpy as np

from gcsim.compressors.coding.integers.digits import packed_digits, unpacked_digits
from gcsim.compressors.coding.rounding.level_words import (
    dense_words,
    read_dense,
    read_sparse,
    sparse_words,
)
from gcsim.compressors.kernels import KernelClass, KernelCost, spread
from gcsim.compressors.lazy_torch import Tensor
from gcsim.compressors.loops import array, tensor
from gcsim.compressors.meter import counted_as, launch
from gcsim.compressors.on_device import primitive
from gcsim.compressors.segments import Column, Segments

LevelCoding = Literal["digits", "elias_dense", "elias_sparse"]
Coded = tuple[Tensor, Column, Column]
_NAMES: dict[LevelCoding, tuple[str, str]] = {
    "digits": ("digits.pack_digits", "digits.unpack_digits"),
    "elias_dense": ("level_words.encode_dense", "level_words.decode_dense"),
    "elias_sparse": ("level_words.encode_sparse", "level_words.decode_sparse"),
}
"""By coding: the meter's names of writing and reading."""


def _coding_launches(
    coded: Coded, codes: object, segments: Segments, steps: int, coding: LevelCoding
) -> list[KernelCost]:
    return _launches(0, segments.length, coded[1], steps, coding)


@counted_as(_coding_launches)
@primitive
def coded_levels(codes: Tensor, segments: Segments, steps: int, coding: LevelCoding) -> Coded:
    """(bodies, one behind the other, uint8; bytes of each; elements of each that travel).

    `codes` are q + s, uint8, one tensor's behind the other's.
    """
    data, sent = array(codes), segments.length
    if coding == "digits":
        body, sizes = packed_digits(data, segments, 2 * steps + 1)
    elif coding == "elias_dense":
        body, sizes = dense_words(data, segments, steps)
    else:
        body, sizes, sent = sparse_words(data, segments, steps)
    return tensor(body, codes), sizes, sent


def _decoding_launches(
    _: object, body: object, sizes: Column, segments: Segments, sent: object, steps: int,
    coding: LevelCoding,
) -> list[KernelCost]:  # fmt: skip
    return _launches(1, segments.length, sizes, steps, coding)


@counted_as(_decoding_launches)
@primitive
def decoded_levels(
    body: Tensor, sizes: Column, segments: Segments, sent: Column, steps: int, coding: LevelCoding
) -> Tensor:
    """Undo `coded_levels`: uint8; `InputError` for what cannot have been coded.

    Whether codes of digits are at most 2s is left to their user.
    """
    data = np.ascontiguousarray(array(body))
    if coding == "digits":
        codes = unpacked_digits(data, sizes, segments, 2 * steps + 1)
    elif coding == "elias_dense":
        codes = read_dense(data, sizes, segments, steps)
    else:
        codes = read_sparse(data, sizes, segments, sent, steps)
    return tensor(codes, body)


def _launches(
    way: int, lengths: Column, sizes: Column, steps: int, coding: LevelCoding
) -> list[KernelCost]:
    """Cost of the codes, a byte each, and of the bodies."""
    kind: KernelClass = "gather_scatter" if coding == "elias_sparse" else "streaming"
    name = _NAMES[coding][way]
    if coding == "digits":
        name += f":base_{2 * steps + 1}"
    elif coding == "elias_sparse":
        name += f":{spread(int(np.maximum(lengths, sizes).max(initial=0)))}"
    return [launch(kind, name, lengths, lengths, sizes)]
