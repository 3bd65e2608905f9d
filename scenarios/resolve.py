"""A scenario as the file that would load to it: every default filled in, units written out.

It is what stands beside the results and can be run again. Links stand in it by value, with
their sources: a few lines, and the file alone says what was simulated. A device stands in it by
name (and by its file, where that is not the catalogue's) with a fingerprint of its entry: that is
some forty numbers with their sources, and a changed entry must not pass for the old one.
"""

from __future__ import annotations

from dataclasses import asdict
from fractions import Fraction
from typing import Any, get_args

from gcsim import units
from gcsim.compressors.registry import check_parameters
from gcsim.scenarios import catalog
from gcsim.scenarios.link_plain import number_text, plain_link
from gcsim.scenarios.recorded import is_recorded
from gcsim.scenarios.scenario import (
    ProfiledCompute,
    RecordedCompute,
    RecordedGradients,
    Scenario,
    SyntheticGradients,
)
from gcsim.scenarios.schema import RECORDED
from gcsim.scenarios.schema_cluster import PER_NODE
from gcsim.simulator.host import Host
from gcsim.simulator.steps.step_plan import Kind
from gcsim.simulator.training import Faults, Training
from gcsim.traces.model_entry import ModelEntry
from gcsim.traces.models import MODELS
from gcsim.traces.passes import PassTimes


def resolved(scenario: Scenario, description: str = "") -> dict[str, Any]:
    """Dicts, lists and scalars; `document.write` makes YAML of them."""
    entries: dict[str, Any] = {"name": scenario.name}
    if description:
        entries["description"] = description
    entries["model"] = _model(scenario.model)
    entries["batch_size"] = scenario.batch_size
    entries["gradients"] = _gradients(scenario)
    entries["cluster"] = _cluster(scenario)
    entries["training"] = _training(scenario.training)
    entries["ddp"] = {
        "first_bucket": units.exact(scenario.buckets.first, "size"),
        "bucket": units.exact(scenario.buckets.cap, "size"),
    }
    if scenario.compute:
        entries["compute"] = _compute(scenario.compute)
    entries["compressors"] = [
        {
            "kind": choice.kind,
            "label": choice.label,
            **check_parameters(choice.kind, choice.parameters).model_dump(mode="json"),
        }
        for choice in scenario.compressors
    ]
    entries["seed"] = scenario.seed
    return entries


def _model(model: ModelEntry) -> str | dict[str, Any]:
    shipped = MODELS.get(model.name)
    if shipped is not None and (shipped.build, shipped.layers) == (model.build, model.layers):
        return model.name
    if model.layers:
        rows = [{**asdict(row), "shape": list(row.shape)} for row in model.layers]
        return {"name": model.name, "layers": rows}
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
    gradients = scenario.gradients
    if isinstance(gradients, RecordedGradients):
        workers = {} if gradients.workers is None else {"workers": gradients.workers}
        return {"source": "recorded", "trace": str(gradients.trace), **workers}
    if isinstance(gradients, SyntheticGradients):
        fit = {} if gradients.fit is None else {"fit": str(gradients.fit)}
        return {
            "source": "synthetic",
            **fit,
            "workers": gradients.workers,
            "iterations": gradients.iterations,
        }
    return {
        "source": "live",
        "task": scenario.model.task,
        "workers": gradients.workers,
        "warmup_steps": gradients.warmup_steps,
        "iterations": gradients.iterations,
        "learning_rate": gradients.learning_rate,
        "momentum": gradients.momentum,
        "device": gradients.device,
    }


def _cluster(scenario: Scenario) -> dict[str, Any]:
    cluster = scenario.cluster
    entries: dict[str, Any] = {
        "nodes": list(scenario.node_counts),
        "devices_per_node": cluster.devices_per_node,
        "device": _device(scenario),
        "network": plain_link(cluster.network),
    }
    if cluster.cards:
        entries["cards"] = {
            str(node): plain_link(card) for node, card in sorted(cluster.cards.items())
        }
    if cluster.racks is not None:
        entries["racks"] = {
            "nodes": cluster.racks.nodes,
            "uplink": plain_link(cluster.racks.uplink),
        }
    entries["intra_node"] = plain_link(cluster.intra_node)
    entries["shared_bus"] = cluster.shared_bus
    entries["collectives"] = _collectives(scenario)
    if cluster.host is not None:
        entries["host"] = _host(cluster.host)
    if cluster.reduction is not None:
        entries["reduction"] = units.exact(cluster.reduction, "bandwidth")
    return entries


def _host(host: Host) -> dict[str, Any]:
    prices = {
        "per_message": host.per_message,
        "per_byte": host.per_byte,
        "per_call": host.per_call,
        "per_copied_byte": host.per_copied_byte,
    }
    return {
        "cores": host.cores,
        **{name: units.exact(price, "time") for name, price in prices.items()},
        "in_flight": host.in_flight,
        "ranks": host.ranks,
    }


def _device(scenario: Scenario) -> dict[str, Any]:
    device, file = scenario.cluster.device, scenario.files.get("cluster.device")
    entries = {"name": device.name, "fingerprint": catalog.fingerprint(device)}
    return entries if file is None else {"file": file, **entries}


def _collectives(scenario: Scenario) -> dict[str, Any]:
    chosen = scenario.cluster.collectives
    entries: dict[str, Any] = {
        "transport": chosen.transport,
        "all_reduce": chosen.all_reduce,
        "all_gather": chosen.all_gather,
        "pipeline_block": units.exact(chosen.pipeline_block, "size"),
        "servers": PER_NODE if scenario.server_per_node else chosen.servers,
        "server_hosts": chosen.server_hosts,
        "sharing": chosen.sharing,
    }
    if chosen.server_network is not None:
        entries["server_network"] = plain_link(chosen.server_network)
    if chosen.host_staging is not None:  # else as the transport does, also after it is changed
        entries["host_staging"] = chosen.host_staging
    return entries


def _training(training: Training) -> dict[str, Any]:
    entries: dict[str, Any] = {
        "precision": training.precision,
        "encode_on": training.encode_on,
        "side_slowdown": _number(training.side_slowdown),
        "concurrent_collectives": training.concurrent_collectives,
        "optimizer": units.exact(training.optimizer, "time"),
        "accumulation": training.accumulation,
    }
    if training.input is not None:
        entries["input"] = {
            "batch": units.exact(training.input.batch, "time"),
            "prefetch": training.input.prefetch,
        }
    if training.on_host:
        entries["on_host"] = [kind for kind in get_args(Kind) if kind in training.on_host]
    for table in ("slow_nodes", "slow_workers"):
        slow: dict[int, Fraction] = getattr(training, table)
        if slow:
            entries[table] = {str(place): _number(slow[place]) for place in sorted(slow)}
    if training.noise is not None:
        entries["noise"] = {
            "distribution": training.noise.distribution,
            "variation": _number(training.noise.variation),
            "slow_probability": _number(training.noise.slow_probability),
            "slow_factor": _number(training.noise.slow_factor),
        }
    entries["iterations"] = training.iterations
    if training.faults is not None:
        entries["faults"] = _faults(training.faults)
    return entries


def _faults(faults: Faults) -> dict[str, Any]:
    deaths = []
    for death in faults.deaths:
        deaths.append({"node": death.node, "at": units.exact(death.at, "time")})
        if death.down is not None:
            deaths[-1]["down"] = units.exact(death.down, "time")
    return {
        "horizon": units.exact(faults.horizon, "time"),
        "restart": units.exact(faults.restart, "time"),
        "deaths": deaths,
    }


def _number(value: Fraction) -> int | float | str:
    """A number that is read as this value; digits, or a ratio, where no float is."""
    if value.denominator == 1:
        return int(value)
    if Fraction(repr(float(value))) == value:
        return float(value)
    return number_text(value)


def _compute(compute: PassTimes | ProfiledCompute | RecordedCompute) -> dict[str, Any]:
    if isinstance(compute, ProfiledCompute):
        return {"profile": str(compute.profile)}
    if isinstance(compute, RecordedCompute):
        return {"recorded": True}
    # repr has the digits that make the same float again
    return {
        "forward": units.exact(Fraction(repr(compute.forward)), "time"),
        "backward": units.exact(Fraction(repr(compute.backward)), "time"),
    }
