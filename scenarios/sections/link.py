"""Links in a scenario: their sections, the `Link` that a section gives, and a link's text.

A section gives all figures, or changes to a link of the catalogue (`like:`). Stated keys replace
the base's: `up` and `loss` key by key, everything else as a whole; `jitter: []`, `factors: []`,
`loss: null`, `up: null` and `background: 0` remove the base's. A `trace` replaces the base's
bandwidth and efficiency, and a `bandwidth` its trace.

    network:
      like: 10gbe
      overhead: 5 us
      factors:
        - {from: 64 KiB, bandwidth: 0.941, latency: 11.64}
      jitter: {distribution: exponential, mean: 100 us}    # or a list: their delays add up
      loss: {rate: 0.001, model: sampled, timeout: 200 ms, recovery: rack}
      background: 0.2                                      # or runs/other (`named_files.py`)
    network:
      bandwidth: 30 Mbit/s                                 # towards the node
      latency: 7 ms
      up: {bandwidth: 10 Mbit/s, latency: 18 ms, grant: 2.5 ms}
    network:
      trace: {file: cell.csv, after: repeat}
      latency: 25 ms
    network:
      like: 25gbe
      bandwidth: 8 Gbit/s
      limited: true                                        # tc, or a provider, holds it to that

A trace's file is read by `read_traces`, between the check of a file and `build_link`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Set
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import ModelWrapValidatorHandler, PrivateAttr, model_validator

from gcsim import units
from gcsim.scenarios import catalog
from gcsim.scenarios.links.fields import TABLES, LinkFields, over
from gcsim.scenarios.reading.checking import invalid
from gcsim.scenarios.reading.types import Line, in_catalogue
from gcsim.scenarios.reading.values import text_of
from gcsim.simulator.cluster import TransportName
from gcsim.simulator.network.links import RANGED, Link, Uplink
from gcsim.simulator.network.rate_trace import RateTrace

_CHANGED = ", changed"  # suffix of the name of a changed catalogue entry
_NO_FIGURES = {"like", "name", "source", "estimate", "limited"}
_Share = tuple[Fraction, tuple[Fraction, Fraction]]
LIMITED: Mapping[str, _Share] = MappingProxyType(
    {
        "nccl": (Fraction(1, 2), (Fraction(1, 4), Fraction(1))),
        "": (Fraction(53, 100), (Fraction(7, 20), Fraction(1))),
    }
)
"""Share, by transport, of what a NIC's link of such a rate carries where the
rate is a limit instead. NCCL over TCP got 0.35, 0.40 and 0.10 of lines that were held to 1, 8 and
100 Gbit/s, 4.1 of 40 Gbit/s elsewhere (published training runs on shaped links), 0.26 to 0.45 of a
provider's 7.5 Gbit/s (mlbench, task 0a, read off a chart), and 0.95 and more of 1 to 5 Gbit/s that
netem paces (BinhangYuan/tc_cluster_setting): a limiter drops what comes at once, a pacer holds it.
Others: Gloo and MPI reach 0.39 to 0.44 of mlbench's 7.5 Gbit/s, one connection 0.497 of 10 Gbit/s
between EC2's instances. Stated: about the geometric middle; lower ends wider by a tenth."""


class LinkSection(LinkFields):
    """A link, in full or as changes to one of the catalogue."""

    like: Annotated[str, in_catalogue(catalog.link)] | None = None
    name: Line | None = None
    limited: bool = False  # `tc` or a provider limits the rate, not the NIC

    _stated: dict[str, Any] = PrivateAttr(default_factory=dict)

    @model_validator(mode="wrap")
    @classmethod
    def _over_base(cls, data: Any, handler: ModelWrapValidatorHandler[LinkSection]) -> LinkSection:
        if not isinstance(data, Mapping):
            return handler(data)
        base = data.get("like")
        merged = dict(data)
        if isinstance(base, str) and base.lower() in catalog.links():
            merged = over(_figures(plain_link(catalog.link(base))), merged)
        section = handler(merged)
        if section.limited and {"efficiency", "trace"} & {*data}:
            message = "`limited` would have no effect with a stated goodput"
            raise invalid(message, "leave out limited, or efficiency and trace")
        section._stated = dict(data)
        return section

    def build(
        self, stated_in: str = "the scenario", transport: TransportName | None = None
    ) -> Link:
        """Build the link for a transport; the base itself if unchanged."""
        base = catalog.link(self.like, transport) if self.like else None
        stated = self._stated.keys() - {"like"}
        if base and not stated:
            return base
        source = _source(base, stated, stated_in) if base else f"given in {stated_in}"
        traces = (self.trace, None if self.up is None else self.up.trace)
        files = [Path(trace.file).name for trace in traces if trace is not None and trace.file]
        if files:
            source += f" (rates from {', '.join(dict.fromkeys(files))})"
        built = self.link(
            name=self.name or (f"{base.name}{_CHANGED}" if base else "custom"),
            source=source if self.source is None else self.source,
            estimate=_estimated(base, self._stated) if self.estimate is None else self.estimate,
        )
        built = built if base is None else replace(built, **_inherited(base, self._stated))
        return _limited(built, transport) if self.limited else built


def _limited(link: Link, transport: TransportName | None) -> Link:
    """Return the link with the goodput under a rate limiter instead of a NIC's."""
    share, (least, most) = LIMITED.get(transport or "", LIMITED[""])
    low, high = link.efficiency_range or (link.efficiency, link.efficiency)
    return replace(
        link,
        efficiency=link.efficiency * share,
        efficiency_range=(low * least, high * most),
        source=f"{link.source} Of a limited rate {share} ({least} to {most}) gets through.",
        estimate=True,
    )


def changed_link(base: Link, stated: Mapping[str, Any]) -> dict[str, Any]:
    """Return the unchecked plain section of `base` with the `stated` changes."""
    if not stated:
        return plain_link(base)
    own = {
        "name": f"{base.name}{_CHANGED}",
        "source": _source(base, stated.keys(), "the scenario"),
        "estimate": _estimated(base, stated),
        **stated,
    }
    return over(_figures(plain_link(base)), own)


def entry_name(link: Link) -> str:
    """Return the name of the catalogue entry that a link is, or was changed from."""
    return link.name.removesuffix(_CHANGED)


def _source(base: Link, stated: Set[str], where: str) -> str:
    figures = ", ".join(sorted(stated - _NO_FIGURES)) or "name"
    return f"{figures} stated in {where}, the rest as {base.name}: {base.source}"


def _estimated(base: Link | None, stated: Mapping[str, Any]) -> bool:
    """Whether a figure of an estimated base is still used; stated figures are no estimates."""
    if base is None or not base.estimate:
        return False
    inherited = _figures(plain_link(base))
    in_use = _names(over(inherited, stated))
    return bool(_names(inherited) & in_use - _names(stated))


def build_link(section: str | LinkSection, transport: TransportName | None = None) -> Link:
    """Build a link from a catalogue name or a section, with the transport's own figures unless
    stated; `InputError` with a suggestion for an unknown name."""
    if isinstance(section, str):
        return catalog.link(section, transport)
    return section.build(transport=transport)


def _inherited(base: Link, stated: Mapping[str, Any]) -> dict[str, Any]:
    """Return the figures that the base provides, with their ranges."""
    found: dict[str, Any] = {}
    for figure in RANGED:
        if figure in stated or (figure == "efficiency" and stated.get("trace") is not None):
            continue
        found[figure] = getattr(base, figure)
        if f"{figure}_range" not in stated:
            found[f"{figure}_range"] = getattr(base, f"{figure}_range")
    return found


def _figures(plain: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in plain.items() if key not in _NO_FIGURES}


def _names(section: Mapping[str, Any]) -> set[str]:
    found = set()
    for key, value in _figures(section).items():
        if key in TABLES and isinstance(value, Mapping):
            found |= {f"{key}.{inner}" for inner in value}
        elif key != "shared":  # the kind of medium is no estimate
            found.add(key)
    return found


_Calibration = Literal["measured", "estimate", "stated", "ideal"]


def plain_link(link: Link) -> dict[str, Any]:
    """Return the link as a scenario's section, with units and exact numbers.

    It always has `name`, `latency`, `source` and `estimate`, without a trace `bandwidth` and
    `efficiency`, and other keys that are not defaults. Raises `ValueError` for a figure without a
    finite decimal expansion, which cannot come from a file.
    """
    other: dict[str, Any] = {}
    if link.trace is not None:
        other = {"bandwidth": None, "efficiency": None, "trace": _trace(link.trace)}
    return text_of(link, brief=True, up=None if link.up is None else _uplink(link.up), **other)


def link_facts(link: Link) -> dict[str, Any]:
    """Return plain values of a link for a result's provenance: `calibration`, `efficiency`,
    `source`, and other figures that are set; for a trace its length, mean rate and hash."""
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


def calibration(link: Link) -> _Calibration:
    """Return the kind of source of the link's figures: only unchanged catalogue entries are
    measured or ideal; others are stated or estimates."""
    shipped = catalog.shipped(link)
    if shipped and link.name.endswith("_ideal"):
        return "ideal"
    if link.estimate:
        return "estimate"
    return "measured" if shipped else "stated"


def carrier(transport: str, network: str | None) -> str:
    """Return the library that carries collectives, with its protocol if known: "NCCL over RDMA" on
    InfiniBand, RoCE and EFA, "Gloo over TCP" always (PyTorch's Gloo has only sockets). `network`:
    the link's name; None without traffic between nodes."""
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
    return {
        "points": [
            [units.exact(time, "time"), units.exact(rate, "bandwidth")] for time, rate in points
        ],
        "duration": units.exact(trace.duration, "time"),
        "after": trace.after,
    }


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
