"""Paths between two ends, computed from both ends' links.

| property    | value for a path from a to b                                                      |
|-------------|-----------------------------------------------------------------------------------|
| rate        | the smaller of a's outward and b's inward rate, at each instant                   |
| latency     | half of each end's; all of the used direction of an access link (`Link.up`)       |
| overhead    | half of each end's                                                                |
| grants      | those of a's outward direction                                                    |
| factors     | the sender's, relative to the path's unshared rate                                |
| delays      | both ends' jitter (equal ones once); the larger loss                              |
| connection  | the smaller limit (`Link.flow`)                                                   |

A path between two ends with the same symmetric link is that link, whose figures describe a whole
path. Equal arguments return the identical object, so links can be compared by identity.

The limit of "capped" losses depends on the whole path's round-trip latency. Like size factors it
applies per connection: sharing divides the line's rate, not that of slower connections.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import Any

from gcsim.errors import InputError, InternalError
from gcsim.simulator.network.links import Link, Loss
from gcsim.simulator.network.rate_trace import RateTrace, slower, times_factor

_KEPT = 1 << 16
_ONE, _NONE = Fraction(1), Fraction(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Leg:
    name: str
    goodput: RateTrace | Fraction
    latency: Fraction
    grant: Fraction


@lru_cache(maxsize=_KEPT)
def path(out: Link, into: Link, leaving: int = 1, entering: int = 1) -> Link:
    """Return the path of a message from link `out` to link `into`. `leaving` messages share `out`'s
    rate, `entering` that of `into`. Raises `InputError` if the rate is always 0, or if two traces
    repeat together only after very many changes."""
    if out == into and out.up is None and leaving == entering:
        return share_link(out, leaving)
    first, last = _outward_leg(out), _inward_leg(into)
    names = (_shared_name(leg.name, by) for leg, by in ((first, leaving), (last, entering)))
    shared = _share(first.goodput, leaving), _share(last.goodput, entering)
    return _with_goodput(
        out,
        _least(*shared, out, into),
        _least(first.goodput, last.goodput, out, into) if out.factors else None,
        name=" to ".join(names),
        latency=first.latency + last.latency,
        overhead=(out.overhead + into.overhead) / 2,
        jitter=out.jitter + tuple(jitter for jitter in into.jitter if jitter not in out.jitter),
        loss=_larger(out.loss, into.loss),
        flow=_smaller(out.flow, into.flow),
        grant=first.grant,
        up=None,
        shared=out.shared or into.shared,
        source=_joined(out.source, into.source),
        estimate=out.estimate or into.estimate,
    )


@lru_cache(maxsize=_KEPT)
def outward(link: Link) -> Link:
    """Return the path from a node to an unlimited machine at the switch."""
    if link.up is None:
        return link
    leg = _outward_leg(link)
    return _with_goodput(
        link, leg.goodput, name=leg.name, latency=leg.latency, grant=leg.grant, up=None
    )


@lru_cache(maxsize=_KEPT)
def inward(link: Link) -> Link:
    """Return the path from an unlimited machine at the switch to a node."""
    return link if link.up is None else replace(link, name=_inward_leg(link).name, up=None)


@lru_cache(maxsize=_KEPT)
def across_uplink(
    link: Link, uplink: Link, share: int | Fraction, least: int | Fraction = 1
) -> Link:
    """Return the path `link` extended across `uplink`, of whose rate a message gets 1 / `share`, or
    1 / `least` if it is alone. The smaller rate and the larger loss count; the uplink's latency,
    overhead and jitter are added once."""
    share = max(share, least)
    _check_share(share)
    if uplink.up is not None or uplink.grant:
        raise InputError(
            f"{uplink.name}: an access link between two switches",
            hint="give an uplink that is the same in both directions, without grants",
        )
    alone = link.alone or link.line_goodput
    return _with_goodput(
        link,
        _least(link.line_goodput, _share(uplink.line_goodput, share), link, uplink),
        _least(alone, _share(uplink.line_goodput, least), link, uplink) if link.factors else None,
        name=_shared_name(f"{link.name} over {uplink.name}", share),
        latency=link.latency + uplink.latency,
        overhead=link.overhead + uplink.overhead,
        jitter=link.jitter + uplink.jitter,
        loss=_larger(link.loss, uplink.loss),
        flow=_smaller(link.flow, uplink.flow),
        source=_joined(link.source, uplink.source),
        estimate=link.estimate or uplink.estimate,
    )


@lru_cache(maxsize=_KEPT)
def share_link(link: Link, sharing: int | Fraction) -> Link:
    """Return the link as shared by `sharing` >= 1 messages."""
    _check_share(sharing)
    if sharing == 1:
        return link
    if link.up is not None:
        raise InternalError(f"{link.name}: an access link is shared leg by leg")
    return _with_goodput(
        link,
        _share(link.line_goodput, sharing),
        (link.alone or link.line_goodput) if link.factors else None,
        name=_shared_name(link.name, sharing),
    )


@lru_cache(maxsize=_KEPT)
def with_framing(link: Link, part: Fraction, latency: Fraction) -> Link:
    """Return the link for payloads that get a part of its rate, with extra latency."""
    if part == 1 and not latency:
        return link
    seen = share_link(link, 1 / part)
    alone = times_factor(link.alone or link.line_goodput, part)
    return seen.derived(latency=link.latency + latency, alone=alone if link.factors else None)


def _outward_leg(link: Link) -> _Leg:
    up = link.up
    if up is None:
        return _Leg(
            name=link.name, goodput=link.line_goodput, latency=link.latency / 2, grant=link.grant
        )
    one_way = replace(link, bandwidth=up.bandwidth, trace=up.trace, up=None)
    return _Leg(
        name=f"{link.name} (up)", goodput=one_way.line_goodput, latency=up.latency, grant=up.grant
    )


def _inward_leg(link: Link) -> _Leg:
    access = link.up is not None
    return _Leg(
        name=f"{link.name} (down)" if access else link.name,
        goodput=link.line_goodput,
        latency=link.latency if access else link.latency / 2,
        grant=Fraction(0),
    )


def _with_goodput(
    link: Link,
    goodput: RateTrace | Fraction,
    alone: RateTrace | Fraction | None = None,
    **others: Any,
) -> Link:
    """Return the link with another goodput of its line, and other fields; `alone`: the unshared
    goodput, for a link with size factors."""
    trace = goodput if isinstance(goodput, RateTrace) else None
    rate = goodput.long_run if isinstance(goodput, RateTrace) else goodput
    alone = None if alone == goodput else alone
    made = link.derived if trace is None else link.exactly
    return made(
        bandwidth=rate, efficiency=_ONE, background=_NONE, trace=trace, alone=alone, **others
    )


def _least(
    one: RateTrace | Fraction, other: RateTrace | Fraction, first: Link, last: Link
) -> RateTrace | Fraction:
    try:
        return slower(one, other)
    except InputError as error:
        ends = f"from {first.name} to {last.name}"
        raise InputError(
            [replace(problem, message=f"{ends}: {problem.message}") for problem in error.problems]
        ) from error


def _share(goodput: RateTrace | Fraction, by: int | Fraction) -> RateTrace | Fraction:
    return times_factor(goodput, 1 / Fraction(by))


def _shared_name(name: str, by: int | Fraction) -> str:
    return name if by == 1 else f"{name} / {by}"


def _larger(first: Loss | None, last: Loss | None) -> Loss | None:
    if first is None or last is None:
        return first or last
    return first if first.rate >= last.rate else last


def _smaller(first: Fraction | None, last: Fraction | None) -> Fraction | None:
    return min((flow for flow in (first, last) if flow is not None), default=None)


def _joined(first: str, last: str) -> str:
    return first if first == last else "; ".join(text for text in (first, last) if text)


def _check_share(share: int | Fraction) -> None:
    if share < 1:
        raise InternalError(f"{share} messages share a link")
