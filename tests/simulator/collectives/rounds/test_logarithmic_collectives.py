"""Do the collectives of few rounds agree with simulations of every single message?

The oracle runs one program a rank, written from MPI's pseudo-code: it sends, receives and adds
named chunks (sets of contributions), has a mailbox a message, and knows nothing of what other ranks
do in the same round. How many messages pass a NIC, an uplink, a bus or the air in a round it finds
by running everything once. It shares no code with the kernels but what links say of themselves and
the random draws. Comparisons are `==` in picoseconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import pytest
import simpy
from hypothesis import given, settings
from hypothesis import strategies as st

from gcsim.simulator.clock import Times
from gcsim.simulator.cluster import Racks
from gcsim.simulator.collectives.rounds import (
    alltoall_allgather_allreduce,
    binomial_tree_allreduce,
    bruck_allgather,
    halving_doubling_allreduce,
    pairwise_alltoall,
    recursive_doubling_allgather,
    recursive_doubling_allreduce,
    tree_merge,
)
from gcsim.simulator.fabric.rounds import Fabric
from gcsim.simulator.network.jitter import draw_jitter
from gcsim.simulator.network.links import Jitter, Link, Uplink
from gcsim.simulator.network.paths import across_uplink, path, share_link
from tests.simulator.links import CONSTANT, RANDOM, SIZED, TIMED
from tests.simulator.world import BUS, NETWORK, PS, Wait, called, link, times

Held = dict[int, frozenset[int]]
"""Chunk to the ranks whose contributions are in it."""


ACCESS = link(
    10**12 // 7,
    up=Uplink(bandwidth=Fraction(10**11), latency=30 * PS, grant=25 * PS),
    jitter=(Jitter(distribution="uniform", mean=9 * PS),),
)


@dataclass(frozen=True, kw_only=True)
class Case:
    """One collective on one cluster."""

    starts: list[int]
    nics: list[Link]
    buses: list[Link]
    sizes: list[int]
    """All-gathers: bytes of each rank's block."""
    elements: int = 0
    """Others: of the vector, or of a merged payload."""
    element: int = 1
    gamma: Fraction = Fraction(0)
    racks: Racks | None = None
    shared_bus: bool = False
    key: int = 0
    rest: int = 0
    """Bytes behind the last whole element."""

    @property
    def p(self) -> int:
        return len(self.starts)

    @property
    def fabric(self) -> Fabric:
        devices = self.p // len(self.nics)
        return Fabric(
            nodes=len(self.nics),
            devices=devices,
            nics=self.nics,
            buses=self.buses,
            racks=self.racks,
            shared_bus=self.shared_bus,
        )

    @property
    def timed(self) -> bool:
        return any(link.timed for link in (*self.nics, *self.buses))

    @property
    def nbytes(self) -> int:
        return self.elements * self.element + self.rest

    @property
    def merge_time(self) -> int:
        return round(self.gamma * 10**12) * 7


class World:
    """One process a rank, one delivery a message."""

    def __init__(self, case: Case, algorithm: Algorithm) -> None:
        self.case = case
        self.split = algorithm.split(case)
        self.crowd: Counter[tuple[object, ...]] = Counter()
        self.finishes: list[float] = []
        self.held: list[Held] = []
        self.run(algorithm, Counter())
        self.run(algorithm, self.crowd)

    def run(self, algorithm: Algorithm, crowd: Counter[tuple[object, ...]]) -> None:
        """`crowd` says how many messages pass something in a round."""
        self.env = simpy.Environment()
        self.shares, self.crowd = crowd, Counter()
        self.boxes: dict[tuple[int, int, object], simpy.Store] = {}
        self.play(algorithm, Rank)

    def play(self, algorithm: Algorithm, kind: type[Rank]) -> None:
        ranks = [kind(self, rank) for rank in range(self.case.p)]
        for rank in ranks:
            rank.held = algorithm.start(rank)
            self.env.process(rank.live(algorithm.program))
        self.env.run()
        self.finishes = [rank.exit for rank in ranks]
        self.held = [rank.held for rank in ranks]

    def share(self, *name: object) -> int:
        """One more message passes; how many do so in the whole round?"""
        self.crowd[name] += 1
        return self.shares.get(name, 1)

    def path(self, a: int, b: int, label: object) -> Link:
        case, devices = self.case, self.case.p // len(self.case.nics)
        x, y = a // devices, b // devices
        if x == y:
            share = self.share(label, "bus", x) if case.shared_bus else 1
            return share_link(case.buses[x], share)
        out, into = case.nics[x], case.nics[y]
        sharing = [self.share(label, "out", x), self.share(label, "in", y)]
        for place, nic in enumerate((out, into)):
            if nic.shared:
                sharing[place] = self.share(label, "air")
        found = path(out, into, *sharing)
        if case.racks is not None and x // case.racks.nodes != y // case.racks.nodes:
            there = self.share(label, "leaves", x // case.racks.nodes)
            found = across_uplink(
                found,
                case.racks.uplink,
                max(there, self.share(label, "reaches", y // case.racks.nodes)),
            )
        return found

    def box(self, sender: int, receiver: int, label: object) -> simpy.Store:
        return self.boxes.setdefault((sender, receiver, label), simpy.Store(self.env))


class Rank:
    """What a rank can do."""

    def __init__(self, world: World, rank: int) -> None:
        self.world, self.rank, self.p = world, rank, world.case.p
        self.held: Held = {}
        self.exit: float = -1
        self.sent, self.key = 0, world.case.key

    def live(self, program: Program) -> Wait:
        yield self.world.env.timeout(self.world.case.starts[self.rank])
        yield from program(self)
        self.exit = self.world.env.now

    def send(self, to: int, label: object, names: Iterable[int]) -> Wait:
        content = {name: self.held[name] for name in names}
        world, nbytes, number = self.world, self.weight(content), self.sent
        self.sent += 1
        on = world.path(self.rank, to, label)
        now = int(world.env.now)
        late = draw_jitter(
            [on], times([0]), nbytes, key=self.key, message=number, rank=times([self.rank])
        )
        yield world.env.timeout(on.departure(now, nbytes) - now)
        world.env.process(self.deliver(to, label, content, on.latency_for(nbytes) + int(late[0])))

    def deliver(self, to: int, label: object, content: Held, latency: int) -> Wait:
        yield self.world.env.timeout(latency)
        yield self.world.box(self.rank, to, label).put(content)

    def receive(self, sender: int, label: object, *, add: bool = False) -> Wait:
        content = yield self.world.box(sender, self.rank, label).get()
        if add:
            cost = round(self.world.case.gamma * self.weight(content) * 10**12)
            yield self.world.env.timeout(cost)
        for name, contributions in content.items():
            known = self.held.get(name, frozenset())
            if add:
                assert not known & contributions  # nothing is added twice
            self.held[name] = known | contributions if add else contributions

    def swap(
        self, to: int, sender: int, label: object, names: Iterable[int], *, add: bool = False
    ) -> Wait:
        sending = self.world.env.process(self.send(to, label, list(names)))
        box = self.world.box(sender, self.rank, label)
        content = yield box.get()
        yield sending
        yield box.put(content)
        yield from self.receive(sender, label, add=add)

    def weight(self, content: Held) -> int:
        return sum(self.world.split[name] for name in content)


Program = Callable[[Rank], Wait]


def core(p: int) -> tuple[int, int, Callable[[int], int]]:
    """Size, excess, and the true rank of a number in the core."""
    size = 1
    while 2 * size <= p:
        size *= 2
    excess = p - size
    return size, excess, lambda number: 2 * number + 1 if number < excess else number + excess


def folded(inside: Callable[[Rank, int], Wait], *, add: bool, back: str) -> Program:
    """Even ranks hand over to the odd rank above and wait; `back` says what they get."""

    def program(me: Rank) -> Wait:
        _, excess, _ = core(me.p)
        if me.rank < 2 * excess and me.rank % 2 == 0:
            yield from me.send(me.rank + 1, "in", list(me.held))
            yield from me.receive(me.rank + 1, "out")
            return
        number = me.rank - excess
        if me.rank < 2 * excess:
            yield from me.receive(me.rank - 1, "in", add=add)
            number = me.rank // 2
        yield from inside(me, number)
        if me.rank < 2 * excess:
            wanted = {
                "all": list(me.held),
                "others": [name for name in me.held if name != me.rank - 1],
                "own": [me.rank - 1],
            }
            yield from me.send(me.rank - 1, "out", wanted[back])

    return program


def halving_doubling(me: Rank, number: int) -> Wait:
    size, _, real = core(me.p)
    mine, mask = list(range(size)), 1
    while mask < size:
        half = len(mine) // 2
        low, high = mine[:half], mine[half:]
        mine, given = (high, low) if number & mask else (low, high)
        partner = real(number ^ mask)
        yield from me.swap(partner, partner, ("halve", mask), given, add=True)
        mask *= 2
    while mask > 1:
        mask //= 2
        partner = real(number ^ mask)
        before = set(mine)
        yield from me.swap(partner, partner, ("double", mask), mine)
        complete = frozenset(range(me.p))
        mine = [name for name, content in me.held.items() if content == complete]
        assert before < set(mine)


def doubling_sum(me: Rank, number: int) -> Wait:
    size, _, real = core(me.p)
    mask = 1
    while mask < size:
        partner = real(number ^ mask)
        yield from me.swap(partner, partner, mask, me.held, add=True)
        mask *= 2


def doubling_gather(me: Rank, number: int) -> Wait:
    size, _, real = core(me.p)
    mask = 1
    while mask < size:
        partner = real(number ^ mask)
        yield from me.swap(partner, partner, mask, me.held)
        mask *= 2


def family(me: Rank) -> tuple[int, list[int]]:
    """Parent (own rank without its lowest bit) and children, nearest first."""
    children, bit = [], 1
    while bit < me.p and not me.rank & bit:
        if me.rank + bit < me.p:
            children.append(me.rank + bit)
        bit *= 2
    return me.rank & (me.rank - 1), children


def up_the_tree(me: Rank) -> Wait:
    parent, children = family(me)
    for child in children:
        yield from me.receive(child, ("up", child - me.rank), add=True)
    if me.rank:
        yield from me.send(parent, ("up", me.rank - parent), list(me.held))


def down_the_tree(me: Rank) -> Wait:
    parent, children = family(me)
    if me.rank:
        yield from me.receive(parent, ("down", me.rank - parent))
    for child in reversed(children):
        distance = child - me.rank
        yield from me.send(child, ("down", distance), list(me.held))


def tree_sum(me: Rank) -> Wait:
    yield from up_the_tree(me)
    yield from down_the_tree(me)


def bruck(me: Rank) -> Wait:
    order, distance = [me.rank], 1
    while distance < me.p:
        count = min(distance, me.p - distance)
        source = (me.rank + distance) % me.p
        yield from me.swap((me.rank - distance) % me.p, source, distance, order[:count])
        order += [(source + i) % me.p for i in range(count)]
        distance *= 2


def all_to_all(me: Rank) -> Wait:
    """To rank + 1, rank + 2, ..., and from rank - 1, rank - 2, ..."""
    for step in range(1, me.p):
        to, back = (me.rank + step) % me.p, (me.rank - step) % me.p
        yield from me.swap(to, back, ("parts", step), [me.rank * me.p + to])


def by_owners(me: Rank) -> Wait:
    """Each rank adds what the others send it of its own chunk, then tells them."""
    for label, add in (("sum", True), ("tell", False)):
        for step in range(1, me.p):
            to, back = (me.rank + step) % me.p, (me.rank - step) % me.p
            yield from me.swap(to, back, (label, step), [to if add else me.rank], add=add)


def merged(me: Rank) -> Wait:
    """Chunk p is what payloads have become; a parent merges child by child."""
    parent, children = family(me)
    mine = me.rank
    for child in children:
        own = me.held[mine]
        yield from me.receive(child, ("up", child - me.rank))
        yield me.world.env.timeout(me.world.case.merge_time)
        mine = me.p
        me.held[mine] = own.union(*me.held.values())
    if me.rank:
        yield from me.send(parent, ("up", me.rank - parent), [mine])
        yield from me.receive(parent, ("down", me.rank - parent))
    for child in reversed(children):
        yield from me.send(child, ("down", child - me.rank), [me.p])


def around(me: Rank) -> Wait:
    """The ring as the others use it: a step's send begins when the last step's is over."""
    before, after = (me.rank - 1) % me.p, (me.rank + 1) % me.p
    for step in range(me.p - 1):
        yield from me.swap(after, before, ("ring", step), [(me.rank - step) % me.p])


@dataclass(frozen=True, kw_only=True)
class Algorithm:
    """A kernel, the program that it stands for, and what the program must bring about."""

    kernel: Callable[[Case], Times]
    program: Program
    split: Callable[[Case], list[int]]
    start: Callable[[Rank], Held]
    goal: Callable[[int, int], set[int]]
    """Chunks of which rank r of p holds all contributions."""


def even(parts: Callable[[int], int]) -> Callable[[Case], list[int]]:
    """Whole elements, the longer parts first; number of parts by number of ranks."""

    def split(case: Case) -> list[int]:
        count = parts(case.p)
        share, more = divmod(case.elements, count)
        sizes = [(share + (part < more)) * case.element for part in range(count)]
        return [*sizes[:-1], sizes[-1] + case.rest]

    return split


def one(p: int) -> int:
    return 1


def each(p: int) -> int:
    return p


def power(p: int) -> int:
    return core(p)[0]


def own_vector(me: Rank) -> Held:
    return {name: frozenset({me.rank}) for name in range(len(me.world.split))}


def own_block(me: Rank) -> Held:
    return {me.rank: frozenset({me.rank})}


def vector(of: Any, program: Program, parts: Callable[[int], int] = one) -> Algorithm:
    return Algorithm(
        kernel=lambda c: of.prepare(called(c.nbytes, c.fabric, c.gamma, element=c.element))(
            times(c.starts), c.key
        ),
        program=program,
        split=even(parts),
        start=own_vector,
        goal=lambda r, p: set(range(parts(p))),
    )


def gather(of: Any, program: Program) -> Algorithm:
    return Algorithm(
        kernel=lambda c: of.prepare(called(c.sizes, c.fabric))(times(c.starts), c.key),
        program=program,
        split=lambda c: c.sizes,
        start=own_block,
        goal=lambda r, p: set(range(p)),
    )


ALGORITHMS = {
    "halving-doubling": vector(
        halving_doubling_allreduce, folded(halving_doubling, add=True, back="all"), power
    ),
    "recursive doubling": vector(
        recursive_doubling_allreduce, folded(doubling_sum, add=True, back="all")
    ),
    "binomial tree": vector(binomial_tree_allreduce, tree_sum),
    "doubling all-gather": gather(
        recursive_doubling_allgather, folded(doubling_gather, add=False, back="others")
    ),
    "Bruck": gather(bruck_allgather, bruck),
    "all-to-all": Algorithm(
        kernel=lambda c: pairwise_alltoall.prepare(called(c.sizes, c.fabric))(
            times(c.starts), c.key
        ),
        program=all_to_all,
        split=lambda c: [
            size // c.p + (number < size % c.p) for size in c.sizes for number in range(c.p)
        ],
        start=lambda me: dict.fromkeys(range(me.p * me.p), frozenset({me.rank})),
        goal=lambda r, p: set(),
    ),
    "all-reduce by owners": vector(alltoall_allgather_allreduce, by_owners, each),
    "tree merge": Algorithm(
        kernel=lambda c: tree_merge.prepare(
            called(c.sizes, c.fabric, pulled=c.nbytes, server_time=c.merge_time)
        )(times(c.starts), c.key),
        program=merged,
        split=lambda c: [*c.sizes, c.nbytes],
        start=lambda me: {me.rank: frozenset({me.rank})},
        goal=lambda r, p: {p},
    ),
}
every = pytest.mark.parametrize("name", ALGORITHMS)


def check(name: str, case: Case) -> None:
    algorithm = ALGORITHMS[name]
    world = World(case, algorithm)
    complete = frozenset(range(case.p))
    gathers = algorithm.start is own_block
    for rank, held in enumerate(world.held):
        for chunk in algorithm.goal(rank, case.p):
            assert held[chunk] == (frozenset({chunk}) if gathers else complete)
    assert algorithm.kernel(case).tolist() == world.finishes


clock = st.integers(0, 40) | st.integers(0, 10**6)


shapes = st.integers(2, 17).flatmap(
    lambda p: st.sampled_from([(p // d, d) for d in range(1, p + 1) if p % d == 0])
)
"""Nodes, and devices of each."""


@st.composite
def cases(
    draw: st.DrawFn,
    pool: Sequence[Link] = tuple(CONSTANT),
    shapes: st.SearchStrategy[tuple[int, int]] = shapes,
    clock: st.SearchStrategy[int] = clock,
) -> Case:
    nodes, devices = draw(shapes)
    p, alike = nodes * devices, draw(st.booleans())
    links = st.lists(st.sampled_from(pool), min_size=nodes, max_size=nodes)
    nics, buses = draw(links), [replace(bus, up=None) for bus in draw(links)]
    if draw(st.integers(0, 3)) == 0:  # some nodes, or all, are stations
        nics = [replace(nic, shared=draw(st.booleans()) or alike) for nic in nics]
    racks = None
    if draw(st.booleans()):
        racks = Racks(nodes=draw(st.integers(1, nodes)), uplink=draw(st.sampled_from(CONSTANT)))
    return Case(
        starts=draw(st.lists(clock, min_size=p, max_size=p)),
        nics=[nics[0]] * nodes if alike else nics,
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
@given(case=cases())
def test_any_small_collective_is_the_simulation(name: str, case: Case) -> None:
    check(name, case)


@every
@given(case=cases(pool=[*RANDOM, *SIZED]))
def test_any_small_collective_with_delays_is_the_simulation(name: str, case: Case) -> None:
    check(name, case)


@every
@given(case=cases(pool=[*TIMED, ACCESS]))
@settings(max_examples=15)
def test_any_small_collective_on_changing_links_is_the_simulation(name: str, case: Case) -> None:
    check(name, case)


SKEWS: dict[str, Callable[[int], int]] = {
    "none": lambda r: 0,
    "one late": lambda r: 5_000_000_000 * (r == 9),
    "ties": lambda r: r % 2 * 200_000_000,
    "descending": lambda r: (32 - r) * 7_000_001,
}


@every
@pytest.mark.parametrize("skew", SKEWS)
@pytest.mark.parametrize("devices", [1, 2])
def test_many_ranks_are_the_simulation(name: str, skew: str, devices: int) -> None:
    p = 16 if name in {"all-to-all", "all-reduce by owners"} else 32  # a message for each pair
    case = Case(
        starts=[SKEWS[skew](rank) for rank in range(p)],
        nics=[NETWORK] * (p // devices),
        buses=[BUS] * (p // devices),
        sizes=[37 * ((7919 * rank) % 1009) for rank in range(p)],
        elements=1_000_003,
        element=4,
        gamma=Fraction(25, 10**12),
    )
    check(name, case)


def alike(p: int) -> Fabric:
    return Fabric(nodes=p, devices=1, nics=[NETWORK], buses=[BUS])


ALPHA, BETA = 50_000_000, 800
"""Picoseconds, and picoseconds a byte."""


@pytest.mark.parametrize("p", [2, 4, 64, 1024])
def test_equal_ranks_take_what_the_formulas_say(p: int) -> None:
    # Thakur, Rabenseifner and Gropp 2005, tables of costs; gamma = 25 ps a byte
    k, m = p.bit_length() - 1, 1000
    n, zero, gamma = m * p, times([0] * p), 25
    most = (p - 1) * m  # (p - 1)/p n
    cost = Fraction(gamma, 10**12)

    finishes = halving_doubling_allreduce.prepare(called(n, alike(p), cost))(zero)
    assert set(finishes.tolist()) == {2 * k * ALPHA + 2 * most * BETA + most * gamma}
    finishes = recursive_doubling_allreduce.prepare(called(n, alike(p), cost))(zero)
    assert set(finishes.tolist()) == {k * (ALPHA + n * BETA + n * gamma)}
    finishes = binomial_tree_allreduce.prepare(called(n, alike(p), cost))(zero)
    assert finishes.max() == 2 * k * (ALPHA + n * BETA) + k * n * gamma
    for kernel in (recursive_doubling_allgather, bruck_allgather):
        assert set(kernel.prepare(called(m, alike(p)))(zero).tolist()) == {k * ALPHA + most * BETA}


def test_five_ranks_fold_one_in_and_out() -> None:
    # core of four: 2 floor(log2 p) + 2 messages of latency; bytes n + 3/4 n + 3/4 n + n
    n = 4000
    finishes = halving_doubling_allreduce.prepare(called(n, alike(5)))(times([0] * 5))
    inner = 4 * ALPHA + 2 * 3000 * BETA
    assert finishes.max() == inner + 2 * (ALPHA + n * BETA)
    finishes = recursive_doubling_allreduce.prepare(called(n, alike(5)))(times([0] * 5))
    # One hop less than 2 + 2: who is farthest from the fold does not wait for the way out.
    assert finishes.max() == 3 * (ALPHA + n * BETA)
    # Bruck: blocks 1, 2, then the one that is missing
    finishes = bruck_allgather.prepare(called(1000, alike(5)))(times([0] * 5))
    assert set(finishes.tolist()) == {3 * ALPHA + 4000 * BETA}


def test_two_devices_that_send_across_share_their_card() -> None:
    # Two nodes of two: round 0 inside the nodes; in round 1 both devices of a node cross its NIC.
    fabric = Fabric(nodes=2, devices=2, nics=[NETWORK], buses=[BUS])
    n = 12_000
    inside = BUS.serialization(n) + BUS.latency_ps
    finishes = recursive_doubling_allreduce.prepare(called(n, fabric))(times([0] * 4))
    assert set(finishes.tolist()) == {inside + 2 * n * BETA + ALPHA}
