"""Collectives in a timeline of Horovod (`HOROVOD_TIMELINE`), and their bytes.

    [
    {"name": "process_name", "ph": "M", "pid": 1, "args": {"name": "grad.0"}},
    {"ph": "B", "name": "NEGOTIATE_ALLREDUCE", "ts": 10, "pid": 1},
    {"ph": "X", "name": "0", "ts": 11, "pid": 1, "dur": 0},
    {"ph": "E", "ts": 20, "pid": 1},
    {"ph": "B", "name": "ALLREDUCE", "ts": 21, "pid": 1},
    {"ph": "B", "name": "NCCL_ALLREDUCE", "ts": 30, "pid": 1},
    {"ph": "E", "ts": 95, "pid": 1},
    {"ph": "E", "ts": 96, "pid": 1, "args": {"dtype": "float32", "shape": "[512, 10]"}}]

A tensor is a process. Its operation ends with its output's type and shape, the only sizes; the time
is that of the library's collective inside, for which all ranks are ready. Fused tensors share one,
which begins for them within a tenth of its duration, of all their bytes. Names inside NEGOTIATE are
the ranks. Operations with several collectives inside (hierarchical ones) are left out.

Source: horovod/horovod, horovod/common/timeline.cc, operations.cc (`PerformOperation`), message.cc
and common.h (names of activities), 0.16 to 0.28; the last bracket is missing before 0.21.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from gcsim.analysis.calibration.measurements import collectives
from gcsim.analysis.calibration.measurements.csv_table import ELEMENTS
from gcsim.analysis.calibration.measurements.json_text import Listed, at, whole
from gcsim.errors import InputError
from gcsim.json_file import finite

_ACTIVITY = re.compile(r"(NCCL|MPI|GLOO)_(ALLREDUCE|ALLGATHER|REDUCESCATTER|ALLTOALL)")
_OTHERS = re.compile(r"[A-Z]+_(?:[A-Z]+_)?(?:ALLREDUCE|ALLGATHER|REDUCESCATTER|ALLTOALL|BCAST)")
"""Other collectives of a library."""
_TRANSPORTS = {"NCCL": "nccl", "MPI": "mpich", "GLOO": "gloo"}
_COLLECTIVES: dict[str, collectives.Collective] = {
    "ALLREDUCE": "all_reduce",
    "ALLGATHER": "all_gather",
    "REDUCESCATTER": "reduce_scatter",
    "ALLTOALL": "all_to_all",
}
_SHAPE = re.compile(r"\[(?:\d{1,12}(?:, \d{1,12})*)?\]")
_TOGETHER = 0.1  # share of a collective's duration within which it begins for all fused tensors
_MOST_RANKS = 1 << 20


@dataclass(slots=True)
class _Tensor:
    """State of a tensor."""

    open: list[tuple[str, float]] = field(default_factory=list)
    """Open phases, with their microsecond."""
    inside: list[tuple[str, float, float]] = field(default_factory=list)
    """Library's collectives in the operation under way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Span:
    """Library's collective as seen by one tensor, in microseconds."""

    activity: str
    start: float
    end: float
    nbytes: int
    dtype: str
    entry: int


@dataclass(slots=True)
class _Timeline:
    spans: list[_Span] = field(default_factory=list)
    ranks: int = 0
    negotiated: bool = False
    sized: int = 0
    left_out: Counter[str] = field(default_factory=Counter)


def recognised(content: Any) -> bool:
    """Whether it is a list, unlike other formats."""
    return isinstance(content, Listed)


def parse(name: str, content: Listed, stated: collectives.Stated) -> collectives.Reading:
    """Read a timeline; `InputError` without sizes or ranks."""
    timeline = _timeline(content.entries)
    if not timeline.negotiated:
        raise InputError(
            "is a list without Horovod's phases: no event begins NEGOTIATE_...",
            place=name,
            hint="if it comes from PyTorch's profiler, a scenario reads the passes from it: "
            "`compute: {profile: FILE}`",
        )
    if not timeline.spans:
        raise _nothing(name, timeline)
    ranks = stated.ranks[0] if len(stated.ranks) == 1 else timeline.ranks
    if ranks < 2:
        raise InputError(
            "the number of ranks is missing: no rank is named inside NEGOTIATE",
            place=name,
            hint="set it with --ranks",
        )
    return collectives.Reading(
        file=name,
        tool="Horovod timeline",
        measurements=tuple(_measured(name, timeline, ranks)),
        notes=tuple(
            f"{name}: {count} operations are left out: {what}"
            for what, count in timeline.left_out.items()
        ),
        placed=False,
    )


def _nothing(name: str, timeline: _Timeline) -> InputError:
    if timeline.left_out and timeline.sized:
        kinds = ", ".join(timeline.left_out)
        message, hint = f"has no collective that gcsim simulates alone: {kinds}", ""
    elif timeline.left_out:
        message = (
            "has no sizes: no operation ends with the dtype and shape of its output, and nothing "
            "else in a timeline says how many bytes were sent"
        )
        hint = (
            "Horovod writes them at the end of each operation that succeeds (HOROVOD_TIMELINE, "
            "0.16 and later); else measure sizes and times: torchrun -m gcsim.calibrate_link"
        )
    else:
        message = "has no collective of NCCL, MPI or Gloo"
        hint = "record some steps of training on two ranks or more"
    return InputError(message, place=name, hint=hint)


def _timeline(events: Iterator[Any]) -> _Timeline:
    timeline = _Timeline()
    tensors: defaultdict[int, _Tensor] = defaultdict(_Tensor)
    for number, event in enumerate(events):
        phase, name = at(event, "ph"), at(event, "name")
        time, process = finite(at(event, "ts")), whole(at(event, "pid"))
        if time is None or process is None:
            continue
        tensor = tensors[process]
        if phase == "B" and isinstance(name, str):
            tensor.open.append((name, time))
            timeline.negotiated |= name.startswith("NEGOTIATE_")
        elif phase == "X" and isinstance(name, str) and name.isascii() and name.isdigit():
            if tensor.open and tensor.open[-1][0].startswith("NEGOTIATE_") and len(name) < 7:
                timeline.ranks = min(max(timeline.ranks, int(name) + 1), _MOST_RANKS)
        elif phase == "E" and tensor.open:
            began, start = tensor.open.pop()
            if _OTHERS.fullmatch(began) and not began.startswith("NEGOTIATE_"):
                tensor.inside.append((began, start, time))
            if not tensor.open and not began.startswith("NEGOTIATE_"):
                _end(timeline, tensor, at(event, "args"), number)
    return timeline


def _end(timeline: _Timeline, tensor: _Tensor, arguments: Any, number: int) -> None:
    """End a tensor's operation."""
    inside, tensor.inside = tensor.inside, []
    if not inside:
        return
    dtype, shape = at(arguments, "dtype"), at(arguments, "shape")
    elements = _elements(shape)
    if dtype not in ELEMENTS or elements is None:
        timeline.left_out["without dtype and shape, or of a dtype that is not reduced"] += 1
        return
    timeline.sized += 1
    if len(inside) > 1:
        timeline.left_out["hierarchical, of several collectives"] += 1
        return
    activity, start, end = inside[0]
    if not _ACTIVITY.fullmatch(activity):
        timeline.left_out[activity] += 1
    elif elements and end > start:
        nbytes = elements * ELEMENTS[dtype]
        timeline.spans.append(
            _Span(activity=activity, start=start, end=end, nbytes=nbytes, dtype=dtype, entry=number)
        )


def _elements(shape: Any) -> int | None:
    """Elements of `[512, 10]`; a scalar is `[]`."""
    if not isinstance(shape, str) or not _SHAPE.fullmatch(shape):
        return None
    return math.prod(int(size) for size in shape.strip("[]").split(", ") if size)


def _measured(name: str, timeline: _Timeline, ranks: int) -> Iterator[collectives.Measurement]:
    for together in _fused(timeline.spans):
        library, _, kind = together[0].activity.partition("_")
        nbytes = sum(span.nbytes for span in together)
        seconds = (min(s.end for s in together) - max(s.start for s in together)) / 1e6
        if seconds <= 0:
            continue
        dtype = together[0].dtype
        yield collectives.Measurement(
            collective=_COLLECTIVES[kind],
            ranks=ranks,
            nbytes=nbytes * (ranks if kind == "REDUCESCATTER" else 1),
            seconds=seconds,
            element=ELEMENTS[dtype],
            dtype=dtype,
            algorithm=_TRANSPORTS[library],
            place=f"{name}: event {together[0].entry}",
        )


def _fused(spans: list[_Span]) -> Iterator[list[_Span]]:
    """Groups of tensors that shared a collective."""
    group: list[_Span] = []
    for span in sorted(spans, key=lambda span: (span.activity, span.start)):
        if group:
            first = group[0]
            reach = _TOGETHER * (first.end - first.start)
            if (
                span.activity != first.activity
                or span.dtype != first.dtype
                or span.start - group[-1].start > reach
                or span.start >= min(one.end for one in group)
            ):
                yield group
                group = []
        group.append(span)
    if group:
        yield group
