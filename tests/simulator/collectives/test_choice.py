"""Does each transport choose what its library would, and does the report say what it chose?"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import numpy as np
import pytest

from gcsim.compressors.lockstep import CollectiveRecord
from gcsim.errors import InternalError
from gcsim.simulator.cluster import Cluster, TransportName
from gcsim.simulator.collectives.dispatch import algorithm_name, algorithm_of, execute
from gcsim.simulator.collectives.rings.gloo_allgather import gloo_ring_allgather
from gcsim.simulator.collectives.rings.gloo_allreduce import gloo_ring_allreduce
from gcsim.simulator.collectives.staging import copy_times
from tests.simulator import world
from tests.simulator.world import BUS, NETWORK, gather, reduce


def cluster(nodes: int, transport: str, devices: int = 1, **collectives: Any) -> Cluster:
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
    assert title(reduce(nbytes, element), cluster(ranks, "mpich")) == expected


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
    assert title(gather(*sent), cluster(ranks, "mpich")) == expected


def test_parts_of_one_whole_are_as_large_as_they_are_on_this_cluster() -> None:
    whole = CollectiveRecord(kind="all_gather", sent=(200_000,) * 2, part=True)
    # 400 kB in all on any number of workers
    assert title(whole, cluster(64, "mpich")) == "recursive doubling all-gather"
    assert title(replace(whole, part=False), cluster(64, "mpich")) == "ring all-gather"


def test_gloo_and_the_textbook_have_rings() -> None:
    for nbytes in (4, 10**8):
        assert title(reduce(nbytes), cluster(8, "gloo")) == "Gloo ring all-reduce"
        assert title(gather(nbytes), cluster(8, "gloo")) == "Gloo ring all-gather"
        assert title(reduce(nbytes), cluster(8, "textbook")) == "ring all-reduce"
        assert title(gather(nbytes), cluster(8, "textbook")) == "ring all-gather"


def test_nccl_asks_its_tuner() -> None:
    on = cluster(64, "nccl")
    assert title(reduce(64), on) == "NCCL double tree all-reduce, LL"
    assert title(reduce(25 << 20), on) == "NCCL ring all-reduce, Simple"
    assert title(gather(64), on) == "NCCL ring all-gather, LL"
    assert title(gather(1 << 20), on) == "NCCL ring all-gather, Simple"
    # the size of an all-gather is that of all blocks together
    assert algorithm_name("all_gather", (1 << 14,) * 64, 1, on) == "nccl_ring_ll128"


def test_nccl_keeps_to_the_ring_where_a_slow_network_makes_the_tree_faster() -> None:
    starts = np.zeros(8, dtype=np.int64)
    on = cluster(4, "nccl", 2)
    tree = cluster(4, "nccl", 2, all_reduce="nccl_tree_ll")
    assert title(reduce(4004), on) == "NCCL ring all-reduce, LL"
    assert execute(reduce(4004), starts, tree).max() < execute(reduce(4004), starts, on).min()


def test_what_the_scenario_names_wins() -> None:
    for transport in get_args(TransportName):
        on = cluster(8, transport, all_reduce="double_tree", all_gather="bruck")
        assert title(reduce(4), on) == "double binary tree all-reduce"
        assert title(gather(4), on) == "Bruck's all-gather"
    on = cluster(8, "textbook", all_reduce="nccl", all_gather="gloo_ring")
    assert title(reduce(64), on) == "NCCL double tree all-reduce, LL"
    assert title(gather(4), on) == "Gloo ring all-gather"


def test_what_was_chosen_is_carried_out() -> None:
    starts = np.arange(8, dtype=np.int64) * 10**7
    hops = [BUS, NETWORK] * 4
    # Gloo's all-reduce sends to the rank before, and copies to the host and back
    on_host = starts + copy_times([4004] * 8, BUS)
    ring = gloo_ring_allreduce(4004, hops[-1:] + hops[:-1], element=4)(on_host)
    expected = ring + copy_times([4004] * 8, BUS)
    finishes = execute(reduce(4004), starts, cluster(4, "gloo", 2))
    assert finishes.tolist() == expected.tolist()

    on_host = starts + copy_times([1000, 3000] * 4, BUS)
    ring = gloo_ring_allgather([1000, 3000] * 4, hops)(on_host)
    expected = ring + copy_times([16000] * 8, BUS)
    finishes = execute(gather(1000, 3000), starts, cluster(4, "gloo", 2))
    assert finishes.tolist() == expected.tolist()

    # MPICH and NCCL take device memory
    named = cluster(4, "mpich", 2, all_reduce="halving_doubling")
    finishes = execute(reduce(4004), starts, cluster(4, "mpich", 2))
    assert finishes.tolist() == execute(reduce(4004), starts, named).tolist()
    named = cluster(4, "nccl", 2, all_reduce="nccl_ring_ll")
    finishes = execute(reduce(4004), starts, cluster(4, "nccl", 2))
    assert finishes.tolist() == execute(reduce(4004), starts, named).tolist()


@pytest.mark.parametrize("late", [0, 49_999_999, 50_000_000, 10**9])
@pytest.mark.parametrize("first", [0, 1])
def test_two_ranks_of_gloo_never_gather_at_one_instant(late: int, first: int) -> None:
    # two threads on two machines are further apart than the model's ties
    starts = np.array([late, 0] if first else [0, late], dtype=np.int64)
    on = cluster(2, "gloo", all_gather="gloo_ring")
    plain = replace(on, collectives=replace(on.collectives, transport="textbook"))
    finishes = execute(gather(1_000_000), starts, plain)
    apart = max(late, 50_000_000)
    assert finishes.max() == apart + 3 * 400_000_000 + 2 * 50_000_000


def test_a_transport_of_ones_own_chooses_nothing() -> None:
    on = cluster(8, "custom")
    for record in (reduce(4), gather(4)):
        with pytest.raises(InternalError, match="would choose"):
            title(record, on)


@pytest.mark.parametrize("staged", [None, False, True])
@pytest.mark.parametrize("transport", get_args(TransportName))
def test_who_copies_to_the_host(transport: str, staged: bool | None) -> None:
    starts, record = np.zeros(8, dtype=np.int64), reduce(4000)
    on = cluster(4, transport, 2, all_reduce="ring", host_staging=staged)
    plain = cluster(4, "textbook", 2, all_reduce="ring")
    extra = set((execute(record, starts, on) - execute(record, starts, plain)).tolist())
    copies = (transport == "gloo") if staged is None else staged
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
    on = cluster(nodes, transport, devices)
    starts = np.arange(nodes * devices, dtype=np.int64) * 10**6
    for record in (reduce(4), reduce(4004), reduce(10**7), gather(0, 10, 3000), gather(10**6)):
        assert execute(record, starts, on).min() >= starts.max()
        assert title(record, on)
