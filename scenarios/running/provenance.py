"""Provenance of a result's numbers: versions, seeds, hashes, sources.

It has no dates and no paths, so it is the same for the same scenario, seed and machine.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from gcsim.scenarios.reading.document import dotted
from gcsim.scenarios.running.result_cache import versions
from gcsim.scenarios.running.simulate import Stage2
from gcsim.scenarios.scenario import Scenario
from gcsim.scenarios.sections.cluster import links_of, random_settings, timed_settings
from gcsim.scenarios.sections.link import link_facts
from gcsim.scenarios.uncertainty.figures import PASSES, Input, is_of_device
from gcsim.scenarios.uncertainty.kernel_use import COEFFICIENTS, use
from gcsim.simulator.clock import seconds
from gcsim.simulator.cluster import Cluster
from gcsim.simulator.devices.device import KernelRate
from gcsim.simulator.devices.pricing import PriceList, price_sources
from gcsim.simulator.devices.training_time import ComputeTimes
from gcsim.simulator.network.links import Link
from gcsim.simulator.plans import pass_slowdown
from gcsim.simulator.predict import Prediction
from gcsim.simulator.steps.averages import slow_ranks
from gcsim.traces.profile import TrafficProfile


def provenance(
    subject: Stage2,
    keys: Sequence[str],
    predictions: Sequence[Sequence[Prediction]],
    inputs: Sequence[Input] = (),
) -> dict[str, Any]:
    """`provenance` of `results.json`."""
    scenario, profiles, compute = subject.scenario, subject.profiles, subject.stated
    cluster = scenario.cluster
    resolved = json.dumps(scenario.resolved, sort_keys=True, default=str)
    return {
        "versions": versions("torch", "numpy", "simpy"),
        "seed": scenario.seed,
        "scenario_sha256": hashlib.sha256(resolved.encode()).hexdigest(),
        "profiles": {
            choice.label: key for choice, key in zip(scenario.compressors, keys, strict=True)
        },
        "gradients": profiles[0].gradients,
        "steps_run": {
            choice.label: {phase.name: len(phase.steps) for phase in profile.phases}
            for choice, profile in zip(scenario.compressors, profiles, strict=True)
        },
        "compute": _compute(scenario, compute),
        **({"groups": list(_groups(scenario, compute))} if scenario.cluster.groups else {}),
        "kernels": _kernels(scenario, profiles, subject.prices),
        "links": _links(cluster),
        "transport": cluster.collectives.transport,
        "averages": _averages(scenario),
        "estimates": _estimates(subject, inputs),
        "algorithms": {
            choice.label: sorted({name for size in sizes for name in size.algorithms})
            for choice, sizes in zip(scenario.compressors, predictions, strict=True)
        },
    }


def _compute(scenario: Scenario, compute: ComputeTimes) -> dict[str, object]:
    """Return the simulated passes, and the catalogue's coefficients that they follow from."""
    device = scenario.cluster.device
    facts: dict[str, object] = {
        "source": compute.provenance,
        "estimate": compute.estimate,
        "forward_s": seconds(compute.forward),
        "backward_s": seconds(compute.backward),
    }
    if scenario.compute is not None:
        return facts  # measured by the user: nothing of the catalogue is in them
    return {
        **facts,
        "precision": scenario.training.precision,
        **dict(compute.figures),
        "backward_over_forward": device.backward_over_forward,
    }


def _groups(scenario: Scenario, compute: ComputeTimes) -> Iterator[dict[str, object]]:
    """Describe each group of nodes, with a worker's batch and passes."""
    cluster = scenario.cluster
    slow = slow_ranks(cluster, scenario.training)
    slow = np.ones(cluster.workers) if slow is None else slow
    slow_of_group = np.split(slow, np.cumsum(cluster.ranks_of_groups)[:-1])
    for number, group in enumerate(cluster.groups):
        longer = pass_slowdown(cluster, scenario.training, number)
        passes = compute.of_group(number).scaled(longer)
        yield {
            "nodes": group.nodes,
            "workers": cluster.ranks_of_groups[number],
            "device": group.device.name,
            "batch_size": round(group.batch * scenario.batch_size),
            "forward_s": seconds(passes.forward),
            "backward_s": seconds(passes.backward),
            "slowdown": float(slow_of_group[number].max()),  # of its slowest worker
            "source": passes.provenance,
        }


def _kernels(
    scenario: Scenario, profiles: Sequence[TrafficProfile], prices: PriceList
) -> dict[str, object]:
    """Describe the sources of the kernels' prices, and the seconds of a mean step by source."""
    workers, device = scenario.cluster.workers, scenario.cluster.device
    by_name = "by name where it was measured, else by class" if device.primitives else "by class"
    return {
        "method": f"metered: torch kernels counted between collectives, priced {by_name}",
        "device": device.title,
        "classes": {kind: _kernel_class(rate) for kind, rate in device.kernels.items()},
        "measured_by_name": len(device.primitives),
        "priced_s": {
            choice.label: prices.once(
                ("sources", workers), profile, partial(price_sources, profile, prices, workers)
            )
            for choice, profile in zip(scenario.compressors, profiles, strict=True)
        },
    }


def _kernel_class(rate: KernelRate) -> dict[str, object]:
    """Price of a kernel class; None where a coefficient does not apply."""
    return {
        "source": rate.source,
        "estimate": rate.estimate,
        "launch_s": rate.launch,
        "bandwidth_bytes_per_s": rate.bandwidth,
        "flop_rate_per_s": rate.flop_rate,
    }


def _links(cluster: Cluster) -> dict[str, object]:
    """Describe the links by place; `nics` has each kind of NIC with its nodes."""
    kinds: dict[Link, list[int]] = {}
    for node, nic in sorted(cluster.nics.items()):
        kinds.setdefault(nic, []).append(node)
    found: dict[str, object] = {}
    for key_path, link in links_of(cluster).items():
        if key_path[:2] == ("cluster", "nics"):
            found["nics"] = [{"nodes": nodes, **link_facts(nic)} for nic, nodes in kinds.items()]
        elif key_path[:2] == ("cluster", "groups"):
            found[dotted(key_path[1:])] = link_facts(link)
        else:
            found["rack_uplink" if key_path[-1] == "uplink" else str(key_path[-1])] = link_facts(
                link
            )
    return found


def _averages(scenario: Scenario) -> dict[str, object] | None:
    """Describe why iterations differ and over how many the means are; None if all are equal."""
    random = random_settings(scenario.cluster, scenario.training)
    timed = timed_settings(scenario.cluster)
    if not random and not timed:
        return None
    return {
        "iterations": scenario.training.iterations,
        "random": [dotted(key_path) for key_path in random],
        "changing_with_time": [dotted(key_path) for key_path in timed],
        "seed": scenario.seed,
    }


def _estimates(subject: Stage2, inputs: Sequence[Input]) -> list[dict[str, object]]:
    """List the figures that were neither measured on that hardware nor stated, and those with a
    range; the range is None if unknown."""
    cluster, compute = subject.scenario.cluster, subject.stated
    found: list[dict[str, object]] = [
        {"setting": dotted(key_path)}
        for key_path, link in links_of(cluster).items()
        if link.estimate
    ]
    device, workers = cluster.device, cluster.workers
    needed = {
        figure
        for profile in subject.profiles
        for figure in subject.prices.once(
            ("use", workers), profile, partial(use, profile, device, workers)
        )
    }
    for kind, rate in (*device.kernels.items(), *device.host.items()):
        for name, (words, unit) in COEFFICIENTS.items():
            value, bounds = getattr(rate, name), getattr(rate, f"{name}_range")
            if (kind, name) in needed and value is not None and (rate.estimate or bounds):
                found.append(
                    {
                        "setting": "cluster.device",
                        "kernels": f"queued {kind}" if kind in device.host else kind,
                        "figure": words,
                        "value": value,
                        "unit": unit,
                        "range": None if bounds is None else list(bounds),
                    }
                )
    bounds = {one.main.key_path: [one.main.low, one.main.high] for one in inputs}
    if compute.estimate or PASSES in bounds:
        found.append(
            {
                "setting": "compute",
                "figure": "forward and backward",
                "value": seconds(compute.total),
                "unit": "s",
                "range": bounds.get(PASSES),
            }
        )
    found += [
        {
            "setting": dotted(tuple(map(str, figure.key_path))),
            "figure": figure.field,
            "value": float(figure.stated),
            "unit": one.unit,
            "range": [figure.low, figure.high],
        }
        for one in inputs
        for figure in one.figures
        if figure.key_path[:1] != PASSES and not is_of_device(figure.key_path)
    ]
    return found
