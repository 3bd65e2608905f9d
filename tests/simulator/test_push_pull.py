"""A push-pull without parameter servers, against its parts put together by hand.

The expected numbers are those of the collectives themselves (each has an oracle of its own) and of
kernels priced by hand; the composition is written out here, job by job.
"""

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gcsim.compressors.bucket import BucketLayout, TensorSlice
from gcsim.compressors.kernels import KernelCost
from gcsim.compressors.lockstep import CollectiveRecord
from gcsim.errors import InternalError
from gcsim.simulator.cluster import Cluster, Collectives
from gcsim.simulator.collectives.dispatch import CollectiveMemo, execute
from gcsim.simulator.devices.training_time import ComputeTimes
from gcsim.simulator.plans import Planner
from gcsim.simulator.predict import predict, schedule_of_period
from gcsim.simulator.push_pull import as_collectives, by_servers, way, ways
from gcsim.simulator.steps.events.step import simulate
from gcsim.simulator.training import Training
from gcsim.traces.profile import Compute, Exchange, Layer, TrafficProfile
from tests.simulator.traffic import TOY, traffic
from tests.simulator.world import NETWORK, cluster

US = 10**6
COMPUTE = ComputeTimes(forward=0, backward=10 * US, parts=(10 * US,), provenance="test")
TRANSPORTS = ("textbook", "gloo", "nccl", "mpich")


def cost(launches: int, nbytes: int) -> tuple[KernelCost, ...]:
    return (KernelCost(kind="streaming", launches=launches, elements=1, nbytes=nbytes),)


ENCODE = Compute(stage="encode", fixed=cost(1, 2_000_000))  # 3 us
SERVE = Compute(stage="server", fixed=cost(2, 6_000_000), per_payload=cost(1, 4_000_000))
DECODE = Compute(stage="decode", fixed=cost(1, 1_000_000))  # 2 us


def push(*sent: int, pulled: int, **more: Any) -> CollectiveRecord:
    return CollectiveRecord(kind="push_pull", sent=sent, pulled=pulled, **more)


def profile(record: CollectiveRecord, server: Compute | None = SERVE) -> TrafficProfile:
    exchange = Exchange(computes=(ENCODE, DECODE), collectives=(record,), servers=(server,))
    piece = TensorSlice(index=0, name="w", shape=(1000,), offset=0)
    layer = Layer(name="w", parameters=(0,), forward_flops=1)
    return traffic(
        exchange,
        model=replace(TOY, layers=(layer,)),
        buckets=(BucketLayout(index=0, slices=(piece,)),),
    )


def cycled(sizes: tuple[int, ...], count: int) -> tuple[int, ...]:
    return tuple(sizes[rank % len(sizes)] for rank in range(count))


def by_hand(record: CollectiveRecord, where: Cluster) -> int:
    """Picoseconds of the first iteration: all ranks begin together; the slowest counts."""
    p = where.workers
    serve_whole = US * (2 + p) + 6_000_000 + p * 4_000_000  # launches, then 1 ps a byte
    serve_stripe = US * (2 + p) + round(Fraction(6_000_000 + p * 4_000_000, p))
    sent = cycled(record.sent, p)
    lengths = CollectiveRecord(kind="all_gather", sent=(8,) * p)
    now = np.full(p, 10 * US + 3 * US, dtype=np.int64)
    if way(record, where) == "all_gather":
        if record.variable:
            now = execute(lengths, now, where)
        now = execute(CollectiveRecord(kind="all_gather", sent=sent), now, where) + serve_whole
    else:
        now = execute(
            CollectiveRecord(kind="all_to_all", sent=sent, variable=record.variable), now, where
        )
        now = now + serve_stripe
        if record.variable:
            now = execute(lengths, now, where)
        # the recorded stripes are rounded up, and once more for another number of workers
        recorded = -(-record.pulled // len(record.sent))
        stripe = -(-recorded * len(record.sent) // p)
        now = execute(CollectiveRecord(kind="all_gather", sent=(stripe,) * p), now, where)
    return int(now.max()) + 2 * US


@given(
    nodes=st.integers(2, 6),
    devices=st.integers(1, 2),
    sent=st.lists(st.integers(1, 10**6), min_size=1, max_size=3),
    pulled=st.integers(0, 10**6),
    transport=st.sampled_from(TRANSPORTS),
    without=st.sampled_from(["alltoall_allgather", "all_gather"]),
    variable=st.booleans(),
)
def test_the_parts_one_after_the_other(
    nodes: int,
    devices: int,
    sent: list[int],
    pulled: int,
    transport: Any,
    without: Any,
    variable: bool,
) -> None:
    record = push(*sent, pulled=pulled, without_server=without, variable=variable)
    where = cluster(nodes, devices, transport=transport)
    planner = Planner(where, COMPUTE, Training())
    (plan,) = schedule_of_period(as_collectives(profile(record), where), planner).plans
    found = simulate(plan, ranks=where.workers, execute=CollectiveMemo(where))
    assert int(found.finish.max()) == by_hand(record, where)


def test_stripes_share_the_bytes_of_serving_and_whole_payloads_do_not() -> None:
    """4 workers: launches 6 us; 6 + 4 x 4 MB at 1 ps a byte are 22 us, a quarter of it 5.5 us."""
    striped = push(4000, pulled=4000, without_server="alltoall_allgather")
    where = cluster(4)
    one = predict(profile(striped), where, COMPUTE)
    assert one.encode == pytest.approx(3e-6 + 6e-6 + 5.5e-6, rel=1e-12)
    assert one.decode == pytest.approx(2e-6, rel=1e-12)
    whole = predict(profile(push(4000, pulled=4000)), where, COMPUTE)
    assert whole.encode == pytest.approx(3e-6, rel=1e-12)
    assert whole.decode == pytest.approx(2e-6 + 6e-6 + 22e-6, rel=1e-12)
    served = predict(profile(striped), cluster(4, servers=4), COMPUTE)
    assert (served.encode, served.decode) == pytest.approx((3e-6, 2e-6), rel=1e-12)


@given(
    transport=st.sampled_from(TRANSPORTS),
    push_pull=st.sampled_from(["auto", "alltoall_allgather", "all_gather", "parameter_server"]),
    servers=st.sampled_from([None, 1, 3, "per_node"]),
    without=st.sampled_from(["alltoall_allgather", "all_gather"]),
)
def test_servers_carry_it_where_they_are_named_and_nowhere_else(
    transport: Any, push_pull: Any, servers: Any, without: Any
) -> None:
    record = push(4000, pulled=4000, without_server=without)
    where = cluster(4, transport=transport, push_pull=push_pull, servers=servers)
    found = predict(profile(record), where, COMPUTE, spans=False)
    named = servers is not None or push_pull == "parameter_server"
    expected = named and push_pull in {"auto", "parameter_server"}
    assert any("parameter server" in title for title in found.algorithms) == expected
    assert (ways(profile(record), where) == ("parameter_server",)) == expected


def test_what_cannot_be_cut_into_stripes_is_not() -> None:
    where = cluster(4, push_pull="alltoall_allgather")
    assert way(push(1, pulled=1), where) == "all_gather"
    assert way(push(1, pulled=1, without_server="alltoall_allgather"), where) != "all_gather"
    asked = replace(where, collectives=Collectives(push_pull="all_gather"))
    assert way(push(1, pulled=1, without_server="alltoall_allgather"), asked) == "all_gather"


def test_servers_that_are_named_without_a_number_are_one_a_node() -> None:
    named: list[dict[str, Any]] = [
        {"servers": "per_node"},
        {"server_hosts": "dedicated"},
        {"push_pull": "parameter_server"},
        {"all_reduce": "parameter_server"},
        {"all_gather": "parameter_server"},
        {"server_network": NETWORK},
    ]
    for chosen in named:
        assert [cluster(nodes, **chosen).servers for nodes in (1, 5)] == [1, 5], chosen
        assert cluster(5, **{**chosen, "servers": 2}).servers == 2
    assert cluster(5, transport="gloo").servers == 0


def test_a_profile_without_push_pull_stays_the_object_it_is() -> None:
    dense = profile(CollectiveRecord(kind="all_reduce", sent=(4000,), element=4), None)
    assert as_collectives(dense, cluster(4)) is dense
    asked = profile(push(4000, pulled=4000))
    assert as_collectives(asked, cluster(4, servers=2)) is asked
    once = as_collectives(asked, cluster(4))
    assert as_collectives(once, cluster(4)) is once


def test_dense_through_servers_is_the_servers_all_reduce_beside_other_all_reduces() -> None:
    dense = profile(CollectiveRecord(kind="all_reduce", sent=(4_000_000,), element=4), None)
    where = cluster(4, 2, transport="gloo", servers="per_node")
    found = predict(by_servers(dense), where, COMPUTE, spans=False)
    named = replace(where, collectives=replace(where.collectives, all_reduce="parameter_server"))
    assert found == predict(dense, named, COMPUTE, spans=False)
    assert found.algorithms == ("parameter server all-reduce",)
    assert predict(dense, where, COMPUTE).algorithms == ("Gloo ring all-reduce",)


def test_a_push_to_nobody_is_our_bug() -> None:
    with pytest.raises(InternalError, match="no parameter server"):
        execute(push(4, pulled=4), np.zeros(4, dtype=np.int64), cluster(4))
