"""All-to-all and tree merge: closed forms, short cuts, what a scenario says of them.

Simulations of every message are those of `test_logarithmic_collectives.py`.
"""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from gcsim.compressors.lockstep import CollectiveRecord
from gcsim.simulator.cluster import Cluster
from gcsim.simulator.collectives.dispatch import execute
from gcsim.simulator.collectives.rounds import (
    alltoall_allgather_allreduce,
    direct_exchange,
    pairwise_alltoall,
    tree_merge,
)
from gcsim.simulator.fabric.rounds import Fabric
from gcsim.simulator.network.links import Jitter, Link, Loss, SizeFactor
from gcsim.simulator.network.rate_trace import RateTrace
from tests.simulator.collectives.rounds.test_logarithmic_collectives import ALGORITHMS, Case, check
from tests.simulator.world import BUS, NETWORK, PS, called, cluster, times

LATE = replace(
    NETWORK,
    jitter=(Jitter(distribution="exponential", mean=Fraction(1, 5000)),),
    loss=Loss(rate=Fraction(1, 10**4), model="sampled"),
    overhead=Fraction(1, 10**6),
    factors=(SizeFactor(from_bytes=2000, bandwidth=Fraction(9, 10), latency=Fraction(2)),),
)
CHANGING = replace(
    NETWORK,
    trace=RateTrace(
        times=(Fraction(0), Fraction(1, 10**4), Fraction(2, 10**4)),
        rates=(Fraction(10**9), Fraction(0), Fraction(10**8)),
        duration=Fraction(1, 1000),
        after="repeat",
    ),
)


@pytest.mark.parametrize("p", [2, 5, 8])
def test_what_is_left_of_an_element_goes_to_the_last_rank(p: int) -> None:
    nics = [NETWORK] * p
    case = Case(starts=[0] * p, nics=nics, buses=nics, sizes=[], elements=p, element=4, rest=3)
    check("all-reduce by owners", case)
    # 3 bytes more for each that is sent to rank p - 1, and for all that it sends
    got = ALGORITHMS["all-reduce by owners"].kernel(case)
    assert got.max() > 2 * (p - 1) * (NETWORK.serialization(4) + NETWORK.latency_ps)


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("network", [NETWORK, LATE, CHANGING], ids=lambda link: link.name)
def test_many_ranks_round_by_round_are_the_simulation(
    monkeypatch: pytest.MonkeyPatch, network: Link, devices: int
) -> None:
    monkeypatch.setattr(direct_exchange, "_WORTH_ITS_MEMORY", 0)
    case = Case(
        starts=[rank % 3 * 10**8 for rank in range(32)],
        nics=[network] * (32 // devices),
        buses=[BUS] * (32 // devices),
        sizes=[100_000 + 77 * rank for rank in range(32)],
        key=5,
    )
    check("all-to-all", case)


def cards_of_all_kinds(nodes: int) -> Cluster:
    """Rates and latencies of their own, odd and even picoseconds."""
    nics = {
        node: Link(
            name=f"NIC {node}",
            bandwidth=Fraction(10**9 + 7919 * node**2 % 10**9),
            latency=Fraction(50_000_000 + 37 * node % 11, 10**12),
        )
        for node in range(nodes)
    }
    return replace(cluster(nodes), nics=nics)


@pytest.mark.parametrize("uneven", [False, True])
@pytest.mark.parametrize("p", [9, 150])
def test_messages_that_see_two_cards_see_the_path_between_them(
    monkeypatch: pytest.MonkeyPatch, p: int, uneven: bool
) -> None:
    of = cards_of_all_kinds(p)
    starts = times([(rank * 7919) % 4001 * 10**6 for rank in range(p)])
    sent = [100_003 + 70 * (rank % 3) * uneven for rank in range(p)]

    def both(fabric: Fabric) -> list[list[int]]:
        all_reduced = alltoall_allgather_allreduce.prepare(
            called(100_003, fabric, 25 * PS, element=4)
        )(starts)
        return [
            pairwise_alltoall.prepare(called(sent, fabric))(starts).tolist(),
            all_reduced.tolist(),
        ]

    by_cards = both(Fabric.of(of))
    monkeypatch.setattr(direct_exchange.CompiledExchange, "of", lambda *arguments: None)
    assert by_cards == both(Fabric.of(of))


@pytest.mark.parametrize("network", [NETWORK, replace(LATE, jitter=(), loss=None)], ids=["a", "b"])
@pytest.mark.parametrize("shared_bus", [False, True])
@pytest.mark.parametrize(("nodes", "devices"), [(1, 5), (2, 1), (2, 8), (3, 2), (7, 3), (20, 8)])
def test_nodes_alike_take_as_long_as_round_by_round(
    monkeypatch: pytest.MonkeyPatch, nodes: int, devices: int, shared_bus: bool, network: Link
) -> None:
    """Parts of all sizes and entries at all times, on paths found once per kind of step."""
    ranks = nodes * devices
    starts = times([(rank * 7919) % 4001 * 10**6 for rank in range(ranks)])
    sent = [100_003 + 70 * (rank % 3) for rank in range(ranks)]

    def both() -> list[list[int]]:
        fabric = Fabric(
            nodes=nodes, devices=devices, nics=[network], buses=[BUS], shared_bus=shared_bus
        )
        summed = alltoall_allgather_allreduce.prepare(called(100_003, fabric, 25 * PS, element=4))
        return [
            pairwise_alltoall.prepare(called(sent, fabric))(starts).tolist(),
            summed(starts).tolist(),
        ]

    by_kinds = both()
    monkeypatch.setattr(direct_exchange.CompiledExchange, "of", lambda *arguments: None)
    monkeypatch.setattr(direct_exchange, "_WORTH_ITS_MEMORY", 0)
    assert by_kinds == both()


@pytest.mark.parametrize("p", [2, 3, 64])
def test_equal_parts_take_p_minus_one_messages(p: int) -> None:
    n = 64 * p * 1000  # closed form: (p - 1) (alpha + n/p beta)
    fabric = Fabric.of(cluster(p))
    got = pairwise_alltoall.prepare(called(n, fabric))(times([0] * p))
    each = NETWORK.serialization(n // p) + NETWORK.latency_ps
    assert got.tolist() == [(p - 1) * each] * p
    got = alltoall_allgather_allreduce.prepare(called(n, fabric, 25 * PS, element=4))(
        times([0] * p)
    )
    assert got.tolist() == [(p - 1) * (2 * each + 25 * (n // p))] * p


@pytest.mark.parametrize("p", [2, 4, 64])
def test_the_last_rank_waits_for_log_p_merges_and_as_many_messages_back(p: int) -> None:
    # closed form for powers of two: log2 p (message + merge), then log2 p messages
    rounds = p.bit_length() - 1
    message = NETWORK.serialization(5000) + NETWORK.latency_ps
    got = tree_merge.prepare(called(5000, Fabric.of(cluster(p)), pulled=5000, server_time=777))(
        times([0] * p)
    )
    assert max(got.tolist()) == rounds * (message + 777) + rounds * message


def test_parts_of_a_whole_shrink_with_the_number_of_workers() -> None:
    # recorded with 2 workers of 4000 bytes: 8000 in all; 8 workers have 1000 each
    whole = CollectiveRecord(kind="all_gather", sent=(4000, 4000), part=True)
    apart = CollectiveRecord(kind="all_gather", sent=(1000,) * 8)
    starts = times([0] * 8)
    assert (
        execute(whole, starts, cluster(8)).tolist() == execute(apart, starts, cluster(8)).tolist()
    )


def test_an_all_to_all_of_unequal_parts_exchanges_lengths_first() -> None:
    plain = CollectiveRecord(kind="all_to_all", sent=(8000, 8000))
    variable = CollectiveRecord(kind="all_to_all", sent=(8000, 8000), variable=True)
    starts = times([0] * 4)
    extra = 3 * (NETWORK.serialization(8) + NETWORK.latency_ps)
    both = [execute(record, starts, cluster(4)).tolist() for record in (plain, variable)]
    assert [b - a for a, b in zip(*both, strict=True)] == [extra] * 4


def test_groups_of_sends_reach_their_share_of_the_network() -> None:
    """By hand: 3 parts of 5 MB at half of 1.25 GB/s, 50 us each; inside a node as before."""
    whole = cluster(4)
    half = replace(whole, collectives=replace(whole.collectives, grouped=Fraction(1, 2)))
    record = CollectiveRecord(kind="all_to_all", sent=(20_000_000,) * 4)
    starts = np.zeros(4, dtype=np.int64)
    assert execute(record, starts, half).max() == 3 * (8 * 10**9 + 50 * 10**6)
    reduced = CollectiveRecord(kind="all_reduce", sent=(20_000_000,) * 4, element=4)
    assert (execute(reduced, starts, half) == execute(reduced, starts, whole)).all()
    one_node = replace(half, nodes=1, devices_per_node=4)
    assert (
        execute(record, starts, one_node)
        == execute(record, starts, replace(one_node, collectives=whole.collectives))
    ).all()
