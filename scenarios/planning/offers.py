"""Offers of machines, in a CSV file whose prices are the user's.

    device,gpus,nodes,network,price
    a100,8,4,100gbe,14.20
    v100,4,16,"25 Gbit/s",6.10

`gpus`: per node; `nodes`: available; `network`: between nodes, as in `gcsim advise --network`;
`price`: per node and hour, in any currency. Columns may be in any order; `name` and `nics` (NICs
per node, default 1) are optional. Empty lines and those that begin with # are skipped.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from gcsim.errors import InputError, Problem, did_you_mean
from gcsim.scenarios import catalog
from gcsim.scenarios.links.csv_table import read_rows, shown
from gcsim.scenarios.sections.named_files import names_a_file
from gcsim.scenarios.sections.network_words import network_of

COLUMNS = ("device", "gpus", "nodes", "network", "price")
NAME, NICS = "name", "nics"
_HEADER = f"write {','.join(COLUMNS)}"
_EXAMPLE = "a row is like a100,8,4,100gbe,14.20 (price: per node and hour)"
_MOST_OFFERS = 200
_DIGITS = 9  # of a count, at most
_COUNTS = {"gpus": 128, "nodes": 4096, NICS: 32}  # most GPUs per node, nodes, NICs per node


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A kind of nodes that is for rent."""

    place: str  # `offers.csv:2`
    name: str  # the file's, or device and network
    device: str
    gpus: int
    nodes: int
    network: str
    nics: int = 1  # of a node
    price: float  # price of a node and hour


def read_offers(path: Path) -> tuple[Offer, ...]:
    """Read the offers of a file; `InputError` with every mistake, each with its line."""
    name = shown(path)

    def header(number: int, line: str) -> Callable[[str], Offer]:
        return partial(_offer, _columns(f"{name}:{number}", line))

    rows = read_rows(
        path, name, header, most=_MOST_OFFERS, hints=(_HEADER, _EXAMPLE), what="offers",
        too_many="leave out those that cost more and are no faster",
    )  # fmt: skip
    return tuple(replace(offer, place=place) for place, offer in rows)


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in next(csv.reader([line], skipinitialspace=True))]


def _columns(place: str, header: str) -> list[str]:
    columns = [cell.lower() for cell in _cells(header)]
    if len(columns) == 1 and (odd := re.search(r"[;|\t]", header)):
        raise InputError(f"{odd[0]!r} separates the columns", place=place, hint=_HEADER)
    problems = [
        Problem(place=place, message=f"the column {one!r} is missing", hint=_HEADER)
        for one in COLUMNS
        if one not in columns
    ]
    for number, one in enumerate(columns):
        if one not in (known := (*COLUMNS, NAME, NICS)):
            hint = did_you_mean(one, known)
            problems.append(Problem(place=place, message=f"unknown column {one!r}", hint=hint))
        elif one in columns[:number]:
            problems.append(
                Problem(place=place, message=f"the column {one!r} appears twice", hint="keep one")
            )
    if problems:
        raise InputError(problems)
    return columns


def _offer(columns: Sequence[str], line: str) -> Offer:
    """Parse the offer of a line, without a place; `InputError` for its mistakes."""
    cells = _cells(line)
    if len(cells) != len(columns):
        raise ValueError(f"has {len(cells)} values for {len(columns)} columns")
    given = {NICS: "1", **dict(zip(columns, cells, strict=True))}
    problems: list[Problem] = []
    for column, most in _COUNTS.items():
        text = given[column]
        right = text.isascii() and text.isdigit() and len(text) <= _DIGITS
        if not (right and 1 <= int(text) <= most):
            message = f"{column} = {text[:40]!r} is not a whole number from 1 to {most}"
            problems.append(Problem(message=message, hint=_EXAMPLE))
    try:
        price = float(given["price"])
    except ValueError:
        price = math.nan
    if not 0 < price < math.inf:
        message = f"price = {given['price'][:40]!r} is not a number above 0"
        hint = "write the price per node and hour, as 14.20"
        problems.append(Problem(message=message, hint=hint))
    device, network = given["device"], given["network"]
    try:
        device = catalog.device(device).name
        if not names_a_file(network):
            link = network_of(network)
            catalog.link(link if isinstance(link, str) else link["like"])
    except InputError as error:
        problems += error.problems
    if problems:
        raise InputError(problems)
    carried = network if given[NICS] == "1" else f"{given[NICS]} x {network}"
    return Offer(
        place="", name=given.get(NAME) or f"{device}, {carried}", device=device, network=network,
        price=price, **{column: int(given[column]) for column in _COUNTS},
    )  # fmt: skip
