"""Under which name is a compressor's traffic profile cached? Everything that it depends on."""

from __future__ import annotations

import hashlib
import os
from dataclasses import asdict
from pathlib import Path

from gcsim.compressors.registry import REGISTRY
from gcsim.scenarios.scenario import CompressorChoice, RecordedGradients, Scenario
from gcsim.traces import cache
from gcsim.traces.manifest import MANIFEST


def profile_key(scenario: Scenario, choice: CompressorChoice) -> str:
    """The cache's name for the profile of `choice` in this scenario.

    The cluster is not part of it: changing the cluster runs no compressor again.
    """
    facts: dict[str, object] = {
        "compressor": choice.kind,
        "parameters": choice.parameters,
        "model": scenario.model,
        "input_shape": scenario.input_shape,
        "classes": scenario.classes,
        "batch_size": scenario.batch_size,
        "gradients": _gradients(scenario),
        "buckets": asdict(scenario.buckets),
        "seed": scenario.seed,
    }
    return cache.key(facts, _user_code(scenario, choice))


def _gradients(scenario: Scenario) -> dict[str, object]:
    source = scenario.gradients
    if isinstance(source, RecordedGradients):
        # `check_trace` has verified the files against this manifest
        digest = hashlib.sha256((source.trace / MANIFEST).read_bytes()).hexdigest()
        return {"trace": digest, "workers": source.workers}
    # Sums over threads differ in their last bits: gradients belong to a number of cores.
    return {
        **asdict(source),
        "cores": len(os.sched_getaffinity(0)),
        "gpu": source.device != "cpu" and Path("/proc/driver/nvidia/version").exists(),
    }


def _user_code(scenario: Scenario, choice: CompressorChoice) -> list[str]:
    """Modules outside gcsim whose change must make a new profile."""
    names = [] if choice.kind in REGISTRY else [choice.kind]
    if ":" in scenario.model:
        names.append(scenario.model)
    return [name.partition(":")[0] for name in names]
