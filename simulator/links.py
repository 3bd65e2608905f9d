"""A point-to-point link: how long a message occupies the sender, and when it arrives.

    arrival = start + serialization(nbytes) + latency

The alpha-beta model (Hockney 1994): the sender is busy for the serialisation alone. Assumes
that the bandwidth is the goodput that the transport reaches; `efficiency` is goodput over the
line rate, 1448/1538 = 0.9415 for TCP over Ethernet with an MTU of 1500 bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from gcsim.simulator.clock import PS_PER_SECOND, Picoseconds, picoseconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """One direction of a full-duplex link."""

    name: str
    bandwidth: Fraction
    """Line rate, bytes per second."""
    latency: Fraction
    """One way, seconds, including the software on both ends."""
    efficiency: Fraction = Fraction(1)
    source: str = ""
    """Where the figures come from; shown in every report."""
    estimate: bool = False
    """True when a figure was neither measured on this link nor stated by the user."""

    def serialization(self, nbytes: int) -> Picoseconds:
        """Time for which `nbytes` occupy the link."""
        return round(Fraction(nbytes) * PS_PER_SECOND / (self.bandwidth * self.efficiency))

    @property
    def latency_ps(self) -> Picoseconds:
        """The latency on the engine's clock."""
        return picoseconds(self.latency)
