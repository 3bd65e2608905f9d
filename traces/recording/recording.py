"""Recording of gradients in a user's training loop: `gcsim.record`.

    with gcsim.record(model, "my_trace") as recording:
        for inputs, labels in loader:
            optimizer.zero_grad()
            loss = criterion(model(inputs), labels)
            loss.backward()
            optimizer.step()
            if recording.step(loss):
                break

First `iterations` iterations give their gradients, then `timed` more, without copies, the times of
forward, backward and each gradient. Hooks only read: the model trains as without, and none is left
behind. Under `torch.distributed` every rank runs the same lines and is one worker of the trace,
with its gradient from before the averaging; otherwise the process is the worker, or, with
`workers=N`, each of the N backward passes between two optimiser steps, which see the same weights
and other data.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from gcsim.compressors.lazy_torch import nn
from gcsim.traces.recording.loop import Recording
from gcsim.traces.recording.result import Wanted
from gcsim.units import parse_bytes


def record(
    model: nn.Module,
    folder: str | Path,
    *,
    batch_size: int | None = None,
    start: int = 0,
    iterations: int = 20,
    timed: int = 5,
    workers: int = 1,
    name: str | None = None,
    dtype: Literal["float32", "float16"] = "float32",
    second_moments: bool = False,
    max_size: str | None = None,
    scaler: Any = None,
    allow_unused: bool = False,
    keep_partial: bool = False,
    distributed: bool = True,
    quiet: bool = False,
) -> Recording:
    """Record the gradients of `model`'s own training loop in `folder`, a new folder.

    Use it as a context around the loop and call `step` at the end of each iteration; it returns
    True when enough is recorded. The trace is complete then, or, with fewer iterations, when the
    context ends.

    Parameters
    ----------
    model
        As the loop calls it: a module, or one in `DistributedDataParallel` or `torch.compile`.
    batch_size
        Samples of one forward pass; by default the first size of its first tensor.
    start
        Steps of the loop that pass before the first recorded one, without hooks or copies. The
        gradients of a trained model compress otherwise than those of a fresh one. A step is a call
        of `step`, from where the context begins: a loop that goes on from a checkpoint counts
        afresh. Iterations that a `scaler` leaves out count too.
    iterations, timed
        How many iterations give gradients, and how many after them times.
    workers
        Virtual workers: backward passes between two steps of the optimiser. With 1, several
        passes are micro-batches, and the sum of their gradients is kept.
    name
        Of the model, in reports; default: the name of its class.
    dtype
        Of what is stored; gradients below 6e-8 are lost in float16, and how many is noted.
    second_moments
        Also store sum_z (g_z / B)^2 over the samples, for the variance-based compressor. Every
        parameter must be of a layer with a closed form, called once in a forward pass.
    max_size
        E.g. "2 GiB": as many whole iterations are kept as fit.
    scaler
        The loop's `torch.amp.GradScaler`: gradients are divided by its scale, and iterations that
        overflow are left out, as it leaves out the optimiser's step.
    allow_unused
        Store zeros for a parameter whose gradient does not arrive, instead of refusing.
    keep_partial
        Keep the whole iterations so far when the loop is interrupted or fails; else nothing is.
    distributed
        False: this process records alone although `torch.distributed` is initialised.
    quiet
        Print nothing.

    Raises
    ------
    InputError
        Of the context, its end or `step`, with place and way out: the folder exists, the disk
        or `max_size` has no room for one iteration, a gradient is missing, sparse, NaN or of
        another shape than before. Nothing is left behind then.
    """
    return Recording(
        model,
        Path(folder),
        Wanted(
            batch_size=batch_size,
            start=start,
            iterations=iterations,
            timed=timed,
            workers=workers,
            name=name,
            dtype=dtype,
            second_moments=second_moments,
            max_bytes=None if max_size is None else parse_bytes(max_size),
            allow_unused=allow_unused,
            keep_partial=keep_partial,
            distributed=distributed,
            quiet=quiet,
        ),
        scaler,
    )
