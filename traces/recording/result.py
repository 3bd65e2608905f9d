"""Options of a recording, each process's part, and the final summary."""

from __future__ import annotations

import math
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.errors import InputError
from gcsim.traces.profile import ModelFacts, PassTimes
from gcsim.traces.recording.clock import OnePass
from gcsim.traces.storage.writing import Written

_MEGA = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The arguments of `record`, which documents them."""

    batch_size: int | None
    start: int
    iterations: int
    timed: int
    workers: int
    name: str | None
    dtype: str
    second_moments: bool
    max_bytes: int | None
    allow_unused: bool
    distributed: bool
    quiet: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """A rank's part of the recording, which it sends to rank 0 at the end."""

    written: Written
    losses: list[float | None]
    passes: list[OnePass]


def where_from(
    facts: ModelFacts,
    wanted: Wanted,
    device: torch.device,
    shares: Sequence[Share],
    iterations: int,
) -> dict[str, object]:
    """Return the source of the gradients: plain values for reports."""
    losses = [share.losses[iteration] for iteration in range(iterations) for share in shares]
    return {
        "model": facts.name,
        "data": "a training loop of the user's",
        "batch_size": facts.samples_per_worker,
        "dtype": wanted.dtype,
        "device": device_name(device),
        "torch": str(torch.__version__),
        "threads": torch.get_num_threads(),
        "processes": len(shares),
        "losses": [] if None in losses else losses,
    }


def summary(
    folder: Path,
    wanted: Wanted,
    *,
    iterations: int,
    limit: int,
    workers: int,
    micro_batches: int,
    times: PassTimes | None,
    spent: float,
) -> str:
    """Return a summary of a recording as text; `spent` is in seconds."""
    words = f"{iterations} iteration{'s' if iterations > 1 else ''}"
    if iterations < wanted.iterations:
        words += f" of {wanted.iterations}" + (" (no more fit)" if iterations == limit else "")
    words += f", {workers} worker{'s' if workers > 1 else ''}"
    if wanted.start:
        words += f", after {wanted.start} steps of training"
    if micro_batches > 1:
        words += f", the sum of {micro_batches} micro-batches each"
    nbytes = sum(path.stat().st_size for path in folder.iterdir())
    text = (
        f"gcsim: recorded {words}: {nbytes / _MEGA:.1f} MB in {folder}; storing took {spent:.2f} s"
    )
    if times is not None:
        text += f"\ngcsim: forward {1e3 * times.forward:.3g} ms, "
        text += f"backward and optimiser {1e3 * times.backward:.3g} ms"
    elif wanted.timed:
        text += "\ngcsim: no times: the loop ended before the iterations behind the recorded ones, "
        text += "in which they are taken"
    return text


def checked_loss(loss: Tensor | float) -> float:
    """Return the loss as a number. Raises `InputError` if it is not finite."""
    value = float(loss.detach()) if isinstance(loss, torch.Tensor) else float(loss)
    if not math.isfinite(value):
        hint = "training diverges: choose a lower learning rate"
        raise InputError(f"the loss is {value}", place="recording.step", hint=hint)
    return value


def device_name(device: torch.device) -> str:
    """Return the device's name for reports."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{device.type.upper()} ({platform.machine()})"
