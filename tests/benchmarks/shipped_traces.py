"""Script that makes the shipped traces: `python -m tests.benchmarks.shipped_traces FOLDER`. On
one thread of the same processor, with the manifests' versions, equal seeds give equal files."""

from __future__ import annotations

import sys
from pathlib import Path

from gcsim.compressors.lazy_torch import torch
from gcsim.traces.models.registry import shipped_model
from gcsim.traces.recording.model_traces import record_live

SEED = 1
WORKERS = 4
BATCH_SIZE = 32
RECIPES = {
    "transformer_small": (0.1, {"early": 20, "middle": 400, "late": 1500}),
    "vgg_narrow_cifar10": (0.1, {"early": 20, "middle": 300, "late": 1500}),
    "resnet20_cifar10": (0.02, {"early": 20, "middle": 200, "late": 1000}),
}
"""Learning rate, and steps of training before each recording, by model."""


def make(folder: Path) -> None:
    """Record all of them in subfolders of `folder`; takes about five minutes. Raises `InputError`
    if one exists."""
    torch.set_num_threads(1)
    for model, (learning_rate, stages) in RECIPES.items():
        for stage, steps in stages.items():
            made = record_live(
                model=shipped_model(model),
                batch_size=BATCH_SIZE,
                workers=WORKERS,
                warmup_steps=steps,
                iterations=1,
                learning_rate=learning_rate,
                momentum=0.9,
                device="cpu",
                seed=SEED,
                dtype="float16",
                folder=folder / f"{model}-{stage}",
            )
            print(made)


if __name__ == "__main__":
    make(Path(sys.argv[1]))
