"""Do Gloo's rings agree with a simulation of its messages, announcements and buffers?

The oracle below is written from Gloo's protocol: connections with a queue in each direction,
announcements of posted receives, pending operations, two temporary buffers, real segments (sets of
contributions). It shares no code with the kernels. Comparisons are `==` in picoseconds.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import pytest
import simpy
from hypothesis import given
from hypothesis import strategies as st

from gcsim.simulator.collectives.rings.allreduce import ring_allreduce
from gcsim.simulator.collectives.rings.gloo_allgather import gloo_ring_allgather
from gcsim.simulator.collectives.rings.gloo_allreduce import gloo_ring_allreduce, segments
from gcsim.simulator.network.links import Link, SizeFactor
from tests.simulator.collectives.rings.wire import Wire, entries_of, rows_of
from tests.simulator.links import KINDS
from tests.simulator.world import NETWORK, Wait, link, skews, times

Content = set[int]


POOL = [
    link(10**12, Fraction(3, 10**12)),
    link(10**12 // 7, Fraction(1, 10**12)),
    link(5 * 10**11, Fraction(1, 10**6)),
    link(10**12, Fraction(40, 10**12)),
]


@dataclass(kw_only=True)
class Slice:
    """Where a message comes from or goes to: one segment of a rank's memory."""

    memory: list[Content]
    at: int
    nbytes: int


class Endpoint:
    """One rank's side of its connection to a peer, after Gloo's `Pair`."""

    def __init__(self, fabric: Fabric, rank: int, peer: int, wire: Wire) -> None:
        self.fabric, self.rank, self.peer, self.wire = fabric, rank, peer, wire
        self.queue = simpy.Store(fabric.env)
        self.pending_sends: deque[Slice] = deque()
        self.pending_receives: deque[Slice] = deque()
        self.announced = 0
        fabric.env.process(self.transmit())

    def send(self, what: Slice) -> None:
        if self.announced:
            self.announced -= 1
            self.queue.put(what)
        else:
            self.pending_sends.append(what)

    def receive(self, where: Slice) -> None:
        self.pending_receives.append(where)
        self.queue.put(None)

    def transmit(self) -> Wait:
        env = self.fabric.env
        while True:
            what = yield self.queue.get()
            if what is None:
                env.process(self.announce())
                continue
            content = set(what.memory[what.at])
            yield self.wire.serialization(what.nbytes)
            self.fabric.sent[self.rank].put(None)
            env.process(self.deliver(content, what.nbytes))

    def deliver(self, content: Content, nbytes: int) -> Wait:
        yield self.wire.flight(nbytes)
        where = self.fabric.ends[self.peer, self.rank].pending_receives.popleft()
        where.memory[where.at] = content
        self.fabric.received[self.peer].put(None)

    def announce(self) -> Wait:
        yield self.wire.word()
        other = self.fabric.ends[self.peer, self.rank]
        if other.pending_sends:
            other.queue.put(other.pending_sends.popleft())
        else:
            other.announced += 1


Program = Callable[["Fabric", int], Wait]


class Fabric:
    """All ranks of a ring; `hops[r]` joins rank r and rank r + 1, both ways."""

    def __init__(
        self, starts: Sequence[int], hops: Sequence[Link], program: Program, key: int
    ) -> None:
        self.p, self.env = len(starts), simpy.Environment()
        self.starts, self.finishes = starts, [0.0] * self.p
        self.sent = [simpy.Store(self.env) for _ in starts]
        self.received = [simpy.Store(self.env) for _ in starts]
        self.ends: dict[tuple[int, int], Endpoint] = {}
        for rank in range(self.p):
            for peer, hop in (
                ((rank + 1) % self.p, hops[rank]),
                ((rank - 1) % self.p, hops[rank - 1]),
            ):
                if (rank, peer) not in self.ends:
                    wire = Wire(self.env, hop, rank, key)
                    self.ends[rank, peer] = Endpoint(self, rank, peer, wire)
        for rank in range(self.p):
            self.env.process(self.live(rank, program))
        self.env.run()

    def live(self, rank: int, program: Program) -> Wait:
        yield self.env.timeout(self.starts[rank])
        yield self.last_in_this_instant()
        yield from program(self, rank)
        self.finishes[rank] = self.env.now

    def last_in_this_instant(self) -> simpy.Event:
        """Threads wake up after the arrivals of an instant have been dealt with."""
        turn = self.env.event()
        turn._ok, turn._value = True, None
        self.env.schedule(turn, priority=simpy.events.EventPriority(9))
        return turn


def allreduce_oracle(
    starts: Sequence[int],
    nbytes: int,
    hops: Sequence[Link],
    element: int = 1,
    gamma: Fraction = Fraction(0),
    largest: int = 1 << 20,
    key: int = 0,
) -> list[float]:
    """Gloo's two loops; `hops[r]` joins ranks r and r + 1, and rank r sends to rank r - 1."""
    p = len(starts)
    most = element * max(1, largest // element)
    count = math.ceil(max(math.ceil(nbytes / most), 2 * p) / p) * p
    size = math.ceil(math.ceil(nbytes / count) / element) * element
    each = count // p
    length = [min(size, nbytes - k * size) for k in range(count)]
    out = [[{rank} for _ in range(count)] for rank in range(p)]
    total = count - each

    def program(fabric: Fabric, rank: int) -> Wait:
        tmp: list[Content] = [set(), set()]
        to = fabric.ends[rank, (rank - 1) % p]
        source = fabric.ends[rank, (rank + 1) % p]
        for first, reduces in ((rank + 1, True), (rank, False)):
            for i in range(total + 2):
                if i >= 2:
                    sends = (first * each + i - 2) % count
                    receives = ((first + 1) * each + i - 2) % count
                    if length[receives] > 0:
                        yield fabric.received[rank].get()
                        if reduces:
                            yield fabric.env.timeout(round(gamma * length[receives] * 10**12))
                            out[rank][receives] |= tmp[i % 2]
                    if length[sends] > 0:
                        yield fabric.sent[rank].get()
                    yield fabric.last_in_this_instant()
                if i < total:
                    sends = (first * each + i) % count
                    receives = ((first + 1) * each + i) % count
                    if length[receives] > 0:
                        memory, at = (tmp, i % 2) if reduces else (out[rank], receives)
                        source.receive(Slice(memory=memory, at=at, nbytes=length[receives]))
                    if length[sends] > 0:
                        to.send(Slice(memory=out[rank], at=sends, nbytes=length[sends]))

    finishes = Fabric(starts, hops, program, key).finishes
    everybody = set(range(p))
    held = [out[rank][k] for rank in range(p) for k in range(count) if length[k] > 0]
    assert all(content == everybody for content in held)
    return finishes


def allgather_oracle(
    starts: Sequence[int], sizes: Sequence[int], hops: Sequence[Link], key: int = 0
) -> list[float]:
    """`allgather` when sizes are equal, else `allgatherv`; rank r sends to rank r + 1."""
    p, equal = len(starts), len(set(sizes)) == 1
    parts = [[n // 2, n - n // 2] if equal else [n] for n in sizes]
    window = len(parts[0])
    out = [[{r} if r == own else set() for r in range(p)] * window for own in range(p)]

    def program(fabric: Fabric, rank: int) -> Wait:
        to = fabric.ends[rank, (rank + 1) % p]
        source = fabric.ends[rank, (rank - 1) % p]
        for i in range((p - 1) * window):
            step, part = divmod(i, window)
            if i >= window:
                yield fabric.sent[rank].get()
                yield fabric.received[rank].get()
                yield fabric.last_in_this_instant()
            block, other = (rank - step) % p, (rank - step - 1) % p
            mine, theirs = block + part * p, other + part * p
            to.send(Slice(memory=out[rank], at=mine, nbytes=parts[block][part]))
            source.receive(Slice(memory=out[rank], at=theirs, nbytes=parts[other][part]))
        for _ in range(window):
            yield fabric.sent[rank].get()
            yield fabric.received[rank].get()

    finishes = Fabric(starts, hops, program, key).finishes
    assert all(memory == [{r} for r in range(p)] * window for memory in out)
    return finishes


def to_predecessors(hops: Sequence[Link]) -> list[Link]:
    return [hops[rank - 1] for rank in range(len(hops))]


@pytest.mark.parametrize(
    "nbytes",
    [
        pytest.param(25 << 20, marks=pytest.mark.long),
        pytest.param((25 << 20) + 4, marks=pytest.mark.long),
        250_000,
    ],
)
def test_allreduce_of_64_ranks_is_the_simulation(nbytes: int) -> None:
    for skew in ("none", "ties"):
        starts, hops = skews(64)[skew], [NETWORK] * 64
        finishes = gloo_ring_allreduce(nbytes, hops, element=4)(times(starts))
        assert finishes.tolist() == allreduce_oracle(starts, nbytes, hops, 4)


@st.composite
def any_ring(draw: st.DrawFn) -> tuple[list[int], list[Link], int]:
    p = draw(st.sampled_from([2, 2, 3, 4, 5, 6]))
    hops = draw(rows_of(p))
    return draw(entries_of(p)), hops[:1] * 2 if p == 2 else hops, draw(st.integers(0, 2**63))


@given(
    ring=any_ring(),
    elements=st.integers(1, 90),
    element=st.sampled_from([1, 4]),
    gamma=st.sampled_from([0, 2]),
    largest=st.sampled_from([1, 5, 8, 1 << 20]),
)
def test_any_allreduce_over_any_links_is_the_simulation(
    ring: tuple[list[int], list[Link], int], elements: int, element: int, gamma: int, largest: int
) -> None:
    starts, hops, key = ring
    nbytes, cost = elements * element, Fraction(gamma, 10**12)
    finishes = gloo_ring_allreduce(
        nbytes, to_predecessors(hops), element=element, gamma=cost, largest=largest
    )(times(starts), key)
    assert finishes.tolist() == allreduce_oracle(starts, nbytes, hops, element, cost, largest, key)


@given(ring=any_ring(), data=st.data())
def test_any_allgather_over_any_links_is_the_simulation(
    ring: tuple[list[int], list[Link], int], data: st.DataObject
) -> None:
    starts, hops, key = ring
    p, nbytes = len(starts), st.integers(0, 60)
    sizes = data.draw(
        st.lists(nbytes, min_size=p, max_size=p).filter(any)
        | st.integers(1, 60).map(lambda block: [block] * p)
    )
    finishes = gloo_ring_allgather(sizes, hops)(times(starts), key)
    assert finishes.tolist() == allgather_oracle(starts, sizes, hops, key)


@pytest.mark.parametrize("p", [2, 5, pytest.param(64, marks=pytest.mark.long)])
@pytest.mark.parametrize("kind", KINDS)
def test_larger_rings_over_any_links_are_the_simulation(p: int, kind: str) -> None:
    pool = KINDS[kind]
    hops = [pool[-2]] * 2 if p == 2 else [pool[r * r % len(pool)] for r in range(p)]
    starts, nbytes = [1_003 * ((5 * r) % 7) for r in range(p)], 4 * (7 * p + 3)
    finishes = gloo_ring_allreduce(nbytes, to_predecessors(hops), element=4)(times(starts), 9)
    assert finishes.tolist() == allreduce_oracle(starts, nbytes, hops, 4, key=9)
    for sizes in ([7] * p, [(7919 * r) % 31 for r in range(p)]):
        finishes = gloo_ring_allgather(sizes, hops)(times(starts), 9)
        assert finishes.tolist() == allgather_oracle(starts, sizes, hops, key=9)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("apart", [0, 17, 61, 202, 1_000])
def test_two_ranks_on_one_connection_are_the_simulation(kind: str, apart: int) -> None:
    # Data may take less long than the announcement in front of them, or far longer.
    for number, hop in enumerate(KINDS[kind]):
        for starts, nbytes in itertools.product(([0, apart], [apart, 0]), (3, 26, 75, 150)):
            for gamma in (Fraction(0), Fraction(3, 10**12)):
                finishes = gloo_ring_allreduce(nbytes, [hop] * 2, gamma=gamma, largest=16)(
                    times(starts), number
                )
                expected = allreduce_oracle(starts, nbytes, [hop] * 2, 1, gamma, 16, number)
                assert finishes.tolist() == expected
            for sizes in ([nbytes, nbytes], [nbytes, 20]):
                finishes = gloo_ring_allgather(sizes, [hop] * 2)(times(starts), number)
                assert finishes.tolist() == allgather_oracle(starts, sizes, [hop] * 2, number)


def test_25_mib_on_64_ranks_hides_all_but_a_few_latencies() -> None:
    # 252 segments of 204,800 B take 163.84 us each; the textbook's 126 chunks pay 50 us each more
    links, starts = [NETWORK] * 64, times([0] * 64)
    finishes = gloo_ring_allreduce(25 << 20, links)(starts)
    assert set(finishes.tolist()) == {252 * 163_840_000 + 4 * 50_000_000}
    textbook = ring_allreduce(25 << 20, links)(starts)
    assert set(textbook.tolist()) == {126 * (327_680_000 + 50_000_000)}
    # 1448/1538 of the line rate, TCP's goodput: 44.05 ms against 50.15 ms
    tcp = [replace(NETWORK, efficiency=Fraction(1448, 1538))] * 64
    assert round(int(gloo_ring_allreduce(25 << 20, tcp)(starts).max()) / 1e9, 2) == 44.05
    assert round(int(ring_allreduce(25 << 20, tcp)(starts).max()) / 1e9, 2) == 50.15


@pytest.mark.parametrize(
    ("nbytes", "ranks", "element", "expected"),
    [
        (25 << 20, 64, 4, (128, 204_800)),
        (25 << 20, 2, 4, (26, 1_008_248)),  # 13 a chunk: none above 1 MiB
        ((2 << 20) * 8, 8, 4, (16, 1 << 20)),
        ((2 << 20) * 8 + 4, 8, 4, (24, 699_052)),
        (4, 64, 4, (128, 4)),
        (10, 3, 1, (6, 2)),
    ],
)
def test_segments(nbytes: int, ranks: int, element: int, expected: tuple[int, int]) -> None:
    assert segments(nbytes, ranks, element) == expected


def test_nothing_to_do() -> None:
    assert gloo_ring_allreduce(10**9, [NETWORK])(times([42])).tolist() == [42]
    assert gloo_ring_allgather([10**9], [NETWORK])(times([42])).tolist() == [42]
    links = [NETWORK] * 3
    assert gloo_ring_allreduce(0, links)(times([1, 5, 2])).tolist() == [5] * 3
    assert gloo_ring_allgather([0] * 3, links)(times([1, 5, 2])).tolist() == [5] * 3


@pytest.mark.parametrize("p", [2, 3, 8])
def test_taking_segments_in_is_a_latency_of_data_that_announcements_do_not_have(p: int) -> None:
    """Independent of how it is done: a size factor makes the latency of data longer by as much."""
    nbytes = p * 8 * 2**20  # all segments are of 1 MiB
    reception = Fraction(1, 10**9)
    taken = reception * 2**20
    plain = link(625_000_000, Fraction(1, 1000))
    later = replace(plain, factors=(SizeFactor(from_bytes=1, latency=1 + taken / plain.latency),))
    starts = times([0] * p)
    found = gloo_ring_allreduce(nbytes, [plain] * p, element=4, reception=reception)(starts)
    assert (found == gloo_ring_allreduce(nbytes, [later] * p, element=4)(starts)).all()
    assert found.max() > gloo_ring_allreduce(nbytes, [plain] * p, element=4)(starts).max()
