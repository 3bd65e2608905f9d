"""What do the compressors send in the training that is about to be measured? Stage 1, on its
gradients."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gcsim.analysis.live.plan import Plan, TrainingTask
from gcsim.scenarios.progress import Progress
from gcsim.traces.profile import TrafficProfile


def traffic_profiles(plan: Plan, trace: Path, progress: Progress) -> dict[str, TrafficProfile]:
    """By label of the plan's methods; `trace` holds gradients of as many workers as ranks."""
    import yaml

    from gcsim.scenarios.load import load_scenario
    from gcsim.scenarios.run import traffic_profiles as run_compressors
    from gcsim.scenarios.running.keys import profile_keys

    file = trace.parent / "live.yaml"
    file.write_text(yaml.safe_dump(_scenario(plan, plan.training, trace)), encoding="utf-8")
    scenario = load_scenario(file)
    keys = profile_keys(scenario)
    found = run_compressors(scenario, keys, use_cache=False, progress=progress)
    return {task.label: profile for task, profile in zip(plan.training, found, strict=True)}


def _scenario(plan: Plan, tasks: Sequence[TrainingTask], trace: Path) -> dict[str, Any]:
    """Its cluster is of no account: only what is sent is asked for."""
    return {
        "name": "live",
        "model": "recorded",
        "batch_size": plan.batch,
        "gradients": {"source": "recorded", "trace": str(trace)},
        "cluster": {
            "nodes": plan.most_ranks,
            "devices_per_node": 1,
            "device": "cpu_2core",
            "network": "1gbe",
            "intra_node": "host_memory",
        },
        "compressors": [
            {"kind": task.compressor, "label": task.label, **task.parameters} for task in tasks
        ],
        "seed": plan.seed,
    }
