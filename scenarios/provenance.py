"""Where do the numbers of a result come from? Versions, seeds, hashes, sources.

Plain values, the same for the same scenario and seed on the same machine: no date, no path.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Sequence
from importlib import metadata
from typing import Any, Literal

import gcsim
from gcsim.scenarios import catalog
from gcsim.scenarios.scenario import Scenario
from gcsim.simulator.clock import seconds
from gcsim.simulator.device import KernelRate
from gcsim.simulator.links import Link
from gcsim.simulator.predict import Prediction
from gcsim.simulator.training_time import ComputeTimes
from gcsim.traces.profile import TrafficProfile


def provenance(
    scenario: Scenario,
    profiles: Sequence[TrafficProfile],
    keys: Sequence[str],
    compute: ComputeTimes,
    predictions: Sequence[Sequence[Prediction]],
) -> dict[str, Any]:
    """The `provenance` part of `results.json`."""
    cluster = scenario.cluster
    resolved = json.dumps(scenario.resolved, sort_keys=True, default=str)
    return {
        "versions": {
            "gcsim": gcsim.__version__,
            "python": platform.python_version(),
            **{name: metadata.version(name) for name in ("torch", "numpy", "simpy")},
        },
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
        "compute": _compute(scenario, profiles[0].model.name, compute),
        "kernels": {
            "method": "metered: torch kernels counted between collectives, priced by class",
            "device": cluster.device.title,
            "classes": {kind: _kernel_class(rate) for kind, rate in cluster.device.kernels.items()},
        },
        "links": {
            "network": _link(cluster.network),
            "intra_node": _link(cluster.intra_node),
        },
        "transport": cluster.collectives.transport,
        "algorithms": {
            choice.label: sorted({name for size in sizes for name in size.algorithms})
            for choice, sizes in zip(scenario.compressors, predictions, strict=True)
        },
    }


def _compute(scenario: Scenario, model: str, compute: ComputeTimes) -> dict[str, object]:
    """The times that were simulated, and the coefficients of the catalogue that made them."""
    device = scenario.cluster.device
    facts: dict[str, object] = {
        "source": compute.provenance,
        "estimate": compute.estimate,
        "forward_s": seconds(compute.forward),
        "backward_s": seconds(compute.backward),
    }
    if scenario.compute is not None:
        return facts  # measured by the user: nothing of the catalogue is in them
    rate = device.training.get(model)
    if rate is None:
        facts["effective_flop_rate_per_s"] = device.effective_flop_rate
    else:
        facts |= {"fixed_s": rate.fixed, "per_sample_s": rate.per_sample}
    return {**facts, "backward_over_forward": device.backward_over_forward}


def _kernel_class(rate: KernelRate) -> dict[str, object]:
    """What a kernel of this class was priced with; None where a coefficient does not apply."""
    return {
        "source": rate.source,
        "estimate": rate.estimate,
        "launch_s": rate.launch,
        "bandwidth_bytes_per_s": rate.bandwidth,
        "flop_rate_per_s": rate.flop_rate,
    }


def _link(link: Link) -> dict[str, object]:
    return {
        "name": link.name,
        "calibration": _calibration(link),
        "efficiency": float(link.efficiency),
        "source": link.source,
    }


def _calibration(link: Link) -> Literal["measured", "estimate", "stated", "ideal"]:
    """How the link's figures were arrived at.

    Only an unchanged entry of the catalogue is measured or ideal; what else is no estimate was
    stated by the user.
    """
    shipped = catalog.links().get(link.name) == link
    if shipped and link.name.endswith("_ideal"):
        return "ideal"
    if link.estimate:
        return "estimate"
    return "measured" if shipped else "stated"
