"""A scenario as the file that would load to it: every default filled in, units written out.

It is what stands beside the results and can be run again. Links stand in it by value, with
their sources: five lines, and the file alone says what was simulated. A device stands in it by
name with a fingerprint of its catalogue entry: that is some forty numbers with their sources,
and a changed entry must not pass for the old one.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from gcsim import units
from gcsim.compressors.registry import check_parameters
from gcsim.scenarios import catalog
from gcsim.scenarios.scenario import LiveGradients, MeasuredCompute, RecordedGradients, Scenario
from gcsim.scenarios.schema import PER_NODE
from gcsim.simulator.links import Link


def resolved(scenario: Scenario, description: str = "") -> dict[str, Any]:
    """Dicts, lists and scalars; `document.write` makes YAML of them."""
    entries: dict[str, Any] = {"name": scenario.name}
    if description:
        entries["description"] = description
    entries["model"] = _model(scenario)
    entries["batch_size"] = scenario.batch_size
    entries["gradients"] = _gradients(scenario.gradients)
    entries["cluster"] = _cluster(scenario)
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


def _model(scenario: Scenario) -> str | dict[str, Any]:
    if scenario.input_shape is None:
        return scenario.model
    return {
        "build": scenario.model,
        "input_shape": list(scenario.input_shape),
        "classes": scenario.classes,
    }


def _gradients(gradients: LiveGradients | RecordedGradients) -> dict[str, Any]:
    if isinstance(gradients, RecordedGradients):
        workers = {} if gradients.workers is None else {"workers": gradients.workers}
        return {"source": "recorded", "trace": str(gradients.trace), **workers}
    return {
        "source": "live",
        "workers": gradients.workers,
        "warmup_steps": gradients.warmup_steps,
        "iterations": gradients.iterations,
        "learning_rate": gradients.learning_rate,
        "momentum": gradients.momentum,
        "device": gradients.device,
    }


def _cluster(scenario: Scenario) -> dict[str, Any]:
    cluster = scenario.cluster
    chosen = cluster.collectives
    return {
        "nodes": list(scenario.node_counts),
        "devices_per_node": cluster.devices_per_node,
        "device": {
            "name": cluster.device.name,
            "fingerprint": catalog.fingerprint(cluster.device),
        },
        "network": _link(cluster.network),
        "intra_node": _link(cluster.intra_node),
        "collectives": {
            "transport": chosen.transport,
            "all_reduce": chosen.all_reduce,
            "all_gather": chosen.all_gather,
            "pipeline_block": units.exact(chosen.pipeline_block, "size"),
            "servers": PER_NODE if scenario.server_per_node else chosen.servers,
        },
    }


def _link(link: Link) -> dict[str, str | bool]:
    return {
        "name": link.name,
        "bandwidth": units.exact(link.bandwidth, "bandwidth"),
        "latency": units.exact(link.latency, "time"),
        "efficiency": units.decimal(link.efficiency) or str(link.efficiency),
        "source": link.source,
        "estimate": link.estimate,
    }


def _compute(compute: MeasuredCompute) -> dict[str, str]:
    # repr has the digits that make the same float again
    return {
        "forward": units.exact(Fraction(repr(compute.forward)), "time"),
        "backward": units.exact(Fraction(repr(compute.backward)), "time"),
    }
