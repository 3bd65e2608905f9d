"""Costs of a transport's sums and calls: keys and defaults.

`catalog/transports.yaml` has entries for transports that work on the host, for older generations
(`gloo_pytorch1`, only the differences) and for hosts with few cores (`gloo_few_cores`). Costs that
`cluster.sums` and `cluster.host` do not state are the transport's; `none` means no costs.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from types import MappingProxyType
from typing import Annotated

from pydantic import Field

from gcsim.scenarios.reading.checking import Section, shipped_table
from gcsim.scenarios.reading.values import As, Spelled
from gcsim.simulator.cluster import Collectives
from gcsim.simulator.host import Host, Sums
from gcsim.simulator.push_pull import SERVED

FILE = Path(__file__).parent.parent / "catalog" / "transports.yaml"
NONE = "none"
_SERVERS = "servers"

GROUPED: Mapping[str, tuple[Fraction, tuple[Fraction, Fraction]]] = MappingProxyType(
    {"nccl": (Fraction(4, 5), (Fraction(11, 20), Fraction(1)))}
)
"""Share of a network's goodput that an all-to-all reaches, and its range, by transport. Stated:
fitted to synchronisations of 256 MiB on 4 to 16 machines by two groups of sends each, over TCP at 1
to 10 Gbit/s, 0.77 to 0.79 (BinhangYuan/tc_cluster_setting @75581a5b, results/Simulate_DP.md); on
eight nodes over InfiniBand an all-to-all's NICs carry 0.83 of what they do in an all-reduce
(derived from NVIDIA/nccl-tests issue 78). Lowest: 28 of 50 Gbit/s over TCP (NVIDIA/nccl issue 464).
Highest: no loss."""


class _Entry(Section):
    like: str | None = None
    sums: Annotated[Spelled, As(Sums)]
    sums_source: Annotated[str, Field(min_length=1)]
    host: Annotated[Spelled, As(Host)] | None = None
    host_source: str = ""


class _Table(Section):
    transports: dict[str, _Entry]
    hosts: dict[str, Annotated[Spelled, As(Host, source=(str, ...))]]


@functools.cache
def _table() -> _Table:
    return shipped_table(_Table, FILE)


@functools.cache
def transports() -> Mapping[str, tuple[Sums, Host | None]]:
    """Return the shipped costs of sums and calls, by transport or transport_library."""
    found: dict[str, tuple[Sums, Host | None]] = {}
    for name, entry in _table().transports.items():
        above = found[entry.like] if entry.like else (Sums(), None)
        host = above[1] if entry.host is None else entry.host.value(Host, above[1])
        found[name] = entry.sums.value(Sums, above[0]), host
    return MappingProxyType(found)


def defaults(collectives: Collectives) -> tuple[Sums, Host | None]:
    """Return the default costs of a transport's sums and calls."""
    known, name = transports(), collectives.transport
    sums = known[_SERVERS][0] if servers_add(collectives) else Sums()
    free: tuple[Sums, Host | None] = (sums, None)
    return known.get(f"{name}_{collectives.library}", known.get(name, free))


def servers_add(collectives: Collectives) -> bool:
    """Whether only parameter servers use the rates of `cluster.sums`."""
    on_gpus = collectives.transport == "nccl" and collectives.all_reduce.startswith(
        ("auto", "nccl")
    )
    return collectives.names_servers and (on_gpus or collectives.all_reduce == SERVED)


def on_machines(name: str, host: Host | None) -> Host | None:
    """Return a transport's costs on named machines; `none`: no costs."""
    if name == NONE or host is None:
        return None
    on: Host = _table().hosts[name].value(Host, host)
    return on


def few_cores(transport: str) -> Host | None:
    """Return a transport's costs if processes share few cores."""
    return transports().get(f"{transport}_few_cores", (Sums(), None))[1]
