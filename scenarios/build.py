"""From the sections of a checked file to the simulator's own values: the cluster, the training."""

from __future__ import annotations

from gcsim.scenarios import catalog
from gcsim.scenarios.link_section import build_link
from gcsim.scenarios.schema_cluster import (
    ClusterSection,
    CollectivesSection,
    HostSection,
    RacksSection,
)
from gcsim.scenarios.schema_training import FaultsSection, NoiseSection, TrainingSection
from gcsim.simulator.cluster import Cluster, Collectives, Racks
from gcsim.simulator.host import Host
from gcsim.simulator.training import Fault, Faults, InputLoading, Noise, Training


def build_cluster(section: ClusterSection) -> Cluster:
    """The cluster at its largest."""
    largest = section.sizes[-1]
    racks = section.racks
    device = section.device
    return Cluster(
        nodes=largest,
        devices_per_node=section.devices_per_node,
        device=catalog.device(device) if isinstance(device, str) else device.device,
        network=build_link(section.network),
        intra_node=build_link(section.intra_node),
        collectives=_collectives(section.collectives, largest),
        cards={int(node): build_link(card) for node, card in section.cards.items()},
        racks=None if racks is None else _racks(racks),
        shared_bus=section.shared_bus,
        host=None if section.host is None else _host(section.host),
        reduction=section.reduction,
    )


def _host(section: HostSection) -> Host:
    return Host(
        cores=section.cores,
        per_message=section.per_message,
        per_byte=section.per_byte,
        per_call=section.per_call,
        per_copied_byte=section.per_copied_byte,
        in_flight=section.in_flight,
        ranks=section.ranks,
    )


def _racks(section: RacksSection) -> Racks:
    return Racks(nodes=section.nodes, uplink=build_link(section.uplink))


def _collectives(section: CollectivesSection, nodes: int) -> Collectives:
    network = section.server_network
    return Collectives(
        transport=section.transport,
        all_reduce=section.all_reduce,
        all_gather=section.all_gather,
        pipeline_block=section.pipeline_block,
        servers=section.servers if isinstance(section.servers, int) else nodes,
        server_hosts=section.server_hosts,
        server_network=None if network is None else build_link(network),
        host_staging=section.host_staging,
        sharing=section.sharing,
    )


def build_training(section: TrainingSection) -> Training:
    """How the job runs, on the largest cluster."""
    loading, noise, faults = section.input, section.noise, section.faults
    return Training(
        precision=section.precision,
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
        noise=None if noise is None else _noise(noise),
        iterations=section.iterations,
        faults=None if faults is None else _faults(faults),
    )


def _noise(section: NoiseSection) -> Noise:
    return Noise(
        distribution=section.distribution,
        variation=section.variation,
        slow_probability=section.slow_probability,
        slow_factor=section.slow_factor,
    )


def _faults(section: FaultsSection) -> Faults:
    return Faults(
        horizon=section.horizon,
        restart=section.restart,
        deaths=tuple(
            Fault(node=death.node, at=death.at, down=death.down) for death in section.deaths
        ),
    )
