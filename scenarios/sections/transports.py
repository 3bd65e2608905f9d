"""What does a transport's software cost? Additions and calls: their keys, and the defaults.

`catalog/transports.yaml` has an entry for each transport that works on the host, by its name, and
another for an older generation (`gloo_pytorch1`), which says only what differs, or for hosts of few
cores (`gloo_few_cores`). A scenario gets the
entry of its own transport; what it states itself under `cluster.sums` and `cluster.host` comes
first. `none` stands for no price at all.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from gcsim import units
from gcsim.errors import InputError
from gcsim.scenarios.reading.checking import Section, check, check_range
from gcsim.scenarios.reading.document import read_file
from gcsim.scenarios.reading.types import TWO, Bandwidth, Count, Duration
from gcsim.simulator.cluster import Collectives
from gcsim.simulator.host import MANY, PRICES, Host
from gcsim.simulator.sums import DTYPES, Sums

FILE = Path(__file__).parent.parent / "catalog" / "transports.yaml"
NONE = "none"

_Rates = Annotated[list[Bandwidth], TWO]
_Times = Annotated[list[Duration], TWO]
_Text = Annotated[str, Field(min_length=1)]


GROUPED: Mapping[str, tuple[Fraction, tuple[Fraction, Fraction]]] = MappingProxyType(
    {"nccl": (Fraction(4, 5), (Fraction(11, 20), Fraction(1)))}
)
"""By transport: the share of a network's goodput that an all-to-all reaches, and its range. Stated:
fitted to synchronisations of 256 MiB on 4 to 16 machines by two groups of sends each, over TCP at 1
to 10 Gbit/s, 0.77 to 0.79 (BinhangYuan/tc_cluster_setting @75581a5b, results/Simulate_DP.md); on
eight nodes over InfiniBand an all-to-all's cards carry 0.83 of what they do in an all-reduce
(derived from NVIDIA/nccl-tests issue 78). Lowest: 28 of 50 Gbit/s over TCP (NVIDIA/nccl issue 464).
Highest: no loss."""


class SumsSection(Section):
    """At which rates received data are added, by type of the elements."""

    float64: Bandwidth | None = None
    float32: Bandwidth | None = None
    float16: Bandwidth | None = None
    bfloat16: Bandwidth | None = None
    int64: Bandwidth | None = None
    int32: Bandwidth | None = None
    int8: Bandwidth | None = None
    uint8: Bandwidth | None = None
    float64_range: _Rates | None = None
    float32_range: _Rates | None = None
    float16_range: _Rates | None = None
    bfloat16_range: _Rates | None = None
    int64_range: _Rates | None = None
    int32_range: _Rates | None = None
    int8_range: _Rates | None = None
    uint8_range: _Rates | None = None

    @model_validator(mode="after")
    def _in_range(self) -> SumsSection:
        for dtype in DTYPES:
            check_range(dtype, getattr(self, dtype), getattr(self, f"{dtype}_range"))
        return self

    def sums(self, default: Sums | None = None) -> Sums:
        """As the simulator has them; types that are not stated are as in `default`."""
        given = {name: value for name, value in self if value is not None}
        ranges = {f"{dtype}_range": None for dtype in given if dtype in DTYPES}
        return replace(default or Sums(), **{**ranges, **_values(given)})


class HostSection(Section):
    """What the processors of a machine spend on the collectives of its ranks."""

    cores: Annotated[Count, Field(le=MANY)] = MANY
    per_message: Duration = Fraction(0)
    per_byte: Duration = Fraction(0)
    per_call: Duration = Fraction(0)
    per_copied_byte: Duration = Fraction(0)
    per_received_byte: Duration = Fraction(0)
    dispatch: Duration = Fraction(0)
    per_message_range: _Times | None = None
    per_byte_range: _Times | None = None
    per_call_range: _Times | None = None
    per_copied_byte_range: _Times | None = None
    per_received_byte_range: _Times | None = None
    dispatch_range: _Times | None = None
    in_flight: Annotated[Count, Field(le=64)] = 2
    ranks: Literal["node", "all"] = "node"

    @model_validator(mode="after")
    def _in_range(self) -> HostSection:
        for price in PRICES:
            check_range(price, getattr(self, price), getattr(self, f"{price}_range"))
        return self

    def host(self, default: Host | None = None) -> Host:
        """As the simulator has it; what is not stated is as in `default`, a stated price without
        its range."""
        given = {name: getattr(self, name) for name in self.model_fields_set}
        ranges = {f"{price}_range": None for price in given if price in PRICES}
        return replace(default or Host(), **{**ranges, **_values(given)})


def _values(given: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(each) if isinstance(each, list) else each for name, each in given.items()}


class _Entry(Section):
    like: str | None = None
    sums: SumsSection
    sums_source: _Text
    host: HostSection | None = None
    host_source: str = ""


class _Table(Section):
    transports: dict[str, _Entry]


@functools.cache
def transports() -> Mapping[str, tuple[Sums, Host | None]]:
    """The prices of additions and calls by transport, or transport_library, as shipped."""
    document = read_file(FILE, FILE.name)
    table, problems = check(_Table, document)
    if table is None:
        raise InputError(problems)
    found: dict[str, tuple[Sums, Host | None]] = {}
    for name, entry in table.transports.items():
        above = found[entry.like] if entry.like else (Sums(), None)
        host = above[1] if entry.host is None else entry.host.host(above[1])
        found[name] = entry.sums.sums(above[0]), host
    return MappingProxyType(found)


def defaults(collectives: Collectives) -> tuple[Sums, Host | None]:
    """What the transport's additions and calls cost where a scenario does not say."""
    known, name = transports(), collectives.transport
    return known.get(f"{name}_{collectives.library}", known.get(name, (Sums(), None)))


def with_few_cores(transport: str, stated: Host) -> Host:
    """What is stated of cores, with the transport's prices where processes share them."""
    _, known = transports().get(f"{transport}_few_cores", (Sums(), None))
    if known is None:
        return stated
    return replace(known, cores=stated.cores, ranks=stated.ranks, in_flight=stated.in_flight)


def plain_sums(sums: Sums) -> dict[str, Any] | str:
    """As a file has them."""
    found: dict[str, Any] = {}
    for dtype in DTYPES:
        rate, bounds = getattr(sums, dtype), getattr(sums, f"{dtype}_range")
        if rate is not None:
            found[dtype] = units.exact(rate, "bandwidth")
        if bounds is not None:
            found[f"{dtype}_range"] = [units.exact(end, "bandwidth") for end in bounds]
    return found or NONE


def plain_host(host: Host) -> dict[str, Any]:
    """As a file has it."""

    def prices() -> Iterator[tuple[str, Any]]:
        for name in PRICES:
            yield name, units.exact(getattr(host, name), "time")
            bounds = getattr(host, f"{name}_range")
            if bounds is not None:
                yield f"{name}_range", [units.exact(end, "time") for end in bounds]

    return {"cores": host.cores, **dict(prices()), "in_flight": host.in_flight, "ranks": host.ranks}
