"""Is the hosts' work that of every message, and is it joined to the network's time as a queue does?

Messages are counted by pseudo-code that writes down each of them, or, where that would repeat the
algorithm, by what must be true of any right one; the time of network and processors together is
compared with mean value analysis (Reiser and Lavenberg 1980), which shares no formula with it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gcsim.compressors.lockstep import CollectiveRecord
from gcsim.errors import InputError
from gcsim.simulator.cluster import Cluster
from gcsim.simulator.collectives.algorithms import ALGORITHMS
from gcsim.simulator.collectives.dispatch import CollectiveMemo, execute, traffic_of
from gcsim.simulator.collectives.rings.gloo_allreduce import segments
from gcsim.simulator.host import MANY, Host, Traffic, Work
from gcsim.simulator.steps.events.message_ring import RingPrograms
from tests.simulator import world
from tests.simulator.world import gather, link, times

FREE = Host(cores=1, per_message=Fraction(0))
Message = tuple[int, int, int]
"""Sender, receiver, bytes."""


def cluster(nodes: int, devices: int = 1, **chosen: Any) -> Cluster:
    usual = {"network": link(125 * 10**6, Fraction(50, 10**6)), "servers": 1}
    return world.cluster(nodes, devices, **{**usual, "host_staging": False, **chosen})


def reduce(nbytes: int, ranks: int, element: int = 1) -> CollectiveRecord:
    return CollectiveRecord(kind="all_reduce", sent=(nbytes,) * ranks, element=element)


def split(nbytes: int, parts: int) -> list[int]:
    return [nbytes // parts + (number < nbytes % parts) for number in range(parts)]


def around(blocks: Sequence[Sequence[int]], steps: int) -> Iterator[Message]:
    """Rank r sends the pieces of block r - s (mod p) to rank r + 1 at step s."""
    ranks = len(blocks)
    for step in range(steps):
        for rank in range(ranks):
            for piece in blocks[(rank - step) % ranks]:
                yield rank, (rank + 1) % ranks, piece


def pieces(size: int, most: int) -> list[int]:
    full, rest = divmod(size, most)
    return [most] * full + [rest] * (rest > 0)


def handled(messages: Iterator[Message], ranks: int) -> tuple[list[int], list[int]]:
    ends, nbytes = [0] * ranks, [0] * ranks
    for sender, receiver, size in messages:
        for rank in (sender, receiver):
            ends[rank] += 1
            nbytes[rank] += size
    return ends, nbytes


def same(found: Traffic, messages: Iterator[Message], ranks: int) -> bool:
    return (found.ends.tolist(), found.nbytes.tolist()) == handled(messages, ranks)


SIZES = st.lists(st.integers(0, 200_000), min_size=2, max_size=9)


@given(SIZES, st.integers(1, 3))
def test_rings_handle_every_message(sizes: list[int], devices: int) -> None:
    sizes = sizes * devices
    ranks, nodes = len(sizes), len(sizes) // devices
    of = cluster(nodes, devices)
    found = traffic_of(gather(*sizes), of)
    assert same(found, around([[size] for size in sizes], ranks - 1), ranks)
    assert found.machines.tolist() == [rank // devices for rank in range(ranks)]
    chunks = [[size] for size in split(sizes[0], ranks)]
    found = traffic_of(reduce(sizes[0], ranks), of)
    assert same(found, around(chunks, 2 * (ranks - 1)), ranks)
    block = 32 * 1024
    cut = [pieces(size, block) or [0] for size in sizes]
    found = traffic_of(gather(*sizes), cluster(nodes, devices, all_gather="pipelined_ring"))
    assert same(found, around(cut, ranks - 1), ranks)
    cut = [pieces(size, max(block, min(sizes))) for size in sizes]
    found = traffic_of(gather(*sizes), cluster(nodes, devices, all_gather="pipelined_ring_sync"))
    assert same(found, around(cut, ranks - 1), ranks)


@given(st.integers(2, 9), st.integers(0, 10**8).map(lambda number: number * 4))
def test_gloos_all_reduce_sends_every_segment_that_is_not_empty(ranks: int, nbytes: int) -> None:
    found = traffic_of(reduce(nbytes, ranks, 4), cluster(ranks, all_reduce="gloo_ring"))
    assert found.nbytes.sum() == 2 * 2 * (ranks - 1) * nbytes
    if nbytes:
        _, segment = segments(nbytes, ranks, 4)
        assert found.messages == 2 * (ranks - 1) * -(-nbytes // segment)
    else:
        assert found.messages == 0
    assert found.copied == 0


@given(SIZES)
def test_gloos_all_gather_halves_equal_blocks_and_copies_all_of_them(sizes: list[int]) -> None:
    of = cluster(len(sizes), all_gather="gloo_ring")
    found = traffic_of(gather(*sizes), of)
    if len(set(sizes)) == 1:
        cut = [[size // 2, size - size // 2] for size in sizes]
    else:
        cut = [[size] for size in sizes]
    sent = around(cut, len(sizes) - 1) if any(sizes) else iter(())
    assert same(found, sent, len(sizes))
    assert found.copied == sum(sizes)


@given(st.integers(2, 17), st.integers(0, 10**6))
def test_trees_and_doubling_handle_what_their_sources_say(ranks: int, nbytes: int) -> None:
    """Thakur, Rabenseifner and Gropp 2005, sec. 4; ranks beyond 2^k send two messages more."""

    def of(name: str) -> Traffic:
        return traffic_of(reduce(nbytes, ranks), cluster(ranks, all_reduce=name))

    rounds = ranks.bit_length() - 1
    core = 1 << rounds
    extra = 2 * (ranks - core)
    assert of("binomial_tree").messages == 2 * (ranks - 1)
    assert of("binomial_tree").nbytes.sum() == 2 * 2 * (ranks - 1) * nbytes
    assert of("recursive_doubling").messages == core * rounds + extra
    assert of("recursive_doubling").nbytes.sum() == 2 * nbytes * (core * rounds + extra)
    assert of("halving_doubling").messages == 2 * core * rounds + extra
    assert of("halving_doubling").nbytes.sum() == 2 * nbytes * (2 * (core - 1) + extra)
    assert of("alltoall_allgather").messages == 2 * ranks * (ranks - 1)
    assert of("alltoall_allgather").nbytes.sum() == 2 * 2 * (ranks - 1) * nbytes
    whole = of("double_tree")
    assert whole.messages == 2 * (ranks - 1) * sum(
        max(1, -(-half // 32768)) for half in split(nbytes, 2)
    )
    assert whole.nbytes.sum() == 2 * 2 * (ranks - 1) * nbytes


@given(SIZES)
def test_in_an_all_gather_everybody_receives_what_it_lacks(sizes: list[int]) -> None:
    total, ranks = sum(sizes), len(sizes)
    rounds = (ranks - 1).bit_length()
    bruck = traffic_of(gather(*sizes), cluster(ranks, all_gather="bruck"))
    assert bruck.ends.tolist() == [2 * rounds] * ranks
    assert bruck.nbytes.sum() == 2 * sum(total - size for size in sizes)
    if ranks & (ranks - 1) == 0:
        doubling = traffic_of(gather(*sizes), cluster(ranks, all_gather="recursive_doubling"))
        assert doubling.ends.tolist() == [2 * rounds] * ranks
        assert doubling.nbytes.sum() == bruck.nbytes.sum()


@given(SIZES, st.booleans())
def test_an_all_to_all_handles_a_part_for_everybody(sizes: list[int], variable: bool) -> None:
    ranks = len(sizes)
    record = CollectiveRecord(kind="all_to_all", sent=tuple(sizes), variable=variable)

    def messages() -> Iterator[Message]:
        for rank, size in enumerate(sizes):
            for other, part in enumerate(split(size, ranks)):
                if other != rank:
                    yield rank, other, part
                    if variable:
                        yield rank, other, 8

    assert same(traffic_of(record, cluster(ranks)), messages(), ranks)


@pytest.mark.parametrize("hosts", ["nodes", "dedicated"])
@given(SIZES, st.integers(1, 3), st.integers(0, 1000))
def test_servers_handle_a_stripe_of_everybody_each_way(
    hosts: str, sizes: list[int], servers: int, pulled: int
) -> None:
    record = CollectiveRecord(kind="push_pull", sent=tuple(sizes), pulled=pulled)
    ranks = len(sizes)
    of = cluster(ranks, servers=servers, server_hosts=hosts)

    def messages() -> Iterator[Message]:
        for rank, size in enumerate(sizes):
            for server in range(ranks, ranks + servers):
                yield rank, server, -(-size // servers)
                yield server, rank, -(-pulled // servers)

    found = traffic_of(record, of)
    assert same(found, messages(), ranks + servers)
    at = [server % ranks if hosts == "nodes" else ranks + server for server in range(servers)]
    assert found.machines.tolist() == [*range(ranks), *at]


@given(st.integers(2, 12), st.integers(0, 1000), st.integers(0, 1000))
def test_a_tree_merge_handles_every_payload_and_the_result(
    ranks: int, size: int, result: int
) -> None:
    record = CollectiveRecord(kind="tree_merge", sent=(size,) * ranks, pulled=result)
    found = traffic_of(record, cluster(ranks))
    merged_nothing = [rank for rank in range(1, ranks) if rank % 2 or rank == ranks - 1]
    leaves = len(merged_nothing)
    assert found.messages == 2 * (ranks - 1)
    sent = leaves * size + (ranks - 1 - leaves) * result + (ranks - 1) * result
    assert found.nbytes.sum() == 2 * sent


@given(st.integers(1, 4), st.integers(1, 4), st.integers(0, 1000))
def test_a_hierarchical_all_reduce_handles_the_leaders_ring_and_the_devices(
    nodes: int, devices: int, nbytes: int
) -> None:
    if nodes * devices == 1:
        return

    def messages() -> Iterator[Message]:
        if nodes > 1:
            for a, b, size in around([[size] for size in split(nbytes, nodes)], 2 * (nodes - 1)):
                yield a * devices, b * devices, size
        for node in range(nodes):
            for device in range(1, devices):
                leader = node * devices
                yield leader + device, leader, nbytes
                yield leader, leader + device, nbytes

    of = cluster(nodes, devices, all_reduce="hierarchical")
    assert same(traffic_of(reduce(nbytes, nodes * devices), of), messages(), nodes * devices)


PRICES = st.fractions(0, Fraction(1, 1000), max_denominator=10**7)
HOSTS = st.builds(
    Host,
    cores=st.integers(1, 8),
    per_message=PRICES,
    per_byte=st.fractions(0, Fraction(1, 10**8), max_denominator=10**12),
    per_call=PRICES,
    per_copied_byte=st.fractions(0, Fraction(1, 10**8), max_denominator=10**12),
    in_flight=st.integers(1, 5),
    ranks=st.sampled_from(["node", "all"]),
)


@given(HOSTS, st.lists(st.tuples(*[st.integers(0, 3)] * 3), min_size=1, max_size=8))
def test_work_is_that_of_the_busiest_process_or_machine(
    host: Host, processes: list[tuple[int, int, int]]
) -> None:
    ends, nbytes, machines = (
        np.array(each, dtype=np.int64) for each in zip(*processes, strict=True)
    )
    own = [
        host.per_call + end * host.per_message / 2 + size * host.per_byte / 2
        for end, size, _ in processes
    ]
    places = [0 if host.ranks == "all" else machine for *_, machine in processes]
    by_machine = [
        sum(work for work, place in zip(own, places, strict=True) if place == machine)
        for machine in set(places)
    ]
    busiest = max(places.count(machine) for machine in set(places))
    work = host.work(Traffic(ends=ends, nbytes=nbytes, machines=machines, copied=7))
    assert work.concurrent == round(max(*own, *(each / host.cores for each in by_machine)) * 10**12)
    copying = 7 * host.per_copied_byte * max(Fraction(1), Fraction(busiest, host.cores))
    assert work.after == round(copying * 10**12)


def mean_value_analysis(demands: Sequence[Fraction], customers: int) -> Fraction:
    """Time a customer at full speed, of exponential stations in a cycle."""
    queues, throughput = [Fraction(0) for _ in demands], Fraction(1)
    for present in range(1, customers + 1):
        stays = [demand * (1 + queue) for demand, queue in zip(demands, queues, strict=True)]
        throughput = present / sum(stays, Fraction(0))
        queues = [throughput * stay for stay in stays]
    return 1 / throughput


TIMES = st.integers(0, 10**13)


@given(TIMES, TIMES, st.integers(1, 6))
def test_network_and_processors_are_two_stations(network: int, work: int, flight: int) -> None:
    host = replace(FREE, in_flight=flight)
    found = host.combined_time(network, work)
    if network and work:
        exact = mean_value_analysis([Fraction(network), Fraction(work)], flight)
        assert abs(found - exact) <= Fraction(1, 2)
    assert max(network, work) <= found <= network + work
    assert replace(host, in_flight=flight + 1).combined_time(network, work) <= found
    assert host.combined_time(work, network) == found


@given(TIMES, TIMES, TIMES, st.integers(1, 6))
def test_more_work_takes_longer_but_by_no_more_than_it(
    network: int, work: int, more: int, flight: int
) -> None:
    host = replace(FREE, in_flight=flight)
    before = host.combined_time(network, work)
    assert before <= host.combined_time(network, work + more) <= before + more
    assert before <= host.combined_time(network + more, work) <= before + more


RECORDS = [
    reduce(10**6, 4, 4),
    gather(1000, 10**5, 0, 77),
    CollectiveRecord(kind="push_pull", sent=(10**5,) * 4, pulled=10**4),
    CollectiveRecord(kind="all_to_all", sent=(10**5,) * 4),
    CollectiveRecord(kind="tree_merge", sent=(10**4,) * 4, pulled=10**4),
]
ENTRIES = st.lists(st.integers(0, 10**10), min_size=4, max_size=4)


@pytest.mark.parametrize(("kind", "name"), list(ALGORITHMS))
def test_a_host_that_costs_nothing_changes_nothing_and_one_that_does_changes_all(
    kind: str, name: str
) -> None:
    record = next(record for record in RECORDS if record.kind == kind)
    chosen: dict[str, Any] = {kind: name} if kind in {"all_reduce", "all_gather"} else {}
    serialization = replace(FREE, per_message=Fraction(1, 1000))
    for nodes, devices in ((4, 1), (2, 2)):
        starts = times([3, 10**9, 0, 5])
        alone = execute(record, starts, cluster(nodes, devices, **chosen))
        free = execute(record, starts, cluster(nodes, devices, host=FREE, **chosen))
        assert (alone == free).all()
        slow = execute(record, starts, cluster(nodes, devices, host=serialization, **chosen))
        assert (slow > alone).all()
        assert (
            slow - alone
            <= serialization.work(traffic_of(record, cluster(nodes, devices, **chosen))).concurrent
        ).all()


@given(ENTRIES, ENTRIES, HOSTS, st.sampled_from(RECORDS), st.integers(0, 10**12))
def test_later_entries_never_give_earlier_exits(
    starts: list[int], later: list[int], host: Host, record: CollectiveRecord, shift: int
) -> None:
    memo = CollectiveMemo(cluster(4, host=host))
    before = memo(record, times(starts))
    assert (memo(record, times(starts) + shift) == before + shift).all()
    if record.kind != "all_to_all":
        assert (memo(record, times(starts) + times(later)) >= before).all()


def test_gloos_copies_come_after_the_messages() -> None:
    """Eight ranks on two cores copy 80,000 bytes each: four turns of 80 us."""
    host = replace(FREE, cores=2, ranks="all")
    of = cluster(8, host=host, all_gather="gloo_ring")
    record = gather(*[10_000] * 8)
    before = execute(record, times([0] * 8), of)
    copying = replace(of, host=replace(host, per_copied_byte=Fraction(1, 10**9)))
    assert (execute(record, times([0] * 8), copying) - before == 4 * 80_000_000).all()


def test_collectives_whose_hosts_work_run_one_at_a_time() -> None:
    assert RingPrograms(cluster(4))(RECORDS[0]) is not None
    serialization = replace(FREE, per_message=Fraction(1, 10**6))
    assert RingPrograms(cluster(4, host=serialization))(RECORDS[0]) is None


@given(
    dispatch=st.integers(0, 10**9),
    starts=st.lists(st.integers(0, 10**9), min_size=4, max_size=4),
    record=st.sampled_from(RECORDS),
)
def test_a_dispatch_comes_on_top_of_every_collective_whatever_its_size(
    dispatch: int, starts: list[int], record: CollectiveRecord
) -> None:
    host = Host(dispatch=Fraction(dispatch, 10**12))
    plain = execute(record, times(starts), cluster(4))
    assert (execute(record, times(starts), cluster(4, host=host)) == plain + dispatch).all()


def test_without_a_number_of_cores_each_process_has_one() -> None:
    """Eight ranks on a machine: as on eight cores, and never as on fewer."""
    own, eight, one = (
        Host(cores=cores, per_message=Fraction(1, 10**5), per_copied_byte=Fraction(1, 10**9))
        for cores in (MANY, 8, 1)
    )
    record = gather(*[10_000] * 8)
    left = [
        execute(record, times([0] * 8), cluster(1, 8, host=host, all_gather="gloo_ring")).max()
        for host in (own, eight, one)
    ]
    assert left[0] == left[1] < left[2]


def test_nothing_to_do_is_no_work() -> None:
    assert FREE.work(Traffic.none(4, 2)) == Work()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"cores": 0}, "cores = 0; must be at least 1"),
        ({"per_message": Fraction(-1)}, "per_message = -1; must be at least 0"),
        ({"per_copied_byte": Fraction(-1)}, "per_copied_byte = -1"),
        ({"in_flight": 0}, "in_flight = 0; must be at least 1"),
        ({"dispatch": Fraction(-1)}, "dispatch = -1; must be at least 0"),
        ({"dispatch_range": (Fraction(1), Fraction(2))}, "dispatch lies outside of dispatch_range"),
    ],
)
def test_a_host_that_cannot_be_is_refused(wrong: dict[str, Fraction], message: str) -> None:
    with pytest.raises(InputError, match=message):
        replace(FREE, **wrong)  # type: ignore[arg-type]
