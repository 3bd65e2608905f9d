"""Where do shares by number agree with messages that share what they cross while they cross it?

The engine gives each message of a round its share by number (`fabric/rounds.py`). Here the
programs of the ranks are those of `test_logarithmic_collectives.py`, but their messages are flows
on a medium (`fluid_oracle.Medium`) that share max-min fairly with all that cross it at the same
time, of whatever round; all rates are found anew at every event. Where nobody meets anybody, or
all meet in step, the two are `==` in picoseconds.
"""

from collections.abc import Iterable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
import simpy
from hypothesis import event, given, settings
from hypothesis import strategies as st

from gcsim.simulator.cluster import Racks
from gcsim.simulator.collectives.rings import allgather
from gcsim.simulator.network.links import Link, SizeFactor
from gcsim.simulator.network.paths import across_uplink, inward, outward, path
from tests.simulator.collectives.rounds.test_logarithmic_collectives import (
    ALGORITHMS,
    Algorithm,
    Case,
    Rank,
    World,
    around,
    cases,
    every,
    gather,
)
from tests.simulator.links import CONSTANT, SIZED
from tests.simulator.sharing.fluid_oracle import Medium, Rate, begins, connection
from tests.simulator.world import BUS, NETWORK, Wait, link


class FluidWorld(World):
    """One process a rank, one flow a message."""

    def __init__(self, case: Case, algorithm: Algorithm) -> None:
        self.case, self.split = case, algorithm.split(case)
        self.env = simpy.Environment()
        self.medium = Medium(self.env, {})
        self.boxes = {}
        self.play(algorithm, FluidRank)

    def journey(self, a: int, b: int) -> tuple[dict[Any, Rate], list[Any], Link]:
        """Capacities, what is crossed, and what a message alone sees."""
        case, devices = self.case, self.case.p // len(self.case.nics)
        x, y = a // devices, b // devices
        if x == y:
            bus = case.buses[x]
            names: list[Any] = [("bus", x)] if case.shared_bus else [("from", a), ("to", b)]
            return dict.fromkeys(names, bus.line_goodput), names, bus
        names, capacity = [], dict[Any, Rate]()
        for node, way, leg in ((x, "out", outward), (y, "in", inward)):
            nic = case.nics[node]
            names.append(("air", nic) if nic.shared else (way, node))
            capacity[names[-1]] = leg(nic).line_goodput
        link = path(case.nics[x], case.nics[y])
        if case.racks is not None and x // case.racks.nodes != y // case.racks.nodes:
            link = across_uplink(link, case.racks.uplink, 1)
            for way, node in (("up", x), ("down", y)):
                names.append((way, node // case.racks.nodes))
                capacity[names[-1]] = case.racks.uplink.line_goodput
        return capacity, names, link


class FluidRank(Rank):
    """What a rank can do."""

    def send(self, to: int, label: object, names: Iterable[int]) -> Wait:
        assert isinstance(self.world, FluidWorld)
        world, content = self.world, {name: self.held[name] for name in names}
        nbytes = self.weight(content)
        capacity, crosses, link = world.journey(self.rank, to)
        world.medium.capacity.update(capacity)
        now = int(world.env.now)
        yield world.env.timeout(begins(link, now) - now)
        world.medium.capacity["connection", self.rank, to] = connection(link, nbytes)
        crosses.append(("connection", self.rank, to))
        yield world.medium.carry(Fraction(nbytes), crosses, link.overhead * 10**12)
        world.env.process(self.deliver(to, label, content, link.latency_for(nbytes)))


def small() -> st.SearchStrategy[Case]:
    """2 to 9 ranks, one to three devices a node."""
    shapes = st.sampled_from([(1, 3), (2, 1), (2, 2), (3, 1), (3, 3), (4, 2), (5, 1)])
    return cases([*CONSTANT, *SIZED], shapes, st.integers(0, 40) | st.integers(0, 400))


@every
@given(case=small())
@settings(max_examples=6)
def test_whatever_shares_nothing_at_any_time_takes_what_it_takes_when_counted(
    name: str, case: Case
) -> None:
    # Ranks of a node of their own, far apart in time or in step: the media say who met whom.
    case = replace(
        case,
        starts=[time * 1000 * (case.elements % 2) for time in case.starts],
        nics=[case.nics[0]] * case.p,
        buses=[case.buses[0]] * case.p,
        racks=None,
        shared_bus=False,
    )
    world = FluidWorld(case, ALGORITHMS[name])
    counted = World(case, ALGORITHMS[name])
    alone = max(world.medium.most.values(), default=0) <= 1
    by_round = {place for place, number in counted.crowd.items() if number > 1}
    alone = alone and not {place for place in by_round if place[1] != "air"}
    event(f"nobody meets anybody: {alone}")
    if alone and not case.nics[0].shared:
        assert world.finishes == ALGORITHMS[name].kernel(case).tolist()


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
        starts=[5] * 8,
        nics=[NETWORK] * (8 // devices),
        buses=[BUS] * (8 // devices),
        sizes=[8 * 6000] * 8,
        elements=8 * 1500,
        element=4,
    )
    assert FluidWorld(case, ALGORITHMS[name]).finishes == ALGORITHMS[name].kernel(case).tolist()


@pytest.mark.parametrize("part", [Fraction(1, 2), Fraction(1, 3), Fraction(1)])
def test_a_factor_is_a_limit_of_the_connection(part: Fraction) -> None:
    """Two devices a node: in one round of three, two messages share a NIC, in two they are alone
    on their bus. Half of the NIC's rate is what the share is; a third is less than the share."""
    sized = replace(NETWORK, factors=(SizeFactor(from_bytes=0, bandwidth=part),))
    case = Case(
        starts=[5] * 8,
        nics=[sized] * 4,
        buses=[BUS] * 4,
        sizes=[48000] * 8,
        elements=12000,
        element=4,
    )
    kernel = ALGORITHMS["recursive doubling"].kernel
    assert FluidWorld(case, ALGORITHMS["recursive doubling"]).finishes == kernel(case).tolist()
    plain = kernel(replace(case, nics=[NETWORK] * 4)).tolist()
    assert (kernel(case).tolist() == plain) == (part >= Fraction(1, 2))


def test_messages_of_two_rounds_meet_at_a_card() -> None:
    """Bruck's all-gather of 3 ranks, 1000 bytes each, a byte a nanosecond; rank 0 enters at 500 ns.

    Round 0: rank r sends to r - 1; round 1, to r - 2 = r + 1. Worked by hand: 2 -> 1 and 1 -> 0 are
    alone from 0 to 1000, and 0 -> 2 from 500 on. Rank 1 waits for 2 -> 1 and has it at 1000, sends
    its second message to 2, whose NIC in 0 -> 2 still needs for 500 bytes: both get half until
    2000, when 0 -> 2 is through and 500 are left of the other, which ends at 2500.
    """
    case = Case(starts=[500_000, 0, 0], nics=[link(10**9)] * 3, buses=[BUS] * 3, sizes=[1000] * 3)
    # Rank 0 had 1 -> 0 at 1000, its own is through at 2000, and its second goes to 1, 2000-3000;
    # rank 2 sends its second to 0 from 2000 on, when 0 -> 2 has arrived.
    assert FluidWorld(case, ALGORITHMS["Bruck"]).finishes == [3_000_000] * 3
    # By number, 1 -> 2 has rank 2's NIC to itself: no other message of its round goes there. All
    # second messages take 1000 from when their senders are ready, the last at 1500.
    assert ALGORITHMS["Bruck"].kernel(case).tolist() == [2_500_000] * 3


@given(
    starts=st.lists(st.integers(0, 400), min_size=12, max_size=12),
    sizes=st.lists(st.integers(0, 60), min_size=12, max_size=12),
    links=st.lists(st.sampled_from(CONSTANT), min_size=6, max_size=6),
    devices=st.sampled_from([2, 3, 4, 6]),
    racks=st.sampled_from(
        [None, Racks(nodes=1, uplink=CONSTANT[2]), Racks(nodes=2, uplink=CONSTANT[1])]
    ),
)
@settings(max_examples=15)
def test_a_flat_ring_has_nothing_that_a_fluid_could_share(
    starts: list[int], sizes: list[int], links: list[Link], devices: int, racks: Racks | None
) -> None:
    """Several devices a node: one hop out and one in on each NIC and on each rack's uplink."""
    nodes = 12 // devices
    case = Case(
        starts=starts, nics=links[:nodes], buses=[links[0]] * nodes, sizes=sizes, racks=racks
    )
    ring = gather(allgather, around)
    assert FluidWorld(case, ring).finishes == ring.kernel(case).tolist()
