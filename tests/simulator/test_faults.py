"""A run with deaths keeps what its protocol keeps.

The oracle walks from one change to the next without SimPy, in whole seconds; times at which two
things happen at once are left out of the random cases.
"""

from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gcsim.simulator.clock import PS_PER_SECOND
from gcsim.simulator.faults import FaultyRun, Missing, Needed, run_with_faults
from gcsim.simulator.training import Fault, Faults

HOUR = 3600


def faults(*deaths: tuple[int, int, int | None], horizon: int = HOUR, restart: int = 30) -> Faults:
    return Faults(
        horizon=Fraction(horizon),
        restart=Fraction(restart),
        deaths=tuple(
            Fault(node=node, at=Fraction(at), down=None if down is None else Fraction(down))
            for node, at, down in deaths
        ),
    )


def needed_of(nodes: int, servers: int | None) -> Needed:
    """All that are left in collectives (None); else the first ones, which carry the servers."""

    def needed(missing: Missing) -> list[int]:
        left = [node for node in range(nodes) if node not in missing]
        return left if servers is None else left[:servers]

    return needed


def run(
    told: Faults, *, nodes: int = 4, waits: bool = True, servers: int = 0, faster: int = 1
) -> FaultyRun:
    """10 s an iteration with all nodes, `faster` s less for each that is missing."""
    return run_with_faults(
        told,
        nodes=nodes,
        samples_per_node=32,
        iteration=lambda missing: (10 - faster * len(missing)) * PS_PER_SECOND,
        needed=needed_of(nodes, None if waits else servers),
    )


def test_without_deaths_only_the_cut_off_iteration_is_lost() -> None:
    done = run(faults(horizon=105))
    assert (done.iterations, done.samples, done.restarts) == (10, 10 * 4 * 32, 0)
    assert done.lost == 5
    assert done.throughput == 1280 / 105


def test_a_death_costs_the_iteration_under_way_a_restart_and_a_worker() -> None:
    done = run(faults((2, 25, None), horizon=125))
    # 2 iterations, 5 s lost, 30 s restart, then 70 s of 9 s each
    assert done.iterations == 2 + 7
    assert done.samples == (2 * 4 + 7 * 3) * 32
    assert done.restarts == 1
    assert done.lost == 125 - 20 - 63


def test_a_node_that_comes_back_waits_for_the_iteration_and_costs_a_restart() -> None:
    done = run(faults((2, 22, 55), horizon=200), faster=0)
    # 2 done; restart to 52; 52-62, 62-72, 72-82 (back at 77); restart to 112; 8 more to 192
    assert done.iterations == 2 + 3 + 8
    assert done.samples == (2 * 4 + 3 * 3 + 8 * 4) * 32
    assert done.restarts == 2


def test_with_a_parameter_server_nobody_waits() -> None:
    done = run(faults((2, 25, 40), horizon=125), waits=False, faster=0)
    # the third iteration goes on with three; back at 65, with the weights at 95: from 100 on
    assert done.iterations == 12
    assert done.samples == (2 * 4 + 8 * 3 + 2 * 4) * 32
    assert done.lost == 5


@pytest.mark.parametrize(("down", "with_four", "restarts"), [(None, 2, 0), (10, 2 + 2, 1)])
def test_a_node_that_dies_again_while_it_joins_stays_away(
    down: int | None, with_four: int, restarts: int
) -> None:
    again = faults((2, 25, 40), (2, 80, down), horizon=145)
    done = run(again, waits=False, faster=0)
    # back at 65, to take part from 95 on, but dead at 80; if back at 90, with the weights at 120
    assert (done.iterations, done.restarts) == (14, restarts)
    assert done.samples == (with_four * 4 + (14 - with_four) * 3) * 32


def test_a_restart_that_is_disturbed_begins_again() -> None:
    done = run(faults((2, 25, None), (3, 40, None), horizon=131), faster=0)
    assert done.restarts == 1
    assert done.iterations == 2 + 6  # 40 + 30 = 70; 6 iterations until 130


@pytest.mark.parametrize("waits", [True, False])
def test_nothing_happens_without_nodes(waits: bool) -> None:
    done = run(faults((0, 15, 50), horizon=120), nodes=1, waits=waits, faster=0)
    assert done.iterations == 1 + 2  # back at 65, again at work at 95
    assert done.restarts == 1


def test_deaths_of_nodes_that_a_smaller_cluster_does_not_have_are_left_out() -> None:
    assert run(faults((3, 25, None)), nodes=3) == run(faults(), nodes=3)


def test_only_the_death_of_a_node_with_a_server_stops_the_others() -> None:
    # The server is on node 0. Node 3 dies at 25: the third iteration goes on, with three.
    quiet = run(faults((3, 25, None), horizon=126), waits=False, servers=1, faster=0)
    assert (quiet.iterations, quiet.restarts, quiet.lost) == (12, 0, 6)
    # Node 0 at 25: lost, 30 s restart, and from 55 on seven more, with the server on node 1.
    loud = run(faults((0, 25, None), horizon=126), waits=False, servers=1, faster=0)
    assert (loud.iterations, loud.restarts, loud.lost) == (9, 1, 36)
    # At 76 node 1 dies, which carries it by now: 55-65-75, again at 106, one more.
    both = run(faults((0, 25, None), (1, 76, None), horizon=126), waits=False, servers=1, faster=0)
    assert (both.iterations, both.restarts) == (2 + 2 + 1, 2)


def test_stretches_say_when_what_counts_was_done() -> None:
    done = run(faults((2, 25, None), horizon=125))
    seconds = [(a // PS_PER_SECOND, b // PS_PER_SECOND, n) for a, b, n in done.stretches]
    # two of 10 s; lost; restart until 55; seven of 9 s
    assert seconds[0][0] == 0
    assert (20, 55) in [(one[1], two[0]) for one, two in pairwise(seconds)]
    assert seconds[-1][1] == 55 + 63
    assert sum(samples for _, _, samples in seconds) == done.samples
    assert 125 - sum(b - a for a, b, _ in seconds) == done.lost


def naive(told: Faults, *, servers: int | None, faster: int) -> tuple[int, int, int]:
    """Iterations, samples and restarts of four nodes, by walking from change to change."""
    end, restart, never = int(told.horizon), int(told.restart), 10**9
    changes = [(int(death.at), death.node, "dies") for death in told.deaths]
    down = {death.node: death.down for death in told.deaths}
    dead: set[int] = set()
    regroup = False
    iterations = samples = restarts = 0

    def is_needed(node: int) -> bool:
        left = [other for other in range(4) if other not in dead or other == node]
        return servers is None or node in left[:servers]

    def begin(now: int) -> tuple[str, int, set[int]]:
        if len(dead) == 4:
            return "nobody", never, set()
        if regroup:
            return "forming", now + restart, set()
        return "iterating", now + (10 - faster * len(dead)) * SECOND, set(dead)

    doing, until, gone = begin(0)
    while True:
        changes.sort()
        at, node, what = changes[0] if changes else (never, 0, "")
        if min(at, until) >= end:
            return iterations, samples, restarts
        if until < at:
            if doing == "iterating":
                iterations, samples = iterations + 1, samples + 32 * (4 - len(gone))
            else:
                restarts, regroup = restarts + 1, False
            doing, until, gone = begin(until)
            continue
        changes.pop(0)
        needed = is_needed(node)
        if what == "dies":
            dead.add(node)
            gone.add(node)
            regroup = regroup or needed
            if (back := down[node]) is not None:
                changes.append((at + int(back), node, "is back"))
            if needed or doing == "forming" or len(dead) == 4:
                doing, until, gone = begin(at)
        elif what == "is back" and not needed:
            changes.append((at + restart, node, "takes part"))
        else:
            dead.discard(node)
            restarts += not needed
            regroup = regroup or needed
            if doing != "iterating":
                doing, until, gone = begin(at)


SECOND = 1000
"""A second of the oracle's cases: changes lie between the ends of iterations."""


@example(deaths=[(100, None), (272, 61)], servers=0, faster=1, restart=60)
@example(deaths=[(20, 200), (60, None), (90, 90)], servers=1, faster=0, restart=20)
@given(
    deaths=st.lists(
        st.tuples(st.integers(1, 300), st.one_of(st.none(), st.integers(1, 150))), max_size=4
    ),
    servers=st.sampled_from([None, 0, 1, 2, 4]),
    faster=st.integers(0, 1),
    restart=st.integers(1, 60),
)
def test_equal_to_a_walk_through_time(
    deaths: list[tuple[int, int | None]], servers: int | None, faster: int, restart: int
) -> None:
    odd = (7, 18, 29, 40)  # no two changes and no end of an iteration meet
    told = Faults(
        horizon=Fraction(400 * SECOND + 1),
        restart=Fraction(restart * SECOND),
        deaths=tuple(
            Fault(
                node=node,
                at=Fraction(at * SECOND + odd[node]),
                down=None if down is None else Fraction(down * SECOND + 101 * (1 + node)),
            )
            for node, (at, down) in enumerate(deaths)
        ),
    )
    done = run_with_faults(
        told,
        nodes=4,
        samples_per_node=32,
        iteration=lambda missing: (10 - faster * len(missing)) * SECOND * PS_PER_SECOND,
        needed=needed_of(4, servers),
    )
    expected = naive(told, servers=servers, faster=faster)
    assert (done.iterations, done.samples, done.restarts) == expected
