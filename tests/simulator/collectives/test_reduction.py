"""Does every collective that reduces spend `Cluster.sums` on what it adds, and no other?

Expected differences are those of the formulas in the algorithms' own docstrings, as exact
picoseconds: equal links, all enter together, chunks that divide evenly. That each kernel adds at
the right moment also in the midst of skew and jitter is compared with event-by-event oracles in
the tests of the kernels (and, for two collectives at a time, in `test_concurrent.py`).
"""

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gcsim.compressors.lockstep import CollectiveRecord
from gcsim.errors import InputError
from gcsim.simulator.clock import PS_PER_SECOND
from gcsim.simulator.cluster import Cluster
from gcsim.simulator.collectives.algorithms import ALGORITHMS
from gcsim.simulator.collectives.dispatch import CollectiveMemo, execute
from gcsim.simulator.host import Sums
from gcsim.simulator.network.links import Jitter
from gcsim.simulator.predict import predict
from gcsim.simulator.steps.events.message_ring import RingPrograms
from gcsim.simulator.training import Training
from tests.simulator.one_bucket import COMPUTE, one_bucket
from tests.simulator.world import NETWORK, cluster, reduce

RATE = Fraction(40 * 10**9)
"""25 ps a byte."""
GAMMA = 25
REDUCING = [name for kind, name in ALGORITHMS if kind == "all_reduce" and "nccl" not in name]


def at(rate: Fraction | None) -> Sums:
    return Sums(float32=rate)


def last(record: CollectiveRecord, where: Cluster) -> int:
    """When the last rank leaves, all having entered at 0."""
    return int(execute(record, np.zeros(where.workers, dtype=np.int64), where).max())


def more(record: CollectiveRecord, where: Cluster) -> int:
    """What the additions cost."""
    return last(record, replace(where, sums=at(RATE))) - last(record, where)


# --- how much ------------------------------------------------------------------------------------


@pytest.mark.parametrize("p", [2, 3, 8, 12])
def test_a_ring_adds_all_but_one_chunk_of_the_vector(p: int) -> None:
    n = 4 * p * 50_000
    for algorithm in ("ring", "alltoall_allgather"):
        assert more(reduce(n), cluster(p, all_reduce=algorithm)) == (p - 1) * n * GAMMA // p


@pytest.mark.parametrize("k", [1, 2, 3])
def test_algorithms_of_log_p_rounds_add_what_their_rounds_bring(k: int) -> None:
    p, n = 2**k, 4_000_000
    where = cluster(p, all_reduce="halving_doubling")
    assert more(reduce(n), where) == (p - 1) * n * GAMMA // p
    for algorithm in ("recursive_doubling", "binomial_tree"):
        assert more(reduce(n), cluster(p, all_reduce=algorithm)) == k * n * GAMMA


def test_ranks_that_fold_add_a_whole_vector_more() -> None:
    """Of six ranks two give theirs to a neighbour; the four of the core go on."""
    n = 4_000_000
    assert more(reduce(n), cluster(6, all_reduce="recursive_doubling")) == 3 * n * GAMMA
    where = cluster(6, all_reduce="halving_doubling")
    assert more(reduce(n), where) == n * GAMMA + 3 * n * GAMMA // 4


def test_gloo_hides_all_additions_but_the_last_behind_long_segments() -> None:
    """8 chunks of 4 MiB in segments of 1 MiB, each 0.84 ms on the link: only one m gamma shows.

    With segments that take less than two latencies each chunk shows its own.
    """
    p = 8
    assert more(reduce(p << 22), cluster(p, all_reduce="gloo_ring")) == (1 << 20) * GAMMA
    short = p * 2 * 1000  # two segments of 1000 bytes a chunk, 0.8 us each
    assert more(reduce(short), cluster(p, all_reduce="gloo_ring")) == (p - 1) * 1000 * GAMMA


def test_a_leader_adds_its_nodes_vectors_as_they_come_then_its_ring() -> None:
    """A vector takes 100 ps a byte on the bus: all additions but the last hide behind it."""
    n, nodes = 4_000_000, 4
    where = cluster(nodes, 3, all_reduce="hierarchical")
    assert more(reduce(n), where) == n * GAMMA + (nodes - 1) * n * GAMMA // nodes
    slow = replace(where, sums=at(Fraction(10**12, 250)))  # slower than the bus: nothing hides
    ring = (nodes - 1) * n * 250 // nodes
    gathered = 2 * n * 250 - n * 100  # the second vector waits for the first's addition
    assert last(reduce(n), slow) - last(reduce(n), where) == gathered + ring


def test_a_tree_adds_each_childs_piece() -> None:
    """Two nodes are the root of one tree each, with one child; a half of the vector in a piece."""
    n = 1_000_000
    whole = cluster(2, all_reduce="double_tree", pipeline_block=n)
    assert more(reduce(n), whole) == n // 2 * GAMMA
    # Of many pieces the last alone is not added beside others on their way, and even that one is
    # there before its turn to go down.
    cut = cluster(2, all_reduce="double_tree", pipeline_block=n // 20)
    assert more(reduce(n), cut) == 0


@pytest.mark.parametrize("servers", [1, 3])
def test_servers_add_what_they_have_when_they_have_it_all(servers: int) -> None:
    n, p = 3_000_000, 4
    where = cluster(p, all_reduce="parameter_server", servers=servers)
    where = replace(where, collectives=replace(where.collectives, server_hosts="dedicated"))
    assert more(reduce(n), where) == (p - 1) * n * GAMMA // servers


@pytest.mark.parametrize(("kind", "name"), sorted(ALGORITHMS))
def test_what_reduces_nothing_or_is_priced_elsewhere_costs_nothing_more(
    kind: Any, name: Any
) -> None:
    record = CollectiveRecord(kind=kind, sent=(40_000,) * 4, element=4, pulled=40_000)
    named = {kind: name} if kind in {"all_reduce", "all_gather"} else {}
    extra = more(record, cluster(4, 2, **{"servers": 1, **named}))
    assert (extra > 0) == (kind == "all_reduce" and name in REDUCING)


# --- when ----------------------------------------------------------------------------------------


@given(
    name=st.sampled_from([*REDUCING, "nccl"]),
    nodes=st.integers(1, 5),
    devices=st.integers(1, 3),
    elements=st.integers(0, 3000),
    starts=st.lists(st.integers(0, 10**9), min_size=15, max_size=15),
    rates=st.tuples(st.integers(1, 10**6), st.integers(1, 10**6)),
    shaky=st.booleans(),
)
def test_slower_additions_never_let_anybody_leave_earlier_and_cost_no_more_than_all_in_turn(
    name: Any,
    nodes: int,
    devices: int,
    elements: int,
    starts: list[int],
    rates: tuple[int, int],
    shaky: bool,
) -> None:
    where = cluster(nodes, devices, all_reduce=name)
    p = where.workers
    if shaky:
        jitter = Jitter(distribution="exponential", mean=Fraction(1, 10**4))
        where = replace(where, network=replace(NETWORK, jitter=(jitter,)))
    record, times = reduce(4 * elements), np.array(starts[:p], dtype=np.int64)
    slow, fast = sorted(Fraction(rate * 10**6) for rate in rates)
    finishes = [
        execute(record, times, replace(where, sums=at(rate)), key=7) for rate in (None, fast, slow)
    ]
    assert (finishes[0] <= finishes[1]).all()
    assert (finishes[1] <= finishes[2]).all()
    # p vectors have p - 1 additions, and the rounded chunks of each half a picosecond more
    all_in_turn = (p - 1) * (p + 1) * (4 * elements * PS_PER_SECOND / slow + p)
    assert int((finishes[2] - finishes[0]).max()) <= all_in_turn


def test_prepared_collectives_of_one_rate_are_not_those_of_another() -> None:
    for name in REDUCING:
        where, record = cluster(4, 2, all_reduce=name), reduce(32_000)
        memos = [CollectiveMemo(replace(where, sums=at(rate))) for rate in (None, RATE, RATE / 2)]
        zeros = np.zeros(8, dtype=np.int64)
        first = [int(memo(record, zeros).max()) for memo in memos]
        assert first == sorted(set(first)), name
        assert [int(memo(record, zeros).max()) for memo in reversed(memos)] == first[::-1]


@pytest.mark.parametrize("name", REDUCING)
def test_additions_beyond_the_clock_are_the_users_mistake(name: Any) -> None:
    with pytest.raises(InputError):
        last(reduce(244_000_000), cluster(4, 2, all_reduce=name, sums=at(Fraction(1))))


# --- in a step -----------------------------------------------------------------------------------


@pytest.mark.parametrize("slots", [1, 2])
def test_an_iteration_is_longer_by_as_much(slots: Any) -> None:
    where, n = cluster(4), 8_000_000
    plain, added = (
        predict(
            one_bucket(reduce(n)), each, COMPUTE, training=Training(concurrent_collectives=slots)
        )
        for each in (where, replace(where, sums=at(RATE)))
    )
    assert added.exposed - plain.exposed == pytest.approx(3 * n / 4 / 40e9, abs=1e-15)
    assert (added.forward, added.backward) == (plain.forward, plain.backward)


# --- by type -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", REDUCING)
def test_each_type_is_added_at_its_own_rate_by_every_algorithm(name: Any) -> None:
    """The exits are those of a vector of float32 at the type's rate, to the picosecond."""
    sums = Sums(float32=RATE, float16=RATE / 100, int8=RATE * 3)
    zeros = np.zeros(8, dtype=np.int64)
    for dtype in ("float32", "float16", "int8", "complex64"):
        rate = getattr(sums, dtype, RATE)  # a type that no library names is as float32
        for slots in (cluster(8, all_reduce=name), cluster(4, 2, all_reduce=name)):
            record = replace(reduce(3_200_000), dtype=dtype)
            finishes = execute(record, zeros, replace(slots, sums=sums))
            same = execute(reduce(3_200_000), zeros, replace(slots, sums=at(rate)))
            assert finishes.tolist() == same.tolist()


def test_two_collectives_at_a_time_add_by_type_too() -> None:
    sums = Sums(float32=RATE, float16=RATE / 100)
    programs = RingPrograms(cluster(4, sums=sums))
    half, single = (programs(replace(reduce(8000), dtype=each)) for each in ("float16", "float32"))
    assert half is not None
    assert single is not None
    assert (half.gamma, single.gamma) == (100 / RATE, 1 / RATE)


@pytest.mark.parametrize(
    "wrong",
    [
        {"float32": Fraction(0)},
        {"float16_range": (Fraction(1), Fraction(2))},
        {"int8": Fraction(3), "int8_range": (Fraction(1), Fraction(2))},
    ],
)
def test_rates_that_cannot_be_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(
        InputError, match=r"float32 = 0; must be greater than 0|is given without|lies outside"
    ):
        Sums(**wrong)
