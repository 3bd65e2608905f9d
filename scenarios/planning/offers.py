"""Offers of machines, in a CSV file whose prices are the user's.

    device,gpus,nodes,network,price
    a100,8,4,100gbe,14.20
    v100,4,16,"25 Gbit/s",6.10

`gpus` of a node, `nodes` that can be had, `network` between them as in `gcsim advise --network`,
`price` of a node and hour in any currency. Columns stand in any order; `name` may be one more, and
lines that are empty or begin with # are skipped.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gcsim.errors import InputError, Problem, did_you_mean
from gcsim.scenarios import catalog
from gcsim.scenarios.links.csv_table import few, shown
from gcsim.scenarios.reading.document import read_text
from gcsim.scenarios.sections.named_files import names_a_file
from gcsim.scenarios.sections.network_words import network_of

COLUMNS = ("device", "gpus", "nodes", "network", "price")
NAME = "name"
_EXAMPLE = "a row is like a100,8,4,100gbe,14.20 (price: of a node and hour)"
_MOST_OFFERS = 200
_DIGITS = 9  # of a count, at most
_COUNTS = {"gpus": 64, "nodes": 4096}
"""Most GPUs of a node, and nodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A kind of nodes that can be had."""

    place: str
    """`offers.csv:2`."""
    name: str
    """The file's, or device and network."""
    device: str
    gpus: int
    nodes: int
    network: str
    price: float
    """Price of a node and hour."""


def read_offers(path: Path) -> tuple[Offer, ...]:
    """Offers of a file in order; `InputError` with every mistake, each with its line."""
    name = shown(path)
    lines = [
        (number, line)
        for number, line in enumerate(read_text(path, name).splitlines(), 1)
        if line.strip() and not line.lstrip().startswith("#")
    ]
    columns = _columns(f"{name}:{lines[0][0]}", lines[0][1]) if lines else []
    if len(lines) <= 1:
        raise InputError("has no offers", place=name, hint=_EXAMPLE if lines else _header_hint())
    if len(lines) - 1 > _MOST_OFFERS:
        message = f"has {len(lines) - 1:,} offers; {_MOST_OFFERS} are allowed"
        raise InputError(message, place=name, hint="leave out those that are dearer and no faster")
    found: list[Offer] = []
    problems: list[Problem] = []
    for number, line in lines[1:]:
        problems += _offer(f"{name}:{number}", columns, line, found)
    if problems:
        raise InputError(few(problems))
    return tuple(found)


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in next(csv.reader([line], skipinitialspace=True))]


def _columns(place: str, header: str) -> list[str]:
    columns = [cell.lower() for cell in _cells(header)]
    problems = [
        Problem(place=place, message=f"the column {one!r} is missing", hint=_header_hint())
        for one in COLUMNS
        if one not in columns
    ]
    for number, one in enumerate(columns):
        if one not in (*COLUMNS, NAME):
            hint = did_you_mean(one, (*COLUMNS, NAME))
            problems.append(Problem(place=place, message=f"unknown column {one!r}", hint=hint))
        elif one in columns[:number]:
            problems.append(
                Problem(place=place, message=f"the column {one!r} stands twice", hint="keep one")
            )
    if problems:
        raise InputError(problems)
    return columns


def _header_hint() -> str:
    return f"write {','.join(COLUMNS)}"


def _offer(place: str, columns: list[str], line: str, found: list[Offer]) -> Iterator[Problem]:
    """Append the line's offer to `found`, or yield its mistakes."""
    cells = _cells(line)
    if len(cells) != len(columns):
        message = f"has {len(cells)} values for {len(columns)} columns"
        yield Problem(place=place, message=message, hint=_EXAMPLE)
        return
    given = dict(zip(columns, cells, strict=True))
    values: dict[str, Any] = {}
    for column, most in _COUNTS.items():
        text = given[column]
        if text.isascii() and text.isdigit() and len(text) <= _DIGITS and 1 <= int(text) <= most:
            values[column] = int(text)
        else:
            message = f"{column} = {text[:40]!r} is not a whole number from 1 to {most}"
            yield Problem(place=place, message=message, hint=_EXAMPLE)
    try:
        price = float(given["price"])
    except ValueError:
        price = math.nan
    if not 0 < price < math.inf:
        message = f"price = {given['price'][:40]!r} is not a number above 0"
        yield Problem(
            place=place, message=message, hint="write a node's price of an hour, as 14.20"
        )
    try:
        device = catalog.device(given["device"]).name
        if not names_a_file(given["network"]):
            network = network_of(given["network"])
            catalog.link(network if isinstance(network, str) else network["like"])
    except InputError as error:
        for one in error.problems:
            yield Problem(place=place, message=one.message, hint=one.hint)
        return
    if len(values) == len(_COUNTS) and price > 0:
        found.append(_named(given, place=place, device=device, price=price, **values))


def _named(given: Mapping[str, str], **values: Any) -> Offer:
    network = given["network"]
    name = given.get(NAME) or f"{values['device']}, {network}"
    return Offer(name=name, network=network, **values)
