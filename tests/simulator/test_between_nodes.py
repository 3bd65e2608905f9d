"""Compression between nodes alone, against a node's sum, its first rank's exchange and the copies
that hand out its result, each worked out by itself."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gcsim.compressors.bucket import BucketLayout, TensorSlice
from gcsim.compressors.kernels import KernelCost
from gcsim.compressors.lockstep import CollectiveRecord
from gcsim.simulator.as_trained import as_trained
from gcsim.simulator.collectives.dispatch import execute, traffic_of
from gcsim.simulator.plans import Planner
from gcsim.simulator.push_pull import as_collectives
from gcsim.simulator.training import Training
from gcsim.traces.profile import Compute, Exchange, TrafficProfile
from tests.scenarios.files import check_mistake, load, warnings
from tests.simulator.one_bucket import COMPUTE
from tests.simulator.traffic import traffic
from tests.simulator.world import BUS, cluster, times

NODES = Training(between="nodes")
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
