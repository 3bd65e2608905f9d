"""What does a run keep of its speed when nodes die and come back?

Each set of survivors is a cluster of its own: the nodes that are left close up in order, with their
cards and their slowness, and its iteration is predicted as any other's. `simulator.faults` puts the
iterations one after the other.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from functools import cache

from gcsim.scenarios.scenario import Scenario
from gcsim.simulator.clock import Picoseconds, picoseconds
from gcsim.simulator.cluster import Cluster
from gcsim.simulator.devices.training_time import ComputeTimes
from gcsim.simulator.faults import FaultyRun, Missing, run_with_faults
from gcsim.simulator.predict import Prediction, predict
from gcsim.simulator.training import Training
from gcsim.traces.profile import TrafficProfile

SERVED = "parameter server"
"""Stands in the titles of the algorithms in which nobody waits for the dead."""


def with_faults(
    scenario: Scenario,
    profile: TrafficProfile,
    compute: ComputeTimes,
    prediction: Prediction,
    nodes: int,
) -> FaultyRun | None:
    """The run of `scenario.training.faults` on `nodes` nodes; None where the scenario has none.

    `prediction` is that of the whole cluster. A method whose every collective goes through
    parameter servers, or that never communicates, waits for nobody, unless servers die with the
    nodes that they are on.
    """
    faults = scenario.training_at(nodes).faults
    if faults is None:
        return None

    @cache
    def iteration(missing: Missing) -> Picoseconds:
        if not missing:
            return picoseconds(prediction.iteration)
        cluster, training = survivors(scenario, nodes, missing)
        left = predict(
            profile, cluster, compute, training=training, seed=scenario.seed, spans=False
        )
        return picoseconds(left.iteration)

    devices = scenario.cluster.devices_per_node
    return run_with_faults(
        faults,
        nodes=nodes,
        samples_per_node=devices * scenario.batch_size * scenario.training.accumulation,
        iteration=iteration,
        waits=not all(SERVED in title for title in prediction.algorithms)
        or _servers_die(scenario.cluster_at(nodes), [death.node for death in faults.deaths]),
    )


def _servers_die(cluster: Cluster, nodes: Collection[int]) -> bool:
    """Whether one of the nodes carries a parameter server: server s is on node s mod nodes."""
    chosen = cluster.collectives
    return chosen.server_hosts == "nodes" and any(node < chosen.servers for node in nodes)


def survivors(scenario: Scenario, nodes: int, missing: Missing) -> tuple[Cluster, Training]:
    """The cluster and the training without those nodes, which there must be some of."""
    left = [node for node in range(nodes) if node not in missing]
    place = {node: number for number, node in enumerate(left)}
    cluster, training = scenario.cluster_at(nodes), scenario.training_at(nodes)
    cards = {place[node]: card for node, card in cluster.cards.items() if node in place}
    slow = {place[node]: factor for node, factor in training.slow_nodes.items() if node in place}
    return (
        replace(cluster, nodes=len(left), cards=cards),
        replace(training, slow_nodes=slow, faults=None),
    )
