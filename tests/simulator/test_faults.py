"""A run with deaths keeps what its protocol keeps.

The oracle walks from one change to the next without SimPy, in whole seconds; times at which two
things happen at once are left out of the random cases.
"""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gcsim.simulator.clock import PS_PER_SECOND
from gcsim.simulator.faults import FaultyRun, run_with_faults
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


def run(told: Faults, *, nodes: int = 4, waits: bool = True, faster: int = 1) -> FaultyRun:
    """10 s an iteration with all nodes, `faster` s less for each that is missing."""
    return run_with_faults(
        told,
        nodes=nodes,
        samples_per_node=32,
        iteration=lambda missing: (10 - faster * len(missing)) * PS_PER_SECOND,
        waits=waits,
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


def naive(told: Faults, *, waits: bool, faster: int) -> tuple[int, int, int]:
    """Iterations, samples and restarts of four nodes, by walking from change to change."""
    changes: list[tuple[int, int, bool]] = []
    for death in told.deaths:
        changes.append((int(death.at), death.node, True))
        if death.down is not None:
            late = 0 if waits else int(told.restart)
            changes.append((int(death.at + death.down) + late, death.node, False))
    changes.sort()
    now, end, restart = 0, int(told.horizon), int(told.restart)
    dead: set[int] = set()
    iterations = samples = restarts = 0
    forming = False
    while now < end:
        while changes and changes[0][0] <= now:
            _, node, dies = changes.pop(0)
            (dead.add if dies else dead.discard)(node)
            forming = waits
            restarts += not dies and not waits
        upcoming = changes[0][0] if changes else end
        if len(dead) == 4:
            now = upcoming
        elif forming:
            forming = upcoming < now + restart
            now = min(upcoming, now + restart)
            restarts += not forming and now < end
        else:
            finish = now + (10 - faster * len(dead)) * SECOND
            gone: set[int] = set(dead)
            present = set(range(4)) - dead
            for at, node, dies in [change for change in changes if change[0] < finish]:
                (present.discard if dies else present.add)(node)
                gone |= {node} if dies else set()
                if (waits and dies) or not present:
                    now = at  # nobody finishes this iteration
                    break
            else:
                iterations += finish < end
                samples += 32 * (4 - len(gone)) * (finish < end)
                now = finish
    # nodes that come back while the iteration is under way that the end cuts off
    restarts += sum(not waits and not dies and at < end for at, _, dies in changes)
    return iterations, samples, restarts


SECOND = 1000
"""A second of the oracle's cases: changes lie between the ends of iterations."""


@settings(max_examples=300, deadline=None)
@example(deaths=[(100, None), (272, 61)], waits=False, faster=1, restart=60)
@given(
    deaths=st.lists(
        st.tuples(st.integers(1, 300), st.one_of(st.none(), st.integers(1, 150))), max_size=4
    ),
    waits=st.booleans(),
    faster=st.integers(0, 1),
    restart=st.integers(1, 60),
)
def test_equal_to_a_walk_through_time(
    deaths: list[tuple[int, int | None]], waits: bool, faster: int, restart: int
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
        waits=waits,
    )
    expected = naive(told, waits=waits, faster=faster)
    assert (done.iterations, done.samples, done.restarts) == expected
