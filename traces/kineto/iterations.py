"""Times of an iteration under PyTorch's profiler, and of each of its gradients.

with torch.profiler.profile(schedule=..., record_shapes=True) as profiler:
        ...                                       # profiler.step() after each iteration
    profiler.export_chrome_trace("profile.json")

or in the JSON that Chakra's trace_link makes of such a trace (`json_stream.py`).

An iteration is a `ProfilerStep#n`; without a schedule it ends with the optimiser's step. Its
times: forward, from the first operator (or DistributedDataParallel's) to the first node of the
backward pass, the loss included; each gradient, from there to the end of its `AccumulateGrad`;
backward, to the last of them, and the optimiser's own time behind it. Waiting for other ranks
between the two is no part of it: that is what gcsim simulates. Of several micro-batches the last
counts, in which gradients are exchanged. What is given is the median over the iterations without
the first one.

On a GPU the host only queues work, far ahead. There all these instants are those of the stream
that computes: a gradient is ready when the last kernel is done that had been launched on it when
the host's `AccumulateGrad` ended; a pass begins with the first kernel launched in it.

No event names its parameter. With `record_shapes=True` the gradients of a pass are told apart by
their shapes, those of one shape in the reverse order of the parameters, which is that of autograd
up to parallel branches; without it by that order alone.
"""

from __future__ import annotations

import bisect
import functools
import math
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from gcsim.errors import InputError
from gcsim.traces.kineto.json_stream import unreadable
from gcsim.traces.kineto.marks import Arrival, Kernel, Marks, Span, read_marks
from gcsim.traces.profile import PassTimes

Parameters = Sequence[tuple[str, tuple[int, ...]]]
"""Names and shapes of the trained parameters, in the model's order."""

_MICRO = 1e-6
_NAMED = 3
"""Parameters that a message names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Training of a model, as a profile shows it."""

    times: PassTimes
    buckets: tuple[int, ...]
    """Elements of the all-reduces of an iteration, in order; empty where there were none, or
    where they do not add up to the model's parameters."""
    batch_size: int | None
    """Samples that most layers were given; None where the profiler was not asked for shapes."""


def examine_profile(path: Path, parameters: Parameters) -> Profile:
    """The median iteration of a PyTorch profiler's trace (`.json` or `.json.gz`), and its buckets.

    Raises `InputError` with file and way out when the file cannot be read or is cut short, has
    no backward pass, saw a GPU's host alone, or is of a model with other parameters.
    """
    marks = _read(path)
    iterations = _complete(path, marks, len(parameters))
    batches = iterations[1:] or iterations
    found = [_timed(path, marks, batch) for batch in batches]
    orders = [_match(path, batch, parameters) for batch in batches]
    forward = statistics.median(one.forward for one in found)
    optimizer = statistics.median(one.optimizer for one in found)
    arrivals: list[list[float]] = [[] for _ in parameters]
    for one, order in zip(found, orders, strict=True):
        for parameter, at in zip(order, one.ready, strict=True):
            arrivals[parameter].append(at * _MICRO)
    ready = [statistics.median(times) for times in arrivals]
    shaped = all(arrival.shape is not None for batch in batches for arrival in batch.gradients)
    how = "shape and order" if shaped else "their order (no shapes: record_shapes=True tells more)"
    dropped = ", the first left out" if len(iterations) > 1 else ""
    clock = _clock(marks)
    times = PassTimes(
        forward=forward * _MICRO,
        backward=max(ready) + optimizer * _MICRO,
        ready=tuple(ready),
        processor="gpu" if marks.kernels else "cpu",
        source=f"{marks.tool}, {path.name}: median of {len(found)} of {len(iterations)} "
        f"iterations{dropped}, {clock} clock, gradients told apart by {how}",
    )
    exchanged = _exchanged(marks, iterations[-1])
    total = sum(math.prod(shape) for _, shape in parameters)
    return Profile(
        times=times,
        buckets=exchanged if sum(exchanged) == total else (),
        batch_size=max(marks.batches, key=lambda size: marks.batches[size], default=None),
    )


def check_profile(path: Path) -> None:
    """Raise `InputError` when the file is no profile of training, whatever the model."""
    _read(path)


def described(path: Path) -> str:
    """Description of a profile, for people; raises as `check_profile`."""
    marks = _read(path)
    counts = [
        f"{count} {noun}" + "s" * (count != 1)
        for count, noun in (
            (len(marks.steps or marks.optimizers), "iteration"),
            (len(marks.gradients), "gradient"),
            (len(marks.reduces), "all-reduce"),
            (len(marks.kernels), "kernel"),
        )
        if count
    ]
    return f"{marks.tool}, {_clock(marks)} clock: {', '.join(counts)}"


def _clock(marks: Marks) -> str:
    if marks.linked and marks.kernels:
        return "the GPU's rebuilt"
    return "the GPU's" if marks.kernels else "the host's"


def _read(path: Path) -> Marks:
    try:
        status = path.stat()
    except OSError as error:
        raise unreadable(path, f"cannot be read: {error.strerror or error}") from error
    return _read_once(path, status.st_mtime_ns, status.st_size)


@functools.lru_cache(maxsize=2)
def _read_once(path: Path, _changed: int, _length: int) -> Marks:
    """A file is asked for once to check it and once for its times."""
    marks = read_marks(path)
    if not marks.gradients:
        raise unreadable(
            path,
            "shows no gradient: it has no event torch::autograd::AccumulateGrad",
            "profile whole training steps with backward(), with ProfilerActivity.CPU and not "
            "under a CUDA graph",
        )
    if marks.gpu_operators and not marks.kernels:
        raise unreadable(
            path,
            "shows operators of a GPU, and no kernel that ran on it",
            "profile with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]",
        )
    return marks


# --- which gradients -------------------------------------------------------------------------


def _windows(marks: Marks) -> Iterator[Span]:
    """The iterations, whole or not."""
    first, last = marks.gradients[0].start, marks.gradients[-1].end
    if marks.steps:
        yield from marks.steps
        return
    after = float("-inf")
    for optimizer in marks.optimizers:
        if optimizer.end >= first:
            yield Span(after, optimizer.end)
            after = optimizer.end
    if last > after:
        yield Span(after, float("inf"))


def _complete(path: Path, marks: Marks, count: int) -> list[_Batch]:
    """The iterations in which every parameter got a gradient in every pass."""
    ends = [arrival.end for arrival in marks.gradients]
    found: list[_Batch] = []
    odd: list[int] = []
    for window in _windows(marks):
        inside = marks.gradients[
            bisect.bisect_left(ends, window.start) : bisect.bisect_right(ends, window.end)
        ]
        if not inside:
            continue
        if len(inside) % count:
            odd.append(len(inside))
            continue
        for after, batch in _passes(inside, count, window, whole=bool(marks.optimizers)):
            found.append(_Batch(gradients=tuple(batch), after=after, until=window.end))
    if not found:
        raise unreadable(
            path,
            f"shows {odd[0]} gradients in an iteration; the model has {count} trained parameters",
            "profile the model of the scenario; parameters without a gradient are frozen with "
            "requires_grad_(False)",
        )
    return found


def _passes(
    inside: Sequence[Arrival], count: int, window: Span, *, whole: bool
) -> Iterator[tuple[float, Sequence[Arrival]]]:
    """The last backward pass of an iteration; all, where nothing says that they are one."""
    single = whole or window.end != float("inf")
    for first in range(len(inside) - count if single else 0, len(inside), count):
        before = inside[first - 1].end if first else window.start
        yield before, inside[first : first + count]


def _match(path: Path, batch: _Batch, parameters: Parameters) -> list[int]:
    """The parameter of each arrival of a pass.

    Raises `InputError` when the gradients are not those of the parameters.
    """
    backwards = range(len(parameters) - 1, -1, -1)
    shapes = [arrival.shape for arrival in batch.gradients]
    if any(shape is None for shape in shapes):
        return list(backwards)
    seen = Counter(shape for shape in shapes if shape is not None)
    expected = Counter(shape for _, shape in parameters)
    if seen != expected:
        raise _another_model(path, parameters, seen, expected)
    waiting: dict[tuple[int, ...], list[int]] = {}
    for number in range(len(parameters)):
        waiting.setdefault(parameters[number][1], []).append(number)
    return [waiting[shape].pop() for shape in shapes if shape is not None]


def _another_model(
    path: Path,
    parameters: Parameters,
    seen: Counter[tuple[int, ...]],
    expected: Counter[tuple[int, ...]],
) -> InputError:
    missing = [name for name, shape in parameters if shape in expected - seen][:_NAMED]
    strange = [str(list(shape)) for shape in (seen - expected)][:_NAMED]
    return InputError(
        f"is of another model: it has gradients of shape {', '.join(strange)} and "
        f"none for {', '.join(missing)}",
        place=str(path),
        hint="profile the model of the scenario",
    )


def _exchanged(marks: Marks, batch: _Batch) -> tuple[int, ...]:
    """Elements of the all-reduces that were started during the pass."""
    first = batch.gradients[0].start
    ends = min((o.start for o in marks.optimizers if o.start >= first), default=batch.until)
    return tuple(elements for at, elements in marks.reduces if first <= at <= ends)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Batch:
    """The last micro-batch of an iteration."""

    gradients: tuple[Arrival, ...]
    """One for each parameter, as they arrived."""
    after: float
    """Nothing before that belongs to it."""
    until: float
    """Nor anything from that on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Timed:
    """One micro-batch, in microseconds."""

    forward: float
    ready: tuple[float, ...]
    """Times of the gradients by arrival, from the start of the backward pass."""
    optimizer: float


def _timed(path: Path, marks: Marks, batch: _Batch) -> _Timed:
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
    return _Timed(
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
) -> _Timed:
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
    return _Timed(forward=turn - start, ready=tuple(ready), optimizer=last)
