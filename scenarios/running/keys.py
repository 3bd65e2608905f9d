"""Under which name is a compressor's traffic profile cached? Everything that it depends on."""

from __future__ import annotations

import hashlib
from dataclasses import asdict
from pathlib import Path

from gcsim.compressors.options.method import code_of
from gcsim.compressors.registry import REGISTRY
from gcsim.scenarios.scenario import (
    CompressorChoice,
    ProfiledCompute,
    RecordedGradients,
    Scenario,
    SyntheticGradients,
)
from gcsim.traces.stage1 import cache, machine
from gcsim.traces.storage.manifest import MANIFEST
from gcsim.traces.synthetic.fit_file import DEFAULT


def profile_key(scenario: Scenario, choice: CompressorChoice) -> str:
    """The cache's name for the profile of `choice` in this scenario.

    The cluster is not part of it: changing the cluster runs no compressor again. This machine is:
    a run from the cache gives what the same run without one would give here.
    """
    facts: dict[str, object] = {
        "compressor": choice.kind,
        "parameters": choice.parameters,
        "model": asdict(scenario.model),
        "batch_size": scenario.batch_size,
        "gradients": _gradients(scenario),
        "buckets": asdict(scenario.buckets),
        "seed": scenario.seed,
        "machine": machine.facts(),
    }
    code = code_of(choice.kind, choice.parameters)
    return cache.key(facts, user_code(scenario, choice), compressor=code)


def _gradients(scenario: Scenario) -> dict[str, object]:
    source = scenario.gradients
    if isinstance(source, RecordedGradients):
        # `check_trace` has verified the files against this manifest
        digest = hashlib.sha256((source.trace / MANIFEST).read_bytes()).hexdigest()
        return {"trace": digest, "workers": source.workers}
    if isinstance(source, SyntheticGradients):
        fit = hashlib.sha256((source.fit or DEFAULT).read_bytes()).hexdigest()
        return {"fit": fit, "workers": source.workers, "iterations": source.iterations}
    return {
        **asdict(source),
        "gpu": source.device != "cpu" and Path("/proc/driver/nvidia/version").exists(),
    }


def user_code(scenario: Scenario, choice: CompressorChoice) -> list[str]:
    """Modules outside gcsim whose change must make a new profile."""
    names = own_model_code(scenario)
    if choice.kind not in REGISTRY:
        names.add(choice.kind)
    return sorted(name.partition(":")[0] for name in names)


def own_model_code(scenario: Scenario) -> set[str]:
    """What builds the model, as `package.module:build`, where that is the user's code."""
    build = scenario.model.build
    return set() if build is None or build.startswith("gcsim.") else {build}


def input_files(scenario: Scenario) -> tuple[Path, ...]:
    """Files outside the scenario that its results depend on, each by its content."""
    files = []
    if isinstance(scenario.gradients, RecordedGradients):
        files.append(scenario.gradients.trace / MANIFEST)
    if isinstance(scenario.gradients, SyntheticGradients) and scenario.gradients.fit is not None:
        files.append(scenario.gradients.fit)
    if isinstance(scenario.compute, ProfiledCompute):
        files.append(scenario.compute.profile)
    return tuple(files)
