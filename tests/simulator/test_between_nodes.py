"""Compression between nodes or racks alone, against their own sums, their first ranks' exchange and
the messages that hand out its result, each worked out by itself."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gcsim.compressors.bucket import BucketLayout, TensorSlice
from gcsim.compressors.kernels import KernelCost
from gcsim.compressors.lockstep import CollectiveRecord, Scope
from gcsim.simulator.as_trained import as_trained
from gcsim.simulator.cluster import Racks
from gcsim.simulator.collectives.dispatch import execute, traffic_of
from gcsim.simulator.plans import Planner
from gcsim.simulator.push_pull import as_collectives
from gcsim.simulator.training import Training
from gcsim.traces.profile import Compute, Exchange, TrafficProfile
from tests.scenarios.files import check_mistake, load, warnings
from tests.simulator.one_bucket import COMPUTE
from tests.simulator.traffic import traffic
from tests.simulator.world import BUS, NETWORK, SLOW, cluster, times

NODES, RACKS = Training(between="nodes"), Training(between="racks")
BUCKET = BucketLayout(index=0, slices=(TensorSlice(index=0, name="w", shape=(1000,), offset=0),))
STARTS = [5_000, 0, 70_000, 1_000, 30_000, 900]
SCENARIO = """
model: lenet
batch_size: 8
gradients: {source: synthetic, iterations: 1}
cluster: {nodes: 2, devices_per_node: 2, device: v100, network: 1gbe}
training: {between: nodes}
compressors: [none, {kind: topk, ratio: 0.01}]
"""


def method(record: CollectiveRecord, kind: str = "topk") -> TrafficProfile:
    encode = KernelCost(kind="streaming", launches=3, elements=1000, nbytes=99_000)
    decode = KernelCost(kind="streaming", launches=1, elements=50, nbytes=400)
    computes = (
        Compute(stage="encode", fixed=(encode,)),
        Compute(stage="decode", fixed=(), per_payload=(decode,)),
    )
    exchange = Exchange(computes=computes, collectives=(record,))
    return traffic(exchange, compressor=kind, buckets=(BUCKET,))


skew = st.integers(0, 10**9)
GATHER = CollectiveRecord(kind="all_gather", sent=(300, 500))


def test_a_node_sums_then_its_first_rank_exchanges_and_hands_out_what_it_received() -> None:
    on = cluster(3, 2)
    summed, sent = as_trained(method(GATHER), NODES, on).phases[0].steps[0].exchanges[0].collectives
    assert (summed.kind, summed.sent, summed.scope) == ("all_reduce", (4000, 4000), "node")
    starts = times(STARTS)
    alone = replace(summed, scope="all")
    sums = [execute(alone, starts[2 * n : 2 * n + 2], cluster(1, 2)) for n in range(3)]
    last = max(STARTS)  # for which nodes that are early wait
    assert execute(summed, starts, on).tolist() == np.maximum(np.concatenate(sums), last).tolist()
    between = execute(replace(sent, scope="all"), starts[::2], cluster(3, 1)).tolist()
    copy = BUS.serialization(300 + 500 + 300) + BUS.latency_for(1100)
    expected = [max(last, between[rank // 2] + copy) for rank in range(6)]
    assert execute(sent, starts, on).tolist() == expected


def test_one_device_a_node_is_its_node() -> None:
    plain = method(GATHER)
    assert as_trained(plain, NODES, cluster(4)) is plain
    found = as_trained(plain, NODES, cluster(2, 2))
    assert found.wire_bytes_per_worker == plain.wire_bytes_per_worker == 400


def test_payloads_are_the_nodes_and_only_first_ranks_send_them() -> None:
    on = cluster(3, 2)
    found = as_trained(method(GATHER), NODES, on)
    step = found.phases[0].steps[0]
    (work,) = Planner(on, COMPUTE, NODES).plan(step).buckets
    (plain,) = (
        Planner(cluster(3), COMPUTE, Training()).plan(method(GATHER).phases[0].steps[0]).buckets
    )
    assert work.after[-1].duration == plain.after[-1].duration
    sent = traffic_of(step.exchanges[0].collectives[1], on)
    assert sent.ends[1::2].sum() == sent.nbytes[1::2].sum() == 0 < sent.ends[0::2].min()


def test_dense_training_and_what_replaces_servers_keep_to_their_ends() -> None:
    dense = method(replace(GATHER, kind="all_reduce", sent=(4000, 4000)), "none")
    assert as_trained(dense, NODES, cluster(3, 2)) is dense
    push = CollectiveRecord(kind="push_pull", sent=(300, 300), pulled=100, variable=True)
    on = cluster(3, 2)
    carried = as_collectives(as_trained(method(push), NODES, on), on)
    (exchange,) = carried.phases[0].steps[0].exchanges
    assert [one.scope for one in exchange.collectives] == ["node", "nodes", "nodes"]


@pytest.mark.parametrize(("transport", "levels", "hops"), [("textbook", 1, 1), ("gloo", 2, 0)])
def test_a_rack_sums_then_its_first_rank_exchanges_and_broadcasts(
    transport: str, levels: int, hops: int
) -> None:
    """In a rack of three nodes, two levels of a tree, or a message and one more latency."""
    more: dict[str, Any] = {"transport": transport, "host_staging": False}
    on = cluster(6, 2, racks=Racks(nodes=3, uplink=SLOW), **more)
    found = as_trained(method(GATHER), RACKS, on)
    summed, sent = found.phases[0].steps[0].exchanges[0].collectives
    assert (summed.kind, summed.sent, summed.scope) == ("all_reduce", (4000, 4000), "rack")
    assert found.wire_bytes_per_worker == method(GATHER).wire_bytes_per_worker
    starts = times([*STARTS, *(3 * one for one in STARTS)])
    alone = replace(summed, scope="all")
    sums = [execute(alone, starts[6 * n : 6 * n + 6], cluster(3, 2, **more)) for n in range(2)]
    last = max(starts)
    assert execute(summed, starts, on).tolist() == np.maximum(np.concatenate(sums), last).tolist()
    firsts = cluster(2, 1, racks=Racks(nodes=1, uplink=SLOW), **more)
    between = execute(replace(sent, scope="all"), starts[::6], firsts)
    message = NETWORK.serialization(800) + NETWORK.latency_for(800)
    handed = levels * message + hops * NETWORK.latency_for(800)
    handed += BUS.serialization(800) + BUS.latency_for(800)
    expected = [max(last, between[rank // 6] + handed) for rank in range(12)]
    assert execute(sent, starts, on).tolist() == expected
    assert traffic_of(sent, on).ends.nonzero()[0].tolist() == [0, 6]


@given(st.sampled_from(["textbook", "gloo", "nccl"]), st.lists(skew, min_size=6, max_size=6))
def test_racks_of_one_node_are_nodes(transport: str, starts: list[int]) -> None:
    on = cluster(3, 2, racks=Racks(nodes=1, uplink=NETWORK), transport=transport)
    pairs: tuple[tuple[Scope, Scope], ...] = (("node", "rack"), ("nodes", "racks"))
    for pair in pairs:
        found = [execute(replace(GATHER, scope=one), times(starts), on).tolist() for one in pair]
        assert found[0] == found[1]


def test_a_payload_comes_from_each_rack() -> None:
    on = cluster(6, 2, racks=Racks(nodes=3, uplink=SLOW))
    step = as_trained(method(GATHER), RACKS, on).phases[0].steps[0]
    (work,) = Planner(on, COMPUTE, RACKS).plan(step).buckets
    alone = Planner(cluster(2), COMPUTE, Training())
    (plain,) = alone.plan(method(GATHER).phases[0].steps[0]).buckets
    assert work.after[-1].duration == plain.after[-1].duration


def test_a_scenario_between_racks(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    racked = SCENARIO.replace("nodes: 2", "nodes: 6").replace("between: nodes", "between: racks")
    check_mistake(
        tmp_path,
        racked,
        "a.yaml:6:21: error: training.between = 'racks': the cluster has none; "
        "write cluster.racks: {nodes: 4, uplink: 10gbe}, or between: nodes",
    )
    racked = racked.replace("device: v100", "device: v100, racks: {nodes: 2, uplink: 100mbps}")
    assert load(tmp_path, racked).training.between == "racks"
    assert not warnings(tmp_path, caplog)
    check_mistake(
        tmp_path,
        racked.replace("nodes: 6", "nodes: 5"),
        "a.yaml:6:21: error: training.between = 'racks': 5 nodes do not fill racks of 2; "
        "make cluster.nodes a multiple of cluster.racks.nodes",
    )
    check_mistake(
        tmp_path,
        racked.replace("device: v100", "device: v100, nics: {0: 10gbe}"),
        "a.yaml:6:21: error: training.between = 'racks' with cluster.nics (different nodes): "
        "not simulated together; leave one of the two out",
    )


def test_a_scenario_between_nodes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert load(tmp_path, SCENARIO).training.between == "nodes"
    assert not warnings(tmp_path, caplog)
    load(tmp_path, SCENARIO, "cluster.devices_per_node=1")
    assert "training.between has no effect: a node has one device" in warnings(tmp_path, caplog)[0]
    served = SCENARIO.replace("network: 1gbe", "network: 1gbe, collectives: {servers: 2}")
    check_mistake(
        tmp_path,
        served,
        "a.yaml:6:21: error: training.between = 'nodes' with cluster.collectives.servers "
        "(parameter servers): not simulated together; leave one of the two out",
    )
