"""Delays of messages that lose packets, by TCP's methods of loss recovery.

Each of a message's n = max(1, ceil(bytes / segment)) packets is lost independently with probability
p, and again with p each time it is sent again, at most 10 times. T is the time-out.

**timeout**: any loss makes the message wait for the retransmission timer; all lost packets are sent
again, and with p it waits again, twice as long (RFC 6298, sec. 5.4 and 5.5):

    delay = T (2^k - 1),   P(k >= 1) = 1 - (1 - p)^n,   P(k >= i + 1 | k >= i) = p

**rack**, **fast_retransmit**: packets leave `packet` = segment / rate apart, acknowledgements are
never lost, and delays count from the end of the message: early losses are repaired while the rest
flows. R = 2 latency is the round trip (size factors aside); a packets behind a lost one arrived.

*a >= 3*: three acknowledgements show the loss (RFC 5681, sec. 3.2; RFC 6675, sec. 4), and the
packet is sent again `found` = min(R + 3 packet, T) after it was sent. A lost retransmission waits
for the timer, T, then 2 T (RFC 6675, sec. 6). RACK detects it R after a later packet that arrives
was sent (RFC 8985, sec. 6.2): one of the message if any is left, else the next retransmission.
M(i) is the number of packets behind the last one lost at least i times, whose i-th retransmission
is S(i) after the end of the message:

    delay = max over i >= 1 of max(0, S(i)),   S(1) = found - M(1) packet
    P(M(1) >= m) = (1 - p)^m,   P(M(i+1) = M(i)) = p,   P(M(i+1) > M(i) + m) = (1-p) (1-p^(i+1))^m

| S(i+1), m = M(i+1) - M(i) | rack, the message goes on       | rack, else   | fast_retransmit |
|---------------------------|---------------------------------|--------------|-----------------|
| m = 0                     | S(i) + R + packet, where        | S(i) + 2^w T | S(i) + 2^w T    |
|                           | S(i) + packet <= 0              |              |                 |
| m > 0                     | found + i (R + packet)          | S(i) + R     | S(i) - m packet |
|                           | - M(i+1) packet, where <= R     |              | + 2^w T         |

where w counts earlier waits for the timer.

*a < 3*, the tail: its c losses form three runs, one in front of each of the last three packets that
arrive, P(run >= k) = p^k. They are sent again together, E after the end of the message, at the
latest by the timer, T' = T + A, with A = R if a packet in front of them arrived, else 0: an
acknowledgement of new data restarts the timer (RFC 6298, sec. 5.3). `fast_retransmit`: E = T'.
`rack`, at most T':

- nothing lost at the very end: E = 5/4 R, which is R and R/4 for reordering (RFC 8985, sec. 6.2)
- something, and others in the tail: 9/4 R, when their retransmission is acknowledged
- something, and others sent again x > 0 after the end: x + R, likewise
- one packet alone: T', since the probe allows for a delayed acknowledgement, in Linux as long as
  its smallest time-out (sec. 7.2)
- two or more: A + 3 R: 2 R to the probe, which repairs the last, R to find the others (7.2 to 7.4);
  T' where A + 2 R >= T': the timer comes before the probe

Packets among the c that are lost again wait for the timer:

    delay = E + T (2^k - 1), or T' + T (2^(k+1) - 2) where E = T',   P(k >= i) = 1 - (1 - p^i)^c

The message's delay is the larger of both cases. Not modelled: the window, which losses halve
(`Loss` "capped"); slow start after a time-out; retransmissions' time on the link; jitter, which
changes R and reorders packets; a shorter last packet. A changing rate counts as its mean.

Sources: the RFCs above; Linux's tail loss probe: net/ipv4/tcp_output.c, tcp_schedule_loss_probe, on
by default (sysctl tcp_early_retrans = 3, tcp_recovery = 1).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gcsim.compressors.loops import inlined, loop
from gcsim.simulator.clock import Times
from gcsim.simulator.network.jitter_draws import LATEST, fraction, ln

# Constants of this file only: cached machine code is checked against this file alone.

NONE, TIMEOUT, FAST_RETRANSMIT, RACK = range(4)  # codes of a link's repair; NONE: nothing is lost
_MOST = 10  # most losses of one packet
_DUPLICATES = 3  # later packets' acknowledgements that show a loss
_LATEST = np.int64(LATEST)
_AGAIN, _RUNS, _BEFORE, _CHAIN = 1, 2, 5, 6  # purposes of random numbers; 0: the last lost packet


@inlined
def _hazard(x: float) -> float:
    """Return -ln(1 - x) for x in [0, 1), accurate near 0."""
    return x * (1.0 + 0.5 * x) if x < 1e-5 else -ln(1.0 - x)


@inlined
def _exponential(key: np.uint64, purpose: int, number: int) -> float:
    return -ln(1.0 - fraction(key, purpose, number))


@loop
def _more(key: np.uint64, purpose: int, number: int, rate: float, lost: float) -> int:
    """Return the most repeated losses of any of `lost` packets, which are all sent again."""
    bound = _exponential(key, purpose + _AGAIN, number)
    more, share = 0, rate
    # one draw for all packets: P(E < c hazard(p^i)) = 1 - (1 - p^i)^c
    while bound < lost * _hazard(share) and more < _MOST - 1:
        more += 1
        share *= rate
    return more


@loop
def _tail(  # noqa: PLR0917
    key: np.uint64, purpose: int, number: int, packets: float, behind: float, rate: float
) -> tuple[float, float, float]:
    """Return the losses in the tail, those at the very end, and the tail's packets (one more than
    the message has if no packet in front of the losses arrived)."""
    if behind >= _DUPLICATES:
        return 0.0, 0.0, behind
    seen, arrived, lost, at_end = behind, int(behind), 0.0, 0.0
    least = 1.0  # the first run is known not to be empty
    while arrived < _DUPLICATES and seen < packets:
        # the floor of an exponential is geometric: P(run >= k) = p^k
        run = np.floor(_exponential(key, purpose + _RUNS + arrived, number) / -ln(rate))
        run = min(least + run, packets - seen)
        least = 0.0
        if seen == 0.0:
            at_end = run
        lost += run
        seen += run + 1.0
        arrived += 1
    return lost, at_end, seen


@inlined
def _tail_repaired(  # noqa: PLR0917
    lost: float, at_end: float, acknowledged: float, repaired: float, timer: float, trip: float
) -> float:
    """Return the time from the end of the message until RACK-TLP sends the tail again, at most
    `timer`. `acknowledged`: last restart of the timer; `repaired`: last other retransmission."""
    if at_end == 0.0:
        late = 1.25 * trip
    elif lost > at_end:
        late = 2.25 * trip
    elif repaired > 0.0:
        late = repaired + trip
    elif at_end == 1.0 or acknowledged + 2.0 * trip >= timer:
        late = timer
    else:
        return acknowledged + 3.0 * trip
    return min(late, timer)


@loop
def _repaired(  # noqa: PLR0917
    key: np.uint64,
    purpose: int,
    number: int,
    rack: bool,
    packets: float,
    behind: float,
    rate: float,
    hazard: float,
    timeout: float,
    trip: float,
    packet: float,
) -> float:
    """Return the delay of a message whose last lost packet is followed by `behind` packets."""
    lost, at_end, last = _tail(key, purpose, number, packets, behind, rate)
    found = min(trip + _DUPLICATES * packet, timeout)
    late = 0.0
    if lost > 0.0:
        acknowledged = trip if last <= packets else 0.0
        # from the tail to the last loss in front of it
        last += np.floor(_exponential(key, purpose + _BEFORE, number) / hazard)
        repaired = found - last * packet if last < packets else 0.0
        first = timer = timeout + acknowledged
        if rack:
            first = _tail_repaired(lost, at_end, acknowledged, repaired, timer, trip)
        waits = 2.0 ** _more(key, purpose, number, rate, lost) - 1.0
        # the timer's wait doubles each time it expires
        late = first + timeout * (2.0 * waits if first == timer else waits)
    losses, share, wait = 1, rate, timeout
    sent = found - last * packet  # when the last packet lost so often is sent again
    while last < packets:
        late = max(late, sent)
        v = 1.0 - fraction(key, purpose + _CHAIN + losses, number)
        if losses == _MOST:
            break
        share *= rate
        flows = found + (losses - 1) * (trip + packet)
        losses += 1
        if v > 1.0 - rate:  # the same packet
            if rack and sent + packet <= 0.0:
                sent += trip + packet
            else:
                sent += wait
                wait *= 2.0
        else:
            before = last
            # here v / (1 - rate) is again uniform
            last += 1.0 + np.floor(-ln(v / (1.0 - rate)) / _hazard(share))
            if not rack:
                sent += (before - last) * packet + wait
                wait *= 2.0
            elif flows + packet <= last * packet:
                sent = flows + trip + packet - last * packet
            else:
                sent += trip
    return late


@loop
def add_losses(  # noqa: PLR0917
    key: np.uint64,
    kinds: NDArray[np.int64],
    nbytes: NDArray[np.int64],
    message: NDArray[np.int64],
    rank: NDArray[np.int64],
    codes: NDArray[np.int64],
    parameters: NDArray[np.float64],
    out: Times,
) -> None:
    """Add delays of losses to `out` `[n]`, picoseconds.

    `kinds`, `nbytes`, `message` and `rank` are `[n]` or `[1]`. By link, `codes`: repair, first
    purpose of the random numbers; `parameters`: loss rate, -ln(1 - rate), bytes per packet,
    time-out, round trip, a packet's time on the link.
    """
    by_kind, by_size = int(kinds.size > 1), int(nbytes.size > 1)
    by_number, by_rank = int(message.size > 1), int(rank.size > 1)
    for i in range(out.size):
        kind = kinds[i * by_kind]
        code = codes[kind, 0]
        if code == NONE:
            continue
        number, purpose = message[i * by_number], (rank[i * by_rank] << 16) + codes[kind, 1]
        rate, hazard, timeout = parameters[kind, 0], parameters[kind, 1], parameters[kind, 3]
        packets = max(1.0, np.ceil(nbytes[i * by_size] / parameters[kind, 2]))
        behind = _exponential(key, purpose, number)
        # no packet is lost: P(E >= n hazard) = (1 - p)^n
        if behind >= packets * hazard:
            continue
        if code == TIMEOUT:
            late = timeout * (2.0 ** (1 + _more(key, purpose, number, rate, 1.0)) - 1.0)
        else:
            last, trip, packet = np.floor(behind / hazard), parameters[kind, 4], parameters[kind, 5]
            late = _repaired(
                key, purpose, number, code == RACK, packets, last, rate, hazard, timeout, trip,
                packet,
            )  # fmt: skip
        # two bounds: neither the conversion nor the sum may exceed 64 bits
        out[i] = min(out[i] + np.int64(np.rint(min(late, LATEST))), _LATEST)
