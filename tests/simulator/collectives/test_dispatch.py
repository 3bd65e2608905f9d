"""Is the right algorithm run, on all workers of the cluster, with its copies to host memory?"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any, Literal, get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gcsim.compressors.lockstep import CollectiveRecord
from gcsim.errors import InternalError
from gcsim.simulator.clock import Times
from gcsim.simulator.cluster import (
    AllGatherAlgorithm,
    AllReduceAlgorithm,
    Cluster,
)
from gcsim.simulator.collectives.algorithms import ALGORITHMS, Algorithm
from gcsim.simulator.collectives.dispatch import (
    CollectiveMemo,
    algorithm_of,
    execute,
)
from gcsim.simulator.collectives.hierarchical import HierarchicalAllReduce
from gcsim.simulator.collectives.rings.allgather import ring_allgather
from gcsim.simulator.collectives.rings.allreduce import ring_allreduce
from gcsim.simulator.collectives.rings.pipelined_allgatherv import PreparedPipeline
from gcsim.simulator.collectives.servers.parameter_server import parameter_server
from gcsim.simulator.collectives.staging import copy_times
from tests.simulator import world
from tests.simulator.world import BUS, NETWORK, gather, reduce


def cluster(nodes: int, devices: int = 2, **chosen: Any) -> Cluster:
    return world.cluster(nodes, devices, **{"servers": 1, **chosen})


def zeros(ranks: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.zeros(ranks, dtype=np.int64)


def push(nbytes: int, pulled: int) -> CollectiveRecord:
    return CollectiveRecord(kind="push_pull", sent=(nbytes,) * 4, pulled=pulled)


def to_all(*sent: int) -> CollectiveRecord:
    return CollectiveRecord(kind="all_to_all", sent=sent, variable=True)


def merge(sent: int, pulled: int) -> CollectiveRecord:
    return CollectiveRecord(kind="tree_merge", sent=(sent,), pulled=pulled)


ALTERNATING = [BUS, NETWORK]


def test_the_flat_ring_crosses_the_network_between_nodes_only() -> None:
    finishes = execute(reduce(4_000_000), zeros(8), cluster(4))
    expected = ring_allreduce(4_000_000, ALTERNATING * 4, element=4)(zeros(8))
    assert finishes.tolist() == expected.tolist()


def test_a_single_node_never_uses_the_network() -> None:
    slow = replace(cluster(1, 4), network=replace(NETWORK, bandwidth=Fraction(1)))
    for record in (reduce(10**6), gather(10**6), push(10**6, 10**6)):
        finishes = execute(record, zeros(4), slow)
        assert finishes.max() < 10**12


def test_recorded_payloads_are_cycled_over_the_workers() -> None:
    finishes = execute(gather(1000, 2000, 3000), zeros(8), cluster(4))
    sizes = [1000, 2000, 3000, 1000, 2000, 3000, 1000, 2000]
    assert finishes.tolist() == ring_allgather(sizes, ALTERNATING * 4)(zeros(8)).tolist()


def test_each_choice_runs_its_own_algorithm() -> None:
    piped = cluster(4, all_gather="pipelined_ring", pipeline_block=500)
    finishes = execute(gather(1000, 3000), zeros(8), piped)
    expected = PreparedPipeline([1000, 3000] * 4, ALTERNATING * 4, 500)(zeros(8))
    assert finishes.tolist() == expected.tolist()

    finishes = execute(reduce(4000), zeros(8), cluster(4, all_reduce="hierarchical"))
    expected = HierarchicalAllReduce(4000, [NETWORK] * 4, local=BUS, element=4)(zeros(8))
    assert finishes.tolist() == expected.tolist()

    finishes = execute(push(4000, 1000), zeros(8), cluster(4, servers=3), server_time=77)
    expected = parameter_server(
        zeros(8),
        [4000] * 8,
        1000,
        cluster(4, servers=3),
        server_time=77,
    )
    assert finishes.tolist() == expected.tolist()


def test_gloo_copies_to_the_host_before_and_the_whole_result_back_after() -> None:
    # a copy takes 10 us + bytes / 10 GB/s: 100 ps a byte
    starts, gloo = zeros(8), cluster(4, transport="gloo", all_reduce="ring", all_gather="ring")
    copy = 10_000_000

    def extra(record: CollectiveRecord) -> set[int]:
        staged, plain = execute(record, starts, gloo), execute(record, starts, cluster(4))
        return set((staged - plain).tolist())

    assert extra(reduce(4000)) == {copy + 400_000 + copy + 400_000}
    assert extra(gather(1000)) == {copy + 100_000 + copy + 8 * 100_000}
    assert extra(push(4000, 1000)) == {copy + 400_000 + copy + 100_000}


def test_unequal_payloads_reach_the_host_at_different_times() -> None:
    on_host = zeros(4) + copy_times([1000, 5000] * 2, BUS)
    assert on_host.tolist() == [10_100_000, 10_500_000] * 2
    # The ring begins from those times; the whole output of 12000 bytes is copied back.
    ring = execute(gather(1000, 5000), on_host, cluster(2))
    finishes = execute(
        gather(1000, 5000), zeros(4), cluster(2, transport="gloo", all_gather="ring")
    )
    assert (finishes - ring).tolist() == [10_000_000 + 1_200_000] * 4


def test_only_leaders_copy_in_a_hierarchy() -> None:
    plain = cluster(4, all_reduce="hierarchical")
    gloo = cluster(4, all_reduce="hierarchical", transport="gloo")
    copies = execute(reduce(4000), zeros(8), gloo) - execute(reduce(4000), zeros(8), plain)
    assert set(copies.tolist()) == {2 * (10_000_000 + 400_000)}


def test_one_worker_alone_leaves_at_once_whatever_it_asks_for() -> None:
    alone = cluster(1, 1, transport="gloo")
    for record in (reduce(10**9), gather(10**9), push(10**9, 10**9), to_all(10**9)):
        finishes = execute(record, np.array([42], dtype=np.int64), alone, server_time=10**12)
        assert finishes.tolist() == [42]


def test_all_reduce_of_unequal_vectors_is_our_bug() -> None:
    record = CollectiveRecord(kind="all_reduce", sent=(4, 8))
    with pytest.raises(InternalError, match="unequal size"):
        execute(record, zeros(4), cluster(2))


class Hasty:
    nbytes = 0

    def __call__(self, starts: Times, key: int = 0) -> Times:
        return starts


def test_a_rank_that_leaves_before_the_last_has_entered_is_our_bug(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hasty = Algorithm(
        title="hasty",
        prepare=lambda call: Hasty(),
        traffic=ALGORITHMS["all_reduce", "ring"].traffic,
    )
    monkeypatch.setitem(ALGORITHMS, ("all_reduce", "ring"), hasty)
    with pytest.raises(InternalError, match="hasty: a rank leaves at 0 ps"):
        execute(reduce(4), np.array([0, 1], dtype=np.int64), cluster(1))


def test_entry_times_must_be_those_of_all_workers() -> None:
    with pytest.raises(InternalError, match="3"):
        execute(reduce(4), zeros(3), cluster(2))


def test_every_line_of_the_table_can_be_chosen() -> None:
    reached = {
        algorithm_of(record, cluster(2, all_reduce=r, all_gather=g)).title
        for record in (reduce(4), gather(4), push(4, 4), to_all(4), merge(4, 4))
        for r in get_args(AllReduceAlgorithm)
        for g in get_args(AllGatherAlgorithm)
    }
    assert reached == {algorithm.title for algorithm in ALGORITHMS.values()}


Transport = Literal["textbook", "gloo"]


@pytest.mark.parametrize("shape", [(2, 1), (7, 1), (3, 2), (1, 5), (2, 8)])
@pytest.mark.parametrize("transport", ["textbook", "gloo"])
def test_every_algorithm_carries_any_number_of_workers(
    shape: tuple[int, int], transport: Transport
) -> None:
    nodes, devices = shape
    starts = np.arange(nodes * devices, dtype=np.int64) * 10**6
    for name in get_args(AllReduceAlgorithm):
        on = cluster(nodes, devices, all_reduce=name, transport=transport)
        assert execute(reduce(4004), starts, on).min() >= starts.max()
    for name in get_args(AllGatherAlgorithm):
        on = cluster(nodes, devices, all_gather=name, transport=transport)
        assert execute(gather(0, 10, 3000), starts, on).min() >= starts.max()


@given(
    kind=st.sampled_from(
        [reduce(4004), gather(10, 3000), push(700, 301), to_all(600), merge(700, 301)]
    ),
    transport=st.sampled_from(["textbook", "gloo"]),
    wide=st.booleans(),
    starts=st.lists(st.integers(0, 10**6), min_size=4, max_size=4),
    shift=st.integers(0, 10**12),
)
def test_what_is_remembered_is_what_is_calculated(
    kind: CollectiveRecord, transport: Transport, wide: bool, starts: list[int], shift: int
) -> None:
    chosen = cluster(
        2,
        transport=transport,
        all_reduce="hierarchical" if wide else "ring",
        all_gather="pipelined_ring" if wide else "ring",
    )
    memo = CollectiveMemo(chosen)
    times = np.array(starts, dtype=np.int64)
    expected = execute(kind, times, chosen, 13)
    assert memo(kind, times, 13).tolist() == expected.tolist()
    assert memo(kind, times + shift, 13).tolist() == (expected + shift).tolist()
    later = execute(kind, times + shift, chosen, 13)
    assert later.tolist() == (expected + shift).tolist()
