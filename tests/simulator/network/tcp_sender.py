"""One message through TCP, event by event: what do the rules of the RFCs make of lost packets?

A sender without a window: packets leave at a fixed distance, each is acknowledged by itself (SACK)
a round trip after it left, retransmissions take no time on the link. What is lost is said by a
function of the packet and of how often it has been sent. Knows nothing of `loss_draws.py`.
"""

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

DUPLICATES = 3


@dataclass
class Sender:
    """Sends packets 0 to `packets` - 1; all times in one unit, since the first began to leave."""

    packets: int
    trip: float
    packet: float
    timeout: float
    rack: bool
    is_lost: Callable[[int, int], bool]

    sent: dict[int, float] = field(default_factory=dict)
    """When each packet left last."""
    tries: dict[int, int] = field(default_factory=dict)
    arrived: dict[int, float] = field(default_factory=dict)
    """When the first copy that arrived had left."""
    acknowledged: set[int] = field(default_factory=set)
    again: set[int] = field(default_factory=set)
    """Sent again since it was last acknowledged or timed out (RFC 6675 sends once)."""
    recovery: int = -1
    """Until which packet is acknowledged the sender is in recovery; -1: it is not."""
    backoff: float = 1.0
    probed: bool = False

    def run(self) -> float:
        """How much later than without losses the message is complete."""
        self._tick = itertools.count()
        self._events: list[tuple[float, int, Callable[..., None], tuple[object, ...]]] = []
        self._timer = self._settle = 0
        for i in range(self.packets):
            self._at((i + 1) * self.packet, self._send_new, i)
        while self._events and len(self.arrived) < self.packets:
            self.now, _, act, values = heapq.heappop(self._events)
            act(*values)
        return max(self.arrived.values()) - self.packets * self.packet

    def _at(self, when: float, act: Callable[..., None], *values: object) -> None:
        heapq.heappush(self._events, (when, next(self._tick), act, values))

    @property
    def _first(self) -> int:
        """The first packet that is not acknowledged."""
        return next(i for i in itertools.count() if i not in self.acknowledged)

    def _outstanding(self) -> list[int]:
        return [i for i in self.sent if i not in self.acknowledged]

    def _sacked(self) -> int:
        return sum(i > self._first for i in self.acknowledged)

    def _transmit(self, i: int) -> None:
        lost = self.is_lost(i, self.tries.get(i, 0))
        self.tries[i] = self.tries.get(i, 0) + 1
        self.sent[i] = self.now
        if not lost:
            self.arrived.setdefault(i, self.now)
            self._at(self.now + self.trip, self._acknowledge, i, self.now)

    def _send_new(self, i: int) -> None:
        self._transmit(i)
        self._arm(restart=False)

    def _resend(self, lost: list[int]) -> None:
        if lost and self.recovery < 0:
            self.recovery = max(self.sent)
        for i in sorted(lost):
            self.again.add(i)
            self._transmit(i)
        if lost:
            self._arm(restart=True)

    def _acknowledge(self, i: int, left: float) -> None:
        first = self._first
        self.acknowledged.add(i)
        if self._first > self.recovery:
            self.recovery = -1
        if self._first > first:
            self.backoff, self.probed = 1.0, False
            self._arm(restart=True)
        if self.rack:
            self.newest = max(getattr(self, "newest", (0.0, -1)), (left, i))
            self._detect()
        else:
            later = sorted(self.acknowledged)
            self._resend([
                j for j in self._outstanding()
                if j not in self.again and sum(k > j for k in later) >= DUPLICATES
            ])  # fmt: skip

    def _detect(self) -> None:
        """RFC 8985, sec. 6.2: sent before what was delivered, and long enough ago."""
        exact = self.recovery >= 0 or self._sacked() >= DUPLICATES
        window = 0.0 if exact else self.trip / 4
        before = [i for i in self._outstanding() if (self.sent[i], i) < self.newest]
        due = {i: self.sent[i] + self.trip + window for i in before}
        self._settle += 1
        waiting = [when for when in due.values() if when > self.now + 1e-9]
        if waiting:
            self._at(max(waiting), self._settled, self._settle)
        self._resend([i for i in before if due[i] <= self.now + 1e-9])

    def _settled(self, number: int) -> None:
        if number == self._settle:
            self._detect()

    def _arm(self, *, restart: bool) -> None:
        """One timer: the probe's where there may be one, else the time-out's."""
        outstanding = self._outstanding()
        if not outstanding:
            self._timer += 1
            return
        wait = self.timeout * self.backoff
        may = self.rack and not self.probed and self.recovery < 0 and self._sacked() == 0
        if may:
            self._timer += 1
            probe = 2 * self.trip if len(outstanding) > 1 else self.timeout
            act = self._probe if probe < wait else self._time_out
            self._at(self.now + min(probe, wait), act, self._timer)
        elif restart or self._timer == 0:
            self._timer += 1
            self._at(self.now + wait, self._time_out, self._timer)

    def _probe(self, number: int) -> None:
        if number != self._timer:
            return
        self.probed = True
        self._transmit(max(self.sent))
        self._arm(restart=True)

    def _time_out(self, number: int) -> None:
        if number != self._timer or not self._outstanding():
            return
        self.backoff *= 2
        self.again.clear()
        lost = [i for i in self._outstanding() if self.sent[i] + self.trip <= self.now + 1e-9]
        self._resend(lost)
        self._arm(restart=True)
