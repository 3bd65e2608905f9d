"""Does the parameter-server kernel agree with a simulation of every single flow?

The kernel works with classes of flows, virtual time and levels; the oracle (`fluid_oracle.py`) with
single flows whose rates rise together. Comparisons are `==`.
"""

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gcsim.errors import InputError
from gcsim.simulator.cluster import Cluster, Racks
from gcsim.simulator.collectives.call import Call
from gcsim.simulator.collectives.servers.parameter_server import (
    PushPull,
    prepare,
    prepare_allgather,
    prepare_allreduce,
)
from gcsim.simulator.network.links import Jitter, Link, Loss, SizeFactor, Uplink
from gcsim.simulator.network.rate_trace import RateTrace
from tests.simulator import world
from tests.simulator.sharing.fluid_oracle import exchange
from tests.simulator.world import BUS, NETWORK, PS, link, times


def cluster(
    nodes: int,
    devices: int = 1,
    servers: int = 1,
    network: Link = NETWORK,
    bus: Link = BUS,
    *,
    dedicated: bool = False,
    **more: Any,
) -> Cluster:
    more |= {"servers": servers, "server_hosts": "dedicated" if dedicated else "nodes"}
    return world.cluster(nodes, devices, network=network, intra_node=bus, **more)


def run(
    where: Cluster, starts: Sequence[int], pushed: Sequence[int], pulled: int, **more: Any
) -> list[int]:
    key = more.pop("key", 0)
    through = PushPull(pushed=pushed, pulled=pulled, cluster=where, **more)
    finishes: list[int] = through(times(starts), key).tolist()
    return finishes


TRACES = [
    RateTrace(
        times=(Fraction(0), 20 * PS, 30 * PS),
        rates=(Fraction(10**12), Fraction(0), Fraction(10**11)),
        duration=50 * PS,
        after="repeat",
    ),
    RateTrace(
        times=(Fraction(0), 13 * PS),
        rates=(Fraction(3 * 10**11), Fraction(10**12)),
        duration=40 * PS,
        after="hold",
    ),
]
LINKS = [
    link(10**12, 3 * PS),
    link(10**12 // 7),
    link(5 * 10**11, 11 * PS, overhead=4 * PS),
    link(
        10**12,
        5 * PS,
        factors=(SizeFactor(from_bytes=9, bandwidth=Fraction(3, 7), latency=Fraction(2)),),
    ),
    link(10**12, 2 * PS, jitter=(Jitter(distribution="exponential", mean=20 * PS),)),
    link(10**12, 1 * PS, loss=Loss(rate=Fraction(1, 10), model="sampled")),
    link(10**12, 1 * PS, loss=Loss(rate=Fraction(1, 1000), model="capped", timeout=200 * PS)),
    link(10**12, 1 * PS, background=Fraction(1, 3)),
    link(10**12, 1 * PS, trace=TRACES[0]),
    link(10**12, 1 * PS, trace=TRACES[1]),
    link(10**12, 2 * PS, up=Uplink(bandwidth=Fraction(10**11), latency=9 * PS)),
    link(10**12, 2 * PS, up=Uplink(bandwidth=Fraction(2 * 10**12), latency=9 * PS, grant=16 * PS)),
    link(
        5 * 10**11,
        2 * PS,
        up=Uplink(bandwidth=Fraction(10**11), latency=PS, trace=TRACES[0], grant=25 * PS / 2),
    ),
    link(10**12, 6 * PS, shared=True),
    link(10**12, 6 * PS, shared=True, trace=TRACES[0]),
]
PLAIN = [at for at in LINKS if not at.random and not at.timed]
SYMMETRIC = [at for at in LINKS if at.up is None and not at.shared]


@st.composite
def clusters(draw: st.DrawFn, links: Sequence[Link] = LINKS) -> Cluster:
    nodes, devices = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    if nodes * devices == 1:
        nodes = 2
    at = st.sampled_from(links)
    plain = st.sampled_from([one for one in links if one in SYMMETRIC])
    nics = draw(st.dictionaries(st.integers(0, nodes - 1), at, max_size=2) | st.just({}))
    uplink = draw(st.none() | plain)
    racks = Racks(nodes=draw(st.integers(1, 3)), uplink=uplink) if uplink is not None else None
    if racks is not None:
        above, several = draw(st.none() | plain), st.integers(1, 3)
        if above is not None:
            racks = replace(racks, pod=draw(st.integers(1, 2)), pod_uplink=above)
        if not any(one.trace is not None for one in (racks.uplink, above) if one is not None):
            racks = replace(racks, uplinks=draw(several), pod_uplinks=draw(several))
    return cluster(
        nodes,
        devices,
        draw(st.integers(1, 4) | st.just(nodes)),
        network=draw(at),
        bus=draw(plain),
        dedicated=draw(st.booleans()),
        server_network=draw(st.none() | at),
        nics=nics,
        racks=racks,
        shared_bus=draw(st.booleans()),
    )


@given(
    where=clusters(),
    pulled=st.integers(0, 40),
    server_time=st.sampled_from([0, 13]),
    key=st.integers(0, 2**64 - 1),
    data=st.data(),
)
def test_any_small_exchange_on_any_topology_is_the_simulation(
    where: Cluster, pulled: int, server_time: int, key: int, data: st.DataObject
) -> None:
    p = where.workers
    clock = st.sampled_from([0, 7]) | st.integers(0, 60)
    starts = data.draw(st.lists(clock, min_size=p, max_size=p) | st.just([0] * p))
    size = st.sampled_from([0, 12]) | st.integers(0, 40)
    pushed = data.draw(st.lists(size, min_size=p, max_size=p) | st.just([24] * p))
    more: dict[str, Any] = {"server_time": server_time, "key": key}
    assert run(where, starts, pushed, pulled, **more) == exchange(
        where, starts, pushed, pulled, **more
    )


@given(
    racks=st.none() | st.sampled_from([Racks(nodes=each, uplink=LINKS[1]) for each in (2, 3)]),
    pod=st.none() | st.sampled_from([1, 2, 3]),
    uplinks=st.integers(1, 2),
    devices=st.integers(1, 2),
    servers=st.sampled_from([1, 2, 6, 7, 12]),
    dedicated=st.booleans(),
    network=st.sampled_from(PLAIN),
    late=st.integers(0, 40),
    nic=st.none() | st.sampled_from(PLAIN),
)
def test_alike_nodes_and_racks_are_calculated_once_and_rightly(
    racks: Racks | None,
    pod: int | None,
    uplinks: int,
    devices: int,
    servers: int,
    dedicated: bool,
    network: Link,
    late: int,
    nic: Link | None,
) -> None:
    if racks is not None and pod is not None:
        racks = replace(racks, pod=pod, pod_uplink=LINKS[7])
    where = cluster(
        7,
        devices,
        servers,
        network,
        LINKS[0],
        dedicated=dedicated,
        racks=racks and replace(racks, uplinks=uplinks),
        nics={2: nic, 4: nic} if nic is not None else {},
    )
    starts = [late * (rank in {1, 3}) for rank in range(7 * devices)]
    pushed = [30] * (7 * devices)
    assert run(where, starts, pushed, 25) == exchange(where, starts, pushed, 25)


@given(
    shape=st.tuples(st.integers(1, 4), st.integers(1, 3), st.integers(1, 3)),
    rates=st.tuples(*[st.integers(10**8, 10**10)] * 4),
    uplinks=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    nbytes=st.integers(1, 10**8),
)
def test_one_server_above_even_pods_waits_for_the_narrowest_cable(
    shape: tuple[int, int, int],
    rates: tuple[int, int, int, int],
    uplinks: tuple[int, int],
    nbytes: int,
) -> None:
    """Equal flows that start together have equal rates: the least of each cable's over the flows on
    it, and of one uplink's. Push and pull take nbytes over that, and all latencies, each."""
    nodes, racks, pods = shape
    nic, up, above, into = (link(rate, PS) for rate in rates)
    on = cluster(
        nodes * racks * pods,
        network=nic,
        dedicated=True,
        server_network=into,
        racks=Racks(
            nodes=nodes,
            uplink=up,
            uplinks=uplinks[0],
            pod=racks,
            pod_uplink=above,
            pod_uplinks=uplinks[1],
        ),
    )
    limits = [(nic, 1, 1), (into, 1, on.nodes)]
    limits += [(up, uplinks[0], nodes), (up, 1, 1), (above, uplinks[1], nodes * racks)]
    least = min(each.bandwidth * count / flows for each, count, flows in [*limits, (above, 1, 1)])
    once = -(-nbytes / (least * PS) // 1) + 3  # the ends' two halves, a rack's and a pod's
    assert run(on, [0] * on.nodes, [nbytes] * on.nodes, nbytes) == [2 * once] * on.nodes


@pytest.mark.parametrize("dedicated", [False, True])
@pytest.mark.parametrize("servers", [1, 5])
def test_pods_of_one_rack_are_racks(dedicated: bool, servers: int) -> None:
    """A cable behind another of the same rate, without a latency of its own, changes nothing."""
    up = link(10**9, 5 * PS)
    racks = Racks(nodes=2, uplink=up)
    pods = replace(racks, pod=1, pod_uplink=replace(up, latency=Fraction(0)))
    starts, pushed = [0, 0, 700, 0, 9, 0], [10**6, 10, 5 * 10**5, 7, 10**6, 3]
    flat, high = (
        run(cluster(6, 1, servers, dedicated=dedicated, racks=one), starts, pushed, 10**6)
        for one in (racks, pods)
    )
    assert flat == high


LATE = {
    "jitter": replace(
        NETWORK,
        jitter=(Jitter(distribution="pareto", mean=Fraction(1, 10**4), shape=Fraction(3, 2)),),
    ),
    "200 ms": replace(NETWORK, loss=Loss(rate=Fraction(1, 10**4), model="sampled")),
}


@pytest.mark.parametrize("network", [NETWORK, *LATE.values()], ids=["plain", *LATE])
@pytest.mark.parametrize(
    ("nodes", "servers"), [pytest.param(64, 1, marks=pytest.mark.long), (32, 1)]
)
def test_64_different_workers_are_the_simulation(nodes: int, servers: int, network: Link) -> None:
    pushed = [64_000 + 997 * ((7 * r) % 64) for r in range(64)]
    starts = [(r * 7_919_003) % 200_000_000 for r in range(64)]
    where = cluster(nodes, 64 // nodes, servers, network)
    assert run(where, starts, pushed, 64_000, key=5) == exchange(
        where, starts, pushed, 64_000, key=5
    )


@pytest.mark.parametrize("network", [NETWORK, LATE["jitter"]], ids=["plain", "jitter"])
@pytest.mark.parametrize("late", [0, 10**9])
def test_a_server_on_each_of_seven_nodes_is_the_simulation(network: Link, late: int) -> None:
    # the last worker's server may answer before that worker has pushed everything
    pushed = [700_000 + 99_991 * ((3 * r) % 7) for r in range(14)]
    starts = [(r * 79_190_003) % 200_000_000 + late * (r == 5) for r in range(14)]
    where = cluster(7, 2, 7, network, server_network=None)
    assert run(where, starts, pushed, 640_001, key=3) == exchange(
        where, starts, pushed, 640_001, key=3
    )


@given(sizes=st.lists(st.integers(1, 50), min_size=2, max_size=40))
def test_incast_that_starts_together_ends_when_the_card_has_carried_all(sizes: list[int]) -> None:
    # One byte takes 1 ns. Node 0 holds the server and a worker that pushes nothing; nothing is
    # pulled. Shares of the NIC are whole picoseconds for multiples of 60 bytes up to 6 workers,
    # else each end may waste one.
    pushed = [0, *(60 * size for size in sizes)]
    where = cluster(len(pushed), 1, 1, link(10**9), link(10**15))
    finishes = run(where, [0] * len(pushed), pushed, 0)
    (last,) = set(finishes)
    assert sum(pushed) * 1000 <= last <= sum(pushed) * 1000 + len(sizes) * (len(sizes) > 6)


@given(
    starts=st.lists(st.integers(0, 10**6), min_size=5, max_size=5),
    later=st.lists(st.integers(0, 10**6), min_size=5, max_size=5),
    pushed=st.lists(st.integers(0, 10**5), min_size=5, max_size=5),
)
def test_one_servers_exchange_shifts_with_its_entries_and_is_monotone_in_them(
    starts: list[int], later: list[int], pushed: list[int]
) -> None:
    where = cluster(5, 1, 1, dedicated=True)
    base = run(where, starts, pushed, 1000)
    assert min(base) >= max(starts)
    assert run(where, [e + 10**9 for e in starts], pushed, 1000) == [t + 10**9 for t in base]
    moved = run(where, [a + b for a, b in zip(starts, later, strict=True)], pushed, 1000)
    # an end at the next whole picosecond leaves less than one picosecond of the NIC unused
    assert all(b >= a - 5 for a, b in zip(base, moved, strict=True))
    # the server's NIC carries all, and the latency comes twice
    assert min(base) >= -(-(sum(pushed) + 5 * 1000) * 800) + 2 * 50_000_000


@pytest.mark.parametrize("servers", [1, 100, 10_000])
def test_ten_thousand_equal_workers_are_bound_by_the_servers_cards(servers: int) -> None:
    # of 10 MB, a NIC of a node with a server carries 9,999 / servers each way, twice
    finishes = run(cluster(10_000, 1, servers), [0] * 10_000, [10**7] * 10_000, 10**7)
    there = 9_999 * 10**7 * 800 // servers + 50_000_000
    if servers == 100:  # NICs of workers without a server carry the rest only at the end
        assert 2 * there <= max(finishes) < 2 * there + 10
    else:
        assert max(finishes) == 2 * there


WIFI = link(12_500_000, Fraction(1, 1000), shared=True)


def test_four_raspberry_pis_on_wifi_are_faster_with_a_server_at_the_access_point() -> None:
    # 25 MiB at 100 Mb/s. Push and pull cross the air once, 2 p n / R; from station to station
    # twice; a ring's 2 (p - 1) rounds carry all n bytes together, twice: 2 (p - 1) 2 n / R
    n, p, rate = 25 * 2**20, 4, 12_500_000
    starts, pushed = [0] * p, [n] * p
    at_access_point = max(run(cluster(p, network=WIFI, dedicated=True), starts, pushed, n))
    on_a_station = max(run(cluster(p, network=WIFI, bus=link(10**12)), starts, pushed, n))
    ring = Fraction(2 * (p - 1) * 2 * n, rate) + 2 * (p - 1) * WIFI.latency
    second = 10**12
    assert at_access_point == (Fraction(2 * p * n, rate) + 2 * WIFI.latency) * second
    assert on_a_station == (Fraction(2 * (p - 1) * 2 * n, rate) + 2 * WIFI.latency) * second
    assert at_access_point < on_a_station < ring * second
    assert round(float(ring), 1) == 25.2


def test_a_flow_alone_is_through_when_its_path_says() -> None:
    trace = RateTrace(
        times=(Fraction(0), Fraction(1, 1000), Fraction(2, 1000)),
        rates=(Fraction(10**9), Fraction(0), Fraction(10**7)),
        duration=Fraction(5, 1000),
        after="repeat",
    )
    slow = link(10**9, Fraction(1, 1000), trace=trace, overhead=Fraction(1, 10**5))
    where = cluster(1, network=slow, bus=link(10**15), dedicated=True)
    finishes = run(where, [123_456_789], [10**7], 10**6)
    there = slow.departure(123_456_789, 10**7) + slow.latency_for(10**7)
    assert finishes == [slow.departure(there, 10**6) + slow.latency_for(10**6)]


def test_an_allreduce_pushes_and_pulls_the_whole_vector() -> None:
    where = cluster(4, 1, 2, LATE["jitter"])
    starts = times([5, 0, 10**7, 3])
    call = Call(sent=(10**6,) * 4, cluster=where, server_time=77)
    finishes = prepare_allreduce(call)(starts, 9).tolist()
    assert finishes == run(where, starts.tolist(), [10**6] * 4, 10**6, key=9, server_time=77)
    pulling = replace(call, sent=(1, 2, 3, 4), pulled=50)
    assert prepare(pulling)(starts, 9).tolist() == run(
        where, starts.tolist(), [1, 2, 3, 4], 50, key=9, server_time=77
    )
    assert prepare_allgather(pulling)(starts, 9).tolist() == run(
        where, starts.tolist(), [1, 2, 3, 4], 1 + 2 + 3 + 4, key=9, server_time=77
    )


@pytest.mark.parametrize("dedicated", [False, True])
def test_what_takes_longer_than_the_clock_has_is_refused(dedicated: bool) -> None:
    for network in (link(Fraction(1, 10**3)), link(Fraction(1, 10**30)), link(1, 10**9)):
        with pytest.raises(InputError, match="more than the 13 days"):
            run(cluster(3, network=network, dedicated=dedicated), [0] * 3, [10**9] * 3, 10**9)
