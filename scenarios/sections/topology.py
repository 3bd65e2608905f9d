"""Which links does a cluster have, by the setting that names each? And why do iterations differ?"""

from __future__ import annotations

from gcsim.scenarios.reading.document import Keys
from gcsim.simulator.cluster import Cluster
from gcsim.simulator.network.links import Link
from gcsim.simulator.training import Noise, Training


def links_of(cluster: Cluster) -> dict[Keys, Link]:
    """Every link that is in use by the way to its setting, in the order of a scenario file."""
    found: dict[Keys, Link] = {("cluster", "network"): cluster.network}
    for node, nic in sorted(cluster.nics.items()):
        found["cluster", "nics", str(node)] = nic
    if cluster.racks is not None:
        found["cluster", "racks", "uplink"] = cluster.racks.uplink
    found["cluster", "intra_node"] = cluster.intra_node
    servers = cluster.collectives
    if servers.server_network is not None and servers.server_hosts == "dedicated":
        found["cluster", "collectives", "server_network"] = servers.server_network
    return found


def random_settings(cluster: Cluster, training: Training) -> list[Keys]:
    """Ways to the settings for which random numbers are drawn, in the order of the file."""
    found = [key_path for key_path, link in links_of(cluster).items() if link.random]
    noise = training.noise
    drawn = noise is not None and (noise.variation > 0 or noise.slow_probability > 0)
    return found + ([("training", "noise")] if drawn else [])


def timed_settings(cluster: Cluster) -> list[Keys]:
    """Ways to the links whose messages take longer at one time than at another."""
    return [key_path for key_path, link in links_of(cluster).items() if link.timed]


def matters(noise: Noise | None) -> bool:
    """Whether noise makes any difference."""
    return noise is not None and (noise.variation > 0 or noise.skew > 0 or slows(noise))


def slows(noise: Noise) -> bool:
    """Whether workers are slow now and then."""
    return noise.slow_probability > 0 and noise.slow_factor != 1
