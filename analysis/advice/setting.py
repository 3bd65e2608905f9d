"""Texts on the setting of advice: its cluster, and facts that it assumes."""

from __future__ import annotations

from gcsim.analysis.report.numbers import bits, duration, elapsed, ends, percent
from gcsim.analysis.report.wording import listed
from gcsim.scenarios import catalog
from gcsim.scenarios.advice.slowest_link import nearest_link
from gcsim.scenarios.result import Row
from gcsim.scenarios.scenario import Scenario
from gcsim.scenarios.sections.link import carrier, entry_name
from gcsim.scenarios.trained.evidence import optimizer_of
from gcsim.simulator.network.links import Link

SUPPOSED = "PyTorch DDP"  # stated for a question without a training loop
NOT_CHECKED = "not checked: the device states none"  # stated for a device of unknown memory size


def header(scenario: Scenario, dense: Row | None) -> str:
    """Return one line on the model and cluster, with the time of a dense iteration."""
    cluster = scenario.cluster
    link = nearest_link(cluster).link
    rate = bits(float(link.bandwidth)) if link.trace is None else link.name
    rate += " bus" if cluster.nodes == 1 < cluster.workers else ""
    for name, (below, uplink) in cluster.uplinks.items():
        rate += f", {name} of {below} nodes joined by {bits(float(uplink.bandwidth))}"
    now = f": dense {elapsed(dense.iteration_s)}" if dense is not None else ""
    return (
        f"{scenario.model.name}, batch {scenario.batch_size}, on {cluster.devices}, {rate}, "
        f"{transport_of(scenario)}{now}"
    )


def transport_of(scenario: Scenario) -> str:
    """ "NCCL over TCP" """
    cluster = scenario.cluster
    network = cluster.at_one_nic.network.name if cluster.nodes > 1 else None
    return carrier(cluster.collectives.transport, network)


def assumed(scenario: Scenario, *, shipped: bool) -> list[str]:
    """Return facts that come from the catalogue, and the number of draws behind the ranges."""
    cluster = scenario.cluster
    link = nearest_link(cluster).link
    links = [link, *(cluster.at_one_nic.nics.values() if cluster.nodes > 1 else ())]
    links += [uplink for _, uplink in cluster.uplinks.values()]
    found = list(dict.fromkeys(map(link_facts, links))) if cluster.workers > 1 else []
    one = cluster.at_one_nic.network if cluster.nodes > 1 else link
    if cluster.workers > 1 and (remote := f"{entry_name(one)}_roce") in catalog.links():
        found.append(f"RDMA: {remote}")
    if shipped:
        found.append("shipped traffic profiles")
    if cluster.devices_per_node > 1 and cluster.nodes > 1:
        buses = dict.fromkeys(bus.name for bus in (cluster.intra_node, *cluster.buses.values()))
        found.append(f"{listed([*buses])} in a node")
    stored = scenario.training.gradients
    found += filter(None, [_SHARDED.get(scenario.training.strategy)])
    found += [scenario.training.precision, *([] if stored == "fp32" else [f"{stored} gradients"])]
    found += filter(None, [optimizer_of(scenario)])
    if cluster.workers > 1 and scenario.draws:
        found.append(f"80 % ranges over {scenario.draws} draws of the uncertain inputs")
    return found


_SHARDED = {
    "zero1": "optimizer sharded (ZeRO-1)",
    "zero2": "optimizer and gradients sharded (ZeRO-2)",
    "hsdp": "all state sharded inside nodes (HSDP)",
    "zero3": "optimizer, gradients and weights sharded (ZeRO-3, FSDP)",
}


def link_facts(link: Link) -> str:
    """Return a link's latency and goodput with their ranges."""
    kind = entry_name(link)
    entry = catalog.links().get(kind)
    if entry is not None and link.trace is None and link.bandwidth != entry.bandwidth:
        kind = f"{bits(float(link.bandwidth))} like {kind}"
    text = f"{kind}: latency {duration(float(link.latency))}"
    if link.latency_range is not None:
        text += f" ({ends(*(duration(float(end)) for end in link.latency_range))})"
    if link.trace is None:
        shares = link.efficiency_range or ()
        if shares and shares[1] > 1:  # a radio's stated rate is not an upper limit
            text += f", goodput {bits(float(link.rate))}"
            text += f" ({ends(*(bits(float(link.bandwidth * share)) for share in shares))})"
        else:
            text += f", goodput {percent(float(link.efficiency))}"
            text += f" ({'-'.join(f'{100 * float(one):.0f}' for one in shares)})" if shares else ""
    return text
