"""Recording of gradients in a user's training loop: `gcsim.record`.

    with gcsim.record(model, "my_trace") as recording:
        for inputs, labels in loader:
            optimizer.zero_grad()
            loss = criterion(model(inputs), labels)
            loss.backward()
            optimizer.step()
            if recording.step(loss):
                break

The first `iterations` iterations record gradients; `timed` more record, without copies, the times
of forward, backward and each gradient. Hooks only read, so training is not affected, and they are
removed at the end. Under `torch.distributed` every rank runs the same lines and is one worker of
the trace, with its gradient before averaging; otherwise the process is the worker or, with
`workers=N`, each of the N backward passes between two optimiser steps, which have the same weights
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
    distributed: bool = True,
    quiet: bool = False,
) -> Recording:
    """Record the gradients of `model`'s own training loop in `folder`, a new folder.

    Use it as a context around the loop and call `step` at the end of each iteration; it returns
    True when enough is recorded. The trace is then complete; with fewer iterations it is completed
    when the context ends.

    Parameters
    ----------
    model
        As the loop calls it: a module, or one in `DistributedDataParallel` or `torch.compile`.
    batch_size
        Samples of one forward pass; by default the first size of its first tensor.
    start
        Steps of the loop to skip before the first recorded one, without hooks or copies. The
        gradients of a trained model compress differently from a new one's. A step is a call
        of `step` inside the context: a loop that continues from a checkpoint starts to count
        anew. Iterations that a `scaler` skips count too.
    iterations, timed
        How many iterations record gradients, and how many after them record times.
    workers
        Virtual workers: backward passes between two steps of the optimiser. With 1, several
        passes are micro-batches, and the sum of their gradients is kept.
    name
        The model's name in reports; default: the name of its class.
    dtype
        Format on disk; float16 loses gradients below 6e-8, and their number is noted.
    second_moments
        Also store sum_z (g_z / B)^2 over the samples, for the variance-based compressor. Every
        parameter must belong to a layer with a closed form that is called once per forward pass.
    max_size
        E.g. "2 GiB": as many whole iterations are kept as fit.
    scaler
        The loop's `torch.amp.GradScaler`: gradients are divided by its scale, and iterations that
        overflow are skipped, as it skips the optimiser's step.
    allow_unused
        Store zeros for a parameter whose gradient does not arrive, instead of refusing.
    distributed
        False: this process records alone even if `torch.distributed` is initialised.
    quiet
        Print nothing.

    Raises
    ------
    InputError
        From the context, its end or `step`, with place and hint: the folder exists, the disk
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
            distributed=distributed,
            quiet=quiet,
        ),
        scaler,
    )
