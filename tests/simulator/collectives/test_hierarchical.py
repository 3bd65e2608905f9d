"""Does the all-reduce by node leaders agree with a simulation of every message on any links?

The oracle has a process a device, a queue a leader's link and a mailbox a message. It shares no
code with the kernel but what links say of themselves and the random draws; the ring of leaders is
that of `rings/wire.py`. Comparisons are `==` in picoseconds.
"""

from dataclasses import dataclass, replace
from fractions import Fraction

import pytest
import simpy
from hypothesis import given
from hypothesis import strategies as st

from gcsim.compressors.lockstep import CollectiveRecord
from gcsim.simulator.cluster import Racks
from gcsim.simulator.collectives.dispatch import execute
from gcsim.simulator.collectives.hierarchical import HierarchicalAllReduce
from gcsim.simulator.collectives.rounds.rounds import phase_key
from gcsim.simulator.network.jitter import draw_jitter
from gcsim.simulator.network.links import Jitter, Link
from gcsim.simulator.network.paths import across_uplink, path
from tests.simulator.collectives.rings.wire import Ring
from tests.simulator.links import KINDS
from tests.simulator.world import BUS, NETWORK, PS, Wait, cluster, link, skews, times

PLAIN = [link(10**12, 3 * PS), link(Fraction(10**12, 7), 40 * PS), link(5 * 10**11)]


@dataclass(frozen=True, kw_only=True)
class Case:
    starts: list[int]
    elements: int
    element: int
    hops: list[Link]
    local: Link
    gamma: int
    staging: int
    key: int


class Oracle:
    def __init__(self, case: Case) -> None:
        self.env, self.case = simpy.Environment(), case
        self.nodes = len(case.hops)
        self.p = len(case.starts)
        self.devices = self.p // self.nodes
        self.boxes: dict[tuple[object, ...], simpy.Store] = {}
        self.finishes: list[float] = [0] * self.p
        share, longer = divmod(case.elements, self.nodes)
        self.chunks = [(share + (k < longer)) * case.element for k in range(self.nodes)]
        self.nbytes = case.elements * case.element
        self.ready = [0] * self.nodes
        for node in range(self.nodes):
            self.env.process(self.leader(node))
            for device in range(1, self.devices):
                self.env.process(self.device(node, device))
        self.env.run()
        if self.nodes > 1:
            starts = [time + case.staging for time in self.ready]
            key = phase_key(case.key, 1)
            ring = Ring(
                starts, self.chunks, case.hops, reduces=True, gamma=case.gamma * PS, key=key
            )
            self.ready = [int(time) + case.staging for time in ring.finishes]
        self.env = simpy.Environment()
        self.boxes.clear()
        for node in range(self.nodes):
            self.env.process(self.copies(node))
            for device in range(1, self.devices):
                self.env.process(self.copied(node, device))
        self.env.run()

    def box(self, *name: object) -> simpy.Store:
        return self.boxes.setdefault(name, simpy.Store(self.env))

    def message(
        self, on: Link, nbytes: int, number: int, sender: int, phase: int, box: simpy.Store
    ) -> Wait:
        key = phase_key(self.case.key, phase) if phase else self.case.key
        now = int(self.env.now)
        late = draw_jitter([on], times([0]), nbytes, key=key, message=number, rank=times([sender]))
        yield self.env.timeout(on.departure(now, nbytes) - now)
        self.env.process(self.fly(on.latency_for(nbytes) + int(late[0]), box))

    def fly(self, time: int, box: simpy.Store) -> Wait:
        yield self.env.timeout(time)
        yield box.put(None)

    def device(self, node: int, device: int) -> Wait:
        yield self.env.timeout(self.case.starts[node * self.devices + device])
        yield self.box("asks", node).put(device)

    def copied(self, node: int, device: int) -> Wait:
        yield self.box("copy", node, device).get()
        self.finishes[node * self.devices + device] = self.env.now

    def take(self, node: int) -> Wait:
        """The leader's side of the link: one vector at a time, who asked first goes first."""
        first = node * self.devices
        order = sorted(range(1, self.devices), key=lambda d: (self.case.starts[first + d], d))
        waiting: set[int] = set()
        for device in order:
            while device not in waiting:
                waiting.add((yield self.box("asks", node).get()))
            yield self.env.process(
                self.message(
                    self.case.local, self.nbytes, 0, first + device, 0, self.box("vector", node)
                )
            )

    def leader(self, node: int) -> Wait:
        yield self.env.timeout(self.case.starts[node * self.devices])
        self.env.process(self.take(node))
        for _ in range(1, self.devices):
            yield self.box("vector", node).get()
            yield self.env.timeout(self.case.gamma * self.nbytes)
        self.ready[node] = int(self.env.now)

    def copies(self, node: int) -> Wait:
        yield self.env.timeout(self.ready[node])
        first = node * self.devices
        for device in range(1, self.devices):
            box = self.box("copy", node, device)
            yield self.env.process(
                self.message(self.case.local, self.nbytes, device - 1, first, 2, box)
            )
        self.finishes[first] = self.env.now


@st.composite
def cases(draw: st.DrawFn, local: Link | None = None) -> Case:
    nodes, devices = draw(st.integers(1, 6)), draw(st.integers(1, 5))
    p = nodes * devices
    pool = draw(st.sampled_from(sorted(KINDS)).map(KINDS.__getitem__))
    clock = st.integers(0, 40) | st.integers(0, 10**6)
    return Case(
        starts=draw(st.lists(clock, min_size=p, max_size=p)),
        elements=draw(st.integers(0, 60)),
        element=draw(st.sampled_from([1, 4])),
        hops=draw(st.lists(st.sampled_from(pool), min_size=nodes, max_size=nodes)),
        local=local or draw(st.sampled_from(pool)),
        gamma=draw(st.sampled_from([0, 3])),
        staging=draw(st.sampled_from([0, 11])),
        key=draw(st.integers(0, 2**64 - 1)),
    )


def finishes(case: Case) -> list[int]:
    """Of the kernel."""
    found: list[int] = HierarchicalAllReduce(
        case.elements * case.element,
        case.hops,
        local=case.local,
        element=case.element,
        gamma=case.gamma * PS,
        staging=case.staging,
    )(times(case.starts), case.key).tolist()
    return found


@given(case=cases())
def test_any_small_hierarchy_is_the_simulation(case: Case) -> None:
    assert finishes(case) == Oracle(case).finishes


@pytest.mark.parametrize("shape", [(1, 1), (1, 2), (1, 4), (2, 1), (2, 2), (3, 4), (32, 2)])
@pytest.mark.parametrize("skew", ["none", "one late", "ascending", "descending", "ties"])
def test_a_large_vector_takes_what_the_simulation_says(shape: tuple[int, int], skew: str) -> None:
    nodes, devices = shape
    case = Case(
        starts=skews(nodes * devices)[skew],
        elements=3_000_001,
        element=1,
        hops=[NETWORK] * nodes,
        local=BUS,
        gamma=0,
        staging=0,
        key=0,
    )
    for gamma in (0, 25):
        slower = replace(case, gamma=gamma)
        assert finishes(slower) == Oracle(slower).finishes


LATE = replace(PLAIN[0], jitter=(Jitter(distribution="uniform", mean=5000 * PS),))


@given(case=cases(local=LATE))
def test_vectors_that_overtake_each_other_are_added_as_they_arrive(case: Case) -> None:
    case = replace(case, elements=400, element=1, gamma=3, staging=0)
    assert finishes(case) == Oracle(case).finishes


def test_leaders_take_their_nodes_paths_one_flow_each() -> None:
    slow, uplink = link(10**11, 5 * PS), link(10**11, 9 * PS)
    on = cluster(
        4,
        3,
        network=PLAIN[0],
        intra_node=PLAIN[2],
        nics={1: slow},
        racks=Racks(nodes=2, uplink=uplink),
        shared_bus=True,
        all_reduce="hierarchical",
        host_staging=True,
    )
    record = CollectiveRecord(kind="all_reduce", sent=(400,), element=4)
    starts = times([17 * rank for rank in range(12)])
    hops = [
        path(PLAIN[0], slow),
        across_uplink(path(slow, PLAIN[0]), uplink, 1),
        PLAIN[0],
        across_uplink(PLAIN[0], uplink, 1),
    ]
    # the devices take the bus one by one, and a leader copies alone
    expected = HierarchicalAllReduce(
        400,
        hops,
        local=PLAIN[2],
        element=4,
        staging=PLAIN[2].serialization(400) + PLAIN[2].latency_for(400),
    )(starts)
    assert execute(record, starts, on).tolist() == expected.tolist()
