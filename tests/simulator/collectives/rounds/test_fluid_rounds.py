"""Where do shares by number agree with messages that share what they cross while they cross it?

The engine gives each message of a round its share by number (`fabric/round_paths.py`). Here the
programs of the ranks are those of `test_logarithmic_collectives.py`, but their messages are flows
on a medium (`fluid_oracle.Medium`) that share max-min fairly with all that cross it at the same
time, of whatever round; all rates are found anew at every event. Where nobody meets anybody, or
all meet in step, the two are `==` in picoseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
import simpy
from hypothesis import event, given, settings
from hypothesis import strategies as st

from gcsim.simulator.clock import Times
from gcsim.simulator.cluster import Cluster, Racks
from gcsim.simulator.collectives.call import Call
from gcsim.simulator.collectives.rings.allgather import ring_allgather
from gcsim.simulator.collectives.rounds import pairwise_alltoall
from gcsim.simulator.collectives.rounds.alltoall_allgather_allreduce import (
    alltoall_allgather_allreduce,
)
from gcsim.simulator.collectives.rounds.tree_merge import tree_merge
from gcsim.simulator.devices.device import Device
from gcsim.simulator.network.delays import delays
from gcsim.simulator.network.links import Link, Loss, RateTrace, SizeFactor
from gcsim.simulator.network.paths import inward, outward, path, through
from tests.simulator.collectives.rounds.test_logarithmic_collectives import (
    ALGORITHMS,
    POOL,
    RANDOM,
    TIMED,
    Algorithm,
    Case,
    Held,
    Rank,
    Wait,
    World,
    around,
    down_the_tree,
    even,
    gather,
    own_block,
    own_vector,
)
from tests.simulator.sharing.fluid_oracle import Medium, Rate, begins
from tests.simulator.world import BUS, NETWORK, PS, times


class FluidWorld(World):
    """One process a rank, one flow a message."""

    def __init__(self, case: Case, algorithm: Algorithm) -> None:
        self.case, self.split = case, algorithm.split(case)
        self.env = simpy.Environment()
        self.medium = Medium(self.env, {})
        self.boxes = {}
        ranks = [FluidRank(self, rank) for rank in range(case.p)]
        for rank in ranks:
            rank.held = algorithm.start(rank)
            self.env.process(rank.live(algorithm.program))
        self.env.run()
        self.exits = [rank.exit for rank in ranks]
        self.held = [rank.held for rank in ranks]

    def journey(self, a: int, b: int) -> tuple[dict[Any, Rate], list[Any], Link]:
        """Capacities, what is crossed, and what a message alone sees."""
        case, devices = self.case, self.case.p // len(self.case.cards)
        x, y = a // devices, b // devices
        if x == y:
            bus = case.buses[x]
            names: list[Any] = [("bus", x)] if case.shared_bus else [("from", a), ("to", b)]
            return dict.fromkeys(names, bus.line_goodput), names, bus
        names, capacity = [], dict[Any, Rate]()
        for node, way, leg in ((x, "out", outward), (y, "in", inward)):
            card = case.cards[node]
            names.append(("air", card) if card.shared else (way, node))
            capacity[names[-1]] = leg(card).line_goodput
        link = path(case.cards[x], case.cards[y])
        if case.racks is not None and x // case.racks.nodes != y // case.racks.nodes:
            link = through(link, case.racks.uplink, 1)
            for way, node in (("up", x), ("down", y)):
                names.append((way, node // case.racks.nodes))
                capacity[names[-1]] = case.racks.uplink.line_goodput
        return capacity, names, link


class FluidRank(Rank):
    """What a rank can do."""

    def send(self, to: int, label: object, names: Iterable[int]) -> Wait:
        assert isinstance(self.world, FluidWorld)
        world, content = self.world, {name: self.held[name] for name in names}
        nbytes, number = self.weight(content), self.sent
        self.sent += 1
        capacity, crosses, link = world.journey(self.rank, to)
        factor: Fraction = [
            Fraction(1),
            *(f.bandwidth for f in link.factors if f.from_bytes <= nbytes),
        ][-1]
        changes = isinstance(link.goodput, RateTrace)
        # a connection reaches its factor of the rate; faster ones count for fewer bytes
        connection = "connection", self.rank, number
        capacity[connection] = (
            link.goodput.times_factor(min(factor, Fraction(1)))
            if isinstance(link.goodput, RateTrace)
            else link.goodput * min(factor, Fraction(1))
        )
        world.medium.capacity.update(capacity)
        now = int(world.env.now)
        yield world.env.timeout(begins(link, now) - now)
        yield world.medium.carry(
            nbytes / max(factor, Fraction(1)),
            [*crosses, connection],
            None if changes else link.overhead * 10**12,
        )
        del world.medium.capacity[connection]
        late = delays(
            [link], times([0]), nbytes, key=self.key, message=number, rank=times([self.rank])
        )
        world.env.process(self.deliver(to, label, content, link.latency_for(nbytes) + int(late[0])))


def part(nbytes: int, ranks: int, number: int) -> int:
    """Sizes differ by at most one byte, the longer first."""
    return nbytes // ranks + (number < nbytes % ranks)


def to_each(me: Rank, label: str, name: Callable[[int, int], int], *, add: bool = False) -> Wait:
    """To rank + 1, rank + 2, ..., and from rank - 1, rank - 2, ..."""
    for step in range(1, me.p):
        to, back = (me.rank + step) % me.p, (me.rank - step) % me.p
        yield from me.swap(to, back, (label, step), [name(me.rank, to)], add=add)


def all_to_all(me: Rank) -> Wait:
    yield from to_each(me, "parts", lambda a, b: a * me.p + b)


def lengths_first(me: Rank) -> Wait:
    yield from to_each(me, "lengths", lambda a, b: me.p * me.p)
    yield from all_to_all(me)


def by_owners(me: Rank) -> Wait:
    yield from to_each(me, "sum", lambda a, b: b, add=True)
    yield from to_each(me, "tell", lambda a, b: a)


def parts(case: Case) -> list[int]:
    """Of each rank for each other, and a length."""
    return [part(size, case.p, number) for size in case.sizes for number in range(case.p)] + [8]


def all_parts(me: Rank) -> Held:
    return dict.fromkeys(range(me.p * me.p + 1), frozenset({me.rank}))


def exchange(kernel: Callable[[Case], Any], program: Callable[[Rank], Wait]) -> Algorithm:
    return Algorithm(
        kernel=kernel, program=program, split=parts, start=all_parts, goal=lambda r, p: set()
    )


def pairwise_alltoall_of(case: Case, *, variable: bool) -> Times:
    at_hand = case.fabric
    return pairwise_alltoall.carry_out(
        Call(
            entry=times(case.entry),
            sent=tuple(case.sizes),
            variable=variable,
            cluster=ANY,
            at_hand=at_hand,
            key=case.key,
        )
    )


ANY = Cluster(
    nodes=1,
    devices_per_node=1,
    device=Device(name="any", title="any", kernels={}, effective_flop_rate=1.0, source="none"),
    network=NETWORK,
    intra_node=BUS,
)
MERGE, MERGED = 31, 17
"""Picoseconds and bytes."""


def merging(me: Rank) -> Wait:
    bit = 1
    while bit < me.p and not me.rank & bit:
        if me.rank + bit < me.p:
            yield me.world.box(me.rank + bit, me.rank, ("up", bit)).get()
            yield me.world.env.timeout(MERGE)
            me.held = {me.p: frozenset()}
        bit *= 2
    if me.rank:
        parent = me.rank & (me.rank - 1)
        yield from me.send(parent, ("up", me.rank - parent), list(me.held))
        me.held = {}
    yield from down_the_tree(me)


FLUID = {
    **ALGORITHMS,
    "all-to-all": exchange(lambda c: pairwise_alltoall_of(c, variable=False), all_to_all),
    "all-to-all, lengths first": exchange(
        lambda c: pairwise_alltoall_of(c, variable=True), lengths_first
    ),
    "all-reduce by owners": Algorithm(
        kernel=lambda c: alltoall_allgather_allreduce(
            times(c.entry), c.nbytes, c.fabric, element=c.element, gamma=c.gamma, key=c.key
        ),
        program=by_owners,
        split=even(lambda p: p),
        start=own_vector,
        goal=lambda r, p: set(range(p)),
    ),
    "tree merge": Algorithm(
        kernel=lambda c: tree_merge(
            times(c.entry), c.sizes, MERGED, c.fabric, merge_time=MERGE, key=c.key
        ),
        program=merging,
        split=lambda c: [*c.sizes, MERGED],
        start=own_block,
        goal=lambda r, p: set(),
    ),
}
every = pytest.mark.parametrize("name", FLUID)


CAPPED = replace(
    POOL[0], loss=Loss(rate=Fraction(1, 1000), model="capped", timeout=200 * PS), latency=9 * PS
)
CALIBRATED = replace(
    POOL[1],
    factors=(
        SizeFactor(from_bytes=7, bandwidth=Fraction(3, 7)),
        SizeFactor(from_bytes=20, bandwidth=Fraction(9, 8)),
    ),
    overhead=PS * Fraction(7, 2),
)
clock = st.integers(0, 40) | st.integers(0, 400)


@st.composite
def small(draw: st.DrawFn, pool: Sequence[Link] = tuple(POOL)) -> Case:
    """2 to 9 ranks, one to three devices a node."""
    nodes, devices = draw(st.sampled_from([(1, 3), (2, 1), (2, 2), (3, 1), (3, 3), (4, 2), (5, 1)]))
    p, alike = nodes * devices, draw(st.booleans())
    links = st.lists(st.sampled_from(pool), min_size=nodes, max_size=nodes)
    cards, buses = draw(links), [replace(bus, up=None) for bus in draw(links)]
    if draw(st.integers(0, 3)) == 0:
        cards = [replace(cards[0], shared=True)] * nodes
    racks = None
    if draw(st.booleans()):
        racks = Racks(nodes=draw(st.integers(1, nodes)), uplink=draw(st.sampled_from(POOL)))
    return Case(
        entry=draw(st.lists(clock, min_size=p, max_size=p)),
        cards=[cards[0]] * nodes if alike else cards,
        buses=[buses[0]] * nodes if alike else buses,
        sizes=draw(st.lists(st.integers(0, 60), min_size=p, max_size=p)),
        elements=draw(st.integers(0, 60)),
        element=draw(st.sampled_from([1, 2, 4])),
        gamma=Fraction(draw(st.sampled_from([0, 2])), 10**12),
        racks=racks,
        shared_bus=draw(st.booleans()),
        key=draw(st.integers(0, 2**64 - 1)),
    )


@every
@given(case=small(pool=[*POOL, *RANDOM, *TIMED, CAPPED, CALIBRATED]))
@settings(max_examples=12)
def test_messages_that_share_nothing_take_what_they_take_when_counted(
    name: str, case: Case
) -> None:
    # Two ranks: each has at most one message under way, and nobody else has any.
    case = replace(case, cards=[replace(card, shared=False) for card in case.cards])
    entry, sizes = case.entry[:2], case.sizes[:2]
    one = replace(case, entry=entry, sizes=sizes, cards=case.cards[:1], buses=case.buses[:1])
    two = replace(one, cards=case.cards[:2], buses=case.buses[:2])
    one = replace(one, racks=None, shared_bus=False)
    for pair in (one, two) if len(two.cards) == 2 else (one,):
        assert FluidWorld(pair, FLUID[name]).exits == FLUID[name].kernel(pair).tolist()


@every
@given(case=small())
@settings(max_examples=6)
def test_whatever_shares_nothing_at_any_time_takes_what_it_takes_when_counted(
    name: str, case: Case
) -> None:
    # Ranks of a node of their own, far apart in time or in step: the media say who met whom.
    case = replace(
        case,
        entry=[time * 1000 * (case.elements % 2) for time in case.entry],
        cards=[case.cards[0]] * case.p,
        buses=[case.buses[0]] * case.p,
        racks=None,
        shared_bus=False,
    )
    world = FluidWorld(case, FLUID[name])
    counted = World(case, FLUID[name])
    alone = max(world.medium.most.values(), default=0) <= 1
    by_round = {place for place, number in counted.crowd.items() if number > 1}
    alone = alone and not {place for place in by_round if place[1] != "air"}
    event(f"nobody meets anybody: {alone}")
    if alone and not case.cards[0].shared:
        assert world.exits == FLUID[name].kernel(case).tolist()


@pytest.mark.parametrize(
    ("name", "devices"),
    [
        *((name, n) for name in ("halving-doubling", "doubling all-gather") for n in (1, 2, 4)),
        *((name, 1) for name in ("Bruck", "all-to-all")),
    ],
)
def test_equal_ranks_in_step_share_by_number(name: str, devices: int) -> None:
    """All messages of a round start and end together, so that shares do not change."""
    case = Case(
        entry=[5] * 8,
        cards=[NETWORK] * (8 // devices),
        buses=[BUS] * (8 // devices),
        sizes=[8 * 6000] * 8,
        elements=8 * 1500,
        element=4,
    )
    assert FluidWorld(case, FLUID[name]).exits == FLUID[name].kernel(case).tolist()


def plain(rate: int) -> Link:
    """`rate` bytes a nanosecond, without latency."""
    return Link(name=f"{rate}", bandwidth=Fraction(10**9 * rate), latency=Fraction(0))


def test_messages_of_two_rounds_meet_at_a_card() -> None:
    """Bruck's all-gather of 3 ranks, 1000 bytes each, a byte a nanosecond; rank 0 enters at 500 ns.

    Round 0: rank r sends to r - 1; round 1, to r - 2 = r + 1. Worked by hand: 2 -> 1 and 1 -> 0 are
    alone from 0 to 1000, and 0 -> 2 from 500 on. Rank 1 waits for 2 -> 1 and has it at 1000, sends
    its second message to 2, whose card in 0 -> 2 still needs for 500 bytes: both get half until
    2000, when 0 -> 2 is through and 500 are left of the other, which ends at 2500.
    """
    case = Case(entry=[500_000, 0, 0], cards=[plain(1)] * 3, buses=[BUS] * 3, sizes=[1000] * 3)
    # Rank 0 had 1 -> 0 at 1000, its own is through at 2000, and its second goes to 1, 2000-3000;
    # rank 2 sends its second to 0 from 2000 on, when 0 -> 2 has arrived.
    assert FluidWorld(case, FLUID["Bruck"]).exits == [3_000_000] * 3
    # By number, 1 -> 2 has rank 2's card to itself: no other message of its round goes there. All
    # second messages take 1000 from when their senders are ready, the last at 1500.
    assert FLUID["Bruck"].kernel(case).tolist() == [2_500_000] * 3


@given(
    entry=st.lists(st.integers(0, 400), min_size=12, max_size=12),
    sizes=st.lists(st.integers(0, 60), min_size=12, max_size=12),
    links=st.lists(st.sampled_from(POOL), min_size=6, max_size=6),
    devices=st.sampled_from([2, 3, 4, 6]),
    racks=st.sampled_from([None, Racks(nodes=1, uplink=POOL[2]), Racks(nodes=2, uplink=POOL[1])]),
)
@settings(max_examples=15)
def test_a_flat_ring_has_nothing_that_a_fluid_could_share(
    entry: list[int], sizes: list[int], links: list[Link], devices: int, racks: Racks | None
) -> None:
    """Several devices a node: one hop out and one in on each card and on each rack's uplink."""
    nodes = 12 // devices
    case = Case(
        entry=entry, cards=links[:nodes], buses=[links[0]] * nodes, sizes=sizes, racks=racks
    )
    ring = gather(
        lambda entry, sizes, fabric, key: ring_allgather(entry, sizes, fabric.ring_links()),
        around,
    )
    assert FluidWorld(case, ring).exits == ring.kernel(case).tolist()
