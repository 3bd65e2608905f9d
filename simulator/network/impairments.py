"""What keeps a link from being ideal: short messages, jitter, losses.

A connection whose packets are lost with probability p gets, with `Loss` "capped", no more than TCP
reaches at steady state when every second packet is acknowledged:

    segment / (RTT sqrt(1.33 p) + RTO p (1 + 32 p^2) min(1, 3 sqrt(0.75 p))),   RTT = 2 latency

It holds for each connection, whatever else shares the link. Assumption: the way back has the
latency of the way there. Losses "sampled" leave the rate as it is and make single messages late,
by what TCP does to repair them (`Loss.recovery`): `jitter.py` has the law.

Source: J. Padhye, V. Firoiu, D. Towsley, J. Kurose, "Modeling TCP throughput: a simple model and
its empirical validation", SIGCOMM 1998 (the approximate model); RFC 3819, sec. 8.5.1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Literal

from gcsim.fields import (
    SHOWN,
    Bytes,
    Factor,
    Key,
    Limits,
    Part,
    PositiveSeconds,
    Probability,
    Seconds,
    Setting,
    Unit,
)
from gcsim.simulator.network.rate_trace import refuse

Recovery = Literal["rack", "fast_retransmit", "timeout"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeFactor(Setting):
    """What messages of at least `from_bytes` see of a link: a piecewise-constant calibration."""

    from_bytes: Annotated[int, Unit("size"), Key("from")]
    bandwidth: Annotated[Fraction, Limits(above=0, most=1)] = Fraction(1)
    """Of the link's rate, that a message's connection reaches at most, alone or not: one that gets
    less because others share the link loses nothing more."""
    latency: Factor = Fraction(1)
    """Times the link's latency."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Jitter(Setting):
    """Random extra latency of each message."""

    distribution: Literal["exponential", "uniform", "lognormal", "pareto"]
    """uniform: between 0 and twice the mean."""
    mean: Seconds
    """Seconds, of those messages that are delayed."""
    shape: Annotated[Fraction, Limits(least=0, most=1_000_000)] | None = None
    """lognormal: sigma of the logarithm, 1 where it is left out; pareto: the tail's exponent, more
    than 1; None with the others."""
    probability: Probability = Fraction(1)
    """That a message is delayed at all."""

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
        """Some message is delayed by it."""
        return self.mean > 0 and self.probability > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss(Setting):
    """Packets that are lost and sent again by TCP."""

    rate: Part
    """Probability that a packet is lost."""
    model: Literal["capped", "sampled"] | None = None
    """capped: the rate is at most what TCP reaches with such losses (PFTK formula, RFC 3819);
    sampled: a message that loses a packet is late until it is repaired, as `recovery` says. There
    is no default: None is refused."""
    timeout: Annotated[PositiveSeconds, SHOWN] = Fraction(200, 1000)
    """Seconds before TCP sends again what no acknowledgement has shown to be lost."""
    segment: Annotated[Bytes, SHOWN] = 1448
    """Bytes of data in a packet."""
    recovery: Recovery | None = None
    """How sampled losses are repaired. rack, where it is left out: by acknowledgements in the order
    of time, and by tail loss probes (RFC 8985, Linux's default); fast_retransmit: after three
    duplicate acknowledgements (RFC 5681, RFC 6675); timeout: by the retransmission timer alone."""

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
        """Some message is delayed by it."""
        return self.model == "sampled" and self.rate > 0

    def goodput(self, latency: Fraction) -> Fraction | None:
        """Bytes per second that TCP reaches over such a one-way latency; None: no limit."""
        if self.model != "capped" or self.rate == 0:
            return None
        p = float(self.rate)
        trip = 2 * float(latency) * math.sqrt(1.33 * p)
        waits = float(self.timeout) * p * (1 + 32 * p * p) * min(1.0, 3 * math.sqrt(0.75 * p))
        return Fraction(self.segment) / Fraction(trip + waits)
