"""Notation of numbers, the same in tables, sentences and figures."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Iterable
from typing import Any

from rich.console import Console, RenderableType
from rich.text import Text


def significant(value: float, digits: int = 3) -> str:
    """Format `value` with `digits` significant digits: "244", "12.3", "0.0245", "8.3e-08", "0".
    Integer digits are never dropped ("1234", not "1230"); below 0.001 the notation is scientific
    with one digit less."""
    if value == 0:
        return "0"
    size = abs(value)
    if size < 1e-3 or size >= 1e7:
        return f"{value:.{digits - 2}e}"
    # round first: 9.996 has two integer digits ("10.0", not "10.00")
    size = float(f"{size:.{digits}g}")
    whole = len(str(int(size))) if size >= 1 else 1 + int(f"{size:e}".split("e")[1])
    return f"{value:.{max(0, digits - whole)}f}"


def decimals_for(values: Iterable[float], *, digits: int) -> int:
    """Return the decimals that show `digits` digits of the smallest nonzero value; at most 3."""
    smallest = min((abs(value) for value in values if value), default=1.0)
    return min(3, max(0, digits - 1 - math.floor(math.log10(smallest))))


def fixed(value: float, decimals: int) -> str:
    """Format with `decimals` decimals; "0" is an exact zero, "<0.1" a smaller nonzero value."""
    if value == 0:
        return "0"
    if 0 < value < 0.5 * 10**-decimals:
        return f"<{10**-decimals:.{decimals}f}"
    return f"{value:.{decimals}f}"


def unit_of_time(seconds: float) -> tuple[str, float]:
    """Return the unit of an iteration's time (s from 10 s, else ms) and its number per second."""
    return ("s", 1.0) if seconds >= 10 else ("ms", 1e3)


def elapsed(seconds: float) -> str:
    """Format an iteration's time: "423 ms", "1239 s"."""
    unit, in_a_second = unit_of_time(seconds)
    return f"{significant(seconds * in_a_second)} {unit}"


def times(factor: float) -> str:
    """Format a factor: "5.21x"."""
    return f"{significant(factor)}x"


def plural(count: int, noun: str) -> str:
    """Format a count with its noun: "1 node", "32 nodes"."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def bits(bytes_per_second: float) -> str:
    """Format a rate in bits without exponents: "9.41 Gbit/s"."""
    number, unit = rate(bytes_per_second, digits=15).split()
    value = float(number)
    return f"{value:.3g} {unit}" if value < 999.5 else f"{value:.0f} {unit}"


def rate(bytes_per_second: float, digits: int = 4) -> str:
    """Format a rate in bits with `digits` digits, so that `units.parse` can read it."""
    bits_per_second = bytes_per_second * 8
    for unit, size in (("Tbit/s", 1e12), ("Gbit/s", 1e9), ("Mbit/s", 1e6), ("kbit/s", 1e3)):
        if bits_per_second >= size:
            return f"{bits_per_second / size:.{digits}g} {unit}"
    return f"{bits_per_second:.{digits}g} bit/s"


def scaled(value: float, unit: str) -> str:
    """Format a figure with its unit and no exponent: "74.0 GB/s", "0.6", "1.4 ns/B"."""
    for prefix, size in (("T", 1e12), ("G", 1e9), ("M", 1e6)):
        if unit and value >= size:
            return f"{significant(value / size)} {prefix}{unit}"
    if unit.startswith("s/") and value < 1:
        return duration(value) + unit[1:]
    return f"{significant(value)} {unit}".strip()


def duration(seconds: float) -> str:
    """Format a time in the unit that suits its size: "50 us", "1.5 ms", "2 h"."""
    for unit, size in (("h", 3600.0), ("min", 60.0), ("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.4g} {unit}"
    return f"{seconds * 1e9:.4g} ns" if seconds else "0 s"


def ends(low: str, high: str) -> str:
    """Join two numbers with units to a range, with one unit if both have the same: "20-160 us"."""
    return f"{low.removesuffix(high[high.index(' ') :])}-{high}"


def size(nbytes: int) -> str:
    """Format a number of bytes in binary units: "25 MiB", "1000 B"."""
    for unit, power in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if nbytes >= 1 << power:
            return f"{nbytes / (1 << power):.4g} {unit}"
    return f"{nbytes} B"


_UNIT = re.compile(r"(?<=\d) (?=(?:%|[mu]?s|h|[KMG]iB|[kMGT]?B|[kMGT]bit/s)(?!\w))")


def unbroken(text: str) -> str:
    """Put a no-break space between numbers and units, so that wrapping keeps them together."""
    return _UNIT.sub("\N{NO-BREAK SPACE}", text)


def wrapped(text: str, width: int, indent: str = "") -> list[str]:
    """Wrap text at blanks, but not between numbers and units; `indent` precedes all lines but the
    first."""
    lines = textwrap.wrap(
        unbroken(text), width, subsequent_indent=indent, break_long_words=False,
        break_on_hyphens=False,
    )  # fmt: skip
    return [line.replace("\N{NO-BREAK SPACE}", " ") for line in lines]


def printed(parts: Iterable[RenderableType], console: Console) -> str:
    """Return what a console prints, without trailing blanks. Prose is wrapped here, because rich
    also breaks at no-break spaces; its lines, and a `Text` that is not to be wrapped, stay whole,
    which rich's `Text` alone does not ensure."""
    with console.capture() as capture:
        for part in parts:
            shown = folded(part, console.width)
            whole = isinstance(shown, str) or (isinstance(shown, Text) and shown.no_wrap)
            options: dict[str, Any] = {"no_wrap": True, "overflow": "ignore"} if whole else {}
            console.print(shown, crop=False, **options)
    return "\n".join(line.rstrip(" ") for line in capture.get().split("\n"))


def folded(part: RenderableType, width: int) -> RenderableType:
    """Return prose as wrapped lines, other parts unchanged."""
    if isinstance(part, Text) and not (part.no_wrap or part.spans or part.style):
        part = part.plain
    if not isinstance(part, str):
        return part
    return "\n".join(line for one in part.split("\n") for line in wrapped(one, width) or [""])


def percent(share: float) -> str:
    """Format a share as "19 %" with a no-break space."""
    return f"{share:.0%}".replace("%", "\N{NO-BREAK SPACE}%")
