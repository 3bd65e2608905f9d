"""Collectives by way of their requests: times, and the algorithm that each transport chooses."""

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
from gcsim.simulator.cluster import AllGatherAlgorithm, AllReduceAlgorithm, Cluster, TransportName
from gcsim.simulator.collectives.algorithms import ALGORITHMS, Algorithm
from gcsim.simulator.collectives.dispatch import (
    CollectiveMemo,
    algorithm_name,
    algorithm_of,
    execute,
)
from gcsim.simulator.collectives.hierarchical import HierarchicalAllReduce
from gcsim.simulator.collectives.rings.allgather import ring_allgather
from gcsim.simulator.collectives.rings.allreduce import ring_allreduce
from gcsim.simulator.collectives.rings.gloo_allgather import gloo_ring_allgather
from gcsim.simulator.collectives.rings.gloo_allreduce import gloo_ring_allreduce
from gcsim.simulator.collectives.rings.pipelined_allgatherv import PreparedPipeline
from gcsim.simulator.collectives.servers.parameter_server import PushPull
from gcsim.simulator.collectives.staging import copy_times
from tests.simulator import world
from tests.simulator.world import BUS, NETWORK, gather, reduce, zeros


def cluster(nodes: int, devices: int = 2, **chosen: Any) -> Cluster:
    return world.cluster(nodes, devices, **{"servers": 1, **chosen})


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
    expected = PushPull(
        pushed=[4000] * 8, pulled=1000, cluster=cluster(4, servers=3), server_time=77
    )(zeros(8))
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


def test_equal_clusters_share_a_memo_whatever_their_devices() -> None:
    one, half = cluster(2), NETWORK.exactly(bandwidth=NETWORK.bandwidth / 2)
    memo = CollectiveMemo.of(one)
    other = replace(cluster(2), device=replace(one.device, name="another"))
    assert CollectiveMemo.of(other) is memo
    assert CollectiveMemo.of(replace(one, nics={})) is memo
    for different in (
        replace(one, network=half), replace(one, nics={1: half}), replace(one, nodes=4),
        replace(one, shared_bus=not one.shared_bus),
    ):  # fmt: skip
        assert CollectiveMemo.of(different) is not memo


def choosing(nodes: int, transport: str, devices: int = 1, **collectives: Any) -> Cluster:
    chosen = {"all_reduce": "auto", "all_gather": "auto", **collectives}
    return world.cluster(nodes, devices, transport=transport, **chosen)


def title(record: CollectiveRecord, on: Cluster) -> str:
    return algorithm_of(record, on).title


@pytest.mark.parametrize(
    ("ranks", "nbytes", "element", "expected"),
    [
        (64, 2048, 4, "recursive doubling all-reduce"),
        (64, 2052, 4, "recursive halving-doubling all-reduce"),
        (64, 25 << 20, 4, "recursive halving-doubling all-reduce"),
        # fewer elements than the 1024 ranks of the core
        (1025, 4092, 4, "recursive doubling all-reduce"),
        (1025, 4096, 4, "recursive halving-doubling all-reduce"),
        (1025, 4096, 8, "recursive doubling all-reduce"),
    ],
)
def test_mpich_reduces(ranks: int, nbytes: int, element: int, expected: str) -> None:
    assert title(reduce(nbytes, element), choosing(ranks, "mpich")) == expected


@pytest.mark.parametrize(
    ("ranks", "sent", "expected"),
    [
        (64, (8191,), "recursive doubling all-gather"),
        (64, (8192,), "ring all-gather"),
        (64, (8192, 8193), "pipelined ring all-gatherv in synchronous rounds"),
        (64, (8191, 8190), "recursive doubling all-gather"),
        (60, (1365,), "Bruck's all-gather"),
        (60, (1366,), "ring all-gather"),
        (60, (1366, 1364), "Bruck's all-gather"),
        (60, (1366, 1367), "pipelined ring all-gatherv in synchronous rounds"),
    ],
)
def test_mpich_gathers(ranks: int, sent: tuple[int, ...], expected: str) -> None:
    assert title(gather(*sent), choosing(ranks, "mpich")) == expected


def test_parts_of_one_whole_are_as_large_as_they_are_on_this_cluster() -> None:
    whole = CollectiveRecord(kind="all_gather", sent=(200_000,) * 2, part=True)
    # 400 kB in all on any number of workers
    assert title(whole, choosing(64, "mpich")) == "recursive doubling all-gather"
    assert title(replace(whole, part=False), choosing(64, "mpich")) == "ring all-gather"


def test_gloo_and_the_textbook_have_rings() -> None:
    for nbytes in (4, 10**8):
        assert title(reduce(nbytes), choosing(8, "gloo")) == "Gloo ring all-reduce"
        assert title(gather(nbytes), choosing(8, "gloo")) == "Gloo ring all-gather"
        assert title(reduce(nbytes), choosing(8, "textbook")) == "ring all-reduce"
        assert title(gather(nbytes), choosing(8, "textbook")) == "ring all-gather"


def test_nccl_asks_its_tuner() -> None:
    on = choosing(64, "nccl")
    assert title(reduce(64), on) == "NCCL double tree all-reduce, LL"
    assert title(reduce(25 << 20), on) == "NCCL ring all-reduce, Simple"
    assert title(gather(64), on) == "NCCL ring all-gather, LL"
    assert title(gather(1 << 20), on) == "NCCL ring all-gather, Simple"
    # the size of an all-gather is that of all blocks together
    assert algorithm_name("all_gather", (1 << 14,) * 64, 1, on) == "nccl_ring_ll128"


def test_nccl_keeps_to_the_ring_where_a_slow_network_makes_the_tree_faster() -> None:
    starts = np.zeros(8, dtype=np.int64)
    on = choosing(4, "nccl", 2)
    tree = choosing(4, "nccl", 2, all_reduce="nccl_tree_ll")
    assert title(reduce(4004), on) == "NCCL ring all-reduce, LL"
    assert execute(reduce(4004), starts, tree).max() < execute(reduce(4004), starts, on).min()


def test_what_the_scenario_names_wins() -> None:
    for transport in get_args(TransportName):
        on = choosing(8, transport, all_reduce="double_tree", all_gather="bruck")
        assert title(reduce(4), on) == "double binary tree all-reduce"
        assert title(gather(4), on) == "Bruck's all-gather"
    on = choosing(8, "textbook", all_reduce="nccl", all_gather="gloo_ring")
    assert title(reduce(64), on) == "NCCL double tree all-reduce, LL"
    assert title(gather(4), on) == "Gloo ring all-gather"


def test_what_was_chosen_is_carried_out() -> None:
    starts = np.arange(8, dtype=np.int64) * 10**7
    hops = [BUS, NETWORK] * 4
    # Gloo's all-reduce sends to the rank before, and copies to the host and back
    on_host = starts + copy_times([4004] * 8, BUS)
    ring = gloo_ring_allreduce(4004, hops[-1:] + hops[:-1], element=4)(on_host)
    expected = ring + copy_times([4004] * 8, BUS)
    finishes = execute(reduce(4004), starts, choosing(4, "gloo", 2))
    assert finishes.tolist() == expected.tolist()

    on_host = starts + copy_times([1000, 3000] * 4, BUS)
    ring = gloo_ring_allgather([1000, 3000] * 4, hops)(on_host)
    expected = ring + copy_times([16000] * 8, BUS)
    finishes = execute(gather(1000, 3000), starts, choosing(4, "gloo", 2))
    assert finishes.tolist() == expected.tolist()

    # MPICH and NCCL take device memory
    named = choosing(4, "mpich", 2, all_reduce="halving_doubling")
    finishes = execute(reduce(4004), starts, choosing(4, "mpich", 2))
    assert finishes.tolist() == execute(reduce(4004), starts, named).tolist()
    named = choosing(4, "nccl", 2, all_reduce="nccl_ring_ll")
    finishes = execute(reduce(4004), starts, choosing(4, "nccl", 2))
    assert finishes.tolist() == execute(reduce(4004), starts, named).tolist()


@pytest.mark.parametrize("late", [0, 49_999_999, 50_000_000, 10**9])
@pytest.mark.parametrize("first", [0, 1])
def test_two_ranks_of_gloo_never_gather_at_one_instant(late: int, first: int) -> None:
    # two threads on two machines are further apart than the model's ties
    starts = np.array([late, 0] if first else [0, late], dtype=np.int64)
    on = choosing(2, "gloo", all_gather="gloo_ring")
    plain = replace(on, collectives=replace(on.collectives, transport="textbook"))
    finishes = execute(gather(1_000_000), starts, plain)
    apart = max(late, 50_000_000)
    assert finishes.max() == apart + 3 * 400_000_000 + 2 * 50_000_000


def test_a_transport_of_ones_own_chooses_nothing() -> None:
    on = choosing(8, "custom")
    for record in (reduce(4), gather(4)):
        with pytest.raises(InternalError, match="would choose"):
            title(record, on)


@pytest.mark.parametrize("staged", [None, False, True])
@pytest.mark.parametrize("transport", get_args(TransportName))
def test_who_copies_to_the_host(transport: str, staged: bool | None) -> None:
    starts, record = np.zeros(8, dtype=np.int64), reduce(4000)
    on = choosing(4, transport, 2, all_reduce="ring", host_staging=staged)
    plain = choosing(4, "textbook", 2, all_reduce="ring")
    extra = set((execute(record, starts, on) - execute(record, starts, plain)).tolist())
    copies = transport in {"gloo", "mpich"} if staged is None else staged
    # 10 us and 100 ps a byte there, and back
    assert extra == ({2 * (10_000_000 + 400_000)} if copies else {0})
    # the devices of a node copy at the same time
    if copies:
        bus = replace(on, shared_bus=True)
        shared = set((execute(record, starts, bus) - execute(record, starts, plain)).tolist())
        assert shared == {2 * (10_000_000 + 800_000)}


@pytest.mark.parametrize("transport", sorted({*get_args(TransportName)} - {"custom"}))
@pytest.mark.parametrize("shape", [(2, 1), (7, 1), (3, 2), (1, 5), (2, 8)])
def test_every_transport_carries_any_number_of_workers(
    transport: str, shape: tuple[int, int]
) -> None:
    nodes, devices = shape
    on = choosing(nodes, transport, devices)
    starts = np.arange(nodes * devices, dtype=np.int64) * 10**6
    for record in (reduce(4), reduce(4004), reduce(10**7), gather(0, 10, 3000), gather(10**6)):
        assert execute(record, starts, on).min() >= starts.max()
        assert title(record, on)
