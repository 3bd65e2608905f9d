"""Where do the traffic profiles of an advice come from? With gcsim, or measured as for a run.

A shipped profile was measured on gradients drawn from the fit that comes with gcsim, with this many
workers, iterations and samples (`setting`). It stands for the same model with any batch size and
any seed: what a method sends and computes hangs on the shapes of the tensors, and of the few that
go by values on their distribution.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path

from gcsim.compressors.registry import REGISTRY
from gcsim.scenarios.scenario import CompressorChoice, DdpBuckets, Scenario
from gcsim.traces.models.registry import MODELS, ModelEntry
from gcsim.traces.profile import TrafficProfile
from gcsim.traces.stage1 import shipped
from gcsim.traces.synthetic.fit_file import DEFAULT

WORKERS, ITERATIONS, SEED = 2, 2, 0
LARGE_BUCKET = 100 << 20
"""Of uncompressed training and half precision there are profiles with buckets of that, too."""
_SAMPLES, _TOKENS = 32, 4096


def usual_batch(model: ModelEntry) -> int:
    """Samples a worker that shipped profiles are of, and that advice is for where nobody says: 32,
    of sequences at most as many as hold 4,096 tokens."""
    tokens = model.input_shape[0] if model.input == "tokens" and model.input_shape else 0
    return min(_SAMPLES, max(1, _TOKENS // tokens)) if tokens else _SAMPLES


def setting(model: ModelEntry) -> dict[str, object]:
    """What a scenario says so that its own run measures what is shipped."""
    return {
        "batch_size": usual_batch(model),
        "gradients": {"source": "synthetic", "workers": WORKERS, "iterations": ITERATIONS},
        "seed": SEED,
    }


def name_of(model: ModelEntry, choice: CompressorChoice, buckets: DdpBuckets) -> str:
    """What a shipped profile of a method is called."""
    facts: Mapping[str, object] = {
        "compressor": choice.kind,
        "parameters": choice.parameters,
        "model": model.name,
        "buckets": asdict(buckets),
        "setting": setting(model),
        "fit": _fit(),
    }
    return shipped.name_of(facts)


def path_of(model: ModelEntry, folder: Path | None = None) -> Path:
    """The file of a model's profiles."""
    return (folder or shipped.FOLDER) / f"{model.name}.json.xz"


def shipped_profile(scenario: Scenario, choice: CompressorChoice) -> TrafficProfile | None:
    """What comes with gcsim for a method of a scenario, and is of this code; else None."""
    model = scenario.model
    known = MODELS.get(model.name)
    if known is None or (known.build, known.layers) != (model.build, model.layers):
        return None
    found = shipped.read(path_of(model)).get(name_of(model, choice, scenario.buckets))
    if found is None or found.code != shipped.code_of(model, REGISTRY.get(choice.kind)):
        return None
    profile = found.profile()
    if profile is None:
        return None
    facts = replace(profile.model, samples_per_worker=scenario.batch_size)
    return replace(profile, model=facts)


@cache
def _fit() -> str:
    return hashlib.sha256(DEFAULT.read_bytes()).hexdigest()
