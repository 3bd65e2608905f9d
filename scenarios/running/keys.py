"""Cache keys of traffic profiles and gradients: hashes of everything that they depend on."""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from gcsim.compressors.options.method import code_of
from gcsim.compressors.registry import REGISTRY
from gcsim.errors import InputError
from gcsim.scenarios.scenario import (
    CompressorChoice,
    ProfiledCompute,
    RecordedGradients,
    Scenario,
    SyntheticGradients,
)
from gcsim.traces.stage1 import cache, machine
from gcsim.traces.stage1.own_code import own_code
from gcsim.traces.storage.manifest import MANIFEST
from gcsim.traces.synthetic.fit_file import DEFAULT

Own = Mapping[str, object]
"""Facts of the user's functions, by name (`own_code`)."""
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def profile_keys(scenario: Scenario) -> list[str]:
    """Cache keys of the scenario's profiles, in order."""
    model = own_model(scenario)
    return [_key(scenario, choice, model) for choice in scenario.compressors]


def same_traffic(one: Scenario, other: Scenario) -> bool:
    """Whether two scenarios' profiles have the same keys, in the same order."""
    fields = ("model", "batch_size", "gradients", "buckets", "seed", "compressors")
    return all(getattr(one, name) == getattr(other, name) for name in fields)


def profile_key(scenario: Scenario, choice: CompressorChoice) -> str:
    """Return the cache key of the profile of `choice`. The cluster is not part of it, so a changed
    cluster runs no compressor again; this machine is, since bits may differ between machines."""
    return _key(scenario, choice, own_model(scenario))


def _key(scenario: Scenario, choice: CompressorChoice, model: Own) -> str:
    facts: dict[str, object] = {
        "compressor": choice.kind,
        "parameters": choice.parameters,
        **_gradient_facts(scenario),
        "buckets": asdict(scenario.buckets),
    }
    own = {**model, **own_compressor(choice)}
    code = code_of(choice.kind, choice.parameters)
    return cache.key(facts, own, compressor=code)


def gradients_key(scenario: Scenario, *, second_moments: bool) -> str:
    """Cache key of the gradients that a scenario trains."""
    facts = {**_gradient_facts(scenario), "second_moments": second_moments}
    return cache.key(facts, own_model(scenario), compressor=REGISTRY["none"])


def _gradient_facts(scenario: Scenario) -> dict[str, object]:
    return {
        "model": asdict(scenario.model),
        "batch_size": scenario.batch_size,
        "gradients": _gradients(scenario),
        "seed": scenario.seed,
        "machine": machine.facts(),
    }


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


def own_model(scenario: Scenario) -> Own:
    """Return facts of the user's code for the model, if any. Calls the function, since an imported
    module may have been changed."""
    entry = scenario.model
    if entry.build is None or not own_model_code(scenario):
        return {}

    def build() -> object:
        from gcsim.traces.models.building import build_model

        with suppress(InputError):  # the run itself reports it
            model = build_model(entry, seed=scenario.seed, device="meta")
            parameters = model.named_parameters()
            shapes = [(name, list(p.shape), p.requires_grad) for name, p in parameters]
            return [shapes, _ADDRESS.sub("", repr(model))]
        return None

    fresh = entry.build.partition(":")[0] in sys.modules
    return {entry.build: own_code(entry.build, build, remembered=not fresh)}


def own_compressor(choice: CompressorChoice) -> Own:
    """Return facts of a user's compressor, found by one step on small buckets."""
    if choice.kind in REGISTRY:
        return {}

    def step() -> None:
        from gcsim.compressors.conformance import subject as trial

        with suppress(Exception):  # the run itself reports it
            subject = trial.subject_of(choice.kind, choice.parameters)
            given = trial.gradients(trial.numel(trial.SHAPES), 2, 0)
            subject.crew().step(given, subject.first)

    return {choice.kind: own_code(choice.kind, step)}


def own_model_code(scenario: Scenario) -> set[str]:
    """Return the user's function that builds the model, as `package.module:build`, if any."""
    build = scenario.model.build
    return set() if build is None or build.startswith("gcsim.") else {build}


def input_files(scenario: Scenario) -> tuple[Path, ...]:
    """Return the files outside the scenario whose contents its results depend on."""
    files = []
    if isinstance(scenario.gradients, RecordedGradients):
        files.append(scenario.gradients.trace / MANIFEST)
    if isinstance(scenario.gradients, SyntheticGradients) and scenario.gradients.fit is not None:
        files.append(scenario.gradients.fit)
    if isinstance(scenario.compute, ProfiledCompute):
        files.append(scenario.compute.profile)
    return tuple(files)
