"""What may a scenario say of a link, and which `Link` comes of it?

A link is spelled out, or is a link of the catalogue with changes (`like:`). What a section states
replaces what the base has: `up` and `loss` key by key, everything else whole; `jitter: []`,
`factors: []`, `loss: null`, `up: null` and `background: 0` remove; a `trace` stands in the place of
the base's bandwidth and efficiency, and a `bandwidth` in the place of its trace.

    network:
      like: 10gbe
      overhead: 5 us
      factors:
        - {from: 64 KiB, bandwidth: 0.941, latency: 11.64}
      jitter: {distribution: exponential, mean: 100 us}    # or a list: their delays add up
      loss: {rate: 0.001, model: sampled, timeout: 200 ms, recovery: rack}
      background: 0.2
    network:
      bandwidth: 30 Mbit/s                                 # towards the node
      latency: 7 ms
      up: {bandwidth: 10 Mbit/s, latency: 18 ms, grant: 2.5 ms}
    network:
      trace: {file: cell.csv, after: repeat}
      latency: 25 ms

A trace's file is read by `read_traces`, between the check of a file and `build_link`.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import ModelWrapValidatorHandler, PrivateAttr, model_validator

from gcsim.scenarios import catalog
from gcsim.scenarios.links.fields import TABLES, LinkFields, over
from gcsim.scenarios.links.rate_trace import read_traces
from gcsim.scenarios.reading.types import Line, in_catalogue
from gcsim.scenarios.sections.link_text import link_facts, plain_link
from gcsim.simulator.cluster import TransportName
from gcsim.simulator.network.links import RANGED, Link

__all__ = ["LinkSection", "build_link", "changed_link", "link_facts", "plain_link", "read_traces"]

_NO_FIGURES = {"like", "name", "source", "estimate"}


class LinkSection(LinkFields):
    """A link, in full or as changes to one of the catalogue."""

    like: Annotated[str, in_catalogue(catalog.link)] | None = None
    name: Line | None = None

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
        section._stated = dict(data)
        return section

    def build(
        self, stated_in: str = "the scenario", transport: TransportName | None = None
    ) -> Link:
        """The link, as a transport finds it: the base itself where nothing is changed."""
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
            name=self.name or (f"{base.name}, changed" if base else "custom"),
            source=source if self.source is None else self.source,
            estimate=_estimated(base, self._stated) if self.estimate is None else self.estimate,
        )
        return built if base is None else replace(built, **_inherited(base, self._stated))


def changed_link(base: Link, stated: Mapping[str, Any]) -> dict[str, Any]:
    """The plain section, not yet checked, of a link like `base` but for what is stated."""
    if not stated:
        return plain_link(base)
    own = {
        "name": f"{base.name}, changed",
        "source": _source(base, stated.keys(), "the scenario"),
        "estimate": _estimated(base, stated),
        **stated,
    }
    return over(_figures(plain_link(base)), own)


def _source(base: Link, stated: Set[str], where: str) -> str:
    figures = ", ".join(sorted(stated - _NO_FIGURES)) or "name"
    return f"{figures} stated in {where}, the rest as {base.name}: {base.source}"


def _estimated(base: Link | None, stated: Mapping[str, Any]) -> bool:
    """Whether a figure of an estimated link is still in use; what the user states is none."""
    if base is None or not base.estimate:
        return False
    inherited = _figures(plain_link(base))
    in_use = _names(over(inherited, stated))
    return bool(_names(inherited) & in_use - _names(stated))


def build_link(section: str | LinkSection, transport: TransportName | None = None) -> Link:
    """A link of the catalogue by its name, or one that a section spells out, with a transport's
    own figures where the catalogue has such and the section none.

    Raises `InputError` with a suggestion for a name that the catalogue does not have.
    """
    if isinstance(section, str):
        return catalog.link(section, transport)
    return section.build(transport=transport)


def _inherited(base: Link, stated: Mapping[str, Any]) -> dict[str, Any]:
    """The figures that a section leaves to its base, each with its range."""
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
    """Of the figures in a section; those of `up` and `loss` one by one."""
    found = set()
    for key, value in _figures(section).items():
        if key in TABLES and isinstance(value, Mapping):
            found |= {f"{key}.{inner}" for inner in value}
        elif key != "shared":  # what kind of medium it is was never estimated
            found.add(key)
    return found
