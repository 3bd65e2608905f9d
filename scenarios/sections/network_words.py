"""Everyday words for a network: a rate, with or without a card, a plug or a protocol.

A rate means the catalogue's Ethernet of that rate, or the nearest one with that rate and its own
latency, goodput and ranges: "25G", "10 GbE", "7 Gbit/s", "Mellanox 100 Gb/s". From 200 Gbit/s on it
means RoCE, as such cards are used, unless TCP is named, which leaves most of their rate unused.
"""

from __future__ import annotations

import math
import re
from contextlib import suppress
from fractions import Fraction

from gcsim import units
from gcsim.errors import InputError
from gcsim.names import say
from gcsim.scenarios import catalog

ETHERNET = re.compile(r"\d+gbe|100mbit_ethernet")
"""Pattern of the names of Ethernet in the catalogue."""
_KINDS = {"efa": r"efa_\d+gb", "infiniband": r"infiniband_[a-z]+", "ib": r"infiniband_[a-z]+"}
"""Patterns of the names of other kinds of networks in the catalogue."""
_ROCE = re.compile(r"\d+gbe_roce")
_TCP = re.compile(r"\btcp", re.IGNORECASE)
_RDMA = re.compile(r"(?<![a-z])(?:rdma|roce)", re.IGNORECASE)
_REMOTE = units.parse("200 Gbit/s", "bandwidth")
_PORT = re.compile(
    r"\b(?:speed:|mellanox|connectx(?:[- ]?\d)?|q?sfp[+\d]*|nic|adapter|aws|tcp(?:/ip)?|rdma|ena"
    r"|gvnic|roce\s?(?:v\d)?|(?<!fast )ethernet|eth|network|lan)(?!\w)",
    re.IGNORECASE,
)
"""Words for a card, a plug or a protocol, which are ignored."""
_GIGABIT = re.compile(r"(?<=\d)\s?GB(?=\s?ethernet)", re.IGNORECASE)
"""Gigabits of Ethernet that are written GB."""
_SMALL = re.compile(r"(?P<rate>\d+(?:\.\d+)?)\s*(?P<prefix>[gmt])b")
_LANES = re.compile(r"[\d.]+ ?Gb/s(?:ec)? \(4X ([A-Z]DR)\)", re.IGNORECASE)
"""A rate as ibstatus prints it."""
_AND_LATENCY = re.compile(r"(.+?),?\s+(\d[\d.]* ?[mun]s(?:ec)?)")
_FABRIC = re.compile(r"\b(?:efa|infiniband|ib)\b", re.IGNORECASE)
_RATE = re.compile(r"[-+]?[\d.,]+(?:[eE][-+]?\d+)?(?:\s+\S+|\S*/\S+)")
"""A number and a unit, known or not."""
_BELOW_ZERO = re.compile(r"-\s*[\d.]")
_BOND = re.compile(r"\W*\b(?:bond(?:ed|ing)?|lacp)\b\W*", re.IGNORECASE)
"""A word for several links that are used as one."""
_SEVERAL = re.compile(r"(\d+) ?[x\u00d7*] ?(.+)")
_MOBILE = {"3g", "4g", "5g"}


def network_of(said: str) -> str | dict[str, str]:
    """Return the network section for a name or a rate: an entry's own name; the Ethernet of that
    rate, or the nearest one with that rate; and a latency that follows it. Other words are returned
    unchanged, for the check of names. Raises `InputError` for text that looks like a rate but is
    not valid."""
    if said in catalog.links():
        return said
    if both := _AND_LATENCY.fullmatch(said):
        link = network_of(both[1])
        return {**({"like": link} if isinstance(link, str) else link), "latency": both[2]}
    several = _SEVERAL.fullmatch(_BOND.sub("", said)) if _BOND.search(said) else None
    if several and (one := _rate(several[2])):
        message = f"{said!r} names several links that are used as one"
        raise InputError(message, hint=f"write their bandwidth: {_bits(int(several[1]) * one)}")
    said = _LANES.sub(r"infiniband \1", said)
    plain = " ".join(_PORT.sub(" ", _GIGABIT.sub("Gb", said)).split()) or said
    if plain.isdigit() and _RDMA.search(said):  # "RoCE 25"
        plain += " Gbit/s"
    if small := _SMALL.fullmatch(plain):  # bytes, perhaps
        plain = f"{small['rate']} {small['prefix'].upper()}bit/s"
        say("link", said, plain)
    rate = Fraction(0) if _BELOW_ZERO.match(plain) else _rate(plain)
    if rate is None:
        try:
            return catalog.link(plain).name
        except InputError as error:
            asked = "; there are" in str(error) and plain[-1] not in "Bb"  # bytes are no rate
        rate = _rate(_FABRIC.sub("", plain))
        if rate is None and (asked or not _RATE.fullmatch(plain)):
            return said
        if rate is None:
            rate = units.parse(plain, "bandwidth")  # raises what is wrong
    if not rate:
        hint = 'write it like "25 Gbit/s", or 25gbe, from `gcsim list links`'
        raise InputError(f"{said} is not a rate", hint=hint)
    remote = _RDMA.search(said) or (rate >= _REMOTE and not _TCP.search(said))
    kind = _ROCE if remote else ETHERNET
    if fabric := _FABRIC.search(said):
        kind = re.compile(_KINDS[fabric[0].lower()])
    known = [one for name, one in catalog.links().items() if kind.fullmatch(name)]
    near = min(known, key=lambda link: abs(math.log(link.bandwidth / rate)))
    return near.name if near.bandwidth == rate else {"like": near.name, "bandwidth": _bits(rate)}


def _rate(text: str) -> Fraction | None:
    """Return bytes per second; None if the text is no rate."""
    with suppress(InputError):
        return None if text.lower() in _MOBILE else units.parse(text, "bandwidth")
    return None


def _bits(rate: Fraction) -> str:
    sizes = units.UNITS["bandwidth"]
    unit = next((one for one in ("Gbit/s", "Mbit/s") if rate >= sizes[one]), "kbit/s")
    return f"{units.decimal(rate / sizes[unit])} {unit}"


def supposes_rdma(said: str) -> bool:
    """Whether a word for a network names a rate for which RDMA is assumed."""
    found = network_of(said)
    name = found if isinstance(found, str) else found["like"]
    return name.endswith("_roce") and not _RDMA.search(said)
