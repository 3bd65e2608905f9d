"""Words of people for a network: a rate alone, with or without a card, a plug or a protocol.

A rate is the catalogue's Ethernet of that rate, or the nearest one at that rate, with its latency,
goodput and ranges: "25G", "10 GbE", "7 Gbit/s", "Mellanox 100 Gb/s".
"""

from __future__ import annotations

import math
import re

from gcsim import units
from gcsim.errors import InputError
from gcsim.scenarios import catalog

_ETHERNET = re.compile(r"\d+gbe|100mbit_ethernet")
_BITS = re.compile(
    r"\s*(?P<rate>\d+(?:\.\d+)?)\s*(?P<prefix>[GMgm])"
    r"(?:b|[Bb][Ii][Tt]|b/s|[Bb]it/s(?:ec)?|[Bb]ps|igabits?|egabits?|ig|ig[Ee]|[Bb]?[Ee]"
    r"|bit per second|(?i:base-?\w+))?\s*"
)
"""Usual spellings of a network's rate in bit/s: "25G", "10 Gb/s", "2.5 GbE", "10GBASE-T"."""
_PORT = re.compile(
    r"\b(?:mellanox|connectx(?:[- ]?\d)?|q?sfp[+\d]*|nic|adapter|aws|tcp(?:/ip)?"
    r"|(?<!fast )ethernet)(?!\w)",
    re.IGNORECASE,
)
"""Words that name a card, a plug or a protocol, no rate."""
_MOBILE = {"3g", "4g", "5g"}


def network_of(said: str) -> str | dict[str, str]:
    """Network section for a name or a rate: an entry's own name; the Ethernet of that rate, or the
    nearest one at that rate. Words that are neither are returned as they are, for the check of
    names. Raises `InputError` for what is written as a rate and is none."""
    if said in catalog.links():
        return said
    said = " ".join(_PORT.sub(" ", said).split()) or said
    a_name = False
    if (bits := _BITS.fullmatch(said)) and said.lower() not in _MOBILE:
        said = f"{bits['rate']} {bits['prefix'].upper()}bit/s"
    else:
        try:
            return catalog.link(said).name
        except InputError as error:
            a_name = "; there are" in str(error) or not re.search(r"[\s/]", said)
    if a_name or not re.match(r"\s*[\d.+-]", said):
        return said
    rate = units.parse(said, "bandwidth")
    if not rate:
        hint = 'write it like "25 Gbit/s", or 25gbe of `gcsim list links`'
        raise InputError(f"{said} is not a rate", hint=hint)
    known = [one for name, one in catalog.links().items() if _ETHERNET.fullmatch(name)]
    near = min(known, key=lambda link: abs(math.log(link.bandwidth / rate)))
    return near.name if near.bandwidth == rate else {"like": near.name, "bandwidth": said.strip()}
