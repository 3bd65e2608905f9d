"""Floats as bytes: powers of two, and decimal exponents of variable width.

Random rounding to a power of two adds a random number to the mantissa's bits; an overflow
increments the exponent. Codes are float32's exponent, with signs apart, or a sign and 7 bits of
exponent (`quantization/floats/natural.py`). Sign, decimal exponent and fraction: `eight_bits.py`.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from gcsim.compressors.loops import inlined, loop

LOWEST = 18
"""Exponent field of float32 that 8-bit codes store as 0."""
DECADES = 7
_INFINITE = np.uint32(0x7F800000)


@inlined
def power_codes(values, fractions, signed, codes):
    """Write 8-bit exponents, or 7-bit exponents with sign (`signed`); `fractions` are random."""
    patterns = values.view(np.uint32)
    for i in range(patterns.size):
        magnitude = patterns[i] & np.uint32(0x7FFFFFFF)
        # 16 of the mantissa's 23 bits are random, plus half a unit of the last of them
        raised = magnitude + ((np.uint32(fractions[i]) << np.uint32(7)) | np.uint32(64))
        # a finite element stays finite: 255 is reserved for infinity and NaN
        exponent = min(raised >> np.uint32(23), np.uint32(254))
        if magnitude >= _INFINITE:
            exponent = np.uint32(255)
        if signed:
            # code 0 is zero, for all below the range; all above gets the last power
            exponent = min(max(exponent, np.uint32(LOWEST)), np.uint32(LOWEST + 127))
            exponent -= np.uint32(LOWEST)
            exponent |= (patterns[i] >> np.uint32(31)) << np.uint32(7)
        codes[i] = np.uint8(exponent)


@loop
def sign_codes(values, codes):
    """Write 1 for each negative element, 0 for others."""
    patterns = values.view(np.uint32)
    for i in range(patterns.size):
        codes[i] = np.uint8(patterns[i] >> np.uint32(31))


@inlined
def add_exponents(sums, codes, negative, weight, pattern):
    """Add weight * powers of two, given by exponents and signs, to `sums`; `pattern` is scratch."""
    for i in range(sums.size):
        # an exponent with mantissa 0 is a power of two, or zero if the exponent is 0
        pattern[i] = np.uint32(codes[i]) << np.uint32(23)
        pattern[i] |= np.uint32(negative[i]) << np.uint32(31)
    powers = pattern.view(np.float32)
    for i in range(sums.size):
        sums[i] += weight * powers[i]


@inlined
def add_power_codes(sums, codes, weight, pattern):
    """Add weight * powers of two, given by signed exponents, to `sums`; `pattern` is scratch."""
    for i in range(sums.size):
        exponent = np.uint32(codes[i] & np.uint8(127))
        if exponent > 0:
            exponent += np.uint32(LOWEST)
        sign = np.uint32(codes[i] >> np.uint8(7)) << np.uint32(31)
        pattern[i] = (exponent << np.uint32(23)) | sign
    powers = pattern.view(np.float32)
    for i in range(sums.size):
        sums[i] += weight * powers[i]


# --- decimal exponents ----------------------------------------------------------------------------


@cache
def tree() -> NDArray[np.float64]:
    """Return the magnitudes of the codes 0 … 127, ascending: float64 `[128]`."""
    values = [0.0]
    for i in range(DECADES):
        fractions = (np.arange(1 << i) + 0.5) / (1 << i)
        values += list(10.0 ** (i - DECADES + 1) * (0.1 + 0.9 * fractions))
    return np.array(values)


def _decades() -> tuple[tuple[np.float32, ...], ...]:
    """Return, for each decade, its smallest element and (slope, offset) such that y is in cell
    floor(slope y + offset). A decade starts midway between its first value and the one below."""
    values = tree()
    first = 1 << np.arange(DECADES)
    least = (values[first - 1] + values[first]) / 2
    slopes = first / (0.9 * 10.0 ** (np.arange(DECADES) - DECADES + 1))
    return tuple(tuple(np.float32(v) for v in row) for row in (least, slopes, -first / 9.0))


LEAST, SLOPES, OFFSETS = _decades()


@inlined
def tree_codes(values, unit, codes):
    """Write the codes of the values nearest to values / unit, plus 128 for negative ones."""
    if unit == np.float32(0):
        unit = np.float32(1)
    for i in range(values.size):
        scaled = np.float32(values[i] / unit)
        size = abs(scaled)
        slope = offset = cells = np.float32(0)
        for k in range(DECADES):  # unrolled selections between constants, without branches
            # the last decade that matches wins; without one all stay 0, and so does the magnitude
            above = size >= LEAST[k]
            slope = SLOPES[k] if above else slope
            offset = OFFSETS[k] if above else offset
            cells = np.float32(1 << k) if above else cells
        last_cell = max(cells - np.float32(1), np.float32(0))
        # clamp: a decade starts below its first cell and ends past its last
        cell = min(max(size * slope + offset, np.float32(0)), last_cell)
        sign = np.int32(128) if scaled < np.float32(0) else np.int32(0)
        codes[i] = np.int32(cell) + np.int32(cells) + sign
