"""How is a link written so that it reads back to an equal one, and what does a report say of it?"""

from __future__ import annotations

import hashlib
import re
from typing import Any, Literal

from gcsim import units
from gcsim.scenarios import catalog
from gcsim.scenarios.reading.values import text_of
from gcsim.simulator.network.links import RANGED, Link, Uplink
from gcsim.simulator.network.rate_trace import RateTrace

Calibration = Literal["measured", "estimate", "stated", "ideal"]


def plain_link(link: Link) -> dict[str, Any]:
    """The link as a scenario's section: units written out, nothing rounded.

    `name`, `latency`, `source` and `estimate` always, `bandwidth` and `efficiency` without a
    trace, the rest where it differs from its default. Raises `ValueError` for a figure without a
    finite decimal expansion, which no file gives.
    """
    other: dict[str, Any] = {}
    if link.trace is not None:
        other = {"bandwidth": None, "efficiency": None, "trace": _trace(link.trace)}
    return text_of(link, brief=True, up=None if link.up is None else _uplink(link.up), **other)


def link_facts(link: Link) -> dict[str, Any]:
    """What a result's provenance says of a link: plain values.

    `calibration`, `efficiency` and `source` always, and all that makes it more than a rate and a
    latency. A trace stands with its length, its mean rate and a hash, not with its points.
    """
    plain = plain_link(link)
    facts = {
        "name": link.name,
        "calibration": calibration(link),
        "efficiency": float(link.efficiency),
        "source": link.source,
    }
    ranges = [f"{figure}_range" for figure in RANGED]
    others = (
        "overhead",
        "factors",
        "jitter",
        "loss",
        "flow",
        "background",
        "up",
        "grant",
        "shared",
    )
    for key in (*ranges, *others):
        if key in plain:
            facts[key] = plain[key]
    if link.trace is not None:
        facts["trace"] = _trace_facts(link.trace)
    if link.up is not None and link.up.trace is not None:
        facts["up"] = {**plain["up"], "trace": _trace_facts(link.up.trace)}
    return facts


def calibration(link: Link) -> Calibration:
    """How the link's figures were arrived at.

    Only an unchanged entry of the catalogue is measured or ideal; what else is no estimate was
    stated by the user.
    """
    shipped = catalog.shipped(link)
    if shipped and link.name.endswith("_ideal"):
        return "ideal"
    if link.estimate:
        return "estimate"
    return "measured" if shipped else "stated"


def carrier(transport: str, network: str | None) -> str:
    """Name the library that carries collectives, and the protocol below where both are known.

    "NCCL over RDMA" on InfiniBand, RoCE and EFA, "Gloo over TCP" on any network: PyTorch's Gloo has
    sockets only. `network` is the link's name; None where no node sends to another.
    """
    library = _LIBRARIES[transport]
    if network is None:
        return library
    if transport != "gloo" and _REMOTE.search(network):
        return f"{library} over RDMA"
    return f"{library} over TCP" if transport == "gloo" or _SOCKETS.match(network) else library


_LIBRARIES = {
    "gloo": "Gloo",
    "nccl": "NCCL",
    "mpich": "MPI",
    "textbook": "textbook rings",
    "custom": "named algorithms",
}
_REMOTE = re.compile(r"_roce|infiniband|^efa_")
_SOCKETS = re.compile(r"\d+gbe|100mbit_ethernet|wifi_|lte|5g_")


def _uplink(up: Uplink) -> dict[str, Any]:
    if up.trace is None:
        return text_of(up, brief=True)
    return text_of(up, brief=True, bandwidth=None, bandwidth_range=None, trace=_trace(up.trace))


def _trace(trace: RateTrace) -> dict[str, Any]:
    points = zip(trace.times, trace.rates, strict=True)
    entries: dict[str, Any] = {
        "points": [
            [units.exact(time, "time"), units.exact(rate, "bandwidth")] for time, rate in points
        ],
        "duration": units.exact(trace.duration, "time"),
        "after": trace.after,
    }
    if trace.back_to:
        entries["back_to"] = units.exact(trace.back_to, "time")
    return entries


def _trace_facts(trace: RateTrace) -> dict[str, Any]:
    return {
        "changes": len(trace.times),
        "duration": units.exact(trace.duration, "time"),
        "after": trace.after,
        "mean_bytes_per_s": float(trace.long_run),
        "lowest_bytes_per_s": float(min(trace.rates)),
        "highest_bytes_per_s": float(max(trace.rates)),
        "sha256": hashlib.sha256(repr(_trace(trace)).encode()).hexdigest(),
    }
