"""Conversion of a scenario to a file with every default filled in and all units written.

The file is stored with the results and can be run again. Links are included by value with their
sources; a device by name (and file, outside the catalogue) with a fingerprint of its entry's
numbers, so that a changed entry is noticed.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Any

from gcsim import units
from gcsim.compressors.options.method import method_of
from gcsim.scenarios import catalog
from gcsim.scenarios.catalog import implementations
from gcsim.scenarios.reading.values import text_of
from gcsim.scenarios.scenario import (
    CompressorChoice,
    ProfiledCompute,
    RecordedCompute,
    RecordedGradients,
    Scenario,
    SyntheticGradients,
)
from gcsim.scenarios.sections.cluster import DEDICATED, PER_NODE
from gcsim.scenarios.sections.file import RECORDED, plan_text
from gcsim.scenarios.sections.link import plain_link
from gcsim.scenarios.sections.recorded import is_recorded
from gcsim.scenarios.sections.transports import NONE, defaults
from gcsim.simulator.cluster import Collectives
from gcsim.simulator.devices.device import Device
from gcsim.simulator.host import Sums
from gcsim.simulator.training import Training
from gcsim.traces.models.registry import ModelEntry, is_shipped
from gcsim.traces.profile import PassTimes


def resolved(scenario: Scenario, description: str = "") -> dict[str, Any]:
    """Return dicts, lists and scalars, for `document.write`."""
    entries: dict[str, Any] = {"name": scenario.name}
    if description:
        entries["description"] = description
    entries["model"] = _model(scenario.model)
    entries["batch_size"] = scenario.batch_size
    entries["gradients"] = _gradients(scenario)
    entries["cluster"] = _cluster(scenario)
    entries["training"] = _training(scenario.training)
    if scenario.training.overlap != "by_tensor":
        entries["ddp"] = text_of(scenario.buckets)
    if scenario.compute:
        entries["compute"] = _compute(scenario.compute)
    entries["compressors"] = [
        {
            **_code(choice),
            "label": choice.label,
            **method_of(choice.kind, choice.parameters).parameters.model_dump(mode="json"),
        }
        for choice in scenario.compressors
    ]
    entries["uncertainty"] = {"draws": scenario.draws, "discrepancy": scenario.discrepancy}
    if scenario.train is not None:
        task = scenario.train_task or scenario.model.task
        entries["train"] = plan_text(scenario.train, task, scenario.train_loss)
    if scenario.cost_per_hour is not None:
        entries["cost"] = {"per_hour": scenario.cost_per_hour}
    entries["seed"] = scenario.seed
    return entries


def _code(choice: CompressorChoice) -> dict[str, str]:
    entry = implementations.of(choice.kind, choice.implementation)
    if entry is None or not choice.implementation:
        return {"kind": choice.kind}
    return {"kind": entry.method, implementations.KEY: entry.name}


def _model(model: ModelEntry) -> str | dict[str, Any]:
    if is_shipped(model):
        return model.name
    if model.layers:
        return {"name": model.name, "layers": [text_of(row) for row in model.layers]}
    if is_recorded(model):
        return RECORDED
    return {
        "build": model.build,
        "input_shape": list(model.input_shape),
        "classes": model.classes,
        "input": model.input,
        "auxiliary_weight": model.auxiliary_weight,
    }


def _gradients(scenario: Scenario) -> dict[str, Any]:
    stated = text_of(scenario.gradients)
    if isinstance(scenario.gradients, RecordedGradients):
        return {"source": "recorded", **stated}
    if isinstance(scenario.gradients, SyntheticGradients):
        return {"source": "synthetic", **stated}
    return {"source": "live", "task": scenario.model.task, **stated}


def _cluster(scenario: Scenario) -> dict[str, Any]:
    cluster = scenario.cluster
    nics, one = cluster.nics_per_node, cluster.at_one_nic
    entries: dict[str, Any] = {
        "nodes": list(scenario.node_counts),
        "devices_per_node": cluster.devices_per_node,
        "device": _device(scenario, cluster.device),
        "network": plain_link(one.network),
        **({"nics_per_node": nics} if nics > 1 else {}),
    }
    if cluster.groups:
        del entries["nodes"], entries["device"]
        entries |= {"batch": "by_speed" if scenario.by_speed else "equal"}
        entries["groups"] = list(_groups(scenario))
    elif cluster.nics:
        entries["nics"] = {str(node): plain_link(nic) for node, nic in sorted(one.nics.items())}
    if cluster.racks is not None:
        pods, uplink = cluster.racks.pod_uplink, plain_link(cluster.racks.uplink)
        pod_uplink = None if pods is None else plain_link(pods)
        entries["racks"] = text_of(cluster.racks, brief=True, uplink=uplink, pod_uplink=pod_uplink)
    if cluster.crosses_intra_node and not cluster.groups:
        entries["intra_node"] = plain_link(cluster.intra_node)
    entries["shared_bus"] = cluster.shared_bus
    entries["collectives"] = _collectives(cluster.collectives)
    sums, host = defaults(cluster.collectives)
    if host or cluster.host:
        entries["host"] = NONE if cluster.host is None else text_of(cluster.host)
    if sums != Sums() or cluster.sums != Sums():
        entries["sums"] = text_of(cluster.sums) or NONE
    return entries


def _groups(scenario: Scenario) -> Iterator[dict[str, Any]]:
    cluster, first = scenario.cluster, 0
    for number, group in enumerate(cluster.groups):
        inside = cluster.buses.get(first, cluster.intra_node)
        batch = round(group.batch * scenario.batch_size)
        yield {
            "nodes": group.nodes,
            **({"devices_per_node": len(cluster.ranks_of(first))} if cluster.sizes else {}),
            "device": _device(scenario, group.device, f"groups.{number}." if number else ""),
            "network": plain_link(cluster.at_one_nic.nic(first)),
            **({"intra_node": plain_link(inside)} if cluster.crosses_intra_node else {}),
            **({} if scenario.by_speed or group.batch == 1 else {"batch_size": batch}),
        }
        first += group.nodes


def _device(scenario: Scenario, device: Device, group: str = "") -> dict[str, Any]:
    file = scenario.files.get(f"cluster.{group}device")
    entries = {"name": device.name, "fingerprint": catalog.fingerprint(device)}
    return entries if file is None else {"file": file, **entries}


def _collectives(chosen: Collectives) -> dict[str, Any]:
    network = chosen.server_network
    return text_of(
        chosen,
        servers=None if chosen.servers is None else _servers(chosen),
        server_hosts=None,
        server_network=None if network is None else plain_link(network),
    )


def _servers(chosen: Collectives) -> int | str:
    if chosen.server_hosts == "nodes" and chosen.servers is not None:
        return chosen.servers
    return DEDICATED if chosen.servers == PER_NODE else f"{chosen.servers} {DEDICATED}"


def _training(training: Training) -> dict[str, Any]:
    entries: dict[str, Any] = {} if training.on_host else {"on_host": []}
    for key, entry in text_of(training).items():
        if key in ("reducer", "hook"):
            entries.setdefault("framework", {})[key] = entry
        else:
            entries[key] = entry
    return entries


def _compute(compute: PassTimes | ProfiledCompute | RecordedCompute) -> dict[str, Any]:
    if isinstance(compute, ProfiledCompute):
        return {"profile": str(compute.profile)}
    if isinstance(compute, RecordedCompute):
        return {"recorded": True}
    # repr has enough digits to restore the float
    return {
        "forward": units.exact(Fraction(repr(compute.forward)), "time"),
        "backward": units.exact(Fraction(repr(compute.backward)), "time"),
    }
