"""Where do the numbers of a result come from? Versions, seeds, hashes, sources.

Plain values, the same for the same scenario and seed on the same machine: no date, no path.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Sequence
from importlib import metadata
from typing import Any

import gcsim
from gcsim.scenarios.scenario import Scenario
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
        "compute": {"source": compute.provenance, "estimate": compute.estimate},
        "kernels": {
            "method": "metered: torch kernels counted between collectives, priced by class",
            "device": cluster.device.title,
            "classes": {
                kind: {"source": rate.source, "estimate": rate.estimate}
                for kind, rate in cluster.device.kernels.items()
            },
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


def _link(link: Link) -> dict[str, object]:
    return {
        "name": link.name,
        "calibration": "ideal" if link.efficiency == 1 else "calibrated",
        "efficiency": float(link.efficiency),
        "source": link.source,
    }
