"""From the sections of a checked file to the simulator's own values: the cluster, the training."""

from __future__ import annotations

from fractions import Fraction

from gcsim.scenarios import catalog
from gcsim.scenarios.catalog import loops as catalog_loops
from gcsim.scenarios.catalog.loop_fields import built
from gcsim.scenarios.sections.cluster import (
    ClusterSection,
    CollectivesSection,
    RacksSection,
)
from gcsim.scenarios.sections.link import build_link
from gcsim.scenarios.sections.training import FaultsSection, NoiseSection, TrainingSection
from gcsim.scenarios.sections.transports import GROUPED, defaults, with_few_cores
from gcsim.simulator.cluster import Cluster, Collectives, Racks, TransportName
from gcsim.simulator.host import MANY, PRICES, Host
from gcsim.simulator.sums import Sums
from gcsim.simulator.training import (
    Fault,
    Faults,
    Framework,
    InputLoading,
    Interference,
    Noise,
    SharedNode,
    Training,
)

_NEAR = (Fraction(3, 4), Fraction(4, 3))
"""By how much NCCL's tuner is taken to be off between a ring and a tree: assumed."""


def build_cluster(section: ClusterSection) -> Cluster:
    """The cluster at its largest."""
    largest = section.sizes[-1]
    racks = section.racks
    device = section.device
    collectives = _collectives(section.collectives)
    transport = collectives.transport
    sums, host = _prices(section, collectives)
    return Cluster(
        nodes=largest,
        devices_per_node=section.devices_per_node,
        device=catalog.device(device) if isinstance(device, str) else device.device,
        network=build_link(section.network, transport),
        intra_node=build_link(section.intra_node, transport),
        collectives=collectives,
        cards={int(node): build_link(card, transport) for node, card in section.cards.items()},
        racks=None if racks is None else _racks(racks, transport),
        shared_bus=section.shared_bus,
        host=host,
        sums=sums,
    )


def _prices(section: ClusterSection, collectives: Collectives) -> tuple[Sums, Host | None]:
    """Of additions and calls: stated, or those of the transport."""
    sums, host = defaults(collectives)
    if section.sums is not None:
        sums = Sums() if isinstance(section.sums, str) else section.sums.sums(sums)
    if isinstance(section.host, str):
        host = None
    elif section.host is not None:
        host = section.host.host()
        if host.cores < MANY and not {*PRICES} & section.host.model_fields_set:
            host = with_few_cores(collectives.transport, host)
    return sums, host


def _racks(section: RacksSection, transport: TransportName) -> Racks:
    return Racks(nodes=section.nodes, uplink=build_link(section.uplink, transport))


def _collectives(section: CollectivesSection) -> Collectives:
    network, servers = section.server_network, section.servers
    tuned = (section.transport, section.all_reduce) == ("nccl", "auto")
    tuned |= section.all_reduce == "nccl"
    grouped, grouped_range = GROUPED.get(section.transport, (Fraction(1), None))
    return Collectives(
        transport=section.transport,
        library=section.library,
        all_reduce=section.all_reduce,
        all_gather=section.all_gather,
        push_pull=section.push_pull,
        pipeline_block=section.pipeline_block,
        servers=None if servers is None else servers.number,
        server_hosts="dedicated" if servers is not None and servers.dedicated else "nodes",
        server_network=None if network is None else build_link(network, section.transport),
        host_staging=section.host_staging,
        ring_over_tree_range=_NEAR if tuned else None,
        grouped=grouped,
        grouped_range=grouped_range,
    )


def build_training(section: TrainingSection, transport: str) -> Training:
    """How the job runs, on the largest cluster."""
    loading, noise, faults = section.input, section.noise, section.faults
    beside, code = section.interference, section.framework
    if isinstance(code, str):
        reducer, hook = catalog_loops.framework(code)
    else:
        reducer, hook = built(code.reducer, Framework), built(code.hook, Framework)
    return Training(
        precision=section.precision,
        overlap=section.overlap,
        interference=catalog_loops.interference(transport)
        if beside is None
        else built(beside, Interference),
        shared_node=catalog_loops.shared_node(transport)
        if section.shared_node is None
        else built(section.shared_node, SharedNode),
        reducer=reducer,
        hook=hook,
        encode_on=section.encode_on,
        side_slowdown=section.side_slowdown,
        concurrent_collectives=1 if section.concurrent_collectives == 1 else 2,
        optimizer=section.optimizer,
        accumulation=section.accumulation,
        input=None
        if loading is None
        else InputLoading(batch=loading.batch, prefetch=loading.prefetch),
        on_host=frozenset(section.on_host),
        slow_nodes={int(node): factor for node, factor in section.slow_nodes.items()},
        slow_workers={int(rank): factor for rank, factor in section.slow_workers.items()},
        noise=catalog_loops.workers() if noise is None else _noise(noise),
        iterations=section.iterations,
        faults=None if faults is None else _faults(faults),
    )


def _noise(section: NoiseSection) -> Noise:
    return Noise(
        distribution=section.distribution,
        variation=section.variation,
        slow_probability=section.slow_probability,
        slow_factor=section.slow_factor,
        skew=section.skew,
        skew_range=section.skew_range,
    )


def _faults(section: FaultsSection) -> Faults:
    return Faults(
        horizon=section.horizon,
        restart=section.restart,
        deaths=tuple(
            Fault(node=death.node, at=death.at, down=death.down) for death in section.deaths
        ),
    )
