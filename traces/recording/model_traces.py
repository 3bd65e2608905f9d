"""Traces of a model's gradients, given its name: build, warm up, compute, store."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

from gcsim.compressors.lazy_torch import nn, torch
from gcsim.errors import InputError
from gcsim.traces.live import LiveTrainer, pick_device
from gcsim.traces.models.building import build_model, trainable
from gcsim.traces.models.facts import model_facts
from gcsim.traces.models.registry import ModelEntry
from gcsim.traces.profile import Costs, PassTimes
from gcsim.traces.recording.clock import PassClock, median_pass
from gcsim.traces.recording.result import device_name
from gcsim.traces.storage.held import HeldTrace
from gcsim.traces.storage.writing import TraceWriter
from gcsim.traces.tasks.registry import described, make_task
from gcsim.traces.timing.allocator import keep_freed_memory

_TIMED = 5
"""Number of timed iterations, after an untimed one."""

Progress = Callable[[str, int, int], None]
"""Called with a description, the number of steps done, and their total."""


def record_live(
    *,
    model: ModelEntry,
    batch_size: int,
    workers: int,
    warmup_steps: int,
    iterations: int,
    learning_rate: float,
    momentum: float,
    device: str = "auto",
    seed: int,
    second_moments: bool = False,
    times: bool = False,
    dtype: str = "float32",
    folder: Path,
    held: HeldTrace | None = None,
    max_bytes: int | None = None,
    progress: Progress = lambda description, done, total: None,
) -> Path:
    """Train `model` on its task and store its workers' gradients in `folder`, or keep them in
    `held`, on the device.

    A step of the progress is one warm-up step or one worker's gradients. `max_bytes` limits the
    trace's files: as many whole iterations are kept as fit, and the last progress report says how
    many. With `times`, further iterations are timed on this machine, except the first. Raises
    `InputError` if the model cannot be trained, training diverges, the folder exists, the disk has
    no room for the trace, or not even one iteration fits. Then, or on an interrupt, nothing is left
    behind.
    """
    keep_freed_memory()
    place = pick_device(device)
    task = make_task(model, seed)
    with held.opened() if held else TraceWriter(folder, dtype=dtype) as writer:
        total = warmup_steps + iterations * workers
        progress(f"building {model.name}", 0, total)
        network = build_model(model, seed=seed)
        facts = model_facts(model, network, batch_size)
        writer.begin(facts, [(name, tuple(p.shape)) for name, p in trainable(network)])
        kept = writer.iterations_that_fit(iterations, workers, second_moments, max_bytes)
        total = warmup_steps + kept * workers
        trainer = LiveTrainer(
            model,
            network.to(place),
            task,
            batch_size=batch_size,
            learning_rate=learning_rate,
            momentum=momentum,
            seed=seed,
        )
        warmup_losses = []
        for loss in trainer.warm_up(warmup_steps):
            warmup_losses.append(loss)
            progress(f"training: loss {loss:.2f}", len(warmup_losses), total)
        costs: dict[int, Costs] = {}
        losses: list[float] = []
        for taken in trainer.gradients(kept, workers, with_second_moments=second_moments):
            writer.add(taken)
            losses.append(_finite(taken.loss, taken.iteration, taken.worker, learning_rate))
            costs = costs or taken.moment_costs
            progress(
                f"gradients of iteration {taken.iteration + 1} of {kept}",
                warmup_steps + len(losses),
                total,
            )
        if kept < iterations:
            progress(f"kept {kept} of {iterations} iterations: no more fit", total, total)
        writer.finish(
            passes=_timed(trainer, network) if times else None,
            workers=workers,
            iterations=kept,
            second_moments=second_moments,
            moment_costs=costs,
            ready_order=trainer.ready_order,
            source={
                "model": model.name,
                "data": described(model, task),
                "batch_size": batch_size,
                "seed": seed,
                "warmup_steps": warmup_steps,
                "learning_rate": learning_rate,
                "momentum": momentum,
                "dtype": dtype,
                "device": device_name(torch.device(place)),
                "torch": str(torch.__version__),
                "threads": torch.get_num_threads(),
                "warmup_losses": warmup_losses,
                "losses": losses,
            },
        )
    return folder


def _timed(trainer: LiveTrainer, network: nn.Module) -> PassTimes | None:
    """Time forward and backward of iterations that store nothing."""
    parameters = trainable(network)
    clock = PassClock(network, parameters)
    clock.start()
    passes = []
    try:
        for _ in trainer.gradients(_TIMED + 1, 1):
            passes.append(clock.turn())
    finally:
        clock.stop()
    found = [one for one in passes[1:] if one is not None]
    return median_pass(found, parameters[0][1].device) if found else None


def _finite(loss: float, iteration: int, worker: int, learning_rate: float) -> float:
    if not math.isfinite(loss):
        message = f"training diverged: the loss of iteration {iteration}, worker {worker} is {loss}"
        hint = f"choose a lower one than {learning_rate:g}"
        raise InputError(message, place="learning_rate", hint=hint)
    return loss
