"""Does the all-reduce over two trees agree with a simulation of every piece?

The oracle builds the trees from the children's side, has a process for every stream of messages of
every rank, and moves real pieces (sets of contributions). It shares no code with the kernel but
what links say of themselves and the random draws. Comparisons are `==` in picoseconds.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pytest
import simpy
from hypothesis import given
from hypothesis import strategies as st

from gcsim.simulator.clock import Times
from gcsim.simulator.cluster import Racks
from gcsim.simulator.collectives.double_tree_allreduce import DoubleTreeAllReduce, _classes_together
from gcsim.simulator.collectives.tree_classes import Tree, double_tree
from gcsim.simulator.fabric.rounds import Fabric
from gcsim.simulator.network.jitter import draw_jitter
from gcsim.simulator.network.links import Link
from gcsim.simulator.network.paths import path, share_link
from tests.simulator.links import CONSTANT, KINDS
from tests.simulator.world import BUS, NETWORK, Wait, link, times

MANY = [link(Fraction(10**12, 100 + 7 * n), Fraction(n, 10**12)) for n in range(24)]


def children(nodes: int, node: int) -> list[int]:
    """In the first tree: half the lowest bit to the left, and to the right as far as nodes go."""
    bit = 1
    while bit < nodes and not node & bit:
        bit *= 2
    bit //= 2
    found = [node - bit] if node and bit else []
    while bit and node + bit >= nodes:
        bit //= 2
    return [*found, node + bit] if bit else found


def families(nodes: int) -> list[list[list[int]]]:
    """Children by tree and node: the second tree is mirrored, or shifted when nodes are odd."""
    first = [children(nodes, node) for node in range(nodes)]
    if nodes % 2:
        second = [[(c + 1) % nodes for c in first[(node - 1) % nodes]] for node in range(nodes)]
    else:
        second = [[nodes - 1 - c for c in first[nodes - 1 - node]] for node in range(nodes)]
    return [first, second]


def parents(below: Sequence[Sequence[int]]) -> list[int]:
    """A root is its own."""
    found = list(range(len(below)))
    for node, nodes in enumerate(below):
        for child in nodes:
            found[child] = node
    return found


Edge = tuple[int, int, int]
"""Sender, receiver, tree."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """One all-reduce on one cluster."""

    starts: list[int]
    elements: int
    element: int
    piece: int
    nics: list[Link]
    buses: list[Link]
    gamma: Fraction
    key: int = 0
    counts: tuple[int, ...] = ()
    """Devices of each node; empty: as many in each."""

    @property
    def devices(self) -> tuple[int, ...]:
        nodes = len(self.nics)
        return self.counts or (len(self.starts) // nodes,) * nodes


class Oracle:
    """One process for each stream of messages between a rank and a neighbour in a tree."""

    def __init__(self, shape: Shape) -> None:
        self.env = simpy.Environment()
        self.shape, self.p = shape, len(shape.starts)
        nodes = len(shape.nics)
        self.node = [node for node, count in enumerate(shape.devices) for _ in range(count)]
        first = [self.node.index(node) for node in range(nodes)]
        self.below: list[list[list[int]]] = []
        for tree in families(nodes):
            below: list[list[int]] = [[] for _ in range(self.p)]
            for node, heads in enumerate(tree):
                below[first[node]] = [first[head] for head in heads]
            for rank in range(self.p - 1):
                if self.node[rank] == self.node[rank + 1]:
                    below[rank].append(rank + 1)
            self.below.append(below)
        self.above = [parents(below) for below in self.below]
        edges = [
            (child, self.above[t][child])
            for t in (0, 1)
            for child in range(self.p)
            if self.above[t][child] != child
        ]
        self.flows = {"up": edges, "down": [(parent, child) for child, parent in edges]}
        self.links = {
            (a, b, way): self.link(a, b, way) for way in self.flows for a, b in self.flows[way]
        }
        self.arrived: dict[tuple[Edge, str], int] = {}

        step = max(1, shape.piece // shape.element)
        self.cut: list[list[int]] = []
        for half in ((shape.elements + 1) // 2, shape.elements // 2):
            begins = range(0, half, step)
            self.cut.append([min(step, half - start) * shape.element for start in begins] or [0])

        both = range(2)
        self.boxes: dict[tuple[Edge, str], simpy.Store] = {}
        self.summed = [[simpy.Store(self.env) for _ in range(self.p)] for _ in both]
        self.known = [[self.events(t) for _ in range(self.p)] for t in both]
        self.sent_up = [[self.env.event() for _ in range(self.p)] for _ in both]
        self.finishes: list[float] = [0] * self.p
        for rank in range(self.p):
            self.env.process(self.live(rank))
        self.env.run()
        everybody = frozenset(range(self.p))
        for t in both:
            for rank in range(self.p):
                assert [event.value for event in self.known[t][rank]] == [everybody] * len(
                    self.cut[t]
                )

    def events(self, t: int) -> list[simpy.Event]:
        return [self.env.event() for _ in self.cut[t]]

    def box(self, edge: Edge, way: str) -> simpy.Store:
        return self.boxes.setdefault((edge, way), simpy.Store(self.env))

    def live(self, rank: int) -> Wait:
        yield self.env.timeout(self.shape.starts[rank])
        work = []
        for t in (0, 1):
            work += [self.env.process(self.add(rank, t)), self.env.process(self.pass_up(rank, t))]
            if self.above[t][rank] != rank:
                work.append(self.env.process(self.learn(rank, t)))
            for child in self.below[t][rank]:
                work.append(self.env.process(self.pass_down(rank, child, t)))
        yield self.env.all_of(work)
        self.finishes[rank] = self.env.now

    def link(self, a: int, b: int, way: str) -> Link:
        """With the share that the streams of both trees leave of it."""
        node, other = self.node[a], self.node[b]
        inside = [(x, y) for x, y in self.flows[way] if self.node[x] == self.node[y]]
        across = [flow for flow in self.flows[way] if flow not in inside]
        if node == other:
            leaving, reaching = (sum(f[i] == (a, b)[i] for f in inside) for i in (0, 1))
            return share_link(self.shape.buses[node], max(leaving, reaching))
        out = sum(self.node[x] == node for x, _ in across)
        into = sum(self.node[y] == other for _, y in across)
        return path(self.shape.nics[node], self.shape.nics[other], out, into)

    def stream(self, edge: Edge, way: str) -> int:
        a, b, t = edge
        if way == "up":
            return t
        to = [(tree, child) for tree in (0, 1) for child in sorted(self.below[tree][a])]
        return 2 + to.index((t, b))

    def message(self, edge: Edge, way: str, piece: int, content: object) -> Wait:
        a, b, t = edge
        on, nbytes = self.links[a, b, way], self.cut[t][piece]
        number = self.stream(edge, way) * max(map(len, self.cut)) + piece
        late = draw_jitter(
            [on], times([0]), nbytes, key=self.shape.key, message=number, rank=times([a])
        )
        now = int(self.env.now)
        yield self.env.timeout(on.departure(now, nbytes) - now)
        arrival = int(self.env.now) + on.latency_for(nbytes) + int(late[0])
        arrival = max(arrival, self.arrived.get((edge, way), 0))
        self.arrived[edge, way] = arrival
        self.env.process(self.deliver(edge, way, content, arrival - int(self.env.now)))

    def deliver(self, edge: Edge, way: str, content: object, latency: int) -> Wait:
        yield self.env.timeout(latency)
        yield self.box(edge, way).put(content)

    def add(self, rank: int, t: int) -> Wait:
        for nbytes in self.cut[t]:
            total = {rank}
            for child in self.below[t][rank]:
                content = yield self.box((child, rank, t), "up").get()
                assert not total & content
                total |= content
            each = round(self.shape.gamma * nbytes * 10**12)
            yield self.env.timeout(each * len(self.below[t][rank]))
            yield self.summed[t][rank].put(frozenset(total))

    def pass_up(self, rank: int, t: int) -> Wait:
        above = self.above[t][rank]
        for number in range(len(self.cut[t])):
            content = yield self.summed[t][rank].get()
            if above == rank:
                self.known[t][rank][number].succeed(content)
            else:
                yield from self.message((rank, above, t), "up", number, content)
        if above != rank:
            self.sent_up[t][rank].succeed()

    def learn(self, rank: int, t: int) -> Wait:
        for event in self.known[t][rank]:
            content = yield self.box((self.above[t][rank], rank, t), "down").get()
            event.succeed(content)

    def pass_down(self, rank: int, child: int, t: int) -> Wait:
        for tree in (0, 1):
            if self.above[tree][rank] != rank:
                yield self.sent_up[tree][rank]
        for number, event in enumerate(self.known[t][rank]):
            content = yield event
            yield from self.message((rank, child, t), "down", number, content)


@pytest.mark.parametrize("nodes", [*range(1, 40), 64, 1000, 1023])
def test_both_trees_are_trees_whose_inner_nodes_hardly_meet(nodes: int) -> None:
    both = families(nodes)
    assert [parent.tolist() for parent in double_tree(nodes)] == [parents(tree) for tree in both]
    for parent in double_tree(nodes):
        tree = Tree(parent, devices=2)
        depth = dict.fromkeys(tree.root.tolist(), 0)
        for rank in np.concatenate(tree.levels[1:]).tolist():  # parents first, everybody once
            assert rank not in depth
            depth[rank] = depth[int(tree.parent[rank])] + 1
        assert len(depth) == 2 * nodes
        assert (
            max(depth.values()) == tree.height <= (nodes - 1).bit_length() + 1
        )  # one for the chain of two
    # No node has more than two children in both trees together.
    assert max(len(a) + len(b) for a, b in zip(*both, strict=True)) <= 2
    # Only the first root can have children in both.
    assert [node for node, (a, b) in enumerate(zip(*both, strict=True)) if a and b] in ([], [0])


def test_the_trees_are_those_that_are_drawn_in_the_source() -> None:
    # The comments of NCCL's src/graph/trees.cc: 14 nodes and 12, 13 nodes shifted
    assert double_tree(14)[0].tolist() == [0, 2, 4, 2, 8, 6, 4, 6, 0, 10, 12, 10, 8, 12]
    assert double_tree(12)[1].tolist() == [1, 3, 1, 11, 5, 7, 5, 3, 9, 7, 9, 11]
    assert double_tree(13)[1].tolist() == [9, 1, 3, 5, 3, 9, 7, 5, 7, 1, 11, 0, 11]


@st.composite
def shapes(draw: st.DrawFn, pool: Sequence[Link] = tuple(CONSTANT)) -> Shape:
    p, counts = draw(st.integers(2, 17)), tuple[int, ...]()
    if draw(st.booleans()):
        counts = tuple(draw(st.lists(st.integers(1, 5), min_size=2, max_size=5)))
        p, nodes = sum(counts), len(counts)
    else:
        devices = draw(st.sampled_from([d for d in range(1, p + 1) if p % d == 0]))
        nodes = p // devices
    links = st.lists(st.sampled_from(pool), min_size=nodes, max_size=nodes)
    nics, buses = draw(links), draw(links)
    if draw(st.booleans()):
        nics, buses = [nics[0]] * nodes, [buses[0]] * nodes
    clock = st.integers(0, 40) | st.integers(0, 10**6)
    together = st.builds(lambda start: [start] * p, clock)
    return Shape(
        starts=draw(together | st.lists(clock, min_size=p, max_size=p)),
        elements=draw(st.integers(0, 60)),
        element=draw(st.sampled_from([1, 2, 4])),
        piece=draw(st.integers(1, 40)),
        nics=nics,
        buses=buses,
        gamma=Fraction(draw(st.sampled_from([0, 2, 9])), 10**12),
        key=draw(st.integers(0, 2**64 - 1)),
        counts=counts,
    )


def kernel(shape: Shape) -> Times:
    nodes, devices = len(shape.nics), shape.counts or len(shape.starts) // len(shape.nics)
    return DoubleTreeAllReduce(
        shape.elements * shape.element,
        Fabric(nodes=nodes, devices=devices, nics=shape.nics, buses=shape.buses),
        piece=shape.piece,
        element=shape.element,
        gamma=shape.gamma,
    )(times(shape.starts), shape.key)


@pytest.mark.parametrize("pool", [*KINDS.values(), MANY])
@given(data=st.data())
def test_any_links_are_the_simulation(pool: list[Link], data: st.DataObject) -> None:
    shape = data.draw(shapes(pool))
    assert kernel(shape).tolist() == Oracle(shape).finishes


@pytest.mark.parametrize("skew", ["none", "one late", "ties", "descending"])
@pytest.mark.parametrize("nodes", [64, 32, 21])
def test_many_ranks_are_the_simulation(skew: str, nodes: int) -> None:
    p = 2 * nodes if nodes < 64 else nodes
    starts = {
        "none": [0] * p,
        "one late": [5_000_000_000 * (r == 29) for r in range(p)],
        "ties": [r % 2 * 200_000_000 for r in range(p)],
        "descending": [(p - r) * 7_000_001 for r in range(p)],
    }[skew]
    shape = Shape(
        starts=starts,
        elements=130_001,
        element=4,
        piece=32 * 1024,
        nics=[NETWORK] * nodes,
        buses=[BUS] * nodes,
        gamma=Fraction(25, 10**12),
    )
    assert kernel(shape).tolist() == Oracle(shape).finishes


def test_ranks_with_equal_hops_differ_by_when_they_may_pass_pieces_down() -> None:
    fast, slow = link(10**9, 50), link(10**7, 0)
    is_slow = [1, 1, 1, 0, 1, 0, 0, 0, 1, 1, 1, 1, 1, 0, 0]
    shape = Shape(
        starts=[7] * 45,
        elements=1001,
        element=1,
        piece=100,
        nics=[slow if one else fast for one in is_slow],
        buses=[slow] * 15,
        gamma=Fraction(0),
    )
    assert kernel(shape).tolist() == Oracle(shape).finishes


def alike(nodes: int) -> Fabric:
    return Fabric(nodes=nodes, devices=1, nics=[NETWORK], buses=[BUS])


@pytest.mark.parametrize("devices", [1, 2, 3])
@pytest.mark.parametrize("nodes", [2, 5, 8, 13, 24])
def test_ranks_that_enter_together_are_the_same_whether_computed_by_classes_or_one_by_one(
    nodes: int, devices: int
) -> None:
    # racks, a shared bus and two kinds of NICs make many kinds of hops
    nics = [NETWORK] * (nodes // 2) + [link(10**8, 70)] * (nodes - nodes // 2)
    fabric = Fabric(
        nodes=nodes,
        devices=devices,
        nics=nics,
        buses=[BUS],
        racks=Racks(nodes=4, uplink=link(3 * 10**8, 5)),
        shared_bus=True,
    )
    collective = DoubleTreeAllReduce(100_001, fabric, piece=9_000, gamma=Fraction(9, 10**12))
    starts = times([7] * (nodes * devices))
    assert collective(starts).tolist() == collective._one_by_one(starts, 0).tolist()


@pytest.mark.parametrize("nodes", [64, 1000, 10_000])
def test_equal_nodes_have_few_classes(nodes: int) -> None:
    known = _classes_together(alike(nodes))
    assert known is not None
    assert known[0].of_rank.max() < 3 * nodes.bit_length() ** 2


ALPHA, BETA = 50_000_000, 800
"""Picoseconds, and picoseconds a byte."""


def test_two_nodes_send_each_other_half_twice() -> None:
    # Each is the root of one tree and the leaf of the other: n/2 up, n/2 down, k pieces of m bytes.
    # The first sum is there after alpha + m beta; the way down begins when the way up is over.
    for pieces in (1, 2, 100):
        m = 100_000
        n = 2 * pieces * m
        finishes = DoubleTreeAllReduce(n, alike(2), piece=m)(times([0, 0]))
        down = max(pieces * m * BETA, ALPHA + m * BETA)  # begins, for the first piece
        last = max(down + pieces * m * BETA, ALPHA + (pieces + 1) * m * BETA)
        assert finishes.tolist() == [last + ALPHA] * 2


@pytest.mark.parametrize("nodes", [4, 7, 16, 64, 1000])
@pytest.mark.parametrize("pieces", [1, 16, 800])
def test_the_time_lies_between_two_vectors_and_the_bound(nodes: int, pieces: int) -> None:
    m = 10_000
    n = 2 * pieces * m
    height = (nodes - 1).bit_length()
    finishes = DoubleTreeAllReduce(n, alike(nodes), piece=m)(times([0] * nodes))
    bound = 2 * n * BETA + 2 * height * (ALPHA + 2 * m * BETA)
    assert 2 * n * BETA < finishes.max() <= bound
