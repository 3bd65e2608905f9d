"""Which queue makes a virtual network card as slow as stated? A token bucket, of one frame.

`tc tbf` lets bytes pass at the rate, and as many as its burst holds at once, for free, whenever
the link has been idle. The kernel hands it several segments as one frame (segmentation offload),
64 KB when nothing limits it: at 100 Mbit/s 5 ms of data, which a burst of that size would let
through at the start of every transfer. A smaller burst alone would make the kernel cut each frame
in software, on the processor that is to be measured. So the frames are limited, to about a
millisecond, and the burst is one of them.

A frame is charged with the Ethernet, IP and TCP headers of all its segments: 66 bytes to 1448 of
data (with TCP's time stamps, at an MTU of 1500). Preamble, checksum and gap, 24 bytes more on a
real wire, are not charged. Who also receives sends acknowledgements through the same bucket, one
for each frame (counted on these cards: 1.1 at 100 Mbit/s, 1.3 at 50): 66 bytes more a frame.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

SEGMENT = 1448
"""Bytes of data in a full segment."""
CHARGED = 1514
"""Bytes that the bucket is charged for it."""
FEWEST, MOST = 4, 44
"""Segments of a frame: below, interrupts would rule; above, the kernel has none."""
FRAME_SECONDS = Fraction(1, 1000)
_HEADERS = CHARGED - SEGMENT
_QUEUE_SECONDS = Fraction(1, 10)
"""What may wait; more is dropped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A card's limits, each direction."""

    rate: int
    """Bits per second, as charged."""
    segments: int
    """Of the longest frame."""

    @staticmethod
    def of(rate: int) -> Shape:
        """For a rate in bits per second."""
        segments = round(rate * FRAME_SECONDS / 8 / CHARGED)
        return Shape(rate=rate, segments=min(MOST, max(FEWEST, segments)))

    @property
    def frame(self) -> int:
        """Bytes of the longest frame, its one copy of the headers included: `gso_max_size`."""
        return self.segments * SEGMENT + _HEADERS

    @property
    def burst(self) -> int:
        """Bytes: what the longest frame is charged."""
        return self.segments * CHARGED

    @property
    def queue(self) -> int:
        """Bytes that may wait at a card, beside the burst."""
        return max(4 * self.burst, int(self.rate * _QUEUE_SECONDS / 8))

    @property
    def efficiency(self) -> Fraction:
        """Data over what is charged, of a rank that sends and receives frames at full rate."""
        return Fraction(self.segments * SEGMENT, self.segments * CHARGED + _HEADERS)

    def options(self) -> list[str]:
        """Arguments of `tc qdisc replace dev ... root`."""
        return [
            "tbf", "rate", f"{self.rate}bit",
            "burst", str(self.burst), "limit", str(self.burst + self.queue),
        ]  # fmt: skip
