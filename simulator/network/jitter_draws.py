"""Compiled draws of jitter (`jitter.py`), equal in all bits on all machines.

Logarithm and exponential are fdlibm's IEEE arithmetic in a fixed order instead of the machine's
library, so equal keys give equal bits everywhere, for one message and for a million.

Sources: fdlibm 5.3, `e_log.c` and `e_exp.c` (Sun Microsystems 1993), less than 1 unit in the last
place; M. Wichura, "Algorithm AS 241: the percentage points of the normal distribution", Applied
Statistics 37(3), 1988 (PPND7).
"""

from __future__ import annotations

from math import ldexp, sqrt

import numpy as np
from numpy.typing import NDArray

from gcsim.compressors.loops import inlined, loop
from gcsim.compressors.random import bits64, fraction64
from gcsim.simulator.clock import PS_PER_SECOND, Times

EXPONENTIAL, UNIFORM, LOGNORMAL, PARETO = range(4)  # codes of distributions
LATEST = 86400.0 * PS_PER_SECOND  # longest delay: a day, in picoseconds
_ROOT_OF_HALF = np.int64(0x3FE6A09E667F3BCD)  # bits of the square root of 1/2


@inlined
def fraction(key: np.uint64, purpose: int, number: int) -> float:
    """Return entry `number` of the purpose's sequence, uniform on [0, 1)."""
    return fraction64(bits64(key, purpose), number)


@inlined
def ln(x: float) -> float:
    """Return the natural logarithm of x in (0, 1], as fdlibm."""
    bits = np.float64(x).view(np.int64)
    k = (bits - _ROOT_OF_HALF) >> np.int64(52)  # x = m 2^k, sqrt(1/2) <= m < sqrt(2)
    f = np.int64(bits - (k << np.int64(52))).view(np.float64) - 1.0
    s = f / (2.0 + f)
    z = s * s
    w = z * z
    r = z * (
        0.6666666666666735130
        + w * (0.2857142874366239149 + w * (0.1818357216161805012 + w * 0.1479819860511658591))
    )
    r += w * (0.3999999999940941908 + w * (0.2222219843214978396 + w * 0.1531383769920937332))
    h = 0.5 * f * f
    return k * 6.93147180369123816490e-01 - (
        (h - (s * (h + r) + k * 1.90821492927058770002e-10)) - f
    )


@inlined
def _exp(x: float) -> float:
    """Exponential function for |x| < 700, as fdlibm."""
    k = int(np.floor(x * 1.4426950408889634 + 0.5))
    high, low = x - k * 6.93147180369123816490e-01, k * 1.90821492927058770002e-10
    r = high - low
    t = r * r
    c = r - t * (
        0.16666666666666602
        + t
        * (
            -0.0027777777777015593
            + t
            * (6.613756321437934e-05 + t * (-1.6533902205465252e-06 + t * 4.1381367970572385e-08))
        )
    )
    return ldexp(1.0 - ((low - (r * c) / (2.0 - c)) - high), k)


@inlined
def _normal_quantile(u: float) -> float:
    """z with P(Z < z) = u in (0, 1), to 1 part in 10^7: AS 241, PPND7."""
    q = u - 0.5
    if abs(q) <= 0.425:
        r = 0.180625 - q * q
        above = ((59.109374720 * r + 159.29113202) * r + 50.434271938) * r + 3.3871327179
        return q * above / (((67.187563600 * r + 78.757757664) * r + 17.895169469) * r + 1.0)
    r = sqrt(-ln(u if q < 0.0 else 1.0 - u))
    if r <= 5.0:
        r -= 1.6
        above = ((0.17023821103 * r + 1.3067284816) * r + 2.7568153900) * r + 1.4234372777
        z = above / ((0.12021132975 * r + 0.73700164250) * r + 1.0)
    else:
        r -= 5.0
        above = ((0.017337203997 * r + 0.42868294337) * r + 3.0812263860) * r + 6.6579051150
        z = above / ((0.012258202635 * r + 0.24197894225) * r + 1.0)
    return -z if q < 0.0 else z


@loop
def _exponential(
    key: np.uint64, message: NDArray[np.int64], rank: NDArray[np.int64], mean: float, out: Times
) -> None:
    """Draw for one link with an exponential delay of every message, vectorised."""
    for i in range(out.size):
        u = fraction(key, rank[i] << 16, message[i])
        out[i] = np.int64(np.rint(min(-mean * ln(1.0 - u), LATEST)))


@loop
def draw(  # noqa: PLR0917
    key: np.uint64,
    kinds: NDArray[np.int64],
    message: NDArray[np.int64],
    rank: NDArray[np.int64],
    first: NDArray[np.int64],
    codes: NDArray[np.int64],
    parameters: NDArray[np.float64],
    out: Times,
) -> bool:
    """Fill `out`, picoseconds; return False for an unknown kind. All arrays have one axis.

    `kinds`, `message` and `rank` have the size of `out`, or 1. Rows `first[k]` to `first[k + 1]` of
    `codes` and `parameters` delay link k:

    | code        | parameters                                                                  |
    |-------------|-----------------------------------------------------------------------------|
    | EXPONENTIAL | probability, mean                                                           |
    | UNIFORM     | probability, mean                                                           |
    | LOGNORMAL   | probability, mean and standard deviation of the logarithm                   |
    | PARETO      | probability, smallest delay, 1 / exponent                                   |
    """
    plain = first.size == 2 and first[1] == 1 and codes[0] == EXPONENTIAL
    if plain and parameters[0, 0] >= 1.0 and message.size == rank.size == out.size:
        _exponential(key, message, rank, parameters[0, 1], out)
        return bool(kinds.min() == 0 and kinds.max() == 0)
    by_kind, by_number, by_rank = int(kinds.size > 1), int(message.size > 1), int(rank.size > 1)
    for i in range(out.size):
        kind = kinds[i * by_kind]
        if kind < 0 or kind >= first.size - 1:
            return False
        number = message[i * by_number]
        sender = rank[i * by_rank] << 16
        late = 0.0
        for row in range(first[kind], first[kind + 1]):
            code, chance = codes[row], parameters[row, 0]
            a, b = parameters[row, 1], parameters[row, 2]
            purpose = sender + 2 * (row - first[kind])
            u = fraction(key, purpose, number)
            if chance < 1.0 and fraction(key, purpose + 1, number) >= chance:
                continue
            if code == EXPONENTIAL:
                late += -a * ln(1.0 - u)
            elif code == UNIFORM:
                late += 2.0 * a * u
            elif code == LOGNORMAL:
                late += _exp(min(b * _normal_quantile(max(u, 2.0**-54)) + a, 690.0))
            else:
                late += a * _exp(-b * ln(1.0 - u))
        out[i] = np.int64(np.rint(min(late, LATEST)))
    return True
