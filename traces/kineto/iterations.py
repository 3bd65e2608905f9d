"""Times of an iteration under PyTorch's profiler, and of each of its gradients.

with torch.profiler.profile(schedule=..., record_shapes=True) as profiler:
        ...                                       # profiler.step() after each iteration
    profiler.export_chrome_trace("profile.json")

or in the JSON that Chakra's trace_link makes of such a trace (`json_stream.py`).

An iteration is a `ProfilerStep#n`; without a schedule it ends with the optimiser's step. Its times:
forward, from the first operator (or DistributedDataParallel's) to the first node of the backward
pass, the loss included; each gradient, from there to the end of its `AccumulateGrad`; backward, to
the last of them, plus the optimiser's own time. Waiting for other ranks between the two is left
out: gcsim simulates it. Of several micro-batches the last counts, in which gradients are exchanged.
The result is the median over the iterations without the first.

On a GPU the host only queues work, so these instants are the computing stream's: a gradient is
ready when the last kernel is done that had been launched when the host's `AccumulateGrad` ended; a
pass begins with the first kernel launched in it.

No event names its parameter. With `record_shapes=True` gradients are told apart by shape, those of
one shape in reverse order of the parameters (autograd's, up to parallel branches); without it by
that order alone.
"""

from __future__ import annotations

import bisect
import functools
import math
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

from gcsim.errors import InputError
from gcsim.json_file import finite
from gcsim.traces.kineto.json_stream import KIND, Event, events, unreadable
from gcsim.traces.profile import PassTimes

GRADIENT = "torch::autograd::AccumulateGrad"
_NODE = "autograd::engine::evaluate_function: "
_GPU_WORK = frozenset({"kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset"})
_GPU_ONLY = ("cudnn", "miopen", "cuda")
"""Substrings of the names of operators that only run on a GPU."""
_LAYERS = {"aten::conv1d": 0, "aten::conv2d": 0, "aten::linear": 0, "aten::embedding": 1}
"""Operators of layers, and which of their inputs is a batch."""
_ALL_REDUCES = ("c10d::allreduce_", "nccl:all_reduce", "gloo:all_reduce", "record_param_comms")
"""Names of the same collective, in order of preference."""


class Span(NamedTuple):
    """A time span, in microseconds."""

    start: float
    end: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A gradient accumulated into its parameter's `grad`."""

    start: float
    end: float
    shape: tuple[int, ...] | None
    """None without recorded shapes."""


class Kernel(NamedTuple):
    """A kernel that a GPU executed."""

    launched: float
    """Time at which the host launched it."""
    start: float
    end: float
    stream: tuple[str, str]
    """Device and stream."""
    collective: bool


@dataclass(slots=True, kw_only=True)
class Marks:
    """Relevant events; each list is in order of time, in microseconds."""

    steps: list[Span] = field(default_factory=list)
    forwards: list[Span] = field(default_factory=list)
    """Forward passes of DistributedDataParallel."""
    operators: list[float] = field(default_factory=list)
    """Starts of forward operators that have a backward."""
    nodes: list[float] = field(default_factory=list)
    """Starts of nodes of the backward pass."""
    gradients: list[Arrival] = field(default_factory=list)
    optimizers: list[Span] = field(default_factory=list)
    reduces: list[tuple[float, int]] = field(default_factory=list)
    """All-reduces: start, and elements (0: unknown)."""
    kernels: list[Kernel] = field(default_factory=list)
    batches: Counter[int] = field(default_factory=Counter)
    """First sizes of layers' inputs (the samples of a batch), if shapes are recorded."""
    gpu_operators: bool = False
    """Whether the host called an operator that only runs on a GPU."""
    linked: bool = False
    """Whether events come from an execution trace (`json_stream.py`)."""

    @property
    def tool(self) -> str:
        """Name of the program that wrote the profile."""
        return "Chakra trace" if self.linked else "PyTorch profiler"


def read_marks(path: Path) -> Marks:
    """Read a profile once and keep the relevant events. Raises `InputError` if the file is not a
    profile, or a gradient's event has no time."""
    return _Collector(path).collect(events(path))


class _Collector:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._marks = Marks()
        self._launches: dict[int, float] = {}
        self._pending: list[tuple[int, tuple[float, float, tuple[str, str], bool]]] = []
        self._reduces: dict[str, list[tuple[float, int]]] = {}

    def collect(self, found: Iterable[Event]) -> Marks:
        for event in found:
            kind = str(event.get("cat", "")).lower()
            name = event.get("name")
            if not isinstance(name, str):
                continue
            if event.get("ph") == "s" and ("fwd" in name or "fwd" in kind):
                if (at := finite(event.get("ts"))) is not None:
                    self._marks.operators.append(at)
            elif event.get("ph") == "X":
                self._complete(event, kind, name)
        return self._settled()

    def _complete(self, event: Event, kind: str, name: str) -> None:
        """Collect a "complete" event, which has a start and a duration."""
        self._marks.linked |= kind == KIND
        gradient = name.removeprefix("struct ") == GRADIENT  # so on Windows
        span = _span(event)
        if span is None:
            if gradient:
                message = "gcsim reads the traces of torch.profiler (PyTorch 1.8 and later)"
                raise unreadable(self._path, f"has an event {GRADIENT} without ts and dur", message)
        elif kind in _GPU_WORK or kind.endswith(("runtime", "driver")):
            self._gpu(event, kind, name, span)
        elif name.startswith(_NODE):
            self._marks.nodes.append(span.start)
        elif gradient:
            shape = _shape(_arguments(event))
            self._marks.gradients.append(Arrival(start=span.start, end=span.end, shape=shape))
        elif kind.startswith("gpu_"):
            return  # the host's annotations again, as a GPU saw them
        elif name.startswith("ProfilerStep"):
            self._marks.steps.append(span)
        elif name.startswith("Optimizer.step#"):
            self._marks.optimizers.append(span)
        elif name == "DistributedDataParallel.forward":
            self._marks.forwards.append(span)
        elif name in _ALL_REDUCES:
            self._collective(_arguments(event), name, span.start)
        elif name.startswith("aten::"):
            self._marks.gpu_operators |= any(word in name for word in _GPU_ONLY)
            if name in _LAYERS:
                self._marks.batches.update(_batch(_arguments(event), _LAYERS[name]))

    def _collective(self, arguments: dict[str, Any], name: str, start: float) -> None:
        if name == "record_param_comms" and "reduce" not in str(arguments.get("Collective name")):
            return
        told = finite(arguments.get("In msg nelems"))
        elements = _elements(arguments) if told is None else int(told)
        self._reduces.setdefault(name, []).append((start, elements))

    def _gpu(self, event: Event, kind: str, name: str, span: Span) -> None:
        arguments = _arguments(event)
        number = arguments.get("correlation")
        if not isinstance(number, int):
            return
        if kind not in _GPU_WORK:
            self._launches[number] = span.start
            return
        stream = (str(event.get("pid")), str(arguments.get("stream", event.get("tid"))))
        collective = "nccl" in name.lower() or "rccl" in name.lower()
        self._pending.append((number, (*span, stream, collective)))

    def _settled(self) -> Marks:
        """Match kernels with their launches and sort everything."""
        marks = self._marks
        marks.kernels = [
            Kernel(self._launches[number], *ran)
            for number, ran in self._pending
            if number in self._launches
        ]
        marks.kernels.sort(key=lambda kernel: kernel.launched)
        marks.gradients.sort(key=lambda arrival: arrival.end)
        names = [name for name in _ALL_REDUCES if name in self._reduces]
        told = [name for name in names if all(n for _, n in self._reduces[name])]
        if names:
            marks.reduces = sorted(self._reduces[(told or names)[0]])
        for spans in (marks.steps, marks.forwards, marks.optimizers):
            spans.sort()
        marks.operators.sort()
        marks.nodes.sort()
        return marks


def _span(event: Event) -> Span | None:
    start, lasted = finite(event.get("ts")), finite(event.get("dur"))
    if start is None or lasted is None or lasted < 0:
        return None
    return Span(start, start + lasted)


def _arguments(event: Event) -> dict[str, Any]:
    found = event.get("args")
    return found if isinstance(found, dict) else {}


def _input(arguments: dict[str, Any], place: int = 0) -> Any:
    """Return the recorded shape of an operator's input, or of a list of inputs; None if unknown."""
    dims = arguments.get("Input Dims", arguments.get("Input dims"))
    return dims[place] if isinstance(dims, list) and len(dims) > place else None


def _shape(arguments: dict[str, Any]) -> tuple[int, ...] | None:
    first = _input(arguments)
    if not isinstance(first, list) or not all(type(size) is int for size in first):
        return None
    return tuple(first)


def _batch(arguments: dict[str, Any], place: int) -> tuple[int, ...]:
    """Return the number of samples in an operator's input; empty if unknown."""
    given = _input(arguments, place)
    if not isinstance(given, list) or len(given) < 2 or type(given[0]) is not int:
        return ()
    return (given[0],)


def _elements(arguments: dict[str, Any]) -> int:
    """Return the elements of the first input, perhaps a list of tensors; 0 if unknown."""
    first = _input(arguments)
    if not isinstance(first, list) or not first:
        return 0
    tensors = first if all(isinstance(size, list) for size in first) else [first]
    if not all(type(size) is int for tensor in tensors for size in tensor):
        return 0
    return sum(math.prod(tensor) for tensor in tensors)


Parameters = Sequence[tuple[str, tuple[int, ...]]]
"""Names and shapes of the trained parameters, in the model's order."""

_MICRO = 1e-6
_NAMED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Training of a model, as shown by a profile."""

    times: PassTimes
    buckets: tuple[int, ...]
    """Elements of the all-reduces of an iteration, in order; empty if they do not add up to the
    model's parameters."""
    batch_size: int | None
    """Samples that most layers received; None without recorded shapes."""


def examine_profile(path: Path, parameters: Parameters) -> Profile:
    """Return the median iteration of a PyTorch profiler's trace (`.json` or `.json.gz`), and its
    buckets. Raises `InputError` with file and remedy if it cannot be read or is truncated, has no
    backward pass, shows only the host of a GPU, or is of a model with other parameters."""
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
    """Raise `InputError` if the file is not a profile of training, whatever the model."""
    _read(path)


def described(path: Path) -> str:
    """Return a one-line description of a profile; raises like `check_profile`."""
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
    """Read a file once, both for checking and for its times."""
    marks = read_marks(path)
    if not marks.gradients:
        raise unreadable(
            path,
            "shows no gradient: it has no event torch::autograd::AccumulateGrad",
            "profile whole training steps with backward(), with ProfilerActivity.CPU and not "
            "under a CUDA graph",
        )
    if marks.gpu_operators and not marks.kernels:
        message = "profile with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]"
        raise unreadable(path, "shows operators of a GPU, and no kernel that ran on it", message)
    return marks


# --- which gradients -------------------------------------------------------------------------


def _windows(marks: Marks) -> Iterator[Span]:
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
    """Return the iterations in which every parameter got a gradient in every pass."""
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
    """Yield the last backward pass of an iteration; all, if nothing delimits iterations."""
    single = whole or window.end != float("inf")
    for first in range(len(inside) - count if single else 0, len(inside), count):
        before = inside[first - 1].end if first else window.start
        yield before, inside[first : first + count]


def _match(path: Path, batch: _Batch, parameters: Parameters) -> list[int]:
    """Return the parameter of each gradient of a pass. Raises `InputError` for gradients of other
    parameters."""
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
    """Return the elements of the all-reduces that started during the pass."""
    first = batch.gradients[0].start
    ends = min((o.start for o in marks.optimizers if o.start >= first), default=batch.until)
    return tuple(elements for at, elements in marks.reduces if first <= at <= ends)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Batch:
    """The last micro-batch of an iteration."""

    gradients: tuple[Arrival, ...]
    """A gradient per parameter, in order of arrival."""
    after: float
    """Its events are later."""
    until: float
    """Its events are earlier."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Timed:
    """Times of one micro-batch, in microseconds."""

    forward: float
    ready: tuple[float, ...]
    """Times of the gradients by arrival, from the start of the backward pass."""
    optimizer: float


def _timed(path: Path, marks: Marks, batch: _Batch) -> _Timed:
    """Return the times of one micro-batch (module docstring). Raises `InputError` if the profile
    does not show where its passes begin."""
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
        message = "use a schedule and call profiler.step() after each iteration"
        raise unreadable(path, "does not show where a forward pass begins", message)
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
    """Return the first of the ascending times in [after, before)."""
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
    """Return the same times on the computing stream, as host events only queue work."""
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
        message = "profile whole training steps, and let the schedule record at least two of them"
        raise unreadable(path, "shows no kernels of a backward pass on the GPU", message)
    ready = [max(turn, done[bisect.bisect_left(launched, at) - 1]) - turn for at in arrivals]
    last = 0.0
    if optimizer is not None:
        steps = [k for k in own if optimizer.start <= k.launched <= optimizer.end]
        last = max((k.end for k in steps), default=0) - min((k.start for k in steps), default=0)
    return _Timed(forward=turn - start, ready=tuple(ready), optimizer=last)
