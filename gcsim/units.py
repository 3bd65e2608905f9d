"""Conversion between texts such as "10 Gbit/s" and exact values.

Text becomes an exact `Fraction` in SI base units (seconds, bytes, bytes per second, FLOP per
second), because `50 * 1e-6 != 5e-5` in floating point. Units are `bit` and `B`; rates may also be
written `Gbps` or `Gbit`. Prefixes are k, M, G, T, P (powers of 1000) and Ki, Mi, Gi, Ti (powers of
1024, bits and bytes only). `SPELLED` has other unambiguous spellings; anything else, and a number
without a unit, is refused rather than guessed.
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
"""All units by dimension, with their size in its base unit."""

_WORDS = {"s": "sec second", "ms": "msec millisecond", "us": "usec microsecond", "h": "hr hour"}
_WORDS |= {"ns": "nsec nanosecond", "min": "min minute"}
_PREFIXES = {"": "", "k": "kilo", "M": "mega", "G": "giga", "T": "tera"}
_BITS = ("", "bps", "b/s", "bit", "bits", "bit/s", "bits/s", "bit/sec", "bits/sec", "be", "e")

SPELLED: dict[Dimension, dict[str, Fraction]] = {
    "time": {
        f"{word}{end}": _TIMES[unit]
        for unit, words in _WORDS.items()
        for word in words.split()
        for end in ("", "s")
    }
    | dict.fromkeys(("d", "day", "days"), Fraction(86_400))
    | dict.fromkeys(("week", "weeks"), Fraction(604_800)),
    "size": {"KB": _BYTES["kB"]}
    | {
        f"{word}byte{end}": _BYTES[f"{prefix}B"]
        for prefix, word in _PREFIXES.items()
        for end in ("", "s")
    },
    "bandwidth": {
        f"{prefix.lower()}{word}": _BYTES[f"{prefix}bit"] for prefix in "kMGT" for word in _BITS
    }
    | {f"{prefix}b": _BYTES[f"{prefix}bit"] for prefix in "MGT"}
    | {f"{prefix}{word}": _BYTES[f"{prefix}B"] for prefix in "kMGT" for word in ("Bps", "B/sec")}
    | {"bps": _BYTES["bit"], "gig": _BYTES["Gbit"], "gige": _BYTES["Gbit"]}
    | {
        f"{word}{unit}{end}{rate}": _BYTES[f"{prefix}{short}"]
        for prefix, word in _PREFIXES.items()
        for unit, short in (("bit", "bit"), ("byte", "B"))
        for end in ("", "s")
        for rate in ("", "/s", "/sec")
        if unit == "bit" or rate
    },
    "compute rate": {f"{prefix}flops".lower(): Fraction(_DECIMAL[prefix]) for prefix in "MGTP"},
}
"""Other spellings of units, in any case unless the case of a B distinguishes bytes from bits."""
_BYTES_SAID = re.compile(r"B(?:$|/|p)")

EXAMPLES: dict[Dimension, str] = {
    "time": "50 us",
    "size": "25 MiB",
    "bandwidth": "10 Gbit/s",
    "compute rate": "1.5 TFLOP/s",
}

# Bounded exponents and lengths: no input makes a huge integer.
_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,2})?"
_QUANTITY = re.compile(rf"\s*({_NUMBER})\s*(\S*)\s*", re.ASCII)
_COMMA = re.compile(r"(?<=\d),(?=\d(?:\d|\d{3,})?(?!\d))", re.ASCII)
"""A decimal comma: "2,5". Before three digits ("1,250") it may separate thousands."""
_PER_SECOND = re.compile(r" per sec(?:ond)?$")
_LONGEST = 64


def parse(text: object, dimension: Dimension, such: str | None = None) -> Fraction:
    """Return the exact value of a quantity such as "1.25 GB/s", in the dimension's base unit.

    Raises `InputError` for anything but a non-negative number with a known unit, with `such` a
    value (None: of `EXAMPLES`).
    """
    example = f"write it like {(such or EXAMPLES[dimension])!r}"
    shown = f"{text!s:.{_LONGEST}}"
    if isinstance(text, bool) or not isinstance(text, str | int | float):
        raise InputError(f"{shown!r} is not a {dimension}", hint=example)
    plain = _COMMA.sub(".", _PER_SECOND.sub("/s", str(text)))
    match = _QUANTITY.fullmatch(plain) if len(plain) <= _LONGEST else None
    if match is None:
        hint = example
        if "," in shown:
            point = f", or {shown.replace(',', '.')!r}" if shown.count(",") == 1 else ""
            hint = f"write {shown.replace(',', '')!r}{point}"
        raise InputError(f"{shown!r} is not a {dimension}", hint=hint)
    number, unit = match.groups()
    if not unit:
        raise InputError(f"{shown} has no unit", hint=example)
    if (factor := _factor(unit, dimension)) is None:
        message = f"unknown unit {unit!r} in {shown!r}, which should be a {dimension}"
        raise InputError(message, hint=_nearest(unit, dimension))
    value = Fraction(number) * factor
    if value < 0:
        raise InputError(f"{shown} is negative", hint=example)
    return value


def parse_bytes(text: object) -> int:
    """Parse a size in whole bytes."""
    value = parse(text, "size")
    if value.denominator != 1:
        raise InputError(f"{text} is {float(value):g} bytes; a size is a whole number of bytes")
    return int(value)


def _factor(unit: str, dimension: Dimension) -> Fraction | None:
    found = UNITS[dimension].get(unit) or SPELLED[dimension].get(unit)
    plain = "" if _BYTES_SAID.search(unit) else unit.lower()
    return found or SPELLED[dimension].get(plain)


def _nearest(unit: str, dimension: Dimension) -> str:
    known = UNITS[dimension]
    others = [
        name
        for name, units in UNITS.items()
        if unit in units or (len(unit) > 1 and _factor(unit, name) is not None)
    ]
    if others:
        return f"that is a {others[0]}; write it like {EXAMPLES[dimension]!r}"
    words = [word.lower().removesuffix("/s") for word in (re.sub(r"b$", "bit", unit), unit)]
    near = [one for word in words for one in known if one.lower().removesuffix("/s") == word]
    if near:
        return f"did you mean {' or '.join(repr(name) for name in dict.fromkeys(near))}?"
    common = {"time": ("s", "ms", "us", "ns", "ps", "min", "h"),
              "size": ("B", "kB", "MB", "KiB", "MiB", "GiB"),
              "bandwidth": ("Mbit/s", "Gbit/s", "MB/s", "GB/s"),
              "compute rate": ("GFLOP/s", "TFLOP/s")}  # fmt: skip
    begun = [one for one in common[dimension] if len(unit) == 1 and one.lower()[0] == unit.lower()]
    if begun:
        return f"did you mean {' or '.join(map(repr, begun))}?"
    return did_you_mean(unit, common[dimension])


@lru_cache(maxsize=1 << 12)
def exact(value: Fraction | int, dimension: Dimension) -> str:
    """Return text that `parse` reads back to the same value, in the unit that makes it shortest.

    Raises `ValueError` for a value without a finite decimal expansion, which no parsed value is.
    Cached, because all points of a sweep need the same texts.
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
    """Return all digits of a value >= 0; None if its decimal expansion is infinite."""
    places, rest = 0, value.denominator
    while rest % 10 == 0 or rest % 5 == 0 or rest % 2 == 0:
        rest //= 10 if rest % 10 == 0 else 5 if rest % 5 == 0 else 2
        places += 1
    if rest != 1:
        return None
    digits = str(value.numerator * 10**places // value.denominator).rjust(places + 1, "0")
    whole, fraction = digits[: len(digits) - places], digits[len(digits) - places :].rstrip("0")
    return f"{whole}.{fraction}" if fraction else whole
