"""MPI's ranks of one node: copies to the host, messages in its memory, copies back."""

from pathlib import Path

import pytest

from gcsim.compressors.lockstep import CollectiveRecord
from gcsim.simulator.cluster import Cluster
from gcsim.simulator.collectives.dispatch import execute
from gcsim.simulator.collectives.staging import copy_time
from tests.scenarios.files import load
from tests.simulator.world import times

SCENARIO = """
model: lenet
batch_size: 8
cluster:
  nodes: 1
  devices_per_node: 2
  device: v100
  network: 10gbe
  intra_node: {bandwidth: 100 GB/s, latency: 2 us}
  collectives: {transport: mpich, all_reduce: ring}
  host: none
  sums: none
compressors: [none]
"""
BYTES = 64_000_000
RECORD = CollectiveRecord(kind="all_reduce", sent=(BYTES, BYTES), element=4)


def cluster(folder: Path, *changes: str) -> Cluster:
    return load(folder, SCENARIO, *changes).cluster


def test_a_ring_of_two_is_two_messages_in_host_memory_between_two_copies(tmp_path: Path) -> None:
    """Half of the vector goes twice at 8.4 GB/s with 1 us, however fast the bus is, and the whole
    to the host and back at 100 GB/s with 2 us."""
    found = cluster(tmp_path)
    copy = copy_time(BYTES, found.intra_node)
    assert copy == 2_000_000 + 640_000_000
    half = round(BYTES / 2 / 8.4e9 * 1e12) + 1_000_000
    finishes = execute(RECORD, times([0, 0]), found)
    assert finishes.tolist() == pytest.approx([2 * copy + 2 * half] * 2, abs=2)


def test_with_peer_access_messages_pass_the_bus_and_nothing_is_copied(tmp_path: Path) -> None:
    found = cluster(tmp_path, "cluster.collectives.host_staging=false")
    half = BYTES // 2 * 10 + 2_000_000
    assert execute(RECORD, times([0, 0]), found).tolist() == [2 * half] * 2


def test_nvlink_is_none_of_a_copy_to_the_host(tmp_path: Path) -> None:
    """12.15 of 150 GB/s, as `pcie3_x16`."""
    found = cluster(tmp_path, "cluster.intra_node=nvlink2").intra_node
    assert float(found.bandwidth * found.efficiency) == pytest.approx(12.15e9, rel=0.001)
    slower = cluster(tmp_path, "cluster.collectives.transport=nccl", "cluster.intra_node=nvlink2")
    assert slower.shared_memory is None
    assert slower.intra_node.efficiency > found.efficiency


def test_processors_and_lone_ranks_have_no_other_memory(tmp_path: Path) -> None:
    assert cluster(tmp_path, "cluster.device=cpu_2core").shared_memory is None
    assert cluster(tmp_path, "cluster.devices_per_node=1").shared_memory is None
