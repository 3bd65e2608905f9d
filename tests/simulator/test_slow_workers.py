"""Does a slow worker compute as much longer as `Training.slow_workers` says, and hold up the rest?

On links without latency a ring ends when the last rank has entered plus what it costs, so that an
iteration is the slowest rank's computation and the ring: expected times are sums of these.
"""

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gcsim.compressors.lockstep import CollectiveRecord
from gcsim.simulator.collectives.dispatch import execute
from gcsim.simulator.host import Host
from gcsim.simulator.predict import predict
from gcsim.simulator.steps.averages import slow_ranks
from gcsim.simulator.training import Noise, Training
from tests.simulator.one_bucket import BACKWARD, COMPUTE, FORWARD, one_bucket
from tests.simulator.world import cluster, link

RING = 2 * 5 * 2_000 * 1000
"""2 (p - 1) chunks of 2,000 bytes, a nanosecond each, of six ranks: picoseconds."""
COMPUTES = FORWARD + BACKWARD
VECTOR = CollectiveRecord(kind="all_reduce", sent=(12_000,) * 6, element=4)


WHERE = cluster(3, 2, network=link(10**9), intra_node=link(10**9))


def iteration(host: Host | None = None, **training: Any) -> int:
    """Picoseconds."""
    where = replace(WHERE, host=host)
    found = predict(one_bucket(VECTOR), where, COMPUTE, training=Training(**training))
    return round(found.iteration * 10**12)


def test_a_slow_worker_delays_the_ring_by_exactly_what_it_computes_longer() -> None:
    assert iteration() == COMPUTES + RING
    assert iteration(slow_workers={3: Fraction(3, 2)}) == COMPUTES * 3 // 2 + RING
    # of several the slowest decides, whoever it is
    many = {0: Fraction(5, 4), 3: Fraction(3, 2), 5: Fraction(7, 4)}
    assert iteration(slow_workers=many) == COMPUTES * 7 // 4 + RING
    # one that computes faster than the others waits for them
    assert iteration(slow_workers={2: Fraction(1, 2)}) == COMPUTES + RING


def test_its_nodes_factor_and_its_own_multiply() -> None:
    node = {1: Fraction(3, 2)}  # ranks 2 and 3
    assert iteration(slow_nodes=node, slow_workers={3: Fraction(2)}) == COMPUTES * 3 + RING
    assert iteration(slow_nodes=node, slow_workers={4: Fraction(4, 3)}) == COMPUTES * 3 // 2 + RING
    # the factors are multiplied before they become floats: 1/3 of 3 is 1
    slowdowns = slow_ranks(
        WHERE, Training(slow_nodes={1: Fraction(3)}, slow_workers={2: Fraction(1, 3)})
    )
    assert slowdowns is not None
    assert slowdowns.tolist() == [1, 1, 1, 3, 1, 1]


def test_all_workers_of_a_node_are_the_node() -> None:
    factor = Fraction(13, 10)
    workers = {2: factor, 3: factor}
    assert iteration(slow_workers=workers) == iteration(slow_nodes={1: factor})


@given(
    nodes=st.dictionaries(st.integers(0, 2), st.fractions(Fraction(1, 9), 9), max_size=3),
    workers=st.dictionaries(st.integers(0, 5), st.fractions(Fraction(1, 9), 9), max_size=6),
)
def test_every_rank_has_its_pace(nodes: dict[int, Fraction], workers: dict[int, Fraction]) -> None:
    slowdowns = slow_ranks(WHERE, Training(slow_nodes=nodes, slow_workers=workers))
    expected = [float(nodes.get(rank // 2, 1) * workers.get(rank, 1)) for rank in range(6)]
    if not nodes and not workers:
        assert slowdowns is None
    else:
        assert slowdowns is not None
        assert slowdowns.tolist() == expected
    slowest = max(expected)
    exact = iteration(slow_nodes=nodes, slow_workers=workers)
    assert exact == round(FORWARD * slowest) + round(BACKWARD * slowest) + RING


def test_noise_comes_on_top() -> None:
    noise: dict[str, Any] = {"noise": Noise(variation=Fraction(1, 10)), "iterations": 20}
    slow = iteration(**noise, slow_workers={4: Fraction(3)})
    # the mean of 20 factors of mean 1 and variation 0.1 is within five standard errors of 1
    assert abs(slow / (3 * COMPUTES) - 1) < 0.12
    assert slow > 2.5 * iteration(**noise)


def test_a_slow_worker_on_shared_cores_keeps_the_others_waiting_for_a_core() -> None:
    """Two workers of a node on one core. Alike, both have had their work after twice as long. With
    one three times as slow: half a core each for 2 c, then the slow one has c of its 3 c and the
    core to itself: 4 c."""
    host = Host(cores=1, per_message=Fraction(0))
    passes = frozenset({"forward", "backward"})
    assert iteration(host, on_host=passes) == 2 * COMPUTES + RING
    slow = iteration(host, on_host=passes, slow_workers={3: Fraction(3)})
    assert slow == 4 * COMPUTES + RING
    assert iteration(host, slow_workers={3: Fraction(3)}) == 3 * COMPUTES + RING


def test_the_ring_of_these_tests_costs_what_they_say() -> None:
    finishes = execute(VECTOR, np.zeros(6, dtype=np.int64), WHERE)
    assert finishes.tolist() == [RING] * 6
