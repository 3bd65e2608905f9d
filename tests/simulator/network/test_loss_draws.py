"""Are messages as late as the law of `loss_draws.py` says, whatever is lost?

The oracle goes packet by packet: it is told how often each was lost, and knows nothing of runs,
last packets and inversions.
"""

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from gcsim.simulator.network.jitter import draw_jitter
from gcsim.simulator.network.links import Jitter, Link, Loss, Recovery
from gcsim.simulator.network.rate_trace import RateTrace
from tests.simulator.network.tcp_sender import Sender

MS = Fraction(1, 1000)
SEGMENT = 1000
N = 100_000
RECOVERIES: tuple[Recovery, ...] = ("timeout", "fast_retransmit", "rack")


@dataclass(frozen=True)
class Tcp:
    """Figures of a connection, in milliseconds."""

    trip: float
    packet: float
    timeout: float = 200.0

    def link(self, rate: Fraction, recovery: Recovery) -> Link:
        packet, trip = Fraction(self.packet), Fraction(self.trip)
        return Link(
            name="lossy",
            bandwidth=SEGMENT / (packet * MS),
            latency=trip * MS / 2,
            loss=Loss(
                rate=rate,
                model="sampled",
                recovery=recovery,
                timeout=Fraction(self.timeout) * MS,
                segment=SEGMENT,
            ),
        )


FAST = Tcp(trip=8, packet=0.0625)
SLOW = Tcp(trip=8, packet=3)
FAR = Tcp(trip=64, packet=1)
FARTHEST = Tcp(trip=128, packet=2)


def drawn(
    link: Link, packets: int, *, count: int = N, key: int = 0, rank: int = 0
) -> NDArray[np.float64]:
    """In milliseconds, of messages 0 to `count` - 1."""
    zeros = np.zeros(count, np.int64)
    found = draw_jitter(
        [link], zeros, packets * SEGMENT, key=key, message=np.arange(count), rank=rank
    )
    return found / 1e9


# ---- packet by packet: how often was each sent in vain, from the last packet to the first?


def late(losses: Sequence[int], tcp: Tcp, recovery: Recovery) -> float:
    trip, packet, timeout = tcp.trip, tcp.packet, tcp.timeout
    if recovery == "timeout":
        raise ValueError("the timer does not care which packets are lost")
    rack = recovery == "rack"
    lost = [j for j, times in enumerate(losses) if times]
    tail = [j for j in lost if sum(not times for times in losses[:j]) < 3]
    found = min(trip + 3 * packet, timeout)
    body = [j for j in lost if j not in tail]
    message = 0.0
    sent, last, timers = 0.0, -1, 0
    for times in itertools.count(1):
        often = [j for j in body if losses[j] >= times]
        if not often:
            break
        following, last = last, min(often)
        goes_on = found + (times - 2) * (trip + packet) + packet <= last * packet
        if times == 1:
            sent = found - last * packet
        elif rack and last > following:
            flowing = found + (times - 1) * (trip + packet) - last * packet
            sent = flowing if goes_on else sent + trip
        elif rack and sent + packet <= 0:
            sent += trip + packet
        else:
            sent += timeout * 2.0**timers - (last - following) * packet
            timers += 1
        message = max(message, sent)
    if not tail:
        return message
    acknowledged = trip if max(tail) < len(losses) - 1 else 0.0
    timer = timeout + acknowledged
    others = [found - j * packet for j in body]
    first = rack_tail(losses, tail, others, acknowledged, tcp) if rack else timer
    again = max(losses[j] for j in tail) - 1
    if first == timer:
        return max(message, timer + sum(timeout * 2.0 ** (k + 1) for k in range(again)))
    return max(message, first + sum(timeout * 2.0**k for k in range(again)))


def rack_tail(
    losses: Sequence[int], tail: list[int], others: list[float], acknowledged: float, tcp: Tcp
) -> float:
    trip, timer = tcp.trip, tcp.timeout + acknowledged
    silent = [j for j in tail if all(losses[:j])]
    if not silent:
        return min(5 * trip / 4, timer)
    if len(silent) < len(tail):
        return min(9 * trip / 4, timer)
    if others and max(others) > 0:
        return min(max(others) + trip, timer)
    if len(silent) == 1:
        return timer
    probe = acknowledged + 2 * trip
    return probe + trip if probe < timer else timer


def law(
    packets: int, rate: float, tcp: Tcp, recovery: Recovery, most: int
) -> tuple[dict[float, float], float]:
    """Probabilities of delays, and below which delay they are all: beyond, `most` is too few."""
    chances: defaultdict[float, float] = defaultdict(float)
    bound = math.inf
    for losses in itertools.product(range(most + 1), repeat=packets):
        found = late(losses, tcp, recovery)
        chance = math.prod(rate**times * (1 - rate) for times in losses)
        if max(losses) == most:
            bound = min(bound, found)
        chances[found] += chance
    return dict(chances), bound


def merged(values: Sequence[float]) -> dict[float, float]:
    """Each value's representative: floats that differ by rounding are one."""
    found: dict[float, float] = {}
    last = -math.inf
    for value in sorted(set(values)):
        last = last if value - last < 1e-6 else value
        found[value] = last
    return found


@pytest.mark.parametrize("recovery", ["fast_retransmit", "rack"])
@pytest.mark.parametrize("tcp", [FAST, SLOW, FAR, FARTHEST], ids=["fast", "slow", "far", "farther"])
@pytest.mark.parametrize(
    ("packets", "most"), [(1, 9), (2, 7), (3, 5), (4, 4), (5, 4), (6, 3), (8, 2)]
)
def test_delays_of_short_messages_have_the_law_of_all_patterns_of_losses(
    packets: int, most: int, tcp: Tcp, recovery: Recovery
) -> None:
    rate = Fraction(1, 4)
    chances, bound = law(packets, float(rate), tcp, recovery, most)
    assert bound > 0, "some delay is compared"
    found = drawn(tcp.link(rate, recovery), packets, key=packets)
    names = merged([*chances, *found.tolist()])
    wanted: defaultdict[float, float] = defaultdict(float)
    for value, chance in chances.items():
        if value < bound - 1e-6:
            wanted[names[value]] += chance * N
    counted = Counter(names[value] for value in found.tolist() if value < bound - 1e-6)
    assert set(counted) <= set(wanted), "no other delay is drawn"
    rest = N - sum(wanted.values())
    expected = [*wanted.values(), rest]
    seen = [*(counted[name] for name in wanted), N - sum(counted.values())]
    enough = [(s, e) for s, e in zip(seen, expected, strict=True) if e >= 5]
    few = (
        sum(e for e in expected if e < 5),
        sum(s for s, e in zip(seen, expected, strict=True) if e < 5),
    )
    assert abs(few[0] - few[1]) <= 5 * math.sqrt(few[0] + 1)
    chi = sum((s - e) ** 2 / e for s, e in enough)
    assert stats.chi2.sf(chi, max(1, len(enough) - 1)) > 1e-4, (wanted, counted)


def test_most_of_what_is_late_is_compared_there() -> None:
    for recovery in ("fast_retransmit", "rack"):
        for tcp in (FAST, SLOW, FAR, FARTHEST):
            chances, bound = law(5, 0.25, tcp, recovery, 4)
            compared = sum(chance for value, chance in chances.items() if 0 < value < bound)
            assert compared > 0.9 * sum(chance for value, chance in chances.items() if value > 0)


@pytest.mark.parametrize("recovery", ["fast_retransmit", "rack"])
@pytest.mark.parametrize(
    ("packets", "rate", "tcp"),
    [
        (40, Fraction(1, 20), FAST),
        (40, Fraction(1, 4), SLOW),
        (150, Fraction(1, 8), SLOW),
        (150, Fraction(1, 50), FAR),
        (150, Fraction(3, 10), FARTHEST),
        (60, Fraction(9, 10), FAR),
    ],
)
def test_delays_of_long_messages_have_the_law_packet_by_packet(
    packets: int, rate: Fraction, tcp: Tcp, recovery: Recovery
) -> None:
    rng = np.random.default_rng(packets)
    count = 3000
    losses = np.minimum(rng.geometric(1 - float(rate), (count, packets)) - 1, 10)
    wanted = np.array([late(row, tcp, recovery) for row in losses.tolist()])
    found = drawn(tcp.link(rate, recovery), packets)
    assert stats.ks_2samp(np.round(wanted, 6), np.round(found, 6)).pvalue > 1e-4
    error = math.hypot(wanted.std() / math.sqrt(count), found.std() / math.sqrt(N))
    assert abs(wanted.mean() - found.mean()) < 5 * error


# ---- against TCP's rules, event by event


def events(
    packets: int, rate: float, tcp: Tcp, recovery: Recovery, count: int
) -> NDArray[np.float64]:
    rng = np.random.default_rng(7)

    def sender() -> Sender:
        lost = np.minimum(rng.geometric(1 - rate, packets) - 1, 10)
        return Sender(
            packets=packets, trip=tcp.trip, packet=tcp.packet, timeout=tcp.timeout,
            rack=recovery == "rack", is_lost=lambda i, tries: bool(tries < lost[i]),
        )  # fmt: skip

    return np.array([sender().run() for _ in range(count)])


def is_lost(losses: Sequence[int]) -> Callable[[int, int], bool]:
    """Losses from the last packet to the first, as the sender asks."""
    return lambda i, tries: tries < losses[len(losses) - 1 - i]


@pytest.mark.parametrize("recovery", ["fast_retransmit", "rack"])
@pytest.mark.parametrize("packets", [1, 2, 5, 12])
def test_a_single_loss_is_repaired_as_a_sender_would(packets: int, recovery: Recovery) -> None:
    tcp = Tcp(trip=64, packet=0.125)
    for place in range(packets):
        losses = [int(j == place) for j in range(packets)]
        sender = Sender(
            packets=packets, trip=tcp.trip, packet=tcp.packet, timeout=tcp.timeout,
            rack=recovery == "rack", is_lost=is_lost(losses),
        )  # fmt: skip
        # The end of the message for the last acknowledgement, and reordering counts from sending.
        assert sender.run() == pytest.approx(late(losses, tcp, recovery), abs=3 * tcp.packet)


@pytest.mark.parametrize("recovery", ["fast_retransmit", "rack"])
@pytest.mark.parametrize("packets", [2, 3, 4, 8])
def test_losses_at_the_end_are_repaired_as_a_sender_would(packets: int, recovery: Recovery) -> None:
    tcp = Tcp(trip=8, packet=0.125)
    for end in range(1, packets + 1):
        losses = [int(j < end) for j in range(packets)]
        sender = Sender(
            packets=packets, trip=tcp.trip, packet=tcp.packet, timeout=tcp.timeout,
            rack=recovery == "rack", is_lost=is_lost(losses),
        )  # fmt: skip
        slack = (packets + 1) * tcp.packet
        assert sender.run() == pytest.approx(late(losses, tcp, recovery), abs=slack)


@pytest.mark.long
@pytest.mark.parametrize("recovery", ["fast_retransmit", "rack"])
@pytest.mark.parametrize(
    ("packets", "rate", "tcp"),
    [
        (4, Fraction(1, 20), FAST),
        (10, Fraction(1, 50), FAST),
        (100, Fraction(1, 100), FAST),
        (100, Fraction(1, 100), FAR),
    ],
)
def test_the_law_is_near_a_sender_without_a_window(
    packets: int, rate: Fraction, tcp: Tcp, recovery: Recovery
) -> None:
    # Within a quarter of the mean, and a third of the chance of a time-out: what the law rounds off
    # (retransmissions of others that show a loss) needs two losses.
    count = 6000 if packets <= 10 else 1000
    wanted = events(packets, float(rate), tcp, recovery, count)
    found = drawn(tcp.link(rate, recovery), packets)
    error = wanted.std() / math.sqrt(count)
    assert abs(wanted.mean() - found.mean()) < found.mean() / 4 + 4 * error
    share = (found >= tcp.timeout - 1).mean()
    error = math.sqrt(share / count)
    assert abs((wanted >= tcp.timeout - 1).mean() - share) < share / 3 + 4 * error


# ---- what follows from the law


@pytest.mark.parametrize("tcp", [FAST, SLOW, FAR])
def test_a_message_of_one_packet_waits_for_the_timer_whatever_the_recovery(tcp: Tcp) -> None:
    first, *others = (drawn(tcp.link(Fraction(1, 3), recovery), 1) for recovery in RECOVERIES)
    for other in others:
        assert (first == other).all()
    assert set(np.unique(first)) <= {200.0 * (2**k - 1) for k in range(11)}


def test_recoveries_agree_on_which_messages_lose_a_packet() -> None:
    # All of a short message's losses make it late; of a long one's, those before the end need not.
    for packets in (1, 2, 3, 5):
        timeout, fast, rack = (
            drawn(FAR.link(Fraction(1, 10), recovery), packets) for recovery in RECOVERIES
        )
        assert ((timeout > 0) == (fast > 0)).all()
        assert ((timeout > 0) == (rack > 0)).all()
    timeout, fast, rack = (
        drawn(SLOW.link(Fraction(1, 10), recovery), 100) for recovery in RECOVERIES
    )
    assert ((rack > 0) <= (timeout > 0)).all()
    assert (rack > 0).mean() < 0.6 < (timeout > 0).mean()


@pytest.mark.parametrize("tcp", [FAST, SLOW, FAR])
def test_rack_is_never_later_than_fast_retransmission(tcp: Tcp) -> None:
    for packets in (1, 2, 4, 10, 1000):
        for rate in (Fraction(1, 1000), Fraction(1, 20), Fraction(9, 10)):
            fast, rack = (
                drawn(tcp.link(rate, recovery), packets, count=20_000)
                for recovery in ("fast_retransmit", "rack")
            )
            assert (rack <= fast + 1e-9).all()


@pytest.mark.parametrize("recovery", RECOVERIES)
def test_with_rare_losses_delays_become_as_rare(recovery: Recovery) -> None:
    # To first order in the rate, a message of n packets is late by the sum over its packets of what
    # one loss there costs.
    packets, rate = 40, Fraction(1, 10**6)
    if recovery == "timeout":
        costs = [FAST.timeout] * packets
    else:
        costs = [
            late([int(j == place) for j in range(packets)], FAST, recovery)
            for place in range(packets)
        ]
    count = 4 * 10**6
    found = drawn(FAST.link(rate, recovery), packets, count=count)
    late_ones = (found > 0).sum()
    expected = sum(cost > 0 for cost in costs) * float(rate) * count
    assert abs(late_ones - expected) < 5 * math.sqrt(expected)
    assert set(np.round(found[found > 0], 6)) <= set(np.round(costs, 6))
    never = drawn(FAST.link(Fraction(1, 10**30), recovery), packets)
    assert not never.any()
    assert not FAST.link(Fraction(0), recovery).random


def test_jitter_and_losses_are_independent_and_add_up() -> None:
    plain = FAR.link(Fraction(1, 5), "rack")
    jitter = Jitter(distribution="uniform", mean=MS)
    both = drawn(replace(plain, jitter=(jitter,)), 20)
    first = drawn(replace(plain, jitter=(jitter,), loss=None), 20)
    losses = both - first
    assert abs(np.corrcoef(first, losses)[0, 1]) < 5 / math.sqrt(N)
    assert stats.ks_2samp(np.round(losses, 6), np.round(drawn(plain, 20, key=1), 6)).pvalue > 1e-4


def test_a_changing_rate_counts_with_its_long_run() -> None:
    steady = SLOW.link(Fraction(1, 10), "rack")
    rate = steady.bandwidth
    trace = RateTrace(
        times=(Fraction(0), Fraction(1)),
        rates=(rate / 2, 3 * rate / 2),
        duration=Fraction(2),
        after="repeat",
    )
    changing = replace(steady, trace=trace)
    assert changing.timed
    assert (drawn(changing, 50) == drawn(steady, 50)).all()


def test_delays_of_wild_links_are_finite_and_at_most_a_day() -> None:
    day = 86_400_000
    for recovery in RECOVERIES:
        for rate in (Fraction(1, 10**40), Fraction(1, 10**12), 1 - Fraction(1, 10**20)):
            for tcp in (Tcp(trip=0, packet=1e-9), Tcp(trip=1e9, packet=1e9, timeout=1e7)):
                found = drawn(tcp.link(rate, recovery), 10**6, count=1000)
                assert found.min() >= 0
                assert found.max() <= day


# ---- what docs/model/losses.md says


def test_the_page_compares_sampled_and_capped_losses_as_they_are() -> None:
    page = (Path(__file__).parents[3] / "docs" / "model" / "losses.md").read_text(encoding="utf-8")
    _, table = page.split("| link, round trip | losses |", 1)
    rows = table.split("\n\n", 1)[0].splitlines()[2:]
    assert len(rows) == 9
    for row in rows:
        connection, rate, *goodputs, formula = (cell.strip() for cell in row.strip("|").split("|"))
        speed, trip = (Fraction(part.split()[0]) for part in connection.split(", "))
        tcp = Link(name="page", bandwidth=speed * 10**6 / 8, latency=trip * MS / 2)
        capped = Loss(rate=Fraction(rate), model="capped").goodput(tcp.latency)
        assert capped is not None
        assert float(capped) * 8 / 1e6 == pytest.approx(float(formula), rel=0.006)
        for size, cell in zip((2**16, 2**20, 25 * 2**20), goodputs, strict=True):
            for recovery, shown in zip(reversed(RECOVERIES), cell.split(" / "), strict=True):
                loss = Loss(rate=Fraction(rate), model="sampled", recovery=recovery)
                one = replace(tcp, loss=loss)
                late_by = draw_jitter(
                    [one],
                    np.zeros(20_000, np.int64),
                    size,
                    key=5,
                    message=np.arange(20_000),
                    rank=0,
                )
                seconds = float(size / one.rate) + late_by.mean() / 1e12
                assert size * 8 / 1e6 / seconds == pytest.approx(float(shown), rel=0.006)
