"""Levels of a bucket as digits or Elias codes: primitives over `digits.py` and `level_words.py`."""

from __future__ import annotations

from typing import Literal

import numpy as np

from gcsim.compressors.coding.integers.digits import pack_digits, unpack_digits
from gcsim.compressors.coding.rounding.level_words import (
    decode_dense,
    decode_sparse,
    encode_dense,
    encode_sparse,
)
from gcsim.compressors.kernels import KernelClass, KernelCost, spread
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.meter import counted_as, launch
from gcsim.compressors.on_device import primitive
from gcsim.compressors.segments import Column, Segments

LevelCoding = Literal["digits", "elias_dense", "elias_sparse"]
Coded = tuple[Tensor, Column, Column]


def _coding_launches(
    coded: Coded, codes: object, segments: Segments, steps: int, coding: LevelCoding
) -> list[KernelCost]:
    return _launches("encode", segments.length, coded[1], steps, coding)


@counted_as(_coding_launches)
@primitive
def coded_levels(codes: Tensor, segments: Segments, steps: int, coding: LevelCoding) -> Coded:
    """(bodies, one behind the other, uint8; bytes of each; elements of each that travel).

    `codes` are q + s, uint8, one tensor's behind the other's.
    """
    bodies, sent = [], segments.length.copy()
    for t, own in enumerate(torch.split(codes, segments.length.tolist())):
        if coding == "digits":
            bodies.append(pack_digits(own, 2 * steps + 1))
        elif coding == "elias_dense":
            bodies.append(encode_dense(own, steps))
        else:
            body, sent[t] = encode_sparse(own, steps)
            bodies.append(body)
    return torch.cat(bodies), np.array([len(body) for body in bodies]), sent


def _decoding_launches(
    _: object, body: object, sizes: Column, segments: Segments, sent: object, steps: int,
    coding: LevelCoding,
) -> list[KernelCost]:  # fmt: skip
    return _launches("decode", segments.length, sizes, steps, coding)


@counted_as(_decoding_launches)
@primitive
def decoded_levels(
    body: Tensor, sizes: Column, segments: Segments, sent: Column, steps: int, coding: LevelCoding
) -> Tensor:
    """Undo `coded_levels`: uint8; `InputError` for what cannot have been coded.

    Whether codes of digits are at most 2s is left to their user.
    """
    return each_decoded(body, sizes, segments, sent, steps, coding)


def each_decoded(
    body: Tensor, sizes: Column, segments: Segments, sent: Column, steps: int, coding: LevelCoding
) -> Tensor:
    """`decoded_levels`, tensor by tensor."""
    codes = []
    pieces = torch.split(body, sizes.tolist())
    for own, n, k in zip(pieces, segments.length.tolist(), sent.tolist(), strict=True):
        if coding == "digits":
            codes.append(unpack_digits(own, n, 2 * steps + 1))
        elif coding == "elias_dense":
            codes.append(decode_dense(own, n, steps))
        else:
            codes.append(decode_sparse(own, n, k, steps))
    return torch.cat(codes)


def _launches(
    way: str, lengths: Column, sizes: Column, steps: int, coding: LevelCoding
) -> list[KernelCost]:
    """Cost of the codes, a byte each, and of the bodies."""
    kind: KernelClass = "gather_scatter" if coding == "elias_sparse" else "streaming"
    name = f"level_words.{way}_{coding.removeprefix('elias_')}"
    if coding == "digits":
        name = f"digits.{'un' * (way == 'decode')}pack_digits:base_{2 * steps + 1}"
    elif coding == "elias_sparse":
        name += f":{spread(int(np.maximum(lengths, sizes).max(initial=0)))}"
    return [launch(kind, name, lengths, lengths, sizes)]
