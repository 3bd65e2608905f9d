"""How long did one iteration of a profile take, on the host or on the GPU that it kept busy?"""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from gcsim.traces.kineto.json_stream import unreadable
from gcsim.traces.kineto.marks import Arrival, Kernel, Marks, Span


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The last micro-batch of an iteration."""

    gradients: tuple[Arrival, ...]
    """One for each parameter, as they arrived."""
    after: float
    """Nothing before that belongs to it."""
    until: float
    """Nor anything from that on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """One micro-batch, in microseconds."""

    forward: float
    ready: tuple[float, ...]
    """By arrival, from the start of the backward pass."""
    optimizer: float


def timed(path: Path, marks: Marks, batch: Batch) -> Timed:
    """The times of one micro-batch; see `gcsim.traces.kineto.iterations`.

    Raises `InputError` when the profile does not show where its passes begin.
    """
    first = batch.gradients[0].start
    forward = _first(marks.operators, batch.after, first)
    wrapped = _first([span.start for span in marks.forwards], batch.after, first)
    if wrapped is not None:
        forward = wrapped if forward is None else min(forward, wrapped)
    if forward is None:
        forward = batch.after
    backward = _first(marks.nodes, forward, first + 1e-3)
    if backward is None:
        backward = first
    if forward == float("-inf"):
        raise unreadable(
            path,
            "does not show where a forward pass begins",
            "use a schedule and call profiler.step() after each iteration",
        )
    optimizer = next(
        (o for o in marks.optimizers if batch.gradients[-1].end <= o.start <= batch.until), None
    )
    arrivals = [arrival.end for arrival in batch.gradients]
    if marks.kernels:
        return _on_gpu(path, marks.kernels, forward, backward, arrivals, optimizer)
    return Timed(
        forward=backward - forward,
        ready=tuple(end - backward for end in arrivals),
        optimizer=0.0 if optimizer is None else optimizer.end - optimizer.start,
    )


def _first(times: Sequence[float], after: float, before: float) -> float | None:
    """The first of the ascending times in [after, before)."""
    number = bisect.bisect_left(times, after)
    return times[number] if number < len(times) and times[number] < before else None


def _on_gpu(  # noqa: PLR0917 - a step of timed
    path: Path,
    kernels: Sequence[Kernel],
    forward: float,
    backward: float,
    arrivals: Sequence[float],
    optimizer: Span | None,
) -> Timed:
    """The same instants on the stream that computes, of which they are promises."""
    within = [k for k in kernels if forward <= k.launched <= arrivals[-1] and not k.collective]
    busy: Counter[tuple[str, str]] = Counter()
    for kernel in within:
        busy[kernel.stream] += max(1, round(1e3 * (kernel.end - kernel.start)))
    stream = busy.most_common(1)[0][0] if busy else None
    own = [kernel for kernel in kernels if kernel.stream == stream and not kernel.collective]
    launched = [kernel.launched for kernel in own]
    done = list(accumulate((kernel.end for kernel in own), max))

    def begins(at: float) -> float | None:
        number = bisect.bisect_left(launched, at)
        return own[number].start if number < len(own) else None

    start, turn = begins(forward), begins(backward)
    if start is None or turn is None or turn < start:
        raise unreadable(
            path,
            "shows no kernels of a backward pass on the GPU",
            "profile whole training steps, and let the schedule record at least two of them",
        )
    ready = [max(turn, done[bisect.bisect_left(launched, at) - 1]) - turn for at in arrivals]
    last = 0.0
    if optimizer is not None:
        steps = [k for k in own if optimizer.start <= k.launched <= optimizer.end]
        last = max((k.end for k in steps), default=0) - min((k.start for k in steps), default=0)
    return Timed(forward=turn - start, ready=tuple(ready), optimizer=last)
