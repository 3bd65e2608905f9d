"""A training with Hugging Face's Trainer, as a user writes it: a small BERT that sorts sequences.

python -m torch.distributed.run --nproc-per-node 2 huggingface_loop.py FOLDER JOB
"""

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from gcsim.integrations.huggingface import CompressGradients, RecordGradients

STEPS = 12


def dataset() -> list[dict[str, Any]]:
    tokens = torch.randint(1, 60, (64, 16), generator=torch.Generator().manual_seed(1))
    return [{"input_ids": one, "labels": int(one[0] > 30)} for one in tokens]


class FailsError(Exception):
    """Of a training."""


class Fails(TrainerCallback):  # type: ignore[misc]  # Any to a type checker
    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == 2:
            raise FailsError


def trained(folder: Path, job: str) -> dict[str, Any]:
    torch.manual_seed(0)
    model = BertForSequenceClassification(
        BertConfig(
            vocab_size=60, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
            intermediate_size=64, max_position_embeddings=16, hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
    )  # fmt: skip
    arguments = TrainingArguments(
        output_dir=str(folder / "checkpoints"), max_steps=STEPS, per_device_train_batch_size=4,
        gradient_accumulation_steps=2, learning_rate=0.01, optim="sgd",
        lr_scheduler_type="constant", max_grad_norm=0.0, use_cpu=True, report_to=[],
        save_strategy="no", disable_tqdm=True, logging_strategy="no", seed=3,
        ddp_backend="gloo" if "RANK" in os.environ else None,
    )  # fmt: skip
    trainer = Trainer(model=model, args=arguments, train_dataset=dataset())
    hook = None
    if job.startswith("record"):
        stop = job == "record and stop"
        trainer.add_callback(
            RecordGradients(trainer, folder / job, iterations=4, timed=2, then_stop=stop)
        )
    elif job != "plain":
        compressor, parameters = {
            "none": ("none", {}), "topk": ("topk", {"ratio": 0.05}),
        }[job.removesuffix(" twice")]  # fmt: skip
        hook = CompressGradients(trainer, compressor, **parameters)
        trainer.add_callback(hook)
    if job.endswith("fails"):
        trainer.add_callback(Fails())
        for _ in range(2):
            with suppress(FailsError):
                trainer.train()
        left = sorted(one.name for one in folder.iterdir() if job in one.name)
        hooks = sum(len(one._backward_hooks or ()) for one in model.parameters())
        return {"left": left, "hooks": hooks + len(model._forward_pre_hooks)}
    for _ in range(2 if job.endswith("twice") else 1):
        trainer.train()
    return {
        "weights": {name: one.detach().clone() for name, one in model.named_parameters()},
        "steps": trainer.state.global_step,
        "compressed": -1 if hook is None else hook.hook.step,
    }


if __name__ == "__main__":
    place, *jobs = sys.argv[1:]
    rank = os.environ.get("RANK", "0")
    for each in jobs:
        torch.save(trained(Path(place), each), Path(place) / f"{each}.{rank}.pt")
