"""A training with Lightning's Trainer, as a user writes it: a small network for random digits.

python lightning_loop.py FOLDER PROCESSES JOB
"""

import os
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from gcsim.integrations.lightning import CompressGradients, RecordGradients

STEPS = 12


class FailsError(Exception):
    """Of a training."""


class Fails(Callback):  # type: ignore[misc]  # Any to a type checker
    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        if trainer.global_step == 2:
            raise FailsError


class Digits(LightningModule):  # type: ignore[misc]  # Any to a type checker
    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        inputs, labels = batch
        return nn.functional.cross_entropy(self.network(inputs), labels)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def loader() -> DataLoader[Any]:
    inputs = torch.randn(256, 16, generator=torch.Generator().manual_seed(1))
    return DataLoader(TensorDataset(inputs, inputs[:, :4].argmax(1)), batch_size=4)


def trained(folder: Path, processes: int, job: str) -> dict[str, Any]:
    torch.manual_seed(0)
    module = Digits()
    callbacks: list[Any] = []
    if job.startswith("record"):
        stop = job == "record and stop"
        callbacks += [
            RecordGradients(folder / job, network="network", iterations=4, timed=2, then_stop=stop)
        ]
    elif job != "plain":
        compressor, parameters = {
            "none": ("none", {}), "topk": ("topk", {"ratio": 0.05}),
        }[job.removesuffix(" twice")]  # fmt: skip
        callbacks += [CompressGradients(compressor, **parameters)]
    fails = job.endswith("fails")
    callbacks += [Fails()] if fails else []
    strategy: Any = DDPStrategy(process_group_backend="gloo") if processes > 1 else "auto"
    make = partial(
        Trainer, accelerator="cpu", devices=processes, strategy=strategy,
        accumulate_grad_batches=2, callbacks=callbacks, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, default_root_dir=folder,
    )  # fmt: skip
    trainer = make(max_steps=STEPS)
    if fails:
        for _ in range(2):
            with suppress(FailsError):
                trainer.fit(module, loader())
        left = sorted(one.name for one in folder.iterdir() if job in one.name)
        hooks = sum(len(one._backward_hooks or ()) for one in module.parameters())
        return {"left": left, "hooks": hooks + len(module.network._forward_pre_hooks)}
    trainer.fit(module, loader())
    if job.endswith("twice"):
        trainer.fit_loop.epoch_loop.max_steps = 2 * STEPS
        trainer.fit(module, loader())
    compressed = [one.hook.step for one in callbacks if isinstance(one, CompressGradients)]
    return {
        "weights": {name: one.detach().clone() for name, one in module.named_parameters()},
        "steps": trainer.global_step,
        "compressed": compressed[0] if compressed else -1,
    }


if __name__ == "__main__":
    place, count, *jobs = sys.argv[1:]
    for each in jobs:
        done = trained(Path(place), int(count), each)
        torch.save(done, Path(place) / f"{each}.{os.environ.get('LOCAL_RANK', '0')}.pt")
