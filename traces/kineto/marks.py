"""Events of a profile that tell when an iteration's gradients were ready.

Of the host: the iterations (`ProfilerStep#n`), the forward pass (`DistributedDataParallel.forward`,
or the first operator that a backward operator belongs to), the nodes of the backward pass
(`autograd::engine::evaluate_function: ...`), each gradient's arrival
(`torch::autograd::AccumulateGrad`, once for each parameter and backward pass), the optimiser
(`Optimizer.step#...`), and the collectives that were started. Of a GPU: when each kernel was
launched and when it ran, which the correlation id of CUPTI (and of ROCm's tracer) ties together.

`ts` and `dur` are microseconds in every version of the schema, with nanoseconds behind the point
since PyTorch 2.4; `displayTimeUnit` is a wish for viewers, and `baseTimeNanoseconds` only says
what time it is at `ts` 0 (pytorch/kineto, libkineto/src/output_json.cpp). Names of categories and
arguments are those of PyTorch 2, and of PyTorch 1.8 to 1.13 (`Operator`, `Input dims`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from gcsim.json_file import finite
from gcsim.traces.kineto.json_stream import KIND, Event, events, unreadable

GRADIENT = "torch::autograd::AccumulateGrad"
_NODE = "autograd::engine::evaluate_function: "
_GPU_WORK = frozenset({"kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset"})
_GPU_ONLY = ("cudnn", "miopen", "cuda")
"""In the names of operators that only run on a GPU."""
_LAYERS = {"aten::conv1d": 0, "aten::conv2d": 0, "aten::linear": 0, "aten::embedding": 1}
"""Operators of layers, and which of their inputs is a batch."""
_ALL_REDUCES = ("c10d::allreduce_", "nccl:all_reduce", "gloo:all_reduce", "record_param_comms")
"""One collective may be told under several of these names; in order of preference."""


class Span(NamedTuple):
    """A stretch of time, in microseconds."""

    start: float
    end: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """One gradient was accumulated into its parameter's `grad`."""

    start: float
    end: float
    shape: tuple[int, ...] | None
    """None where the profiler was not asked for shapes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """Kernel that a GPU executed."""

    launched: float
    """Time at which the host asked for it."""
    start: float
    end: float
    stream: tuple[str, str]
    """Device and stream."""
    collective: bool


@dataclass(slots=True, kw_only=True)
class Marks:
    """The events that matter, each list in the order of its times; microseconds."""

    steps: list[Span] = field(default_factory=list)
    forwards: list[Span] = field(default_factory=list)
    """Forward passes of DistributedDataParallel."""
    operators: list[float] = field(default_factory=list)
    """Starts of forward operators that have a backward."""
    nodes: list[float] = field(default_factory=list)
    """Starts of backward nodes."""
    gradients: list[Arrival] = field(default_factory=list)
    optimizers: list[Span] = field(default_factory=list)
    reduces: list[tuple[float, int]] = field(default_factory=list)
    """All-reduces: when one was started, and its elements (0: not told)."""
    kernels: list[Kernel] = field(default_factory=list)
    batches: Counter[int] = field(default_factory=Counter)
    """First sizes of what layers were given: the samples of a batch, where shapes are told."""
    gpu_operators: bool = False
    """Whether the host called an operator that only runs on a GPU."""
    linked: bool = False
    """Whether they come from an execution trace (`json_stream.py`)."""

    @property
    def tool(self) -> str:
        """Program that wrote the profile, for people."""
        return "Chakra trace" if self.linked else "PyTorch profiler"


def read_marks(path: Path) -> Marks:
    """Read a profile once, keeping what matters.

    Raises `InputError` when the file is no profile, or a gradient's event has no time.
    """
    return _Collector(path).collect(events(path))


class _Collector:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._marks = Marks()
        self._launches: dict[int, float] = {}
        self._pending: list[tuple[int, Span, tuple[str, str], bool]] = []
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
        """A "complete" event: it has a start and a duration."""
        self._marks.linked |= kind == KIND
        if kind in _GPU_WORK or kind.endswith(("runtime", "driver")):
            self._gpu(event, kind, name)
        elif name.startswith(_NODE):
            if (span := self._span(event)) is not None:
                self._marks.nodes.append(span.start)
        elif name.removeprefix("struct ") == GRADIENT:  # so on Windows
            span = self._span(event)
            if span is None:
                raise unreadable(
                    self._path,
                    f"has an event {GRADIENT} without ts and dur",
                    "gcsim reads the traces of torch.profiler (PyTorch 1.8 and later)",
                )
            shape = _shape(_arguments(event))
            self._marks.gradients.append(Arrival(start=span.start, end=span.end, shape=shape))
        elif kind.startswith("gpu_"):
            return  # the host's annotations again, as a GPU saw them
        elif name.startswith("ProfilerStep"):
            self._marks.steps.extend(_one(self._span(event)))
        elif name.startswith("Optimizer.step#"):
            self._marks.optimizers.extend(_one(self._span(event)))
        elif name == "DistributedDataParallel.forward":
            self._marks.forwards.extend(_one(self._span(event)))
        elif name in _ALL_REDUCES:
            self._collective(event, name)
        elif name.startswith("aten::"):
            self._marks.gpu_operators |= any(word in name for word in _GPU_ONLY)
            if name in _LAYERS:
                self._marks.batches.update(_batch(_arguments(event), _LAYERS[name]))

    def _collective(self, event: Event, name: str) -> None:
        arguments = _arguments(event)
        if name == "record_param_comms" and "reduce" not in str(arguments.get("Collective name")):
            return
        span = self._span(event)
        if span is not None:
            told = finite(arguments.get("In msg nelems"))
            elements = _elements(arguments) if told is None else int(told)
            self._reduces.setdefault(name, []).append((span.start, elements))

    def _gpu(self, event: Event, kind: str, name: str) -> None:
        arguments = _arguments(event)
        span, number = self._span(event), arguments.get("correlation")
        if span is None or not isinstance(number, int):
            return
        if kind not in _GPU_WORK:
            self._launches[number] = span.start
            return
        stream = (str(event.get("pid")), str(arguments.get("stream", event.get("tid"))))
        collective = "nccl" in name.lower() or "rccl" in name.lower()
        self._pending.append((number, span, stream, collective))

    @staticmethod
    def _span(event: Event) -> Span | None:
        start, lasted = finite(event.get("ts")), finite(event.get("dur"))
        if start is None or lasted is None or lasted < 0:
            return None
        return Span(start, start + lasted)

    def _settled(self) -> Marks:
        """Kernels with their launches, everything in order."""
        marks = self._marks
        marks.kernels = [
            Kernel(
                launched=self._launches[number],
                start=span.start,
                end=span.end,
                stream=stream,
                collective=collective,
            )
            for number, span, stream, collective in self._pending
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


def _one(span: Span | None) -> tuple[Span, ...]:
    return () if span is None else (span,)


def _arguments(event: Event) -> dict[str, Any]:
    found = event.get("args")
    return found if isinstance(found, dict) else {}


def _shape(arguments: dict[str, Any]) -> tuple[int, ...] | None:
    """Shape of the first input."""
    dims = arguments.get("Input Dims", arguments.get("Input dims"))
    first = dims[0] if isinstance(dims, list) and dims else None
    if not isinstance(first, list) or not all(type(size) is int for size in first):
        return None
    return tuple(first)


def _batch(arguments: dict[str, Any], place: int) -> tuple[int, ...]:
    """The samples in an operator's input; empty where that is not told."""
    dims = arguments.get("Input Dims", arguments.get("Input dims"))
    given = dims[place] if isinstance(dims, list) and len(dims) > place else None
    if not isinstance(given, list) or len(given) < 2 or type(given[0]) is not int:
        return ()
    return (given[0],)


def _elements(arguments: dict[str, Any]) -> int:
    """Elements of the first input, which may be a list of tensors; 0 where it is not stated."""
    dims = arguments.get("Input Dims", arguments.get("Input dims"))
    first = dims[0] if isinstance(dims, list) and dims else None
    if not isinstance(first, list) or not first:
        return 0
    tensors = first if all(isinstance(size, list) for size in first) else [first]
    if not all(type(size) is int for tensor in tensors for size in tensor):
        return 0
    return sum(math.prod(tensor) for tensor in tensors)
