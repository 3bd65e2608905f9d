"""Keyed random numbers for layers that use torch's default generator: dropout, and modules' own
initialisation. `keyed_generator` seeds it from the seed and the purpose and restores it afterwards,
so gcsim neither changes nor depends on the global state."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from gcsim.compressors.lazy_torch import torch


@contextmanager
def keyed_generator(
    seed: int,
    purpose: str,
    *,
    step: int = 0,
    rank: int | None = None,
    device: torch.device | None = None,
) -> Iterator[None]:
    """Key the CPU's default generator inside, and that of `device` if it is a GPU, by
    `gcsim.compressors.random.stream(seed, step, 0, purpose, rank)`."""
    from gcsim.compressors.random import stream

    key = int(stream(seed, step, 0, purpose, rank).integers(1 << 63))
    gpus = []
    if device is not None and device.type == "cuda":
        gpus = [torch.cuda.current_device() if device.index is None else device.index]
    with torch.random.fork_rng(devices=gpus):
        torch.default_generator.manual_seed(key)
        for gpu in gpus:
            torch.cuda.default_generators[gpu].manual_seed(key)
        yield
