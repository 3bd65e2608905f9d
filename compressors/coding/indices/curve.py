"""Curves: many values in few numbers, where their order is sent along.

Sorted, largest first, the values form a smooth descending curve but for the step at zero. It is
cut into pieces, each fitted by a polynomial (least squares); the coefficients travel as float64,
with the number of positive values (32 bits) and each value's rank (ceil(log2 k) bits).

The pieces follow from the number of values and of positive ones: fractions 1/5, 1/10, 1/30, 1/100
and so on of the positive values, the small ones where values are steepest, and the same for the
rest; pieces of 30 values or fewer belong to their neighbour. Coefficients are of Legendre
polynomials over a piece: they span the same curves as powers of x, but do not lose all digits
beyond some hundred values.

Source: "Fit-Poly" of DeepReduce (Kostopoulou et al., NeurIPS 2021, arXiv:2102.03112); the
fractions are those of the authors' code.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gcsim.compressors.coding.indices.index_coding import index_width
from gcsim.compressors.coding.integers.packing import (
    check_packed,
    damaged,
    get_fields,
    packed_bytes,
    put_fields,
)
from gcsim.compressors.lazy_torch import Tensor
from gcsim.compressors.loops import FLOAT32_MAX, array, tensor
from gcsim.compressors.meter import kernel

_FRACTIONS = (5, 10, 30, 100, 300, 1000, 3000, 10_000, 30_000, 100_000)
_SHORTEST = 30


def piece_lengths(count: int, positive: int) -> list[int]:
    """Lengths of the pieces of `count` descending values of which `positive` are above zero."""
    lengths = []
    for number, steepest_first in ((positive, True), (count - positive, False)):
        outer = [number // part for part in _FRACTIONS if number // part > _SHORTEST]
        inner = number - sum(outer)
        lengths += [*reversed(outer), inner] if steepest_first else [inner, *outer]
    return [length for length in lengths if length]


@kernel("sort")
def fit_curve(values: Tensor, degree: int) -> tuple[Tensor, Tensor]:
    """Coded values, and what a receiver makes of them.

    `values` is float32 `[k]`, finite; returns uint8 and float32 `[k]`. The code is: number of
    positive values u32, coefficients float64 of all pieces (degree + 1, or as many as the piece
    has values), ranks.
    """
    given = array(values)
    order = np.argsort(-given, kind="stable")
    ranks = np.empty(given.size, dtype=np.int64)
    ranks[order] = np.arange(given.size)
    descending = given[order].astype(np.float64)
    positive = int((given > 0).sum())
    coefficients, start = [], 0
    for length in piece_lengths(given.size, positive):
        basis = _legendre(length, min(degree + 1, length))
        gram = np.array([_summed(each * basis) for each in basis])
        moments = _summed(basis * descending[start : start + length])
        coefficients.append(np.linalg.solve(gram, moments))
        start += length
    found = np.concatenate([np.zeros(0), *coefficients])
    coded = np.zeros(packed_bytes(given.size, index_width(given.size)), dtype=np.uint8)
    put_fields(ranks, index_width(given.size), coded)
    parts = (
        np.array([positive], dtype="<u4").view(np.uint8),
        found.astype("<f8").view(np.uint8),
        coded,
    )
    decoded = _curve(found, given.size, positive, degree)[ranks]
    return tensor(np.concatenate(parts), values), tensor(decoded, values)


@kernel("gather_scatter")
def read_curve(body: Tensor, count: int, degree: int) -> tuple[Tensor, int]:
    """(values float32 `[count]` that `fit_curve` coded at the beginning of `body`, bytes used).

    Raises `InputError` when the body is too short, a coefficient is not finite, or the ranks are
    not those of `count` values.
    """
    data = array(body)
    if data.size < 4:
        raise damaged(f"{data.size} bytes where a number of positive values must be")
    positive = int.from_bytes(data[:4].tobytes(), "little")
    if positive > count:
        raise damaged(f"{positive} of {count} values are said to be positive")
    terms = sum(min(degree + 1, length) for length in piece_lengths(count, positive))
    cut = 4 + 8 * terms
    used = cut + packed_bytes(count, index_width(count))
    if data.size < used:
        raise damaged(f"{data.size} bytes where {count} fitted values take {used}")
    coefficients = np.frombuffer(data[4:cut].tobytes(), dtype="<f8")
    if not np.isfinite(coefficients).all():
        raise damaged("a coefficient is not finite")
    check_packed(data[cut:used], count, index_width(count))
    ranks = np.empty(count, dtype=np.int64)
    get_fields(data[cut:used], index_width(count), ranks)
    if count and (np.bincount(ranks, minlength=count) != 1).any():
        raise damaged("ranks are not a permutation")
    return tensor(_curve(coefficients, count, positive, degree)[ranks], body), used


def _curve(
    coefficients: NDArray[np.float64], count: int, positive: int, degree: int
) -> NDArray[np.float32]:
    """The fitted values, largest first: float32 `[count]`."""
    out = np.empty(count, dtype=np.float32)
    start = used = 0
    for length in piece_lengths(count, positive):
        terms = min(degree + 1, length)
        weighted = coefficients[used : used + terms, None] * _legendre(length, terms)
        total = _summed(weighted.T)
        out[start : start + length] = total.clip(-FLOAT32_MAX, FLOAT32_MAX)
        start, used = start + length, used + terms
    return out


def _legendre(length: int, terms: int) -> NDArray[np.float64]:
    """The first Legendre polynomials at the middles of `length` equal parts of [-1, 1]."""
    x = (2.0 * np.arange(length) + 1.0) / length - 1.0
    basis = np.ones((terms, length))
    before = np.zeros(length)
    for j in range(1, terms):
        basis[j] = ((2 * j - 1) * x * basis[j - 1] - (j - 1) * before) / j
        before = basis[j - 1]
    return basis


def _summed(terms: NDArray[np.float64]) -> NDArray[np.float64]:
    """Sums over the last axis, from the first term to the last."""
    return np.add.accumulate(terms, axis=-1)[..., -1]
