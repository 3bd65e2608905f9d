"""From the sections of a checked file to the simulator's own value of the cluster."""

from __future__ import annotations

from fractions import Fraction

from gcsim.scenarios import catalog
from gcsim.scenarios.reading.values import Spelled
from gcsim.scenarios.sections.cluster import ClusterSection
from gcsim.scenarios.sections.link import build_link
from gcsim.scenarios.sections.transports import GROUPED, defaults, with_few_cores
from gcsim.simulator.cluster import Cluster, Collectives, Racks
from gcsim.simulator.host import MANY, PRICES, Host
from gcsim.simulator.sums import Sums

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
        racks=None
        if racks is None
        else Racks(nodes=racks.nodes, uplink=build_link(racks.uplink, transport)),
        shared_bus=section.shared_bus,
        host=host,
        sums=sums,
    )


def _prices(section: ClusterSection, collectives: Collectives) -> tuple[Sums, Host | None]:
    """Of additions and calls: stated, or those of the transport."""
    sums, host = defaults(collectives)
    if section.sums is not None:
        sums = Sums() if isinstance(section.sums, str) else section.sums.value(Sums, sums)
    if isinstance(section.host, str):
        host = None
    elif section.host is not None:
        host = section.host.value(Host)
        if host.cores < MANY and not {*PRICES} & section.host.model_fields_set:
            host = with_few_cores(collectives.transport, host)
    return sums, host


def _collectives(section: Spelled) -> Collectives:
    network, servers = section.server_network, section.servers
    tuned = (section.transport, section.all_reduce) == ("nccl", "auto")
    tuned |= section.all_reduce == "nccl"
    grouped, grouped_range = GROUPED.get(section.transport, (Fraction(1), None))
    usual = Collectives(
        servers=None if servers is None else servers.number,
        server_hosts="dedicated" if servers is not None and servers.dedicated else "nodes",
        server_network=None if network is None else build_link(network, section.transport),
        ring_over_tree_range=_NEAR if tuned else None,
        grouped=grouped,
        grouped_range=grouped_range,
    )
    return section.value(Collectives, usual)
