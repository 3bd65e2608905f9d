"""What keeps a link from being ideal: short messages, jitter, losses.

A connection whose packets are lost with probability p gets, with `Loss` "capped", no more than TCP
reaches at steady state when every second packet is acknowledged:

    segment / (RTT sqrt(1.33 p) + RTO p (1 + 32 p^2) min(1, 3 sqrt(0.75 p))),   RTT = 2 latency

It holds for each connection, whatever else shares the link. Assumption: the way back has the
latency of the way there. Losses "sampled" leave the rate as it is and make single messages late,
by what TCP does to repair them (`Loss.recovery`): `delays.py` has the law.

Source: J. Padhye, V. Firoiu, D. Towsley, J. Kurose, "Modeling TCP throughput: a simple model and
its empirical validation", SIGCOMM 1998 (the approximate model); RFC 3819, sec. 8.5.1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from gcsim.simulator.network.rate_trace import refuse

Recovery = Literal["rack", "fast_retransmit", "timeout"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeFactor:
    """What messages of at least `from_bytes` see of a link: a piecewise-constant calibration."""

    from_bytes: int
    bandwidth: Fraction = Fraction(1)
    """Times the link's rate."""
    latency: Fraction = Fraction(1)
    """Times the link's latency."""

    def __post_init__(self) -> None:
        refuse(
            (self.from_bytes < 0, f"a factor from {self.from_bytes} bytes on", "sizes are >= 0"),
            (
                self.bandwidth <= 0 or self.latency <= 0,
                f"a factor from {self.from_bytes} bytes on that is not positive",
                "a factor of 1 leaves the link as it is",
            ),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Jitter:
    """Random extra latency of each message."""

    distribution: Literal["exponential", "uniform", "lognormal", "pareto"]
    """uniform: between 0 and twice the mean."""
    mean: Fraction
    """Seconds, of those messages that are delayed."""
    shape: Fraction = Fraction(1)
    """lognormal: sigma of the logarithm; pareto: the tail's exponent, more than 1."""
    probability: Fraction = Fraction(1)
    """That a message is delayed at all."""

    def __post_init__(self) -> None:
        refuse(
            (self.mean < 0, f"a mean delay of {float(self.mean):g} s", "delays are >= 0"),
            (
                not 0 <= self.probability <= 1,
                f"a probability of {float(self.probability):g}",
                "probabilities are from 0 to 1",
            ),
            (
                self.distribution == "pareto" and self.shape <= 1,
                f"a Pareto distribution with the exponent {float(self.shape):g} has no mean",
                "let `shape` be more than 1",
            ),
            (
                self.distribution == "lognormal" and self.shape < 0,
                f"a lognormal distribution with a sigma of {float(self.shape):g}",
                "let `shape` be at least 0",
            ),
        )

    @property
    def random(self) -> bool:
        """Some message is delayed by it."""
        return self.mean > 0 and self.probability > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """Packets that are lost and sent again by TCP."""

    rate: Fraction
    """Probability that a packet is lost."""
    model: Literal["capped", "sampled"]
    """capped: the rate is at most what TCP reaches with such losses (PFTK formula, RFC 3819);
    sampled: a message that loses a packet is late until it is repaired, as `recovery` says."""
    timeout: Fraction = Fraction(200, 1000)
    """Seconds before TCP sends again what no acknowledgement has shown to be lost."""
    segment: int = 1448
    """Bytes of data in a packet."""
    recovery: Recovery = "rack"
    """How sampled losses are repaired. rack: by acknowledgements in the order of time, and by tail
    loss probes (RFC 8985, Linux's default); fast_retransmit: after three duplicate
    acknowledgements (RFC 5681, RFC 6675); timeout: by the retransmission timer alone."""

    def __post_init__(self) -> None:
        refuse(
            (
                not 0 <= self.rate < 1,
                f"a loss rate of {float(self.rate):g}",
                "loss rates are at least 0 and less than 1",
            ),
            (self.timeout <= 0, f"a time-out of {float(self.timeout):g} s", "it is positive"),
            (self.segment <= 0, f"packets of {self.segment} bytes", "a packet has 1 at least"),
        )

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
