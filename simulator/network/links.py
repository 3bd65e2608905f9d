"""Point-to-point links: when a message has left its sender, and when it arrives.

    left = start + overhead + nbytes / rate        arrival = left + latency + random delay

The alpha-beta model (Hockney 1994) with LogGP's overhead per message (Alexandrov et al. 1997). The
rate is the goodput: line rate times `efficiency` (1448/1538 = 0.9415 for TCP over Ethernet with an
MTU of 1500 bytes), less background traffic, capped by losses and, as in SimGrid's SMPI, by the
`factors` of short messages, which limit one connection whatever else shares the link.

With `Loss` "capped", a connection that loses packets with probability p reaches at most TCP's
steady state, every second packet being acknowledged and both directions having the same latency:

    segment / (RTT sqrt(1.33 p) + RTO p (1 + 32 p^2) min(1, 3 sqrt(0.75 p))),   RTT = 2 latency

"sampled" losses leave the rate alone and delay single messages (`loss_draws.py`).

Source: J. Padhye, V. Firoiu, D. Towsley, J. Kurose, "Modeling TCP throughput: a simple model and
its empirical validation", SIGCOMM 1998 (the approximate model); RFC 3819, sec. 8.5.1.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from functools import cached_property
from itertools import pairwise
from typing import Annotated, Any, Literal

from gcsim import units
from gcsim.errors import InputError, InternalError
from gcsim.fields import (
    INTERNAL,
    SHOWN,
    Bytes,
    BytesPerSecond,
    Factor,
    Key,
    Limits,
    Part,
    PositiveSeconds,
    Probability,
    RangeOf,
    Rule,
    Seconds,
    Setting,
    Unit,
)
from gcsim.simulator.clock import PS_PER_SECOND, Picoseconds, check_time, picoseconds
from gcsim.simulator.network.rate_trace import RateTrace, refuse, slower, times_factor

Range = tuple[Fraction, Fraction]  # smallest and largest value of a figure, in its own unit
RANGED = ("latency", "efficiency", "overhead")
"""Figures of a link that have a range: `Link.latency_range` and so on."""

_KEPT_SIZES = 1 << 16


def _roomy(latency: Fraction) -> Picoseconds:
    found = picoseconds(latency)
    check_time(found)  # before it must fit in 64 bits
    return found


def _sizes_ascend(factors: tuple[SizeFactor, ...]) -> None:
    for number, (one, other) in enumerate(pairwise(factors), 1):
        if other.from_bytes <= one.from_bytes:
            smaller, larger = (units.exact(each.from_bytes, "size") for each in (other, one))
            message = f"entry {number} is from {smaller} and comes after {larger}"
            raise InputError(message, hint="sizes ascend")


@dataclass(frozen=True, slots=True, kw_only=True)
class Uplink(Setting):
    """Figures of the direction away from a node, if it differs (cellular links)."""

    bandwidth: BytesPerSecond
    bandwidth_range: RangeOf[BytesPerSecond] = None
    """Range of the bandwidth; as `Link.latency_range`."""
    latency: Seconds
    latency_range: RangeOf[Seconds] = None
    trace: RateTrace | None = None
    grant: Seconds = Fraction(0)
    """Seconds between the instants at which a message may start (TDD uplink grants); 0: any."""


@dataclass(frozen=True, kw_only=True)
class Link(Setting):
    """One direction of a full-duplex link; with `up`, the direction to the node."""

    name: str
    bandwidth: BytesPerSecond  # line rate, bytes per second
    latency: Seconds  # one way, seconds, including the software on both ends
    efficiency: Annotated[Factor, SHOWN] = Fraction(1)
    overhead: Seconds = Fraction(0)
    """Seconds for which a message occupies its sender in addition to its bytes' time."""
    latency_range: RangeOf[Seconds] = None
    """Ranges are only used to draw worlds; they never change a link's times."""
    efficiency_range: RangeOf[Factor] = None
    """May exceed 1 if `bandwidth` is a measured goodput instead of a line rate."""
    overhead_range: RangeOf[Seconds] = None
    factors: Annotated[tuple[SizeFactor, ...], Rule(_sizes_ascend)] = ()
    """Factors by ascending size; messages smaller than the first have no factor."""
    jitter: tuple[Jitter, ...] = ()  # their delays add up
    loss: Loss | None = None
    flow: BytesPerSecond | None = None
    """Most bytes per second of one TCP connection (a provider's limit, or window / round trip)."""
    background: Part = Fraction(0)
    """Share of the rate that other traffic permanently takes, in [0, 1)."""
    trace: RateTrace | None = None
    """Goodput over time, which replaces bandwidth times efficiency."""
    up: Uplink | None = None
    """Direction away from the node, if it differs; a path joins one `up` and one downlink."""
    grant: Seconds = Fraction(0)
    """Seconds between the instants at which a message may start in this direction; 0: any time."""
    shared: bool = False  # one half-duplex medium of all nodes (Wi-Fi): messages cross it twice
    switch_adds: Annotated[Fraction, Limits(above=0, most=1)] | None = None
    """Share of the goodput that NCCL reaches if the link's switch sums all-reduces (NVLS inside a
    node, SHARP between nodes); None: the switch does not sum."""
    source: Annotated[str, SHOWN] = ""  # source of the figures, shown in every report
    alone: Annotated[RateTrace | Fraction | None, INTERNAL] = None
    """`line_goodput` before sharing; None: the link is not shared, or has no factors."""
    estimate: Annotated[bool, SHOWN] = False
    """Whether a figure was neither measured on this link nor stated by the user."""

    def exactly(self, **changes: Any) -> Link:
        """Return the link with other fields; a figure that is set loses its range."""
        return replace(self, **{**_without_ranges(changes), **changes})

    def derived(self, **changes: Any) -> Link:
        """Return `exactly` without checks, for figures computed from checked ones: a cluster in
        hundreds of drawn worlds has thousands of paths."""
        made = object.__new__(Link)
        known = {name: self.__dict__[name] for name in _FIELDS}
        made.__dict__.update(known | _without_ranges(changes) | changes)
        return made

    def __hash__(self) -> int:
        return self._hash

    def __getstate__(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @cached_property
    def line_goodput(self) -> RateTrace | Fraction:
        """Goodput of all connections together, bytes per second; over time with a trace."""
        line = self.trace or self.bandwidth * self.efficiency
        return times_factor(line, 1 - self.background)

    @cached_property
    def goodput(self) -> RateTrace | Fraction:
        """Goodput of one connection, bytes per second; over time with a trace."""
        return self._of_connection(self.line_goodput)

    def goodput_of(self, nbytes: int) -> RateTrace | Fraction:
        """Return a message's goodput, capped by its size factor's share of the unshared link."""
        return self._goodputs[bisect_right(self._sizes, nbytes)]

    @cached_property
    def rate(self) -> Fraction:
        """Goodput of a long message alone on the link, bytes per second; the mean of a trace."""
        goodput = self.goodput
        return goodput.long_run if isinstance(goodput, RateTrace) else goodput

    def serialization(self, nbytes: int) -> Picoseconds:
        """Return how long `nbytes` occupy the link; `InternalError` if it is `timed`."""
        known = self._serialization.get(nbytes)
        if known is None:
            if self.timed:
                raise InternalError(f"{self.name}: how long {nbytes} bytes take depends on when")
            if len(self._serialization) >= _KEPT_SIZES:
                self._serialization.clear()
            self._serialization[int(nbytes)] = known = self._duration(int(nbytes))
        return known

    def latency_for(self, nbytes: int) -> Picoseconds:
        """Return the latency of a message of `nbytes`; `InputError` if too long for the clock."""
        if not self.factors:
            return self.latency_ps
        return self._latencies[bisect_right(self._sizes, nbytes)]

    def departure(self, start: Picoseconds, nbytes: int) -> Picoseconds:
        """Return when a message that may start at absolute time `start` has left its sender: after
        the next grant, its overhead and its bytes' time. Monotone in `start`."""
        if not self.timed:
            return start + self.serialization(nbytes)
        start, nbytes = int(start), int(nbytes)
        if self.grant:
            period = self._grant  # first multiple at or after `start`, in picoseconds
            start = math.ceil(((start - 1) // period + 1) * period)
        goodput = self.goodput_of(nbytes)
        if not isinstance(goodput, RateTrace):
            return start + self._duration(nbytes)
        return goodput.finish(start + self._overhead, nbytes)

    def to_depart(self, nbytes: int) -> tuple[Fraction, Picoseconds, RateTrace | Fraction]:
        """Return the terms of `departure`: picoseconds between grants (0: none); picoseconds from a
        grant until bytes flow (or, if the goodput is constant, have left); the goodput."""
        goodput = self.goodput_of(nbytes)
        before = self._overhead if isinstance(goodput, RateTrace) else self._duration(nbytes)
        return self._grant, before, goodput

    @cached_property
    def random(self) -> bool:
        """Whether messages have random delays."""
        lost = self.loss is not None and self.loss.random
        return lost or any(jitter.random for jitter in self.jitter)

    @cached_property
    def timed(self) -> bool:
        """Whether departures depend on absolute time, so that only `departure` can compute them."""
        up = self.up
        return (
            self.trace is not None
            or self.grant > 0
            or (up is not None and (up.trace is not None or up.grant > 0))
        )

    @cached_property
    def latency_ps(self) -> Picoseconds:
        """Latency of a message without a size factor."""
        return _roomy(self.latency)

    @cached_property
    def _hash(self) -> int:
        # a few fields that differ between links: hashing a fraction takes a microsecond
        return hash((self.name, self.bandwidth, self.latency, self.efficiency))

    @cached_property
    def _serialization(self) -> dict[int, Picoseconds]:
        return {}

    @cached_property
    def _sizes(self) -> list[int]:
        return [factor.from_bytes for factor in self.factors]

    @cached_property
    def _latencies(self) -> list[Picoseconds]:
        factors = (Fraction(1), *(factor.latency for factor in self.factors))
        return [_roomy(self.latency * factor) for factor in factors]

    @cached_property
    def _grant(self) -> Fraction:
        return self.grant * PS_PER_SECOND

    @cached_property
    def _overhead(self) -> Picoseconds:
        return round(self.overhead * PS_PER_SECOND)

    @cached_property
    def _goodputs(self) -> list[RateTrace | Fraction]:
        """Goodput below the first factor's size, and from each factor's size on."""
        line = self.line_goodput if self.alone is None else self.alone
        alone = self._of_connection(line)
        limits = (times_factor(alone, factor.bandwidth) for factor in self.factors)
        return [self.goodput, *(slower(self.goodput, limit) for limit in limits)]

    @cached_property
    def _lines(self) -> list[tuple[int, int, int] | None]:
        """Coefficients (a, b, c) by size class of picoseconds = (bytes a + b) / c, rounded half to
        even; None if timed. `Fraction` arithmetic would take ten times as long."""
        once = self.overhead
        return [
            None
            if isinstance(goodput, RateTrace)
            else (
                PS_PER_SECOND * goodput.denominator * once.denominator,
                PS_PER_SECOND * goodput.numerator * once.numerator,
                goodput.numerator * once.denominator,
            )
            for goodput in self._goodputs
        ]

    def _of_connection(self, goodput: RateTrace | Fraction) -> RateTrace | Fraction:
        """Return the goodput that one connection reaches."""
        lossy = self.loss.goodput(self.latency) if self.loss is not None else None
        for most in (lossy, self.flow):
            goodput = goodput if most is None else slower(goodput, most)
        return goodput

    def _duration(self, nbytes: int) -> Picoseconds:
        if nbytes < 0:
            raise InternalError(f"{self.name}: a message of {nbytes} bytes")
        line = self._lines[bisect_right(self._sizes, nbytes)]
        if line is None:
            raise InternalError(f"{self.name}: how long {nbytes} bytes take depends on when")
        over, base, under = line
        whole, rest = divmod(nbytes * over + base, under)
        return whole + (2 * rest > under or (2 * rest == under and whole % 2 == 1))


_FIELDS = tuple(one.name for one in fields(Link))


def _without_ranges(changes: Iterable[str]) -> dict[str, None]:
    return {f"{figure}_range": None for figure in RANGED if figure in changes}


Recovery = Literal["rack", "fast_retransmit", "timeout"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeFactor(Setting):
    """Correction of the link's figures for messages of at least `from_bytes`."""

    from_bytes: Annotated[int, Unit("size"), Key("from")]
    bandwidth: Annotated[Fraction, Limits(above=0, most=1)] = Fraction(1)
    """Largest share of the link's full rate for one connection, shared or not."""
    latency: Factor = Fraction(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Jitter(Setting):
    """Random extra latency of each message."""

    distribution: Literal["exponential", "uniform", "lognormal", "pareto"]
    """uniform: between 0 and twice the mean."""
    mean: Seconds  # mean delay in seconds of the messages that are delayed
    shape: Annotated[Fraction, Limits(least=0, most=1_000_000)] | None = None
    """lognormal: sigma of the logarithm, default 1; pareto: the tail's exponent, above 1."""
    probability: Probability = Fraction(1)

    def __post_init__(self) -> None:
        if self.distribution == "lognormal" and self.shape is None:
            object.__setattr__(self, "shape", Fraction(1))
        Setting.__post_init__(self)
        seen = "is not given" if self.shape is None else f"is {float(self.shape):g}"
        refuse(
            (
                self.distribution == "pareto" and (self.shape is None or self.shape <= 1),
                f"`shape`, the exponent of the Pareto distribution's tail, {seen}",
                "write it, more than 1; the nearer to 1, the longer the tail",
            ),
            (
                self.distribution in {"exponential", "uniform"} and self.shape is not None,
                f"`shape` would have no effect, {self.distribution} has none",
                "remove it",
            ),
        )

    @property
    def random(self) -> bool:
        """Whether it delays some messages."""
        return self.mean > 0 and self.probability > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss(Setting):
    """Packet losses, which TCP repairs by retransmission."""

    rate: Part
    model: Literal["capped", "sampled"] | None = None
    """capped: TCP's steady state (PFTK, RFC 3819) limits the rate; sampled: a message that loses a
    packet waits for its repair (`recovery`). None is refused: there is no default."""
    timeout: Annotated[PositiveSeconds, SHOWN] = Fraction(200, 1000)
    """TCP's retransmission timeout, seconds."""
    segment: Annotated[Bytes, SHOWN] = 1448  # bytes of data in a packet
    recovery: Recovery | None = None
    """Repair of sampled losses. rack (default): time-ordered acknowledgements and tail loss probes
    (RFC 8985, Linux's default); fast_retransmit: three duplicate acknowledgements (RFC 5681, RFC
    6675); timeout: the retransmission timer alone."""

    def __post_init__(self) -> None:
        Setting.__post_init__(self)
        refuse(
            (
                self.model is None,
                "`model` is missing",
                "capped (the rate is what TCP reaches at steady state with such losses) or sampled "
                "(a message that loses a packet is late until that is repaired)",
            ),
            (
                self.model == "capped" and self.recovery is not None,
                "`recovery` would have no effect on capped losses, whose formula has its own",
                "remove it, or write model: sampled",
            ),
        )
        if self.model == "sampled" and self.recovery is None:
            object.__setattr__(self, "recovery", "rack")

    @property
    def random(self) -> bool:
        """Whether it delays some messages."""
        return self.model == "sampled" and self.rate > 0

    def goodput(self, latency: Fraction) -> Fraction | None:
        """Return TCP's bytes per second with this one-way latency; None: no limit."""
        if self.model != "capped" or self.rate == 0:
            return None
        p = float(self.rate)
        trip = 2 * float(latency) * math.sqrt(1.33 * p)
        waits = float(self.timeout) * p * (1 + 32 * p * p) * min(1.0, 3 * math.sqrt(0.75 * p))
        return Fraction(self.segment) / Fraction(trip + waits)
