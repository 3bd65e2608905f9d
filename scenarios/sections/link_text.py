"""How is a link written so that it reads back to an equal one, and what does a report say of it?"""

from __future__ import annotations

import hashlib
from typing import Any, Literal

from gcsim import units
from gcsim.scenarios import catalog
from gcsim.scenarios.reading.values import number_text
from gcsim.simulator.network.links import (
    RANGED,
    Jitter,
    Link,
    Loss,
    Range,
    RateTrace,
    SizeFactor,
    Uplink,
)

Calibration = Literal["measured", "estimate", "stated", "ideal"]


def plain_link(link: Link) -> dict[str, Any]:
    """The link as a scenario's section: units written out, nothing rounded.

    `name`, `latency`, `source` and `estimate` always, `bandwidth` and `efficiency` without a
    trace, the rest where it differs from its default. Raises `ValueError` for a figure without a
    finite decimal expansion, which no file gives.
    """
    entries: dict[str, Any] = {"name": link.name}
    if link.trace is None:
        entries["bandwidth"] = units.exact(link.bandwidth, "bandwidth")
    entries["latency"] = units.exact(link.latency, "time")
    if link.trace is None:
        entries["efficiency"] = number_text(link.efficiency)
    if link.overhead:
        entries["overhead"] = units.exact(link.overhead, "time")
    entries |= _ranges(link)
    if link.factors:
        entries["factors"] = [_factor(factor) for factor in link.factors]
    if link.jitter:
        entries["jitter"] = [_jitter(jitter) for jitter in link.jitter]
    if link.loss is not None:
        entries["loss"] = _loss(link.loss)
    if link.flow is not None:
        entries["flow"] = units.exact(link.flow, "bandwidth")
    if link.background:
        entries["background"] = number_text(link.background)
    if link.trace is not None:
        entries["trace"] = _trace(link.trace)
    if link.up is not None:
        entries["up"] = _uplink(link.up)
    if link.grant:
        entries["grant"] = units.exact(link.grant, "time")
    if link.shared:
        entries["shared"] = True
    return {**entries, "source": link.source, "estimate": link.estimate}


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


def _ranges(link: Link) -> dict[str, list[str]]:
    entries = {}
    for figure in RANGED:
        bounds: Range | None = getattr(link, f"{figure}_range")
        if bounds is not None:
            share = figure == "efficiency"
            text = [number_text(end) if share else units.exact(end, "time") for end in bounds]
            entries[f"{figure}_range"] = text
    return entries


def _factor(factor: SizeFactor) -> dict[str, str]:
    entries = {"from": units.exact(factor.from_bytes, "size")}
    if factor.bandwidth != 1:
        entries["bandwidth"] = number_text(factor.bandwidth)
    if factor.latency != 1:
        entries["latency"] = number_text(factor.latency)
    return entries


def _jitter(jitter: Jitter) -> dict[str, str]:
    entries = {
        "distribution": jitter.distribution,
        "mean": units.exact(jitter.mean, "time"),
    }
    if jitter.distribution in {"lognormal", "pareto"}:
        entries["shape"] = number_text(jitter.shape)
    if jitter.probability != 1:
        entries["probability"] = number_text(jitter.probability)
    return entries


def _loss(loss: Loss) -> dict[str, str]:
    entries = {
        "rate": number_text(loss.rate),
        "model": loss.model,
        "timeout": units.exact(loss.timeout, "time"),
        "segment": units.exact(loss.segment, "size"),
    }
    if loss.model == "sampled":
        entries["recovery"] = loss.recovery
    return entries


def _uplink(up: Uplink) -> dict[str, Any]:
    entries: dict[str, Any] = {}
    if up.trace is None:
        entries["bandwidth"] = units.exact(up.bandwidth, "bandwidth")
        if up.bandwidth_range is not None:
            entries["bandwidth_range"] = [
                units.exact(end, "bandwidth") for end in up.bandwidth_range
            ]
    entries["latency"] = units.exact(up.latency, "time")
    if up.latency_range is not None:
        entries["latency_range"] = [units.exact(end, "time") for end in up.latency_range]
    if up.trace is not None:
        entries["trace"] = _trace(up.trace)
    if up.grant:
        entries["grant"] = units.exact(up.grant, "time")
    return entries


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
