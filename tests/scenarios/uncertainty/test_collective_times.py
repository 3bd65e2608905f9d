"""A collective's time in each drawn world, against the simulation of that world by itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from gcsim.compressors.lockstep import CollectiveRecord
from gcsim.scenarios.load import load_scenario
from gcsim.scenarios.scenario import with_nodes
from gcsim.scenarios.uncertainty.collective_times import CollectiveTimes
from gcsim.scenarios.uncertainty.drawn import Drawn
from gcsim.scenarios.uncertainty.figures import Column, uncertain_inputs
from gcsim.scenarios.uncertainty.worlds import cluster_in, draw, moves_links
from gcsim.simulator.collectives.dispatch import CollectiveMemo
from tests.simulator.test_predict import COMPUTE

NODES = 4
RECORDS = (
    CollectiveRecord(kind="all_reduce", sent=(1_000_001, 1_000_001), element=1),
    CollectiveRecord(kind="all_reduce", sent=(4_000, 4_000), element=4),
    CollectiveRecord(kind="all_gather", sent=(30_000, 50_000)),
)
SETUPS: dict[str, tuple[list[str], float]] = {
    "textbook": (["cluster.devices_per_node=1"], 1e-5),
    "gloo": (["cluster.collectives.transport=gloo", "cluster.devices_per_node=1"], 1e-5),
    "gloo, two devices a node": (["cluster.collectives.transport=gloo"], 1e-5),
    "mpich": (["cluster.collectives.transport=mpich"], 1e-5),
    "textbook, slow buses": (["cluster.intra_node=pcie3_x16"], 0.02),
    "nccl": (["cluster.collectives.transport=nccl", "cluster.device=v100"], 0.005),
}
"""Settings, and by how much a world may be off."""


@pytest.mark.parametrize(("changes", "most"), SETUPS.values(), ids=SETUPS)
def test_times_are_those_of_the_simulation_of_each_world(changes: list[str], most: float) -> None:
    """Where the same messages are critical in all worlds, they lie in a plane; where they are not,
    and Gloo's rings change paths, each world is simulated (1e-5: all segments of a ring as long).
    NCCL's ring and its tree are two such planes, each world in its own. What else changes paths (a
    bus that is slower than the network in some worlds) is interpolated."""
    for found, exact in in_worlds(changes, NODES, RECORDS):
        assert exact.max() > 1.1 * exact.min()  # worlds differ
        assert found == pytest.approx(exact, rel=most)


def test_each_size_has_the_ring_or_the_tree_that_nccl_takes_for_it() -> None:
    """Over slow uplinks a tree takes up to twice a ring's time, and a world's tuner changes from
    the one to the other between the sizes that are simulated."""
    racks = "cluster.racks={nodes: 2, uplink: 1gbe}"
    changes = ["cluster.collectives.transport=nccl", "cluster.device=v100", racks]
    sizes = [1 << power for power in range(20, 27)]
    records = [CollectiveRecord(kind="all_reduce", sent=(n, n), element=4) for n in sizes]
    for found, exact in in_worlds(changes, 8, records):
        assert found == pytest.approx(exact, rel=0.01)


def in_worlds(
    changes: Sequence[str], nodes: int, records: Sequence[CollectiveRecord]
) -> Iterator[tuple[Column, Column]]:
    """Times of each record in drawn worlds, and the simulations of these."""
    base = ["cluster.devices_per_node=2", f"cluster.nodes={nodes}"]
    scenario = load_scenario("lenet_2node", [*base, *changes])
    inputs = uncertain_inputs(scenario.cluster, scenario.training, {"stated": COMPUTE})
    inputs = [one for one in inputs if moves_links(one)]
    assert len(inputs) >= 2
    worlds = draw(inputs, 64, seed=0).with_stated(inputs)
    clusters = [with_nodes(cluster_in(world, scenario.cluster, inputs), nodes) for world in worlds]
    drawn = Drawn(scenario.cluster, scenario.training, inputs, worlds)
    times = CollectiveTimes(drawn, nodes, records)
    nothing, together = np.zeros(len(worlds)), np.zeros(clusters[0].workers, dtype=np.int64)
    for record in records:
        exact = [CollectiveMemo(one)(record, together, 0).max() for one in clusters]
        yield times(record, 0, nothing)[0], np.array(exact)
