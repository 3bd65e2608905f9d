"""A collective's time in each drawn world, against the simulation of that world by itself."""

from __future__ import annotations

import numpy as np
import pytest

from gcsim.compressors.lockstep import CollectiveRecord
from gcsim.scenarios.load import load_scenario
from gcsim.scenarios.scenario import with_nodes
from gcsim.scenarios.uncertainty.collective_times import CollectiveTimes
from gcsim.scenarios.uncertainty.drawn import Drawn
from gcsim.scenarios.uncertainty.figures import uncertain_inputs
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
    base = ["cluster.devices_per_node=2", f"cluster.nodes={NODES}"]
    scenario = load_scenario("lenet_2node", [*base, *changes])
    inputs = uncertain_inputs(scenario.cluster, scenario.training, {"stated": COMPUTE})
    inputs = [one for one in inputs if moves_links(one)]
    assert len(inputs) >= 2
    worlds = draw(inputs, 64, seed=0).with_stated(inputs)
    clusters = [with_nodes(cluster_in(world, scenario.cluster, inputs), NODES) for world in worlds]
    drawn = Drawn(scenario.cluster, scenario.training, inputs, worlds)
    times = CollectiveTimes(drawn, NODES, RECORDS)
    nothing, together = np.zeros(len(worlds)), np.zeros(clusters[0].workers, dtype=np.int64)
    for record in RECORDS:
        found = times(record, 0, nothing)
        exact = np.array([CollectiveMemo(one)(record, together, 0).max() for one in clusters])
        assert exact.max() > 1.1 * exact.min()  # worlds differ
        assert found == pytest.approx(exact, rel=most)
