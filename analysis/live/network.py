"""What is trained? A small network of fully connected layers, on made-up samples.

Two million parameters: on a link of 100 Mbit/s a dense exchange takes most of a second, and a
step's own computation hundredths of one. What is learnt does not matter here, but gradients are
those of a task that can be learnt: a fixed random map gives the labels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gcsim.compressors.lazy_torch import torch
from gcsim.traces.models.entry import ModelEntry
from gcsim.traces.models.torch_generator import keyed_generator

if TYPE_CHECKING:
    from torch import Tensor, nn

PIXELS = 784
WIDTH = 1100
CLASSES = 10
ENTRY = ModelEntry(
    name="live_perceptron",
    title="Perceptron with two hidden layers",
    build="gcsim.analysis.live.network:build",
    input_shape=(PIXELS,),
    classes=CLASSES,
    parameters=(PIXELS + 1) * WIDTH + (WIDTH + 1) * WIDTH + (WIDTH + 1) * CLASSES,
    paper="",
)


def build() -> nn.Module:
    """The untrained network."""
    from torch import nn

    return nn.Sequential(
        nn.Linear(PIXELS, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(),
        nn.Linear(WIDTH, CLASSES),
    )  # fmt: skip


def batch(samples: int, *, worker: int, seed: int) -> tuple[Tensor, Tensor]:
    """Samples float32 `[samples, PIXELS]` and labels int64 `[samples]`; each worker has its own,
    and all the same task."""
    with keyed_generator(seed, "labels of the live task"):
        teacher = torch.randn(PIXELS, CLASSES)
    with keyed_generator(seed, "samples of the live task", rank=worker):
        samples_ = torch.randn(samples, PIXELS)
    return samples_, (samples_ @ teacher).argmax(1)
