"""What do tries run that read something else than scenarios? LeNet, two workers, one iteration."""

import copy
from pathlib import Path
from typing import Any

from tests.command import gcsim
from tests.fuzz.case import write
from tests.fuzz.mutation import as_yaml

_SMALL: dict[str, Any] = {
    "model": "lenet",
    "batch_size": 32,
    "gradients": {"source": "synthetic", "workers": 2, "iterations": 1},
    "cluster": {
        "nodes": [1, 2],
        "devices_per_node": 1,
        "device": "cpu_2core",
        "network": "1gbe",
        "intra_node": "host_memory",
        "collectives": {"transport": "textbook"},
    },
    "compressors": ["none", {"kind": "topk", "label": "top", "ratio": 0.01}],
    "uncertainty": {"draws": 8},
    "seed": 0,
}


def small(**sections: Any) -> dict[str, Any]:
    """A scenario that runs in a fraction of a second, some sections others."""
    scenario = copy.deepcopy(_SMALL)
    cluster = sections.pop("cluster", {})
    scenario["cluster"] |= cluster
    return scenario | sections


def written(folder: Path, **sections: Any) -> Path:
    """Such a scenario as `s.yaml` in the folder."""
    return write(folder / "s.yaml", as_yaml(small(**sections)))


def recorded(folder: Path) -> Path:
    """A trace of LeNet with times, recorded in the folder."""
    live = {"source": "live", "workers": 2, "iterations": 2, "warmup_steps": 1}
    written(folder, gradients=live)
    done = gcsim("record", "s.yaml", "-o", "trace", "--times", "--second-moments", folder=folder)
    assert done.returncode == 0, done.stderr
    return folder / "trace"
