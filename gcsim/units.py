"""Texts such as "10 Gbit/s" as exact values, written so that they read back the same.

Text becomes an exact `Fraction` in SI base units (seconds, bytes, bytes per second, FLOP per
second), because `50 * 1e-6 != 5e-5` in floating point. Only `bit` and `B` are accepted, so that
nothing hangs on the case of one letter, and of rates `bps` (25 Gbps) and `bit` (25 Gbit), as
networks are sold; prefixes are k, M, G, T, P (powers of 1000) and Ki, Mi, Gi, Ti (powers of 1024,
bits and bytes only). A number without a unit is refused, not guessed.
"""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache
from typing import Literal

from gcsim.errors import InputError, did_you_mean

Dimension = Literal["time", "size", "bandwidth", "compute rate"]

_DECIMAL = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}
_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
_BYTES = {
    f"{prefix}{unit}": Fraction(factor, per_byte)
    for unit, per_byte in (("B", 1), ("bit", 8))
    for prefix, factor in {**_DECIMAL, **_BINARY}.items()
}
_TIMES = {
    unit: Fraction(1, 1000**power) for power, unit in enumerate(("s", "ms", "us", "ns", "ps"))
}
_TIMES["µs"] = _TIMES["μs"] = _TIMES["us"]  # both of Unicode's mu
_TIMES |= {"min": Fraction(60), "h": Fraction(3600)}

UNITS: dict[Dimension, dict[str, Fraction]] = {
    "time": _TIMES,
    "size": _BYTES,
    "bandwidth": {f"{unit}/s": factor for unit, factor in _BYTES.items()},
    "compute rate": {f"{prefix}FLOP/s": Fraction(factor) for prefix, factor in _DECIMAL.items()},
}
"""Every unit, with its size in the base unit of its dimension."""

_SOLD = {f"{prefix}bps": f"{prefix}bit/s" for prefix in _DECIMAL}
"""Bits a second, as people write them too."""

EXAMPLES: dict[Dimension, str] = {
    "time": "50 us",
    "size": "25 MiB",
    "bandwidth": "10 Gbit/s",
    "compute rate": "1.5 TFLOP/s",
}

# An exponent has at most two digits and the whole a bounded length: no input makes a huge integer.
_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,2})?"
_QUANTITY = re.compile(rf"\s*({_NUMBER})\s*(\S*)\s*", re.ASCII)
_LONGEST = 64


def parse(text: object, dimension: Dimension) -> Fraction:
    """The exact value of a quantity such as "1.25 GB/s", in the dimension's base unit.

    Raises `InputError` for anything but a non-negative number with a known unit.
    """
    example = f"write it like {EXAMPLES[dimension]!r}"
    shown = f"{text!s:.{_LONGEST}}"
    if isinstance(text, bool) or not isinstance(text, str | int | float):
        raise InputError(f"{shown!r} is not a {dimension}", hint=example)
    match = _QUANTITY.fullmatch(str(text)) if len(str(text)) <= _LONGEST else None
    if match is None:
        raise InputError(f"{shown!r} is not a {dimension}", hint=example)
    number, unit = match.groups()
    if not unit:
        raise InputError(f"{shown} has no unit", hint=example)
    known = UNITS[dimension]
    unit = _SOLD.get(unit, unit)
    if dimension == "bandwidth" and unit.endswith("bit"):
        unit += "/s"
    if unit not in known:
        message = f"unknown unit {unit!r} in {shown!r}, which should be a {dimension}"
        raise InputError(message, hint=_nearest(unit, dimension))
    value = Fraction(number) * known[unit]
    if value < 0:
        raise InputError(f"{shown} is negative", hint=example)
    return value


def parse_bytes(text: object) -> int:
    """A size in whole bytes."""
    value = parse(text, "size")
    if value.denominator != 1:
        raise InputError(f"{text} is {float(value):g} bytes; a size is a whole number of bytes")
    return int(value)


def _nearest(unit: str, dimension: Dimension) -> str:
    known = UNITS[dimension]
    others = [name for name, table in UNITS.items() if unit in table]
    if others:
        return f"that is a {others[0]}; write it like {EXAMPLES[dimension]!r}"
    spelled = re.sub(r"(?<=[A-Za-z])ps$", "/s", unit).replace("bits", "bit").replace("Bytes", "B")
    as_bits = re.sub(r"b(/s)?$", r"bit\1", spelled)  # Gb/s, Mbps: bits by custom, 8 times less
    if dimension == "bandwidth" and re.fullmatch(r"[kMGT](b|bit)?", as_bits):  # 10G, 10Gb
        as_bits = f"{as_bits[0]}bit/s"
    near = [name for word in (as_bits, spelled) for name in known if name.lower() == word.lower()]
    if near:
        return f"did you mean {' or '.join(repr(name) for name in dict.fromkeys(near))}?"
    common = {"time": ("s", "ms", "us", "ns", "ps", "min", "h"),
              "size": ("B", "kB", "MB", "KiB", "MiB", "GiB"),
              "bandwidth": ("Mbit/s", "Gbit/s", "MB/s", "GB/s"),
              "compute rate": ("GFLOP/s", "TFLOP/s")}  # fmt: skip
    return did_you_mean(unit, common[dimension])


@lru_cache(maxsize=1 << 12)
def exact(value: Fraction | int, dimension: Dimension) -> str:
    """Text that `parse` reads back to the same value, in the unit that makes it shortest.

    Raises `ValueError` for a value without a finite decimal expansion: none that was parsed. All
    points of a sweep ask for the same texts again.
    """
    if value == 0:
        return next(f"0 {unit}" for unit, factor in UNITS[dimension].items() if factor == 1)
    written = []
    for unit, factor in UNITS[dimension].items():
        digits = decimal(Fraction(value) / factor)
        if digits is not None and unit.isascii() and "bit" not in unit:
            written.append((len(digits), digits.startswith("0."), -factor, f"{digits} {unit}"))
    if not written:
        raise ValueError(f"{value} has no finite decimal expansion")
    return min(written)[-1]


def decimal(value: Fraction) -> str | None:
    """All the digits of a value >= 0; None when its decimal expansion does not end."""
    places, rest = 0, value.denominator
    while rest % 10 == 0 or rest % 5 == 0 or rest % 2 == 0:
        rest //= 10 if rest % 10 == 0 else 5 if rest % 5 == 0 else 2
        places += 1
    if rest != 1:
        return None
    digits = str(value.numerator * 10**places // value.denominator).rjust(places + 1, "0")
    whole, fraction = digits[: len(digits) - places], digits[len(digits) - places :].rstrip("0")
    return f"{whole}.{fraction}" if fraction else whole
