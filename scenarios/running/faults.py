"""Throughput of a run in which nodes fail and return.

The surviving nodes form a smaller cluster: they are renumbered in order and keep their NICs and
slowdowns. Its iteration is predicted like any other; `simulator.faults` strings them together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

from gcsim.scenarios.result import FaultyRuns, Outage, Progress
from gcsim.scenarios.running.simulate import Simulated, Stage2
from gcsim.scenarios.scenario import Scenario
from gcsim.simulator.clock import Picoseconds, picoseconds, seconds
from gcsim.simulator.cluster import Cluster
from gcsim.simulator.faults import FaultyRun, Missing, Needed, run_with_faults
from gcsim.simulator.training import Training
from gcsim.traces.profile import TrafficProfile

SERVED = "parameter server"
"""Part of the titles of algorithms that do not wait for failed ranks."""


def with_faults(
    subject: Stage2, profile: TrafficProfile, simulated: Simulated, nodes: int
) -> FaultyRun | None:
    """Simulate the scenario's faults on `nodes` nodes; None without any. `simulated` is the whole
    cluster; the survivors' iterations are scaled by its `ratio_to_stated`. A method without
    collectives, or with parameter servers for all of them, needs only the servers' nodes."""
    scenario = subject.scenario
    faults = scenario.training_at(nodes).faults
    if faults is None:
        return None

    @cache
    def iteration(missing: Missing) -> Picoseconds:
        if not missing:
            return picoseconds(simulated.iteration)
        cluster, training = survivors(scenario, nodes, missing)
        left = subject.predict(profile, cluster, training)
        return picoseconds(left.iteration * simulated.ratio_to_stated)

    devices = scenario.cluster.devices_per_node
    return run_with_faults(
        faults,
        nodes=nodes,
        samples_per_node=devices * scenario.batch_size * scenario.training.accumulation,
        iteration=iteration,
        needed=needed_nodes(scenario.cluster_at(nodes), simulated.prediction.algorithms),
    )


def faulty_runs(
    subject: Stage2, simulated: Sequence[Sequence[Simulated]]
) -> list[list[FaultyRun | None]]:
    """Call `with_faults` for each method and size, in the order of `simulated`."""
    return [
        [
            with_faults(subject, profile, found, nodes)
            for nodes, found in zip(subject.scenario.node_counts, of_sizes, strict=True)
        ]
        for profile, of_sizes in zip(subject.profiles, simulated, strict=True)
    ]


def fault_report(
    scenario: Scenario, faulty: Sequence[Sequence[FaultyRun | None]]
) -> FaultyRuns | None:
    """Return outages and each method's progress at the largest size; `faulty`: by method, size."""
    faults = scenario.training_at(scenario.node_counts[-1]).faults
    if faults is None:
        return None
    return FaultyRuns(
        horizon_s=float(faults.horizon),
        nodes=scenario.node_counts[-1],
        outages=tuple(
            Outage(
                node=death.node,
                start_s=float(death.at),
                end_s=None if death.down is None else float(death.at + death.down),
            )
            for death in sorted(faults.deaths, key=lambda death: (death.at, death.node))
        ),
        progress=tuple(
            Progress(
                label=choice.label,
                stretches=tuple(
                    (seconds(start), seconds(end), count) for start, end, count in run.stretches
                ),
            )
            for choice, of_sizes in zip(scenario.compressors, faulty, strict=True)
            if (run := of_sizes[-1]) is not None
        ),
    )


def needed_nodes(cluster: Cluster, algorithms: Sequence[str]) -> Needed:
    """Return which nodes the others wait for: all of them for collectives; with parameter servers
    alone the first remaining nodes, which host the servers. `algorithms`: their titles."""
    chosen = cluster.collectives
    together = not all(SERVED in title for title in algorithms)
    on_nodes = cluster.servers if algorithms and chosen.server_hosts == "nodes" else 0

    def needed(missing: Missing) -> Sequence[int]:
        left = [node for node in range(cluster.nodes) if node not in missing]
        return left if together else left[:on_nodes]

    return needed


def survivors(scenario: Scenario, nodes: int, missing: Missing) -> tuple[Cluster, Training]:
    """Return the cluster and the training without the missing nodes; at least one node remains."""
    left = [node for node in range(nodes) if node not in missing]
    place = {node: number for number, node in enumerate(left)}
    cluster, training = scenario.cluster_at(nodes), scenario.training_at(nodes)
    collectives = cluster.collectives  # as many servers as before, on the nodes that are left
    if cluster.servers:
        collectives = replace(collectives, servers=cluster.servers)
    nics = {place[node]: nic for node, nic in cluster.nics.items() if node in place}
    slow = {place[node]: factor for node, factor in training.slow_nodes.items() if node in place}
    devices = cluster.devices_per_node
    ranks = {
        place[rank // devices] * devices + rank % devices: factor
        for rank, factor in training.slow_workers.items()
        if rank // devices in place
    }
    return (
        replace(cluster, nodes=len(left), nics=nics, collectives=collectives),
        replace(training, slow_nodes=slow, slow_workers=ranks, faults=None),
    )
